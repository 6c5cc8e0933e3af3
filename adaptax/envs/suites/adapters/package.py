"""Packages that a suite needs and that need not be there."""

from __future__ import annotations

import importlib
from typing import Any

from adaptax.core.errors import ConfigError, one_line


def imported(package: str, extra: str) -> Any:
    """The package; a ConfigError says how to install it where it cannot be imported."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{one_line(error)}; install it with pip install 'adaptax[{extra}]'"
        ) from error
