"""A run of Stable-Baselines3 with the settings of RL Baselines3 Zoo, for benchmarks/recipes.py.

    python sb3_zoo.py '{"algorithm": "ppo", "env_id": "CartPole-v1", "seed": 0}'

The last line printed is JSON: mean return of 20 episodes of the last policy by its mode, seconds of
training, and the settings. MuJoCo's environments of version 5 have the settings that the zoo has
for version 4.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import rl_zoo3
import torch
import yaml
from rl_zoo3 import ALGOS
from rl_zoo3.train import train
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

NUM_EVALUATIONS = 20


def main() -> None:
    """Do what was asked, print."""
    request = json.loads(sys.argv[1])
    algorithm, env_id, seed = (request[name] for name in ("algorithm", "env_id", "seed"))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        words = ["--algo", algorithm, "--env", env_id, "--seed", str(seed), "-f", folder]
        if env_id.endswith("-v5"):
            words += ["--conf-file", settings_of_version_4(algorithm, env_id, Path(folder))]
        sys.argv = ["train", *words, "--eval-freq", "-1", "--verbose", "0", "--device", "cpu"]
        started = time.perf_counter()
        train()
        seconds = time.perf_counter() - started
        run = Path(folder) / algorithm / f"{env_id}_1"
        env = make_vec_env(env_id, 1, seed=10_000 + seed)
        moments = run / env_id / "vecnormalize.pkl"
        if moments.exists():
            env = VecNormalize.load(str(moments), env)
            env.training = env.norm_reward = False
        model = ALGOS[algorithm].load(run / f"{env_id}.zip", device="cpu")
        mean, _ = evaluate_policy(model, env, NUM_EVALUATIONS, deterministic=True)
        settings = (run / env_id / "config.yml").read_text()
    packages = ("rl_zoo3", "stable-baselines3", "sb3-contrib", "torch", "gymnasium")
    figures = {
        **request,
        "return": float(mean),
        "num_steps": model.num_timesteps,
        "seconds": seconds,
        "settings": settings,
        "versions": {name: version(name) for name in packages},
    }
    print(json.dumps(figures))


def settings_of_version_4(algorithm: str, env_id: str, folder: Path) -> str:
    """A file with the zoo's settings for the environment's version 4, under its own name."""
    zoo = Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algorithm}.yml"
    settings = yaml.safe_load(zoo.read_text())[env_id.removesuffix("5") + "4"]
    path = folder / "settings.yml"
    path.write_text(yaml.safe_dump({env_id: settings}))
    return str(path)


if __name__ == "__main__":
    main()
