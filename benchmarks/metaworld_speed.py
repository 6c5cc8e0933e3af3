"""Environment steps a second on ML10 with a policy in the loop, against what people use.

One run, all cores each: our sampler, with native steps in the program; the same with Meta-World's
Python in worker processes, as where native code does not work; Gymnasium's AsyncVectorEnv over
Meta-World's own environment objects with the same tasks and the same compiled policy; and the
physics alone (`mj_step` with random controls in one process a core, no observation, reward or
reset; a step of Meta-World's has one more forward pass, of six). Contenders take turns, episode by
episode, resets included, so that a busy moment of the machine hits all.

    python benchmarks/metaworld_speed.py [--seconds 20] [--out results/metaworld.json]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import mujoco
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from turns import write_report

from adaptax.algorithms.meta.rl2_ppo import RL2PPO, RL2PPOConfig
from adaptax.core.rng import lane_keys, lane_numbers
from adaptax.envs.suite import Suite
from adaptax.envs.task import Task
from adaptax.experiment.build import make_suite
from adaptax.networks.memory import MemoryConfig
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler

NUM_TASKS = 10
LANES = (10, 20, 40)
Work = Callable[[], int]
"""Does a piece of work and gives how many environment steps it was."""


def policy_actor(suite: Suite) -> Actor:
    """RL2's, with a GRU of 128 units."""
    config = RL2PPOConfig(meta_batch_size=40, memory=MemoryConfig("gru", 128))
    agent = RL2PPO(config, suite.spec)
    return agent.actor(agent.init(jax.random.key(0)))


def sampler(suite: Suite, num_lanes: int) -> tuple[Work, Callable[[], None]]:
    """Ours: an episode in every lane, everything recorded."""
    actor = policy_actor(suite)
    collector = Sampler(suite, suite.train, 0, "benchmark")
    tasks = collector.sample_tasks(NUM_TASKS)

    def episode() -> int:
        rollout = collector.episodes(actor, tasks, num_lanes // NUM_TASKS, 1)
        return int(np.sum(np.asarray(rollout.valid)))

    return episode, collector.close


def their_object(name: str) -> Any:
    """A new environment object of one of Meta-World's classes."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    return ALL_V3_ENVIRONMENTS[name]()


def their_env(task: Task, horizon: int) -> gymnasium.Env[Any, Any]:
    """Meta-World's own environment on a task, as `set_task` leaves it."""
    env = their_object(str(task.class_name))
    env._set_task_called = env._partially_observable = True
    env._last_rand_vec = np.array(task.params["rand_vec"])
    env.max_path_length = horizon + 1  # one more than the wrapper's, which ends the episode
    return gymnasium.wrappers.TimeLimit(env, horizon)


def async_vector_env(suite: Suite, num_lanes: int) -> tuple[Work, Callable[[], None]]:
    """Gymnasium's AsyncVectorEnv with the same compiled policy."""
    collector = Sampler(suite, suite.train, 0, "benchmark")
    tasks = [t for t in collector.sample_tasks(NUM_TASKS) for _ in range(num_lanes // NUM_TASKS)]
    horizon = suite.spec.horizon
    makers = [partial(their_env, task, horizon) for task in tasks]
    envs = AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    actor = policy_actor(suite)
    lanes = lane_numbers(1, num_lanes)
    act = jax.jit(lambda carry, obs, t: actor.act(carry, obs[None], lane_keys(key, t, lanes)))
    key = jax.random.key(0)
    obs, _ = envs.reset(seed=0)

    def episode() -> int:
        nonlocal obs
        carry = actor.begin(1, num_lanes, key)
        for t in range(horizon):
            action, carry, _ = act(carry, obs.astype(np.float32), np.uint32(t))
            obs, *_ = envs.step(np.clip(np.asarray(action)[0], -1.0, 1.0))
        return horizon * num_lanes

    return episode, envs.close


def physics(suite: Suite, num_lanes: int) -> tuple[Work, Callable[[], None]]:
    """The simulators alone, shared out to one process a core."""
    names = list(dict.fromkeys(str(task.class_name) for task in suite.train.tasks or ()))
    lanes = [names[i % len(names)] for i in range(num_lanes)]
    num_processes = min(len(os.sched_getaffinity(0)), num_lanes)
    context = multiprocessing.get_context("spawn")
    pipes = []
    for k in range(num_processes):
        ours, theirs = context.Pipe()
        args = (theirs, lanes[k::num_processes], suite.spec.horizon)
        context.Process(target=_simulate, args=args, daemon=True).start()
        pipes.append(ours)

    def episode() -> int:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()
        return suite.spec.horizon * num_lanes

    return episode, lambda: [pipe.send(False) for pipe in pipes] and None


def _simulate(pipe: Any, names: Sequence[str], horizon: int) -> None:
    """A process that steps its simulators through an episode whenever it is told to."""
    rng = np.random.default_rng(0)
    envs = [their_object(name) for name in names]
    controls = rng.uniform(-1, 1, (horizon, len(envs), 2))
    moves = rng.uniform(-0.01, 0.01, (horizon, len(envs), 3))
    while pipe.recv():
        for env in envs:
            mujoco.mj_resetData(env.model, env.data)
        for control, move in zip(controls, moves, strict=True):
            for env, own_control, own_move in zip(envs, control, move, strict=True):
                env.data.ctrl[:] = own_control
                env.data.mocap_pos[0] += own_move
                mujoco.mj_step(env.model, env.data, nstep=env.frame_skip)
        pipe.send(True)


def measure(contenders: dict[str, Work], seconds: float) -> dict[str, float]:
    """Steps a second of each, taking turns until the slowest has had so many seconds."""
    for work in contenders.values():
        work()  # compiles, and makes what is made once
    spent, steps = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 0)
    while max(spent.values()) < seconds:
        for name, work in contenders.items():
            started = time.perf_counter()
            steps[name] += work()
            spent[name] += time.perf_counter() - started
    return {name: steps[name] / spent[name] for name in contenders}


def compare(suite: Suite, python: Suite, num_lanes: int, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    made = {
        "sampler": sampler(suite, num_lanes),
        "python_in_workers": sampler(python, num_lanes),
        "async_vector_env": async_vector_env(suite, num_lanes),
        "physics": physics(suite, num_lanes),
    }
    rates = measure({name: work for name, (work, _) in made.items()}, seconds)
    for _, close in made.values():
        close()
    ratio = rates["sampler"] / rates["async_vector_env"]
    share, gain = (rates["sampler"] / rates[name] for name in ("physics", "python_in_workers"))
    print(
        f"{num_lanes:3d} lanes: sampler {rates['sampler']:7,.0f} steps/s, {gain:.2f} x Python in "
        f"workers ({rates['python_in_workers']:,.0f}), {ratio:.2f} x AsyncVectorEnv "
        f"({rates['async_vector_env']:,.0f}), {share:.2f} of the physics alone "
        f"({rates['physics']:,.0f})",
        flush=True,
    )
    rounded = {name: round(rate) for name, rate in rates.items()}
    return {
        "lanes": num_lanes,
        **rounded,
        "times_python": round(gain, 3),
        "times_async": round(ratio, 3),
        "of_physics": round(share, 3),
    }


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the slowest at each size")
    parser.add_argument("--lanes", type=int, nargs="+", default=LANES, help="multiples of 10")
    parser.add_argument("--horizon", type=int, default=500)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    suite = make_suite("ml10", horizon=options.horizon)
    cores = len(os.sched_getaffinity(0))
    python = make_suite("ml10", horizon=options.horizon, num_workers=cores)
    rows = [compare(suite, python, lanes, options.seconds) for lanes in options.lanes]
    if options.out:
        write_report(options.out, {"steps_per_second": rows}, suite)


if __name__ == "__main__":
    main()
