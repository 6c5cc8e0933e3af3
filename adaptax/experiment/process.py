"""A process that is a program of ours: what it sets up first, and how it ends where it fails."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from adaptax.core.errors import AdaptaxError, one_line, out_of_memory
from adaptax.core.memory import keep_freed_memory
from adaptax.experiment.console import ERROR, WARNING, say, settle
from adaptax.experiment.stop_signals import INTERRUPTED

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Of a disk that takes no more."""


def set_up_process(num_cores: int | None) -> None:
    """What has to come before JAX computes anything."""
    from adaptax.core.devices import check_platform, make_every_core_a_device

    keep_freed_memory()
    if num_cores is not None:
        from adaptax.experiment.cores import take_cores

        take_cores(num_cores)
    make_every_core_a_device()
    check_platform()


@contextlib.contextmanager
def in_one_line(*, trains: bool) -> Iterator[None]:
    """Print warnings and errors that a person can act on as one line; errors end the process.

    `trains`: a training command goes on when its output cannot be written (see `say`); any other
    ends, since what it prints is what it was asked for.
    """
    warnings.showwarning = one_line_warning
    try:
        yield
        if not trains and sys.stdout is not None:
            sys.stdout.flush()
    except AdaptaxError as error:
        say(f"{ERROR}{error}", sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, `head` for example, has gone
        if trains:  # whose output does not end it: something else has
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if trains or error.filename is not None or error.errno not in FULL:
            raise
        say(f"{ERROR}cannot write the output: {error.strerror}", sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        say(f"{ERROR}{stop if stop.args else 'interrupted'}", sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if not out_of_memory(error):
            raise
        needless = "fewer lanes or tasks, smaller batches or networks need less"
        say(f"{ERROR}out of memory: {one_line(error)}; {needless}", sys.stderr)
        sys.exit(2)
    finally:
        settle(sys.stdout)
        settle(sys.stderr)


def one_line_warning(message: Warning | str, *about: Any, **more: Any) -> None:
    """Show a warning as one line on stderr; takes the place of `warnings.showwarning`."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(message))  # Gymnasium colours its warnings
    say(f"{WARNING}{text}", sys.stderr)
