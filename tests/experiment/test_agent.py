"""An agent acts in somebody's loop as it does in the sampler's."""

from __future__ import annotations

import json
import pickle
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


def test_an_agent_of_an_environment_can_be_pickled(tmp_path):
    """As workers of somebody's own loop need it."""
    run = adaptax.train(
        *("reinforce", "gym:Pendulum-v1"),
        algorithm={"num_lanes": 2},
        suite={"horizon": HORIZON},
        run_dir=tmp_path,
        num_iterations=1,
        evaluation_interval=None,
        quiet=True,
    )
    agent = Agent(run.algorithm, run.state, gymnasium.make("Pendulum-v1"))
    assert repr(agent).startswith("<Agent of reinforce: 3 numbers are seen, Continuous(size=1)")
    again = pickle.loads(pickle.dumps(agent))
    obs = np.array([0.1, 0.2, 0.3], np.float32)
    (action, _), (same, _) = (a.act(a.begin(3), obs) for a in (agent, again))
    np.testing.assert_array_equal(action, same)
    assert action.dtype == np.float32 and np.abs(action) > 0  # torques of the environment


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


def test_an_agent_without_a_memory_may_be_asked_without_being_told():
    """It has draws of its own for each step, then too."""
    suite = adaptax.make_suite("cartpole")
    algorithm = make_algorithm("ppo", suite.spec)
    agent = Agent(algorithm, algorithm.init(named_key(0, "init")))
    carry, obs, chosen = agent.begin(0), np.zeros(4), []
    for _ in range(40):
        action, carry = agent.act(carry, obs)
        chosen.append(int(action))
    assert 5 < sum(chosen) < 35


@pytest.mark.parametrize("record", [False, True])
def test_an_agent_that_remembers_has_to_be_told(record):
    suite = adaptax.make_suite("point-goal")
    name = "promp" if record else "rl2-ppo"
    algorithm = make_algorithm(name, suite.spec)
    agent = Agent(algorithm, algorithm.init(named_key(0, "init")))
    _, carry = agent.act(agent.begin(0, record=record), np.zeros(2))
    refused("has to observe what came of its last action", lambda: agent.act(carry, np.zeros(2)))


def test_what_is_no_agent_is_refused_in_one_line(suite):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    agent = Agent(algorithm, algorithm.init(None))
    carry = agent.begin(0)
    refused("takes an Algorithm, not 'ppo'", lambda: Agent("ppo", {}))
    refused("no state to act by", lambda: Agent(algorithm, None))
    refused("takes a Carry, not array", lambda: agent.act(np.zeros(5), carry))
    refused("takes a Carry, not Step", lambda: agent.observe(adaptax.Step(reward=1.0), carry))


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


OBS = np.zeros(5)


@pytest.fixture(scope="module")
def echo(suite):
    algorithm = Echoes(EchoesConfig(), suite.spec)
    return Agent(algorithm, algorithm.init(jax.random.key(0)))


def recorded(agent, num_lanes):
    """A rollout of one step."""
    size = agent.algorithm.spec.observation_size
    obs = np.zeros(size) if num_lanes == 1 else np.zeros((num_lanes, size))
    zeros = np.zeros(num_lanes)
    step = adaptax.Step(reward=zeros, next_obs=obs, terminated=zeros, truncated=zeros)
    _, carry = agent.act(agent.begin(0, num_lanes, record=True), obs)
    return agent.rollout(agent.observe(carry, step))


def refused(message, call):
    """One line that has `message` in it."""
    with pytest.raises(AdaptaxError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


GOOD = {"reward": 1.0, "next_obs": OBS, "terminated": False, "truncated": False}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reward": None}, "the step has no reward: Step(reward=...)"),
        ({"reward": np.nan}, "a reward must be a finite number, not nan"),
        ({"reward": 1e300}, "a reward must be a finite number, not inf"),
        ({"reward": "much"}, "a reward must be a finite number: ValueError"),
        ({"reward": [1.0, 2.0]}, "reward has the shape (2,); the agent takes one value"),
        ({"next_obs": None}, "the step has no next_obs: Step(next_obs=...)"),
        ({"next_obs": [np.inf, 0, 0, 0, 0]}, "an observation has NaN or infinity"),
        ({"terminated": "no"}, "terminated takes True or False, not a str"),
        ({"truncated": [False, True]}, "truncated has the shape (2,); the agent takes one value"),
    ],
)
def test_a_step_that_says_no_numbers_is_refused_in_one_line(echo, wrong, message):
    _, carry = echo.act(echo.begin(0), OBS)
    refused(message, lambda: echo.observe(carry, adaptax.Step(**{**GOOD, **wrong})))


def test_what_is_no_step_is_refused_in_one_line(echo):
    _, carry = echo.act(echo.begin(0), OBS)
    refused("observe takes an adaptax.Step(reward=", lambda: echo.observe(carry, (1.0, OBS)))


def test_rewards_of_lanes_come_one_a_lane_and_ends_may_be_left_out(echo):
    obs = jnp.zeros((3, 5))
    _, carry = echo.act(echo.begin(0, 3), obs)
    refused(
        "reward has the shape (); the agent takes 3 values, one a lane",
        lambda: echo.observe(carry, adaptax.Step(reward=1.0, next_obs=obs)),
    )
    after = echo.observe(carry, adaptax.Step(reward=jnp.ones(3), next_obs=obs))
    ended = jnp.zeros(3, bool)
    said = adaptax.Step(reward=np.ones(3), next_obs=obs, terminated=ended, truncated=ended)
    np.testing.assert_array_equal(after.memory, echo.observe(carry, said).memory)


@pytest.mark.parametrize("env", [None, Valve()])
@pytest.mark.parametrize(
    ("num_lanes", "obs", "message"),
    [
        (1, (OBS, {}), "an observation alone, not (obs, info): obs, _ = env.reset()"),
        (2, (np.zeros((2, 5)), {}), "an observation alone, not (obs, info)"),
        (1, "left", "this is no observation that the agent takes"),
        (2, None, "this is no observation that the agent takes: TypeError"),
        (1, {"dial": [np.nan, 0.0], "mode": 0}, None),
        (1, [np.nan, 0, 0, 0, 0], None),
    ],
)
def test_what_is_no_observation_is_refused_in_one_line(echo, env, num_lanes, obs, message):
    agent = Agent(echo.algorithm, echo.state, env)
    if message is None:
        readable = isinstance(obs, dict) == (env is not None)
        message = "an observation has NaN" if readable else "this is no observation"
    refused(message, lambda: agent.act(agent.begin(0, num_lanes), obs))


@pytest.mark.parametrize("num_lanes", [0, -1, 2.5, "2", True])
def test_a_number_of_lanes_that_is_none_is_refused_in_one_line(echo, num_lanes):
    message = f"begin takes a whole number of lanes, 1 or more, not {num_lanes!r}"
    refused(message, lambda: echo.begin(0, num_lanes))


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 4)])
def test_an_agent_that_adapted_in_some_lanes_begins_in_as_many(suite, before, after):
    algorithm = make_algorithm("rl2-ppo", suite.spec, hidden_sizes=(4,))
    agent = Agent(algorithm, algorithm.init(jax.random.key(0)))
    adapted = agent.adapt([recorded(agent, before)])
    assert recorded(adapted, before).reward.shape[1] == before
    refused(f"begin(key, {before}), not in {after}", lambda: adapted.begin(1, after))


def test_beliefs_of_lanes_are_for_as_many_and_that_of_one_for_any_number(suite):
    algorithm = make_algorithm("pearl", suite.spec, hidden_sizes=(4,))
    agent = Agent(algorithm, algorithm.init(jax.random.key(0)))
    refused("begin(key, 3), not in 1", lambda: agent.adapt([recorded(agent, 3)]).begin(1))
    assert recorded(agent.adapt([recorded(agent, 1)]), 2).reward.shape[1] == 2


def test_a_history_that_is_no_list_of_rollouts_is_refused_in_one_line(echo):
    rollout = recorded(echo, 1)
    for history in ([], rollout, [1], None):
        refused(
            "adapt takes a list of one rollout or more: agent.adapt([agent.rollout(carry)])",
            lambda history=history: echo.adapt(history),
        )


def test_settings_of_an_agent_that_are_none_are_refused_in_one_line(echo, tmp_path):
    made = echo.algorithm, echo.state
    refused("env takes a Gymnasium environment", lambda: Agent(*made, "CartPole-v1"))
    refused("deterministic takes True or False", lambda: Agent(*made, deterministic="no"))
    refused("record takes True or False, not 'no'", lambda: echo.begin(0, record="no"))
    refused("best takes True or False, not 'no'", lambda: adaptax.load(tmp_path, best="no"))
