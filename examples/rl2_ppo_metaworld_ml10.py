"""RL2-PPO on ML10, meta-tested every 10 iterations, with the settings of garage's example.

For example: python examples/rl2_ppo_metaworld_ml10.py --num-iterations 200
"""

import tyro

from adaptax import EvaluatorConfig, Trainer, TrainerConfig, make_algorithm, make_suite


def main(
    num_iterations: int = 200,
    meta_batch_size: int = 10,
    num_episodes: int = 10,
    horizon: int = 500,
    seed: int = 1,
    run_dir: str = "runs/rl2-ppo-ml10",
) -> None:
    """Train, and tell the success on each of the five test classes as it goes."""
    suite = make_suite("ml10", horizon=horizon)
    algorithm = make_algorithm(
        "rl2-ppo",
        suite.spec,
        meta_batch_size=meta_batch_size,  # a multiple of the ten training classes
        num_episodes=num_episodes,
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
    protocol = EvaluatorConfig(num_tasks=5, num_episodes=num_episodes, num_test_episodes=1)
    config = TrainerConfig(
        run_dir,
        seed=seed,
        num_iterations=num_iterations,
        evaluation_interval=10,
        evaluation=protocol,
    )
    with Trainer(config, algorithm, suite) as trainer:
        trainer.run()


if __name__ == "__main__":
    tyro.cli(main)
