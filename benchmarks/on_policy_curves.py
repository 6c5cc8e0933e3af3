"""Learning curves of the on-policy algorithms on `cartpole`, for their pages.

    python benchmarks/on_policy_curves.py

writes results/on_policy/curves.json and docs/figures/on_policy_curves.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from turns import write_report

from adaptax.core.config import to_dict
from adaptax.core.rng import named_key
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.curves import Curve
from adaptax.experiment.plot import curve_style, draw_curve, engineering, save_picture
from adaptax.sampling.sampler import Sampler

ROOT = Path(__file__).parent.parent
SEEDS = range(5)
TOTAL_STEPS, NUM_BINS = 100_000, 25
NAMES = ("reinforce", "a2c", "ppo", "ppo2", "trpo")
"""With the defaults of their classes."""


def curve(name: str, seed: int) -> list[float | None]:
    """Mean return of the episodes that ended in each part of the run."""
    suite = make_suite("cartpole")
    algorithm = make_algorithm(name, suite.spec)
    sampler = Sampler(suite, suite.train, seed, "train")
    state, ended = algorithm.init(named_key(seed, "init")), 0
    parts: list[list[tuple[float, int]]] = [[] for _ in range(NUM_BINS)]
    while sampler.num_steps < TOTAL_STEPS:
        state, _ = algorithm.iteration(state, sampler)
        count, ended = sampler.num_episodes - ended, sampler.num_episodes
        mean_return = sampler.statistics.take()["return"]
        if count:
            part = min(NUM_BINS * sampler.num_steps // TOTAL_STEPS, NUM_BINS - 1)
            parts[part].append((mean_return, count))
    return [_mean(part) for part in parts]


def _mean(part: list[tuple[float, int]]) -> float | None:
    if not part:
        return None
    means, counts = zip(*part, strict=True)
    return float(np.average(means, weights=counts))


def plot(curves: dict[str, list[list[float | None]]], path: Path) -> None:
    """Means over seeds, and the range of all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    steps = (np.arange(NUM_BINS) + 0.5) * TOTAL_STEPS / NUM_BINS
    for i, (name, runs) in enumerate(curves.items()):
        values = np.array(runs, float)
        known = ~np.isnan(values).all(0)
        x, values = steps[known], values[:, known]
        parts = np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0)
        draw_curve(axes, Curve(x, *parts), name, **curve_style(i), marker="o")
    axes.set(xlabel="environment steps", ylabel="return of an episode", title="cartpole")
    axes.xaxis.set_major_formatter(engineering())
    axes.grid(color="#dddddd", linewidth=0.6)
    title = f"episodes of training, mean of {len(SEEDS)} seeds; shaded: their range"
    place = {"loc": "outside lower center", "ncols": len(curves), "frameon": False}
    figure.legend(title=title, fontsize=8, title_fontsize=8, **place)
    save_picture(figure, path)


def main() -> None:
    """See the head of this file."""
    argparse.ArgumentParser(description=__doc__).parse_args()  # --help, and no misspelt flag
    curves = {name: [curve(name, seed) for seed in SEEDS] for name in NAMES}
    suite = make_suite("cartpole")
    settings = {name: to_dict(make_algorithm(name, suite.spec).config) for name in NAMES}
    report = {"settings": settings, "total_steps": TOTAL_STEPS, "curves": curves}
    write_report(ROOT / "results" / "on_policy" / "curves.json", report, suite)
    plot(curves, ROOT / "docs" / "figures" / "on_policy_curves.png")


if __name__ == "__main__":
    main()
