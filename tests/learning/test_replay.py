from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context

import jax
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptax.core.errors import AdaptaxError, ConfigError, SnapshotError
from adaptax.core.experience import Rollout
from adaptax.core.snapshot import Snapshots, flatten, unflatten
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.learning import replay_rows
from adaptax.learning.replay import Replay, ReplayConfig
from adaptax.learning.replay_rows import DeviceRows, HostRows

SPEC = EnvSpec(2, Discrete(3), 100)
DISCOUNT = 0.5
"""A power of two: sums are exact."""


def stream(rng, num_steps: int, members: int = 1, lanes: int = 1, padded: bool = False) -> Rollout:
    """Lanes of unique steps: the observation is (lane, time), the action and reward of it too."""
    shape = (members, lanes, num_steps)
    lane = np.arange(members * lanes).reshape(members, lanes, 1) + np.zeros(shape)
    time = np.zeros(shape) + np.arange(num_steps)
    end = rng.random(shape)
    length = rng.integers(1, num_steps + 1, shape[:2]) if padded else np.full(shape[:2], num_steps)
    obs = np.stack([lane, time], -1).astype(np.float32)
    return Rollout(
        obs=obs,
        action=(time % 3).astype(np.int32),
        reward=rng.integers(-5, 6, shape).astype(np.float32),
        next_obs=obs + np.array([0, 1], np.float32),
        terminated=end < 0.1,
        truncated=(end > 0.1) & (end < 0.2),
        valid=np.arange(num_steps) < length[..., None],
    )


def parts(rollout: Rollout, cuts: list[int]):
    """The rollout in pieces along time."""
    edges = [0, *sorted(cuts), rollout.valid.shape[2]]
    for a, b in pairwise(edges):
        if b > a:
            yield jax.tree.map(lambda x, a=a, b=b: x[:, :, a:b], rollout)


def held(replay: Replay, ring: int = 0) -> dict[tuple, tuple]:
    """What a ring holds: by (lane, time) the rest of each transition."""
    places = np.arange(replay.sizes[ring])
    rows = replay.read(np.full_like(places, ring), places)
    found = {}
    for i in places:
        key = tuple(rows.obs[i].tolist())
        assert key not in found
        found[key] = (
            int(rows.action[i]),
            round(float(rows.reward[i]), 4),
            tuple(rows.next_obs[i].tolist()),
            bool(rows.terminated[i]),
            round(float(rows.discount[i]), 6),
        )
    return found


def expected(rollout: Rollout, n: int, *, cut: bool) -> dict[tuple, tuple]:
    """The same by a slow loop; `cut`: with the transitions that lack rewards at the end."""
    found = {}
    for lane in np.ndindex(rollout.valid.shape[:2]):
        last = int(rollout.valid[lane].sum())
        for t in range(last):
            total, k = 0.0, t
            while True:
                total += DISCOUNT ** (k - t) * float(rollout.reward[lane][k])
                ended = rollout.terminated[lane][k] or rollout.truncated[lane][k]
                if ended or k - t + 1 == n or k + 1 == last:
                    break
                k += 1
            if not (cut or ended or k - t + 1 == n):
                continue
            found[tuple(rollout.obs[lane][t].tolist())] = (
                int(rollout.action[lane][t]),
                round(total, 4),
                tuple(rollout.next_obs[lane][k].tolist()),
                bool(rollout.terminated[lane][k]),
                round(DISCOUNT ** (k - t + 1), 6),
            )
    return found


def make(size: int = 1000, num_rings: int = 1, n_step: int = 1, spec: EnvSpec = SPEC) -> Replay:
    return Replay(ReplayConfig(size, num_rings, n_step, DISCOUNT), spec)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 6),
    num_steps=st.integers(1, 30),
    lanes=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 30), max_size=5),
)
def test_transitions_of_n_steps_are_those_of_a_slow_loop_wherever_rollouts_are_cut(
    seed, n, num_steps, lanes, cuts
):
    """V2: sums end at a termination and at a time limit, never at the end of a rollout."""
    rollout = stream(np.random.default_rng(seed), num_steps, lanes=lanes)
    replay = make(n_step=n)
    for i, part in enumerate(parts(rollout, [c for c in cuts if c < num_steps])):
        replay.add(part, goes_on=i > 0)
    assert held(replay) == expected(rollout, n, cut=False)
    assert replay.num_added[0] == num_steps * lanes


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 5), num_steps=st.integers(1, 20))
def test_padding_is_no_transition_and_lanes_of_any_length_go_on(seed, n, num_steps):
    rng = np.random.default_rng(seed)
    rollout = stream(rng, num_steps, lanes=3, padded=True)
    replay = make(n_step=n)
    replay.add(rollout)
    assert held(replay) == expected(rollout, n, cut=False)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 5), num_steps=st.integers(1, 20))
def test_a_fresh_start_leaves_no_reward_to_those_that_waited(seed, n, num_steps):
    """Where the next rollout does not go on, the waiting steps sum up what they have."""
    rng = np.random.default_rng(seed)
    first, second = stream(rng, num_steps, lanes=2), stream(rng, num_steps, lanes=2)
    second = replace(second, obs=second.obs + 100)
    replay = make(n_step=n)
    replay.add(first)
    replay.add(second, goes_on=False)
    both = {**expected(first, n, cut=True), **expected(second, n, cut=False)}
    assert held(replay) == both


def test_the_oldest_make_room_for_the_new():
    """V1: first in, first out, over the ring's edge too."""
    rollout = stream(np.random.default_rng(0), 57)
    replay = make(size=10)
    for part in parts(rollout, [7, 9, 20, 21, 40]):
        replay.add(part, goes_on=True)
    assert len(replay) == 10
    assert sorted(key[1] for key in held(replay)) == list(range(47, 57))


def test_lanes_are_kept_in_the_order_of_time():
    replay = make(size=6)
    replay.add(stream(np.random.default_rng(0), 10, lanes=3))
    assert sorted(key[1] for key in held(replay)) == [8, 8, 8, 9, 9, 9]


def test_every_ring_has_its_own_tasks_transitions():
    rollout = stream(np.random.default_rng(0), 12, members=3, lanes=2)
    replay = make(num_rings=5)
    replay.add(rollout, np.array([4, 0, 2]))
    for member, ring in enumerate([4, 0, 2]):
        lanes = {key[0] for key in held(replay, ring)}
        assert lanes == {2 * member, 2 * member + 1}
    np.testing.assert_array_equal(replay.sizes, [24, 0, 24, 0, 24])


def test_clearing_some_rings_leaves_the_others():
    """E9."""
    rollout = stream(np.random.default_rng(0), 12, members=2)
    replay = make(num_rings=2, n_step=3)
    replay.add(rollout, np.array([0, 1]))
    before = held(replay, 1)
    replay.clear(np.array([0]))
    assert len(held(replay, 0)) == 0
    assert held(replay, 1) == before
    replay.add(rollout, np.array([0, 1]), goes_on=False)
    lane = {k: v for k, v in expected(rollout, 3, cut=False).items() if k[0] == 0}
    assert held(replay, 0) == lane


def test_draws_are_uniform_over_what_is_held():
    """In standard errors of a share, over rows before and after the ring's edge alike."""
    replay = make(size=16)
    replay.add(stream(np.random.default_rng(0), 40))
    batches = replay.sample(jax.random.key(0), 100, 64)
    times, counts = np.unique(batches.obs[..., 1], return_counts=True)
    np.testing.assert_array_equal(times, np.arange(24, 40))
    error = np.sqrt(6400 * (1 / 16) * (15 / 16))
    assert np.all(np.abs(counts - 400) < 4 * error)


def test_draws_of_a_half_full_ring_are_of_what_was_written():
    replay = make(size=100)
    replay.add(stream(np.random.default_rng(0), 9))
    batches = replay.sample(jax.random.key(0), 3, 50)
    assert batches.obs.shape == (3, 50, 2)
    assert set(batches.obs[..., 1].ravel()) == set(range(9))


def test_draws_of_several_rings_come_from_each_its_own():
    rollout = stream(np.random.default_rng(0), 12, members=3)
    replay = make(num_rings=3)
    replay.add(rollout, np.array([0, 1, 2]))
    rings = np.array([[2, 0], [1, 2]])
    batches = replay.sample_rings(jax.random.key(0), rings, 8)
    assert batches.obs.shape == (2, 2, 8, 2)
    np.testing.assert_array_equal(batches.obs[..., 0], np.broadcast_to(rings[..., None], (2, 2, 8)))


def test_an_empty_ring_is_not_sampled():
    with pytest.raises(ConfigError, match="a ring without transitions cannot be sampled"):
        make().sample(jax.random.key(0), 1, 1)


def test_the_deviation_of_rewards_is_that_of_all_that_came():
    """G7, over several additions and what the ring has forgotten."""
    rollout = stream(np.random.default_rng(0), 57, lanes=2)
    replay = make(size=10)
    for part in parts(rollout, [7, 9, 20, 21, 40]):
        replay.add(part, goes_on=True)
    assert replay.reward_std == pytest.approx(rollout.reward.std(dtype=np.float64), rel=1e-9)


@pytest.mark.parametrize("n", [1, 3])
def test_a_restored_replay_goes_on_as_if_nothing_had_happened(n):
    first, *rest = parts(stream(np.random.default_rng(0), 57, lanes=2), [30, 45])
    replay = make(size=40, n_step=n)
    replay.add(first)
    template = {"replay": make(size=40, n_step=n), "x": np.ones(2)}
    saved = flatten({"replay": replay, "x": np.ones(2)})
    other = unflatten(template, {k: np.array(v) for k, v in saved.items()})["replay"]
    for part in rest:
        replay.add(part, goes_on=True)
        other.add(part, goes_on=True)
    one, two = replay.save(), other.save()
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    for mine, theirs in zip(
        jax.tree.leaves(replay.sample(jax.random.key(1), 2, 30)),
        jax.tree.leaves(other.sample(jax.random.key(1), 2, 30)),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_a_snapshot_on_disk_holds_what_is_in_use_and_no_more(tmp_path):
    replay = make(size=10**6)
    replay.add(stream(np.random.default_rng(0), 20))
    snapshots = Snapshots(tmp_path)
    snapshots.save(1, {"state": flatten({"replay": replay})})
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size < 200_000
    restored = unflatten({"replay": make(size=10**6)}, snapshots.load(1)["state"])["replay"]
    assert held(restored) == held(replay)


def test_an_empty_replay_can_be_saved():
    saved = flatten({"replay": make()})
    assert all(np.size(x) > 0 for x in saved.values())
    assert len(unflatten({"replay": make()}, saved)["replay"]) == 0


def test_a_saved_replay_that_does_not_fit_is_refused_with_the_numbers():
    replay = make(size=50)
    replay.add(stream(np.random.default_rng(0), 50))
    message = "1 rings of up to 50 transitions; this one has 1 rings of 20"
    with pytest.raises(SnapshotError, match=message):
        unflatten({"replay": make(size=20)}, flatten({"replay": replay}))


def test_a_replay_larger_than_memory_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(replay_rows, "_available", lambda device: 2**20)
    make(size=10_000)
    with pytest.raises(AdaptaxError, match=r"1 x 1000000 transitions of 26 bytes needs 0.0 GiB"):
        make(size=1_000_000)


def growth_of_a_million() -> list[float]:
    """MiB a replay of a million adds to this process: made, with 50,000 and 100,000 written."""
    spec, process = EnvSpec(17, Continuous(6), 1000), psutil.Process()
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(1, 1, 50_000, 17)).astype(np.float32)
    no = np.zeros((1, 1, 50_000), bool)
    rollout = Rollout(obs, obs[..., :6], obs[..., 0], obs, no, no, ~no)
    make(size=50_000, spec=spec).add(rollout)
    sizes = [process.memory_info().rss]
    replay = make(size=1_000_000, spec=spec)
    sizes.append(process.memory_info().rss)
    for _ in range(2):
        replay.add(rollout)
        sizes.append(process.memory_info().rss)
    return [(size - sizes[0]) / 2**20 for size in sizes[1:]]


def test_memory_is_used_as_the_replay_fills():
    """158 MiB in all; in a process of its own, where nothing else comes and goes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        made, tenth, fifth = fresh.submit(growth_of_a_million).result()
    assert made < 8
    assert 5 < tenth < 40
    assert 5 < fifth < 60


@pytest.mark.parametrize("lengths", [[5, 9], [20], [3, 1, 4, 1, 5]])
def test_rows_on_a_device_are_those_of_the_host(lengths):
    fields = {"obs": ((2,), np.float32), "reward": ((), np.float32)}
    host, device = HostRows(fields, 2, 16), DeviceRows(fields, 2, 16)
    rng, head = np.random.default_rng(0), 0
    for length in lengths:
        new = {
            "obs": rng.normal(size=(length, 2)).astype(np.float32),
            "reward": rng.normal(size=length).astype(np.float32),
        }
        new = {name: x[-16:] for name, x in new.items()}
        places = (head + np.arange(len(new["reward"]))) % 16
        head += length
        for rows in (host, device):
            rows.write(1, places, new)
    index = np.arange(16)[None] + np.zeros((2, 1), int)
    rings = np.array([[0], [1]]) + np.zeros((1, 16), int)
    mine, theirs = host.read(rings, index), device.read(rings, index)
    again = DeviceRows(fields, 2, 16)
    again.fill(device.first(16))
    copied = again.read(rings, index)
    for name in fields:
        np.testing.assert_array_equal(mine[name], theirs[name])
        np.testing.assert_array_equal(mine[name], copied[name])
        np.testing.assert_array_equal(host.first(16)[name], device.first(16)[name])
