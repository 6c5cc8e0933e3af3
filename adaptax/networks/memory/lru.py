"""The linear recurrent unit (Orvieto et al. 2023, arXiv 2303.06349)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.experience import PyTree
from adaptax.functional.linear_recurrence import linear_recurrence
from adaptax.networks.memory.memory import Memory, flat_lanes, gated_residual
from adaptax.networks.mlp import dense

LEAST_RADIUS, GREATEST_RADIUS = 0.9, 0.999
"""Range of the first eigenvalues' absolute values: what they hold fades in 10 to 1,000 steps."""
GREATEST_PHASE = np.pi / 10
"""Largest phase of the first eigenvalues, in radians a step; small ones suit long sequences
(section 3.4)."""


class LRU(Memory):
    """Remembers a complex state for each of its layers, [*lanes, layers, H] in two real parts.

    Each layer is a `Recurrence`, behind a norm and before a gated linear unit beside a skip.
    """

    num_layers: int = 2

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """Zeros."""
        return {part: jnp.zeros((*lanes, self.num_layers, self.size)) for part in ("re", "im")}

    @nn.compact
    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """See `Memory`."""
        start = jax.lax.complex(*(flat_lanes(memory[part], 2) for part in ("re", "im")))
        resets = None if reset is None else flat_lanes(reset, 1)
        features = dense(self.size, scale=1.0)(flat_lanes(x, 2))
        last = []
        for layer in range(self.num_layers):
            recurrence = Recurrence(self.size)
            states, mixed = recurrence(nn.LayerNorm()(features), start[:, layer], resets)
            features = gated_residual(features, mixed)
            last.append(states[:, -1])
        after = jnp.stack(last, axis=1).reshape(memory["re"].shape)
        features = features.reshape(*x.shape[:-1], self.size)
        return {"re": after.real, "im": after.imag}, features


class Recurrence(nn.Module):
    """s_t = lambda s_{t-1} + gamma B x_t, y_t = Re(C s_t) + D x_t, with vectors lambda, gamma, D.

    s is complex and lambda too, so that all steps are one associative scan. |lambda| is
    exp(-exp(nu)), below 1 whatever is learned, and its phase exp(theta); gamma starts out as
    sqrt(1 - |lambda|^2), by which states are as large as inputs (sections 3.3 and 3.4).
    """

    size: int

    @nn.compact
    def __call__(
        self, x: jax.Array, start: jax.Array, reset: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """From inputs [B, T, H], start [B, H] complex, reset [B, T]: states, outputs [B, T, H]."""
        size = (self.size,)
        nu = self.param("nu", first_nu, size)
        theta = self.param("theta", first_theta, size)
        log_gamma = self.param(
            "log_gamma", lambda _, shape: jnp.log1p(-jnp.exp(-2 * jnp.exp(nu))) / 2, size
        )
        normal = nn.initializers.normal
        into = nn.Dense(2 * self.size, use_bias=False, kernel_init=normal((2 * self.size) ** -0.5))
        out = nn.Dense(self.size, use_bias=False, kernel_init=normal(self.size**-0.5))
        direct = self.param("direct", normal(1.0), size)
        decay = jnp.exp(jax.lax.complex(-jnp.exp(nu), jnp.exp(theta)))
        scaled = jnp.tile(jnp.exp(log_gamma), 2) * into(x)
        drive = jax.lax.complex(*jnp.split(scaled, 2, axis=-1))
        states = linear_recurrence(decay, drive, start, reset)
        # Re(C s), whose imaginary part's sign is C's to learn.
        mixed = out(jnp.concatenate([states.real, states.imag], axis=-1))
        return states, mixed + direct * x


def first_nu(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Log of minus the log of radii, uniform on the ring's area (lemma 3.2)."""
    square = jax.random.uniform(key, shape, minval=LEAST_RADIUS**2, maxval=GREATEST_RADIUS**2)
    return jnp.log(-0.5 * jnp.log(square))


def first_theta(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Log of phases, uniform up to the greatest."""
    return jnp.log(GREATEST_PHASE * (1 - jax.random.uniform(key, shape)))
