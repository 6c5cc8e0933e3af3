"""Learning curves of what `meta_runs.py` or `metaworld_runs.py` wrote.

The mean over seeds, shaded their range.

Call: python benchmarks/meta_curves.py NAME=FILE [NAME=FILE ...] [--success] --out FILE.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.experiment.plot import COLOURS

Curve = tuple[list[int], np.ndarray]
"""Environment steps, and figures [seeds, steps]."""


def curve_of(
    runs: list[dict[str, Any]], part: str, figure: Callable[[dict[str, Any]], float]
) -> Curve:
    """A figure of every point of a part of the runs."""
    steps = [point["num_steps"] for point in runs[0][part]]
    return steps, np.array([[figure(point) for point in run[part]] for run in runs])


def main() -> None:
    """Draw the return of the last episode on held-out tasks, or success, over environment steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", metavar="NAME=FILE", nargs="+")
    parser.add_argument("--success", action="store_true", help="in training and on held-out tasks")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), constrained_layout=True)
    for item, colour in zip(options.files, COLOURS, strict=False):
        name, _, file = item.partition("=")
        runs = json.loads(Path(file).read_text())["runs"]
        label = f"{name}, {len(runs)} seed{'s' * (len(runs) > 1)}"
        if options.success:
            steps, training = curve_of(runs, "training", lambda point: point["success"])
            axis.plot(steps, training.mean(0), "--", color=colour, label=f"{label}: training")
            steps, means = curve_of(runs, "curve", lambda point: point["test"]["mean"])
            label += ": held-out"
        else:
            steps, means = curve_of(runs, "curve", lambda point: point["episodes"][-1]["mean"])
        axis.plot(steps, means.mean(0), color=colour, marker="o", markersize=4, label=label)
        axis.fill_between(steps, means.min(0), means.max(0), color=colour, alpha=0.17, lw=0)
    shown = (
        "success at any step" if options.success else "return of the last episode, held-out tasks"
    )
    axis.set(xlabel="environment steps", ylabel=shown)
    axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=" "))
    axis.grid(color="#dddddd", linewidth=0.6)
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    figure.savefig(options.out, dpi=150)


if __name__ == "__main__":
    main()
