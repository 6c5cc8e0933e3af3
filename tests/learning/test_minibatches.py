from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from adaptax.learning.minibatches import (
    clipped,
    descend,
    optimizer,
    run_passes,
    shuffled_rows,
)
from adaptax.learning.schedules import falling

KEY = jax.random.key(0)
ALL = jnp.ones(6, bool)


@dataclass(frozen=True)
class Settings:
    lr: float = 0.5
    lr_schedule: str = "constant"
    lr_schedule_steps: int = 4
    max_grad_norm: float | None = None


def loss(params, minibatch):
    """Half the squared distance to the minibatch's mean; its figure is the mean."""
    mean = jnp.mean(minibatch)
    return 0.5 * jnp.square(params - mean), {"mean": mean}


def run(batch, rows, **settings):
    step = optax.sgd(0.5)
    start = (jnp.zeros(()), step.init(jnp.zeros(())))
    (params, _), figures = descend(loss, step, start, jnp.asarray(batch), rows, **settings)
    return float(params), {name: float(x) for name, x in figures.items()}


def test_every_entry_comes_once_in_a_pass():
    rows = np.asarray(shuffled_rows(KEY, ALL, num_epochs=3, num_parts=3)).reshape(3, 6)
    np.testing.assert_array_equal(np.sort(rows), np.tile(np.arange(6), (3, 1)))
    assert len({tuple(row) for row in rows}) == 3


@pytest.mark.parametrize(
    ("num", "num_valid", "num_parts", "sizes"),
    [
        (6, 3, 2, [3, 0]),
        (6, 4, 2, [2, 2]),
        (7, 4, 3, [2, 2, 0]),
        (20, 11, 2, [6, 5]),
        (1000, 101, 10, [51, 50] + 8 * [0]),
        (12, 0, 3, [0, 0, 0]),
        (12, 1, 12, [1] + 11 * [0]),
    ],
)
def test_valid_entries_are_shared_out_evenly_among_no_more_parts_than_they_fill(
    num, num_valid, num_parts, sizes
):
    valid = np.zeros(num, bool)
    valid[np.random.default_rng(num).permutation(num)[:num_valid]] = True
    rows = np.asarray(shuffled_rows(KEY, jnp.asarray(valid), num_epochs=2, num_parts=num_parts))
    for one in rows.reshape(2, num_parts, -1):
        found = np.append(valid, False)[one]
        np.testing.assert_array_equal(found.sum(1), sizes)
        np.testing.assert_array_equal(np.sort(one[found]), np.flatnonzero(valid))


def test_minibatches_that_lack_an_entry_are_filled_up_with_n():
    rows = np.asarray(shuffled_rows(KEY, ALL, num_epochs=1, num_parts=4))
    assert rows.shape == (4, 2)
    np.testing.assert_array_equal((rows == 6).sum(1), [0, 0, 1, 1])


def test_every_order_of_the_valid_entries_is_as_likely_as_any_other():
    valid = jnp.array([True, True, False, True, True])
    keys = jax.random.split(KEY, 240)
    rows = jax.jit(jax.vmap(lambda key: shuffled_rows(key, valid, 10, 1)))(keys)
    orders = np.asarray(rows).reshape(-1, 5)
    assert (orders[:, 4] == 2).all()
    _, counts = np.unique(orders[:, :4], axis=0, return_counts=True)
    assert len(counts) == 24
    # Chi-squared with 23 degrees of freedom: one draw in 10,000 is above 57.
    assert np.sum(np.square(counts - 100)) / 100 < 57


def test_steps_are_those_of_the_optimizer_on_every_layer():
    step = clipped(optax.adam(0.1, eps=1e-5), 0.5)
    params = {"layer": {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}, "scale": jnp.array(0.5)}
    batch = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32))

    def error(params, minibatch):
        out = params["scale"] * (minibatch @ params["layer"]["w"] + params["layer"]["b"])
        return jnp.mean(jnp.square(out - 3.0)), {}

    start, rows = (params, step.init(params)), np.array([[0, 1, 2], [3, 4, 5], [2, 4, 0]])
    end, _ = descend(error, step, start, batch, rows)
    slow, state = start
    for row in rows:
        updates, state = step.update(jax.grad(lambda p: error(p, batch[row])[0])(slow), state)  # noqa: B023
        slow = optax.apply_updates(slow, updates)
    assert jax.tree.structure(end) == jax.tree.structure((slow, state))
    for found, expected in zip(jax.tree.leaves(end), jax.tree.leaves((slow, state)), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_one_step_a_minibatch_in_the_order_of_rows():
    params, figures = run([2.0, 4.0], np.array([[0], [1]]))
    assert params == pytest.approx((0.5 * 2.0) * 0.5 + 0.5 * 4.0)
    assert figures["mean"] == pytest.approx(3.0)
    assert figures["grad_norm"] == pytest.approx((2.0 + 3.0) / 2)


def test_no_step_is_made_on_a_dead_minibatch():
    batch, rows = [2.0, 99.0, 4.0], np.array([[0], [1], [2]])
    params, figures = run(batch, rows, live=jnp.array([True, False, True]))
    assert params == pytest.approx(2.5)
    assert (figures["mean"], figures["update_share"]) == (3.0, 1.0)


def test_no_step_is_made_once_the_figures_say_stop():
    batch, rows = [2.0, 7.0, 4.0], np.array([[0], [1], [2]])
    params, figures = run(batch, rows, stop=lambda figures: figures["mean"] > 5.0)
    assert params == pytest.approx(1.0)
    assert figures["mean"] == 2.0
    assert figures["update_share"] == pytest.approx(1 / 3)


def test_a_dead_minibatch_stops_nothing():
    batch, rows = [2.0, 7.0, 4.0], np.array([[0], [1], [2]])
    live = jnp.array([True, False, True])
    params, _ = run(batch, rows, live=live, stop=lambda figures: figures["mean"] > 5.0)
    assert params == pytest.approx(2.5)


def test_guards_that_hold_nothing_back_change_nothing():
    batch, rows = np.arange(6.0), np.asarray(shuffled_rows(KEY, ALL, 2, 3))
    free = run(batch, rows)
    guarded = run(batch, rows, live=ALL, stop=lambda figures: jnp.array(False))
    assert guarded[0] == free[0]


def test_the_clip_is_of_the_norm_of_all_gradients_together():
    grads = {"policy": jnp.array([3.0]), "value": jnp.array([4.0])}
    step = clipped(optax.sgd(1.0), 1.0)
    updates, _ = step.update(grads, step.init(grads))
    np.testing.assert_allclose([updates["policy"][0], updates["value"][0]], [-0.6, -0.8], rtol=1e-6)


def test_an_optimizer_follows_its_schedule():
    step = optimizer(Settings(lr_schedule="linear", max_grad_norm=1e9), 1, optax.sgd)
    state, sizes = step.init(jnp.ones(())), []
    for _ in range(5):
        update, state = step.update(jnp.ones(()), state)
        sizes.append(-float(update))
    np.testing.assert_allclose(sizes, [0.5, 0.375, 0.25, 0.125, 0.0], atol=1e-7)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Numbers:
    """Rows of one number each, some of them empty."""

    x: jax.Array
    usable: jax.Array


@dataclass(frozen=True)
class PassSettings(Settings):
    num_epochs: int = 1
    num_minibatches: int = 2


def passes_over(num_rows: int, num_empty: int, **settings):
    """How far the sum of the rows seen went, the number of steps made, and figures.

    Row i weighs 4^i, so that the sum tells how often each was seen.
    """
    weights = jnp.asarray(4.0 ** np.arange(num_rows))
    batch = Numbers(weights, jnp.arange(num_rows) < num_rows - num_empty)

    def seen(params, minibatch):
        usable = minibatch.usable
        return -params * jnp.sum(minibatch.x * usable), {"rows": jnp.sum(usable) * 1.0}

    step = optax.GradientTransformation(
        lambda params: jnp.array(0), lambda grads, count, params=None: (-grads, count + 1)
    )
    start = (jnp.zeros(()), step.init(jnp.zeros(())))
    given = PassSettings(**settings)
    (total, count), figures = run_passes(given, seen, start, batch, KEY, make=lambda rate: step)
    return float(total), int(count), figures


@pytest.mark.parametrize(
    ("num_rows", "num_minibatches"),
    [(6, 2), (6, 3), (5, 2), (7, 3), (6, 4), (9, 8), (10, 7)],
)
def test_a_pass_takes_every_row_once_in_so_many_parts(num_rows, num_minibatches):
    settings = {"num_minibatches": num_minibatches, "num_epochs": 2}
    total, count, _ = passes_over(num_rows, 0, **settings)
    assert total == 2 * sum(4.0**i for i in range(num_rows))
    assert count == 2 * num_minibatches


def test_more_minibatches_than_rows_are_one_for_each():
    assert passes_over(3, 0, num_minibatches=64)[1] == 3


def test_minibatches_of_empty_rows_make_no_step():
    total, count, figures = passes_over(6, 3, num_minibatches=3)
    assert (total, count) == (1 + 4 + 16, 2)
    assert float(figures["rows"]) == 1.5 and float(figures["update_share"]) == 1.0


@pytest.mark.parametrize(("num_empty", "stop"), [(3, None), (0, lambda figures: figures["x"] > 0)])
def test_a_schedule_falls_by_passes_whether_their_steps_were_made_or_not(num_empty, stop):
    """Of two passes of the four that it is long, of which not all steps were made."""
    given = PassSettings(num_epochs=2, num_minibatches=3, lr_schedule="linear")
    batch = Numbers(jnp.ones(6), jnp.arange(6) < 6 - num_empty)

    def loss(params, minibatch):
        return params * jnp.sum(minibatch.x * minibatch.usable), {"x": jnp.sum(minibatch.x)}

    start = (jnp.zeros(()), optimizer(given, make=optax.adam).init(jnp.zeros(())))
    (_, state), _ = run_passes(given, loss, start, batch, KEY, make=optax.adam, stop=stop)
    adam, schedule = state
    made = 0 if stop else 4  # the third part of each pass is empty
    assert (int(adam.count), int(schedule.count)) == (made, 6)
    rate = falling(given.lr, given, updates_per_pass=3)
    assert float(rate(schedule.count)) == pytest.approx(given.lr / 2)
