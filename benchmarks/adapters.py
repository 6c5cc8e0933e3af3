"""Environment steps a second of the adapters beside their packages' own loops, random actions.

    python benchmarks/adapters.py

Both are compiled loops over the same lanes in this process, taken in turn; the best of five
repeats each. The package's own is a scan of its `step`, which starts lanes again where they end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnax
import jax
import jax.numpy as jnp
import xminigrid

from adaptax.experiment.build import make_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

NUM_LANES, NUM_STEPS, NUM_REPEATS = 256, 500, 5


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


def main() -> None:
    """One line an environment."""
    pairs = {
        f"gymnax:{env_id}": of_gymnax(env_id) for env_id in ("CartPole-v1", "Breakout-MinAtar")
    } | {"xland:R1-9x9": of_xland("R1-9x9")}
    for name, theirs in pairs.items():
        best = {}
        for who, collect in (("adaptax", ours(name)), ("package", theirs)):
            collect()
            best[who] = (collect, float("inf"))
        for _ in range(NUM_REPEATS):
            for who, (collect, least) in best.items():
                began = time.process_time(), time.perf_counter()
                collect()
                best[who] = collect, min(least, time.perf_counter() - began[1])
        rates = {who: NUM_LANES * NUM_STEPS / least for who, (_, least) in best.items()}
        ratio = rates["adaptax"] / rates["package"]
        print(name, {k: f"{v:,.0f}" for k, v in rates.items()}, f"ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
