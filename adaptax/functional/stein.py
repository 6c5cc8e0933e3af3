"""Stein variational gradient descent: particles that climb a density and keep their distance.

Liu and Wang 2016, "Stein variational gradient descent" (arXiv 1608.04471); axes: n particles,
D parameters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rbf_kernel(particles: jax.Array) -> tuple[jax.Array, jax.Array]:
    """K_ij = exp(-|x_i - x_j|^2 / 2 h^2) [n, n], and the repulsion G [n, D] that comes of it.

    G_i = sum_j grad_{x_j} K_ij = sum_j K_ij (x_i - x_j) / h^2, the bandwidth being constant:
    h^2 = median of all n^2 squared distances / 2 log(n + 1), or 1 if that is 0.
    """
    differences = particles[:, None] - particles[None]
    distances = jnp.sum(jnp.square(differences), axis=-1)
    squared_width = 0.5 * jnp.median(distances) / jnp.log(len(particles) + 1.0)
    squared_width = jnp.where(squared_width > 0, squared_width, 1.0)
    kernel = jnp.exp(-0.5 * distances / squared_width)
    # Differences, not K x_i - K x_j: equal particles must give exactly 0.
    return kernel, jnp.sum(kernel[..., None] * differences, axis=1) / squared_width


def spread(particles: jax.Array) -> jax.Array:
    """Mean distance between two of the particles [n, D]; 0 if there is only one."""
    num = len(particles)
    distances = jnp.linalg.norm(particles[:, None] - particles[None], axis=-1)
    return jnp.sum(distances) / max(num * (num - 1), 1)


def stein_direction(particles: jax.Array, gradients: jax.Array) -> jax.Array:
    """Where to move the particles [n, D] that climb along `gradients` [n, D] of a log-density.

    phi_i = (1 / n) sum_j [K_ij gradient_j + grad_{x_j} K_ij] (Liu and Wang 2016, eq. 8).
    """
    kernel, repulsion = rbf_kernel(particles)
    return (kernel @ gradients + repulsion) / len(particles)
