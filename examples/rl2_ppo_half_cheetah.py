"""RL2-PPO on half-cheetah-vel with the settings of garage's example: run at an untold speed.

For example: python examples/rl2_ppo_half_cheetah.py --num-iterations 200
"""

from pathlib import Path

import tyro

from adaptax import Trainer, TrainerConfig, make_algorithm, make_suite
from adaptax.experiment.plot import plot_adaptation


def main(
    num_iterations: int = 200,
    meta_batch_size: int = 10,
    seed: int = 1,
    run_dir: str = "runs/rl2-ppo-half-cheetah",
) -> None:
    """Train, tell the return of each episode on held-out speeds, and draw it."""
    suite = make_suite("half-cheetah-vel", horizon=100)
    algorithm = make_algorithm(
        "rl2-ppo",
        suite.spec,
        meta_batch_size=meta_batch_size,
        num_episodes=4,
        discount=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        num_epochs=10,
        num_minibatches=1,
        memory={"kind": "gru", "size": 64},
        entropy_method="max",
        entropy_coeff=0.02,
        stop_entropy_gradient=True,
        normalize_advantage="none",
    )
    config = TrainerConfig(
        run_dir, seed=seed, num_iterations=num_iterations, evaluation_interval=50
    )
    with Trainer(config, algorithm, suite) as trainer:
        trainer.run()
        for episode in trainer.evaluate().row()["episodes"]:
            low, high = episode["return_ci"]
            print(
                f"episode {episode['index']}: {episode['return_mean']:.1f} [{low:.1f}, {high:.1f}]"
            )
    plot_adaptation([Path(run_dir)], Path(run_dir) / "adaptation.png")


if __name__ == "__main__":
    tyro.cli(main)
