"""What in an RL2 agent's carry changes its second episode: what it remembers, or what it last saw.

Each run's last agent plays a first episode on every held-out goal, and from where that ended a
second one: as it is, with the memory cleared, with the last action, reward and flag cleared, and
with both, which is a first episode again.

Call: python benchmarks/second_episode.py RUN_DIR [RUN_DIR ...] --command "adaptax train ..."
      --out FILE [--lanes 4]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from meta_runs import estimate, standing_of, write_runs

from adaptax.core.experience import Rollout
from adaptax.experiment.build import load_run
from adaptax.sampling.memory_actors import TrialInputs
from adaptax.sampling.sampler import Sampler

SEEN = ("last_action", "last_reward", "boundary")
CLEARED = {
    "as it is": (),
    "memory cleared": ("actor",),
    "last inputs cleared": SEEN,
    "both cleared": ("actor", *SEEN),
}


def judged(run_dir: Path, num_lanes: int) -> dict[str, Any]:
    """Return and success of the first episode, and of each kind of second one."""
    trainer = load_run(run_dir)
    trainer.load()
    algorithm, state, suite = trainer.algorithm, trainer.state, trainer.suite
    sampler = Sampler(suite, suite.test, 0, "evaluation")
    tasks = suite.test.tasks
    actor = algorithm.actor(state, deterministic=False)
    first = sampler.episodes(actor, tasks, num_lanes, 1)
    later = algorithm.adapt(state, actor, [first], deterministic=False)
    assert isinstance(later, TrialInputs)
    figures = {"first": figures_of(first)}
    for name, cleared in CLEARED.items():
        zeros = {part: jax.tree.map(jnp.zeros_like, later.start[part]) for part in cleared}
        second = replace(later, start={**later.start, **zeros})
        figures[name] = figures_of(sampler.episodes(second, tasks, num_lanes, 1))
    sampler.close()
    trainer.close()
    for name, row in figures.items():
        returns, success = row["return"]["mean"], row["success"]["mean"]
        print(f"{run_dir.name:28s} {name:22s} {returns:8.1f} {success:.2f}", flush=True)
    about = {"num_goals": len(tasks), "num_lanes": num_lanes}
    return {**standing_of(run_dir), **about, "episodes": figures}


def figures_of(rollout: Rollout) -> dict[str, Any]:
    """Means over the goals, with their intervals."""
    returns = np.asarray(rollout.reward).sum(axis=-1)
    success = np.asarray(rollout.extras["success"]).max(axis=-1)
    return {"return": estimate(returns.mean(axis=1)), "success": estimate(success.mean(axis=1))}


def main() -> None:
    """Play, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dirs", type=Path, nargs="+")
    parser.add_argument("--command", required=True, help="what trained them, SEED for the seed")
    parser.add_argument("--lanes", type=int, default=4, help="episodes of each kind on each goal")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    runs = [judged(run, options.lanes) for run in options.run_dirs]
    write_runs(options.out, options.command, runs)


if __name__ == "__main__":
    main()
