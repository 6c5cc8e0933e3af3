"""The command line. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, fields, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptax.core.compilation import keep_compiled_programs
from adaptax.core.config import to_dict
from adaptax.core.errors import (
    AdaptaxError,
    ConfigError,
    check,
    unknown_name,
)
from adaptax.core.imports import permit
from adaptax.experiment.arguments import (
    CompareArgs,
    DoctorArgs,
    EvaluateArgs,
    ExportArgs,
    ImportArgs,
    ListArgs,
    PlotArgs,
    ReportArgs,
    ResumeArgs,
    SweepArgs,
    TrainArgs,
    VideoArgs,
    flag_value,
    full_flag,
    parse,
)
from adaptax.experiment.console import say, settle, shell_command
from adaptax.experiment.process import in_one_line, set_up_process
from adaptax.experiment.stop_signals import (
    INTERRUPTED,
    end_process,
    interrupts_are_raised,
    kill_workers,
    own_process,
)

if TYPE_CHECKING:
    from adaptax.experiment.recipe import Recipe
    from adaptax.experiment.trainer import Trainer

USAGE = """usage: adaptax COMMAND ...

  list                             algorithms, task suites, recipes
  train ALGORITHM SUITE            train, for example: adaptax train rl2-ppo half-cheetah-vel
  sweep ALGORITHM SUITE            which settings do best: adaptax sweep ppo cartpole --space FILE
  resume RUN_DIR                   go on exactly where the newest snapshot stands
  evaluate RUN_DIR                 held-out tasks: return per episode of adaptation
  plot RUN_DIR [RUN_DIR ...]       learning and adaptation curves
  compare GROUP [GROUP ...]        groups of seeds: scores, intervals, which beats which
  report GROUP [GROUP ...]         one page of HTML: curves, tasks, videos, settings
  video RUN_DIR                    an episode before and one after adaptation, side by side
  export RUN_DIR DIR               a folder for others: weights, settings, figures, a card
  import DIR RUN_DIR               a run directory of such a folder
  doctor                           versions, cores, measured steps per second

RUN_DIR may be pretrained:NAME, an agent that comes along: adaptax evaluate pretrained:bandit
`adaptax COMMAND --help` tells its flags; `adaptax train ALGORITHM SUITE --help` all settings.
`adaptax --version` tells which this is."""
TWO_NAMES_USAGE = """usage: adaptax {command} ALGORITHM SUITE [flags]

For example: adaptax {command} {example}
`adaptax {command} ALGORITHM SUITE --help` tells the flags of this algorithm and this suite.
"""
NOT_EXACT = "may not continue bit for bit"
EXAMPLES = {
    "train": "rl2-ppo half-cheetah-vel --seed 1",
    "sweep": "ppo cartpole --space space.toml",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; an error that a person can act on is one line on stderr and exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    command = args[0] if args else "--help"
    if argv is None:
        own_process()
    try:
        _obey(command, args)
    except SystemExit as stop:
        if argv is None and stop.code == INTERRUPTED:
            end_process()
        raise


def _obey(command: str, args: list[str]) -> None:
    """Run a command."""
    with in_one_line(trains=command in TRAINING and not HELP.intersection(args)):
        if command in HELP:
            print(USAGE)
        elif command == "--version":
            from importlib.metadata import version

            print(f"adaptax {version('adaptax')}")
        elif command in COMMANDS:
            if command in COMPILING:
                keep_compiled_programs()
            if command in WRITING and not HELP.intersection(args):
                if command in COMPILING:
                    import jax  # noqa: F401 - before an interrupt may be raised in its midst
                interrupts_are_raised()
            COMMANDS[command](args[1:])
        else:
            raise unknown_name("command", command, COMMANDS)


def list_command(args: list[str]) -> None:
    """`adaptax list`."""
    options = parse(ListArgs, args, "adaptax list")
    if options.json:
        print(json.dumps({**_names(), "recipes": _recipes()}, indent=2))
    elif options.recipes:
        for recipe in _recipes():
            print(f"{recipe['name']:<26} {recipe['algorithm']} {' '.join(recipe['suites'])}")
    else:
        _print_names()


def train_command(args: list[str]) -> None:
    """`adaptax train`."""
    from adaptax.algorithms.registry import find_algorithm
    from adaptax.envs.registry import find_suite, module_of

    names = _two_names("train", args)
    if names is None:
        return
    permit(module_of(names[1]))
    algorithm_class, _ = find_algorithm(names[0]).load()
    _, make = find_suite(names[1]).load()

    from adaptax.experiment.build import train_by_recipe, with_config
    from adaptax.experiment.trainer import Trainer

    recipe, options = train_options(*names, args[2:])
    several = options.seeds is not None
    check(options.on == "here" or several, f"{TOGETHER}: say which, for example --seeds 0:5")
    seed = flag_value([full_flag(word, {"seed"}) for word in args[2:]], "--trainer.seed")
    check(not several or seed is None, "train takes --seed or --seeds, not both")
    set_up_process(options.trainer.num_cores)
    suite = with_config(make, options.suite)
    algorithm = algorithm_class(options.algorithm, suite.spec)
    trainer: Any
    if options.seeds is None:
        trainer = Trainer(options.trainer, algorithm, suite)
        train = trainer.run
    else:
        from adaptax.experiment.group import Group, parse_seeds
        from adaptax.experiment.group_processes import train_group

        trainer = Group(options.trainer, parse_seeds(options.seeds), algorithm, suite)
        train = partial(train_group, trainer, options.on)
    _to_its_end(trainer, partial(train_by_recipe, trainer, recipe, names[1], train))


def _two_names(command: str, args: list[str]) -> tuple[str, str] | None:
    """The algorithm and the suite that a command begins with; None where it is asked for help."""
    from adaptax.algorithms.registry import ALGORITHMS

    names = [arg for arg in args[:2] if not arg.startswith("-")]
    if len(names) == 2:
        first, second = names
        swapped = second in ALGORITHMS and first not in ALGORITHMS
        check(not swapped, f"the algorithm comes first: adaptax {command} {second} {first} ...")
        return first, second
    if not HELP.intersection(args):
        raise ConfigError(
            f"{command} takes an algorithm and a suite, then flags: adaptax {command} ALGORITHM "
            "SUITE ..."
        )
    print(TWO_NAMES_USAGE.format(command=command, example=EXAMPLES[command]))
    _print_names("algorithms", "suites")
    return None


def train_options(
    algorithm: str,
    suite: str,
    args: Sequence[str],
    more: type[Any] = TrainArgs,
    command: str = "train",
) -> tuple[Recipe, Any]:
    """What `train` takes after the names: all settings, and the fields of `more`.

    What no flag says is a recipe's, which comes with it, or the default.
    """
    from adaptax.algorithms.registry import find_algorithm
    from adaptax.core.config import from_dict
    from adaptax.envs.registry import find_suite
    from adaptax.experiment.build import default_run_dir
    from adaptax.experiment.recipe import (
        LIMITS,
        NO_VALUE,
        find_recipe,
        limits_among,
        without_limits,
    )
    from adaptax.experiment.trainer_config import TrainerConfig

    run_dir = default_run_dir(algorithm, suite, "sweep" if command == "sweep" else "run")
    short = {f.name for f in fields(TrainerConfig)}
    flags = [full_flag(word, short) for word in args]
    asked = flag_value(flags, "--trainer.recipe")
    recipe = find_recipe(None if asked == "None" else asked, algorithm, suite)
    given = [flag_value(flags, f"--trainer.{name}") for name in LIMITS]
    trainer = recipe.settings("trainer", {"recipe": recipe.name or None})
    if any(word not in (None, NO_VALUE) for word in given):
        trainer = without_limits(trainer)

    def parsed(recipe: Recipe) -> Any:
        configs = {
            "trainer": from_dict(TrainerConfig, {"run_dir": run_dir, **trainer}),
            "algorithm": from_dict(find_algorithm(algorithm).load()[1], recipe.algorithm),
            "suite": from_dict(find_suite(suite).load()[0], recipe.suite),
        }
        rooms = [(name, type(config), field(default=config)) for name, config in configs.items()]
        settings: type[Any] = make_dataclass("Settings", rooms, bases=(more,), frozen=True)
        settings.__doc__ = (
            f"{command.capitalize()} {algorithm} on {suite}. The trainer's flags also go without "
            "`trainer.`."
        )
        return parse(settings, flags, f"adaptax {command} {algorithm} {suite}")

    options = parsed(recipe)
    if options.trainer.recipe is None and recipe.name:  # `--recipe None` asks for it, too
        options = replace(options, trainer=replace(options.trainer, recipe=recipe.name))
    limits = limits_among(to_dict(options.trainer))
    for_run = recipe.for_run(suite, limits)
    if for_run.algorithm != recipe.algorithm:
        options = replace(options, algorithm=parsed(for_run).algorithm)
    if command == "sweep":  # whose trials have lengths of their own
        return recipe, options
    return recipe, replace(options, algorithm=recipe.timed(options.algorithm, suite, limits))


def sweep_command(args: list[str]) -> None:
    """`adaptax sweep`."""
    names = _two_names("sweep", args)
    if names is None:
        return
    _, options = train_options(*names, args[2:], SweepArgs, "sweep")
    if options.space is None:
        raise ConfigError("sweep needs a space: --space FILE; see docs/sweeps.md")
    set_up_process(options.trainer.num_cores)

    from adaptax.experiment.group import parse_seeds
    from adaptax.experiment.sweep import sweep

    fresh = options.winner_seeds
    record = sweep(
        *names,
        options.space,
        trials=options.trials,
        seeds=parse_seeds(options.seeds),
        winner_seeds=None if fresh is None else parse_seeds(fresh),
        metric=options.metric,
        prune=options.prune,
        num_processes=options.num_processes,
        on=options.on,
        algorithm=to_dict(options.algorithm),
        suite=to_dict(options.suite),
        **to_dict(options.trainer),
    )
    _print_sweep(record, Path(record["plan"]["training"]["trainer"]["run_dir"]))


def _print_sweep(record: dict[str, Any], run_dir: Path) -> None:
    """What a sweep has found, where it has come to its end."""
    from adaptax.experiment.run_dir import SWEEP
    from adaptax.experiment.sweep import RECIPE
    from adaptax.experiment.sweep_record import in_words

    if record["found"] is not None:
        for line in in_words(record):
            say(line, sys.stdout)
        following = shell_command("report", run_dir)
        say(f"wrote {run_dir / SWEEP} and {run_dir / RECIPE}; next: {following}", sys.stdout)


def resume_command(args: list[str]) -> None:
    """`adaptax resume`."""
    options = parse(ResumeArgs, args, "adaptax resume")
    permit(options.imports)
    changes: dict[str, Any] = {"quiet": options.quiet}
    from adaptax.experiment.build import load_group, recorded_trainer
    from adaptax.experiment.group import begun_member, group_seeds
    from adaptax.experiment.group_processes import train_group
    from adaptax.experiment.pretrained import is_pretrained, run_path
    from adaptax.experiment.provenance import MACHINE
    from adaptax.experiment.recipe import LIMITS
    from adaptax.experiment.sweep_record import is_sweep
    from adaptax.experiment.weights import not_resumable

    limits = {name: getattr(options, name) for name in LIMITS}
    if any(limit is not None for limit in limits.values()):
        changes |= limits
    run_dir = run_path(options.run_dir)
    if is_pretrained(run_dir):
        raise ConfigError(not_resumable(options.run_dir))
    if is_sweep(run_dir):
        _resume_sweep(options, run_dir)
        return
    changes["num_workers"] = options.num_workers
    seeds = group_seeds(run_dir)
    check(options.on == "here" or seeds is not None, f"{TOGETHER}, and {run_dir} is one run")
    first = run_dir if seeds is None else begun_member(run_dir, seeds)
    set_up_process(_cores_for(run_dir, recorded_trainer(first).num_cores))
    if seeds is not None:
        group = load_group(run_dir, **changes)
        by_process = options.on != "here" or not group.in_one_program  # each with a core
        names = [name for name in MACHINE if not (by_process and name == "num_cores")]
        _warn_of_differences(first, group.members[0].suite, NOT_EXACT, names)
        _to_its_end(group, lambda: train_group(group, options.on, go_on=True))
        return
    trainer = _load(options.run_dir, NOT_EXACT, MACHINE, **changes)
    _to_its_end(trainer, trainer.resume)


def _resume_sweep(options: ResumeArgs, run_dir: Path) -> None:
    from adaptax.experiment.recipe import LIMITS
    from adaptax.experiment.sweep import Sweep
    from adaptax.experiment.sweep_record import read_sweep

    given = [name for name in (*LIMITS, "num_workers") if getattr(options, name) is not None]
    check(not given, f"{run_dir} is a sweep, which goes on as it was planned: only --on, --quiet")
    plan, _ = read_sweep(run_dir)
    set_up_process(_cores_for(run_dir, plan.training.trainer["num_cores"]))
    _print_sweep(Sweep(run_dir, plan, options.on, options.quiet).resume(), run_dir)


def evaluate_command(args: list[str]) -> None:
    """`adaptax evaluate`."""
    options = parse(EvaluateArgs, args, "adaptax evaluate")
    permit(options.imports)
    from adaptax.core.devices import check_platform
    from adaptax.experiment.group import group_seeds
    from adaptax.experiment.pretrained import run_path

    check_platform()
    seeds = group_seeds(run_path(options.run_dir))
    if seeds is None:
        _evaluate(options)
    else:
        _evaluate_members(options, seeds)


@contextlib.contextmanager
def _to_evaluate(options: EvaluateArgs, run_dir: str) -> Iterator[Trainer]:
    """A run with what it learned, to be evaluated as the options say; closed afterwards."""
    from adaptax.experiment.build import recorded_trainer
    from adaptax.experiment.evaluator import LEFT_OUT_OF_PROTOCOLS
    from adaptax.experiment.pretrained import run_path
    from adaptax.experiment.run_dir import read_config

    path = run_path(run_dir)
    protocol = to_dict(recorded_trainer(path).evaluation)
    given = {name: getattr(options, name) for name in protocol}
    given = {name: value for name, value in given.items() if value is not None}
    protocol |= given
    found = "may not compare with what it was"
    trainer = _load(run_dir, found, ("task_set", "device"), evaluation=protocol)
    if then := read_config(path).get("protocol"):
        then = {**LEFT_OUT_OF_PROTOCOLS, **then}
        for name, now in {**LEFT_OUT_OF_PROTOCOLS, **trainer.protocol()}.items():
            if name in then.keys() - given.keys() and then[name] != now:
                text = f"protocol.{name} was {then[name]}, is {now}"
                warnings.warn(f"{run_dir} {found}: {text}", stacklevel=2)
    try:
        trainer.load(best=options.best)
        yield trainer
    finally:
        trainer.close()


def _evaluate(options: EvaluateArgs) -> None:
    """Evaluate a run."""
    from adaptax.experiment.evaluation_table import evaluation_json, print_evaluation

    with _to_evaluate(options, options.run_dir) as trainer:
        if options.json:
            print(json.dumps(evaluation_json(trainer), indent=2))
        else:
            print_evaluation(trainer)


def _evaluate_members(options: EvaluateArgs, seeds: Sequence[int]) -> None:
    """Evaluate every seed of a group; as JSON, a list of what each one gives.

    One that cannot be evaluated leaves the others; then an AdaptaxError names it.
    """
    from adaptax.experiment.evaluation_table import evaluation_json, print_evaluation
    from adaptax.experiment.group import failure_of
    from adaptax.experiment.run_dir import member_dir

    reports, failed = list[Any](), dict[str, str]()
    for seed in seeds:
        if not options.json:
            print(f"seed {seed}: ", end="")
        try:
            member = str(member_dir(Path(options.run_dir), seed))
            with _to_evaluate(options, member) as trainer:
                if options.json:
                    reports.append(evaluation_json(trainer))
                else:
                    print_evaluation(trainer)
        except AdaptaxError as error:
            failed[f"seed {seed}"] = str(error)
            if not options.json:
                print("cannot be evaluated")
    if options.json:
        print(json.dumps(reports, indent=2))
    if failed:
        raise failure_of(failed)


def plot_command(args: list[str]) -> None:
    """`adaptax plot`."""
    options = parse(PlotArgs, args, "adaptax plot")
    if not options.run_dirs:
        raise ConfigError("plot takes one or more run directories")
    from adaptax.experiment.group import with_members
    from adaptax.experiment.plot import check_picture, plot_adaptation, plot_learning
    from adaptax.experiment.plot_classes import has_classes, plot_classes
    from adaptax.experiment.pretrained import is_pretrained, run_path
    from adaptax.experiment.provenance import differences_between
    from adaptax.experiment.run_dir import EVALUATIONS, read_config

    paths = [run_path(run_dir) for run_dir in options.run_dirs]
    folder = paths[0] if len(paths) == 1 and not is_pretrained(paths[0]) else Path()
    run_dirs = with_members(paths)
    pictures = ("learning.png", "adaptation.png", "classes.png")
    learning, adaptation, classes = (folder / name for name in pictures)
    if options.out is not None:
        learning = Path(options.out)
        check_picture(learning)
        adaptation = learning.with_stem(f"{learning.stem}-adaptation")
        classes = learning.with_stem(f"{learning.stem}-classes")
    runs = {run_dir: read_config(run_dir) for run_dir in run_dirs}
    for line in differences_between(runs):
        warnings.warn(f"these runs may not compare: {line}", stacklevel=2)
    plot_learning(run_dirs, learning)
    say(f"wrote {learning}", sys.stdout)
    if all((run_dir / EVALUATIONS).exists() for run_dir in run_dirs):
        plot_adaptation(run_dirs, adaptation)
        say(f"wrote {adaptation}", sys.stdout)
    if has_classes(run_dirs):
        plot_classes(run_dirs, classes)
        say(f"wrote {classes}", sys.stdout)


def compare_command(args: list[str]) -> None:
    """`adaptax compare`."""
    options = parse(CompareArgs, args, "adaptax compare")
    if not options.groups:
        raise ConfigError("compare takes one or more folders of groups or runs")
    from adaptax.experiment.comparison import compare
    from adaptax.experiment.comparison_table import print_comparison
    from adaptax.experiment.curves import load_groups
    from adaptax.experiment.plot import check_picture
    from adaptax.experiment.plot_comparison import plot_comparison
    from adaptax.experiment.pretrained import run_path

    out = None if options.out is None and options.json else Path(options.out or "comparison.png")
    if out is not None:
        check_picture(out)
    groups = load_groups([run_path(path) for path in options.groups])
    record = compare(groups, options.metric, options.threshold)
    for line in record["warnings"]:
        warnings.warn(line, stacklevel=2)
    if options.json:
        print(json.dumps(record, indent=2))
    else:
        print_comparison(record)
    if out is not None:
        plot_comparison(groups, record, out)
        say(f"wrote {out}", sys.stderr if options.json else sys.stdout)


def report_command(args: list[str]) -> None:
    """`adaptax report`."""
    options = parse(ReportArgs, args, "adaptax report")
    if not options.groups:
        raise ConfigError("report takes one or more folders of groups or runs")
    from adaptax.experiment.curves import load_groups
    from adaptax.experiment.pretrained import run_path
    from adaptax.experiment.report import check_page, write_report
    from adaptax.experiment.run_dir import WINNER
    from adaptax.experiment.sweep_record import is_sweep

    out, paths = Path(options.out), [run_path(path) for path in options.groups]
    check_page(out)
    sweeps = [path for path in paths if is_sweep(path)]
    groups = load_groups([path / WINNER if path in sweeps else path for path in paths])
    record = write_report(groups, out, sweeps, options.metric)
    for line in record["warnings"]:
        warnings.warn(line, stacklevel=2)
    say(f"wrote {out}", sys.stdout)


def video_command(args: list[str]) -> None:
    """`adaptax video`."""
    options = parse(VideoArgs, args, "adaptax video")
    permit(options.imports)
    from adaptax.experiment.gl_backend import try_gl_backend

    no_gl = try_gl_backend()  # before anything imports MuJoCo
    from adaptax.core.devices import check_platform
    from adaptax.experiment.pretrained import is_pretrained, run_path
    from adaptax.experiment.video import VideoConfig, write_videos

    check_platform()
    run_dir = run_path(options.run_dir)
    folder = Path() if is_pretrained(run_dir) else run_dir
    out = folder / "video.gif" if options.out is None else Path(options.out)
    settings = {f.name: getattr(options, f.name) for f in fields(VideoConfig)}
    for path in write_videos(run_dir, out, VideoConfig(**settings), no_gl):
        say(f"wrote {path}", sys.stdout)


def export_command(args: list[str]) -> None:
    """`adaptax export`."""
    options = parse(ExportArgs, args, "adaptax export")
    permit(options.imports)
    no_gl = None
    if options.video is not None:
        from adaptax.experiment.gl_backend import try_gl_backend

        no_gl = try_gl_backend()  # before anything imports MuJoCo
    from adaptax.core.devices import check_platform
    from adaptax.experiment.share import export_run

    check_platform()
    export_run(options.run_dir, options.out, best=options.best, video=options.video, no_gl=no_gl)
    following = shell_command("import", options.out, "RUN_DIR")
    say(f"wrote {options.out}; next: {following}", sys.stdout)


def import_command(args: list[str]) -> None:
    """`adaptax import`."""
    options = parse(ImportArgs, args, "adaptax import")
    from adaptax.experiment.own_parts import loading, own_parts
    from adaptax.experiment.run_dir import read_config
    from adaptax.experiment.share import import_run

    run_dir = import_run(options.source, options.run_dir)
    config = read_config(run_dir)
    following = shell_command("evaluate", run_dir)
    if own_parts(config):
        following = f"from Python {loading(run_dir, config)}"
    say(f"wrote {run_dir}; next: {following}", sys.stdout)


def doctor_command(args: list[str]) -> None:
    """`adaptax doctor`."""
    options = parse(DoctorArgs, args, "adaptax doctor")
    from adaptax.core.devices import check_platform
    from adaptax.experiment.doctor import examine

    check_platform()
    about = examine()
    if options.json:
        print(json.dumps(about, indent=2))
        return
    for name, value in about.items():
        if isinstance(value, dict):
            value = "; ".join(
                f"{k}: {v:,}" if isinstance(v, int) else f"{k} {v}" for k, v in value.items()
            )
        print(f"{name.replace('_', ' ')}: {value}")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "list": list_command,
    "train": train_command,
    "sweep": sweep_command,
    "resume": resume_command,
    "evaluate": evaluate_command,
    "plot": plot_command,
    "compare": compare_command,
    "report": report_command,
    "video": video_command,
    "export": export_command,
    "import": import_command,
    "doctor": doctor_command,
}

HELP = {"-h", "--help"}
TOGETHER = "--on ray trains the seeds of a group"
TRAINING = ("train", "sweep", "resume")
WRITING = ("plot", "compare", "report", "video", "export", "import")
"""Commands whose files are tidied up where an interrupt is raised."""
COMPILING = ("train", "sweep", "resume", "evaluate", "video", "export")
"""Commands of which a second run need not compile again."""


def _names() -> dict[str, list[dict[str, str]]]:
    """Algorithms, suites, memories, callbacks of installed packages, pretrained agents."""
    from importlib.metadata import entry_points

    from adaptax.algorithms.registry import all_algorithms
    from adaptax.core.plugins import summary_of
    from adaptax.envs.registry import all_suites
    from adaptax.experiment.callbacks import all_callbacks
    from adaptax.experiment.pretrained import all_pretrained
    from adaptax.networks.memory_names import MEMORY_NAMES

    memories = dict(MEMORY_NAMES)
    if entry_points(group="adaptax.memories"):  # what is behind them takes a second to import
        from adaptax.networks.memory import plugin_memories

        memories |= {name: summary_of(memory) for name, memory in plugin_memories().items()}
    named: dict[str, dict[str, str]] = {
        "algorithms": {a.name: a.summary for a in all_algorithms()},
        "suites": {s.name: s.summary for s in all_suites()},
        "memories": memories,
        "callbacks": {name: summary_of(callback) for name, callback in all_callbacks().items()},
        "pretrained": all_pretrained(),
    }
    return {
        kind: [{"name": name, "summary": summary} for name, summary in entries.items()]
        for kind, entries in named.items()
    }


def _recipes() -> list[dict[str, Any]]:
    from adaptax.experiment.recipe import all_recipes

    return [recipe.to_dict() for recipe in all_recipes().values()]


def _print_names(*kinds: str) -> None:
    """The names of some kinds, or of all."""
    for kind, entries in _names().items():
        if not entries or (kinds and kind not in kinds):
            continue
        print(f"{kind}:")
        width = max([18, *(len(entry["name"]) for entry in entries)])
        for entry in entries:
            print(f"  {entry['name']:<{width}} {entry['summary']}")


def _to_its_end(trainer: Any, train: Callable[[], Any]) -> None:
    """Train, whoever reads what is printed."""
    try:
        train()
    except KeyboardInterrupt:
        kill_workers()  # which might be given time to close
        raise
    finally:
        trainer.close()
        settle(sys.stdout)


def _cores_for(run_dir: Path, num_cores: int | None) -> int | None:
    """As many cores as what goes on was to have, or all where there are fewer here."""
    from adaptax.core.cores import usable_cores

    here = len(usable_cores())
    if num_cores is None or num_cores <= here:
        return num_cores
    warnings.warn(f"{run_dir} was to have {num_cores} cores; here are {here}", stacklevel=2)
    return here


def _load(run_dir: str, consequence: str, names: Sequence[str], **changes: Any) -> Any:
    """The trainer of a run, with a warning where what the named fields say is not as recorded."""
    from adaptax.experiment.build import load_run

    trainer = load_run(run_dir, **changes)
    _warn_of_differences(run_dir, trainer.suite, consequence, names)
    return trainer


def _warn_of_differences(
    run_dir: str | Path, suite: Any, consequence: str, names: Sequence[str]
) -> None:
    from adaptax.experiment.pretrained import run_path
    from adaptax.experiment.provenance import differences, provenance
    from adaptax.experiment.run_dir import read_config

    found = differences(read_config(run_path(run_dir)), provenance(suite), names)
    if found:
        warnings.warn(f"{run_dir} {consequence}: {'; '.join(found)}", stacklevel=2)


if __name__ == "__main__":
    main()
