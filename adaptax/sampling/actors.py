"""Actors: pytrees with pure methods, so that one actor runs in a host loop and in a compiled scan.

What an actor remembers between steps is its carry, a pytree of arrays with leading axes [M, N].
What happens to it at an episode's end is the actor's own decision, in `observe`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core import rng
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Step
from adaptax.core.spec import ActionSpace, Continuous, MultiDiscrete
from adaptax.networks.normalizer import Moments, normalized

Extras = dict[str, jax.Array]


@dataclass(frozen=True)
class Part:
    """Some of M members' N lanes: `size` of them along `axis`, from `start` on."""

    axis: int
    """0, some of the members, or 1, some of every member's lanes."""
    size: int
    start: Any

    def members(self, tree: PyTree) -> PyTree:
        """Their rows of leaves [M, ...]."""
        return jax.tree.map(self._rows, tree) if self.axis == 0 else tree

    def lanes(self, tree: PyTree) -> PyTree:
        """Their rows of leaves [M, N, ...] or [M, 1, ...]."""
        return jax.tree.map(self._rows, tree)

    def _rows(self, x: Any) -> Any:
        if self.axis == 1 and x.shape[1] == 1:
            return x
        return jax.lax.dynamic_slice_in_dim(x, self.start, self.size, self.axis)


class Actor(Protocol):
    """Chooses actions for M members in N lanes each.

    An actor whose lanes may run apart, side by side, is a `ByLane` too.
    """

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """The carry at the start of a rollout."""

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """From observations [M, N, O]: action [M, N, *A], carry, and what a rollout records."""

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """The carry after a step, each [M, N, ...] and without `info`."""


def check_actor(actor: Any) -> None:
    """Raise a ConfigError where something else is in an actor's place."""
    kind = type(actor).__name__
    what = "None" if actor is None else f"a {kind}"
    check(hasattr(actor, "begin"), f"an algorithm's actor and adapt must give an actor, not {what}")
    check(
        not jax.tree_util.all_leaves([actor]),
        f"the actor {kind} is no pytree of JAX's: decorate its class with "
        "jax.tree_util.register_dataclass, in a module if workers act by it",
    )


class ByLane:
    """An actor whose methods take a key for each lane [M, N], and that can be taken apart.

    What it does in one lane must not depend on the other lanes. By default all lanes share the
    actor; one with arrays for single members or lanes picks theirs out in `part`.
    """

    def part(self, part: Part) -> Any:
        """The actor of some of the lanes alone."""
        return self

    def begun(self) -> Any:
        """The actor after `begin`, without the arrays that only `begin` uses."""
        return self


def is_by_lane(actor: Any) -> bool:
    """Whether an actor, or the one that it wraps, takes a key for each lane."""
    return is_by_lane(actor.actor) if isinstance(actor, PerMember) else isinstance(actor, ByLane)


class Memoryless:
    """An actor whose carry is empty."""

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """Nothing to remember."""
        return {}

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """Nothing to remember."""
        return carry


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UniformActor(ByLane, Memoryless):
    """Actions drawn uniformly: [-1, 1]^A or all choices alike."""

    space: ActionSpace = field(metadata={"static": True})

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """Actions that do not look at `obs`."""
        lanes = obs.shape[:2]
        if isinstance(self.space, Continuous):
            return rng.uniform(key, (*lanes, self.space.size), -1.0), carry, {}
        sizes = self.space.sizes if isinstance(self.space, MultiDiscrete) else self.space.size
        shape = (*lanes, *self.space.shape)
        return rng.randint(key, shape, jnp.asarray(sizes)), carry, {}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PolicyActor(ByLane, Memoryless):
    """One set of parameters for every member; records `log_prob` unless deterministic."""

    params: PyTree
    policy: nn.Module = field(metadata={"static": True})
    deterministic: bool = field(default=False, metadata={"static": True})
    obs_moments: Moments | None = None
    """What observations are standardised by, if they are."""

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """An action drawn from the policy, or its mode."""
        distribution = self.policy.apply(self.params, normalized(obs, self.obs_moments))
        action, extras = draw(distribution, self.deterministic, key)
        return action, carry, extras


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerMember(ByLane):
    """Every member acts by an actor of its own: arrays of `actor` have a leading axis [M]."""

    actor: Actor

    def part(self, part: Part) -> PerMember:
        """The actors of some of the members, or all of them for some lanes of each."""
        return PerMember(part.members(self.actor))

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """The carry that one actor for all of them would start with."""
        return self.actor.begin(num_members, num_lanes, key)

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """Member by member, with a key for each."""
        return _each(lambda actor, *inputs: actor.act(*inputs), self.actor, (carry, obs), key)

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """Member by member, with a key for each."""
        return _each(lambda actor, *inputs: actor.observe(*inputs), self.actor, (carry, step), key)


def _each(
    method: Callable[..., Any], actors: Actor, inputs: tuple[Any, ...], key: jax.Array
) -> Any:
    """`method` of every member's actor on its part of `inputs`, as if it were the only member."""

    def one(actor: Actor, own_inputs: tuple[Any, ...], own_key: jax.Array) -> Any:
        alone = jax.tree.map(lambda x: x[None], own_inputs)
        return jax.tree.map(lambda x: x[0], method(actor, *alone, own_key))

    num_members = jax.tree.leaves(inputs)[0].shape[0]
    if key.ndim == 0:
        return jax.vmap(one)(actors, inputs, jax.random.split(key, num_members))
    return jax.vmap(one)(actors, inputs, key[:, None])


def draw(distribution: Any, deterministic: bool, key: jax.Array) -> tuple[jax.Array, Extras]:
    """An action and what to record of it: nothing for the mode, else its joint log-probability."""
    if deterministic:
        return distribution.mode(), {}
    action = distribution.sample(key)
    return action, {"log_prob": distribution.log_prob(action)}


def encode_action(space: ActionSpace, action: jax.Array) -> jax.Array:
    """Actions as vectors [..., A]: themselves, or one-hot for choices, part by part."""
    if isinstance(space, Continuous):
        return action
    if isinstance(space, MultiDiscrete):
        parts = [jax.nn.one_hot(action[..., i], size) for i, size in enumerate(space.sizes)]
        return jnp.concatenate(parts, axis=-1)
    return jax.nn.one_hot(action, space.size)
