"""Gradient descent over epochs of minibatches, as one compiled scan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree
from adaptax.core.precision import in_64_bits
from adaptax.functional.masking import masked_mean

Figures = dict[str, jax.Array]
"""Numbers to report, by name."""
Loss = Callable[[PyTree, Any], tuple[jax.Array, Figures]]
"""Of (parameters, part of the batch): what to minimise, and figures."""
Stop = Callable[[Figures], jax.Array]
"""Of a minibatch's figures: whether to stop."""
Schedule = Literal["constant", "linear", "cosine", "exponential"]
"""How a value falls; from Python also a function, as optax has them, of the number of passes so far
[], which gives the share of the value that is left []."""
if TYPE_CHECKING:  # the command line knows names only
    Schedule = Schedule | Callable[[jax.Array], Any]  # type: ignore[misc]

MakeOptimizer = Callable[[Any], optax.GradientTransformation]
"""Makes an optimizer for a learning rate. `descend` hands it all parameters as one vector, so it
must not tell layers apart, as masks or a clip by layer would."""
ADAM = partial(optax.adam, eps=1e-5)
"""As in OpenAI Baselines' PPO2 and Pyrado."""


class LearningSchedule(Protocol):
    """Settings of how step sizes fall from pass to pass."""

    @property
    def lr_schedule(self) -> Schedule:
        """How they fall."""

    @property
    def lr_schedule_steps(self) -> int | None:
        """Passes until a schedule has ended; None: the whole run."""

    @property
    def passes_per_iteration(self) -> int:
        """Passes of an iteration."""


class Scheduled(LearningSchedule, Protocol):
    """Settings of an optimizer whose step size may fall from pass to pass."""

    @property
    def lr(self) -> float:
        """Step size at the start."""

    @property
    def max_grad_norm(self) -> float | None:
        """Bound on the norm of all gradients together."""


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
    """What `make` gives for the learning rate, with the clip.

    Its state does not depend on how many updates a pass has, or passes an update.
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


def falling(
    lr: Any, config: LearningSchedule, updates_per_pass: int = 1, passes_per_update: int = 1
) -> Any:
    """A step size as a function of the number of updates, or as it is where it is constant."""

    def rate(num_updates: jax.Array) -> jax.Array:
        num_passes = num_updates * passes_per_update // updates_per_pass
        return lr * share_left(config.lr_schedule, num_passes, config.lr_schedule_steps)

    return lr if config.lr_schedule == "constant" else rate


def share_left(schedule: Schedule, num_passes: jax.Array, num_steps: int | None) -> Any:
    """What is left of a value after k passes of a schedule of K: with x = k / K, in [0, 1].

    1 if it is constant, max(1 - x, 0) if `linear`, (1 + cos(pi min(x, 1))) / 2 if `cosine`
    (Loshchilov and Hutter 2017, equation 5, without restarts), 0.1^x if `exponential`; what a
    function gives for k.
    """
    if callable(schedule):
        return schedule(num_passes)
    if schedule == "constant":
        return jnp.ones(jnp.shape(num_passes))
    if num_steps is None:
        raise ConfigError("a schedule over the run needs a Trainer, or lr_schedule_steps")
    progress = num_passes / num_steps
    if schedule == "linear":
        return jnp.maximum(1.0 - progress, 0.0)
    if schedule == "cosine":
        return (1.0 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0))) / 2.0
    return 0.1**progress


def iterations_within(
    config: Any, num_iterations: float | None, num_steps: float | None
) -> int | None:
    """Iterations of a run with these limits, or None where that is not known beforehand."""
    lengths = [] if num_iterations is None else [num_iterations]
    each = getattr(config, "iteration_steps", None)
    if num_steps is not None and each is not None:
        lengths.append(-(-num_steps // each))
    return int(min(lengths)) if lengths else None


def over_the_run(config: Any, num_iterations: int | None) -> Any:
    """A config, and configs within it, whose schedules without a length are as long as the run.

    Raises a ConfigError where that is not known beforehand.
    """
    parts = {name: x for name, x in vars(config).items() if is_dataclass(x)}
    changes = {name: over_the_run(x, num_iterations) for name, x in parts.items()}
    changes = {name: x for name, x in changes.items() if x is not parts[name]}
    if getattr(config, "lr_schedule_steps", 0) is None and _falls(config):
        if num_iterations is None:
            raise ConfigError(
                "a schedule over the run needs num_iterations, or num_steps where an iteration has "
                "a fixed number of them; or give its length in lr_schedule_steps"
            )
        changes["lr_schedule_steps"] = num_iterations * config.passes_per_iteration
    return replace(config, **changes) if changes else config


def at_zero_after(config: Any) -> int | None:
    """Iterations after which a schedule of a config, or of one within it, has a step size of 0.

    About, where not all iterations learn; None where there is none that comes to 0.
    """
    ends = [at_zero_after(part) for part in vars(config).values() if is_dataclass(part)]
    length = getattr(config, "lr_schedule_steps", None)
    if length is not None and config.lr_schedule in ("linear", "cosine"):
        ends.append(-(-length // config.passes_per_iteration))
    return min((end for end in ends if end is not None), default=None)


def _falls(config: Any) -> bool:
    """Whether anything of it falls with the passes in a way that has a name."""
    schedules = (config.lr_schedule, getattr(config, "entropy_schedule", "constant"))
    return any(not callable(schedule) and schedule != "constant" for schedule in schedules)


def shuffled_rows(key: jax.Array, valid: jax.Array, num_epochs: int, num_parts: int) -> jax.Array:
    """Indices [num_epochs * num_parts, b] of the minibatches of passes over n entries.

    In a pass every entry that is `valid` [n] comes once, in an order of its own. Minibatches are as
    many of the `num_parts` as the valid ones are of all, and differ by one entry at most; what is
    left of them, and the other parts, are filled up with an entry that is not valid, or with the
    index n where num_parts does not divide n.
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
) -> tuple[tuple[PyTree, PyTree], Figures]:
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
) -> tuple[tuple[PyTree, PyTree], Figures]:
    """One step on each minibatch: (parameters, optimizer's state) after all, and mean figures.

    `batch` has leaves [n, ...], `rows` [K, b] are the indices of each minibatch, which is all of
    the batch where b is n. No step is made where `live` [K] is False, nor any from the first one
    on of which `stop` says True, asked before the step is made; `update_share` is the share of
    the live steps that were made. A schedule goes on with those that were not, too. `step` sees
    one vector in the place of the layers, as does its state.
    """
    guarded = live is not None or stop is not None
    whole = rows.shape[1] == len(jax.tree.leaves(batch)[0])
    # An optimizer's step on one vector is a few loops in the place of a few for every layer.
    params_of = ravel_pytree(start[0])[1]
    alike = partial(_are_alike, start[0])
    as_vectors = jax.tree.map(lambda x: ravel_pytree(x)[0] if alike(x) else x, start, is_leaf=alike)

    def loss_of(vector: jax.Array, part: PyTree) -> tuple[jax.Array, Figures]:
        return loss(params_of(vector), part)

    def update(carry: tuple[Any, jax.Array], x: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        (now, stopped), (row, is_live) = carry, x
        # All of it in another order would be the same, but has to be brought to one device.
        part = batch if whole else jax.tree.map(lambda leaf: leaf[row], batch)
        after, figures = one_step(loss_of, step, now, part)
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


def is_schedule(x: Any) -> bool:
    """Whether a part of an optimizer's state is where a schedule stands."""
    return isinstance(x, optax.ScaleByScheduleState)


def one_step(
    loss: Loss, step: optax.GradientTransformation, now: tuple[PyTree, PyTree], part: PyTree
) -> tuple[tuple[PyTree, PyTree], Figures]:
    """(Parameters, optimizer's state) after one step down the loss on a part, and figures."""
    params, opt_state = now
    grads, figures = jax.grad(loss, has_aux=True)(params, part)
    updates, opt_state = step.update(grads, opt_state, params)
    figures = {**figures, "grad_norm": optax.tree.norm(grads)}
    return (optax.apply_updates(params, updates), opt_state), figures
