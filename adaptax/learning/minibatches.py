"""Gradient descent over epochs of minibatches, as one compiled scan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from adaptax.core.experience import PyTree
from adaptax.core.precision import in_64_bits
from adaptax.functional.masking import masked_mean
from adaptax.learning.schedules import Scheduled, falling, is_schedule

Metrics = dict[str, Any]
"""Figures by name, each a number: of one iteration, of an update, of a loss."""
Loss = Callable[[PyTree, Any], tuple[jax.Array, Metrics]]
"""(parameters, minibatch) -> (loss, figures)."""
Stop = Callable[[Metrics], jax.Array]
"""(figures of a minibatch) -> whether to stop."""
MakeOptimizer = Callable[[Any], optax.GradientTransformation]
"""Makes an optimizer for a learning rate. `descend` hands it all parameters as one vector, so it
must not tell layers apart, as masks or a clip by layer would."""
ADAM = partial(optax.adam, eps=1e-5)
"""As in OpenAI Baselines' PPO2 and Pyrado."""


class Passes(Scheduled, Protocol):
    """Settings of gradient descent over passes of minibatches."""

    @property
    def num_epochs(self) -> int:
        """Passes over the data of an iteration."""

    @property
    def num_minibatches(self) -> int:
        """Parts that a pass is made in."""


class Rows(Protocol):
    """A batch: a pytree with leaves [n, ...]."""

    @property
    def usable(self) -> jax.Array:
        """[n] bool: whether there is anything to learn from in a row."""


def optimizer(
    config: Scheduled,
    updates_per_pass: int = 1,
    make: MakeOptimizer = ADAM,
    passes_per_update: int = 1,
) -> optax.GradientTransformation:
    """The optimizer that `make` gives for the scheduled step size, behind the clip of gradients.

    Its state does not depend on `updates_per_pass` and `passes_per_update`.
    """
    lr = falling(config.lr, config, updates_per_pass, passes_per_update)
    return clipped(make(lr), config.max_grad_norm)


def clipped(
    step: optax.GradientTransformation, max_grad_norm: float | None
) -> optax.GradientTransformation:
    """`step` behind one clip by the global norm of all gradients that it gets."""
    if max_grad_norm is None:
        return step
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), step)


def shuffled_rows(key: jax.Array, valid: jax.Array, num_epochs: int, num_parts: int) -> jax.Array:
    """Indices [num_epochs * num_parts, b] of the minibatches of passes over n entries.

    Each pass takes every `valid` [n] entry once, in a new random order. The share of the
    `num_parts` that hold valid entries is that of the valid entries in all, rounded up; their
    numbers of these differ by one at most. All other places hold an entry that is not valid, or the
    index n where `num_parts` does not divide n.
    """
    n = valid.shape[0]
    part, slot = np.arange(num_parts)[:, None], np.arange(-(-n // num_parts))
    num_valid = jnp.sum(valid)
    num_used = jnp.maximum(jnp.sum(num_valid > part * n // num_parts), 1)
    size, num_larger = num_valid // num_used, num_valid % num_used
    place = part * size + jnp.minimum(part, num_larger) + slot
    there = (part < num_used) & (slot < size + (part < num_larger))
    filler = n if n % num_parts else n - 1
    places = jnp.where(there, place, filler)

    def one_pass(epoch_key: jax.Array) -> jax.Array:
        return jnp.append(_shuffled(epoch_key, valid), n)[places]

    order = jax.vmap(one_pass)(jax.random.split(key, num_epochs))
    return order.reshape(-1, order.shape[-1])


def _shuffled(key: jax.Array, valid: jax.Array) -> jax.Array:
    """All n entries [n] int32 in random order, those that are `valid` [n] before the others.

    Each is drawn a number that ends with its index: on a CPU, sorting plain numbers takes a
    tenth of the time that sorting indices by numbers takes.
    """
    num_bits = max(len(valid) - 1, 1).bit_length()

    def order(valid: jax.Array, high: jax.Array, low: jax.Array) -> jax.Array:
        drawn = (high.astype(jnp.uint64) << 31) | (low >> 1)  # 63 bits
        first = jnp.where(valid, 0, 1).astype(jnp.uint64) << 63
        index = jnp.arange(len(valid), dtype=jnp.uint64)
        numbers = jnp.sort(first | (drawn >> num_bits << num_bits) | index)
        return (numbers % 2**num_bits).astype(jnp.int32)

    words = jax.random.bits(key, (2, len(valid)), jnp.uint32)
    return jnp.asarray(in_64_bits(order, valid, *words))


def run_passes(
    settings: Passes,
    loss: Loss,
    start: tuple[PyTree, PyTree],
    batch: Rows,
    key: jax.Array,
    *,
    make: MakeOptimizer = ADAM,
    stop: Stop | None = None,
) -> tuple[tuple[PyTree, PyTree], Metrics]:
    """(Parameters, optimizer's state) before -> after, and mean figures; `key` shuffles.

    `stop` is asked of every minibatch whether to stop for good.
    """
    num_rows = len(batch.usable)
    num_parts = min(settings.num_minibatches, num_rows)
    step = optimizer(settings, num_parts, make)
    rows = shuffled_rows(key, batch.usable, settings.num_epochs, num_parts)
    if num_rows % num_parts:  # the index that fills up minibatches is that of an empty row
        batch = jax.tree.map(lambda x: jnp.concatenate([x, jnp.zeros_like(x[:1])]), batch)
    live = batch.usable[rows].any(-1)
    return descend(loss, step, start, batch, rows, live=live, stop=stop)


def descend(
    loss: Loss,
    step: optax.GradientTransformation,
    start: tuple[PyTree, PyTree],
    batch: PyTree,
    rows: jax.Array,
    *,
    live: jax.Array | None = None,
    stop: Stop | None = None,
) -> tuple[tuple[PyTree, PyTree], Metrics]:
    """One step on each minibatch: (parameters, optimizer's state) after all, and mean figures.

    `batch` has leaves [n, ...], `rows` [K, b] are the indices of each minibatch; where b is n it is
    the whole batch. No step is made where `live` [K] is False, nor on the first minibatch for whose
    figures `stop` is True, nor on any after it. `update_share` is the share of the live steps that
    were made. Schedules go on with steps that are not made, too. `step` and its state see all
    parameters as one vector.
    """
    guarded = live is not None or stop is not None
    whole = rows.shape[1] == len(jax.tree.leaves(batch)[0])
    # An optimizer's step on one vector is a few loops in the place of a few for every layer.
    params_of = ravel_pytree(start[0])[1]
    alike = partial(_are_alike, start[0])
    as_vectors = jax.tree.map(lambda x: ravel_pytree(x)[0] if alike(x) else x, start, is_leaf=alike)

    def loss_of(vector: jax.Array, minibatch: PyTree) -> tuple[jax.Array, Metrics]:
        return loss(params_of(vector), minibatch)

    def update(carry: tuple[Any, jax.Array], x: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        (now, stopped), (row, is_live) = carry, x
        # All of it in another order would be the same, but has to be brought to one device.
        minibatch = batch if whole else jax.tree.map(lambda leaf: leaf[row], batch)
        after, figures = one_step(loss_of, step, now, minibatch)
        if stop is not None:
            stopped = stopped | (is_live & stop(figures))
        made = is_live & ~stopped
        if guarded:
            after = jax.tree.map(partial(_unless, made), after, now, is_leaf=is_schedule)
        return (after, stopped), (figures, made)

    live = jnp.ones(len(rows), bool) if live is None else live
    first = as_vectors, jnp.array(False)
    (end, _), (figures, made) = jax.lax.scan(update, first, (rows, live))
    end = jax.tree.map(lambda was, x: params_of(x) if alike(was) else x, start, end, is_leaf=alike)
    if not guarded:
        return end, jax.tree.map(jnp.mean, figures)
    share = jnp.sum(made) / jnp.maximum(jnp.sum(live), 1)
    return end, {**{k: masked_mean(x, made) for k, x in figures.items()}, "update_share": share}


def _are_alike(one: PyTree, other: PyTree) -> bool:
    """Whether two trees are of the same structure, shapes and types."""
    kinds = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (one, other)]
    alike = jax.tree.structure(one) == jax.tree.structure(other)  # type: ignore[operator]
    return alike and kinds[0] == kinds[1]


def _unless(made: jax.Array, new: Any, old: Any) -> Any:
    """`old` where the step was not made; but where a schedule stands is where its pass does."""
    return new if is_schedule(new) else jnp.where(made, new, old)


def one_step(
    loss: Loss, step: optax.GradientTransformation, now: tuple[PyTree, PyTree], minibatch: PyTree
) -> tuple[tuple[PyTree, PyTree], Metrics]:
    """(Parameters, optimizer's state) after one step down the loss on a minibatch, and figures."""
    params, opt_state = now
    grads, figures = jax.grad(loss, has_aux=True)(params, minibatch)
    updates, opt_state = step.update(grads, opt_state, params)
    figures = {**figures, "grad_norm": optax.tree.norm(grads)}
    return (optax.apply_updates(params, updates), opt_state), figures
