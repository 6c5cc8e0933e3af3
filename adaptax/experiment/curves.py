"""What runs say, as data: their settings, curves of return, and which are seeds of one group."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.core.config import as_list, flat
from adaptax.core.errors import AdaptaxError
from adaptax.envs.placement import CHANGE_NOTHING
from adaptax.experiment.evaluation import tasks_in_words
from adaptax.experiment.group import group_seeds
from adaptax.experiment.logger import Row, after_adaptation, by_last_protocol, read_rows
from adaptax.experiment.progress import episode_returns
from adaptax.experiment.run_dir import EVALUATIONS, PROGRESS, member_dir, read_config
from adaptax.experiment.statistics import student_interval

FOLDERS_WANTED = "expected a list of folders"
"""What is said of a folder that stands alone."""
SMOOTHING = 0.05
"""Share of a training curve that one point of its smoothed line is the mean of."""
MOST_NAMED = 3
"""Settings that the name of a group tells at most."""


@dataclass(frozen=True)
class Curve:
    """Means over x, all [n], and the 95 % interval of each."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Run:
    """What a run directory says about itself."""

    directory: Path
    name: str
    """Algorithm and suite."""
    settings: dict[str, Any]
    """`algorithm.NAME` and `suite.NAME`, nested settings joined by dots; `trainer.init_from`."""
    seed: int
    evaluations: list[Row]
    config: dict[str, Any]
    """What `config.json` holds."""

    @property
    def shaping(self) -> dict[str, Any]:
        """The settings but for those that change no data."""
        nothing = {f"suite.{name}" for name in CHANGE_NOTHING}
        return {n: v for n, v in self.settings.items() if n not in nothing}


@dataclass(frozen=True)
class RunGroup:
    """Runs of one training from several seeds, or a single one."""

    name: str
    """The algorithm, and what sets the group apart from others of it."""
    directory: Path
    """The group's folder, or the first run's."""
    runs: list[Run]

    def differences(self) -> list[str]:
        """The settings of the algorithm, and what they begin with, in which runs differ; lines."""
        lines = []
        for name in dict.fromkeys(n for run in self.runs for n in run.settings):
            values = {str(run.settings.get(name)): run.directory.name for run in self.runs}
            if not name.startswith("suite.") and len(values) > 1:
                lines.append(f"{name} is " + ", ".join(f"{v} in {d}" for v, d in values.items()))
        return lines


def load_runs(run_dirs: Sequence[Path]) -> list[Run]:
    """The runs, each directory once."""
    run_dirs = as_list(run_dirs, FOLDERS_WANTED)
    if not run_dirs:
        raise AdaptaxError("no run directory to plot")
    return [_load_run(path) for path in dict.fromkeys(Path(d).resolve() for d in run_dirs)]


def check_one_suite(runs: Sequence[Run]) -> None:
    """Raise an AdaptaxError where runs are on several suites, whose figures share no scale."""
    suites = {run.settings["suite.name"]: run.directory for run in runs}
    if len(suites) > 1:
        each = ", ".join(f"{suite} in {directory}" for suite, directory in suites.items())
        raise AdaptaxError(f"figures of several suites do not compare; take one at a time: {each}")


def load_groups(paths: Sequence[Path]) -> list[RunGroup]:
    """Each folder of a group as one; of other runs those that differ in their seed only.

    Runs of a group are in the order of their seeds, in whatever order they were named.
    """
    found = list[tuple[Path, list[Run]]]()
    loose = list[Path]()
    for path in dict.fromkeys(Path(p).resolve() for p in as_list(paths, FOLDERS_WANTED)):
        seeds = group_seeds(path)
        if seeds is None:
            loose.append(path)
        else:
            found.append((path, load_runs([member_dir(path, seed) for seed in seeds])))
    if loose or not found:
        found += [(runs[0].directory, runs) for _, runs in groups_of(load_runs(loose))]
    names = [_name_among(runs[0], [own[0] for _, own in found]) for _, runs in found]
    places: list[str | Path] = [path.name for path, _ in found]
    if len(set(places)) < len(places):
        places = [path for path, _ in found]
    return [
        RunGroup(
            name if names.count(name) == 1 else f"{name} ({place})",
            path,
            sorted(runs, key=lambda run: run.seed),
        )
        for name, place, (path, runs) in zip(names, places, found, strict=True)
    ]


def _name_among(run: Run, others: list[Run]) -> str:
    """The algorithm of a run, and the settings that set it apart, unless they are many."""
    name = "algorithm.name"
    differing = _differing(run, [o for o in others if o.settings[name] == run.settings[name]])
    return ", ".join([run.settings[name], *(differing if len(differing) <= MOST_NAMED else [])])


def _differing(run: Run, others: list[Run]) -> list[str]:
    """The settings in which others differ, as this run has them."""
    return [
        f"{name.rpartition('.')[2]}={value}"
        for name, value in run.shaping.items()
        if any(other.settings.get(name) != value for other in others)
    ]


NOT_OURS = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""What reading a configuration that no run wrote comes to: any JSON."""


def _load_run(directory: Path) -> Run:
    config = read_config(directory)
    try:
        settings = flat({part: config[part] for part in ("algorithm", "suite")})
        settings["trainer.init_from"] = config["trainer"].get("init_from")
        name = f"{settings['algorithm.name']} on {settings['suite.name']}"
        seed = int(config["seed"])
    except NOT_OURS as error:
        raise AdaptaxError(f"the configuration of {directory} is no run's: {error!r}") from error
    every = checked_rows(directory / EVALUATIONS, _is_evaluation)
    evaluations = by_last_protocol(every)
    if others := len(every) - len(evaluations):
        warnings.warn(
            f"{directory}: {others} of {len(every)} evaluations are by another protocol than the "
            "last, and left out",
            stacklevel=2,
        )
    return Run(directory, name, settings, seed, evaluations, config)


def checked_rows(path: Path, fits: Callable[[Row], bool]) -> list[Row]:
    """The rows of a log; an AdaptaxError names the first that does not fit."""
    rows = read_rows(path)
    for row in rows:
        if not fits(row):
            raise AdaptaxError(f"{path}, iteration {row['iteration']}: not a row that a run writes")
    return rows


def is_figure(value: Any) -> bool:
    """Whether a value of a row is a number that can be drawn, or none."""
    whole = isinstance(value, int) and abs(value) < 2**63
    return value is None or isinstance(value, float) or whole


def _is_training(row: Row) -> bool:
    """Whether a row of `progress.jsonl` has what curves are made of, in its types."""
    figures = [value for name, value in row.items() if name.startswith("train/return")]
    return row.get("num_steps") is not None and all(map(is_figure, [row["num_steps"], *figures]))


def _is_evaluation(row: Row) -> bool:
    """Whether a row of `evaluations.jsonl` has what curves are made of, in its types."""
    episodes, steps, over = (row.get(name) for name in ("episodes", "num_steps", "interval_over"))
    return (
        steps is not None
        and is_figure(steps)
        and isinstance(over, str | None)
        and isinstance(episodes, list)
        and len(episodes) > 0
        and all(isinstance(e, dict) and _is_episode(e) for e in episodes)
    )


def _is_episode(figures: dict[str, Any]) -> bool:
    index = figures.get("index")
    return index is not None and is_figure(index) and has_interval(figures, "return")


def has_interval(figures: dict[str, Any], of: str) -> bool:
    """Whether figures hold the mean of something, and the two ends of its interval or none."""
    if not {f"{of}_mean", f"{of}_ci"} <= figures.keys():
        return False
    mean, interval = figures[f"{of}_mean"], figures[f"{of}_ci"]
    pair = isinstance(interval, list) and len(interval) == 2 and all(map(is_figure, interval))
    return is_figure(mean) and (interval is None or pair)


def groups_of(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Runs by their settings, in the order given; what sets groups of a name apart is named."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(json.dumps(run.shaping, sort_keys=True), []).append(run)
    groups = []
    for group in members.values():
        run = group[0]
        differing = _differing(run, [g[0] for g in members.values() if g[0].name == run.name])
        distinct = len({r.seed for r in group}) == len(group)
        count = "1 seed" if len(group) == 1 else f"{len(group)} {'seeds' if distinct else 'runs'}"
        groups.append((", ".join([run.name, *differing, count]), group))
    return groups


ALL_EPISODES, LAST_EPISODE = "all episodes", "last episode on a task"
Returns = dict[str, tuple[np.ndarray, np.ndarray]]
"""Steps and returns, both [n], of some episodes of training."""


def training_returns(run: Run) -> Returns:
    """Returns of the first and last training episode on a task, or of all episodes."""
    returns = _all_training_returns(run)
    if LAST_EPISODE in returns:
        del returns[ALL_EPISODES]
    return returns


def _all_training_returns(run: Run) -> Returns:
    """Returns of all episodes, and of the first and last on a task where every row has them."""
    rows = checked_rows(run.directory / PROGRESS, _is_training)
    pairs = [episode_returns(row) for row in rows]
    every = [row.get("train/return") for row in rows]
    columns: dict[str, Sequence[float | None]] = {ALL_EPISODES: every}
    told = [last for (_, last), mean in zip(pairs, every, strict=True) if mean is not None]
    if told and all(last is not None for last in told):
        first, last = zip(*pairs, strict=True)
        columns |= {"first episode on a task": first, LAST_EPISODE: last}
    steps = np.array([row["num_steps"] for row in rows], np.float64)
    known = {name: np.array([y is not None for y in ys], bool) for name, ys in columns.items()}
    if not all(np.any(mask) for mask in known.values()):
        raise AdaptaxError(f"{run.directory} has no training return to plot yet ({PROGRESS})")
    return {
        name: (steps[mask], np.array(columns[name], np.float64)[mask])
        for name, mask in known.items()
    }


def training_curves(runs: Sequence[Run]) -> list[Curve]:
    """Training's return over steps, smoothed, of the last episode on a task where all have one."""
    each = [_all_training_returns(run) for run in runs]
    of = LAST_EPISODE if all(LAST_EPISODE in returns for returns in each) else ALL_EPISODES
    lines = [(returns[of][0], smoothed(returns[of][1])) for returns in each]
    return [Curve(x, y, y, y) for x, y in lines]


def evaluation_curve(run: Run, episode: int) -> Curve:
    """Held-out return over steps, of the episodes at index `episode` on each task; -1: the last."""
    steps = [row["num_steps"] for row in run.evaluations]
    return _curve(steps, [row["episodes"][episode] for row in run.evaluations])


def score_curve(run: Run, metric: str) -> Curve:
    """Return or success after adaptation over steps: of the test episodes, or of the last one."""
    steps = [row["num_steps"] for row in run.evaluations]
    return _curve(steps, [after_adaptation(row) for row in run.evaluations], metric)


def adaptation_curve(row: Row, metric: str = "return") -> Curve:
    """Return or success over the episodes on a task, of one evaluation."""
    return _curve([episode["index"] for episode in row["episodes"]], row["episodes"], metric)


def _curve(x: Sequence[float], episodes: Iterable[Row], of: str = "return") -> Curve:
    figures = [(e[f"{of}_mean"], *(e[f"{of}_ci"] or 2 * [e[f"{of}_mean"]])) for e in episodes]
    return Curve(np.array(x, np.float64), *np.array(figures, np.float64).T)


def over_seeds(curves: list[Curve]) -> Curve:
    """The mean of several curves on x that all cover; one as it is.

    With Student's 95 % interval, of two curves their range: the interval of two is so wide and
    so ragged that it hides everything.
    """
    if len(curves) == 1:
        return curves[0]
    x = np.unique(np.concatenate([c.x for c in curves]))
    x = x[(x >= max(c.x[0] for c in curves)) & (x <= min(c.x[-1] for c in curves))]
    if len(x) == 0:
        raise AdaptaxError("runs that differ only in their seed have no steps in common to average")
    y = np.stack([np.interp(x, c.x, c.mean) for c in curves])
    spread = student_interval(y) if len(y) > 2 else (np.min(y, axis=0), np.max(y, axis=0))
    return Curve(x, np.mean(y, axis=0), *spread)


def smoothed(y: np.ndarray) -> np.ndarray:
    """Means over a window around each of y [n], cut off at both ends."""
    half = int(SMOOTHING * len(y) / 2)
    total = np.concatenate([[0.0], np.cumsum(y)])
    start = np.maximum(np.arange(len(y)) - half, 0)
    stop = np.minimum(np.arange(len(y)) + half + 1, len(y))
    return np.asarray((total[stop] - total[start]) / (stop - start))


def tasks_of(runs: list[Run]) -> str:
    """What the last evaluations of runs were on."""
    return tasks_of_all(run.evaluations[-1] for run in runs)


def tasks_of_all(evaluations: Iterable[Row]) -> str:
    """What evaluations were on, in words that hold for each of them."""
    words = {tasks_in_words(row) for row in evaluations}
    return words.pop() if len(words) == 1 else "tasks of the evaluation"


def interval_words(groups: Sequence[list[Run]], held_out: bool) -> str:
    """What is shaded around the curves of groups, as the end of a title."""
    sizes = [len(group) for group in groups]
    rows = [g[0].evaluations[-1] for g in groups if len(g) == 1 and held_out]
    rows = [row for row in rows if row["episodes"][-1]["return_ci"] is not None]
    over = {row.get("interval_over", "tasks") for row in rows}
    meanings = {
        "95 % interval over seeds": max(sizes) > 2,
        "range of two seeds": 2 in sizes,
        "95 % interval over tasks": "tasks" in over,
        "95 % interval over episodes": "episodes" in over,
        "95 % interval over repeats": "repeats" in over,
    }
    present = [meaning for meaning, occurs in meanings.items() if occurs]
    return f"; shaded: {', '.join(present)}" if present else ""
