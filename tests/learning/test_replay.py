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
from adaptax.learning import replay as replay_module
from adaptax.learning.replay import Replay, ReplayConfig, clear, make_replay, read, sample

SPEC = EnvSpec(2, Discrete(3), 100)
DISCOUNT = 0.5
"""A power of two: sums are exact."""


add = jax.jit(replay_module.add)
"""Compiled, as algorithms use it; the replay that it was given stays."""


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
    size = int(replay.sizes[ring])
    ages = np.arange(-(-size // 64) * 64)  # of few lengths, each of which is compiled for
    rows = jax.tree.map(np.asarray, read(replay, np.full_like(ages, ring), ages))
    found = {}
    for i in range(size):
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


def make(
    size: int = 1000,
    num_rings: int = 1,
    n_step: int = 1,
    spec: EnvSpec = SPEC,
    lanes: tuple[int, int] = (1, 1),
) -> Replay:
    return make_replay(ReplayConfig(size, num_rings, n_step), spec, DISCOUNT, lanes)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.sampled_from([1, 3]),
    num_steps=st.sampled_from([1, 15]),
    lanes=st.just(3),
    cuts=st.sampled_from([[], [1, 2, 3], [7, 8]]),
)
def test_transitions_of_n_steps_are_those_of_a_slow_loop_wherever_rollouts_are_cut(
    seed, n, num_steps, lanes, cuts
):
    """Sums end at a termination and at a time limit, never at the end of a rollout."""
    rollout = stream(np.random.default_rng(seed), num_steps, lanes=lanes)
    replay = make(n_step=n, lanes=(1, lanes))
    for i, part in enumerate(parts(rollout, [c for c in cuts if c < num_steps])):
        replay = add(replay, part, goes_on=i > 0)
    assert held(replay) == expected(rollout, n, cut=False)
    assert replay.num_added[0] == num_steps * lanes


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.sampled_from([1, 3]), num_steps=st.sampled_from([1, 15]))
def test_padding_is_no_transition_and_lanes_of_any_length_go_on(seed, n, num_steps):
    rng = np.random.default_rng(seed)
    rollout = stream(rng, num_steps, lanes=3, padded=True)
    replay = add(make(n_step=n, lanes=(1, 3)), rollout)
    assert held(replay) == expected(rollout, n, cut=False)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.sampled_from([2, 3]), num_steps=st.sampled_from([1, 15]))
def test_a_fresh_start_leaves_no_reward_to_those_that_waited(seed, n, num_steps):
    """Where the next rollout does not go on, the waiting steps sum up what they have."""
    rng = np.random.default_rng(seed)
    first, second = stream(rng, num_steps, lanes=2), stream(rng, num_steps, lanes=2)
    second = replace(second, obs=second.obs + 100)
    replay = add(make(n_step=n, lanes=(1, 2)), first)
    replay = add(replay, second, goes_on=False)
    both = {**expected(first, n, cut=True), **expected(second, n, cut=False)}
    assert held(replay) == both


def test_the_oldest_make_room_for_the_new():
    """First in, first out, over the ring's edge too."""
    rollout = stream(np.random.default_rng(0), 57)
    replay = make(size=10)
    for part in parts(rollout, [7, 9, 20, 21, 40]):
        replay = add(replay, part, goes_on=True)
    assert replay.sizes[0] == 10
    assert [key[1] for key in held(replay)] == list(range(47, 57))


def test_lanes_are_kept_in_the_order_of_time():
    replay = add(make(size=6), stream(np.random.default_rng(0), 10, lanes=3))
    assert sorted(key[1] for key in held(replay)) == [8, 8, 8, 9, 9, 9]


def test_every_ring_has_its_own_tasks_transitions():
    rollout = stream(np.random.default_rng(0), 12, members=3, lanes=2)
    replay = add(make(num_rings=5), rollout, np.array([4, 0, 2]))
    for member, ring in enumerate([4, 0, 2]):
        lanes = {key[0] for key in held(replay, ring)}
        assert lanes == {2 * member, 2 * member + 1}
    np.testing.assert_array_equal(replay.sizes, [24, 0, 24, 0, 24])


def test_clearing_some_rings_leaves_the_others():
    rollout = stream(np.random.default_rng(0), 12, members=2)
    rings = np.array([0, 1])
    replay = add(make(num_rings=2, n_step=3, lanes=(2, 1)), rollout, rings)
    before = held(replay, 1)
    replay = clear(replay, np.array([0]))
    assert len(held(replay, 0)) == 0
    assert held(replay, 1) == before
    replay = add(replay, rollout, rings, goes_on=False)
    lane = {k: v for k, v in expected(rollout, 3, cut=False).items() if k[0] == 0}
    assert held(replay, 0) == lane


def test_what_waits_for_one_ring_stays_its_own():
    """Steps cut off by rollouts of other rings are kept where they belong."""
    rng = np.random.default_rng(0)
    first, second = stream(rng, 12, members=2), stream(rng, 12, members=2)
    second = replace(second, obs=second.obs + 100)
    replay = add(make(num_rings=3, n_step=3, lanes=(2, 1)), first, np.array([0, 1]))
    replay = add(replay, second, np.array([1, 2]))
    for ring, part, lane, cut in ((0, first, 0, True), (2, second, 101, False)):
        mine = {k: v for k, v in expected(part, 3, cut=cut).items() if k[0] == lane}
        assert held(replay, ring) == mine
    both = {**expected(first, 3, cut=True), **expected(second, 3, cut=False)}
    assert held(replay, 1) == {k: v for k, v in both.items() if k[0] in (1, 100)}


def test_lanes_other_than_those_that_wait_are_refused():
    with pytest.raises(ConfigError, match=r"a rollout of \(1, 3\) lanes for a replay of \(1, 2\)"):
        add(make(n_step=2, lanes=(1, 2)), stream(np.random.default_rng(0), 5, lanes=3))


def test_draws_are_uniform_over_what_is_held():
    """In standard errors of a share, over rows before and after the ring's edge alike."""
    replay = add(make(size=16), stream(np.random.default_rng(0), 40))
    batches = sample(replay, jax.random.key(0), (100, 64))
    times, counts = np.unique(batches.obs[..., 1], return_counts=True)
    np.testing.assert_array_equal(times, np.arange(24, 40))
    error = np.sqrt(6400 * (1 / 16) * (15 / 16))
    assert np.all(np.abs(counts - 400) < 4 * error)


def test_draws_of_a_half_full_ring_are_of_what_was_written():
    replay = add(make(size=100), stream(np.random.default_rng(0), 9))
    batches = sample(replay, jax.random.key(0), (3, 50))
    assert batches.obs.shape == (3, 50, 2)
    assert set(np.asarray(batches.obs[..., 1]).ravel()) == set(range(9))


def test_draws_of_several_rings_come_from_each_its_own():
    rollout = stream(np.random.default_rng(0), 12, members=3)
    replay = add(make(num_rings=3), rollout, np.array([0, 1, 2]))
    rings = np.array([[2, 0], [1, 2]])
    batches = sample(replay, jax.random.key(0), (2, 2, 8), rings[..., None])
    assert batches.obs.shape == (2, 2, 8, 2)
    np.testing.assert_array_equal(batches.obs[..., 0], np.broadcast_to(rings[..., None], (2, 2, 8)))


def test_the_deviation_of_rewards_is_that_of_all_that_came():
    """Over several additions and what the ring has forgotten."""
    rollout = stream(np.random.default_rng(0), 57, lanes=2)
    replay = make(size=10)
    assert replay.reward_std == 1.0
    for part in parts(rollout, [7, 9, 20, 21, 40]):
        replay = add(replay, part, goes_on=True)
    assert replay.reward_std == pytest.approx(rollout.reward.std(dtype=np.float64), rel=1e-5)


def test_replays_can_be_an_axis():
    """Three seeds' replays side by side are the three."""
    rollouts = [stream(np.random.default_rng(i), 20, lanes=2) for i in range(3)]
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *rollouts)
    empty = make(size=30, n_step=3, lanes=(1, 2))
    together = jax.vmap(add, in_axes=(None, 0))(empty, stacked)
    for i, rollout in enumerate(rollouts):
        assert held(jax.tree.map(lambda x, i=i: x[i], together)) == held(add(empty, rollout))


def test_rows_are_written_where_they_lie():
    """A compiled addition that takes over the rows copies none of them."""

    def added(rows, rest, rollout):
        return replay_module.add(replace(rest, rows=rows), rollout)

    replay = make(size=100_000)
    rest, rollout = replace(replay, rows=None), stream(np.random.default_rng(0), 50)
    compiled = jax.jit(added, donate_argnums=0).lower(replay.rows, rest, rollout).compile()
    size = sum(x.nbytes for x in replay.rows.values())
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 10


@pytest.mark.parametrize(("size", "left"), [(100, range(30)), (40, range(25, 30)), (20, range(0))])
def test_a_replay_that_is_rewound_holds_what_was_not_overwritten(size, left):
    """30 steps, then 35 more whose memory the first replay takes over, in rings of each size."""
    first, second = parts(stream(np.random.default_rng(0), 65), [30])
    before = add(make(size=size), first)
    rewound = before.rewound(add(before, second, goes_on=True))
    assert [key[1] for key in held(rewound)] == list(left)
    again = add(rewound, second, goes_on=True)
    newest = held(add(before, second, goes_on=True))
    assert held(again) == {k: v for k, v in newest.items() if k in held(again)}
    assert [key[1] for key in held(again)] == list(range(65))[-min(size, 35 + len(left)) :]


def bits(tree) -> list[tuple[tuple[int, ...], bytes]]:
    return [(np.shape(x), np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("size", [40, 200])
def test_a_restored_replay_goes_on_as_if_nothing_had_happened(n, size):
    first, *rest = parts(stream(np.random.default_rng(0), 57, lanes=2), [30, 45])
    layout = {"size": size, "n_step": n, "lanes": (1, 2)}
    replay = add(make(**layout), first)
    template = {"replay": make(**layout), "x": np.ones(2)}
    saved = flatten({"replay": replay, "x": np.ones(2)})
    other = unflatten(template, {k: np.array(v) for k, v in saved.items()})["replay"]
    assert bits(other.save()) == bits(replay.save())
    for part in rest:
        replay, other = (add(r, part, goes_on=True) for r in (replay, other))
    assert bits(other.save()) == bits(replay.save())
    one, two = (sample(r, jax.random.key(1), (2, 30)) for r in (replay, other))
    assert bits(one) == bits(two)


def test_a_snapshot_on_disk_holds_what_is_in_use_and_no_more(tmp_path):
    replay = add(make(size=10**6), stream(np.random.default_rng(0), 20))
    snapshots = Snapshots(tmp_path)
    snapshots.save(1, {"state": flatten({"replay": replay})})
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size < 200_000
    restored = unflatten({"replay": make(size=10**6)}, snapshots.load(1)["state"])["replay"]
    assert held(restored) == held(replay)


def test_an_empty_replay_can_be_saved():
    saved = flatten({"replay": make()})
    assert not any("/rows/" in name for name in saved)
    assert unflatten({"replay": make()}, saved)["replay"].sizes[0] == 0


def test_a_saved_replay_that_does_not_fit_is_refused_with_the_numbers():
    replay = add(make(size=50), stream(np.random.default_rng(0), 50))
    message = "1 rings of up to 50 transitions; this one has 1 rings of 20"
    with pytest.raises(SnapshotError, match=message):
        unflatten({"replay": make(size=20)}, flatten({"replay": replay}))


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("rows/obs", lambda x: x[:7], r"rows/obs is of shape \[7, 2\], not \[18, 2\]"),
        ("waiting/reward", lambda x: x[..., :1], r"waiting/reward is of shape \[1, 1, 1\]"),
        ("num_added", lambda x: x[:0], r"num_added is of shape \[0\], not \[1\]"),
        ("rows/obs", None, "rows/obs"),
        ("sizes", lambda x: -x, "rings of less than nothing"),
    ],
)
def test_a_saved_replay_with_parts_missing_is_refused(part, change, words):
    replay = add(make(n_step=3), replace_ends(stream(np.random.default_rng(0), 20)))
    saved = replay.save()
    saved = saved | {part: change(saved[part])} if change else saved
    saved = {name: x for name, x in saved.items() if change or name != part}
    with pytest.raises(SnapshotError, match=words):
        unflatten({"r": make(n_step=3)}, {f"['r']/{name}": x for name, x in saved.items()})


def replace_ends(rollout: Rollout) -> Rollout:
    """The same without ends of episodes."""
    no = np.zeros_like(rollout.valid)
    return replace(rollout, terminated=no, truncated=no)


def test_a_replay_larger_than_memory_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(replay_module, "memory_available", lambda: 2**20)
    make(size=10_000)
    message = r"1 x 1000000 transitions of 26 bytes needs 0.0 GiB.*a smaller buffer_size fits"
    with pytest.raises(AdaptaxError, match=message):
        make(size=1_000_000)


def growth_of_a_million() -> list[float]:
    """MiB a replay of a million adds to this process: made, with 50,000 and 100,000 written."""
    spec, process = EnvSpec(17, Continuous(6), 1000), psutil.Process()
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(1, 1, 50_000, 17)).astype(np.float32)
    no = np.zeros((1, 1, 50_000), bool)
    rollout = Rollout(obs, obs[..., :6], obs[..., 0], obs, no, no, ~no)
    in_place = jax.jit(replay_module.add, donate_argnums=0)
    in_place(make(size=50_000, spec=spec), rollout)
    sizes = [process.memory_info().rss]
    replay = make(size=1_000_000, spec=spec)
    sizes.append(process.memory_info().rss)
    for _ in range(2):
        replay = jax.block_until_ready(in_place(replay, rollout))
        sizes.append(process.memory_info().rss)
    return [(size - sizes[0]) / 2**20 for size in sizes[1:]]


def test_a_replay_takes_its_memory_once():
    """158 MiB in all, and no second copy of it, which would make 316; in a process of its own,
    where what comes and goes beside the replay (a rollout on its way, 8 MiB) is all there is."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        growth = fresh.submit(growth_of_a_million).result()
    assert max(growth) < 1.5 * 158


@pytest.mark.parametrize("constant", [0.0, 0.1, -0.01, 1 / 3, 1234.567])
def test_rewards_that_do_not_vary_have_no_deviation(constant):
    """Whose mean is rounded, so that they seem to."""
    rollout = stream(np.random.default_rng(0), 57, lanes=2)
    rollout = replace(rollout, reward=np.full_like(rollout.reward, constant))
    replay = make(size=10)
    for part in parts(rollout, [7, 9, 20, 21, 40]):
        replay = add(replay, part, goes_on=True)
        assert replay.reward_std == 1.0
