"""A run of rejax's PPO for benchmarks/on_policy.py, in the peers' own environment.

    python rejax_ppo.py '{"env_id": "CartPole-v1", ...}'

The last line printed is JSON: seconds of training with and without what compiling takes, and a
final evaluation. rejax tells of no episode before the end.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import jax
from rejax import PPO


def make_algorithm(request: dict[str, Any]) -> PPO:
    """The algorithm with the requested settings, without evaluations on the way."""
    rows = request["n_envs"] * request["n_steps"]
    return PPO.create(
        env=request["env_id"],
        num_envs=request["n_envs"],
        num_steps=request["n_steps"],
        num_epochs=request["n_epochs"],
        num_minibatches=rows // request["batch_size"],
        learning_rate=request["learning_rate"],
        gae_lambda=request["gae_lambda"],
        gamma=request["gamma"],
        clip_eps=request["clip_range"],
        ent_coef=request["ent_coef"],
        vf_coef=request["vf_coef"],
        max_grad_norm=request["max_grad_norm"],
        normalize_observations=False,
        normalize_rewards=False,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        total_timesteps=request["total_steps"],
        eval_freq=request["total_steps"],
        skip_initial_evaluation=True,
    )


def main() -> None:
    """Train, evaluate, train again, print."""
    request = json.loads(sys.argv[1])
    algorithm = make_algorithm(request)
    train = jax.jit(algorithm.replace(eval_callback=lambda *_: ()).train)
    started = time.perf_counter()
    state, _ = jax.block_until_ready(train(jax.random.key(request["seed"])))
    trained = time.perf_counter()
    jax.block_until_ready(train(jax.random.key(request["seed"] + 1)))
    again = time.perf_counter()
    _, returns = algorithm.eval_callback(algorithm, state, jax.random.key(request["seed"]))
    report = {
        "seconds": trained - started,
        "seconds_compiled": again - trained,
        "num_steps": int(state.global_step),
        "evaluation": float(returns.mean()),
        "episodes": [],
        "about": {name: version(name) for name in ("rejax", "gymnax", "jax", "flax", "numpy")},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
