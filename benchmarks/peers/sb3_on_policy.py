"""A run of Stable-Baselines3 for benchmarks/on_policy.py, in the peers' own environment.

    python sb3_on_policy.py '{"algorithm": "ppo", "env_id": "CartPole-v1", ...}'

The last line printed is JSON: seconds of training, final evaluation, and every episode as (steps
so far, return).
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import gymnasium
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


class Episodes(BaseCallback):
    """Keeps (steps so far, return) of every episode that ends."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.episodes.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


def make_model(request: dict[str, Any]) -> Any:
    """The algorithm with the requested settings; all else is Stable-Baselines3's default."""
    names = ("n_steps", "learning_rate", "gae_lambda", "gamma", "ent_coef", "vf_coef")
    settings = {name: request[name] for name in (*names, "max_grad_norm")}
    sizes = {"pi": [64, 64], "vf": [64, 64]}
    policy_kwargs = {"net_arch": sizes, "activation_fn": torch.nn.Tanh}
    env = make_vec_env(request["env_id"], request["n_envs"], seed=request["seed"])
    shared = {"seed": request["seed"], "device": "cpu", "policy_kwargs": policy_kwargs}
    if request["algorithm"] == "a2c":
        return A2C("MlpPolicy", env, **settings, **shared)
    more = {name: request[name] for name in ("batch_size", "n_epochs", "clip_range")}
    return PPO("MlpPolicy", env, **settings, **more, **shared)


def main() -> None:
    """Train, evaluate, print."""
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["num_threads"])
    model, episodes = make_model(request), Episodes()
    started = time.perf_counter()
    model.learn(request["total_steps"], callback=episodes)
    seconds = time.perf_counter() - started
    env = Monitor(gymnasium.make(request["env_id"]))
    evaluation, _ = evaluate_policy(model, env, request["eval"], deterministic=True)
    packages = ("stable-baselines3", "torch", "gymnasium", "mujoco", "numpy")
    report = {
        "seconds": seconds,
        "num_steps": model.num_timesteps,
        "evaluation": float(evaluation),
        "episodes": episodes.episodes,
        "about": {name: version(name) for name in packages} | {"threads": torch.get_num_threads()},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
