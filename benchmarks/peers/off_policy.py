"""A run of Stable-Baselines3 or sbx for benchmarks/off_policy.py, in the peers' own environment.

    python off_policy.py '{"contender": "sbx", "algorithm": "sac", "env_id": ..., ...}'

The last line printed is JSON. With `num_updates`: gradient updates per second. Else: seconds of
training, the final evaluation, and every episode as (steps so far, return).
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_on_policy import Episodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise

LIBRARIES = {"stable-baselines3": "stable_baselines3", "sbx": "sbx"}
SHARED = ("learning_rate", "buffer_size", "learning_starts", "batch_size", "gamma", "tau")
SHARED += ("train_freq", "gradient_steps")
OF_DQN = ("target_update_interval", "exploration_fraction", "exploration_final_eps")


def make_model(request: dict[str, Any]) -> Any:
    """The algorithm with the requested settings; all else is the library's default."""
    algorithm = request["algorithm"].upper()
    names = [*SHARED, *(OF_DQN if algorithm == "DQN" else ())]
    settings = {name: request[name] for name in names}
    env = make_vec_env(request["env_id"], 1, seed=request["seed"])
    if request["action_noise"] is not None:
        size = env.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(
            np.zeros(size), np.full(size, request["action_noise"])
        )
    if request["contender"] == "sbx" and algorithm in ("TD3", "DDPG"):
        settings["qf_learning_rate"] = request["learning_rate"]
    make = getattr(import_module(LIBRARIES[request["contender"]]), algorithm)
    policy = {"net_arch": request["net_arch"]}
    return make(
        "MlpPolicy", env, **settings, seed=request["seed"], device="cpu", policy_kwargs=policy
    )


def updates(request: dict[str, Any]) -> dict[str, Any]:
    """Updates per second after a warm-up of random steps, in blocks of several sizes.

    A block is one call of `train`: one update as while it learns, or more at once, which serves
    a library that compiles a block whole.
    """
    model = make_model(request)
    model.learn(request["learning_starts"])
    rates = {}
    for block in request["blocks"]:
        seconds = []
        for _ in range(request["num_blocks"]):
            started = time.perf_counter()
            for _ in range(request["num_updates"] // block):
                model.train(gradient_steps=block, batch_size=request["batch_size"])
            np.asarray(model.predict(model.observation_space.sample())[0])
            seconds.append(time.perf_counter() - started)
        # The first block compiles.
        rates[str(block)] = [request["num_updates"] / s for s in seconds[1:]]
    return {"updates_per_second": rates}


def learn(request: dict[str, Any]) -> dict[str, Any]:
    """Train and evaluate."""
    started = time.perf_counter()
    model, episodes = make_model(request), Episodes()
    model.learn(request["total_steps"], callback=episodes)
    seconds = time.perf_counter() - started
    env = Monitor(gymnasium.make(request["env_id"]))
    evaluation, _ = evaluate_policy(model, env, request["eval"], deterministic=True)
    return {
        "seconds": seconds,
        "num_steps": model.num_timesteps,
        "num_updates": model._n_updates,
        "evaluation": float(evaluation),
        "episodes": episodes.episodes,
    }


def main() -> None:
    """Do what was asked, print."""
    request = json.loads(sys.argv[1])
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    report = learn(request) if request["num_updates"] is None else updates(request)
    packages = ("stable-baselines3", "sbx-rl", "torch", "jax", "gymnasium", "mujoco", "numpy")
    about = {name: version(name) for name in packages} | {"threads": torch.get_num_threads()}
    print(json.dumps({**report, "about": about}))


if __name__ == "__main__":
    main()
