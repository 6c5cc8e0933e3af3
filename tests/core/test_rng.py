import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from adaptax.core.rng import episode_seeds, named_generator, named_key, stream_root
from adaptax.core.threefry import threefry2x32

MILLION = np.arange(1_000_000, dtype=np.uint32)


def bits(key: jax.Array) -> list[int]:
    return np.asarray(jax.random.key_data(key)).tolist()


def test_no_two_episodes_of_a_stream_share_a_seed():
    seeds = episode_seeds(stream_root(0, "train", "episodes", 0), MILLION)
    assert len(np.unique(seeds)) == 1_000_000


def test_mixing_is_a_bijection_on_scattered_indices():
    scattered = np.random.default_rng(0).integers(2**32, size=1_000_000, dtype=np.uint32)
    seeds = episode_seeds(stream_root(1, "x"), scattered)
    assert len(np.unique(seeds)) == len(np.unique(scattered))


def test_numpy_and_jax_give_the_same_seeds():
    root, index = stream_root(3, "train"), MILLION[:1000] * np.uint32(4_000_037)
    on_device = jax.jit(episode_seeds)(jnp.asarray(root), jnp.asarray(index))
    np.testing.assert_array_equal(on_device, episode_seeds(root, index))


def test_seeds_keep_their_type():
    assert episode_seeds(stream_root(0, "x"), MILLION[:3]).dtype == np.uint32


def test_streams_share_seeds_no_more_often_than_chance():
    streams = [stream_root(0, "train", "episodes", call) for call in range(2)]
    first, second = (episode_seeds(root, MILLION[: 2**19]) for root in streams)
    assert len(np.intersect1d(first, second)) == pytest.approx(64, abs=5 * 8)  # 2^38 / 2^32


def test_seeds_of_two_streams_are_uncorrelated():
    streams = [stream_root(0, name, "episodes", 0) for name in ("train", "test")]
    first, second = (episode_seeds(root, MILLION).astype(float) for root in streams)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.005


def test_seeds_spread_evenly():
    seeds = episode_seeds(stream_root(0, "train"), MILLION)
    counts = np.bincount(seeds >> np.uint32(24), minlength=256)
    assert abs(counts - 1e6 / 256).max() < 5 * np.sqrt(1e6 / 256)


@pytest.mark.parametrize(
    "other", [(1, "a", 0), (0, "b", 0), (0, "a", 1), (0, "a", "0"), (0, "a", 0, 1), (0, 0, "a")]
)
def test_another_name_is_another_stream(other):
    path = (0, "a", 0)
    assert bits(named_key(*path)) != bits(named_key(*other))
    assert stream_root(*path).tolist() != stream_root(*other).tolist()
    assert named_generator(*path).random() != named_generator(*other).random()


def test_a_longer_path_that_ends_in_zero_is_another_stream():
    short, long = (0, "a"), (0, "a", 0)
    assert bits(named_key(*short)) != bits(named_key(*long))
    assert stream_root(*short).tolist() != stream_root(*long).tolist()
    assert named_generator(*short).random() != named_generator(*long).random()


def test_large_run_seeds_are_told_apart():
    small, large = (1, "a"), (2**32 + 1, "a")
    assert bits(named_key(*small)) != bits(named_key(*large))
    assert stream_root(*small).tolist() != stream_root(*large).tolist()


def test_a_name_gives_the_same_stream_again():
    path = (7, "train", "actions", 3)
    assert bits(named_key(*path)) == bits(named_key(*path))
    assert stream_root(*path).tolist() == stream_root(*path).tolist()
    assert named_generator(*path).random() == named_generator(*path).random()


@pytest.mark.parametrize(
    ("keys", "counts", "bits"),
    [
        ([0, 0], [0, 0], [0x6B200159, 0x99BA4EFE]),
        ([2**32 - 1] * 2, [2**32 - 1] * 2, [0x1CB996FC, 0xBB002BE7]),
        ([0x13198A2E, 0x03707344], [0x243F6A88, 0x85A308D3], [0xC4923A9C, 0x483DF7A0]),
    ],
)
def test_random_bits_are_threefrys_by_its_published_answers(keys, counts, bits):
    words = [np.array([word], np.uint32) for word in (*keys, *counts)]
    assert np.concatenate(threefry2x32(*words)).tolist() == bits
    drawn = threefry_2x32(tuple(np.array(keys, np.uint32)), np.array(counts, np.uint32))
    assert drawn.tolist() == bits


def test_no_loop_computes_random_bits():
    drawn = jax.jit(lambda key: jax.random.normal(key, (3,)))
    assert "while" not in drawn.lower(jax.random.key(0)).compile().as_text()


def test_keys_and_counters_of_other_shapes_are_broadcast():
    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(lambda key: jax.random.bits(key, (2, 5))))(keys)
    for key, own in zip(keys, together, strict=True):
        k1, k2 = np.asarray(jax.random.key_data(key))
        count = np.arange(10, dtype=np.uint32).reshape(2, 5)
        words = threefry2x32(k1, k2, np.zeros_like(count), count)
        np.testing.assert_array_equal(own, words[0] ^ words[1])


def test_draws_from_drawn_keys_stay_apart():
    """In one kernel three are not compiled in minutes, with the LLVM of jaxlib 0.11 and 0.12."""

    def drawn(key):
        for _ in range(4):
            key, _ = jax.random.split(key)
        return jax.random.normal(key, (300,))

    program = jax.jit(drawn).lower(jax.random.key(0)).as_text()
    assert "optimization_barrier" in program
