"""Modules that a name may have imported: those that a person typed, and installed packages'."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import entry_points

from adaptax.core.errors import ConfigError, check, one_line

VARIABLE = "ADAPTAX_IMPORT"
"""What was typed, with colons between; the environment hands it on to processes of one's own."""
GROUPS = ("adaptax.algorithms", "adaptax.suites", "adaptax.memories", "adaptax.callbacks")
"""The entry points whose modules may be imported."""


def permit(module: str | None) -> None:
    """Have names import `module` from here on, in this process and in those that it starts.

    Only for what a person typed, never for what a file says. It may be in the current directory.
    """
    if module is None:
        return
    check(all(part.isidentifier() for part in module.split(".")), f"{module!r} names no module")
    os.environ[VARIABLE] = ":".join(dict.fromkeys([*typed_modules(), module]))


def import_permitted(module: str, what: str) -> None:
    """Import the module that `what` needs; a ConfigError where nobody has asked for it."""
    if module in sys.modules:
        return
    typed = module in typed_modules()
    packaged = any(p.module == module for group in GROUPS for p in entry_points(group=group))
    check(
        typed or packaged,
        f"{what} runs the code of the module {module!r}, which no file gets imported: if you trust "
        f"it, add --import {module}, or `import {module}` in Python",
    )
    if typed and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever somebody's module does
        raise ConfigError(
            f"{what}: the module {module!r} cannot be imported: {one_line(error)}"
        ) from error


def typed_modules() -> list[str]:
    """The modules that were typed in this process or for it."""
    return [name for name in os.environ.get(VARIABLE, "").split(":") if name]
