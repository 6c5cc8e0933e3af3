"""What benchmarks/off_policy.py compares: the settings of all sides."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    """One comparison: the settings of all sides, in Stable-Baselines3's words."""

    algorithm: str
    env_id: str
    suite: str
    total_steps: int
    learning_rate: float
    net_arch: tuple[int, ...]
    gamma: float = 0.99
    batch_size: int = 256
    buffer_size: int = 1_000_000
    learning_starts: int = 10_000
    tau: float = 0.005
    train_freq: int = 1
    gradient_steps: int = 1
    action_noise: float | None = None
    """Standard deviation."""
    target_update_interval: int = 1
    exploration_fraction: float = 0.1
    exploration_final_eps: float = 0.05
    num_updates: int | None = None
    """If given, only updates are timed, so many in a block."""
    blocks: tuple[int, ...] = (1, 50)
    """Sizes of the calls in which peers make them."""
    num_blocks: int = 6


# Settings of RL Baselines3 Zoo, https://github.com/DLR-RM/rl-baselines3-zoo (hyperparams/).
SAC = Case("sac", "HalfCheetah-v5", "half-cheetah", 100_000, 3e-4, (256, 256))
DQN = Case(
    "dqn",
    "CartPole-v1",
    "gym:CartPole-v1",
    100_000,
    2.3e-3,
    (256, 256),
    batch_size=64,
    buffer_size=100_000,
    learning_starts=1_000,
    tau=1.0,
    train_freq=256,
    gradient_steps=128,
    target_update_interval=10,
    exploration_fraction=0.16,
    exploration_final_eps=0.04,
)
TD3 = Case(
    "td3",
    "Pendulum-v1",
    "gym:Pendulum-v1",
    100_000,
    1e-3,
    (400, 300),
    gamma=0.98,
    buffer_size=200_000,
    action_noise=0.1,
)
CASES = {
    "sac-half-cheetah": SAC,
    "dqn-cartpole": DQN,
    "td3-pendulum": TD3,
    "ddpg-pendulum": replace(TD3, algorithm="ddpg"),
    "sac-30k": replace(SAC, total_steps=30_000),
    "dqn-30k": replace(DQN, total_steps=30_000),
    "sac-updates": replace(SAC, num_updates=1_000),
}
