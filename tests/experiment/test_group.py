from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from operator import attrgetter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from said import warnings_within
from small import SMALL
from toys import EVALUATION, cliff_suite, fingerprint, flags

import adaptax
from adaptax.algorithms.program import IterationProgram
from adaptax.core.config import to_dict
from adaptax.core.errors import AdaptaxError, ConfigError, EnvironmentFault, NotFinite
from adaptax.core.snapshot import Snapshots
from adaptax.experiment import cli, group_processes, stop_signals
from adaptax.experiment.build import load_group, make_algorithm
from adaptax.experiment.group import (
    Group,
    checked_seeds,
    group_seeds,
    parse_seeds,
    replace_group,
)
from adaptax.experiment.group_processes import member_programs, run_members
from adaptax.experiment.jobs import Processes
from adaptax.experiment.logger import read_rows
from adaptax.experiment.run_dir import check_run_dir, locked, member_dir
from adaptax.experiment.trainer import Trainer, TrainerConfig

SEEDS = (0, 1, 4)


def group(run_dir, seeds=SEEDS, name="ppo", suite=None, each=None, **settings) -> Group:
    """`each`: settings of the algorithm for every seed."""
    suite = suite or cliff_suite()
    defaults = {"num_iterations": 6, "snapshot_interval": 2, "evaluation_interval": 3}
    config = TrainerConfig(
        str(run_dir), **{**defaults, "evaluation": EVALUATION, "quiet": True, **settings}
    )
    common, *others = (
        make_algorithm(name, suite.spec, **{**SMALL[name], **own}) for own in ({}, *(each or ()))
    )
    return Group(config, seeds, others if each else common, suite)


def left_behind(run_dir, seed, iteration=6):
    """A member's last snapshot and all its rows, but for the time they took."""
    folder = run_dir / f"seed-{seed}"
    tree = Snapshots(folder / "snapshots").load(iteration)
    rows = [{**row, "seconds": None} for row in read_rows(folder / "progress.jsonl")]
    state = fingerprint((tree["state"], tree["sampler"]))
    return state, rows, read_rows(folder / "evaluations.jsonl")


def starts(runs):
    """The iteration from which each seed goes on, 0 for the start."""
    saved = {m.config.seed: Snapshots(m.run_dir / "snapshots").iterations() for m in runs.members}
    return {seed: max(iterations, default=0) for seed, iterations in saved.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("group") / "whole"
    last = group(run_dir).run()
    return run_dir, last


def test_every_seed_has_a_run_of_its_own(whole):
    run_dir, last = whole
    assert group_seeds(run_dir) == SEEDS
    assert sorted(p.name for p in run_dir.iterdir()) == ["group.json", "seed-0", "seed-1", "seed-4"]
    assert [row["iteration"] for row in last] == [6, 6, 6]
    for seed, row in zip(SEEDS, last, strict=True):
        folder = run_dir / f"seed-{seed}"
        assert json.loads((folder / "config.json").read_text())["seed"] == seed
        assert read_rows(folder / "progress.jsonl")[-1] == row
        assert [e["iteration"] for e in read_rows(folder / "evaluations.jsonl")] == [0, 3, 6]
    assert len({row["train/return"] for row in last}) == 3


def test_a_member_is_the_run_of_its_seed(whole, tmp_path):
    config = group(tmp_path / "none").config
    suite = cliff_suite()
    alone = TrainerConfig(
        **{**vars(config), "run_dir": str(tmp_path / "alone"), "seed": 4, "num_iterations": 2}
    )
    row = Trainer(alone, make_algorithm("ppo", suite.spec, **SMALL["ppo"]), suite).run()
    member = read_rows(whole[0] / "seed-4" / "progress.jsonl")[1]
    assert row.keys() == member.keys()
    for name in row.keys() - {"seconds"}:
        np.testing.assert_allclose(row[name], member[name], 1e-3, 1e-4, err_msg=name)


def test_six_iterations_are_three_and_three(whole, tmp_path):
    run_dir = tmp_path / "halves"
    group(run_dir, num_iterations=3).run()
    group(run_dir).resume()
    for seed in SEEDS:
        assert left_behind(run_dir, seed) == left_behind(whole[0], seed)


def test_each_member_goes_on_from_its_own_newest_snapshot(whole, tmp_path):
    """As after a kill between the snapshots of the first and of the second."""
    run_dir = tmp_path / "uneven"
    group(run_dir, num_iterations=4).run()
    Snapshots(run_dir / "seed-1" / "snapshots").discard_after(2)
    runs = group(run_dir)
    assert starts(runs) == {0: 4, 1: 2, 4: 4}
    runs.resume()
    for seed in SEEDS:
        assert left_behind(run_dir, seed) == left_behind(whole[0], seed)


def test_one_without_a_snapshot_and_one_that_never_began_begin_anew(whole, tmp_path):
    run_dir = tmp_path / "early"
    group(run_dir, num_iterations=2).run()
    Snapshots(run_dir / "seed-4" / "snapshots").discard_after(0)
    (run_dir / "seed-4" / "progress.jsonl").write_text("")
    shutil.rmtree(run_dir / "seed-0")
    runs = group(run_dir)
    assert starts(runs) == {0: 0, 1: 2, 4: 0}
    with pytest.warns(UserWarning, match="seed-4 has no snapshot yet: from the start"):
        runs.resume()
    for seed in SEEDS:
        assert left_behind(run_dir, seed) == left_behind(whole[0], seed)


def test_members_may_have_settings_of_their_own(whole, tmp_path, monkeypatch):
    """And stay one program: the member with the common ones is the same to the last bit."""
    run_dir, each = tmp_path / "rates", [{}, {"lr": 1e-4}, {"discount": 0.5}]
    monkeypatch.setattr(Trainer, "some_iterations", None)
    runs = group(run_dir, each=each, num_iterations=4)
    assert runs.in_one_program
    runs.run()
    group(run_dir, each=each).resume()
    assert left_behind(run_dir, 0) == left_behind(whole[0], 0)
    for seed in SEEDS[1:]:
        assert left_behind(run_dir, seed)[0] != left_behind(whole[0], seed)[0]


def test_members_with_settings_of_their_own_are_loaded_with_them(tmp_path):
    suite, stds = adaptax.make_suite("point-goal"), (0.5, 0.25)
    algorithms = [make_algorithm("cem", suite.spec, init_std=std) for std in stds]
    config = TrainerConfig(str(tmp_path), num_iterations=1, evaluation_interval=None, quiet=True)
    Group(config, (0, 1), algorithms, suite).run()
    members = load_group(tmp_path).members
    assert tuple(member.algorithm.config.init_std for member in members) == stds


@pytest.mark.slow
def test_members_whose_settings_need_other_programs_take_turns(tmp_path):
    each = [{"population_size": 8}, {"population_size": 16}]
    runs = group(tmp_path / "sizes", (0, 1), "cem", each=each, num_iterations=1)
    assert not runs.in_one_program
    tasks, episodes = (SMALL["cem"][name] for name in ("num_tasks", "num_episodes"))
    assert [row["num_episodes"] for row in runs.run()] == [n * tasks * episodes for n in (8, 16)]


def test_there_is_an_algorithm_for_each_seed_or_one_for_all(tmp_path):
    with pytest.raises(ConfigError, match="2 algorithms for 3 seeds: one for each"):
        group(tmp_path, each=[{}, {}])


KILLED = """
import os, signal, sys
from adaptax.experiment import cli, group_processes
from adaptax.core.snapshot import Snapshots
save, saved = Snapshots.save, []

def save_and_end(self, iteration, *args):
    save(self, iteration, *args)
    saved.append(iteration)
    if saved.count(4) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

Snapshots.save = save_and_end
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_group_killed_between_two_snapshots_goes_on_to_the_last_bit(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    suite = adaptax.make_suite("point-goal")
    algorithm = make_algorithm("rl2-ppo", suite.spec, **SMALL["rl2-ppo"])

    def train_args(run_dir):
        config = TrainerConfig(
            str(run_dir),
            num_iterations=6,
            snapshot_interval=2,
            evaluation_interval=3,
            evaluation=EVALUATION,
        )
        settings = [*flags(config, "trainer"), *flags(algorithm.config, "algorithm")]
        place = settings.index("--trainer.seed")
        del settings[place : place + 2]
        return ["train", "rl2-ppo", "point-goal", "--seeds", "0:3", *settings]

    program = [sys.executable, "-c", KILLED, *train_args(killed)]
    assert subprocess.run(program, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    cli.main(["resume", str(killed)])
    cli.main(train_args(whole))
    for seed in range(3):
        assert left_behind(killed, seed) == left_behind(whole, seed)


@pytest.mark.slow
def test_ctrl_c_ends_a_group_after_the_iteration(tmp_path):
    run_dir = tmp_path / "stopped"
    args = ["train", "ppo", "point-goal", "--seeds", "0:2", "--run-dir", str(run_dir)]
    program = [sys.executable, "-m", "adaptax.experiment.cli", *args, "--num-iterations", "100000"]
    log = run_dir / "seed-1" / "progress.jsonl"
    with subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while not log.exists() or not log.read_text():
            assert process.poll() is None
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        said = process.communicate()[1].decode()
    assert f"go on with: adaptax resume {run_dir}\n" in said
    assert said.count("go on with") == 1
    rows = [read_rows(run_dir / f"seed-{seed}" / "progress.jsonl")[-1] for seed in (0, 1)]
    assert rows[0]["iteration"] == rows[1]["iteration"]
    assert Snapshots(run_dir / "seed-1" / "snapshots").iterations()[-1] == rows[1]["iteration"]


@pytest.mark.slow
def test_what_cannot_be_one_program_takes_turns(tmp_path):
    runs = group(tmp_path / "turns", (0, 1), "pearl", num_iterations=2)
    assert not runs.in_one_program
    assert [row["iteration"] for row in runs.run()] == [2, 2]


@pytest.mark.slow
def test_what_cannot_be_one_program_has_a_process_for_each_seed(tmp_path, capsys):
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("with one core they take turns")
    run_dir = tmp_path / "processes"
    suite = adaptax.make_suite("point-goal")
    algorithm = make_algorithm("cma-es", suite.spec, **SMALL["cma-es"])
    args = ["train", "cma-es", "point-goal", "--seeds", "0:2", "--run-dir", str(run_dir)]
    args += ["--num-iterations", "2", "--evaluation-interval", "None"]
    cli.main([*args, *flags(algorithm.config, "algorithm")])
    out = capsys.readouterr().out
    assert "seed 1 ends" in out
    lines = [line.partition(" | return")[0] for line in out.splitlines()]
    for who in ("seed 0", "seed 1", "mean"):
        assert any(line.startswith(f"{who} | iteration 2/2 | ") for line in lines), out
    cli.main(["resume", str(run_dir), "--num-iterations", "3"])
    for seed in (0, 1):
        rows = read_rows(run_dir / f"seed-{seed}" / "progress.jsonl")
        assert [row["iteration"] for row in rows] == [1, 2, 3]
    with pytest.raises(SystemExit):
        cli.main([*args, "--overwrite", "--algorithm.init-std", "-1"])


@pytest.fixture
def two_members(tmp_path):
    """A group whose first seed cannot begin: a file is in the place of its folder."""
    suite = adaptax.make_suite("point-goal")
    runs = group(tmp_path / "group", (0, 1), "nop", suite, evaluation_interval=None)
    with runs.held():
        runs.begin()
    (tmp_path / "group" / "seed-0").write_text("in the way")
    return runs


@pytest.mark.slow
def test_one_member_that_fails_leaves_the_other_and_is_named(two_members):
    """And going on is with all, also with one that had not begun."""
    run_dir = two_members.run_dir
    with pytest.raises(AdaptaxError, match=r"^seed 0: .*seed-0 is a file, not a dir"):
        run_members(two_members, Processes(2))
    assert read_rows(run_dir / "seed-1" / "progress.jsonl")[-1]["iteration"] == 6
    (run_dir / "seed-0").unlink()
    assert run_members(load_group(run_dir), Processes(2), go_on=True)
    assert read_rows(run_dir / "seed-0" / "progress.jsonl")[-1]["iteration"] == 6


def test_a_members_program_says_all_that_is_trained(two_members):
    """From the start where there is nothing to go on from, whatever was asked."""
    programs = member_programs(two_members, go_on=True)
    assert list(programs) == [0, 1]
    code, spec = programs[1][1], json.loads(programs[1][2])
    assert code.endswith("from adaptax.experiment.job import main; main()")
    assert spec["algorithm"] == {"name": "nop", **to_dict(two_members.members[0].algorithm.config)}
    assert spec["suite"]["name"] == "point-goal" and not spec["go_on"]
    assert (spec["trainer"]["seed"], spec["trainer"]["num_iterations"]) == (1, 6)


def test_what_members_warn_of_is_told(two_members, monkeypatch):
    """Once, of several that say the same."""
    said = "import sys; print('adaptax: warning: the disk is full', file=sys.stderr)"
    programs = {seed: ["-c", said] for seed in (0, 1)}
    monkeypatch.setattr(group_processes, "member_programs", lambda *_, **__: programs)
    with pytest.warns(UserWarning, match=r"^seed [01]: the disk is full$") as caught:
        assert run_members(two_members, Processes(2))
    assert len(caught) == 1


def test_python_trains_a_group(tmp_path):
    runs = adaptax.train(
        "cem",
        cliff_suite(),
        algorithm=SMALL["cem"],
        seeds=range(2),
        run_dir=tmp_path / "cem",
        num_iterations=2,
        evaluation_interval=None,
        quiet=True,
    )
    assert [member.iteration for member in runs.members] == [2, 2]


@pytest.mark.slow
def test_evaluate_and_plot_take_groups(tmp_path, capsys):
    run_dir = tmp_path / "ppo"
    args = ["train", "ppo", "point-goal", "--seeds", "0,3", "--run-dir", str(run_dir), "--quiet"]
    cli.main([*args, "--num-iterations", "2", "--evaluation.num-tasks", "3"])
    capsys.readouterr()
    cli.main(["evaluate", str(run_dir), "--json", "--num-tasks", "2"])
    assert [report["seed"] for report in json.loads(capsys.readouterr().out)] == [0, 3]
    cli.main(["plot", str(run_dir)])
    assert (run_dir / "learning.png").exists()
    assert (run_dir / "adaptation.png").exists()


FAILURES = {
    "an iteration": ("learner.check", NotFinite("something is NaN"), "something is NaN"),
    "an evaluation": ("evaluate", EnvironmentFault("the arm fell off"), "the arm fell off"),
    "a fault of the code": ("save_snapshot", KeyError("x"), "KeyError: 'x'"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_seed_that_fails_is_named_and_the_others_go_on(what, whole, tmp_path, monkeypatch):
    """And `resume` goes on with all, to what they would have come to without it."""
    run_dir, (place, error, why) = tmp_path / "fault", FAILURES[what]
    runs = group(run_dir)
    broken = runs.members[1]
    own = attrgetter(place)(broken)

    def fail_at_5(*args):
        if broken.iteration < 4:
            return own(*args)
        raise error

    *within, name = place.split(".")
    monkeypatch.setattr(attrgetter(*within)(broken) if within else broken, name, fail_at_5)
    with pytest.raises(AdaptaxError) as failure:
        runs.run()
    assert str(failure.value) == f"seed 1: {why}"
    for seed in (0, 4):
        assert left_behind(run_dir, seed) == left_behind(whole[0], seed)
    again = group(run_dir)
    assert starts(again)[1] == {"check": 4, "evaluate": 6, "save_snapshot": 2}[name]
    again.resume()
    assert left_behind(run_dir, 1) == left_behind(whole[0], 1)


def test_seeds_that_fail_alike_are_named_in_one_breath(tmp_path, capsys):
    failed = {"seed 0": "no disk", "seed 1": "NaN", "seed 2": "no disk"}
    runs = group(tmp_path / "g", quiet=False)
    assert str(runs.failure(failed)) == "seed 0, seed 2: no disk; seed 1: NaN"
    again = "Group(config, seeds, algorithm, suite).resume()"  # of a suite of the test's own
    assert capsys.readouterr().out == f"go on with all: {again}\n"


def test_what_a_group_cannot_begin_with_is_refused_before_anything_is_written(whole, tmp_path):
    other = str(whole[0] / "seed-0")
    with pytest.raises(AdaptaxError, match=r"seed-0"):
        group(tmp_path / "new", name="cem", init_from=other).run()
    assert not (tmp_path / "new").exists()


def test_seeds_do_not_begin_with_a_run_that_still_changes(whole, tmp_path):
    other = whole[0] / "seed-0"
    with locked(other), pytest.raises(AdaptaxError, match="seed-0 is being trained: let it"):
        group(tmp_path / "new", init_from=str(other)).run()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "seeds"), [("0:3", (0, 1, 2)), ("5:6", (5,)), ("3", (3,)), ("2,0", (2, 0))]
)
def test_seeds_are_a_range_or_a_list(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("3:3", "1 to 1000 seeds, not 0"),
        ("0:1:2", "takes 0:8, .* not '0:1:2'"),
        ("1,1", "a seed comes twice"),
        ("a", "takes 0:8, which is 0 to 7, or 0,3,5, not 'a'"),
        ("0:5000", "1 to 1000 seeds, not more"),
        ("0:1" + 20 * "0", "1 to 1000 seeds, not more"),
        ("-1,2", r"integers in \[0, 2\^63\)"),
    ],
)
def test_seeds_that_are_none_are_one_clear_line(text, problem):
    with pytest.raises(ConfigError, match=problem):
        parse_seeds(text)


def test_a_folder_that_holds_something_else_is_left_alone(whole, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(AdaptaxError, match="is not empty and holds no group of runs"):
        group(tmp_path, overwrite=True).run()
    with pytest.raises(AdaptaxError, match="holds a group of runs already; choose another"):
        group(whole[0]).run()
    assert (tmp_path / "note.txt").read_text() == "mine"


def test_a_run_replaces_no_group_nor_a_group_a_run(whole):
    group_dir, member = whole[0], member_dir(whole[0], 0)
    with pytest.raises(AdaptaxError, match="holds a group of runs, which --overwrite replaces by"):
        check_run_dir(group_dir, overwrite=True, seed=0)
    with pytest.raises(AdaptaxError, match="--overwrite replaces a run by a run only"):
        group(member, overwrite=True).run()


def test_a_group_says_what_and_where_it_is(tmp_path):
    name = group(tmp_path).members[0].algorithm.name
    where = f"in {tmp_path}, seeds 0, 1, 4>"
    assert repr(group(tmp_path)).startswith(f"<Group of {name} on ")
    assert repr(group(tmp_path)).endswith(where)


def test_a_run_of_another_seed_takes_no_members_place(whole, monkeypatch):
    member = member_dir(whole[0], 0)
    assert check_run_dir(member, overwrite=True, seed=0)
    monkeypatch.chdir(member)
    for place in (member, Path(".")):
        with pytest.raises(AdaptaxError, match=r"is a member of the group .* not for 7: choose"):
            check_run_dir(place, overwrite=True, seed=7)


def test_a_command_for_one_run_says_what_a_group_has(whole):
    with pytest.raises(AdaptaxError, match=r"is a group of runs: take one of them, .*seed-0"):
        adaptax.load(whole[0])


class Broken(adaptax.Callback):
    """Ends a run before its first iteration."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_start(self, run):
        raise self.error


def quick(run_dir, seeds, callbacks=(), std=1.0, num_iterations=1, **settings) -> Group:
    """A group that takes no time, and what it says."""
    suite = adaptax.make_suite("point-goal")
    settings = {"num_iterations": num_iterations, "evaluation_interval": None, **settings}
    algorithm = make_algorithm("cem", suite.spec, **{**SMALL["cem"], "init_std": std})
    return Group(TrainerConfig(str(run_dir), **settings), seeds, algorithm, suite, callbacks)


def init_std(run_dir):
    """The setting by seed, which tells whose member each is."""
    configs = run_dir.glob("seed-*/config.json")
    return {p.parent.name: json.loads(p.read_text())["algorithm"]["init_std"] for p in configs}


def contents(folder):
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture
def old(tmp_path):
    """A group of the seeds 0 and 1 that is to be replaced."""
    quick(tmp_path / "g", (0, 1), quiet=True).run()
    return tmp_path / "g"


@pytest.mark.parametrize("seeds", [(0, 1, 7), (5, 6)])
def test_a_group_that_fails_before_an_iteration_leaves_the_one_before_whole(old, capsys, seeds):
    before = contents(old)
    runs = quick(old, seeds, [Broken(RuntimeError("boom"))], std=0.5, overwrite=True)
    with pytest.raises(AdaptaxError, match="RuntimeError: boom"):
        runs.run()
    runs.close()
    assert contents(old) == before
    out = capsys.readouterr().out
    assert f"\n{old} holds the group that it held before\n" in f"\n{out}"
    assert "adaptax resume" not in out


def test_a_member_that_leads_out_of_the_folder_is_refused(old, tmp_path):
    """Both one of a group that goes on, and one that a new group would have there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (old / "seed-7").symlink_to(outside)
    with pytest.raises(AdaptaxError, match="seed-7 is a link"):
        quick(old, (0, 7), overwrite=True).run()
    shutil.copytree(old / "seed-1", outside / "seed-1")
    shutil.rmtree(old / "seed-1")
    (old / "seed-1").symlink_to(outside / "seed-1")
    before = contents(outside)
    with pytest.raises(AdaptaxError, match="seed-1 is a link"):
        load_group(old, num_iterations=4, quiet=True)
    assert contents(outside) == before


def test_a_group_interrupted_before_an_iteration_leaves_the_one_before_whole(old):
    before = contents(old)
    runs = quick(old, (1, 7), [Broken(KeyboardInterrupt())], std=0.5, overwrite=True, quiet=True)
    with pytest.raises(KeyboardInterrupt):
        runs.run()
    assert runs.parting() == f"interrupted; {old} holds the group that it held before"
    runs.close()
    assert contents(old) == before
    load_group(old, num_iterations=2, quiet=True).resume()
    assert init_std(old) == {"seed-0": 1.0, "seed-1": 1.0}


def test_a_group_takes_the_place_of_another_whose_members_go(old):
    (old / "seed-0" / "note.txt").write_text("mine")
    (old / "learning.png").write_bytes(b"")  # of the members that go
    runs = quick(old, (1, 7), std=0.5, overwrite=True, quiet=True)
    runs.run()
    assert group_seeds(old) == (1, 7)
    assert init_std(old) == {"seed-1": 0.5, "seed-7": 0.5}
    names = [str(path.relative_to(old)) for path in old.rglob("*") if path.parent.name != "seed-1"]
    assert {name.partition("/")[0] for name in names} == {
        "group.json",
        "seed-0",
        "seed-1",
        "seed-7",
    }
    assert [path.name for path in (old / "seed-0").iterdir()] == ["note.txt"]
    assert runs.parting() == f"interrupted; `adaptax resume {old}` goes on from the last snapshots"


def test_a_group_broken_off_while_it_takes_the_place_is_mixed_with_none(old, monkeypatch):
    """As by a kill: then no member is left, and it is trained again."""
    runs = quick(old, (1, 7), std=0.5, overwrite=True, quiet=True)
    runs.begin()
    monkeypatch.setattr(os, "replace", None)
    with pytest.raises(TypeError):
        replace_group(old, (1, 7))
    monkeypatch.undo()
    assert (group_seeds(old), init_std(old)) == ((0, 1), {})
    with pytest.raises(AdaptaxError, match=f"^{old} is a group of which no seed had begun: train"):
        load_group(old)
    quick(old, (1, 7), std=0.5, quiet=True).run()
    assert init_std(old) == {"seed-1": 0.5, "seed-7": 0.5}


def test_members_wait_for_the_one_that_has_the_group_take_its_place(old):
    quick(old, (1, 7), std=0.5, overwrite=True).begin()
    waiting = old / "group.json.next"
    with waiting.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        member = threading.Thread(target=replace_group, args=(old, (1, 7)))
        member.start()
        member.join(0.3)
        assert member.is_alive()
        waiting.rename(old / "group.json")  # which is what the first one ends with
    member.join(120)
    assert not member.is_alive()
    assert init_std(old) == {"seed-0": 1.0, "seed-1": 1.0}, "it was done a second time"


def test_a_group_that_somebody_trains_is_not_replaced(old):
    before = contents(old)
    with locked(old / "seed-0"), pytest.raises(AdaptaxError, match=r"seed-0 is in use by process"):
        quick(old, (5, 6), overwrite=True, quiet=True).run()
    assert contents(old) == before


def test_a_group_that_is_refused_leaves_the_one_that_waits_for_the_folder(old):
    """As of two that are started at once, the second of which finds the first at work."""
    quick(old, (1, 7), std=0.5, overwrite=True).begin()
    with locked(old / "seed-0"), pytest.raises(AdaptaxError, match=r"seed-0 is in use by process"):
        refused = quick(old, (5, 6), overwrite=True, quiet=True)
        try:
            refused.run()
        finally:
            refused.close()
    assert group_seeds(old, "group.json.next") == (1, 7)


def test_the_mean_is_of_seeds_at_their_end_too(tmp_path, capsys):
    class Stopping(adaptax.Callback):
        def on_row(self, run, row):
            if run.config.seed == 0:
                run.stop("enough")

    last = quick(tmp_path, (0, 1), [Stopping()], num_iterations=3).run()
    assert [row["iteration"] for row in last] == [1, 3]
    steps = (last[0]["num_steps"] + last[1]["num_steps"]) / 2
    means = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mean")]
    assert f"| {steps:,.0f} steps |" in means[-1]


def test_the_folder_of_a_group_under_way_is_no_others(tmp_path):
    class Second(adaptax.Callback):
        def on_start(self, run):
            with pytest.raises(AdaptaxError, match="g is in use by process"):
                quick(tmp_path / "g", (0, 1)).resume()

    quick(tmp_path / "g", (0, 1), [Second()], quiet=True).run()
    assert init_std(tmp_path / "g") == {"seed-0": 1.0, "seed-1": 1.0}
    assert not (tmp_path / "g" / "lock").exists()


def test_of_two_groups_begun_at_once_one_is_refused(tmp_path):
    first, second = quick(tmp_path / "g", (0, 1)), quick(tmp_path / "g", (0, 1), quiet=True)
    with first.held(), pytest.raises(AdaptaxError, match="g is in use by process"):
        second.run()
    second.run()


def test_a_group_whose_place_another_has_taken_writes_nothing(old):
    first = quick(old, (1, 7), std=0.5, overwrite=True, quiet=True)
    first.begin()
    quick(old, (5, 6), std=0.2, overwrite=True, quiet=True).run()
    for member in first.members:
        with pytest.raises(AdaptaxError, match=f"^{old} is another group's now"):
            member.run()
    assert (group_seeds(old), init_std(old)) == ((5, 6), {"seed-5": 0.2, "seed-6": 0.2})


def test_only_the_group_that_a_folder_holds_goes_on(old, tmp_path):
    with pytest.raises(
        AdaptaxError, match=r"^\S*/none holds no group of runs: there is no \S*json"
    ):
        quick(tmp_path / "none", (0, 1)).resume()
    assert not (tmp_path / "none").exists()
    before = contents(old)
    with pytest.raises(
        AdaptaxError, match=r"holds the group of seeds \[0, 1\], not \[0, 5\]: go on"
    ):
        quick(old, (0, 5), num_iterations=2).resume()
    with pytest.raises(AdaptaxError, match="seed-0 holds no group of runs"):
        quick(old / "seed-0", (0, 1)).resume()
    assert contents(old) == before


class Removing(adaptax.Callback):
    """Has a part of the group's folder moved away in mid-run."""

    def __init__(self, path, other):
        self.path, self.other = path, other

    def on_row(self, run, row):
        if (run.config.seed, row["iteration"]) == (1, 2):
            self.path.rename(self.other)


@pytest.mark.parametrize("what", [".", "group.json"])
def test_what_is_removed_of_a_group_under_way_is_made_anew(tmp_path, what):
    place = tmp_path / "g"
    moved = [Removing(place / what, tmp_path / "other")]
    record = f"{place / 'group.json'} was removed or moved: made anew"
    with warnings_within() as told:
        quick(place, (0, 1), moved, num_iterations=4, snapshot_interval=1, quiet=True).run()
    assert told.count(record) == 1
    assert starts(load_group(place)) == {0: 4, 1: 4}


def test_the_record_of_members_that_are_processes_is_made_anew(tmp_path, monkeypatch):
    runs = quick(tmp_path / "g", (0, 1), num_iterations=1, quiet=True)
    runs.run()
    (tmp_path / "g" / "group.json").unlink()
    monkeypatch.setattr(group_processes, "member_programs", lambda *_, **__: {0: ["-c", ""]})
    with pytest.warns(UserWarning, match="json was removed or moved: made anew"):
        run_members(runs, Processes(1))
    assert group_seeds(tmp_path / "g") == (0, 1)


@pytest.mark.slow
def test_members_that_are_processes_replace_a_group_too(old):
    runs = quick(old, (1, 7, 8), std=0.5, overwrite=True, quiet=True)
    runs.begin()
    assert json.loads(member_programs(runs, go_on=False)[7][2])["replaces"] == [1, 7, 8]
    assert run_members(runs, Processes(2))
    assert sorted(path.name for path in old.iterdir()) == [
        "group.json",
        "seed-1",
        "seed-7",
        "seed-8",
    ]
    assert set(init_std(old).values()) == {0.5}
    assert not json.loads(member_programs(load_group(old), go_on=True)[7][2])["replaces"]


class Interrupting(adaptax.Callback):
    """Ctrl-C while the first member begins."""

    def on_start(self, run):
        if run.config.seed == 0:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_before_all_members_have_begun_ends_all(tmp_path, capsys):
    runs = quick(tmp_path, (0, 1), [Interrupting()], num_iterations=500, quiet=True)
    runs.run()
    assert [member.iteration <= 1 for member in runs.members] == [True, True]
    assert f"stopped; go on with: adaptax resume {tmp_path}\n" in capsys.readouterr().err


def test_a_group_of_which_no_member_had_begun_is_trained_again(tmp_path, capsys):
    """As a kill leaves it while the first member begins."""
    place = tmp_path / "g"
    (place / "seed-0").mkdir(parents=True)
    (place / "seed-0" / "config.json.tmp").touch()
    (place / "group.json").write_text('{"seeds": [0, 1]}\n')
    with pytest.raises(SystemExit):
        cli.main(["resume", str(place)])
    said = f"adaptax: {place} is a group of which no seed had begun: train it again\n"
    assert capsys.readouterr().err == said
    words = ["--num-iterations", "1", "--evaluation-interval", "None", "--quiet"]
    cli.main(["train", "nop", "point-goal", "--seeds", "2,3", "--run-dir", str(place), *words])
    assert group_seeds(place) == (2, 3)


@pytest.fixture
def named_3(tmp_path, monkeypatch):
    """Two seeds of which the first has no snapshot, in a folder whose name is a number, too."""
    monkeypatch.chdir(tmp_path)
    group("3", (0, 1), "nop", adaptax.make_suite("point-goal"), num_iterations=1).run()
    shutil.rmtree("3/seed-0/snapshots")


def test_evaluate_takes_a_group_whatever_its_name(named_3, capsys):
    for as_json in ([], ["--json"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(["evaluate", "3", "--num-tasks", "3", *as_json])
        out, err = capsys.readouterr()
        assert (stop.value.code, err.count("\n")) == (2, 1)
        assert err.startswith("adaptax: seed 0: ") and "has no snapshot that can be read" in err
        if as_json:
            assert [(r["seed"], r["num_tasks"]) for r in json.loads(out)] == [(1, 3)]
        else:
            assert out.startswith("seed 0: cannot be evaluated\nseed 1: ")


def test_resume_hands_the_number_of_workers_to_a_group(named_3, capsys):
    with pytest.raises(SystemExit):
        cli.main(["resume", "3", "--suite.num-workers", "2"])
    assert "the environments of 'point-goal' have no workers" in capsys.readouterr().err


def test_memory_that_runs_out_in_one_program_costs_nothing_that_was_learned(tmp_path, monkeypatch):
    runs = group(tmp_path, snapshot_interval=100)
    own = runs._made

    def fail_after_4(whole, members, num):
        if members[0].iteration == 4:
            raise MemoryError
        return own(whole, members, min(num, 4 - members[0].iteration))

    monkeypatch.setattr(runs, "_made", fail_after_4)
    with pytest.raises(MemoryError):
        runs.run()
    assert starts(group(tmp_path)) == dict.fromkeys(SEEDS, 4)


def test_seeds_may_be_numpys():
    assert checked_seeds(np.arange(2)) == (0, 1)
    assert all(type(seed) is int for seed in checked_seeds(np.arange(2)))


@pytest.mark.parametrize(
    ("seeds", "problem"),
    [
        (3, r"seeds must be several, such as .*, not 3"),
        ([0.5], r"must be integers .*, not 0.5"),
        ([True, False], "not True"),
    ],
)
def test_what_are_no_seeds_is_one_clear_line(seeds, problem):
    with pytest.raises(ConfigError, match=problem):
        checked_seeds(seeds)


def test_a_fault_of_one_seed_is_no_second_iteration_of_another(tmp_path, monkeypatch):
    """What the other computes meanwhile in a thread is done before they go on one by one."""
    runs, own, faults = group(tmp_path, seeds=(0, 1), num_iterations=4), IterationProgram.run, []
    runs._is_compiled = True

    def run(self, algorithm, state, sampler, num, keep):
        alone = threading.current_thread() is threading.main_thread()
        if sampler is runs.members[0].sampler and not alone and not faults:
            faults.append(1)
            raise EnvironmentFault("the arm fell off")
        if faults and not alone:
            time.sleep(0.5)
        return own(self, algorithm, state, sampler, num, keep)

    monkeypatch.setattr(IterationProgram, "run", run)
    runs.run()
    for member in runs.members:
        steps = [row["num_steps"] for row in read_rows(member.run_dir / "progress.jsonl")]
        assert np.all(np.diff(steps) == steps[0])


@pytest.mark.parametrize("kind", ["trainer", "group"])
def test_leaving_a_with_statement_closes_environments_also_where_training_fails(tmp_path, kind):
    runs = group(tmp_path, num_iterations=1)
    member = runs.members[0]
    member.sampler.close = Mock()
    with pytest.raises(ZeroDivisionError), member if kind == "trainer" else runs as entered:
        assert entered is (member if kind == "trainer" else runs)
        raise ZeroDivisionError
    member.sampler.close.assert_called_once_with()


def test_a_group_of_no_config_is_refused(tmp_path):
    member = group(tmp_path).members[0]
    with pytest.raises(ConfigError, match=r"Group\(config, seeds, .*\) takes a TrainerConfig, not"):
        Group(None, [0], member.algorithm, member.suite)


def test_a_group_that_was_closed_goes_on(tmp_path):
    runs = group(tmp_path, num_iterations=2)
    runs.run()
    runs.close()
    more = group(tmp_path, num_iterations=4)
    more.close()
    assert [row["iteration"] for row in more.resume()] == [4] * 3
    more.close()
    assert [row["iteration"] for row in more.resume()] == [4] * 3


def test_a_fault_of_one_seed_costs_the_others_nothing_of_their_replay(tmp_path, monkeypatch):
    """What an iteration has overwritten there could not be made again."""
    plain, faulty = (
        group(tmp_path / name, (0, 1), "sac", on_nan="skip", evaluation_interval=None)
        for name in ("plain", "faulty")
    )
    learner = faulty.members[1].learner
    own, left = learner.check, [2]  # together with the other, and then alone

    def fails(*args):
        if learner.iteration == 3 and left[0]:
            left[0] -= 1
            raise NotFinite("it diverges")
        return own(*args)

    monkeypatch.setattr(learner, "check", fails)
    plain.run()
    with pytest.warns(UserWarning, match="iteration 4 is skipped"):
        faulty.run()
    assert left == [0]
    assert left_behind(plain.run_dir, 0) == left_behind(faulty.run_dir, 0)


def test_an_interrupt_starts_no_seed_that_had_not_begun(tmp_path, monkeypatch):
    runs, begun = group(tmp_path / "runs"), []

    def interrupted(seed):
        begun.append(seed)
        raise KeyboardInterrupt

    for member in runs.members:
        own = partial(interrupted, member.config.seed)
        monkeypatch.setattr(member, "from_the_start", partial(started, own))
    with pytest.raises(KeyboardInterrupt):
        runs.run()
    assert begun == [0]


def started(begin):
    """A training whose first step is `begin`."""
    begin()
    yield {}


def test_a_group_that_fails_owes_nobody_an_end(tmp_path, monkeypatch):
    runs = group(tmp_path / "runs")
    stop_signals._owes_end.set()
    assert "seed 0" in str(runs.failure({"seed 0": "it fails"}))
    assert not stop_signals._owes_end.is_set()


def test_a_group_tells_of_another_machine_when_it_goes_on(named_3, capsys):
    config = Path("3/seed-0/config.json")
    recorded = json.loads(config.read_text())
    recorded["versions"]["jax"] = "0.0.1"
    config.write_text(json.dumps(recorded))
    cli.main(["resume", "3", "--quiet"])
    assert "may not continue bit for bit: jax was 0.0.1" in capsys.readouterr().err
