"""RL2-PPO on half-cheetah-vel, meta-tested every 10 iterations: the settings of garage's example.

For example: python examples/rl2_ppo_half_cheetah_meta_test.py --num-iterations 200
"""

import tyro

from adaptax import EvaluatorConfig, Trainer, TrainerConfig, make_algorithm, make_suite


def main(
    num_iterations: int = 200,
    meta_batch_size: int = 10,
    num_episodes_before_test: int = 10,
    num_test_episodes: int = 10,
    seed: int = 1,
    run_dir: str = "runs/rl2-ppo-half-cheetah-meta-test",
) -> None:
    """Train, and tell the return of test episodes on held-out speeds as it goes."""
    suite = make_suite("half-cheetah-vel", horizon=150)
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
    # More episodes of exploration than were trained: a warning says so. 3 or 4 do better.
    protocol = EvaluatorConfig(
        num_tasks=5,
        num_episodes=num_episodes_before_test,
        num_test_episodes=num_test_episodes,
    )
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
