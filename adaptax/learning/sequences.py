"""What on-policy algorithms make of interaction: their actor, sequences, and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.experience import PyTree, Rollout, Step, select, zero_padding
from adaptax.learning.minibatches import (
    ADAM,
    Figures,
    Loss,
    MakeOptimizer,
    Scheduled,
    Stop,
    descend,
    optimizer,
    shuffled_rows,
)
from adaptax.networks.actor_critic import ActorCritic
from adaptax.networks.normalizer import CLIP, Moments, standardized
from adaptax.sampling.actors import Extras, draw


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpisodicActor:
    """Acts by the policy of an actor-critic; an episode's end clears all that it remembers.

    It remembers the networks' memory, if they have one, and return and length of the episode so
    far, which a rollout records because an episode may be longer than a rollout.
    """

    params: PyTree
    network: ActorCritic = field(metadata={"static": True})
    obs_moments: Moments | None = None
    """What observations are standardised by, if they are."""
    deterministic: bool = field(default=False, metadata={"static": True})

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """The start of an episode in every lane."""
        lanes = (num_members, num_lanes)
        return {
            "memory": self.network.fresh_memory(lanes),
            "return": jnp.zeros(lanes),
            "length": jnp.zeros(lanes, jnp.int32),
        }

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """An action, and what was remembered before it: `memory/NAME`, `return`, `length`."""
        obs = seen(obs, self.obs_moments)
        distribution, memory = self.network.step(self.params, obs, carry["memory"])
        action, extras = draw(distribution, self.deterministic, key)
        extras |= {f"memory/{name}": x for name, x in carry["memory"].items()}
        extras |= {"return": carry["return"], "length": carry["length"]}
        return action, {**carry, "memory": memory}, extras

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """The episode's totals with this step; nothing after its end."""
        totals = {"return": carry["return"] + step.reward, "length": carry["length"] + 1}
        after = {**carry, **totals}
        ended = step.terminated | step.truncated
        return select(ended, jax.tree.map(jnp.zeros_like, after), after)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sequences:
    """B lanes of T steps, in which episodes follow one another; zero where not valid."""

    obs: jax.Array
    """[B, T, O], standardised if the actor's were."""
    next_obs: jax.Array
    action: jax.Array
    """[B, T, A] or [B, T]"""
    reward: jax.Array
    """[B, T]"""
    log_prob: jax.Array
    """[B, T], of the policy that acted."""
    terminated: jax.Array
    truncated: jax.Array
    valid: jax.Array
    reset: jax.Array
    """[B, T] bool: an episode starts here that is not the lane's first."""
    memory: dict[str, jax.Array]
    """What each network remembered before the first step, [B, H]; empty without memory."""


def as_sequences(rollout: Rollout, obs_moments: Moments | None) -> Sequences:
    """The lanes [M, N, T] of an EpisodicActor's rollout as B = M * N sequences."""
    rollout = zero_padding(rollout)
    flat = jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:]), rollout)
    ends = flat.terminated | flat.truncated
    memory = {
        name.removeprefix("memory/"): x[:, 0]
        for name, x in flat.extras.items()
        if name.startswith("memory/")
    }
    return Sequences(
        obs=seen(flat.obs, obs_moments),
        next_obs=seen(flat.next_obs, obs_moments),
        action=flat.action,
        reward=flat.reward,
        log_prob=flat.extras["log_prob"],
        terminated=flat.terminated,
        truncated=flat.truncated,
        valid=flat.valid,
        reset=jnp.pad(ends[:, :-1], ((0, 0), (1, 0))),
        memory=memory,
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """What networks learn from: n steps [n, ...] or n whole sequences [n, T, ...]."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    """Of the policy that acted."""
    advantage: jax.Array
    """What the policy learns from."""
    value: jax.Array
    """Of the network before the update."""
    target: jax.Array
    """What the value learns from."""
    valid: jax.Array
    reset: jax.Array | None
    """[n, T] as in Sequences; None for steps."""
    memory: dict[str, jax.Array]

    @property
    def usable(self) -> jax.Array:
        """[n] bool: whether there is a valid step in it."""
        return self.valid.reshape(len(self.valid), -1).any(-1)

    def rows(self, num_steps: int) -> int:
        """As many entries as are so many steps, at least one."""
        return max(1, num_steps * len(self.valid) // self.valid.size)


class Descent(Scheduled, Protocol):
    """Settings of gradient descent over passes of minibatches."""

    @property
    def num_epochs(self) -> int:
        """Passes over a batch."""

    @property
    def batch_size(self) -> int:
        """Steps of a minibatch."""


@dataclass(frozen=True)
class Passes:
    """Gradient descent on a batch: what to minimise, and how."""

    config: Descent
    loss: Loss
    make_optimizer: MakeOptimizer = ADAM
    stop: Stop | None = None
    """Whether to stop for good, asked of every minibatch."""

    def run(
        self, start: tuple[PyTree, PyTree], batch: Batch, key: jax.Array
    ) -> tuple[tuple[PyTree, PyTree], Figures]:
        """(Parameters, optimizer's state) before -> after, and mean figures; `key` shuffles."""
        num_rows = batch.rows(self.config.batch_size)
        step = optimizer(self.config, -(-len(batch.valid) // num_rows), self.make_optimizer)
        rows = shuffled_rows(key, batch.usable, self.config.num_epochs, num_rows)
        nothing = jax.tree.map(lambda x: jnp.zeros_like(x[:1]), batch)
        padded = jax.tree.map(lambda *xs: jnp.concatenate(xs), batch, nothing)
        live = padded.usable[rows].any(-1)
        return descend(self.loss, step, start, padded, rows, live=live, stop=self.stop)


def as_batch(
    sequences: Sequences,
    advantage: jax.Array,
    value: jax.Array,
    target: jax.Array,
    *,
    whole: bool,
) -> Batch:
    """Sequences with what was estimated of them [B, T], `whole` or as steps."""
    s = sequences
    fields = {
        "obs": s.obs,
        "action": s.action,
        "log_prob": s.log_prob,
        "advantage": advantage,
        "value": value,
        "target": target,
        "valid": s.valid,
    }
    if whole:
        return Batch(**fields, reset=s.reset, memory=s.memory)
    steps = {name: x.reshape(-1, *x.shape[2:]) for name, x in fields.items()}
    return Batch(**steps, reset=None, memory={})


def seen(obs: jax.Array, moments: Moments | None) -> jax.Array:
    """Observations [..., O] as networks see them: standardised and clipped if there are moments."""
    return obs if moments is None else jnp.clip(standardized(obs, moments), -CLIP, CLIP)


def episode_metrics(*rollouts: Rollout) -> dict[str, Any]:
    """Statistics over the episodes that ended in rollouts, wherever they began.

    They record `return` and `length` of the episode so far, as an EpisodicActor does. Undiscounted
    `return` (the mean), `return_median`, `_min`, `_max`, `_std`, and `episode_length` in steps;
    each is None if no episode ended.
    """
    ended = [
        np.asarray(r.valid) & (np.asarray(r.terminated) | np.asarray(r.truncated)) for r in rollouts
    ]
    if not any(end.any() for end in ended):  # in most iterations of few steps
        return dict.fromkeys([*_STATISTICS, "episode_length"])
    pairs = list(zip(rollouts, ended, strict=True))
    returns = np.concatenate(
        [np.asarray(r.extras["return"])[end] + np.asarray(r.reward, float)[end] for r, end in pairs]
    )
    lengths = np.concatenate([np.asarray(r.extras["length"])[end] + 1 for r, end in pairs])
    metrics = {name: float(figure(returns)) for name, figure in _STATISTICS.items()}
    return {**metrics, "episode_length": float(lengths.mean())}


_STATISTICS: dict[str, Any] = {
    "return": np.mean,
    "return_median": np.median,
    "return_min": np.min,
    "return_max": np.max,
    "return_std": np.std,
}
