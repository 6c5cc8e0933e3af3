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

from adaptax.experiment.curves import Curve
from adaptax.experiment.plot import curve_style, draw_curve, engineering, save_picture

Points = tuple[list[int], np.ndarray]
"""Environment steps, and figures [seeds, steps]."""


def curve_of(
    runs: list[dict[str, Any]], part: str, figure: Callable[[dict[str, Any]], float]
) -> Points:
    """A figure of every point of a part that all runs have, which may be of other lengths."""
    each = [{point["num_steps"]: figure(point) for point in run[part]} for run in runs]
    steps = sorted(set.intersection(*map(set, each)))
    return steps, np.array([[own[step] for step in steps] for own in each])


def main() -> None:
    """Draw the return of the last episode on held-out tasks, or success, over environment steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", metavar="NAME=FILE", nargs="+")
    parser.add_argument("--success", action="store_true", help="in training and on held-out tasks")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    numbers = []
    for i, item in enumerate(options.files):
        name, _, file = item.partition("=")
        runs, style = json.loads(Path(file).read_text())["runs"], curve_style(i)
        numbers.append(len(runs))
        label = f"{name}, {len(runs)} seed{'s' * (len(runs) > 1)}"
        if options.success:
            steps, training = curve_of(runs, "training", lambda point: point["success"])
            dashed = {**style, "linestyle": "--"}
            axes.plot(steps, training.mean(0), label=f"{label}: training", **dashed)
            steps, means = curve_of(runs, "curve", lambda point: point["test"]["mean"])
            label += ": held-out"
        else:
            steps, means = curve_of(runs, "curve", lambda point: point["episodes"][-1]["mean"])
        curve = Curve(np.array(steps), means.mean(0), means.min(0), means.max(0))
        draw_curve(axes, curve, label, shaded=len(runs) > 1, marker="o", **style)
    shown = (
        "success at any step" if options.success else "return of the last episode, held-out tasks"
    )
    axes.set(xlabel="environment steps", ylabel=shown)
    axes.xaxis.set_major_formatter(engineering())
    axes.grid(color="#dddddd", linewidth=0.6)
    what = "one seed each" if max(numbers) == 1 else "mean over seeds; shaded: their range"
    font = {"fontsize": 8, "title_fontsize": 8}
    figure.legend(frameon=False, loc="outside lower center", ncols=2, title=what, **font)
    save_picture(figure, options.out)


if __name__ == "__main__":
    main()
