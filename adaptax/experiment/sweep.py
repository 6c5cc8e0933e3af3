"""A sweep: the settings that an algorithm does best with, and how well it does on fresh seeds.

Optuna proposes settings, each of which is a trial: a group of runs over the same few seeds. What it
knows is in `study.db` of the sweep's folder, where only one process writes; the groups are programs
of their own. A trial's settings follow from the sweep's seed, its number and the trials before it.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import check_types, from_dict, to_dict
from adaptax.core.errors import AdaptaxError, DiskError, check
from adaptax.core.rng import named_generator
from adaptax.core.snapshot import LOCK
from adaptax.envs.registry import find_suite
from adaptax.experiment.build import (
    check_is_name,
    check_settings,
    default_run_dir,
    make_algorithm,
    make_suite,
    recorded_algorithm,
    recorded_suite,
)
from adaptax.experiment.choices import Metric, Where
from adaptax.experiment.console import say, shell_command
from adaptax.experiment.group import Group, checked_seeds, has_begun
from adaptax.experiment.group_processes import train_group
from adaptax.experiment.job import Job, job_of
from adaptax.experiment.jobs import Ended, Jobs, jobs
from adaptax.experiment.logger import after_adaptation, read_rows
from adaptax.experiment.recipe import find_recipe, limits_among, to_toml
from adaptax.experiment.run_dir import (
    EVALUATIONS,
    SWEEP,
    WINNER,
    locked,
    make_run_dir,
    names_in,
    refuse_link,
    write_whole,
)
from adaptax.experiment.statistics import student_interval
from adaptax.experiment.stop_signals import end_if_told, finish_iteration_on_signal
from adaptax.experiment.sweep_record import (
    Plan,
    Record,
    is_sweep,
    read_sweep,
    score_text,
    settings_in_words,
)
from adaptax.experiment.sweep_space import (
    Settings,
    checked_space,
    config_of,
    distributions,
    read_space,
    samples,
    settings_of,
    with_settings,
)
from adaptax.experiment.trainer_config import TrainerConfig
from adaptax.learning.schedules import over_the_run

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

STUDY = "study.db"
NOT_WRITTEN = ("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_BUSY")
"""Beginnings of SQLite's names for errors that are not the study's own."""
RECIPE = "recipe.toml"
"""The winner's settings."""
OF_A_RUN = {"run_dir", "seed", "quiet", "overwrite", "recipe", "num_cores", "trackers", "callbacks"}
"""Settings of the trainer that are a run's own, and no recipe's."""
NUM_WINNER_SEEDS = 5
POLL = 0.2
"""Seconds from one look at the trials to the next."""


def sweep(
    algorithm_name: str,
    suite_name: str,
    /,
    space: str | Path | Mapping[str, Any],
    *,
    trials: int = 50,
    seeds: Sequence[int] = range(3),
    winner_seeds: Sequence[int] | None = None,
    metric: Metric = "return",
    prune: bool = True,
    num_processes: int | None = None,
    on: Where = "here",
    algorithm: Mapping[str, Any] | None = None,
    suite: Mapping[str, Any] | None = None,
    **trainer: Any,
) -> Record:
    """Search a space of settings; what was found, as `sweep.json` has it.

    `space` is a file of TOML, or what it would hold. `algorithm` and `suite` are settings that all
    trials have, and a recipe's where they are not given, as in `train`; all others are the
    trainer's, whose seed is also that of the search. The sweep is in `run_dir`, by default
    runs/ALGORITHM-SUITE-sweep.
    """
    check_is_name(algorithm_name, "algorithm")
    check_is_name(suite_name, "suite")
    check_settings(algorithm=algorithm, suite=suite)
    recipe = find_recipe(trainer.get("recipe"), algorithm_name, suite_name)
    made = make_suite(suite_name, **recipe.settings("suite", suite or {}))
    limits = limits_among(trainer)
    settings = recipe.for_run(suite_name, limits).settings("algorithm", algorithm or {})
    trainer = {"recipe": recipe.name or None, **recipe.settings("trainer", trainer)}
    agent = make_algorithm(algorithm_name, made.spec, **settings)
    run_dir = trainer.pop("run_dir", default_run_dir(algorithm_name, suite_name, "sweep"))
    config = from_dict(TrainerConfig, {"run_dir": run_dir, **trainer}, where="trainer")
    plan = make_plan(
        job_of(agent, made, config),
        space,
        seeds=seeds,
        winner_seeds=winner_seeds,
        num_trials=trials,
        metric=metric,
        prune=prune,
        num_processes=num_processes,
        expected_iterations=recipe.expected_iterations(agent.config, suite_name, limits),
    )
    return Sweep(Path(run_dir), plan, on).run()


def make_plan(
    training: Job,
    space: str | Path | Mapping[str, Any],
    *,
    seeds: Sequence[int],
    winner_seeds: Sequence[int] | None,
    **others: Any,
) -> Plan:
    """A plan; a ConfigError where it cannot be carried out. By default fresh seeds are the next."""
    seeds = checked_seeds(seeds)
    check(len(seeds) > 1, "one seed never decides: give a sweep two seeds or more, --seeds 0:3")
    after = max(seeds) + 1
    if winner_seeds is None:
        winner_seeds = range(after, after + NUM_WINNER_SEEDS)
    fresh = checked_seeds(winner_seeds)
    used = sorted(set(seeds) & set(fresh))
    check(not used, f"the winner is trained on fresh seeds, but trials have {used} too")
    where = "the space"
    known = isinstance(space, (str, Path, Mapping))
    check(known, f"space: expected a dict or the path of a TOML file, not {space!r}")
    if not isinstance(space, Mapping):
        where, space = str(space), read_space(Path(space))
    plan = Plan(
        training=training,
        space=checked_space(space, training.algorithm, where),
        seeds=seeds,
        winner_seeds=fresh,
        **others,
    )
    metrics = get_args(Metric)
    check(plan.metric in metrics, f"metric must be one of {metrics}, not {plan.metric!r}")
    check_types(plan, "sweep")
    check(plan.num_trials > 0, f"trials must be greater than 0, not {plan.num_trials}")
    at_once = plan.num_processes is None or plan.num_processes > 0
    check(at_once, f"num_processes must be greater than 0, not {plan.num_processes}")
    trainer = training.trainer
    evaluated = trainer["evaluation_interval"] is not None
    check(evaluated, "a sweep compares evaluations: it needs an evaluation_interval")
    check(not trainer["overwrite"], "a sweep replaces nothing: choose another --run-dir")
    known = plan.metric != "success" or recorded_suite(**training.suite).spec.has_success
    check(known, f"{training.suite['name']} knows no success: take --metric return")
    return plan


class Sweep:
    """A plan in a folder, which one process carries out at a time."""

    def __init__(
        self, run_dir: Path, plan: Plan, where: Where = "here", quiet: bool | None = None
    ) -> None:
        """`quiet` is by default the trainer's."""
        _check_optuna()
        self.run_dir, self.plan, self.where = run_dir, plan, where
        self.quiet = plan.training.trainer["quiet"] if quiet is None else quiet
        self._jobs = jobs(where, plan.num_processes)
        self._interrupted = False
        self._pruned: set[int] = set()
        """Trials that are told to end."""
        self._sizes: dict[int, int] = {}
        """Bytes of evaluations of trials that have been looked at."""
        self._lost: dict[int, str] = {}
        """What ended trials that can go on."""
        self._warned: set[str] = set()
        """What trials have warned of."""

    def run(self) -> Record:
        """Begin, and go on to the end; what `sweep.json` holds then."""
        self._check_folder()
        self._check_trials()
        make_run_dir(self.run_dir)
        with locked(self.run_dir):
            self._write()
            return self._searched()

    def resume(self) -> Record:
        """Go on to the end: trials that were cut off, those that are missing, the winner."""
        with locked(self.run_dir):
            _, found = read_sweep(self.run_dir)
            return self._searched() if found is None else self._write(found)

    def _searched(self) -> Record:
        """The search to its end; an AdaptaxError where the study cannot be read or written."""
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        where = self.run_dir / STUDY
        try:
            return self._to_its_end()
        except (StorageInternalError, SQLAlchemyError) as error:
            kind = getattr(getattr(error, "orig", None), "sqlite_errorname", "")
            if isinstance(error, StorageInternalError) or kind.startswith(NOT_WRITTEN):
                raise DiskError(f"cannot write {where}; go on with `{self._way_on}`") from error
            raise AdaptaxError(
                f"cannot read {where}: remove it, and finished trials are read from their folders"
            ) from error

    def _check_folder(self) -> None:
        run_dir = self.run_dir
        if is_sweep(run_dir):
            raise AdaptaxError(
                f"{run_dir} holds a sweep already; go on with `{self._way_on}`, or choose another "
                "--run-dir"
            )
        if not names_in(run_dir) <= {LOCK, f"{SWEEP}.new"}:
            raise AdaptaxError(
                f"{run_dir} is not empty and holds no sweep; choose another --run-dir"
            )

    def _check_trials(self) -> None:
        """Raise an AdaptaxError where no trial can begin, by what all of them have in common.

        It looks at settings of the space until some can; what to warn of a trial says itself.
        """
        problem: AdaptaxError | None = None
        for settings in samples(self.plan.space):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    group = self._group(self._job(trial_name(0), settings, self.plan.seeds))
                    try:
                        group.check_start()
                    finally:
                        group.close()
                return
            except AdaptaxError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _write(self, found: Record | None = None) -> Record:
        record = {"plan": asdict(self.plan), "found": found}
        write_whole(self.run_dir / SWEEP, (json.dumps(record, indent=2) + "\n").encode())
        return record

    def _to_its_end(self) -> Record:
        self.study = self._opened()
        with finish_iteration_on_signal(self._break_off, self._parting), self._jobs as places:
            self._search(places)
        if self._interrupted:
            self._say_how_to_go_on()
            record = self._write()
            end_if_told()
            return record
        if self._lost:
            each = "; ".join(f"trial {number}: {why}" for number, why in self._lost.items())
            raise AdaptaxError(f"{each}; go on with `{self._way_on}`")
        winner = self._winner()
        if winner is None:
            return self._write()
        write_whole(self.run_dir / RECIPE, recipe_toml(self.plan, winner["settings"]).encode())
        return self._write({**self.found(), "winner": winner})

    def _opened(self) -> Study:
        """The study of the folder; an AdaptaxError where something in it leads elsewhere."""
        import optuna
        from sqlalchemy import URL

        trials = map(trial_name, range(self.plan.num_trials))
        for name in (STUDY, f"{STUDY}-journal", WINNER, *trials):
            refuse_link(self.run_dir / name)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = optuna.pruners.MedianPruner() if self.plan.prune else optuna.pruners.NopPruner()
        url = URL.create("sqlite", database=str(self.run_dir / STUDY))
        return optuna.create_study(
            storage=str(url),
            study_name="sweep",
            direction="maximize",
            pruner=pruner,
            load_if_exists=True,
        )

    def _search(self, places: Jobs) -> None:
        """Carry out all trials, those first that were cut off."""
        from optuna.trial import TrialState

        cut_off = [t.number for t in self.study.get_trials(states=(TrialState.RUNNING,))]
        self._fill(places, cut_off)
        while places.running:
            time.sleep(POLL)
            if self._interrupted:
                places.stop_all()
            for ended in places.ended():
                self._end(ended)
            for name in places.running:
                number = _number(name)
                news = number not in self._pruned and self._has_news(number)
                if news and self._is_hopeless(number):
                    self._prune(number)
                    places.stop(name)
            self._fill(places, cut_off)

    def _fill(self, places: Jobs, cut_off: list[int]) -> None:
        """Start trials as long as there is room for one."""
        while len(places.running) < places.size and not self._interrupted:
            if cut_off:
                self._start(places, cut_off.pop(0))
            elif len(self.study.trials) < self.plan.num_trials:
                self._start(places, self._ask())
            else:
                return

    def _ask(self) -> int:
        """The number of a new trial, which has all of its settings at once or does not exist."""
        import optuna

        trials = self.study.get_trials()
        # A sampler of its own, so that what it draws does not depend on what this process did.
        draw = named_generator(self.plan.training.trainer["seed"], "sweep", len(trials))
        sampler = optuna.samplers.TPESampler(seed=int(draw.integers(2**32)))
        scratch = optuna.create_study(direction="maximize", sampler=sampler)
        scratch.add_trials(trials)
        space = distributions(self.plan.space)
        params = scratch.ask(space).params
        state = optuna.trial.TrialState.RUNNING
        trial = optuna.trial.create_trial(state=state, params=params, distributions=space)
        self.study.add_trial(trial)
        return len(trials)

    def _trial(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]

    def _open_trial(self, number: int) -> Trial:
        """A trial to report to; Optuna has no public way to one that another process began."""
        from optuna.trial import Trial

        return Trial(self.study, self._trial(number)._trial_id)

    def settings(self, number: int) -> Settings:
        """Those of a trial, by their full names."""
        return settings_of(self._trial(number).params, self.plan.space)

    def _job(self, folder: str, settings: Settings, seeds: tuple[int, ...]) -> Job:
        """The training of a group in a folder of the sweep's, which goes on where it has begun."""
        training, run_dir = self.plan.training, self.run_dir / folder
        own = {"run_dir": str(run_dir), "quiet": True, "num_cores": None}
        return replace(
            training,
            algorithm=_algorithm(self.plan, settings),
            trainer={**training.trainer, **own},
            seeds=seeds,
            go_on=has_begun(run_dir),
        )

    def trial_job(self, number: int) -> Job:
        """The training of a trial, from where it stands."""
        return self._job(trial_name(number), self.settings(number), self.plan.seeds)

    @staticmethod
    def _group(job: Job, *, quiet: bool = True) -> Group:
        """The group that a job trains."""
        config = from_dict(TrainerConfig, {**job.trainer, "quiet": quiet})
        suite = recorded_suite(**job.suite)
        agent = recorded_algorithm(job.algorithm, suite.spec, None)
        return Group(config, job.seeds or (), agent, suite)

    def _start(self, places: Jobs, number: int) -> None:
        if self._is_hopeless(number):  # which it was found before its end was written down
            self._prune(number)
            return
        job = self.trial_job(number)
        self._say(f"trial {number} {'goes on' if job.go_on else 'begins'}: {self._words(number)}")
        places.start(f"trial {number}", job.program)

    def _has_news(self, number: int) -> bool:
        """Whether there are evaluations of a trial that have not been looked at."""
        logs = [folder / EVALUATIONS for folder in self.trial_job(number).folders]
        size = sum(log.stat().st_size for log in logs if log.exists())
        before, self._sizes[number] = self._sizes.get(number, 0), size
        return size != before

    def _is_hopeless(self, number: int) -> bool:
        """Report the evaluations of a trial, one after another; whether it is to end at one."""
        trial, reported = self._open_trial(number), self._trial(number).intermediate_values
        scores = evaluations(self.trial_job(number).folders, self.plan.metric)
        for iteration, own in sorted(scores.items()):
            if iteration < max(reported, default=0):
                continue
            if iteration not in reported:
                trial.report(sum(own) / len(own), iteration)
            if trial.should_prune():
                return True
        return False

    def _prune(self, number: int) -> None:
        from optuna.trial import TrialState

        self.study.tell(number, state=TrialState.PRUNED)
        self._pruned.add(number)
        trial = self._trial(number)
        self._say(f"trial {number} is pruned at iteration {trial.last_step}: {trial.value:.4g}")

    def _end(self, ended: Ended) -> None:
        """Write down what became of a trial."""
        from optuna.trial import TrialState

        number = _number(ended.name)
        ended.pass_on_warnings(self._warned)
        if number in self._pruned:
            return
        if ended.was_cut_off:
            if not self._interrupted:
                self._lost[number] = ended.problem or ""
            return
        problem, scores = ended.problem, list[float]()
        if problem is None:
            if self._is_hopeless(number):
                self._prune(number)
                return
            scores = last_scores(self.trial_job(number).folders, self.plan.metric)
            problem = None if scores else f"its last evaluation tells no {self.plan.metric}"
        if problem is not None:
            self._open_trial(number).set_user_attr("why", problem)
            self.study.tell(number, state=TrialState.FAIL)
            self._say(f"trial {number} failed: {problem}")
            return
        self._open_trial(number).set_user_attr("scores", scores)
        self.study.tell(number, sum(scores) / len(scores))
        best = self.study.best_trial
        text = f"trial {number}: {self.plan.metric} {score_text(figure(scores))}"
        self._say(f"{text} | best: trial {best.number}, {best.value:.4g}")

    def _winner(self) -> Record | None:
        """The best trial's settings on fresh seeds; None where that was interrupted."""
        number = self._best()
        settings = self.settings(number)
        job = self._job(WINNER, settings, self.plan.winner_seeds)
        self._say(f"the winner, trial {number}, on fresh seeds: {self._words(number)}")
        group = self._group(job, quiet=self.quiet)
        try:
            if not train_group(group, self.where, go_on=job.go_on):
                self._say_how_to_go_on()
                return None
        finally:
            group.close()
        return {
            "trial": number,
            "settings": settings,
            "searched": figure(self._trial(number).user_attrs["scores"]),
            "fresh": figure(last_scores(job.folders, self.plan.metric)),
        }

    def _best(self) -> int:
        with suppress(ValueError):
            return self.study.best_trial.number
        why = [t.user_attrs["why"] for t in self.study.trials if "why" in t.user_attrs]
        raise AdaptaxError(f"no trial of {self.run_dir} came to its end; the first: {why[0]}")

    def found(self) -> Record:
        """What is known of the trials."""
        from optuna.importance import get_param_importances

        importance: dict[str, float] | None = None
        with warnings.catch_warnings(), suppress(ValueError, RuntimeError, UserWarning):
            warnings.simplefilter("error", UserWarning)  # too few trials to tell
            importance = get_param_importances(self.study)
        return {
            "trials": [
                {
                    "number": trial.number,
                    "state": trial.state.name.lower(),
                    "settings": self.settings(trial.number),
                    "value": trial.value,
                    "iteration": trial.last_step,
                    **trial.user_attrs,
                }
                for trial in self.study.trials
            ],
            "importance": importance,
        }

    def _words(self, number: int) -> str:
        return settings_in_words(self.settings(number))

    def _say(self, line: str) -> None:
        if not self.quiet:
            say(line, sys.stdout)

    @property
    def _way_on(self) -> str:
        return shell_command("resume", self.run_dir)

    def _say_how_to_go_on(self) -> None:
        say(f"the sweep goes on with: {self._way_on}", sys.stderr)

    def _break_off(self) -> None:
        self._interrupted = True

    def _parting(self) -> str:
        """What an end at once says."""
        return f"interrupted; `{self._way_on}` goes on from the last snapshots"


def _check_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise AdaptaxError("sweeps need optuna: pip install 'adaptax[sweep]'") from error


def _number(name: str) -> int:
    """The number of the trial that a program of this name is."""
    return int(name.removeprefix("trial "))


def trial_name(number: int) -> str:
    """The name of a trial's folder."""
    return f"trial-{number:03d}"


def evaluations(folders: Sequence[Path], metric: Metric) -> dict[int, list[float]]:
    """By iteration, the scores of all seeds, where all have one; not those before training."""
    found = [
        {row["iteration"]: after_adaptation(row)[f"{metric}_mean"] for row in read_rows(path)}
        for path in (folder / EVALUATIONS for folder in folders)
    ]
    shared = set.intersection(*(set(own) for own in found)) - {0}
    scores = {iteration: [own[iteration] for own in found] for iteration in shared}
    return {iteration: own for iteration, own in scores.items() if None not in own}


def last_scores(folders: Sequence[Path], metric: Metric) -> list[float]:
    """The score of every seed at its last evaluation; none where one of them has none."""
    rows = [read_rows(folder / EVALUATIONS)[-1:] for folder in folders]
    scores = [after_adaptation(row)[f"{metric}_mean"] for own in rows for row in own]
    return scores if len(scores) == len(folders) and None not in scores else []


def figure(scores: Sequence[float]) -> Record:
    """The mean over seeds with Student's 95 % interval."""
    alone = len(scores) == 1
    interval = None if alone else [float(end) for end in student_interval(np.array(scores))]
    return {"mean": sum(scores) / len(scores), "ci": interval, "of_seeds": list(scores)}


def recipe_toml(plan: Plan, settings: Settings) -> str:
    """The plan's training with these `settings`, as the TOML of a recipe; defaults are left out."""
    training = plan.training
    algorithm, suite = training.algorithm, training.suite
    seeds = " ".join(map(str, plan.seeds))
    about = {
        "algorithm": algorithm["name"],
        "suites": [suite["name"]],
        "source": f"A sweep of {plan.num_trials} trials over seeds {seeds}.",
    }
    found = _algorithm(plan, settings)
    trainer = {name: x for name, x in training.trainer.items() if name not in OF_A_RUN}
    tables = {
        "recipe": about,
        "algorithm": _not_default(found, find_algorithm(algorithm["name"]).load()[1]()),
        "suite": _not_default(suite, find_suite(suite["name"]).load()[0]()),
        "trainer": _not_default(trainer, TrainerConfig(training.trainer["run_dir"])),
    }
    return to_toml(tables)


def _algorithm(plan: Plan, settings: Settings) -> Settings:
    """The plan's algorithm with these settings, its schedules as long as a trial may be."""
    found = with_settings(plan.training.algorithm, settings)
    if plan.expected_iterations is None:
        return found
    config = over_the_run(config_of(found), plan.expected_iterations)
    return {"name": found["name"], **to_dict(config)}


def _not_default(settings: Settings, config: Any) -> Settings:
    """The settings, and those within them, that are not the defaults of a config."""

    def differing(own: Settings, usual: Settings) -> Settings:
        found = {}
        for name, value in own.items():
            both = isinstance(value, dict) and isinstance(usual.get(name), dict)
            value = differing(value, usual[name]) if both else value
            if value != usual.get(name) and not (both and not value):
                found[name] = value
        return found

    settings = {name: value for name, value in settings.items() if name != "name"}
    return differing(settings, to_dict(config))
