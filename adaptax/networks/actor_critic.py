"""Policy and value of every on-policy algorithm: torso, memory, heads."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.errors import check
from adaptax.core.experience import PyTree
from adaptax.core.spec import ActionSpace
from adaptax.functional.distributions import Distribution
from adaptax.networks.heads import ActionHead
from adaptax.networks.memory import Memory, NoMemory
from adaptax.networks.mlp import MLP, dense
from adaptax.networks.own import (
    check_has,
    check_module,
    check_parameters_only,
    described,
    other_than_actions,
    traced,
)

MIN_STD = 1e-3
"""Floor of the exploration's standard deviation."""
TRIED = 3
"""Steps that somebody's own network is tried on."""
Outputs = tuple[Distribution, jax.Array]
"""A distribution over actions, and a value or the logits of its bins, batch axes those of the
observations."""


class Tower(nn.Module):
    """Torso, memory and, unless it is None, a head."""

    torso: nn.Module
    memory: Memory
    head: nn.Module | None = None
    head_input: nn.Module | None = None

    def __call__(
        self, memory: PyTree, obs: jax.Array, reset: jax.Array | None, *, sequence: bool
    ) -> tuple[PyTree, Any]:
        """Over one step or over a sequence; see `ActorCritic`."""
        run = self.memory.sequence if sequence else self.memory
        memory, features = run(memory, self.torso(obs), reset)
        if self.head_input is not None:
            features = self.head_input(features, obs)
        return memory, features if self.head is None else self.head(features)


def value_layer(num_bins: int | None) -> tuple[int, float]:
    """Outputs of a value's last layer, and its first weights' gain.

    One number, or the logits of bins, all 0 at first: the value begins at 0.
    """
    return (1, 1.0) if num_bins is None else (num_bins, 0.0)


class ValueHead(nn.Module):
    """Features [..., F] -> a value [...], or the logits [..., K] of K bins that it lies in."""

    linear: bool = True
    """Whether the last layer is here; else `features` are its output."""
    num_bins: int | None = None

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Values, or logits."""
        output = dense(*value_layer(self.num_bins))(features) if self.linear else features
        return output[..., 0] if self.num_bins is None else output


class ActorCritic(nn.Module):
    """Torso -> memory -> policy head and value head.

    Policy and value have a torso and a memory each, or one of both together if `shared`. This is
    the call signature of an on-policy algorithm's `networks`: `initial`, one step by calling it,
    and `sequence`, as in `Memory` with observations for x and (distribution, value) for features.
    """

    space: ActionSpace
    hidden_sizes: tuple[int, ...] = (64, 64)
    memory: Memory = NoMemory()
    init_std: float = 1.0
    shared: bool = False
    torso: nn.Module | None = None
    """Observations [..., O] -> features [..., F], in the place of hidden layers of tanh units."""
    policy_input: nn.Module | None = None
    """(features of the memory, observations) -> what the policy's head sees; None: the features."""
    value_input: nn.Module | None = None
    """The same of the value's."""
    linear_heads: bool = True
    """Whether heads have a linear layer, or what they see is its output."""
    min_std: float = MIN_STD
    max_std: float | None = None
    tanh_mean: bool = False
    """Whether the mean of continuous actions is squashed to their bounds by tanh."""
    state_dependent_std: bool = False
    """Whether the standard deviation of continuous actions follows from features, too."""
    value_bins: int | None = None
    """Bins K whose logits [*lanes, K] stand for the value; None: it is a number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, first = self.min_std, self.init_std
        check(first >= low, f"init_std {first} must be at least {low}: no policy's falls below")

    def setup(self) -> None:
        """One tower, or two."""
        torso = MLP(self.hidden_sizes) if self.torso is None else self.torso

        def own(part: nn.Module | None) -> nn.Module | None:
            return None if part is None else part.clone(parent=None, name=None)

        def tower(head: nn.Module | None, head_input: nn.Module | None = None) -> Tower:
            return Tower(own(torso), own(self.memory), head, own(head_input))

        action_head = ActionHead(
            self.space,
            self.init_std,
            self.min_std,
            self.max_std,
            linear=self.linear_heads,
            tanh_mean=self.tanh_mean,
            state_dependent_std=self.state_dependent_std,
            parent=None,
        )
        value_head = ValueHead(self.linear_heads, self.value_bins, parent=None)
        if self.shared:
            self.tower = tower(None)
            self.policy_head, self.value_head = action_head.clone(), value_head.clone()
        else:
            self.policy = tower(action_head, self.policy_input)
            self.value = tower(value_head, self.value_input)

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """The memory before the first step, leaves [*lanes, ...]."""
        memory = self.memory.initial(lanes)
        return memory if self.shared else {"policy": memory, "value": memory}

    def __call__(
        self, memory: PyTree, obs: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, Outputs]:
        """One step: obs [*lanes, O], reset [*lanes] -> the memory after it, outputs [*lanes]."""
        return self._run(memory, obs, reset, sequence=False)

    def sequence(
        self, memory: PyTree, obs: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, Outputs]:
        """From observations [*lanes, T, O], reset [*lanes, T]: memory, outputs [*lanes, T]."""
        return self._run(memory, obs, reset, sequence=True)

    def _run(
        self, memory: PyTree, obs: jax.Array, reset: jax.Array | None, *, sequence: bool
    ) -> tuple[PyTree, Outputs]:
        if self.shared:
            memory, features = self.tower(memory, obs, reset, sequence=sequence)
            inputs = self.policy_input, self.value_input
            of_policy, of_value = (features if f is None else f(features, obs) for f in inputs)
            return memory, (self.policy_head(of_policy), self.value_head(of_value))
        after, outputs = {}, {}
        for name, tower in (("policy", self.policy), ("value", self.value)):
            after[name], outputs[name] = tower(memory[name], obs, reset, sequence=sequence)
        return after, (outputs["policy"], outputs["value"])


class FeedForward(nn.Module):
    """A network without memory, obs [..., O] -> (distribution, value), as an ActorCritic."""

    network: nn.Module

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """Nothing."""
        return ()

    def __call__(
        self, memory: PyTree, obs: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, Outputs]:
        """One step."""
        return memory, self.network(obs)

    def sequence(
        self, memory: PyTree, obs: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, Outputs]:
        """A sequence."""
        return memory, self.network(obs)


def as_actor_critic(network: nn.Module) -> Any:
    """The network itself if it has an ActorCritic's call signature, else as a FeedForward."""
    return network if hasattr(network, "sequence") else FeedForward(network)


def checked_actor_critic(
    network: Any,
    space: ActionSpace,
    input_size: int,
    value_bins: int | None = None,
    needs: tuple[str, ...] = ("entropy", "kl"),
) -> Any:
    """A user's network as an actor-critic of `input_size` inputs; a ConfigError if it is none.

    Its distributions have, beside draws, the methods that the algorithm `needs`.
    """
    check_module("networks", network)
    own, gave = as_actor_critic(network), list[tuple[str | None, Any]]()

    def call(key: jax.Array) -> tuple[()]:
        params, memory = init_params(own, key, input_size), own.initial((2,))
        check_parameters_only(params)
        obs, reset = jnp.zeros((2, TRIED, input_size)), jnp.zeros((2, TRIED), bool)
        after, (distribution, value) = own.apply(params, memory, obs[:, 0], reset[:, 0])
        other: str | None = described(distribution)
        if hasattr(distribution, "log_prob"):
            check_has(distribution, needs)
            other = other_than_actions(distribution, space, 2, key)
        gave.append((other, value))
        later, (_, values) = own.apply(params, memory, obs, reset, method="sequence")
        _check_memory("a step", memory, after)
        _check_memory("a sequence", memory, later)
        shape = getattr(value, "shape", ())
        check(
            values.shape == (*shape[:1], TRIED, *shape[1:]),
            f"the values of a sequence of {TRIED} steps in 2 lanes have the shape {values.shape}, "
            f"where one step's have {shape}",
        )
        return ()

    shape = (2,) if value_bins is None else (2, value_bins)
    values = "a value [...]" if value_bins is None else f"logits of values [..., {value_bins}]"
    actions = f"a distribution over actions {space}"
    wanted = f"networks make of inputs [..., {input_size}] {actions} and {values}"
    traced(wanted, call)
    other, value = gave[0]
    fit = other is None and getattr(value, "shape", None) == shape
    found = f"{other or actions} and a value {described(value)}"
    check(fit, f"{wanted}; these make of inputs [2, {input_size}] {found}")
    return own


def _check_memory(what: str, before: PyTree, after: PyTree) -> None:
    was, now = (jax.tree.map(lambda x: jnp.asarray(x).aval.str_short(), x) for x in (before, after))
    check(was == now, f"{what} changes what the memory is like, from {was} to {now}")


def has_memory(network: Any) -> bool:
    """Whether an actor-critic remembers anything."""
    return bool(jax.tree.leaves(network.initial((1,))))


def init_params(network: Any, key: jax.Array, observation_size: int) -> PyTree:
    """Fresh parameters."""
    obs = jnp.zeros((1, observation_size))
    return network.init(key, network.initial((1,)), obs, jnp.zeros(1, bool))


def part_of(params: PyTree, name: str) -> PyTree:
    """The parameters of `policy` or `value`: those of its tower, or all if they share any."""
    return {"params": {name: params["params"][name]}} if are_apart(params) else params


def are_apart(params: PyTree) -> bool:
    """Whether policy and value have towers of their own; else they may share parameters."""
    return set(params["params"]) == {"policy", "value"}


def with_part(params: PyTree, part: PyTree) -> PyTree:
    """Parameters with those of a part in their place."""
    return {**params, "params": {**params["params"], **part["params"]}}
