"""What somebody's own algorithm, memory or environment gets wrong is told, not lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adaptax
from adaptax.algorithms.on_policy.a2c import A2C
from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.experiment.agent import Agent
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.trainer import Trainer
from adaptax.experiment.trainer_config import TrainerConfig
from adaptax.networks.actor_critic import ActorCritic
from adaptax.networks.memory import GRU

SMALL = {"num_steps": 8, "hidden_sizes": (4,)}


class Keeps(A2C):
    """Counts on itself."""

    name = "keeps"

    def update(self, state, data):
        self.num_updates = getattr(self, "num_updates", 0) + 1
        return super().update(state, data)


class Alone(A2C):
    """Gives the state alone."""

    name = "alone"

    def update(self, state, data):
        return super().update(state, data)[0]


class Drifts(A2C):
    """Counts in whole numbers at first and in halves then."""

    name = "drifts"

    def update(self, state, data):
        after, figures = super().update(state, data)
        return replace(after, num_passes=after.num_passes + 0.5), figures


class Grows(A2C):
    """Has another place to count at after every update."""

    name = "grows"

    def update(self, state, data):
        after, figures = super().update(state, data)
        return replace(after, num_passes=jnp.append(state.num_passes, 1)), figures


class Counts(A2C):
    """Keeps on itself how often it has collected."""

    name = "counts"
    num_calls = 0

    def collect(self, state, sampler):
        self.num_calls = self.num_calls + 1
        return super().collect(state, sampler)


class Adds(A2C):
    """Begins to keep moments that it did not have."""

    name = "adds"

    def update(self, state, data):
        after, figures = super().update(state, data)
        return replace(after, moments={**after.moments, "mine": jnp.zeros(2)}), figures


class Forgets(A2C):
    """Adapts and does not say to what."""

    name = "forgets"

    def adapt(self, state, actor, history, *, deterministic=False):
        pass


class Nameless(A2C):
    """Something else by the name of A2C."""


def trainer_of(kind, folder, **suite_settings):
    suite = make_suite("point-goal", horizon=4, num_test_tasks=4, **suite_settings)
    config = TrainerConfig(str(folder), num_iterations=2, quiet=True)
    settings = make_algorithm("a2c", suite.spec, **SMALL).config
    return Trainer(config, kind(settings, suite.spec), suite)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Keeps, r"update sets self.num_updates, which a compiled program forgets: "),
        (Counts, r"collect sets self.num_calls, which no snapshot holds: what it keeps belongs in"),
        (Alone, r"update must give the state after it and a dict of metrics"),
        (Drifts, r"shapes: \.num_passes was int32\[\], and is float32\[\] after it"),
        (Grows, r"shapes: \.num_passes was int32\[\], and is int32\[2\] after it"),
        (Adds, r"shapes: \.moments\['mine'\] was not there, and is float32\[2\] after it"),
    ],
)
@pytest.mark.parametrize("in_program", [True, False])
def test_a_verb_is_of_the_state_alone(kind, told, in_program, tmp_path, monkeypatch):
    monkeypatch.setattr(kind, "collects_in_program", in_program)
    with pytest.raises(ConfigError, match=told):
        trainer_of(kind, tmp_path / "run").run()


def test_what_does_not_adapt_to_an_actor_is_refused(tmp_path):
    trainer = trainer_of(Forgets, tmp_path / "run")
    trainer.learner.begin(trainer.algorithm.init(jax.random.key(0)))
    with pytest.raises(ConfigError, match=r"actor and adapt must give an actor, not None"):
        trainer.evaluate()


def test_an_algorithm_of_ones_own_has_a_name_of_its_own(tmp_path):
    with pytest.raises(ConfigError, match=r"^Nameless goes by the name 'a2c', which is another "):
        trainer_of(Nameless, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def dials(*settings):
    return adaptax.TaskList("dial", [{"setting": x} for x in settings])


@dataclass(frozen=True)
class Dial:
    """A dial that says when it is set right."""

    spec: adaptax.EnvSpec

    def reset(self, key, task):
        return (), jnp.zeros(1)

    def step(self, key, state, action, task):
        away = jnp.abs(action[0] - task["setting"])
        info = {"success": away < 0.1, "away": away}
        return (), adaptax.Step(reward=-away, next_obs=action, info=info)


def dial_trainer(folder, *settings, **declared):
    spec = adaptax.EnvSpec(1, adaptax.Continuous(1), 3, **declared)
    suite = adaptax.compiled_suite("dial", Dial(spec), dials(*settings), dials(0.5))
    config = TrainerConfig(str(folder), num_iterations=1, quiet=True)
    return Trainer(config, make_algorithm("a2c", spec, **SMALL), suite)


def test_a_run_does_not_go_on_with_other_tasks(tmp_path):
    declared = {"has_success": True, "info_names": ("away",)}
    dial_trainer(tmp_path / "run", 0.0, 0.1, **declared).run()
    with pytest.raises(ConfigError, match=r"on other tasks than this dial has: train another run"):
        dial_trainer(tmp_path / "run", 0.0, 0.2, **declared).resume()
    dial_trainer(tmp_path / "run", 0.0, 0.1, **declared).resume()


@pytest.mark.parametrize("settings", [[*[1] * 64, 0.5], [0.5, *[1] * 64]])
def test_integers_beside_numbers_are_numbers_wherever_these_are_listed(tmp_path, settings):
    spec = adaptax.EnvSpec(1, adaptax.Continuous(1), 3, has_success=True, info_names=("away",))
    suite = adaptax.compiled_suite("dial", Dial(spec), dials(*settings), dials(0.5))
    algorithm = make_algorithm("a2c", spec, **{**SMALL, "num_lanes": 65, "num_tasks": 65})
    config = TrainerConfig(
        str(tmp_path / "run"), num_iterations=1, evaluation_interval=None, quiet=True
    )
    assert Trainer(config, algorithm, suite).run()["iteration"] == 1


def test_success_that_no_spec_tells_of_is_not_lost(tmp_path):
    told = r"'success', of which its spec does not tell: EnvSpec\(..., has_success=True\)"
    with pytest.raises(EnvironmentFault, match=told):
        dial_trainer(tmp_path / "run", 0.5).run()


class Shrinks(GRU):
    """A memory that loses numbers."""

    def __call__(self, memory, x, reset=None):
        memory, features = super().__call__(memory, x, reset)
        return memory[..., :1], features


class Turned(GRU):
    """Features of a sequence with time and numbers the wrong way round."""

    def sequence(self, memory, x, reset=None):
        memory, features = super().sequence(memory, x, reset)
        return memory, jnp.swapaxes(features, -1, -2)


class Flat(nn.Module):
    """No memory; the values of a sequence are of its first step."""

    network: ActorCritic

    def initial(self, lanes):
        return self.network.initial(lanes)

    def __call__(self, memory, obs, reset=None):
        return self.network(memory, obs, reset)

    def sequence(self, memory, obs, reset=None):
        memory, (distribution, values) = self.network.sequence(memory, obs, reset)
        return memory, (distribution, values[:, 0])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda space: ActorCritic(space, (4,), Shrinks(3)), "a step changes what the memory is"),
        (lambda space: ActorCritic(space, (4,), Turned(3)), "a trial fails"),
        (lambda space: Flat(ActorCritic(space, (4,))), r"the values of a sequence of 3 steps in 2"),
    ],
)
def test_memories_are_tried_over_a_sequence(wrong, told):
    spec = adaptax.EnvSpec(2, adaptax.Continuous(1), 5)
    with pytest.raises(ConfigError, match=told):
        make_algorithm("a2c", spec, wrong(spec.action), **SMALL)


def test_fewer_episodes_than_an_adaptation_is_of_are_a_warning():
    suite = make_suite("point-goal", horizon=3)
    algorithm = make_algorithm("promp", suite.spec, num_episodes=2, hidden_sizes=(4,))
    agent = Agent(algorithm, algorithm.init(jax.random.key(0)))

    def seen(num_lanes):
        carry = agent.begin(0, num_lanes, record=True)
        for t in range(3):
            obs = np.zeros((num_lanes, 2)) if num_lanes > 1 else np.zeros(2)
            _, carry = agent.act(carry, obs)
            nothing, last = np.zeros(num_lanes), np.full(num_lanes, t == 2)
            step = {"reward": nothing, "terminated": last & False, "truncated": last}
            if num_lanes == 1:
                step = {name: x[0] for name, x in step.items()}
            carry = agent.observe(carry, adaptax.Step(next_obs=obs, **step))
        return agent.rollout(carry)

    agent.adapt([seen(2)])
    with pytest.warns(UserWarning, match=r"in training one of 2 episodes; this one has 1: agent."):
        agent.adapt([seen(1)])
