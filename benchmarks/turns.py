"""How benchmarks time several pieces of work in one run, and leave their figures."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from adaptax.envs.suite import Suite
from adaptax.experiment.provenance import provenance

WARM_UP = 2
"""Rounds that compile."""


def median_milliseconds(work: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each; they take turns, so that a busy moment hits all."""
    spent: dict[str, list[float]] = {name: [] for name in work}
    for i in range(rounds + WARM_UP):
        for name, run in work.items():
            started = time.perf_counter()
            jax.block_until_ready(run())
            if i >= WARM_UP:
                spent[name].append(1e3 * (time.perf_counter() - started))
    return {name: float(np.median(times)) for name, times in spent.items()}


def write_report(path: Path, report: dict[str, Any], suite: Suite) -> None:
    """A benchmark's figures as JSON, with what they were measured on."""
    about = {"machine": platform.processor() or platform.machine(), **provenance(suite)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**report, "about": about}, indent=2) + "\n")
