"""Our side of benchmarks/off_policy.py."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from learning_curves import NUM_EVALUATIONS, learning
from off_policy_cases import Case

from adaptax.algorithms.program import updated
from adaptax.core.rng import named_key
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.experiment.provenance import provenance
from adaptax.sampling.sampler import Sampler


def our_algorithm(case: Case, spec: Any) -> Any:
    """The algorithm with the same settings.

    Where peers collect one step and make one update, ours collects 50 and makes 50, in one
    compiled call. Epsilon falls exponentially here and linearly there: gamma is such that as many
    random actions are taken in all.
    """
    cycle = 50 if case.train_freq == 1 else case.train_freq
    settings: dict[str, Any] = {
        "num_steps": cycle,
        "num_cycles": max(1000 // cycle, 1),
        "num_updates": cycle * case.gradient_steps // case.train_freq,
        "buffer_size": case.buffer_size,
        "num_initial_steps": case.learning_starts,
        "batch_size": case.batch_size,
        "discount": case.gamma,
        "tau": case.tau,
        "hidden_sizes": case.net_arch,
        "lr": case.learning_rate,
        "max_grad_norm": None,
    }
    if case.algorithm == "sac":
        settings["init_temperature"] = 1.0
    if case.action_noise is not None:
        settings["noise_std"] = case.action_noise
    if case.algorithm == "dqn":
        iteration = cycle * settings["num_cycles"]
        num_iterations = case.exploration_fraction * case.total_steps / iteration
        settings |= {
            "optimizer": "adam",
            "max_grad_norm": 10.0,
            "n_step": 1,
            "reward_scale": 1.0,
            "final_epsilon": case.exploration_final_eps,
            "epsilon_decay": max(1 - 2 / num_iterations, 0.0),
            # Theirs copies every 10 environment steps: once before each block of updates.
            "target_update_interval": settings["num_updates"],
        }
    return make_algorithm(case.algorithm, spec, **settings)


def run_ours(case: Case, seed: int) -> dict[str, Any]:
    """Train and evaluate ours in this process, or time its updates."""
    started = time.perf_counter()
    suite = make_suite(case.suite)
    algorithm = our_algorithm(case, suite.spec)
    if case.num_updates is not None:
        return {**our_updates(case, algorithm, suite, seed), "about": provenance(suite)}
    state, sampler, episodes = our_training(case, algorithm, suite, seed)
    seconds = time.perf_counter() - started
    protocol = EvaluatorConfig(num_tasks=1, num_lanes=NUM_EVALUATIONS, deterministic=True)
    evaluation = Evaluator(protocol, suite, seed).evaluate(algorithm, state)
    return {
        "seconds": seconds,
        "num_steps": sampler.num_steps,
        "num_updates": int(state.learner.num_updates),
        "evaluation": float(evaluation.returns.mean()),
        **learning(case.total_steps, episodes),
        "about": provenance(suite),
    }


def our_training(case: Case, algorithm: Any, suite: Any, seed: int) -> tuple[Any, Any, Any]:
    """State and sampler after all steps, and (steps so far, mean return, number) of episodes."""
    sampler = Sampler(suite, suite.train, seed, "train")
    state, episodes, ended = algorithm.init(named_key(seed, "init")), [], 0
    while sampler.num_steps < case.total_steps:
        state, _ = algorithm.iteration(state, sampler)
        count, ended = sampler.num_episodes - ended, sampler.num_episodes
        mean_return = sampler.statistics.take()["return"]
        if count:
            episodes.append((sampler.num_steps, mean_return, count))
    return state, sampler, episodes


def our_updates(case: Case, algorithm: Any, suite: Any, seed: int) -> dict[str, Any]:
    """Updates per second, their draws from the replay included, and what the machine could do."""
    short = replace(case, total_steps=case.learning_starts + 1000)
    state, sampler, _ = our_training(short, algorithm, suite, seed)
    data = algorithm.collect(state, sampler)
    assert case.num_updates is not None
    cycles, rates = case.num_updates // algorithm.config.cycle_updates, []
    for _ in range(case.num_blocks):
        started = time.perf_counter()
        for _ in range(cycles):
            state, metrics = updated(algorithm, state, data)
        jax.block_until_ready(metrics)
        rates.append(case.num_updates / (time.perf_counter() - started))
    rates = rates[1:]
    flop, products = sac_flop(case, suite.spec), matrix_product_rates()
    reached = statistics.median(rates) * flop
    return {
        "updates_per_second": {str(algorithm.config.cycle_updates): rates},
        "flop_per_update": flop,
        "products_flop_per_second": products,
        "share_of_products": {name: reached / rate for name, rate in products.items()},
    }


def sac_flop(case: Case, spec: Any) -> int:
    """Floating-point operations of the matrix products of one SAC update, two hidden layers.

    Per transition a product of an i x o layer is 2 i o forward, as much again for the gradient of
    its weights, and as much for that of its input.
    """
    hidden, obs, act = case.net_arch, spec.observation_size, spec.action.size
    policy = [(obs, hidden[0]), hidden, (hidden[1], 2 * act)]
    critic = [(obs + act, hidden[0]), hidden, (hidden[1], 1)]

    def products(layers: Any) -> int:
        return 2 * sum(i * o for i, o in layers)

    forward = 2 * products(policy) + 3 * 2 * products(critic)
    # Critics' loss: gradients of weights, and of inputs but for the first layer's.
    critics_back = 2 * (products(critic) + products(critic[1:]))
    # Policy's loss: back through both critics to the action, and through the policy.
    through_critics = 2 * (products(critic[1:]) + 2 * act * hidden[0])
    policy_back = products(policy) + products(policy[1:])
    return case.batch_size * (forward + critics_back + through_critics + policy_back)


def matrix_product_rates() -> dict[str, float]:
    """Float32 operations a second of products alone: of the update's size in a loop, and large."""
    rates = {}
    for size, count in ((256, 200), (2048, 2)):
        x = jnp.eye(size) + 1e-6

        def loop(x: Any, count: int = count) -> Any:
            return jax.lax.fori_loop(0, count, lambda _, y: y @ x, x)

        run_loop, seconds = jax.jit(loop), []
        for _ in range(20):
            started = time.perf_counter()
            run_loop(x).block_until_ready()
            seconds.append(time.perf_counter() - started)
        rates[f"{size} x {size}"] = 2 * size**3 * count / statistics.median(seconds[1:])
    return rates
