from functools import partial

import jax
import numpy as np
import pytest

from adaptax.functional.masking import masked_standardize
from adaptax.functional.returns import (
    discounted_returns,
    episode_index,
    gae,
    path_ends,
    returns_so_far,
    time_in_episode,
)

REWARD = np.array([1.0, 2.0, 3.0], np.float32)
VALUE = np.array([0.5, 0.6, 0.7], np.float32)
NEXT_VALUE = np.array([0.6, 0.7, 0.8], np.float32)
LAST = np.array([False, False, True])
NEVER = np.zeros(3, bool)
ALWAYS = np.ones(3, bool)
TERMINATED = {"terminated": LAST, "truncated": NEVER, "valid": ALWAYS}
TRUNCATED = {"terminated": NEVER, "truncated": LAST, "valid": ALWAYS}

compiled_gae = jax.jit(gae)
compiled_returns = jax.jit(discounted_returns)
golden_gae = partial(compiled_gae, REWARD, VALUE, NEXT_VALUE, discount=0.9, gae_lambda=0.8)


def lanes(num_lanes: int = 6, num_steps: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    """Random episodes of random ends in lanes [N, T], each lane with its own padded tail."""
    rng = np.random.default_rng(seed)
    shape = (num_lanes, num_steps)
    length = rng.integers(num_steps // 2, num_steps + 1, num_lanes)
    valid = np.arange(num_steps) < length[:, None]
    ends = rng.random((2, *shape)) < 0.1
    data = {name: rng.normal(size=shape) for name in ("reward", "value", "next_value")}
    flags = {"terminated": ends[0], "truncated": ends[1], "valid": valid}
    return {**{k: np.where(valid, x, 0.0) for k, x in data.items()}, **flags}


def naive_gae(lane: dict[str, np.ndarray], discount: float, gae_lambda: float) -> np.ndarray:
    """A_t = sum over k of (discount lambda)^k delta_{t+k} within the episode, for one lane [T]."""
    steps = int(lane["valid"].sum())
    ends = lane["terminated"] | lane["truncated"]
    advantage = np.zeros(len(ends))
    for t in range(steps):
        for k in range(t, steps):
            follows = 0.0 if lane["terminated"][k] else lane["next_value"][k]
            delta = lane["reward"][k] + discount * follows - lane["value"][k]
            advantage[t] += (discount * gae_lambda) ** (k - t) * delta
            if ends[k]:
                break
    return advantage


def naive_returns(lane: dict[str, np.ndarray], discount: float) -> np.ndarray:
    """R_t = sum of discounted rewards to the episode's end plus the tail's value, one lane [T]."""
    steps = int(lane["valid"].sum())
    ends = lane["terminated"] | lane["truncated"]
    returns = np.zeros(len(ends))
    for t in range(steps):
        for k in range(t, steps):
            returns[t] += discount ** (k - t) * lane["reward"][k]
            if ends[k] or k == steps - 1:
                tail = 0.0 if lane["terminated"][k] else lane["next_value"][k]
                returns[t] += discount ** (k - t + 1) * tail
                break
    return returns


def pick(data: dict[str, np.ndarray], index: object) -> dict[str, np.ndarray]:
    return {name: x[index] for name, x in data.items()}


def double_precision_gae(data: dict[str, np.ndarray]) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(compiled_gae(**data, discount=0.97, gae_lambda=0.9))


def returns_of(data: dict[str, np.ndarray], discount: float) -> np.ndarray:
    used = {name: x for name, x in data.items() if name != "value"}
    with jax.enable_x64(True):
        return np.asarray(compiled_returns(**used, discount=discount))


def with_garbage(data: dict[str, np.ndarray], value: float) -> dict[str, np.ndarray]:
    """The same data with `value` and True flags wherever a lane is padded."""
    padding = ~data["valid"]
    changed = {k: np.where(padding, value, data[k]) for k in ("reward", "value", "next_value")}
    flags = {k: data[k] | padding for k in ("terminated", "truncated")}
    return {**data, **changed, **flags}


@pytest.mark.parametrize(
    ("ends", "expected"),
    [(TERMINATED, [3.69392, 3.686, 2.3]), (TRUNCATED, [4.067168, 4.2044, 3.02])],
)
def test_gae_golden_vector(ends, expected):
    np.testing.assert_allclose(golden_gae(**ends), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [(TERMINATED, [4.19392, 4.286, 3.0]), (TRUNCATED, [4.567168, 4.8044, 3.72])],
)
def test_lambda_return_golden_vector(ends, expected):
    np.testing.assert_allclose(golden_gae(**ends) + VALUE, expected, rtol=1e-6)


def test_standardised_advantage_golden_vector():
    standard = masked_standardize(golden_gae(**TERMINATED), ALWAYS)
    np.testing.assert_allclose(standard, [0.713142, 0.701055, -1.414196], atol=1e-6)


def test_terminated_decides_where_both_flags_are_set():
    both = golden_gae(terminated=LAST, truncated=LAST, valid=ALWAYS)
    np.testing.assert_array_equal(both, golden_gae(**TERMINATED))


def test_gae_equals_double_sum():
    data = lanes()
    slow = np.stack([naive_gae(pick(data, n), 0.97, 0.9) for n in range(6)])
    np.testing.assert_allclose(double_precision_gae(data), slow, rtol=1e-10, atol=1e-10)


def test_gae_bootstraps_at_time_limit():
    expected = 1.0 + 0.9 * 5.0 - 2.0
    one, flag = np.ones(1, np.float32), np.ones(1, bool)
    ends = {"terminated": ~flag, "truncated": flag, "valid": flag}
    got = gae(one, 2 * one, 5 * one, **ends, discount=0.9, gae_lambda=0.8)
    assert float(got[0]) == pytest.approx(expected, rel=1e-6)


def test_concatenated_rollouts_equal_each_alone():
    data = lanes(num_lanes=2)
    data["valid"][:] = True
    data["truncated"][:, -1] = True
    joined = {name: x.reshape(1, -1) for name, x in data.items()}
    together = double_precision_gae(joined).reshape(2, -1)
    np.testing.assert_allclose(together, double_precision_gae(data), rtol=1e-12, atol=1e-12)


def test_lambda_one_gives_return_minus_value():
    data = lanes()
    data["valid"][:] = data["truncated"][:, -1] = True
    goes_on = ~(data["terminated"] | data["truncated"])[:, :-1]
    np.copyto(data["next_value"][:, :-1], data["value"][:, 1:], where=goes_on)
    with jax.enable_x64(True):
        advantage = compiled_gae(**data, discount=0.97, gae_lambda=1.0)
    expected = returns_of(data, 0.97) - data["value"]
    np.testing.assert_allclose(advantage, expected, rtol=1e-10, atol=1e-10)


def test_lambda_zero_gives_temporal_difference():
    data = lanes()
    with jax.enable_x64(True):
        advantage = compiled_gae(**data, discount=0.97, gae_lambda=0.0)
    follows = np.where(data["terminated"], 0.0, data["next_value"])
    delta = np.where(data["valid"], data["reward"] + 0.97 * follows - data["value"], 0.0)
    np.testing.assert_allclose(advantage, delta, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [1e30, np.inf, np.nan])
def test_padding_changes_no_advantage(value):
    data = lanes()
    noisy = double_precision_gae(with_garbage(data, value))
    np.testing.assert_array_equal(noisy, double_precision_gae(data))


@pytest.mark.parametrize("value", [1e30, np.inf, np.nan])
def test_padding_changes_no_return(value):
    data = lanes()
    noisy = returns_of(with_garbage(data, value), 0.97)
    np.testing.assert_array_equal(noisy, returns_of(data, 0.97))


def test_padded_advantages_and_returns_are_zero():
    data = with_garbage(lanes(), 1.0)
    padded = double_precision_gae(data)[~data["valid"]]
    padded_returns = returns_of(data, 0.97)[~data["valid"]]
    assert np.abs(padded).max() == 0.0 and np.abs(padded_returns).max() == 0.0


def test_layout_along_lanes_equals_layout_along_time():
    rng = np.random.default_rng(1)
    whole = {name: rng.normal(size=(4, 10)) for name in ("reward", "value", "next_value")}
    last = np.broadcast_to(np.arange(10) == 9, (4, 10))
    ends = {"terminated": last & (np.arange(4)[:, None] % 2 == 0), "valid": np.ones((4, 10), bool)}
    data = {**whole, **ends, "truncated": last & ~ends["terminated"]}
    along_time = {name: x.reshape(2, 20) for name, x in data.items()}
    np.testing.assert_allclose(
        double_precision_gae(along_time).reshape(4, 10), double_precision_gae(data), rtol=1e-12
    )


def test_returns_equal_slow_loop():
    data = lanes(seed=2)
    slow = np.stack([naive_returns(pick(data, n), 0.97) for n in range(6)])
    np.testing.assert_allclose(returns_of(data, 0.97), slow, rtol=1e-10, atol=1e-10)


def test_return_of_a_lane_cut_in_mid_episode_ends_in_its_next_value():
    data = pick(lanes(), slice(0, 1))
    cut = {**data, "terminated": np.zeros((1, 40), bool), "truncated": np.zeros((1, 40), bool)}
    last = int(cut["valid"].sum()) - 1
    expected = cut["reward"][0, last] + 0.5 * cut["next_value"][0, last]
    assert returns_of(cut, 0.5)[0, last] == pytest.approx(expected, rel=1e-12)


def test_episode_index_counts_the_ends_before_a_step():
    terminated = np.array([False, True, False, False, False, True])
    truncated = np.array([False, False, False, True, False, True])
    index = episode_index(terminated, truncated)
    np.testing.assert_array_equal(index, [0, 0, 1, 1, 2, 2])


def test_episode_index_agrees_on_jax_and_numpy():
    data = lanes()
    flags = (data["terminated"], data["truncated"])
    on_device = episode_index(*(jax.numpy.asarray(x) for x in flags))
    np.testing.assert_array_equal(on_device, episode_index(*flags))


def test_a_path_ends_with_its_episode_or_with_its_lane():
    terminated = np.array([[False, True, False, False], [False, False, False, True]])
    truncated = np.array([[False, False, False, False], [True, False, False, False]])
    valid = np.array([[True, True, True, False], [True, True, True, True]])
    ends = path_ends(terminated, truncated, valid)
    np.testing.assert_array_equal(ends, [[0, 1, 1, 0], [1, 0, 0, 1]])


def test_returns_so_far_equal_a_loop_over_the_steps_of_each_lane():
    data = lanes()
    ends = data["terminated"] | data["truncated"]
    start = np.random.default_rng(1).normal(size=len(ends))
    expected = np.zeros_like(data["reward"])
    for lane, t in np.ndindex(*ends.shape):
        begins = t == 0 or ends[lane, t - 1]
        before = (start[lane] if t == 0 else 0.0) if begins else expected[lane, t - 1]
        expected[lane, t] = before + data["reward"][lane, t]
    found = jax.jit(returns_so_far)(data["reward"], ends, start)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_time_starts_anew_after_every_end():
    terminated = np.array([[False, True, False, False, False], [True, False, False, False, True]])
    truncated = np.array([[False, False, False, True, False], [False, False, False, False, True]])
    time = time_in_episode(terminated, truncated)
    np.testing.assert_array_equal(time, [[0, 1, 0, 1, 0], [0, 0, 1, 2, 3]])


def test_episodes_of_one_step_are_all_at_their_start():
    ends = np.ones((3, 2, 1), bool)
    np.testing.assert_array_equal(time_in_episode(ends, np.zeros_like(ends)), np.zeros((3, 2, 1)))
