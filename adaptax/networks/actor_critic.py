"""Policy and value side by side, with no weights in common; with or without memory."""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree
from adaptax.core.spec import ActionSpace, EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.networks.heads import ActionHead
from adaptax.networks.memory.recurrent import GRU
from adaptax.networks.mlp import MLP, dense

MIN_STD = 1e-3
"""Floor of the exploration's standard deviation (conformance 4.1)."""


class Body(nn.Module):
    """Hidden layers and, if `memory_size` is given, a GRU of so many units behind them."""

    hidden_sizes: tuple[int, ...]
    memory_size: int | None = None

    @nn.compact
    def __call__(
        self, obs: jax.Array, memory: jax.Array | None, reset: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Features and, with a GRU, the memory after each step; see `ActorCritic`."""
        features = MLP(self.hidden_sizes)(obs)
        if self.memory_size is None:
            return features, None
        states, _ = GRU(self.memory_size)(features, memory, reset)
        return states, states


class Policy(nn.Module):
    """Observations -> distributions over actions."""

    body: Body
    space: ActionSpace
    init_std: float = 1.0

    @nn.compact
    def __call__(
        self, obs: jax.Array, memory: jax.Array | None = None, reset: jax.Array | None = None
    ) -> tuple[Distribution, jax.Array | None]:
        """Distributions, and the memory after each step."""
        features, states = self.body(obs, memory, reset)
        return ActionHead(self.space, self.init_std, MIN_STD)(features), states


class Value(nn.Module):
    """Observations -> the value of each."""

    body: Body

    @nn.compact
    def __call__(
        self, obs: jax.Array, memory: jax.Array | None = None, reset: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Values, and the memory after each step."""
        features, states = self.body(obs, memory, reset)
        return dense(1, scale=1.0)(features)[..., 0], states


@dataclass(frozen=True)
class ActorCritic:
    """A policy and, unless it is None, a value; parameters and memories are dicts of both.

    Without memory both take observations [..., O]. With one they take sequences [..., T, O], the
    memory [..., H] before the first step, and `reset` [..., T], True where an episode starts
    within the sequence: there the memory is zero.
    """

    policy: Policy
    value: Value | None

    @property
    def networks(self) -> dict[str, nn.Module]:
        """Those that there are, by name."""
        networks = {"policy": self.policy, "value": self.value}
        return {name: network for name, network in networks.items() if network is not None}

    @property
    def recurrent(self) -> bool:
        """Whether the networks have a memory."""
        return self.policy.body.memory_size is not None

    def init(self, key: jax.Array, observation_size: int) -> PyTree:
        """Fresh parameters."""
        obs, memory = jnp.zeros((1, 1, observation_size)), self.fresh_memory((1,))
        keys = jax.random.split(key, len(self.networks))
        return {
            name: network.init(own_key, obs, memory.get(name))
            for own_key, (name, network) in zip(keys, self.networks.items(), strict=True)
        }

    def fresh_memory(self, shape: tuple[int, ...]) -> dict[str, jax.Array]:
        """Zeros [*shape, H] for each network; nothing for networks without memory."""
        size = self.policy.body.memory_size
        return {} if size is None else {n: jnp.zeros((*shape, size)) for n in self.networks}

    def step(
        self, params: PyTree, obs: jax.Array, memory: dict[str, jax.Array]
    ) -> tuple[Distribution, dict[str, jax.Array]]:
        """The distribution over actions after one observation [..., O] more, and the memory."""
        if not memory:
            return self.policy.apply(params["policy"], obs)[0], {}
        one = obs[..., None, :]  # a sequence of one step
        outputs, states = {}, {}
        for name, network in self.networks.items():
            outputs[name], after = network.apply(params[name], one, memory[name])
            states[name] = after[..., 0, :]
        return jax.tree.map(lambda x: x[..., 0, :], outputs["policy"]), states

    def distribution(
        self, params: PyTree, obs: jax.Array, memory: PyTree, reset: jax.Array | None
    ) -> Distribution:
        """Distributions over actions, batch axes those of `obs`."""
        return self.policy.apply(params["policy"], obs, memory.get("policy"), reset)[0]


def actor_critic(
    spec: EnvSpec, hidden_sizes: tuple[int, ...], memory_size: int | None, init_std: float
) -> ActorCritic:
    """Policy and value for an environment, alike in shape."""
    body = Body(hidden_sizes, memory_size)
    return ActorCritic(Policy(body, spec.action, init_std), Value(body))
