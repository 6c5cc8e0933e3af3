"""RL2-PPO on half-cheetah-vel: run at a speed that only the reward tells.

For example: python examples/rl2_half_cheetah.py --num-iterations 200
"""

from pathlib import Path

import tyro

from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.plot import plot_adaptation
from adaptax.experiment.trainer import Trainer, TrainerConfig


def main(
    num_iterations: int = 200,
    meta_batch_size: int = 32,
    seed: int = 0,
    run_dir: str = "runs/rl2-half-cheetah",
) -> None:
    """Train, tell the return of each episode on held-out speeds, and draw it."""
    suite = make_suite("half-cheetah-vel")
    algorithm = make_algorithm("rl2-ppo", suite.spec, meta_batch_size=meta_batch_size)
    config = TrainerConfig(
        run_dir, seed=seed, num_iterations=num_iterations, evaluation_interval=50
    )
    trainer = Trainer(config, algorithm, suite)
    trainer.run()
    for episode in trainer.evaluate().row()["episodes"]:
        low, high = episode["return_ci"]
        print(f"episode {episode['index']}: {episode['return_mean']:.1f} [{low:.1f}, {high:.1f}]")
    trainer.close()
    plot_adaptation([Path(run_dir)], Path(run_dir) / "adaptation.png")


if __name__ == "__main__":
    tyro.cli(main)
