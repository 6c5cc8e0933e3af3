"""What tests of whole agents share: a toy suite whose episodes end early, and small agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from small import SMALL, SMALL_SUITE

from adaptax.algorithms.base import Algorithm
from adaptax.algorithms.registry import AlgorithmEntry
from adaptax.core.experience import PyTree, Rollout, Step
from adaptax.core.rng import named_key
from adaptax.core.snapshot import flatten
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList, TaskRange
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler

EVALUATION = EvaluatorConfig(num_tasks=20)
"""One protocol wherever tests evaluate or adapt: what is compiled for one serves all."""


KEY = jax.random.key(3)
OBS = jax.random.normal(jax.random.key(1), (5, EVALUATION.num_tasks, 1, 2))
"""Five observations of a lane for each task."""


@dataclass(frozen=True)
class CliffEnv:
    """A point that seeks a goal and may fall at any step, so that episodes differ in length.

    Its sizes are those of `point-goal`: what is compiled for the one serves the other.
    """

    horizon: int = 20
    fall: float = 0.1
    """Probability that a step is the last one."""
    num_directions: int | None = None
    """As in `point-goal`."""

    @property
    def spec(self) -> EnvSpec:
        action = Continuous(2) if self.num_directions is None else Discrete(self.num_directions)
        return EnvSpec(2, action, self.horizon, trial_episodes=3, has_success=True)

    def reset(self, key, task):
        start = 0.1 * jax.random.normal(key, (2,))
        return start, start

    def step(self, key, state, action, task):
        if self.num_directions is not None:
            angle = 2 * jnp.pi * action / self.num_directions
            action = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        position = state + 0.1 * action
        distance = jnp.linalg.norm(position - task["goal"])
        fell = jax.random.bernoulli(key, self.fall)
        return position, Step(
            reward=1.0 - distance,
            next_obs=position,
            terminated=fell,
            info={"success": distance < 0.5},
        )


def cliff_suite(num_test_tasks: int = 20, **settings: Any) -> Suite:
    """Goals on the unit circle; some episodes end by a fall, others at the horizon."""
    env = CliffEnv(**settings)

    def draw(rng: np.random.Generator) -> dict[str, np.ndarray]:
        angle = rng.uniform(0.0, 2 * np.pi)
        return {"goal": np.array([np.cos(angle), np.sin(angle)], np.float32)}

    rng = np.random.default_rng(0)
    test = TaskList("cliff-test", [draw(rng) for _ in range(num_test_tasks)])
    return compiled_suite("cliff", env, TaskRange("cliff", draw), test)


def point_suite(entry: AlgorithmEntry | None = None) -> Suite:
    """`point-goal`, whose episodes all last 20 steps: what `small.SMALL` is made for."""
    return make_suite("point-goal", **({} if entry is None else SMALL_SUITE.get(entry.name, {})))


def small_agent(entry: AlgorithmEntry, suite: Suite) -> Algorithm:
    """An algorithm with the settings of `small.SMALL`."""
    return make_algorithm(entry.name, suite.spec, **SMALL.get(entry.name, {}))


def train_sampler(suite: Suite, seed: int = 0) -> Sampler:
    """The sampler that a trainer with this seed has."""
    return Sampler(suite, suite.train, seed, "train")


class ChangingSampler(Sampler):
    """A sampler whose rollouts go through `change(rollout, actor)` before anyone sees them."""

    env = None  # or they would be part of whole iterations, which nobody sees

    def __init__(self, suite: Suite, change: Callable[[Rollout, Actor], Rollout]) -> None:
        super().__init__(suite, suite.train, 0, "train")
        self.change = change

    def episodes(self, actor, *asked):
        return self.change(super().episodes(actor, *asked), actor)

    def steps(self, actor, *asked):
        return self.change(super().steps(actor, *asked), actor)


def trained(
    algorithm: Algorithm, sampler: Sampler, num_iterations: int, seed: int = 0
) -> tuple[PyTree, dict[str, Any]]:
    """The state after so many iterations, and the figures of the last one."""
    state = algorithm.init(named_key(seed, "init"))
    metrics: dict[str, Any] = {}
    for _ in range(num_iterations):
        state, metrics = algorithm.iteration(state, sampler)
    return state, metrics


OF_LANES = ("initial_carry", "final_carry", "initial_return")
"""What a rollout says of whole lanes, not of steps."""


def polluted(rollout: Rollout) -> Rollout:
    """The rollout with arbitrary finite values in every padded entry of every array."""
    rng = np.random.default_rng(0)
    valid = np.asarray(rollout.valid)

    def pollute(x):
        x = np.array(x)
        noise = 1e3 * rng.standard_normal(x.shape)
        mask = valid.reshape(valid.shape + (1,) * (x.ndim - valid.ndim))
        return np.where(mask, x, noise > 0 if x.dtype == bool else noise.astype(x.dtype))

    steps = jax.tree.map(pollute, dataclasses.replace(rollout.steps, valid=None))
    of_lanes = {name: getattr(rollout, name) for name in OF_LANES}
    return dataclasses.replace(steps, valid=rollout.valid, **of_lanes)


def trained_on_polluted(
    algorithm: Algorithm, suite: Suite
) -> tuple[PyTree, dict[str, Any], list[Rollout]]:
    """As `trained` for two iterations, by polluted rollouts; and these as they were before."""
    rollouts = list[Rollout]()

    def change(rollout: Rollout, actor: Actor) -> Rollout:
        rollouts.append(rollout)
        return polluted(rollout)

    return *trained(algorithm, ChangingSampler(suite, change), 2), rollouts


def has_padding(rollouts: list[Rollout]) -> bool:
    """Whether any of them has entries that stand for nothing."""
    return any(not np.asarray(rollout.valid).all() for rollout in rollouts)


@jax.jit
def behaviour(actor):
    """Actions [5, M, 1, A] on OBS, seen one after another as one unfinished episode."""

    def step(carry, inputs):
        obs, keys = inputs
        action, carry, _ = actor.act(carry, obs, keys[0])
        no = jnp.zeros((EVALUATION.num_tasks, 1), bool)
        seen = Step(obs, action, obs[..., 0], next_obs=obs, terminated=no, truncated=no, valid=~no)
        return actor.observe(carry, seen, keys[1]), action

    keys = jax.random.split(KEY, (len(OBS), 2))
    return jax.lax.scan(step, actor.begin(EVALUATION.num_tasks, 1, KEY), (OBS, keys))[1]


def fingerprint(tree: PyTree) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of every leaf by its path: equal where trees are equal bit for bit."""
    leaves = {name: np.asarray(leaf) for name, leaf in flatten(tree).items()}
    return {name: (str(x.dtype), x.shape, x.tobytes()) for name, x in leaves.items()}


def flags(config: Any, room: str) -> list[str]:
    """The command line's flags for every field of a config, as `--room.field value`."""
    words: list[str] = []
    for f in dataclasses.fields(config):
        value, flag = getattr(config, f.name), f"--{room}.{f.name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            words += flags(value, flag.removeprefix("--"))
        elif isinstance(value, bool):
            words.append(flag if value else f"--{room}.no-{f.name.replace('_', '-')}")
        elif isinstance(value, tuple):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return words


def suite_flags(entry: AlgorithmEntry) -> list[str]:
    """The command line's flags that turn `point-goal` into what `point_suite` gives."""
    return flags(point_suite(entry).config, "suite") if SMALL_SUITE.get(entry.name, {}) else []
