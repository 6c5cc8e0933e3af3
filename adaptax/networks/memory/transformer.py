"""A causal transformer whose layers are gated, as a memory (Parisotto et al. 2019, GTrXL)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import Cache, PyTree
from adaptax.networks.memory.memory import Memory, flat_lanes
from adaptax.networks.mlp import dense

NUM_HEADS = 4
CHUNK = 128
"""Steps whose queries are answered together: what a sequence takes in memory grows with it."""
LONGEST_WAVE = 10_000
"""Base of the rotary encoding's wavelengths, which lie between 1 and so many times 2 pi steps (Su
et al. 2021, 3.3)."""
FIRST_GATE_BIAS = 2.0
"""By it a layer starts near the identity (Parisotto et al. 2019, 3.2)."""
NOWHERE = -1
"""In the place of a stretch: a slot of the cache that nothing was written to."""


class Transformer(Memory):
    """Looks back at the last `context` steps, this one included (arXiv 1910.06764, section 3).

    Layers norm their inputs and join what they make of them by gates; units are GELUs, not ReLUs,
    for gradients without kinks. Queries and keys are rotated by their step's number since the start
    (Su et al. 2021, arXiv 2104.09864): what is read depends on distances in time. It remembers
    `count`, steps since the start, and a `cache` of each layer's keys and values by head,
    [*lanes, layers, heads, context, H / heads]: step n is in slot n mod `context`.
    """

    num_layers: int = 2
    context: int = 1000

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """Zeros."""
        heads = (NUM_HEADS, self.context, self.size // NUM_HEADS)
        shape = (*lanes, self.num_layers, *heads)
        cache = Cache({name: jnp.zeros(shape) for name in ("keys", "values")})
        return {"count": jnp.zeros(lanes, jnp.int32), "cache": cache}

    def __call__(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """One step, by the cache; see `Memory`."""
        lanes, cache = x.shape[:-1], _flat(memory["cache"])
        count = memory["count"].reshape(-1)
        if reset is not None:
            count = jnp.where(reset.reshape(-1), 0, count)
        slots, slot = jnp.arange(self.context), count % self.context
        # What this step will displace is out of its sight.
        known = (slots < count[:, None]) & (slots != slot[:, None])

        def attend(layer: int, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            old_keys, old_values = cache["keys"][:, layer], cache["values"][:, layer]
            query = query / jnp.sqrt(query.shape[-1])
            # Two products rather than one over all, which would be a copy of the cache.
            old = jnp.einsum("bhtw,bhcw->bhtc", query, old_keys)
            old = jnp.where(known[:, None, None], old, -jnp.inf)
            own = jnp.sum(query * key, axis=-1, keepdims=True)
            weights = nn.softmax(jnp.concatenate([old, own], axis=-1))
            return weights[..., :-1] @ old_values + weights[..., -1:] * value

        features, written = self._layers(flat_lanes(x, 1)[:, None], count[:, None], attend)
        rows = jnp.arange(len(count))
        after = {
            name: cache[name].at[rows, :, :, slot].set(new[:, :, :, 0]) for name, new in written
        }
        return self._memory(after, count + 1, lanes), features.reshape(*lanes, self.size)

    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """See `Memory`."""
        lanes, rows, cache = x.shape[:-2], flat_lanes(x, 2), _flat(memory["cache"])
        batch, steps = rows.shape[:2]
        count = memory["count"].reshape(batch, 1)
        time = jnp.arange(steps)
        resets = jnp.zeros((batch, steps), bool) if reset is None else flat_lanes(reset, 1)
        # Steps are of one stretch where as many resets came before; stretch 0 knows the cache.
        stretch = jnp.cumsum(resets, axis=1)
        start = jax.lax.cummax(jnp.where(resets, time, 0), axis=1)
        position = time - start + jnp.where(stretch == 0, count, 0)
        # From here on the cache is in the order of time, its last slot the step before the first.
        slots = jnp.arange(self.context)
        cache = {name: _turned(y, (count + slots) % self.context) for name, y in cache.items()}
        cached = jnp.where(slots >= self.context - count, 0, NOWHERE)
        attend = partial(self._attend, cache, jnp.concatenate([cached, stretch], axis=1))
        features, written = self._layers(rows, position, attend)
        count = position[:, -1:] + 1
        place = (slots - count) % self.context
        after = {
            name: _turned(jnp.concatenate([cache[name], new], axis=3)[:, :, :, steps:], place)
            for name, new in written
        }
        return self._memory(after, count[:, 0], lanes), features.reshape(*x.shape[:-1], self.size)

    def _memory(
        self, cache: dict[str, jax.Array], count: jax.Array, lanes: tuple[int, ...]
    ) -> PyTree:
        """A cache and counts of lanes in a row in the shape of `initial`."""
        shaped = {name: y.reshape(*lanes, *y.shape[1:]) for name, y in cache.items()}
        return {"count": count.reshape(lanes), "cache": Cache(shaped)}

    def _attend(
        self,
        cache: dict[str, jax.Array],
        stretch: jax.Array,
        layer: int,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
    ) -> jax.Array:
        """What queries [B, heads, T, W] read of keys and values before and of their own.

        The cache, in the order of time, is [B, layers, heads, C, W]; `stretch` [B, C + T] is its
        and the steps'. Chunk by chunk, each of which sees C steps back and no more.
        """
        steps, width = query.shape[2:]
        chunk, context = min(CHUNK, steps), self.context
        short = -steps % chunk

        def padded(y: jax.Array) -> jax.Array:
            return jnp.pad(y, ((0, 0), (0, 0), (0, short), (0, 0)))

        keys, values = (
            padded(jnp.concatenate([cache[name][:, layer], own], axis=2))
            for name, own in (("keys", key), ("values", value))
        )
        of_key = jnp.pad(stretch, ((0, 0), (0, short)), constant_values=NOWHERE)
        of_query = jnp.pad(stretch[:, context:], ((0, 0), (0, short)), constant_values=NOWHERE)
        back = jnp.arange(chunk)[:, None] + context - jnp.arange(context + chunk)
        in_sight = (back >= 0) & (back < context)
        queries = padded(query) / jnp.sqrt(width)

        @jax.checkpoint
        def read(number: jax.Array) -> jax.Array:
            own = partial(jax.lax.dynamic_slice_in_dim, start_index=number * chunk)
            q = own(queries, slice_size=chunk, axis=2)
            k, v = (own(y, slice_size=context + chunk, axis=2) for y in (keys, values))
            theirs = own(of_key, slice_size=context + chunk, axis=1)[:, None]
            same = own(of_query, slice_size=chunk, axis=1)[..., None] == theirs
            logits = jnp.where((in_sight & same)[:, None], q @ jnp.swapaxes(k, -1, -2), -jnp.inf)
            return nn.softmax(logits) @ v

        parts = jax.lax.map(read, jnp.arange((steps + short) // chunk))
        return jnp.moveaxis(parts, 0, 2).reshape(*query.shape[:2], -1, width)[:, :, :steps]

    @nn.compact
    def _layers(
        self, x: jax.Array, position: jax.Array, attend: Callable[..., jax.Array]
    ) -> tuple[jax.Array, list[tuple[str, jax.Array]]]:
        """Features of x [B, T, F], and by name keys and values [B, layers, heads, T, W] of it.

        `attend` gives what is read [B, heads, T, W] by a layer's number, query, key and value.
        """
        features = dense(self.size, scale=1.0)(x)
        keys, values = [], []
        for layer in range(self.num_layers):
            all_three = nn.Dense(3 * self.size, use_bias=False)(nn.LayerNorm()(features))
            query, key, value = map(by_head, jnp.split(all_three, 3, axis=-1))
            query, key = rotated(query, position), rotated(key, position)
            read = nn.Dense(self.size)(_joined(attend(layer, query, key, value)))
            features = Gate()(features, nn.gelu(read))
            hidden = nn.gelu(nn.Dense(2 * self.size)(nn.LayerNorm()(features)))
            features = Gate()(features, nn.gelu(nn.Dense(self.size)(hidden)))
            keys.append(key)
            values.append(value)
        written = [(name, jnp.stack(y, axis=1)) for name, y in (("keys", keys), ("values", values))]
        return features, written


class Gate(nn.Module):
    """What is kept of x and what comes in from y, gated as in a GRU (arXiv 1910.06764, 3.2)."""

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Both inputs [..., H] -> [..., H]."""
        size = x.shape[-1]
        reset, update, candidate = jnp.split(nn.Dense(3 * size)(y), 3, axis=-1)
        by_x, by_x_update = jnp.split(nn.Dense(2 * size, use_bias=False)(x), 2, axis=-1)
        update = nn.sigmoid(update + by_x_update - FIRST_GATE_BIAS)
        kept = nn.sigmoid(reset + by_x) * x
        candidate = nn.tanh(candidate + nn.Dense(size, use_bias=False)(kept))
        return (1 - update) * x + update * candidate


def rotated(x: jax.Array, position: jax.Array) -> jax.Array:
    """Inputs [B, heads, T, W] with pairs of numbers turned by angles that grow with `position`.

    The product of a turned query and a turned key depends on the difference of their positions
    [B, T] (Su et al. 2021, equations 15 and 16).
    """
    half = x.shape[-1] // 2
    speeds = LONGEST_WAVE ** (-jnp.arange(half) / half)
    angles = (position[..., None] * speeds)[:, None]
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    one, other = x[..., :half], x[..., half:]
    return jnp.concatenate([one * cos - other * sin, one * sin + other * cos], axis=-1)


def by_head(x: jax.Array) -> jax.Array:
    """Features [B, T, H] as [B, heads, T, H / heads]."""
    return jnp.moveaxis(x.reshape(*x.shape[:2], NUM_HEADS, -1), 2, 1)


def _joined(x: jax.Array) -> jax.Array:
    """The inverse of `by_head`."""
    return jnp.moveaxis(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def _flat(cache: Cache) -> dict[str, jax.Array]:
    """Its arrays with one axis in the place of its lanes."""
    return {name: flat_lanes(y, 4) for name, y in cache.arrays.items()}


def _turned(x: jax.Array, places: jax.Array) -> jax.Array:
    """Slots of x [B, layers, heads, C, W] in another order [B, C]."""
    return jnp.take_along_axis(x, places[:, None, None, :, None], axis=3)
