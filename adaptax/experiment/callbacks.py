"""What a run calls while it trains: callbacks of one's own, early stopping, and trackers."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import EntryPoint
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from adaptax.core.config import as_integer, as_list
from adaptax.core.errors import ConfigError, check, one_line, unknown_name
from adaptax.core.plugins import described, loaded_class, plugins, sound_entries
from adaptax.experiment.own_parts import loading

if TYPE_CHECKING:
    from adaptax.experiment.trainer import Trainer
    from adaptax.experiment.trainer_config import TrainerConfig

ENTRY_POINTS = "adaptax.callbacks"
"""The group of installed packages' callbacks; each names MODULE:CLASS, made without arguments."""
CALLBACKS_WANTED = "callbacks: expected a list"
"""What is said of a callback, or the name of one, that stands alone."""
Row = Mapping[str, Any]
Added = Mapping[str, Any] | None
"""Figures and texts by name, for the row; None for nothing."""


class Callback:
    """What a run calls while it trains; override what you need, the rest does nothing.

    A method may end the run with `run.stop(why)`. An exception ends it as well.
    """

    in_step: ClassVar[bool] = True
    """Whether `on_row` comes before the next iteration begins. One that only looks says False: it
    gets all rows too, in order, but each after it is in the log, when the run may be further, since
    short iterations are several in one compiled call."""
    _at_first: dict[str, Any] | None = None
    """What `save` gave before the first run, with which any other begins too; the runs set it."""

    def on_start(self, run: Trainer) -> None:
        """Before anything else, also where the run goes on; `restore` has been called by then."""

    def on_row(self, run: Trainer, row: Row) -> Added:
        """After an iteration; what it returns is added to the row of `progress.jsonl`."""

    def on_evaluation(self, run: Trainer, row: Row) -> Added:
        """After an evaluation; what it returns is added to the row of `evaluations.jsonl`."""

    def on_video(self, run: Trainer, path: Path) -> None:
        """After `adaptax video` has written a video of the run: for trackers of `--trackers`."""

    def on_end(self, run: Trainer) -> None:
        """However the run ends."""

    def save(self) -> dict[str, Any]:
        """What a snapshot keeps of it: numbers, texts, arrays, lists and dicts of these."""
        return {}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take what `save` gave: that of the snapshot, or what it was before a new run began."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""What a run calls; no other method of a callback may begin with `on_`."""


class EarlyStopping(Callback):
    """Ends a run whose evaluations do not get better any more.

    An evaluation is better where its mean return after adaptation, of its test episodes or else of
    the last one, is more than `min_gain` above the best before; after `patience` in a row that are
    not, the run ends.
    """

    def __init__(self, patience: int = 5, min_gain: float = 0.0) -> None:
        said = "patience must be a whole number greater than 0"
        patience = as_integer(patience, said, range(1, sys.maxsize))
        known = isinstance(min_gain, Real) and min_gain >= 0
        check(known, f"min_gain must be a number that is not negative, not {min_gain!r}")
        self.patience, self.min_gain = patience, min_gain
        self.best, self.num_worse = -math.inf, 0

    def on_start(self, run: Trainer) -> None:
        """A run that was ended stays so."""
        interval = run.config.evaluation_interval
        check(interval is not None, "early stopping needs evaluations: set evaluation_interval")
        self._stop_if_due(run, is_start=True)

    def on_evaluation(self, run: Trainer, row: Row) -> None:
        """Count."""
        from adaptax.experiment.logger import after_adaptation

        figure = after_adaptation(row)["return_mean"]
        if figure > self.best + self.min_gain:
            self.best, self.num_worse = figure, 0
        else:
            self.num_worse += 1
        self._stop_if_due(run)

    def _stop_if_due(self, run: Trainer, *, is_start: bool = False) -> None:
        if self.num_worse < self.patience:
            return
        num, anyway = self.num_worse, ""
        last = "the last evaluation is" if num == 1 else f"the last {num} evaluations are"
        if is_start:
            again = loading(run.run_dir, run.recorded, more=", patience=None")
            anyway = f"; from Python it goes on all the same, with patience None: {again}.resume()"
        run.stop(f"{last} no better than {self.best:.4g}{anyway}")

    def save(self) -> dict[str, Any]:
        """The best figure, and evaluations since then."""
        return {"best": self.best, "num_worse": self.num_worse}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on counting."""
        self.best, self.num_worse = float(saved["best"]), int(saved["num_worse"])


def installed_callbacks(names: Iterable[str]) -> list[Callback]:
    """A callback of each name of an installed package's; a ConfigError where there is none."""
    return [_made(name) for name in dict.fromkeys(names)]


def all_callbacks() -> dict[str, type[Callback]]:
    """The classes of installed packages' callbacks, by name."""
    points = plugins(ENTRY_POINTS, _is_ours).values()
    return dict(sound_entries(points, lambda point: (point.name, _plugin(point))))


def _made(name: str) -> Callback:
    found = plugins(ENTRY_POINTS, _is_ours, name)
    if name not in found:
        others = list(plugins(ENTRY_POINTS, _is_ours))
        check(bool(others), f"unknown callback {name!r}: no installed package offers one")
        raise unknown_name("callback", name, others)
    callback = _plugin(found[name])
    try:
        return callback()
    except Exception as error:  # whatever somebody's constructor does
        what = f"{described(found[name])} cannot be made without arguments"
        raise ConfigError(f"{what}: {one_line(error)}") from error


def _plugin(point: EntryPoint) -> type[Callback]:
    callback: type[Callback] = loaded_class(point, Callback, "adaptax.Callback")
    return callback


def _is_ours(name: str) -> bool:
    return False  # ours have flags of their own


def _at_first(callback: Callback) -> dict[str, Any]:
    """What a callback saved before its first run: another run begins with that too."""
    saved = callback._at_first
    if saved is None:
        saved = copy.deepcopy(callback.save())
        object.__setattr__(callback, "_at_first", saved)  # it may be a frozen dataclass
    return saved


def as_callbacks(given: Iterable[Callback]) -> list[Callback]:
    """A list of callbacks, which may be gone through often; a ConfigError where it is none."""
    callbacks = as_list(given, CALLBACKS_WANTED)
    for callback in callbacks:
        what = f"a {type(callback).__name__}"
        if isinstance(callback, type):
            what = f"the class {callback.__name__}: call it"
        check(isinstance(callback, Callback), f"a callback is an adaptax.Callback, not {what}")
        _check_hooks(type(callback))
    return callbacks


def _check_hooks(kind: type[Callback]) -> None:
    """Raise a ConfigError where a method is named like a hook that there is not."""
    for name in dir(kind):
        if name.startswith("on_") and name not in HOOKS and callable(getattr(kind, name)):
            raise unknown_name(f"hook of the callback {kind.__name__}", name, HOOKS)


class Callbacks:
    """The callbacks of a run: those in step in the order given, then those that only look."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._all = callbacks = tuple(as_callbacks(callbacks))
        self._acting = [callback for callback in callbacks if callback.in_step]
        self._looking = [callback for callback in callbacks if not callback.in_step]
        self.save()  # so that what cannot be saved is said before training
        self._fresh = [_at_first(callback) for callback in self._all]

    def with_shipped(self, config: TrainerConfig) -> Callbacks:
        """With those that the trainer's settings name."""
        if not config.callbacks and not config.trackers and config.patience is None:
            return self
        from adaptax.experiment.trackers import trackers_of

        stopping = [] if config.patience is None else [EarlyStopping(config.patience)]
        installed = installed_callbacks(config.callbacks)
        return Callbacks([*self._all, *installed, *stopping, *trackers_of(config)])

    @property
    def one_by_one(self) -> bool:
        """Whether iterations have to be made one by one, since something acts on their rows."""
        return any(type(callback).on_row is not Callback.on_row for callback in self._acting)

    def restart(self) -> None:
        """Be as before any run."""
        for callback, saved in zip(self._all, self._fresh, strict=True):
            callback.restore(copy.deepcopy(saved))

    def save(self) -> dict[str, Any]:
        """What a snapshot keeps of each, by name."""
        from adaptax.core.snapshot import PLAIN, unfit, with_numbers

        saved = {name: callback.save() for name, callback in self._named().items()}
        for name, state in saved.items():
            wrong = unfit(state)
            check(wrong is None, f"{name}.save() gives {wrong}: give {PLAIN}")
        return with_numbers(saved)

    def restore(self, saved: Mapping[str, Any], run_dir: Path) -> None:
        """Take what a snapshot has; a warning names those that it has and this run has not."""
        named = self._named()
        for name in saved.keys() & named.keys():
            named[name].restore(saved[name])
        if missing := sorted(saved.keys() - named.keys()):
            warnings.warn(
                f"{run_dir} was trained with the callback {missing[0]} and goes on without; hand "
                "it over from Python: load_run(run_dir, callbacks=[...])",
                stacklevel=3,
            )

    @contextmanager
    def running(self, run: Trainer) -> Iterator[None]:
        """From `on_start` to `on_end`, which all that have started get."""
        with ExitStack() as stack:
            for callback in self._all:
                callback.on_start(run)
                stack.callback(callback.on_end, run)
            yield

    def on_row(self, run: Trainer, row: dict[str, Any], write: Callable[[Any], None]) -> None:
        """Let them add to a row, have it written, and let the others look at it.

        It is written where one of them fails, too: what the iteration has learned stays.
        """
        self._pass_on("on_row", run, row, write)

    def on_evaluation(
        self, run: Trainer, row: dict[str, Any], write: Callable[[Any], None]
    ) -> None:
        """The same with the row of an evaluation."""
        self._pass_on("on_evaluation", run, row, write)

    def _pass_on(
        self, hook: str, run: Trainer, row: dict[str, Any], write: Callable[[Any], None]
    ) -> None:
        """As the two say; all that look get the row, then the first failure is raised."""
        failed = list[Exception]()
        try:
            for callback in self._acting:
                _add(callback, row, getattr(callback, hook)(run, MappingProxyType(row)))
        except Exception as error:
            failed.append(error)
        write(row)
        for callback in self._looking:
            try:
                getattr(callback, hook)(run, MappingProxyType(row))
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def on_video(self, run: Trainer, path: Path) -> None:
        """Tell all of a video."""
        for callback in self._all:
            callback.on_video(run, path)

    def _named(self) -> dict[str, Callback]:
        """By the name of the class, with a number from the second of a class on."""
        named: dict[str, Callback] = {}
        for callback in self._all:
            kind = type(callback).__name__
            number = 1 + sum(type(other).__name__ == kind for other in named.values())
            named[kind if number == 1 else f"{kind}-{number}"] = callback
        return named


def _add(callback: Callback, row: dict[str, Any], added: Added) -> None:
    """Put what a callback returned into the row; a ConfigError where it does not belong there."""
    who = f"the callback {type(callback).__name__}"
    is_dict = added is None or isinstance(added, Mapping)
    check(is_dict, f"{who} must return figures and texts by name, not a {type(added).__name__}")
    fitting = dict[str, Any]()
    for name, value in (added or {}).items():
        value = value.item() if getattr(value, "shape", None) == () else value
        check(isinstance(name, str) and name not in row, f"{who} adds {name!r}, which the row has")
        fits = value is None or isinstance(value, str | int | float)
        check(fits, f"{who} adds {name!r}, a {type(value).__name__}: only numbers and texts can be")
        fitting[name] = value
    row.update(fitting)
