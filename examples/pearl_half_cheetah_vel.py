"""PEARL on half-cheetah-vel with the authors' settings: run at an untold speed of up to 3 m/s.

For example: python examples/pearl_half_cheetah_vel.py --num-iterations 20
"""

import tyro

from adaptax import Trainer, TrainerConfig, make_algorithm, make_suite


def main(
    num_iterations: int = 20,
    num_updates: int = 2000,
    num_train_tasks: int = 100,
    seed: int = 1,
    run_dir: str = "runs/pearl-half-cheetah-vel",
) -> None:
    """Train, and tell the return after 0, 1 and 2 episodes of exploration on held-out speeds."""
    suite = make_suite("half-cheetah-vel-pearl")
    algorithm = make_algorithm(
        "pearl",
        suite.spec,
        critic="value",
        init_weights="original",
        adam_epsilon=1e-8,
        num_train_tasks=num_train_tasks,
        num_updates=num_updates,
        reward_scale=5.0,
    )
    config = TrainerConfig(run_dir, seed=seed, num_iterations=num_iterations, evaluation_interval=1)
    with Trainer(config, algorithm, suite) as trainer:
        trainer.run()
        for episode in trainer.evaluate().row()["episodes"][:3]:
            mean, (low, high) = episode["return_mean"], episode["return_ci"]
            print(f"after {episode['index'] - 1}: {mean:.1f} [{low:.1f}, {high:.1f}]")


if __name__ == "__main__":
    tyro.cli(main)
