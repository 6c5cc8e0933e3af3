"""An agent acts in somebody's loop as it does in the sampler's."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adaptax
from adaptax.algorithms import registry
from adaptax.core.errors import AdaptaxError
from adaptax.core.rng import named_key
from adaptax.core.spec import MultiDiscrete, spec_from_dict, spec_to_dict
from adaptax.experiment.agent import Agent
from adaptax.experiment.build import make_algorithm
from adaptax.learning.credited import credited
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

HORIZON = 6


class Valve(gymnasium.Env):
    """A valve from 2 to 6 and a dial that follows it."""

    observation_space = gymnasium.spaces.Dict(
        {"dial": gymnasium.spaces.Box(-9, 9, (2,)), "mode": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Box(2, 6, (1,))
    asked: ClassVar[list[int]] = []
    """Seeds of all resets, whoever asks."""

    def reset(self, *, seed=None, options=None):
        Valve.asked.append(seed)
        super().reset(seed=seed)
        self.dial = self.np_random.normal(size=2).astype(np.float32)
        return {"dial": self.dial, "mode": 0}, {}

    def step(self, action):
        self.dial = 0.9 * self.dial + np.float32(0.1) * action
        reward = float(self.np_random.normal() - self.dial.sum())
        ended = bool(self.np_random.random() < 0.1)
        return (
            {"dial": self.dial, "mode": int(self.np_random.integers(3))},
            reward,
            ended,
            False,
            {},
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Echo:
    """Actions that depend on all that an actor may: its memory, observation, key and last step."""

    shift: jax.Array
    memory: jax.Array | None = None

    def begin(self, num_members, num_lanes, key):
        fresh = jax.random.normal(key, (num_members, num_lanes, 1))
        return fresh if self.memory is None else self.memory

    def act(self, carry, obs, key):
        noise = jax.random.normal(key, carry.shape)
        action = jnp.tanh(self.shift + carry + obs.sum(-1, keepdims=True) + noise) * 1.2
        return action, carry, {"log_prob": noise[..., 0]}

    def observe(self, carry, step, key):
        told = step.reward + step.next_obs[..., 0] + 2.0 * (step.terminated | step.truncated)
        noise = 0.1 * jax.random.normal(key, carry.shape)
        return 0.5 * carry + 0.1 * told[..., None] * step.action + step.obs[..., :1] + noise


@dataclass(frozen=True)
class EchoesConfig:
    shift: float = 0.1


class Echoes(adaptax.Algorithm):
    """Learns how many updates there were; adapts by going on from its memory."""

    name = "echoes"

    def init(self, key):
        return {"shift": jnp.float32(self.config.shift)}

    def collect(self, state, sampler):
        return sampler.episodes(self.actor(state), sampler.sample_tasks(1), 1, 1)

    def update(self, state, data):
        return {"shift": state["shift"] + 1.0}, {}

    def actor(self, state, *, deterministic=False):
        return Echo(jnp.where(deterministic, 100.0, state["shift"]))

    def adapt(self, state, actor, history, *, deterministic=False):
        return Echo(actor.shift, jnp.asarray(history[-1].final_carry))


@pytest.fixture(scope="module")
def suite():
    return adaptax.gym_suite("valve", Valve, horizon=HORIZON, trial_episodes=2)


def loop(agent, env, key, seed):
    """An episode of a plain Gymnasium loop, as the documentation shows it."""
    carry = agent.begin(key, record=True)
    obs, _ = env.reset(seed=seed)
    for t in range(HORIZON):
        action, carry = agent.act(carry, obs)
        assert env.action_space.contains(action)
        obs, reward, terminated, _, _ = env.step(action)
        step = adaptax.Step(
            reward=reward, next_obs=obs, terminated=terminated, truncated=t == HORIZON - 1
        )
        carry = agent.observe(carry, step)
        if terminated:
            break
    return agent.rollout(carry)


def same(own, samplers):
    """Every array of two rollouts, to the last bits."""
    steps = zip(jax.tree.leaves(own), jax.tree.leaves(samplers), strict=True)
    for a, b in steps:
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_gymnasium_loop_gives_the_rollouts_of_the_sampler(suite):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    state = algorithm.init(jax.random.key(0))
    sampler, agent = Sampler(suite, suite.test, 5, "s"), Agent(algorithm, state, env := Valve())
    actor, history, own = algorithm.actor(state), [], []
    for k in range(4):
        del Valve.asked[:]
        history.append(sampler.episodes(actor, suite.test.tasks, 1, 1))
        own.append(loop(agent, env, named_key(5, "s", "actions", k), Valve.asked[0]))
        same(own[-1], history[-1])
        actor, agent = algorithm.adapt(state, actor, history), agent.adapt(own)
    lengths = {int(rollout.valid.sum()) for rollout in own}
    assert len(lengths) > 1  # some episodes ended early


def test_lanes_act_together_and_one_alone_as_a_vector(suite):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    agent = Agent(algorithm, algorithm.init(jax.random.key(0)))
    obs = np.arange(10.0).reshape(2, 5) / 10
    carry = agent.begin(jax.random.key(1), num_lanes=2)
    action, carry = agent.act(carry, obs)
    assert action.shape == (2, 1)
    two = np.array([0.0, 1.0])
    step = adaptax.Step(reward=two, next_obs=obs, terminated=two > 0, truncated=two > 9)
    then, _ = agent.act(agent.observe(carry, step), obs)
    assert then.shape == (2, 1) and not np.allclose(then, action)
    alone, _ = agent.act(agent.begin(jax.random.key(1)), obs[0])
    assert alone.shape == (1,)
    with pytest.raises(AdaptaxError, match=r"have the shape \(1, 4\); the agent takes \(1, 5\)"):
        agent.act(agent.begin(jax.random.key(1)), obs[0, :4])


def test_an_agent_begins_with_a_key_or_a_seed(suite):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    agent = Agent(algorithm, algorithm.init(jax.random.key(0)))
    one, other = agent.begin(3), agent.begin(jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, one.memory, other.memory)
    assert one.key == other.key
    for seed in (np.int64(3), 2**32 - 1):
        assert agent.begin(seed).key == jax.random.key(int(seed))
    for wrong in (jax.random.PRNGKey(3), "3", True, -1, 2**32):
        with pytest.raises(AdaptaxError, match=r"begin takes a seed in \[0, 2\^32\), or a key as"):
            agent.begin(wrong)


class Random(Echoes):
    """Acts at random."""

    def actor(self, state, *, deterministic=False):
        return UniformActor(self.spec.action)


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_choices_are_numbers_that_the_environment_takes(num_lanes):
    env = gymnasium.wrappers.TransformAction(
        gymnasium.make("CartPole-v1"), lambda a: a - 5, gymnasium.spaces.Discrete(2, start=5)
    )
    spec = adaptax.make_suite("cartpole").spec
    obs, _ = env.reset(seed=0)
    for own in (env, None):
        agent = Agent(Random(EchoesConfig(), spec), {}, own)
        carry = agent.begin(jax.random.key(0), num_lanes)
        action, _ = agent.act(carry, obs if num_lanes == 1 else [obs] * num_lanes)
        assert np.shape(action) == (() if num_lanes == 1 else (num_lanes,))
        assert set(np.ravel(action)) <= ({5, 6} if own else {0, 1})
        if own and num_lanes == 1:
            env.step(action)


def test_an_agent_of_one_task_is_not_changed_by_adapting_to_another(suite):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    agent = Agent(algorithm, algorithm.init(jax.random.key(0)), Valve())
    rollouts = [loop(agent, Valve(), jax.random.key(k), k) for k in (1, 2)]
    fresh, first = agent.begin(jax.random.key(7)).memory, agent.adapt(rollouts[:1])
    agent.adapt(rollouts)
    np.testing.assert_array_equal(agent.begin(jax.random.key(7)).memory, fresh)
    memory = first.begin(jax.random.key(7)).memory
    np.testing.assert_array_equal(memory, rollouts[0].final_carry)
    assert not np.allclose(rollouts[1].final_carry, memory)


def test_short_episodes_of_one_rollout_all_count_for_dice(suite):
    algorithm = make_algorithm("dice-maml", suite.spec, hidden_sizes=(4,))
    agent = Agent(algorithm, algorithm.init(jax.random.key(0)))
    carry = agent.begin(jax.random.key(1), record=True)
    for t in range(3 * 2):  # three episodes of two steps
        _, carry = agent.act(carry, np.ones(5))
        step = adaptax.Step(reward=1.0, next_obs=np.ones(5), terminated=t % 2, truncated=False)
        carry = agent.observe(carry, step)
    rollout = agent.rollout(carry)
    samples = credited(algorithm.config, HORIZON, [rollout], dice=True)
    assert samples.valid.sum(-1).tolist() == [[2, 2, 2]]
    agent.adapt([rollout])
    cut = jax.tree.map(lambda x: x[:, :, :HORIZON], rollout.steps)
    with pytest.raises(AdaptaxError, match="3 episodes in a lane of 6 steps"):
        agent.adapt([cut])


def test_steps_are_kept_where_asked_for_only(suite):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    agent = Agent(algorithm, algorithm.init(jax.random.key(0)))
    with pytest.raises(AdaptaxError, match="no steps are kept: begin"):
        agent.rollout(agent.begin(jax.random.key(0)))
    with pytest.raises(AdaptaxError, match="observe comes after act"):
        agent.observe(agent.begin(jax.random.key(0)), adaptax.Step())


def test_another_environment_is_refused(suite):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    with pytest.raises(AdaptaxError, match=r"observations of size 4 .* the agent was trained w"):
        Agent(algorithm, algorithm.init(jax.random.key(0)), gymnasium.make("CartPole-v1"))


@pytest.fixture
def registered(monkeypatch):
    """The algorithm as if it were one of ours."""
    entry = registry.AlgorithmEntry("echoes", "", f"{__name__}:Echoes")
    monkeypatch.setitem(registry.ALGORITHMS, "echoes", entry)


def test_load_gives_what_was_trained_without_its_suite(suite, registered, tmp_path):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    settings = {"num_iterations": 3, "evaluation_interval": None, "quiet": True}
    trainer = adaptax.train(algorithm, suite, run_dir=tmp_path / "run", **settings)
    agent = adaptax.load(tmp_path / "run", env=Valve())
    assert agent.algorithm.spec == suite.spec
    assert float(agent.state["shift"]) == pytest.approx(3.1)
    own = Agent(algorithm, trainer.state, Valve())
    same(*(loop(a, Valve(), jax.random.key(0), 3) for a in (agent, own)))
    sure = adaptax.load(str(tmp_path / "run"), deterministic=True)
    action, _ = sure.act(sure.begin(jax.random.key(0)), np.zeros(5))
    assert action == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda c: c.pop("spec"), "config.json has no spec of an environment: KeyError: 'spec'"),
        (lambda c: c["spec"].update(horizon="x"), "spec.horizon: expected int, not 'x'"),
        (lambda c: c["spec"]["action"].update(kind="os"), "unknown kind of action 'os'"),
        (lambda c: c["algorithm"].update(name="os:Echo"), "unknown algorithm 'os:Echo'"),
        (lambda c: c["algorithm"].update(spec=1), "unknown setting 'algorithm.spec'"),
    ],
)
def test_a_config_that_is_none_is_refused_in_one_line(
    suite, registered, tmp_path, break_it, message
):
    settings = {"num_iterations": 1, "evaluation_interval": None, "quiet": True}
    adaptax.train(Echoes(EchoesConfig(), suite.spec), suite, run_dir=tmp_path, **settings)
    config = json.loads((tmp_path / "config.json").read_text())
    break_it(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(AdaptaxError) as refused:
        adaptax.load(tmp_path)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["point-goal", "cartpole", "tabular-mdp", "ml1-reach-v3"])
def test_a_spec_comes_back_from_json_equal(name):
    spec = adaptax.make_suite(name).spec
    assert spec_from_dict(json.loads(json.dumps(spec_to_dict(spec)))) == spec


def test_a_spec_of_several_choices_comes_back_equal():
    spec = replace(adaptax.make_suite("cartpole").spec, action=MultiDiscrete((3, 2)))
    assert spec_from_dict(spec_to_dict(spec)) == spec
