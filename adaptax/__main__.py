"""The command `adaptax`, and `python -m adaptax`."""

import os
import signal
from contextlib import suppress
from types import FrameType


def main() -> None:
    """Run a command, one that Ctrl-C ends from its first moment."""
    # While JAX is imported, a KeyboardInterrupt would be an error of its, or be lost.
    signal.signal(signal.SIGINT, end_at_once)
    from adaptax.experiment.cli import main as obey

    obey()


def end_at_once(number: int, frame: FrameType | None) -> None:
    """End this process, which has begun nothing yet that is to be tidied up."""
    with suppress(OSError):  # it may be closed
        os.write(2, b"adaptax: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
