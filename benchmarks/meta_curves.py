"""Learning curves of what `meta_runs.py` wrote: mean over seeds, shaded their range.

Call: python benchmarks/meta_curves.py NAME=FILE [NAME=FILE ...] --out FILE.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from adaptax.experiment.plot import COLOURS


def main() -> None:
    """Draw the return of the last episode on held-out tasks over environment steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", metavar="NAME=FILE", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), constrained_layout=True)
    for item, colour in zip(options.files, COLOURS, strict=False):
        name, _, file = item.partition("=")
        curves = [run["curve"] for run in json.loads(Path(file).read_text())["runs"]]
        steps = [point["num_steps"] for point in curves[0]]
        means = np.array([[point["episodes"][-1]["mean"] for point in curve] for curve in curves])
        label = f"{name}, {len(curves)} seed{'s' * (len(curves) > 1)}"
        axis.plot(steps, means.mean(0), color=colour, marker="o", markersize=4, label=label)
        axis.fill_between(steps, means.min(0), means.max(0), color=colour, alpha=0.17, lw=0)
    axis.set(xlabel="environment steps", ylabel="return of the last episode, held-out tasks")
    axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=" "))
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.legend(frameon=False)
    figure.savefig(options.out, dpi=150)


if __name__ == "__main__":
    main()
