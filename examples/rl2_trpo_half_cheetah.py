"""RL2-TRPO on half-cheetah-vel with the settings of garage's example.

For example: python examples/rl2_trpo_half_cheetah.py --num-iterations 200
"""

import tyro

from adaptax import Trainer, TrainerConfig, make_algorithm, make_suite


def main(
    num_iterations: int = 200,
    meta_batch_size: int = 10,
    seed: int = 1,
    run_dir: str = "runs/rl2-trpo-half-cheetah",
) -> None:
    """Train, and tell the return of each episode on held-out speeds."""
    suite = make_suite("half-cheetah-vel", horizon=150)
    algorithm = make_algorithm(
        "rl2-trpo",
        suite.spec,
        meta_batch_size=meta_batch_size,
        num_episodes=4,
        discount=0.99,
        gae_lambda=0.98,
        num_minibatches=1,
        memory={"kind": "gru", "size": 64},
        # The example differentiates numerically; hvp="exact" costs less and is exact.
        trust_region={"max_kl_step": 0.01, "hvp": "finite_difference", "base_eps": 1e-5},
    )
    config = TrainerConfig(run_dir, seed=seed, num_iterations=num_iterations)
    with Trainer(config, algorithm, suite) as trainer:
        trainer.run()
        for episode in trainer.evaluate().row()["episodes"]:
            low, high = episode["return_ci"]
            print(
                f"episode {episode['index']}: {episode['return_mean']:.1f} [{low:.1f}, {high:.1f}]"
            )


if __name__ == "__main__":
    tyro.cli(main)
