"""What Meta-World's packaged evaluator would say of the same episodes, to stand beside ours.

`metaworld.evaluation` steps several goals of a class side by side, lets success end an episode,
and counts the first episodes to end per class. Those are the successes: a lane that solves its
task is soon done and counts again, one that does not counts late or never.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SIDE_BY_SIDE = 20
"""Lanes of all classes together: the default `meta_batch_size` of `metaworld.make_ml_envs`."""


def packaged_success(
    classes: Sequence[str], solved: np.ndarray, lengths: np.ndarray
) -> dict[str, float]:
    """The success that it would report of each class.

    `classes` [M] of the tasks; `solved` and `lengths` [M, E]: whether an episode had success, and
    its steps up to the first or, without, to its end. Of a class's goals, as many as find place
    go side by side, and the first E episodes to end among them count; a last few goals that do not
    fill their places count as the part of the goals that they are.
    """
    names = list(dict.fromkeys(classes))
    num_lanes = max(1, SIDE_BY_SIDE // len(names))
    result = {}
    for name in names:
        rows = np.flatnonzero(np.array(classes) == name)
        batches = [rows[i : i + num_lanes] for i in range(0, len(rows), num_lanes)]
        found = [_first_to_end(solved[b], lengths[b]) for b in batches]
        result[name] = float(np.average(found, weights=[len(b) for b in batches]))
    return result


def _first_to_end(solved: np.ndarray, lengths: np.ndarray) -> float:
    """Success among the first E of all episodes [L, E] to end, each lane's one after another."""
    ends_at = np.cumsum(lengths, axis=1)
    first = np.argsort(ends_at.T.ravel(), kind="stable")  # at the same step lane by lane
    return float(solved.T.ravel()[first[: solved.shape[1]]].mean())
