"""Runs whose output nobody takes: training goes on to its end, and what can be written later is."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from adaptax.experiment.console import say
from adaptax.experiment.logger import read_rows

NUM_ITERATIONS = 30
WORDS = ["--num-iterations", str(NUM_ITERATIONS), "--evaluation-interval", "None"]


def program(run_dir: Path, *more: str) -> list[str]:
    words = ["train", "nop", "point-goal", "--run-dir", str(run_dir), *WORDS, *more]
    return [sys.executable, "-m", "adaptax.experiment.cli", *words]


def is_whole(run_dir: Path) -> bool:
    return [row["iteration"] for row in read_rows(run_dir / "progress.jsonl")] == list(
        range(1, NUM_ITERATIONS + 1)
    )


def gone_reader(stack: ExitStack) -> int:
    """Where nobody will ever read."""
    reader, writer = os.pipe()
    os.close(reader)
    stack.callback(os.close, writer)
    return writer


def full_disk(stack: ExitStack) -> int:
    file = os.open("/dev/full", os.O_WRONLY)
    stack.callback(os.close, file)
    return file


@pytest.mark.parametrize("place", [gone_reader, full_disk])
@pytest.mark.parametrize(
    "streams",
    [
        *(pytest.param((x,), marks=pytest.mark.slow) for x in ("stdout", "stderr")),
        ("stdout", "stderr"),
    ],
)
def test_a_run_goes_on_to_its_end_whatever_becomes_of_its_output(tmp_path, place, streams):
    run_dir = tmp_path / "run"
    # A warning, so that there is something to say on standard error as well.
    script = "import warnings; warnings.simplefilter('always');"
    script += "from adaptax.experiment import cli, process;"
    script += "warnings.showwarning = process.one_line_warning; warnings.warn('something');"
    script += f"cli.main({program(run_dir)[3:]!r})"
    with ExitStack() as stack:
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        outputs |= {name: place(stack) for name in streams}
        done = subprocess.run([sys.executable, "-c", script], text=True, **outputs)
    assert done.returncode == 0, done.stderr
    assert is_whole(run_dir)
    assert done.stdout is None or f"iteration {NUM_ITERATIONS}/" in done.stdout
    assert done.stderr is None or done.stderr == "adaptax: warning: something\n"


@pytest.mark.slow
def test_a_reader_that_stops_reading_does_not_end_a_run(tmp_path):
    run_dir = tmp_path / "run"
    with subprocess.Popen(
        program(run_dir), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("iteration 1/")
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, "")
    assert is_whole(run_dir)


def test_a_closed_standard_output_does_not_end_a_run(tmp_path):
    run_dir = tmp_path / "run"
    line = 'exec "$@" >&-'
    done = subprocess.run(
        ["bash", "-c", line, "bash", *program(run_dir)], stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert is_whole(run_dir)


def test_an_error_that_cannot_be_said_is_still_told_by_the_exit_code(tmp_path):
    with ExitStack() as stack:
        done = subprocess.run(program(tmp_path / "run", "--seed", "x"), stderr=full_disk(stack))
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", r"wrote caf\xe9-\u96ea"), ("utf-8", "wrote café-雪")]
)
def test_letters_that_the_output_lacks_are_escaped_and_no_line_is_lost(encoding, shown):
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, encoding=encoding, write_through=True)
    say("wrote café-雪", stream)
    assert out.getvalue().decode(encoding) == f"{shown}\n"


@pytest.mark.parametrize("command", ["--version", "list"])
def test_a_full_disk_below_what_was_asked_for_is_told(command):
    """Or a script would go on with half a file, by an exit code that says that all is well."""
    with ExitStack() as stack:
        words = [sys.executable, "-m", "adaptax.experiment.cli", command]
        environment = {**os.environ, "PYTHONUNBUFFERED": ""}
        done = subprocess.run(
            words, stdout=full_disk(stack), stderr=subprocess.PIPE, text=True, env=environment
        )
    told = "adaptax: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, told)
