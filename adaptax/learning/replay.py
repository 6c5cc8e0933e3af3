"""Replay: transitions kept to learn from many times, in one ring for each of M tasks.

The one thing that an algorithm's state holds and that changes in place: copying a million
transitions at every step would cost more than learning from them. `Algorithm.iteration` therefore
leaves the replay of the state it was given as that of the state it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from adaptax.core.errors import check
from adaptax.core.experience import Rollout, Transitions
from adaptax.core.spec import EnvSpec
from adaptax.functional.returns import n_step_returns
from adaptax.learning.replay_rows import Arrays, Fields, make_rows


@dataclass(frozen=True)
class ReplayConfig:
    """How much is kept, and of what."""

    size: int
    """Transitions that a ring holds; the oldest make room for new ones."""
    num_rings: int = 1
    """M: one for each task, filled and sampled apart."""
    n_step: int = 1
    """Rewards that a transition sums up, fewer where its episode ends before."""
    discount: float = 0.99


class Replay:
    """M rings; `add` writes to them in place, `sample` draws uniformly from what they hold.

    A transition of several steps waits for the rewards it lacks until `add` brings them.
    """

    def __init__(self, config: ReplayConfig, spec: EnvSpec) -> None:
        self.config, self.spec = config, spec
        self._rows = make_rows(_fields(spec), config.num_rings, config.size)
        self._clear()

    def _clear(self) -> None:
        self.sizes = np.zeros(self.config.num_rings, np.int64)
        """[M] transitions that each ring holds."""
        self.num_added = np.zeros(self.config.num_rings, np.int64)
        """[M] steps that came, those that wait for their rewards included."""
        self.reward_moments = np.zeros(3)
        """Number, mean and sum of squared deviations of all rewards that came."""
        self._heads = np.zeros(self.config.num_rings, np.int64)
        self._waiting: Arrays = {}
        self._waiting_rings = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Transitions in all rings."""
        return int(self.sizes.sum())

    @property
    def reward_std(self) -> float:
        """Standard deviation of all rewards that came; 1 where they do not vary."""
        count, _, squares = self.reward_moments
        return float(np.sqrt(squares / count)) if squares > 0 else 1.0

    def clear(self, rings: np.ndarray | None = None) -> None:
        """Forget the transitions of some rings, of all by default."""
        if rings is None:
            self._clear()
        else:
            self.sizes[rings] = self._heads[rings] = 0
            if self._waiting:
                self._waiting["valid"][np.isin(self._waiting_rings, rings)] = False

    def add(
        self, rollout: Rollout, rings: np.ndarray | None = None, *, goes_on: bool = False
    ) -> None:
        """Write a rollout's valid steps: member i's to ring rings[i], or all to the only ring.

        `goes_on`: its lanes start where those of the last rollout stopped, so that its rewards
        belong to the transitions that wait for them.
        """
        steps = _steps(rollout, None if rings is None else len(rings))
        rings = np.zeros(1, np.int64) if rings is None else np.asarray(rings)
        self._count(steps, rings)
        if self._waiting and goes_on:
            steps = {k: np.concatenate([self._waiting[k], x], 2) for k, x in steps.items()}
        elif self._waiting:
            self._write(_transitions(self._waiting, self.config, cut=True)[0], self._waiting_rings)
        made, self._waiting = _transitions(steps, self.config, cut=False)
        self._waiting_rings = rings
        self._write(made, rings)

    def rows_for(self, key: jax.Array, shape: tuple[int, ...], rings: np.ndarray) -> np.ndarray:
        """Places [*shape] of transitions, uniform over what each ring of `rings` [*shape] holds."""
        held = self.sizes[rings]
        check(bool(np.all(held > 0)), "a ring without transitions cannot be sampled")
        return np.asarray(_draw(key, shape, held.astype(np.int32)))

    def sample(self, key: jax.Array, num_updates: int, batch_size: int) -> Transitions:
        """Minibatches [K, B, ...] from the only ring, drawn with replacement."""
        rings = np.zeros((num_updates, batch_size), np.int64)
        return self.read(rings, self.rows_for(key, rings.shape, rings))

    def sample_rings(self, key: jax.Array, rings: np.ndarray, batch_size: int) -> Transitions:
        """Minibatches [K, m, B, ...], drawn with replacement from the `rings` [K, m]."""
        spread = np.broadcast_to(np.asarray(rings)[..., None], (*np.shape(rings), batch_size))
        return self.read(spread, self.rows_for(key, spread.shape, spread))

    def read(self, rings: np.ndarray, rows: np.ndarray) -> Transitions:
        """The transitions [...] at places rows [...] of rings [...]."""
        fields = self._rows.read(rings, rows)
        discount = self.config.discount ** fields.pop("num_steps").astype(np.float32)
        return Transitions(**fields, discount=discount)

    def save(self) -> Arrays:
        """What it holds, no more: every array that it is made of."""
        counters = np.stack([self.sizes, self._heads, self.num_added])
        saved = {"counters": counters, "reward_moments": self.reward_moments}
        if len(self):
            used = self._rows.first(int(self.sizes.max()))
            saved |= {f"rows/{name}": x for name, x in used.items()}
        if self._waiting:
            saved |= {f"waiting/{name}": x for name, x in self._waiting.items()}
            saved["waiting_rings"] = self._waiting_rings
        return {name: np.asarray(x) for name, x in saved.items()}

    def restore(self, saved: Arrays) -> Replay:
        """A replay with the settings of this one that holds what `save` gave."""
        other = Replay(self.config, self.spec)
        fits = saved["counters"].shape[1] == self.config.num_rings
        check(
            fits and int(saved["counters"][0].max()) <= self.config.size,
            f"the saved replay has {saved['counters'].shape[1]} rings of up to "
            f"{int(saved['counters'][0].max())} transitions; this one has "
            f"{self.config.num_rings} rings of {self.config.size}",
        )
        other.sizes, other._heads, other.num_added = (x.copy() for x in saved["counters"])
        other.reward_moments = np.array(saved["reward_moments"])
        part = _parts(saved)
        if "rows" in part:
            other._rows.fill(part["rows"])
        if "waiting" in part:
            other._waiting, other._waiting_rings = part["waiting"], saved["waiting_rings"]
        return other

    def _count(self, steps: Arrays, rings: np.ndarray) -> None:
        """Bring counters and the moments of rewards up to date (Chan et al. 1979, eq. 1.5)."""
        self.num_added[rings] += steps["valid"].sum((1, 2))
        rewards = steps["reward"][steps["valid"]].astype(np.float64)
        if not len(rewards):
            return
        count, mean, squares = self.reward_moments
        total, shift = count + len(rewards), rewards.mean() - mean
        squares += np.square(rewards - rewards.mean()).sum()
        squares += shift**2 * count * len(rewards) / total
        self.reward_moments = np.array([total, mean + shift * len(rewards) / total, squares])

    def _write(self, made: Arrays, rings: np.ndarray) -> None:
        """Write the valid entries of made [m, N, T, ...], in the order of time."""
        in_time = {name: np.swapaxes(x, 1, 2) for name, x in made.items()}
        valid = in_time.pop("valid")
        for i, ring in enumerate(rings):
            new = {name: x[i][valid[i]][-self.config.size :] for name, x in in_time.items()}
            num = len(new["reward"])
            places = (self._heads[ring] + np.arange(num)) % self.config.size
            self._rows.write(int(ring), places, new)
            self._heads[ring] = (self._heads[ring] + num) % self.config.size
            self.sizes[ring] = min(self.sizes[ring] + num, self.config.size)


def _fields(spec: EnvSpec) -> Fields:
    """Shape and type of what a transition consists of."""
    return {
        "obs": ((spec.observation_size,), np.float32),
        "action": (spec.action.shape, spec.action.dtype),
        "reward": ((), np.float32),
        "next_obs": ((spec.observation_size,), np.float32),
        "terminated": ((), bool),
        "num_steps": ((), np.uint8),
    }


@partial(jax.jit, static_argnums=1)
def _draw(key: jax.Array, shape: tuple[int, ...], held: jax.Array) -> jax.Array:
    return jax.random.randint(key, shape, 0, held)


def _steps(rollout: Rollout, num_members: int | None) -> Arrays:
    """What is kept of a rollout, [m, N, T, ...]; all members as lanes of one if not given."""
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid")
    steps = {name: np.asarray(getattr(rollout, name)) for name in names}
    if num_members is None:
        return {name: x.reshape(1, -1, *x.shape[2:]) for name, x in steps.items()}
    check(
        len(steps["valid"]) == num_members,
        f"{num_members} rings for a rollout of {len(steps['valid'])} members",
    )
    return steps


def _transitions(steps: Arrays, config: ReplayConfig, *, cut: bool) -> tuple[Arrays, Arrays]:
    """From single steps [m, N, T, ...]: transitions alike, and the steps that still wait.

    `cut`: none wait; those that lack rewards are made of fewer, from the last one's successor on.
    """
    n = config.n_step
    ends = steps["terminated"] | steps["truncated"]
    reward, last, num_steps = n_step_returns(
        steps["reward"], ends, steps["valid"], n, config.discount
    )
    terminated = np.take_along_axis(steps["terminated"], last, -1)
    complete = steps["valid"] & (cut | (num_steps == n) | np.take_along_axis(ends, last, -1))
    made = {
        "obs": steps["obs"],
        "action": steps["action"],
        "reward": reward,
        "next_obs": steps["next_obs"] if n == 1 else _along_time(steps["next_obs"], last),
        "terminated": terminated,
        "num_steps": num_steps.astype(np.uint8),
        "valid": complete,
    }
    return made, {} if n == 1 or cut else _tail(steps, steps["valid"] & ~complete, n - 1)


def _tail(steps: Arrays, waiting: np.ndarray, length: int) -> Arrays:
    """The last `length` valid steps of every lane, right-aligned; valid are those that wait."""
    num_steps = steps["valid"].shape[-1]
    stop = num_steps - np.argmax(steps["valid"][..., ::-1], -1)
    index = stop[..., None] - length + np.arange(length)
    inside = np.clip(index, 0, num_steps - 1)
    tail = {name: _along_time(x, inside) for name, x in steps.items()}
    return {**tail, "valid": np.take_along_axis(waiting, inside, -1) & (index >= 0)}


def _along_time(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Entries of x [m, N, T, ...] at times index [m, N, L]."""
    return np.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 3)), 2)


def _parts(saved: Arrays) -> dict[str, Arrays]:
    """Arrays named PART/NAME as {PART: {NAME: array}}."""
    parts: dict[str, Arrays] = {}
    for name, x in saved.items():
        part, _, rest = name.partition("/")
        if rest:
            parts.setdefault(part, {})[rest] = np.asarray(x)
    return parts
