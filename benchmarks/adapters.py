"""Environment steps a second of the adapters beside their packages' own loops, random actions.

    python benchmarks/adapters.py [--out results/adapters.json]

Both are compiled loops over the same lanes in this process, taken in turn; the best of five
repeats each, by the processor's time and by the clock's. The package's own is a scan of its `step`,
which starts lanes again where they end, and keeps observations and rewards.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import xminigrid
from turns import write_report

from adaptax.core.memory import keep_freed_memory
from adaptax.experiment.build import make_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

NUM_LANES, NUM_STEPS, NUM_REPEATS = 256, 500, 5
RESULTS = Path(__file__).parent.parent / "results" / "adapters.json"


def ours(name: str) -> Callable[[], object]:
    suite = make_suite(name)
    sampler, actor = Sampler(suite, suite.train, 0, "speed"), UniformActor(suite.spec.action)
    tasks = sampler.sample_tasks(1)

    def collect() -> object:
        rollout = sampler.steps(actor, tasks, NUM_LANES, NUM_STEPS)
        return float(jnp.sum(rollout.reward))

    return collect


def of_gymnax(env_id: str) -> Callable[[], object]:
    env, params = gymnax.make(env_id)

    def one(carry, key):
        act, go = jax.random.split(key)
        action = env.action_space(params).sample(act)
        obs, state, reward, _, _ = env.step(go, carry, action, params)
        return state, (obs, reward)

    def lane(key):
        start, key = jax.random.split(key)
        return jax.lax.scan(one, env.reset(start, params)[1], jax.random.split(key, NUM_STEPS))[1]

    return _repeated(jax.jit(lambda key: jax.vmap(lane)(jax.random.split(key, NUM_LANES))))


def of_xland(layout: str) -> Callable[[], object]:
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make(f"XLand-MiniGrid-{layout}")
    env = GymAutoResetWrapper(env)
    task = make_suite(f"xland:{layout}", num_train_tasks=1, num_test_tasks=1).train.tasks[0].params
    from xminigrid.types import RuleSet

    rules = {name: jnp.asarray(x, jnp.uint8) for name, x in task.items()}
    params = params.replace(ruleset=RuleSet(**rules))

    def one(timestep, key):
        action = jax.random.randint(key, (), 0, env.num_actions(params))
        timestep = env.step(params, timestep, action)
        return timestep, (timestep.observation, timestep.reward)

    def lane(key):
        start, key = jax.random.split(key)
        keys = jax.random.split(key, NUM_STEPS)
        return jax.lax.scan(one, env.reset(params, start), keys)[1]

    return _repeated(jax.jit(lambda key: jax.vmap(lane)(jax.random.split(key, NUM_LANES))))


def _repeated(collect: Callable) -> Callable[[], object]:
    count = iter(range(1000))
    return lambda: jax.block_until_ready(collect(jax.random.PRNGKey(next(count))))


def measured(name: str, theirs: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Steps a second of both, by processor time and by the clock, and how ours compare."""
    collects = {"adaptax": ours(name), "package": theirs}
    least = {who: np.full(2, np.inf) for who in collects}
    for repeat in range(NUM_REPEATS + 1):
        for who, collect in collects.items():
            began = np.array([time.process_time(), time.perf_counter()])
            collect()
            took = np.array([time.process_time(), time.perf_counter()]) - began
            if repeat > 0:  # the first one compiles
                least[who] = np.minimum(least[who], took)
    found = {}
    for i, clock in enumerate(("processor", "wall clock")):
        rates = {who: round(NUM_LANES * NUM_STEPS / took[i]) for who, took in least.items()}
        ratio = round(rates["adaptax"] / rates["package"], 2)
        found[clock] = {**rates, "ratio": ratio}
    return found


def main() -> None:
    """One line an environment, and all of it in a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    out = parser.parse_args().out
    keep_freed_memory()
    pairs = {
        f"gymnax:{env_id}": of_gymnax(env_id) for env_id in ("CartPole-v1", "Breakout-MinAtar")
    } | {"xland:R1-9x9": of_xland("R1-9x9")}
    suites: dict[str, Any] = {}
    for name, theirs in pairs.items():
        suites[name] = measured(name, theirs)
        print(name, suites[name], flush=True)
    shape = {"num_lanes": NUM_LANES, "num_steps": NUM_STEPS, "num_repeats": NUM_REPEATS}
    write_report(out, {**shape, "steps_a_second": suites})


if __name__ == "__main__":
    main()
