"""Search in parameter space: what CEM makes of scored candidates; D is the number of parameters.

De Boer et al. 2005, "A tutorial on the cross-entropy method", with the decaying extra variance of
Szita and Lorincz 2006, "Learning Tetris using the noisy cross-entropy method".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def search_std(
    std: jax.Array, generation: jax.Array, extra_std: float, extra_std_generations: float
) -> jax.Array:
    """Deviation [D] that generation g is drawn with: s^2 = std^2 + extra_std^2 max(1 - g / G, 0).

    G is `extra_std_generations`, in generations.
    """
    left = jnp.maximum(1.0 - generation / extra_std_generations, 0.0)
    return jnp.sqrt(jnp.square(std) + extra_std**2 * left)


def num_elites(num_candidates: int, elite_fraction: float) -> int:
    """The share `elite_fraction` of so many candidates, rounded down but for float noise."""
    return int(num_candidates * elite_fraction + 1e-9)


def ranking(scores: jax.Array) -> jax.Array:
    """Indices [P] of the candidates, best first; ties by index, NaN as minus infinity."""
    return jnp.argsort(-nan_as_worst(scores), stable=True)


def nan_as_worst(scores: jax.Array) -> jax.Array:
    """Scores with minus infinity in the place of NaN."""
    return jnp.where(jnp.isnan(scores), -jnp.inf, scores)


def refit(elites: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and population standard deviation [D] of the elite rows [E, D]."""
    return jnp.mean(elites, axis=0), jnp.std(elites, axis=0)
