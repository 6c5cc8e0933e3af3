"""The actor that acts on a guess of its task: z, drawn from a belief once an episode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core import rng
from adaptax.core.experience import PyTree, Step, select
from adaptax.functional.belief import Belief
from adaptax.sampling.actors import ByLane, Extras, Part


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LatentActor(ByLane):
    """PEARL's actor: it draws z where an episode starts and forgets it where the episode ends.

    Posterior sampling (Rakelly et al. 2019, section 4.3): between episodes z changes even if the
    belief does not, so that what is uncertain is explored. The belief is the actor's own.
    """

    params: PyTree
    policy: nn.Module = field(metadata={"static": True})
    """Observations [..., O] and z [..., L] -> a distribution over actions."""
    belief: Belief
    """[L], [M, 1, L] or [M, N, L]: of all, of each task, of each lane."""
    deterministic: bool = field(default=False, metadata={"static": True})
    """Whether to act by the policy's mode; z is drawn all the same."""

    def part(self, part: Part) -> LatentActor:
        """The actor of some lanes: with their beliefs."""
        if self.belief.mean.ndim < 3:
            return self
        return replace(self, belief=part.lanes(self.belief))

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """Before an episode: no z yet."""
        lanes = (num_members, num_lanes)
        z = jnp.zeros((*lanes, self.belief.mean.shape[-1]))
        return {"z": z, "started": jnp.zeros(lanes, bool)}

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """An action for the episode's z, which the first step draws; records `z`."""
        z_key, action_key = rng.split(key)
        started = carry["started"]
        z = select(started, carry["z"], self.belief.sample(z_key, obs.shape[:2]))
        distribution = self.policy.apply(self.params, obs, z)
        mode, sample = distribution.mode, distribution.sample
        action = mode() if self.deterministic else sample(action_key)
        return action, {"z": z, "started": jnp.ones_like(started)}, {"z": z}

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """The same z, or none after an episode's end."""
        return select(step.terminated | step.truncated, jax.tree.map(jnp.zeros_like, carry), carry)
