"""Environment steps a second of the pools, each against what bounds it. All in one run.

python benchmarks/pools.py [--seconds 3] [--out results/pools.json]
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sampling import Work, measure, policy_actor, sampler
from slow_env import STEP_SECONDS, SlowEnv
from turns import write_report

from adaptax.core.spec import Continuous
from adaptax.envs.pools.mujoco import MujocoPool
from adaptax.envs.suites.gym import gym_suite
from adaptax.experiment.build import make_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

JAX_LANES, JAX_STEPS = 4096, 128
CARTPOLE_TARGET = 2_000_000
"""Steps a second that `cartpole` is to reach with uniform actions on two cores."""

LOCOMOTION = {
    "half-cheetah-vel": 0.8,
    "half-cheetah-dir": 0.8,
    "ant-vel": 0.8,
    "ant-dir": 0.8,
    "ant-dir-2d": 0.8,
    "ant-goal": 0.8,
    "humanoid-dir": 0.8,
    "walker-vel": 0.8,
    "swimmer-vel": 0.8,
    "walker-params": 0.7,
    "hopper-params": 0.7,
}
"""Share of its own raw native rate that each family is to reach."""
LOCOMOTION_LANES, LOCOMOTION_TASKS, LOCOMOTION_STEPS = 256, 32, 50
"""Lanes in all, tasks that they are divided among, and steps of each in a piece of work."""

SLOW_LANES, SLOW_STEPS = 16, 25
"""Lanes of an environment of 1 ms a step, and steps of each in a piece of work."""
WORKERS_TARGET = 1.9
"""Times one process that two workers must reach on it, on two cores."""


def uniform_steps(suite_name: str, num_lanes: int, num_steps: int) -> Work:
    """`steps` by uniform actions, falls and resets included, everything recorded."""
    suite = make_suite(suite_name)
    actor, collector = UniformActor(suite.spec.action), Sampler(suite, suite.train, 0, "benchmark")
    tasks = collector.sample_tasks(1)

    def work() -> int:
        jax.block_until_ready(collector.steps(actor, tasks, num_lanes, num_steps))
        return num_lanes * num_steps

    return work


def uniform_episodes(suite_name: str, num_lanes: int) -> Work:
    """Whole episodes by uniform actions, one a lane; only their own steps count."""
    suite = make_suite(suite_name)
    actor, collector = UniformActor(suite.spec.action), Sampler(suite, suite.train, 0, "benchmark")
    tasks = collector.sample_tasks(1)

    def work() -> int:
        return int(np.sum(collector.episodes(actor, tasks, num_lanes, 1).valid))

    return work


def jax_pools(seconds: float) -> dict[str, Any]:
    """Compiled suites: classic control by uniform actions, `point-goal` with a policy of 2x64."""
    points = make_suite("point-goal")
    actor = policy_actor(points.spec.observation_size, points.spec.action.shape[0])
    contenders = {
        "cartpole": uniform_steps("cartpole", JAX_LANES, JAX_STEPS),
        "cartpole episodes": uniform_episodes("cartpole", JAX_LANES),
        "pendulum": uniform_steps("pendulum", JAX_LANES, JAX_STEPS),
        "point-goal, 2x64 policy": sampler(points, JAX_LANES, actor),
    }
    rates = measure(contenders, seconds)
    for name, rate in rates.items():
        print(f"compiled, {JAX_LANES} lanes, {name}: {rate:,.0f}", flush=True)
    print(f"cartpole: {rates['cartpole'] / CARTPOLE_TARGET:.1f} times the target")
    return {"lanes": JAX_LANES, **{name: round(rate) for name, rate in rates.items()}}


def locomotion_work(suite_name: str) -> dict[str, Callable[[], Any]]:
    """The sampler with a 2x64 policy, falls and resets included; and its physics alone.

    The second plays the native calls of the sampler's last piece of work again, without its
    resets: the same models, states and controls in the same threads, and nothing else.
    """
    suite = make_suite(suite_name)
    assert isinstance(suite.spec.action, Continuous)
    actor = policy_actor(suite.spec.observation_size, suite.spec.action.size)
    # That of the host engine, as where there is no compiler: sampling.py measures the other one.
    made: Any = suite.make_pool(1)
    body = made.env.body if suite.engine == "compiled" else made._body
    pool: Any = MujocoPool(body, LOCOMOTION_LANES)
    pool._rollout = recorder = Recorder(pool)
    suite = replace(suite, make_pool=lambda num_slots: pool, engine="host")
    collector = Sampler(suite, suite.train, 0, "benchmark")
    tasks = collector.sample_tasks(LOCOMOTION_TASKS)

    def sample() -> None:
        recorder.calls.clear()
        collector.steps(actor, tasks, LOCOMOTION_LANES // LOCOMOTION_TASKS, LOCOMOTION_STEPS)

    return {"sampler": sample, "native": recorder.replay}


class Recorder:
    """Passes a MujocoPool's native calls on, and keeps those in which all lanes step."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.native = pool, pool._rollout
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def rollout(self, models: Any, data: Any, start: Any, control: Any, **options: Any) -> None:
        """The pool's native call."""
        if len(models) == self.pool.num_slots and options["nstep"] == self.pool._body.frame_skip:
            self.calls.append(((models, data, start.copy(), control.copy()), options))
        self.native.rollout(models, data, start, control, **options)

    def replay(self) -> None:
        """All that was kept, again."""
        for args, options in self.calls:
            self.native.rollout(*args, **options)


def locomotion_pools(seconds: float) -> dict[str, Any]:
    """MujocoPool: every family's share of its own raw native rate, by the clock and by CPU time.

    The two take turns, each turn on the same physics; the figures are medians over the turns, so
    that a busy moment of the machine spoils few. The share of CPU time leaves out that one core
    may wait while the other does what is not divided among threads.
    """
    report: dict[str, Any] = {}
    for name, target in LOCOMOTION.items():
        work = locomotion_work(name)
        work["sampler"]()  # compiles
        shares, end = [], time.perf_counter() + 2 * seconds
        while time.perf_counter() < end:
            sampler, native = (laps(work[contender]) for contender in ("sampler", "native"))
            shares.append(native / sampler)
        share, cpu_share = np.median(shares, axis=0)
        report[name] = {"share": round(share, 3), "cpu_share": round(cpu_share, 3)}
        report[name]["turns"] = len(shares)
        print(
            f"{name}, {LOCOMOTION_LANES} lanes, 2x64 policy: {share:.2f} of the native rate by the "
            f"clock, {cpu_share:.2f} by CPU time (target {target})",
            flush=True,
        )
    return report


def laps(work: Callable[[], Any]) -> np.ndarray:
    """Seconds that `work` takes, by the clock and of CPU time."""
    before = np.array([time.perf_counter(), time.process_time()])
    work()
    return np.array([time.perf_counter(), time.process_time()]) - before


def slow_steps(num_lanes: int, num_steps: int, **placement: int) -> Work:
    """`steps` of SlowEnv with a 2x64 policy, in this process or where `placement` says."""
    suite = gym_suite("slow", SlowEnv, horizon=200, **placement)
    actor, collector = policy_actor(8, 2), Sampler(suite, suite.train, 0, "benchmark")
    tasks = collector.sample_tasks(1)

    def work() -> int:
        collector.steps(actor, tasks, num_lanes, num_steps)
        return num_lanes * num_steps

    return work


def slow_pools(seconds: float) -> dict[str, Any]:
    """An environment of 1 ms a step in this process, in workers and, if it is installed, on Ray."""
    contenders = {
        "in process": slow_steps(SLOW_LANES, SLOW_STEPS),
        "1 worker": slow_steps(SLOW_LANES, SLOW_STEPS, num_workers=1),
        "2 workers": slow_steps(SLOW_LANES, SLOW_STEPS, num_workers=2),
    }
    if importlib.util.find_spec("ray"):
        contenders["2 Ray actors"] = slow_steps(SLOW_LANES, SLOW_STEPS, num_ray_actors=2)
    rates = measure(contenders, seconds)
    for name, rate in rates.items():
        times = rate / rates["in process"]
        print(
            f"{SLOW_LANES} lanes of {1e3 * STEP_SECONDS:g} ms a step, {name}: {rate:,.0f}, "
            f"{times:.2f} times in process",
            flush=True,
        )
    print(f"2 workers: target {WORKERS_TARGET} times in process")
    return {"lanes": SLOW_LANES, **{name: round(rate, 1) for name, rate in rates.items()}}


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="per contender")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    report: dict[str, Any] = {
        "jax_pool": jax_pools(options.seconds),
        "locomotion": locomotion_pools(options.seconds),
        "slow": slow_pools(options.seconds),
    }
    if options.out:
        write_report(options.out, report)


if __name__ == "__main__":
    main()
