"""Environment steps a second with a policy in the loop, against the limit and the alternative.

One run, all cores: bare MuJoCo with random controls (the limit: `bare_stepping.cc`), our sampler
with a 2x64 Gaussian policy, an episode of 100 steps a call and 16 of them, Gymnasium's
SyncVectorEnv with the same compiled policy, and `point-goal` compiled. The contenders take turns,
so that a busy moment of the machine hits all.

    python benchmarks/sampling.py [--seconds 3] [--out results/sampling.json]

results/sampling-16-cores.json is of another machine.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import jax
import mujoco
import numpy as np
from turns import write_report

from adaptax.core.spec import Continuous
from adaptax.envs.physics import native
from adaptax.envs.suite import Suite
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.networks.heads import MLPPolicy
from adaptax.sampling.actors import Actor, PolicyActor
from adaptax.sampling.sampler import Sampler

LANES = (16, 64, 256, 400)
HORIZON = 100
LONG = 16
"""Episodes of a long call."""
FRAME_SKIP = 5
SOURCE = "bare_stepping.cc"
Work = Callable[[], int]
"""Does a piece of work and gives how many environment steps it was."""


def policy_actor(observation_size: int, action_size: int) -> PolicyActor:
    """A Gaussian policy of two layers of 64."""
    policy = MLPPolicy((64, 64), Continuous(action_size))
    params = policy.init(jax.random.key(0), np.zeros((1, observation_size), np.float32))
    return PolicyActor(params, policy)


@cache
def bare_library() -> ctypes.CDLL:
    """`bare_stepping.cc`, compiled as the package compiles its own call."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bare_stepping.so"
        native.compile_library(native.compiler(), path, Path(__file__).with_name(SOURCE))
        return ctypes.CDLL(str(path))


def bare(num_lanes: int) -> Work:
    """MuJoCo alone: each core steps its share of the lanes through the episode, no meeting.

    Controls and first states are drawn like those of the policy's episodes, since what a step
    costs depends on the contacts that it makes.
    """
    folder = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    model = mujoco.MjModel.from_xml_path(str(folder / "half_cheetah.xml"))
    num_threads = min(len(os.sched_getaffinity(0)), num_lanes)
    size, rng = mujoco.mj_stateSize(model, native.STATE), np.random.default_rng(0)
    start = np.zeros(size)
    mujoco.mj_getState(model, mujoco.MjData(model), start, native.STATE)
    shares = [len(share) for share in np.array_split(np.arange(num_lanes), num_threads)]
    controls = [np.clip(rng.standard_normal((HORIZON, n, model.nu)), -1, 1) for n in shares]
    noise = [rng.uniform(-0.1, 0.1, (n, size - 1)) for n in shares]
    step, threads = bare_library().bare_steps, ThreadPoolExecutor(num_threads)

    def run(i: int) -> None:
        states = np.tile(start, (shares[i], 1))
        states[:, 1:] += noise[i]
        step(
            ctypes.c_void_p(model._address),
            shares[i],
            HORIZON,
            FRAME_SKIP,
            states.ctypes.data_as(ctypes.c_void_p),
            controls[i].ctypes.data_as(ctypes.c_void_p),
        )

    def episode() -> int:
        list(threads.map(run, range(num_threads)))
        return HORIZON * num_lanes

    return episode


def rl2_actor(suite: Suite) -> Actor:
    """RL2's by default: a GRU of 64."""
    algorithm = make_algorithm("rl2-ppo", suite.spec)
    return algorithm.actor(algorithm.init(jax.random.key(0)))


def gaussian_actor(suite: Suite) -> Actor:
    """The 2x64 policy for a suite."""
    assert isinstance(suite.spec.action, Continuous)
    return policy_actor(suite.spec.observation_size, suite.spec.action.size)


def sampler(suite: Suite, num_lanes: int, actor: Actor) -> Work:
    """Our sampler, whole episodes, everything recorded."""
    collector = Sampler(suite, suite.train, 0, "benchmark")

    def episode() -> int:
        rollout = collector.episodes(actor, collector.sample_tasks(1), num_lanes, 1)
        return int(np.sum(np.asarray(rollout.valid)))

    return episode


def long_calls(suite: Suite, num_lanes: int, actor: Actor) -> Work:
    """Our sampler as algorithms that go on from where they stopped use it."""
    collector = Sampler(suite, suite.train, 0, "benchmark")
    tasks = collector.sample_tasks(1)

    def steps() -> int:
        rollout = collector.steps(actor, tasks, num_lanes, LONG * HORIZON)
        return int(np.sum(np.asarray(rollout.valid)))

    return steps


def sync_vector_env(num_lanes: int) -> Work:
    """Gymnasium's SyncVectorEnv with the same compiled policy."""
    envs = gymnasium.make_vec("HalfCheetah-v5", num_envs=num_lanes, vectorization_mode="sync")
    actor = policy_actor(*envs.single_observation_space.shape, *envs.single_action_space.shape)
    act = jax.jit(lambda obs, key: actor.act({}, obs[None], key)[0][0])
    keys = jax.random.split(jax.random.key(0), HORIZON)

    def episode() -> int:
        obs, _ = envs.reset(seed=0)
        for key in keys:
            action = np.clip(np.asarray(act(obs.astype(np.float32), key)), -1.0, 1.0)
            obs, *_ = envs.step(action)
        return HORIZON * num_lanes

    return episode


def measure(contenders: dict[str, Work], seconds: float) -> dict[str, float]:
    """Steps a second of each, taking turns until each has had so many seconds."""
    for work in contenders.values():
        work()  # compiles
    spent = dict.fromkeys(contenders, 0.0)
    steps = dict.fromkeys(contenders, 0)
    while min(spent.values()) < seconds:
        for name, work in contenders.items():
            if spent[name] < seconds:
                started = time.perf_counter()
                steps[name] += work()
                spent[name] += time.perf_counter() - started
    return {name: steps[name] / spent[name] for name in contenders}


def shares(rates: dict[str, float]) -> dict[str, float]:
    """Of the bare physics, what the sampler comes to."""
    return {
        "share_of_bare": rates["sampler"] / rates["bare"],
        "share_of_long_calls": rates["long_calls"] / rates["bare"],
    }


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="per contender and size")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    suite, point = make_suite("half-cheetah-vel"), make_suite("point-goal")
    actor = gaussian_actor(suite)
    rows: list[dict[str, Any]] = []
    for lanes in LANES:
        contenders = {
            "bare": bare(lanes),
            "sampler": sampler(suite, lanes, actor),
            "long_calls": long_calls(suite, lanes, actor),
            "sync_vector_env": sync_vector_env(lanes),
        }
        rates = measure(contenders, options.seconds)
        rates |= shares(rates)
        rates["times_sync"] = rates["sampler"] / rates["sync_vector_env"]
        rows.append({"lanes": lanes, **{k: round(v, 3) for k, v in rates.items()}})
        print(
            f"{lanes:4d} lanes: bare {rates['bare']:9,.0f}  sampler {rates['sampler']:9,.0f} "
            f"({rates['share_of_bare']:.2f} of bare, {rates['share_of_long_calls']:.2f} with long "
            f"calls, {rates['times_sync']:.1f} x SyncVectorEnv "
            f"{rates['sync_vector_env']:,.0f})",
            flush=True,
        )
    actor = rl2_actor(suite)
    memory = {
        "bare": bare(32),
        "sampler": sampler(suite, 32, actor),
        "long_calls": long_calls(suite, 32, actor),
    }
    rates = measure(memory, options.seconds)
    rates |= shares(rates)
    rows.append({"lanes": 32, "memory": "gru 64", **{k: round(v, 3) for k, v in rates.items()}})
    print(
        f"  32 lanes with RL2's GRU of 64: {rates['sampler']:9,.0f} ({rates['share_of_bare']:.2f} "
        f"of bare, {rates['share_of_long_calls']:.2f} with long calls)"
    )
    rate = measure({"point-goal": sampler(point, 4096, gaussian_actor(point))}, options.seconds)[
        "point-goal"
    ]
    print(f"compiled point-goal, 4096 lanes: {rate:,.0f}")
    if options.out:
        report = {"steps_per_second": rows, "point_goal": round(rate)}
        write_report(options.out, report, suite)


if __name__ == "__main__":
    main()
