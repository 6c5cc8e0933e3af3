"""Random episodes of two tasks, laid out in lanes in more than one way, for tests of processors."""

from dataclasses import replace

import jax
import numpy as np

from adaptax.core.experience import Rollout

MEMBERS, LENGTHS, SIZE, LONGEST = 2, (3, 5, 4, 5), 2, 5
"""Tasks, and the lengths of each task's four episodes; those of LONGEST steps are cut."""


def rollout_of(episodes: list[list[dict[str, np.ndarray]]], per_lane: int, pad: int) -> Rollout:
    """Episodes of each task laid out so many to a lane, padding to a lane of `pad` steps."""
    members = []
    for own in episodes:
        lanes = [own[i : i + per_lane] for i in range(0, len(own), per_lane)]
        joined = [{k: np.concatenate([e[k] for e in lane]) for k in own[0]} for lane in lanes]
        members.append({k: np.stack([padded(lane[k], pad) for lane in joined]) for k in own[0]})
    arrays = {k: np.stack([member[k] for member in members]) for k in members[0]}
    return Rollout(**arrays, extras={"info/table": arrays["obs"][..., None] * np.ones(3)})


def padded(x: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])


def random_episodes(seed: int = 0) -> list[list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(seed)
    return [[episode(rng, length, m) for length in LENGTHS] for m in range(MEMBERS)]


def episode(rng: np.random.Generator, length: int, level: float) -> dict[str, np.ndarray]:
    obs = rng.normal(size=(length + 1, SIZE)).astype(np.float32)
    end = np.arange(length) == length - 1
    return {
        "obs": obs[:-1],
        "next_obs": obs[1:],
        "action": rng.normal(size=(length, 1)).astype(np.float32),
        "reward": (level + rng.normal(size=length)).astype(np.float32),
        "terminated": end & (length < LONGEST),
        "truncated": end & (length == LONGEST),
        "valid": np.ones(length, bool),
    }


LONG_LANES = rollout_of(random_episodes(), per_lane=2, pad=12)
SHORT_LANES = rollout_of(random_episodes(), per_lane=1, pad=6)
"""The same episodes, two to a lane and one to a lane."""


def by_episode(x, rollout: Rollout) -> list[np.ndarray]:
    """What valid entries of x [M, N, T] hold, episode after episode."""
    ends = np.asarray(rollout.terminated | rollout.truncated)[rollout.valid]
    return np.split(np.asarray(x)[rollout.valid], np.nonzero(ends)[0] + 1)[:-1]


def polluted(rollout: Rollout) -> Rollout:
    def pollute(x):
        mask = rollout.valid.reshape(rollout.valid.shape + (1,) * (x.ndim - 3))
        return np.where(mask, x, np.ones_like(x) if x.dtype == bool else x + 1e3)

    return replace(jax.tree.map(pollute, rollout), valid=rollout.valid)
