import os
import subprocess
import sys

import pytest

from adaptax.core.compilation import drop_unfinished, keep_compiled_programs

PROGRAM = """
import sys
from adaptax.core.compilation import keep_compiled_programs
if sys.argv[1] == "late":
    import jax
keep_compiled_programs()
import jax, jax.numpy as jnp
from jax import monitoring

hits = []
monitoring.register_event_listener(lambda event, **_: hits.append(event))

@jax.jit
def slow_to_compile(x):
    for _ in range(200):
        x = jnp.sort(jnp.sin(x) @ x)
    return x

print(float(slow_to_compile(jnp.eye(8)).sum()).hex(), "/jax/compilation_cache/cache_hits" in hits)
"""


def interpreter(cache, when="early") -> list[str]:
    """What the program prints in an interpreter whose user has kept nothing elsewhere."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMP", "JAX_PERS"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, when],
        capture_output=True,
        text=True,
        check=True,
        env={**inherited, "XDG_CACHE_HOME": str(cache)},
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_the_second_interpreter_reads_what_the_first_compiled(tmp_path):
    first, second, late = (interpreter(tmp_path, when) for when in ("early", "early", "late"))
    assert first == [second[0], "False"]
    assert second == late == [first[0], "True"]
    (kept,) = (tmp_path / "adaptax").iterdir()
    assert any(kept.glob("*slow_to_compile*"))
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_program_whose_writing_was_cut_short_is_compiled_once_more(tmp_path):
    interpreter(tmp_path)
    (kept,) = (tmp_path / "adaptax").iterdir()
    (program,) = kept.glob("*slow_to_compile*-cache")
    program.write_bytes(b"")
    assert interpreter(tmp_path)[1] == "False"  # without a warning
    assert program.stat().st_size > 0


def test_only_programs_whose_writing_was_cut_short_are_removed(tmp_path):
    for name, content in {"whole": b"x", "empty": b"", "alone": b"x"}.items():
        (tmp_path / f"{name}-cache").write_bytes(content)
        (tmp_path / f"{name}-atime").touch()
    (tmp_path / "alone-atime").unlink()
    (tmp_path / ".lockfile").touch()
    drop_unfinished(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"whole-cache", "whole-atime", "empty-atime", ".lockfile"}
    drop_unfinished(tmp_path / "absent")


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").touch()
    assert interpreter(tmp_path / "file")[1] == "False"


@pytest.mark.parametrize("chosen", ["", "/elsewhere"])
def test_a_directory_that_was_named_stays(monkeypatch, chosen):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", chosen)
    keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == chosen
