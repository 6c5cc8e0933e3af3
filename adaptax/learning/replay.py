"""Replay: transitions kept to learn from many times, in one ring for each of M tasks.

A pytree of device arrays, and pure functions of it. In a compiled program that takes over the
memory of the rows (`donate_argnums`) `add` writes where they lie: nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.devices import GIB, memory_available
from adaptax.core.errors import AdaptaxError, check
from adaptax.core.experience import Rollout, Transitions
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import usable_std
from adaptax.functional.returns import n_step_returns

Arrays = dict[str, Any]
"""By name, NumPy or JAX."""


@dataclass(frozen=True)
class ReplayConfig:
    """How much is kept, and of what."""

    size: int
    """Transitions that a ring holds; the oldest make room for new ones."""
    num_rings: int = 1
    """M: one for each task, filled and sampled apart."""
    n_step: int = 1
    """Rewards that a transition sums up, fewer where its episode ends before."""
    truncated: bool = False
    """Whether transitions store their `truncated` flag."""
    whole: bool = False
    """Whether a ring is of use as a whole only, and none of it once a part is overwritten."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Replay:
    """M rings of transitions, and the steps that wait for rewards which are still to come."""

    config: ReplayConfig = field(metadata={"static": True})
    discount: jax.Array
    """[]: weight of a reward against one a step earlier."""
    rows: Arrays
    """[M * size, ...], ring after ring."""
    sizes: jax.Array
    """[M] int32, transitions that each ring holds: those before its head."""
    heads: jax.Array
    """[M] int32, the place of a ring that is written next."""
    num_written: jax.Array
    """[M] uint32, transitions written so far, modulo 2^32."""
    num_added: jax.Array
    """[M] int32, steps that came, those that wait for rewards included; counts up to 2^30."""
    reward_mean: jax.Array
    """[] of all rewards that came."""
    reward_variance: jax.Array
    waiting: Arrays
    """[m, N, n_step - 1, ...], steps that lack rewards, oldest first; empty for single steps."""
    waiting_rings: jax.Array
    """[m] int32, where they belong."""

    @property
    def reward_std(self) -> jax.Array:
        """Standard deviation of all rewards that came; 1 where they do not vary."""
        return usable_std(self.reward_mean, self.reward_variance)

    @property
    def is_lost(self) -> bool:
        """Whether its rows are gone with a program that had taken them over and failed."""
        return any(isinstance(x, jax.Array) and x.is_deleted() for x in self.rows.values())

    def rewound(self, after: Replay) -> Replay:
        """The replay as it was before it became `after`, in the rows of `after`.

        Transitions that were overwritten since are missing from it, and with `whole` their rings.
        """
        size = jnp.uint32(self.config.size)
        overwritten = jnp.minimum(after.num_written - self.num_written, size)
        sizes = jnp.minimum(self.sizes, (size - overwritten).astype(jnp.int32))
        if self.config.whole:
            sizes = jnp.where(sizes < self.sizes, 0, sizes)
        return replace(self, rows=after.rows, sizes=sizes)

    def save(self) -> dict[str, np.ndarray]:
        """What it holds, no more: transitions ring by ring, oldest first; none if it is lost."""
        saved = {name: np.asarray(getattr(self, name)) for name in _FIGURES}
        if self.is_lost:
            saved |= {name: np.zeros_like(saved[name]) for name in ("sizes", "num_added")}
        sizes, heads = saved["sizes"], np.asarray(self.heads)
        if sizes.any():
            rings, ages = _held(sizes)
            index = rings * self.config.size + ((heads - sizes)[rings] + ages) % self.config.size
            saved |= {f"rows/{k}": np.take(np.asarray(x), index, 0) for k, x in self.rows.items()}
        return saved | {f"waiting/{name}": np.asarray(x) for name, x in self.waiting.items()}

    def restore(self, saved: dict[str, np.ndarray]) -> Replay:
        """A replay of what `save` gave, in the rows of this one, which cannot be used again."""
        config, sizes = self.config, np.asarray(saved["sizes"])
        most = int(sizes.max(initial=0))
        check(
            len(sizes) == config.num_rings and most <= config.size,
            f"the saved replay has {len(sizes)} rings of up to {most} transitions; this one has "
            f"{config.num_rings} rings of {config.size}",
        )
        check(int(sizes.min(initial=0)) >= 0, "the saved replay has rings of less than nothing")
        rings, ages = _held(sizes)
        new = {name: saved[f"rows/{name}"] for name in self.rows} if len(rings) else {}
        waiting = {name: saved[f"waiting/{name}"] for name in self.waiting}
        figures = {name: saved[name] for name in _FIGURES}
        for name, x in new.items():
            _check_shape(f"rows/{name}", x, (len(rings), *self.rows[name].shape[1:]))
        for name, x in waiting.items():
            _check_shape(f"waiting/{name}", x, self.waiting[name].shape)
        for name, x in figures.items():
            _check_shape(name, x, getattr(self, name).shape)
        return replace(
            self,
            rows=_filled(self.rows, rings * config.size + ages, new) if new else self.rows,
            heads=jnp.asarray(sizes % config.size),
            num_written=jnp.zeros_like(self.num_written),
            waiting=jax.tree.map(jnp.asarray, waiting),
            **jax.tree.map(jnp.asarray, figures),
        )


_FIGURES = ("sizes", "num_added", "reward_mean", "reward_variance", "waiting_rings")
"""What is saved beside transitions and waiting steps."""


def make_replay(
    config: ReplayConfig,
    spec: EnvSpec,
    discount: float | jax.Array,
    lanes: tuple[int, int] = (1, 1),
) -> Replay:
    """An empty replay; `lanes` (m, N) are those of the rollouts to come, if n_step is not 1.

    Raises an AdaptaxError where it does not fit into the memory of the device JAX computes on.
    """
    num_rows, fields = config.num_rings * config.size, _row_fields(config, spec)
    _check_memory(config, sum(int(np.prod(s)) * np.dtype(t).itemsize for s, t in fields.values()))
    no_rings, flags = jnp.zeros(config.num_rings, jnp.int32), ("terminated", "truncated", "valid")
    steps = {name: fields[name] for name in ("obs", "action", "reward", "next_obs")}
    steps |= dict.fromkeys(flags, ((), np.dtype(bool)))
    waits = (*lanes, config.n_step - 1)
    return Replay(
        config=config,
        discount=jnp.float32(discount),
        rows={name: jnp.zeros((num_rows, *s), dtype) for name, (s, dtype) in fields.items()},
        sizes=no_rings,
        heads=no_rings.copy(),
        num_written=no_rings.astype(jnp.uint32),
        num_added=no_rings.copy(),
        reward_mean=jnp.zeros(()),
        reward_variance=jnp.zeros(()),
        waiting={name: jnp.zeros((*waits, *s), dtype) for name, (s, dtype) in steps.items()}
        if config.n_step > 1
        else {},
        waiting_rings=jnp.zeros(lanes[0] if config.n_step > 1 else 0, jnp.int32),
    )


def add(
    replay: Replay,
    rollout: Rollout,
    rings: jax.Array | None = None,
    *,
    goes_on: jax.Array | bool = False,
) -> Replay:
    """The replay with a rollout's valid steps: member i's in ring rings[i], or all in ring 0.

    `goes_on`: its lanes start where those of the last rollout stopped, so that its rewards belong
    to the steps that wait for them. Else these are kept with the rewards they have.
    """
    config, steps = replay.config, _steps(rollout, rings)
    rings = jnp.zeros(1, jnp.int32) if rings is None else jnp.asarray(rings, jnp.int32)
    replay = _counted(replay, steps, rings)
    if config.n_step == 1:
        return _written(replay, _transitions(replay, steps)[0], rings)
    waiting = replay.waiting
    shape, expected = steps["valid"].shape[:2], waiting["valid"].shape[:2]
    check(shape == expected, f"a rollout of {shape} lanes for a replay of {expected}")
    cut, _ = _transitions(replay, waiting, cut=True)
    replay = _written(replay, {**cut, "valid": cut["valid"] & ~goes_on}, replay.waiting_rings)
    waiting = {**waiting, "valid": waiting["valid"] & goes_on}
    steps = {name: jnp.concatenate([waiting[name], x], 2) for name, x in steps.items()}
    made, lacks = _transitions(replay, steps)
    tail = _tail(steps, lacks, config.n_step - 1)
    return _written(replace(replay, waiting=tail, waiting_rings=rings), made, rings)


def draw_rings(replay: Replay, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Rings [*shape], with replacement, of those that hold anything; some must.

    These need not be the first: an iteration that is undone may leave one empty.
    """
    holds = replay.sizes > 0
    order = jnp.argsort(~holds)
    return order[jax.random.randint(key, shape, 0, jnp.sum(holds))]


def sample(
    replay: Replay, key: jax.Array, shape: tuple[int, ...], rings: jax.Array | None = None
) -> Transitions:
    """Transitions [*shape], with replacement: uniform over what each ring of `rings` holds.

    `rings` broadcasts to the shape, by default ring 0; each must hold something.
    """
    rings = jnp.broadcast_to(jnp.zeros((), jnp.int32) if rings is None else rings, shape)
    return read(replay, rings, jax.random.randint(key, shape, 0, replay.sizes[rings]))


def read(replay: Replay, rings: jax.Array, ages: jax.Array) -> Transitions:
    """Transitions [...] at positions `ages` [...] of rings [...]; 0 is a ring's oldest."""
    oldest = replay.heads[rings] - replay.sizes[rings]
    index = rings * replay.config.size + (oldest + ages) % replay.config.size
    fields = {name: x[index] for name, x in replay.rows.items()}
    discount = replay.discount ** fields.pop("num_steps").astype(jnp.float32)
    return Transitions(**fields, discount=discount)


def clear(replay: Replay, rings: jax.Array) -> Replay:
    """The replay without what some rings hold and what waits for them."""
    lost = jnp.isin(replay.waiting_rings, rings)[:, None, None]
    waiting = replay.waiting
    if waiting:
        waiting = {**waiting, "valid": waiting["valid"] & ~lost}
    return replace(replay, sizes=replay.sizes.at[rings].set(0), waiting=waiting)


def _row_fields(
    config: ReplayConfig, spec: EnvSpec
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of what a transition consists of."""
    truncated = {"truncated": ((), np.dtype(bool))} if config.truncated else {}
    return {
        "obs": ((spec.observation_size,), np.dtype(np.float32)),
        "action": (spec.action.shape, np.dtype(spec.action.dtype)),
        "reward": ((), np.dtype(np.float32)),
        "next_obs": ((spec.observation_size,), np.dtype(np.float32)),
        "terminated": ((), np.dtype(bool)),
        "num_steps": ((), np.dtype(np.uint8)),
        **truncated,
    }


def _steps(rollout: Rollout, rings: jax.Array | None) -> Arrays:
    """What is kept of a rollout, [m, N, T, ...]; without rings all members are lanes of one."""
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid")
    steps = {name: jnp.asarray(getattr(rollout, name)) for name in names}
    if rings is None:
        return {name: x.reshape(1, -1, *x.shape[2:]) for name, x in steps.items()}
    num_members = len(steps["valid"])
    check(num_members == len(rings), f"{len(rings)} rings for a rollout of {num_members} members")
    return steps


def _counted(replay: Replay, steps: Arrays, rings: jax.Array) -> Replay:
    """With counters and moments of rewards up to date (Chan et al. 1979, eq. 1.5)."""
    valid, reward = steps["valid"], steps["reward"]
    num = jnp.sum(valid)
    mean = jnp.sum(reward, where=valid) / jnp.maximum(num, 1)
    variance = jnp.sum(jnp.square(reward - mean), where=valid) / jnp.maximum(num, 1)
    before = jnp.sum(replay.num_added.astype(jnp.float32))
    share, shift = num / jnp.maximum(before + num, 1), mean - replay.reward_mean
    within = (1 - share) * replay.reward_variance + share * variance
    added = replay.num_added.at[rings].add(jnp.sum(valid, (1, 2), dtype=jnp.int32))
    return replace(
        replay,
        num_added=jnp.minimum(added, 2**30),
        reward_mean=replay.reward_mean + share * shift,
        reward_variance=within + share * (1 - share) * jnp.square(shift),
    )


def _transitions(replay: Replay, steps: Arrays, *, cut: bool = False) -> tuple[Arrays, jax.Array]:
    """From single steps [m, N, T, ...]: transitions alike, and which steps still lack rewards.

    `cut`: none do; those that lack rewards are made of fewer, from the last one's successor on.
    """
    valid, ends = steps["valid"], steps["terminated"] | steps["truncated"]
    n, discount = replay.config.n_step, replay.discount
    reward, last, num_steps = n_step_returns(steps["reward"], ends, valid, n, discount)
    complete = valid & (cut | (num_steps == n) | jnp.take_along_axis(ends, last, -1))
    made = {
        "obs": steps["obs"],
        "action": steps["action"],
        "reward": reward,
        "next_obs": steps["next_obs"] if n == 1 else _along_time(steps["next_obs"], last),
        "terminated": jnp.take_along_axis(steps["terminated"], last, -1),
        "truncated": jnp.take_along_axis(steps["truncated"], last, -1),
        "num_steps": num_steps.astype(jnp.uint8),
        "valid": complete,
    }
    return made, valid & ~complete


def _tail(steps: Arrays, waiting: jax.Array, length: int) -> Arrays:
    """The last `length` valid steps of every lane, right-aligned; valid are those that wait."""
    num_steps = steps["valid"].shape[-1]
    stop = num_steps - jnp.argmax(steps["valid"][..., ::-1], -1)
    index = stop[..., None] - length + jnp.arange(length)
    inside = jnp.clip(index, 0, num_steps - 1)
    tail = {name: _along_time(x, inside) for name, x in steps.items()}
    return {**tail, "valid": jnp.take_along_axis(waiting, inside, -1) & (index >= 0)}


def _along_time(x: jax.Array, index: jax.Array) -> jax.Array:
    """Entries of x [m, N, T, ...] at times index [m, N, L]."""
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 3)), 2)


def _written(replay: Replay, made: Arrays, rings: jax.Array) -> Replay:
    """With the valid entries of made [m, N, T, ...] in different rings [m], in order of time."""
    config, m = replay.config, len(rings)
    new = {k: jnp.swapaxes(x, 1, 2).reshape(m, -1, *x.shape[3:]) for k, x in made.items()}
    valid = new.pop("valid")
    rank, num = jnp.cumsum(valid, 1) - 1, jnp.sum(valid, 1, dtype=jnp.int32)
    # Of more than a ring holds, the last ones.
    kept = valid & (rank >= num[:, None] - config.size)
    place = rings[:, None] * config.size + (replay.heads[rings][:, None] + rank) % config.size
    nowhere = config.num_rings * config.size
    index = jnp.where(kept, place, nowhere).reshape(-1)
    rows = {
        name: x.at[index].set(new[name].reshape(-1, *x.shape[1:]), mode="drop")
        for name, x in replay.rows.items()
    }
    sizes, heads = replay.sizes[rings] + num, replay.heads[rings] + num
    return replace(
        replay,
        rows=rows,
        sizes=replay.sizes.at[rings].set(jnp.minimum(sizes, config.size)),
        heads=replay.heads.at[rings].set(heads % config.size),
        num_written=replay.num_written.at[rings].add(num.astype(jnp.uint32)),
    )


def _held(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ring and age of every transition, where rings hold so many."""
    rings = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    return rings, np.arange(len(rings)) - starts[rings]


@partial(jax.jit, donate_argnums=0)
def _filled(rows: Arrays, index: jax.Array, new: Arrays) -> Arrays:
    return {name: x.at[index].set(new[name]) for name, x in rows.items()}


def _check_shape(name: str, found: Any, expected: tuple[int, ...]) -> None:
    shape = np.shape(found)
    check(shape == expected, f"{name} is of shape {list(shape)}, not {list(expected)}")


def _check_memory(config: ReplayConfig, row: int) -> None:
    """Raise an AdaptaxError unless rows of so many bytes fit."""
    num, size = config.num_rings, config.size
    check(num * size < 2**31, f"a replay of {num} x {size} transitions: buffer_size is too large")
    needed, available = num * size * row, memory_available()
    if available is not None and needed > available:
        raise AdaptaxError(
            f"a replay of {num} x {size} transitions of {row} bytes needs "
            f"{needed / GIB:.1f} GiB, of which {available / GIB:.1f} GiB are available; "
            "a smaller buffer_size fits"
        )
