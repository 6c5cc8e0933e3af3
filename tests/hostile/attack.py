"""Attacks adaptax as a stranger, a careless user or a bad machine would, and counts what breaks.

    python tests/hostile/attack.py [--configurations 1000] [--edits 300] [--imports 100]
        [--kills 100] [--native 40] [--workers 20] [--seed 0] [--first N] [--seconds S]
        [--only PART ...] [--out results/hostile.json]

Every case follows from the seed, its part and its number; `--first` begins with another number than
0, `--seconds` ends each part after so long. The parts are `configurations` (random commands that
train), `edits` (of run folders, then a command on them), `imports` (of exports that are forged),
`environments` (all that are in environments.py), `kills` (of runs and of groups of eight seeds),
`native` (diverging models, damaged libraries, Ctrl-C) and `workers`. A part that has been done is
kept in the file; its figures are replaced when it is done again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import environments
import paths  # noqa: F401 (what the next ones import is a folder above)
import processes
from configurations import command
from edits import DAMAGES, EXPORT_FORGERIES, FORGERIES, GROUP_FORGERIES
from kills import left_behind
from victim import Outcome, Victim
from world import World, changed_bytes

from adaptax.algorithms.registry import ALGORITHMS

PACKAGES = ("adaptax", "jax", "jaxlib", "mujoco", "numpy", "gymnasium")
KILLS_A_RUN = 5
SMALL_RUN = ["--recipe", "none", "--evaluation.num-episodes", "2", "--evaluation.num-tasks"]
TEMPLATES = {
    "reinforce": ["--algorithm.num-lanes", "4", "--algorithm.hidden-sizes", "8"],
    "cem": ["--algorithm.population-size", "20", "--algorithm.num-tasks", "1"],
    "sac": [
        *("--algorithm.num-lanes", "4", "--algorithm.num-tasks", "2"),
        *("--algorithm.num-cycles", "1"),
        *("--algorithm.num-steps", "40", "--algorithm.num-initial-steps", "40"),
        *("--algorithm.buffer-size", "400", "--algorithm.num-updates", "2"),
        *("--algorithm.batch-size", "8", "--algorithm.hidden-sizes", "8"),
    ],
}
"""Runs that are edited: four iterations, the snapshots of the last three."""
LOGGED = ["--num-iterations", "4", "--snapshot-interval", "1", "--evaluation-interval", "2"]
MORE = ["--num-iterations", "5"]
Case = tuple[str, Outcome, int, int]
"""What was done, what became of it, bytes written outside, bits lost."""


def generator(seed: int, part: str, number: int) -> random.Random:
    """The random numbers of a case."""
    return random.Random(f"{seed}-{part}-{number}")


def configurations(options: argparse.Namespace, world: World) -> Iterator[Case]:
    """Random commands that train."""
    victim = Victim(world.place)
    try:
        for number in range(options.first, options.first + options.configurations):
            words = command(generator(options.seed, "configurations", number))
            world.fresh()
            mine = [world.work / "run"]
            before = world.state(mine)
            outcome = victim.run(words, world.work)
            outside = changed_bytes(before, world.state(mine))
            yield f"{number}: {' '.join(words)}", outcome, outside, 0
    finally:
        victim.end()


def faulty(options: argparse.Namespace, world: World) -> Iterator[Case]:
    """Runs on environments that break their contract."""
    victim = Victim(world.place, ["environments"])
    try:
        for name in environments.FAULTS:
            world.fresh()
            mine = [world.work / "run"]
            before = world.state(mine)
            words = ["train", "reinforce", f"gym:{environments.env_id(name)}", *SMALL_RUN]
            words += [
                "1",
                *TEMPLATES["reinforce"],
                *LOGGED[:2],
                "--run-dir",
                str(world.work / "run"),
            ]
            outcome = victim.run(words, world.work)
            yield name, outcome, changed_bytes(before, world.state(mine)), 0
            if name == "moves":
                victim.end()
    finally:
        victim.end()


def templates(victim: Victim, world: World, kept: Path) -> dict[str, Path]:
    """Runs and a group to be edited, and next to each what it comes to when it goes on."""
    for name, settings in TEMPLATES.items():
        words = ["train", name, "point-goal", *SMALL_RUN, "2", *settings, *LOGGED]
        for run, more in ((name, []), (f"{name}-group", ["--seeds", "0:2"])):
            if more and name != "reinforce":
                continue
            outcome = victim.run([*words, "--run-dir", str(kept / run), *more], world.work)
            assert outcome.verdict == "fine", outcome
            shutil.copytree(kept / run, kept / f"{run}-whole")
            outcome = victim.run(["resume", str(kept / f"{run}-whole"), *MORE], world.work)
            assert outcome.verdict == "fine", outcome
    return {p.name: p for p in kept.iterdir() if not p.name.endswith("-whole")}


COMMANDS: dict[str, Callable[[list[str]], list[str]]] = {
    "resume": lambda run: ["resume", *run, *MORE],
    "evaluate": lambda run: ["evaluate", *run],
    "evaluate --best": lambda run: ["evaluate", *run, "--best", "--json"],
    "plot": lambda run: ["plot", *run],
    "compare": lambda run: ["compare", *run, "--out", "out/picture.png"],
    "report": lambda run: ["report", *run, "--out", "out/page.html"],
    "video": lambda run: ["video", *run],
    "train --overwrite": lambda run: [
        *("train", "nop", "point-goal", "--run-dir", *run, "--overwrite", "--num-iterations", "1"),
        *("--evaluation.num-tasks", "2"),
    ],
}


def edited(options: argparse.Namespace, world: World) -> Iterator[Case]:
    """Commands on run folders that somebody has edited."""
    victim = Victim(world.place)
    with tempfile.TemporaryDirectory() as kept:
        world.fresh()
        runs = templates(victim, world, Path(kept))
        try:
            for number in range(options.first, options.first + options.edits):
                yield _edit(generator(options.seed, "edits", number), number, victim, world, runs)
        finally:
            victim.end()


def _edit(
    rng: random.Random, number: int, victim: Victim, world: World, runs: dict[str, Path]
) -> Case:
    """One of them."""
    world.fresh()
    template = rng.choice(list(runs))
    group = template.endswith("-group")
    known = GROUP_FORGERIES if group else {**DAMAGES, **FORGERIES}
    kind = rng.choice(list(known))
    run = world.work / "run"
    shutil.copytree(runs[template], run)
    try:
        known[kind](rng, run, world.outside)
    except (OSError, ValueError, KeyError, IndexError, UnicodeError) as error:
        return f"{number}: {template}, {kind}: not possible: {error}", Outcome("skipped"), 0, 0
    name = rng.choice(["resume", *COMMANDS])
    where = [str(run)] if rng.random() < 0.7 else ["run"]
    foreign = kind == "no run at all"
    mine = [world.work / "out"]
    mine += [] if foreign else [run, world.work / "moved"]
    before = world.state(mine)
    outcome = victim.run(COMMANDS[name](where), world.work)
    outside = changed_bytes(before, world.state(mine))
    lost = 0
    if kind in DAMAGES and name == "resume":
        if outcome.verdict == "fine":
            whole = runs[template].with_name(f"{template}-whole")
            lost = processes.different_bits(left_behind(run), left_behind(whole))
        elif not outcome.is_bad:
            outcome = Outcome("traceback", f"it had to go on: {outcome.detail}", outcome.seconds)
    return f"{number}: {template}, {kind}, {name}", outcome, outside, lost


def imported(options: argparse.Namespace, world: World) -> Iterator[Case]:
    """Exports that somebody has forged are imported, and what comes of it is used."""
    victim = Victim(world.place)
    with tempfile.TemporaryDirectory() as kept:
        world.fresh()
        runs, exports = templates(victim, world, Path(kept)), Path(kept)
        for name in TEMPLATES:
            outcome = victim.run(
                ["export", str(runs[name]), str(exports / f"{name}-x")], world.work
            )
            assert outcome.verdict == "fine", outcome
        try:
            for number in range(options.first, options.first + options.imports):
                rng = generator(options.seed, "imports", number)
                world.fresh()
                name, kind = rng.choice(list(TEMPLATES)), rng.choice(list(EXPORT_FORGERIES))
                sent, run = world.work / "sent", world.work / "run"
                shutil.copytree(exports / f"{name}-x", sent)
                what = f"{number}: {name}, {kind}"
                try:
                    EXPORT_FORGERIES[kind](rng, sent, world.outside)
                except (OSError, ValueError, KeyError, IndexError, UnicodeError) as error:
                    yield f"{what}: not possible: {error}", Outcome("skipped"), 0, 0
                    continue
                before = world.state([run])
                outcome = victim.run(["import", str(sent), str(run)], world.work)
                if outcome.verdict == "fine":
                    used = rng.choice(["evaluate", "plot", "resume", "report"])
                    what += f", then {used}"
                    outcome = victim.run(COMMANDS[used]([str(run)]), world.work)
                shutil.rmtree(world.work / "out", ignore_errors=True)
                yield what, outcome, changed_bytes(before, world.state([run])), 0
        finally:
            victim.end()


def killed(options: argparse.Namespace, world: World) -> Iterator[Case]:
    """Runs of all algorithms, and every second time groups of eight seeds, killed and resumed."""
    names = list(ALGORITHMS)
    for number in range(options.first, options.first + options.kills // KILLS_A_RUN):
        rng = generator(options.seed, "kills", number)
        world.fresh()
        mine = [world.work / name for name in ("killed", "whole")]
        before = world.state(mine)
        name, seeds = rng.choice(names), processes.SEEDS * (number % 2)
        found = processes.killed_run(name, KILLS_A_RUN, rng, world.place, seeds)
        outside = changed_bytes(before, world.state(mine))
        what = f"{number}: {name}{f', {seeds} seeds' if seeds else ''}, {found['phases']}"
        bad = [x for x in found["outcomes"] if x.is_bad]
        bad += [x for x in found["outcomes"][:-2] if x.verdict != "fine" and not x.is_bad]
        bad += [x for x in found["outcomes"][-2:] if x.verdict != "fine" and not x.is_bad]
        outcome = bad[0] if bad else Outcome("fine")
        if bad and not outcome.is_bad:
            outcome = Outcome("traceback", f"it had to go on: {outcome}")
        outcome.seconds = sum(x.seconds for x in found["outcomes"])
        yield what, outcome, outside, found["bits_lost"]


def native(options: argparse.Namespace, world: World) -> Iterator[Case]:
    """Diverging models, libraries that are damaged, Ctrl-C within a scan."""
    sound = world.place.parent / "sound"
    arguments = ["train", "nop", "half-cheetah", *processes.SHORT, "--suite.horizon", "5"]
    world.fresh()
    made = processes.run(
        [*arguments, "--run-dir", "run"], world.place, world.work, XDG_CACHE_HOME=str(sound)
    )
    assert made.verdict == "fine", made
    for number in range(options.first, options.first + options.native):
        rng = generator(options.seed, "native", number)
        world.fresh()
        mine = [world.work / "run"]
        before = world.state(mine)
        kind = ("library", "diverging", "ctrl-c", "ctrl-c twice")[number % 4]
        if kind == "library":
            outcome = processes.damaged_library(rng, world.place, sound)
        elif kind == "diverging":
            outcome = processes.diverging(rng, world.place)
        else:
            outcome = processes.interrupted(rng, world.place, 1 if kind == "ctrl-c" else 2)
        outside = changed_bytes(before, world.state(mine))
        yield f"{number}: {kind}", outcome, outside, 0


def workers(options: argparse.Namespace, world: World) -> Iterator[Case]:
    """Workers that are killed, hang or raise."""
    for number in range(options.first, options.first + options.workers):
        rng = generator(options.seed, "workers", number)
        world.fresh()
        mine = [world.work / "run", world.work / "program.py"]
        before = world.state(mine)
        attack = processes.worker_killed if number % 2 else processes.worker_fault
        outcome = attack(rng, world.place)
        outside = changed_bytes(before, world.state(mine))
        yield f"{number}: {attack.__name__}", outcome, outside, 0


PARTS = {
    "environments": faulty,
    "workers": workers,
    "native": native,
    "edits": edited,
    "imports": imported,
    "configurations": configurations,
    "kills": killed,
}


def summary(cases: list[Case]) -> dict[str, Any]:
    """What the cases of a part come to."""
    verdicts = Counter(outcome.verdict for _, outcome, _, _ in cases)
    bad = [c for c in cases if c[1].is_bad or c[2] or c[3]]
    return {
        "cases": len(cases),
        "verdicts": dict(sorted(verdicts.items())),
        "tracebacks": verdicts["traceback"],
        "crashes": verdicts["crash"],
        "hangs": verdicts["hang"],
        "bytes_outside": sum(outside for _, _, outside, _ in cases),
        "bits_lost": sum(lost for *_, lost in cases),
        "seconds": round(sum(outcome.seconds for _, outcome, _, _ in cases)),
        "bad": [
            {"case": case, "verdict": o.verdict, "detail": o.detail, "outside": out, "lost": lost}
            for case, o, out, lost in bad
        ],
    }


def about() -> dict[str, Any]:
    """The machine, and versions."""
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "nice": os.nice(0),
    }


def attack(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """The summary of a part."""
    cases: list[Case] = []
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
        world = World(Path(folder) / "world")
        for case in PARTS[part](options, world):
            cases.append(case)
            what, outcome, outside, lost = case
            if outcome.is_bad or outside or lost or options.verbose:
                line = f"{part} {what}: {outcome.verdict}, {outside} bytes outside, {lost} bits"
                print(line, flush=True)
                print("   ", outcome.detail[-1500:].replace("\n", "\n    "), flush=True)
            if time.monotonic() > deadline:
                print(f"{part} ends after {len(cases)} cases: its time is over", flush=True)
                break
    return summary(cases)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The options of the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--configurations", type=int, default=1000)
    parser.add_argument("--edits", type=int, default=300)
    parser.add_argument("--imports", type=int, default=100)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--native", type=int, default=40)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each part at most")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--out")
    return parser.parse_args(words)


def main() -> None:
    """The script."""
    options = parsed()
    out = None if options.out is None else Path(options.out)
    found = json.loads(out.read_text()) if out is not None and out.exists() else {"parts": {}}
    for part in options.only:
        began = time.monotonic()
        result = {"seed": options.seed, "first": options.first, **attack(part, options)}
        if part == "kills":
            result["kills"] = KILLS_A_RUN * result["cases"]
        result |= {"command": " ".join(sys.argv), "wall_seconds": round(time.monotonic() - began)}
        found["parts"][part] = {**result, **about()}
        print(part, {k: v for k, v in result.items() if k != "bad"}, flush=True)
        if out is not None:
            out.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(any(found["parts"][part]["bad"] for part in options.only))


if __name__ == "__main__":
    main()
