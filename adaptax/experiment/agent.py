"""An agent to act with: what a run has learned, in a loop of one's own."""

from __future__ import annotations

import copy
import reprlib
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.algorithms.base import Algorithm
from adaptax.core.config import as_integer
from adaptax.core.errors import AdaptaxError, ConfigError, check, check_kind, one_line
from adaptax.core.experience import PyTree, Rollout, Step
from adaptax.core.rng import lane_numbers, named_key
from adaptax.core.snapshot import Snapshots
from adaptax.core.spec import spec_from_dict
from adaptax.envs.pools.gym_spaces import action_decoder, observation_encoder
from adaptax.experiment.build import recorded_algorithm
from adaptax.experiment.pretrained import run_path
from adaptax.experiment.provenance import check_networks
from adaptax.experiment.run_dir import CONFIG, read_config
from adaptax.experiment.weights import saved_state
from adaptax.sampling.actors import Actor
from adaptax.sampling.host_engine import act, begin, keys_of
from adaptax.sampling.latent import LatentActor
from adaptax.sampling.memory_actors import MemoryActor


@dataclass(frozen=True)
class Carry:
    """What an agent remembers between two steps; a new one comes of each."""

    num_lanes: int
    key: jax.Array
    memory: PyTree
    """The actor's, leading axes [1, N]."""
    t: int = 0
    """Steps since `begin`."""
    chosen: Any = None
    """Observation [1, N, O], action [1, N, *A] and what else the actor said at the last `act`."""
    first: PyTree = None
    """The memory before the first step."""
    recorded: Any = None
    """The steps so far: those before and the last one, a pair; None where none are kept."""


class Agent:
    """A trained algorithm that acts on one task at a time, in a loop that is not adaptax's own.

    With `env`, a Gymnasium environment, observations and actions are that environment's. Without,
    they are what an `EnvSpec` says: vectors [O], and actions in [-1, 1]^A or integers. With more
    than one lane both have a leading axis [N].
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        state: PyTree,
        env: Any = None,
        *,
        deterministic: bool = False,
    ) -> None:
        _check_flag("deterministic", deterministic)
        check_kind(algorithm, Algorithm, "Agent(algorithm, state)")
        check(state is not None, "there is no state to act by: train or load one first")
        self.algorithm, self.state, self.deterministic = algorithm, state, deterministic
        self._spaces: tuple[Any, Any] | None = None
        if env is not None:
            check(
                hasattr(env, "observation_space") and hasattr(env, "action_space"),
                "env takes a Gymnasium environment, as gymnasium.make(NAME) gives it, not "
                f"{reprlib.repr(env)}",
            )
            self._spaces = env.observation_space, env.action_space
        size, space = self._translate()
        spec = algorithm.spec
        check(
            (size, space) == (spec.observation_size, spec.action),
            f"{env} has observations of size {size} and the actions {space}; the agent was "
            f"trained with {spec.observation_size} and {spec.action}",
        )
        self._take(algorithm.actor(state, deterministic=deterministic))

    def __repr__(self) -> str:
        spec = self.algorithm.spec
        sizes = f"{spec.observation_size} numbers are seen, {spec.action} are the actions"
        return f"<Agent of {self.algorithm.name}: {sizes}>"

    def __getstate__(self) -> dict[str, Any]:
        """All but the functions, which pickle does not take."""
        return {name: x for name, x in vars(self).items() if name not in ("_encode", "_decode")}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        vars(self).update(saved)
        self._translate()

    def begin(self, key: jax.Array | int, num_lanes: int = 1, *, record: bool = False) -> Carry:
        """The carry at the start of a task, or after `adapt`; `key` is one of JAX's, or a seed.

        `record` keeps all steps, for `rollout`.
        """
        if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
            key = jax.random.key(_seed(key))
        num_lanes = _lane_count(num_lanes)
        _check_flag("record", record)
        memory = begin(self._actor, (1, num_lanes), key)
        self._check_lanes(memory, num_lanes)
        return Carry(num_lanes, key, memory, first=memory, recorded=() if record else None)

    def act(self, carry: Carry, obs: Any) -> tuple[Any, Carry]:
        """The action on an observation, and the carry for `observe`."""
        check_kind(carry, Carry, "act(carry, obs)")
        if carry.chosen is not None:
            # Who skips `observe` acts by what he sees alone, and each step has draws of its own.
            can = carry.recorded is None and not _remembers(self._actor, carry.memory)
            check(can, "this agent has to observe what came of its last action before the next one")
            carry = replace(carry, t=carry.t + 1)
        lanes = self._lanes(carry, obs)
        action, memory, extras = _act(
            self._actor, carry.memory, lanes, carry.key, np.uint32(carry.t)
        )
        chosen = np.asarray(action)
        actions = [self._decode(x) for x in chosen[0]]
        carry = replace(carry, memory=memory, chosen=(lanes, chosen, extras))
        return actions[0] if carry.num_lanes == 1 else np.stack(actions), carry

    def observe(self, carry: Carry, step: Step) -> Carry:
        """The carry after the step that the last action led to.

        Of `step` it takes `reward`, `next_obs`, `terminated` and `truncated`; it knows observation
        and action from `act`, as the algorithm has them.
        """
        check_kind(carry, Carry, "observe(carry, step)")
        check(carry.chosen is not None, "observe comes after act")
        check(
            isinstance(step, Step),
            "observe takes an adaptax.Step(reward=..., next_obs=..., terminated=..., "
            f"truncated=...), not a {type(step).__name__}",
        )
        for name in ("reward", "next_obs"):
            check(getattr(step, name) is not None, f"the step has no {name}: Step({name}=...)")
        obs, action, extras = carry.chosen
        step = Step(
            obs=obs,
            action=action,
            reward=_rewards(step.reward, carry.num_lanes),
            next_obs=self._lanes(carry, step.next_obs),
            terminated=_flags("terminated", step.terminated, carry.num_lanes),
            truncated=_flags("truncated", step.truncated, carry.num_lanes),
        )
        t = carry.t + 1
        memory = _observe(self._actor, carry.memory, step, carry.key, np.uint32(t))
        kept = None if carry.recorded is None else (carry.recorded, (step, extras))
        return replace(carry, memory=memory, t=t, chosen=None, recorded=kept)

    def rollout(self, carry: Carry) -> Rollout:
        """The steps since `begin(..., record=True)`, for `adapt`.

        Padded to a horizon for each episode of the fullest lane.
        """
        if not carry.recorded:
            raise AdaptaxError("no steps are kept: begin(key, record=True), then act and observe")
        steps, rest = [], carry.recorded
        while rest:
            rest, last = rest
            steps.append(last)
        horizon = self.algorithm.spec.horizon
        ended = [step.terminated | step.truncated for step, _ in steps[1:]]
        most = 1 + int(np.sum(ended, axis=0).max(initial=0))
        num_steps = horizon * max(most, -(-len(steps) // horizon))

        def joined(*xs: Any) -> np.ndarray:
            x = np.stack([np.asarray(x) for x in xs], axis=2)
            padding = (0, num_steps - len(steps))
            return np.pad(x, [(0, 0), (0, 0), padding, *[(0, 0)] * (x.ndim - 3)])

        step, extras = jax.tree.map(joined, *reversed(steps))
        valid = np.broadcast_to(np.arange(num_steps) < len(steps), step.reward.shape)
        fields = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        return Rollout(
            **{name: getattr(step, name) for name in fields},
            valid=valid,
            extras=extras,
            initial_carry=carry.first,
            final_carry=carry.memory,
            initial_return=np.zeros((1, carry.num_lanes), np.float32),
        )

    def adapt(self, history: Sequence[Rollout]) -> Agent:
        """The agent adapted to its task by `history`, oldest first; this agent stays as it is."""
        check(
            isinstance(history, Sequence)
            and len(history) > 0
            and all(isinstance(rollout, Rollout) for rollout in history),
            "adapt takes a list of one rollout or more: agent.adapt([agent.rollout(carry)])",
        )
        last, wanted = history[-1], self.algorithm.lanes_per_task
        had = int(np.sum(last.ended))
        if had < wanted > 1 and not self.algorithm.infers_from_history:
            warnings.warn(
                f"{self.algorithm.name} adapts to the last rollout, in training one of {wanted} "
                f"episodes; this one has {had}: agent.begin(key, {wanted}, record=True) for an "
                "episode in each of as many lanes",
                stacklevel=2,
            )
        adapted = copy.copy(self)
        adapted._take(
            self.algorithm.adapt(self.state, self._actor, history, deterministic=self.deterministic)
        )
        return adapted

    def _translate(self) -> tuple[Any, Any]:
        """Have the ways from an environment's observations, and to its actions; gives their spec.

        That is the observations' size and the space of actions; where there is no environment, what
        the algorithm has.
        """
        self._encode: Callable[[Any], Any] = np.ravel
        self._decode: Callable[[Any], Any] = np.asarray
        spec = self.algorithm.spec
        size, space = spec.observation_size, spec.action
        if self._spaces is not None:
            observations, actions = self._spaces
            size, self._encode = observation_encoder(observations)
            space, self._decode = action_decoder(actions)
        return size, space

    def _take(self, actor: Actor) -> None:
        # One lane is soonest done where the loop runs; that is not the default beside a GPU.
        self._actor: Any = jax.device_put(actor, jax.local_devices(backend="cpu")[0])

    def _lanes(self, carry: Carry, obs: Any) -> np.ndarray:
        """Observations of the lanes [1, N, O]."""
        try:
            each = [obs] if carry.num_lanes == 1 else list(obs)
            with np.errstate(over="ignore"):  # an infinity is refused below
                encoded = np.stack([np.asarray(self._encode(x), np.float32) for x in each])
        except (TypeError, ValueError, LookupError) as error:
            pair = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
            raise ConfigError(
                "the agent takes an observation alone, not (obs, info): obs, _ = env.reset()"
                if pair
                else f"this is no observation that the agent takes: {one_line(error)}"
            ) from None
        expected = (carry.num_lanes, self.algorithm.spec.observation_size)
        check(
            encoded.shape == expected,
            f"observations have the shape {encoded.shape}; the agent takes {expected}",
        )
        check(
            bool(np.isfinite(encoded).all()),
            "an observation has NaN or infinity in it; the agent takes finite numbers",
        )
        return encoded[None]

    def _check_lanes(self, memory: PyTree, num_lanes: int) -> None:
        """Refuse to begin in other lanes than those that each adapted by itself."""
        shapes = [np.shape(x) for x in jax.tree.leaves(memory)]
        if isinstance(self._actor, LatentActor):
            belief = np.shape(self._actor.belief.mean)
            # One of a single lane is the task's, and serves any number of them.
            shapes += [belief] if len(belief) == 3 and belief[1] > 1 else []
        for members, lanes in (shape[:2] for shape in shapes if len(shape) > 1):
            check(
                members == 1,
                f"the agent has adapted to {members} tasks; it acts on one: adapt it to that alone",
            )
            check(
                lanes == num_lanes,
                f"the agent has adapted in {lanes} lanes, each with what it has seen: "
                f"begin(key, {lanes}), not in {num_lanes}",
            )


def _remembers(actor: Actor, memory: PyTree) -> bool:
    """Whether an actor keeps anything from step to step, but for when to clear it."""
    kept = memory["memory"] if isinstance(actor, MemoryActor) else memory
    return bool(jax.tree.leaves(kept))


def _seed(given: Any) -> int:
    """A seed; a key is made of 32 bits of it."""
    takes = "begin takes a seed in [0, 2^32), or a key as jax.random.key makes it"
    return as_integer(given, takes, range(2**32))


def _lane_count(given: Any) -> int:
    """A number of lanes."""
    takes = "begin takes a whole number of lanes, 1 or more"
    return as_integer(given, takes, range(1, sys.maxsize))


def _check_flag(name: str, given: Any) -> None:
    # A string would count as true, "no" as well.
    check(isinstance(given, bool | np.bool_), f"{name} takes True or False, not {given!r}")


def _rewards(given: Any, num_lanes: int) -> np.ndarray:
    """Rewards of the lanes [1, N]."""
    try:
        with np.errstate(over="ignore"):  # an infinity is refused below
            rewards = np.asarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a reward must be a finite number: {one_line(error)}") from None
    rewards = _by_lane("reward", rewards, num_lanes)
    finite = np.isfinite(rewards)
    if not finite.all():
        raise ConfigError(f"a reward must be a finite number, not {rewards[~finite][0]}")
    return rewards


def _flags(name: str, given: Any, num_lanes: int) -> np.ndarray:
    """Truth values of the lanes [1, N]; None is an environment that does not say, so False."""
    if given is None:
        return np.zeros((1, num_lanes), bool)
    try:
        flags = np.asarray(given)
    except ValueError as error:  # rows of several lengths
        raise ConfigError(f"{name} takes True or False: {one_line(error)}") from None
    check(flags.dtype.kind in "biuf", f"{name} takes True or False, not a {type(given).__name__}")
    return _by_lane(name, flags.astype(bool), num_lanes)


def _by_lane(name: str, values: np.ndarray, num_lanes: int) -> np.ndarray:
    """One value a lane as [1, N]."""
    takes = "one value" if num_lanes == 1 else f"{num_lanes} values, one a lane"
    check(values.size == num_lanes, f"{name} has the shape {values.shape}; the agent takes {takes}")
    return values.reshape(1, num_lanes)


@jax.jit
def _act(actor: Actor, memory: PyTree, obs: Any, key: jax.Array, t: Any) -> tuple[Any, PyTree, Any]:
    return act(actor, memory, obs, key, t, lane_numbers(*obs.shape[:2]))


@jax.jit
def _observe(actor: Actor, memory: PyTree, step: Step, key: jax.Array, t: Any) -> PyTree:
    keys = keys_of(actor, key, 2 * t, lane_numbers(*step.reward.shape))
    return actor.observe(memory, step, keys)


def load(
    run_dir: str | Path,
    networks: Any = None,
    *,
    best: bool = False,
    env: Any = None,
    deterministic: bool = False,
) -> Agent:
    """The agent of a run's newest snapshot; neither its suite nor its environments are needed.

    `run_dir` may be `pretrained:NAME`, an agent that comes with adaptax. With `best`, of the one
    with the highest return in training. `networks` are those that it was trained with, where they
    were one's own; for `env` see `Agent`.
    """
    _check_flag("best", best)
    run_dir = run_path(run_dir)
    recorded = read_config(run_dir)
    where = run_dir / CONFIG
    try:
        spec = spec_from_dict(recorded["spec"])
    except (KeyError, TypeError, ValueError) as error:
        raise AdaptaxError(f"{where} has no spec of an environment: {one_line(error)}") from None
    try:
        algorithm = recorded_algorithm(recorded["algorithm"], spec, networks)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    check_networks(run_dir, recorded, algorithm)
    snapshots = Snapshots(run_dir / "snapshots")
    iteration, tree = snapshots.read(best=best)
    with snapshots.reading(iteration):
        state = saved_state(algorithm, tree, named_key(0, "init"))
    return Agent(algorithm, state, env, deterministic=deterministic)
