"""Three updates in a row against the same in NumPy float64, with gradients written by hand.

The package computes in float64 here too (`jax.enable_x64`): Adam divides small gradients by their
size, so that float32's rounding alone would show in the fifth digit. What is compared is how far
each array moved in the update, relative to its largest entry.

An adapter is all that knows how an algorithm is built, where its parameters lie, and by which
keys it shuffles and draws; the draws themselves go to the oracle as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import gaussian, on_policy, pearl, sac
from oracles.adam import Adam
from oracles.dense import dense_layers, twin_layers
from oracles.mlp import forward
from oracles.trees import leaves, plus

from adaptax.algorithms.off_policy.sac import SAC
from adaptax.algorithms.on_policy import ppo, trpo
from adaptax.core.experience import Rollout
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.experiment.build import make_algorithm

OBS, ACTIONS, HORIZON = 3, 2, 7
SPEC = EnvSpec(OBS, Continuous(ACTIONS), HORIZON)
MEMBERS, LANES = 2, 2
NUM_UPDATES = 3
TOLERANCE = 1e-5


# ---- Adapters: the only part that knows the package's interface ----


def random_like(tree: Any, seed: int, std: float = 0.5) -> Any:
    """Normal parameters in float64: no small gain of a fresh network hides anything."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(std * rng.normal(size=x.shape), jnp.float64), tree)


def in_float64(tree: Any) -> Any:
    """All real numbers of a tree as float64."""

    def cast(x: Any) -> Any:
        return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, tree)


class OnPolicyAdapter:
    """What PPO and TRPO have in common."""

    module: Any

    def __init__(self, name: str, **settings: Any) -> None:
        fixed = {"hidden_sizes": (5, 4), "num_lanes": 4, "min_rollouts": 4}
        self.algorithm = make_algorithm(name, SPEC, **fixed, **settings)
        fresh = self.algorithm.init(jax.random.key(1))
        params = random_like(fresh.params, 0)
        self.state = replace(fresh, params=params, opt_state=self.fresh_optimizers(params))

    def fresh_optimizers(self, params: Any) -> Any:
        raise NotImplementedError

    @property
    def params(self) -> dict[str, Any]:
        """As the oracle has them."""
        hidden = ("body/MLP_0/Dense_0", "body/MLP_0/Dense_1")
        policy, value = self.state.params["policy"], self.state.params["value"]
        log_std = np.asarray(policy["params"]["ActionHead_0"]["log_std"])
        mean = dense_layers(policy, *hidden, "ActionHead_0/Dense_0")
        return {
            "policy": {"mean": mean, "log_std": log_std},
            "value": dense_layers(value, *hidden, "Dense_0"),
        }

    def update(self, rollout: Rollout) -> None:
        """One whole update."""
        algorithm = self.algorithm
        self.state, _ = self.module._update(
            algorithm.config, algorithm.network, self.state, rollout
        )


def shuffled(key: jax.Array, num_passes: int, num_steps: int) -> np.ndarray:
    """The order of every pass [P, n]."""
    keys = jax.random.split(key, num_passes)
    return np.stack([jax.random.permutation(k, num_steps) for k in keys])


class PPOAdapter(OnPolicyAdapter):
    module = ppo

    def fresh_optimizers(self, params):
        return in_float64(self.algorithm._init_optimizers(params))

    def orders(self, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the value's passes and of the policy's, in the update to come."""
        _, value_key, policy_key = jax.random.split(self.state.key, 3)
        config = self.algorithm.config
        pairs = ((value_key, config.critic.num_epoch), (policy_key, config.num_epoch))
        return tuple(shuffled(key, passes, num_steps) for key, passes in pairs)


class TRPOAdapter(OnPolicyAdapter):
    module = trpo

    def fresh_optimizers(self, params):
        return in_float64(self.algorithm._init_optimizer(params))

    def orders(self, num_steps: int) -> np.ndarray:
        """Of the value's passes, in the update to come."""
        _, value_key = jax.random.split(self.state.key)
        return shuffled(value_key, self.algorithm.config.num_epoch, num_steps)


class SACAdapter:
    """SAC, whose update adds a rollout to the replay and makes some gradient steps."""

    def __init__(self, **settings: Any) -> None:
        self.algorithm: SAC = make_algorithm("sac", SPEC, hidden_sizes=(5, 4), **settings)
        fresh = self.algorithm.init(jax.random.key(1))
        params = random_like(fresh.learner.params, 0, std=1.0)
        opt_state = in_float64(self.algorithm._optimizers(params))
        target = random_like(fresh.learner.target, 5)
        learner = replace(fresh.learner, params=params, target=target, opt_state=opt_state)
        self.state = replace(fresh, learner=learner)

    @property
    def params(self) -> dict[str, Any]:
        """As the oracle has them."""
        params = self.state.learner.params
        return {
            "policy": dense_layers(params["policy"], *self.hidden),
            "critics": twin_layers(params["critics"], *self.hidden),
            "log_alpha": np.asarray(params["log_alpha"]),
        }

    @property
    def target(self) -> dict[str, Any]:
        """The critics that lag behind."""
        return twin_layers(self.state.learner.target, *self.hidden)

    hidden = ("ReluMLP_0/Dense_0", "ReluMLP_0/Dense_1", "Dense_0")

    def draws(self, num_held: int) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Places in the memory [K, B], and the noise at s' and at s of every gradient step."""
        config, key = self.algorithm.config, self.state.learner.key
        _, rows_key = jax.random.split(self.state.key)
        shape, noise = (config.num_updates, config.batch_size), []
        for _ in range(config.num_updates):
            key, update_key = jax.random.split(key)
            pair = jax.random.split(update_key)
            noise.append(tuple(normal(k, (config.batch_size, ACTIONS)) for k in pair))
        return uniform(rows_key, shape, num_held), noise

    def update(self, rollout: Rollout) -> None:
        """One whole update."""
        self.state.replay.add(rollout)
        self.state, _ = self.algorithm._loop.learn(self.state)


class PEARLAdapter:
    """PEARL with its `value` critic; an update adds rollouts to both replays and learns."""

    def __init__(self, **settings: Any) -> None:
        small = {"hidden_sizes": (5, 4), "encoder_hidden_sizes": (4, 3), "num_tasks_sample": 2}
        self.algorithm = make_algorithm("pearl", SPEC, critic="value", **small, **settings)
        fresh = self.algorithm.init(jax.random.key(1))
        params, nets = random_like(fresh.learner.params, 0), self.algorithm.networks
        opt_state = in_float64({name: nets.optimizer(name).init(params[name]) for name in params})
        target = random_like(fresh.learner.target, 5)
        learner = replace(fresh.learner, params=params, target=target, opt_state=opt_state)
        self.state = replace(fresh, learner=learner)

    hidden = ("JointMLP_0/JointDense_0", "JointMLP_0/ReluMLP_0/Dense_0", "JointMLP_0/Dense_0")

    @property
    def params(self) -> dict[str, Any]:
        """As the oracle has them."""
        params = self.state.learner.params
        single = {n: dense_layers(params[n], *self.hidden) for n in ("encoder", "policy", "value")}
        return {**single, "critics": twin_layers(params["critics"], *self.hidden)}

    @property
    def target(self) -> dict[str, Any]:
        """The value that lags behind."""
        return dense_layers(self.state.learner.target, *self.hidden)

    def draws(self, num_held: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Any]]:
        """Tasks [K, M], places in their memories [K, M, B] and contexts [K, M, C], and the noise.

        `num_held` [M] are steps in memory and context alike.
        """
        config, learner = self.algorithm.config, self.state.learner
        shape, noise = (config.num_updates, config.meta_batch_size), []
        _, _, _, learn_key = jax.random.split(self.state.key, 4)
        tasks = uniform(learn_key, shape, len(num_held))
        keys = jax.random.split(jax.random.fold_in(learn_key, 0))
        held = num_held[tasks][..., None]
        sizes = (config.batch_size, config.embedding_batch_size)
        rows, tokens = (
            uniform(k, (*shape, n), np.broadcast_to(held, (*shape, n)))
            for k, n in zip(keys, sizes, strict=True)
        )
        key, latent = learner.key, (shape[1], config.latent_dim)
        for _ in range(config.num_updates):
            key, update_key = jax.random.split(key)
            z_key, _, action_key = jax.random.split(update_key, 3)
            actions = (shape[1], config.batch_size, ACTIONS)
            noise.append(pearl.Noise(normal(z_key, latent), normal(action_key, actions)))
        return tasks, rows, tokens, noise

    def update(self, rollout: Rollout) -> None:
        """One whole update."""
        rings = np.arange(len(rollout.valid))
        self.state.replay.add(rollout, rings)
        self.state.context.add(rollout, rings)
        key, _, _, learn_key = jax.random.split(self.state.key, 4)
        learner, _ = self.algorithm._learn(self.state, len(rings), learn_key)
        self.state = replace(self.state, learner=learner, key=key)


def normal(key: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers in float64."""
    return np.asarray(jax.random.normal(key, shape, jnp.float64))


def uniform(key: jax.Array, shape: tuple[int, ...], end: Any) -> np.ndarray:
    """Whole numbers from 0 on, below `end`."""
    return np.asarray(jax.random.randint(key, shape, 0, jnp.asarray(end, jnp.int32)))


# ---- What updates learn from, and how they are compared ----


def made_up(seed: int, *, members: int = MEMBERS) -> dict[str, np.ndarray]:
    """Steps [M, N, T] that end in either way, in the middle of a lane too; numbers of float32.

    The first lanes have padding and the last ones an episode that goes on after the rollout.
    """
    rng = np.random.default_rng(seed)
    shape = (members, LANES, HORIZON)

    def numbers(*more: int) -> np.ndarray:
        return rng.normal(size=(*shape, *more)).astype(np.float32)

    valid, no = np.ones(shape, bool), np.zeros(shape, bool)
    terminated, truncated = no.copy(), no.copy()
    valid[:, 0, 4:] = False
    terminated[:, 0, 1] = truncated[:, 0, 3] = True
    truncated[:, 1, 2], terminated[:, 1, 4] = True, seed % 2 == 0
    steps = {"obs": numbers(OBS), "next_obs": numbers(OBS), "action": np.tanh(numbers(ACTIONS))}
    steps |= {"reward": numbers(), "terminated": terminated, "truncated": truncated}
    pads = {name: np.where(rng.random(x.shape) < 0.5, 7, -7) for name, x in steps.items()}
    return {
        name: np.where(valid.reshape(*shape, *(1,) * (x.ndim - 3)), x, pads[name]).astype(x.dtype)
        for name, x in steps.items()
    } | {"valid": valid}


def rollout_of(steps: dict[str, np.ndarray], **extras: np.ndarray) -> Rollout:
    return Rollout(**steps, extras=extras)


def as_lanes(steps: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same as [M * N, T], real numbers in float64."""
    return {name: wide(x.reshape(-1, *x.shape[2:])) for name, x in steps.items()}


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


class Memory:
    """The valid steps of rollouts in the order of time, then of lanes."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Any]] = {}

    def add(self, steps: dict[str, np.ndarray]) -> None:
        """Steps [N, T] more."""
        for t, lane in np.ndindex(HORIZON, len(steps["valid"])):
            if steps["valid"][lane, t]:
                for name, x in steps.items():
                    self.steps.setdefault(name, []).append(wide(x)[lane, t])

    def __len__(self) -> int:
        return len(self.steps["valid"])

    def read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Those at these places."""
        return {name: np.array(x)[rows] for name, x in self.steps.items()}


def assert_moved_alike(before: Any, after: Any, expected: Any, expected_before: Any) -> None:
    """Every array of `after` moved from `before` as those that are expected; and all moved."""
    moves = dict(leaves(plus(after, before, -1.0)))
    for path, wanted in leaves(plus(expected, expected_before, -1.0)):
        size = np.max(np.abs(wanted))
        assert size > 1e-6, f"{path} did not move"
        error = np.max(np.abs(moves[path] - wanted)) / size
        assert error < TOLERANCE, f"{path} is off by {error:.1e} of its movement"


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


# ---- On-policy ----


@dataclass(frozen=True)
class Fits:
    """How the values of both on-policy algorithms are fitted here."""

    num_epoch: int = 3
    batch_size: int = 5
    lr: float = 0.02


def acted(policy: dict[str, Any], steps: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Log-probabilities [M, N, T] of a policy that was almost this one."""
    lanes = as_lanes(steps)
    mean, _ = forward(policy["mean"], lanes["obs"].reshape(-1, OBS), "tanh")
    exact = gaussian.log_prob(mean, policy["log_std"], lanes["action"].reshape(-1, ACTIONS))
    off = 0.2 * np.random.default_rng(seed).normal(size=exact.shape)
    return (exact + off).reshape(steps["valid"].shape)


FIT = Fits()
JUDGED = on_policy.ValueFit(discount=0.95, gae_lambda=0.9, batch_size=FIT.batch_size)


def test_ppo_moves_as_its_oracle():
    critic = {"num_epoch": FIT.num_epoch, "batch_size": FIT.batch_size, "lr": FIT.lr}
    settings = {"num_epoch": 2, "batch_size": 6, "eps_clip": 0.15, "lr": 0.01, "critic": critic}
    ours = PPOAdapter("ppo", discount=0.95, gae_lambda=0.9, max_grad_norm=0.4, **settings)
    adams = Adam(FIT.lr, 1e-5), Adam(0.01, 1e-5, max_norm=0.4)
    oracle = on_policy.Learner(ours.params, *adams)
    for i in range(NUM_UPDATES):
        steps, before = made_up(i), (ours.params, oracle.params)
        log_prob = acted(oracle.params["policy"], steps, i)
        orders = ours.orders(log_prob.size)
        ours.update(rollout_of(steps, log_prob=log_prob))
        lanes = as_lanes({**steps, "log_prob": log_prob})
        on_policy.ppo_update(oracle, lanes, JUDGED, 0.15, 6, orders)
        assert_moved_alike(before[0], ours.params, oracle.params, before[1])
        assert 0.2 < oracle.seen["clipped"] < 0.8
    assert 0 < adams[1].num_clipped < adams[1].steps
    # Of 28 entries 22 are valid: minibatches of 5 and 6, 5 and 4 a pass with any.
    assert (adams[0].steps, adams[1].steps) == (NUM_UPDATES * 3 * 5, NUM_UPDATES * 2 * 4)


def test_trpo_moves_as_its_oracle():
    region = on_policy.TrustRegion(0.03, 8, 1e-3, 0.7, 10)
    names = ("max_kl_step", "cg_iters", "reg_coeff", "backtrack_ratio", "max_backtracks")
    given = dict(zip(names, vars(region).values(), strict=True))
    settings = {"num_epoch": FIT.num_epoch, "batch_size": FIT.batch_size, "lr": FIT.lr}
    ours = TRPOAdapter("trpo", discount=0.95, gae_lambda=0.9, trust_region=given, **settings)
    oracle = on_policy.Learner(ours.params, Adam(FIT.lr, 1e-5))
    tries = []
    for i in range(NUM_UPDATES):
        steps, before = made_up(i), (ours.params, oracle.params)
        log_prob = acted(oracle.params["policy"], steps, i)
        orders = ours.orders(log_prob.size)
        ours.update(rollout_of(steps, log_prob=log_prob))
        lanes = as_lanes({**steps, "log_prob": log_prob})
        on_policy.trpo_update(oracle, lanes, JUDGED, region, orders)
        assert_moved_alike(before[0], ours.params, oracle.params, before[1])
        tries.append(oracle.seen["tries"])
    assert min(tries) == 1 < max(tries), "some line searches step back, others need not"


# ---- From replay ----


def test_sac_moves_as_its_oracle():
    settings = {"lr": 0.01, "batch_size": 8, "num_updates": 2, "max_grad_norm": 5.0}
    more = {"target_update_intvl": 3, "polyak": 0.9, "discount": 0.95, "reward_scale": 2.0}
    ours = SACAdapter(memory_size=100, **settings, **more)
    adams = {name: Adam(0.01, 1e-8, max_norm=5.0) for name in ours.params}
    oracle = sac.Learner(ours.params, ours.target, adams)
    learns = sac.Settings(
        discount=0.95, reward_scale=2.0, target_entropy=-2.0, tau=0.1, target_interval=3
    )
    memory, raw, first_targets = Memory(), [], (ours.target, oracle.target)
    for i in range(NUM_UPDATES):
        steps, before = made_up(i), (ours.params, oracle.params)
        memory.add({name: x.reshape(-1, *x.shape[2:]) for name, x in steps.items()})
        rows, noise = ours.draws(len(memory))
        ours.update(rollout_of(steps))
        for k, pair in enumerate(noise):
            raw.append(sac.sac_update(oracle, memory.read(rows[k]), learns, pair).raw)
        assert_moved_alike(before[0], ours.params, oracle.params, before[1])
    assert_moved_alike(first_targets[0], ours.target, oracle.target, first_targets[1])
    assert 0 < sum(adam.num_clipped for adam in adams.values()) < 3 * oracle.num_updates == 18
    assert np.any(np.array(raw) > sac.HIGHEST), "no deviation was at its bound"


def test_pearl_moves_as_its_oracle():
    rates = {"policy_lr": 0.01, "qf_lr": 0.02, "vf_lr": 0.03, "context_lr": 0.04}
    weights = {
        "policy_mean_reg_coeff": 0.1,
        "policy_std_reg_coeff": 0.2,
        "policy_pre_activation_coeff": 0.03,
    }
    sizes = {"num_updates": 2, "meta_batch_size": 2, "batch_size": 4, "embedding_batch_size": 3}
    more = {"soft_target_tau": 0.1, "discount": 0.95, "reward_scale": 2.0, "kl_lambda": 0.3}
    ours = PEARLAdapter(
        num_train_tasks=3, latent_dim=2, replay_buffer_size=100, **sizes, **rates, **weights, **more
    )
    names = {"policy": "policy_lr", "critics": "qf_lr", "value": "vf_lr", "encoder": "context_lr"}
    adams = {name: Adam(rates[rate], 1e-5) for name, rate in names.items()}
    oracle = pearl.Learner(ours.params, ours.target, adams)
    learns = pearl.Settings(0.95, 2.0, 0.3, 0.1, *weights.values())
    memories = [Memory() for _ in range(3)]
    for i in range(NUM_UPDATES):
        steps = made_up(i, members=3)
        before = ours.params, oracle.params, ours.target, oracle.target
        for task, memory in enumerate(memories):
            memory.add({name: x[task] for name, x in steps.items()})
        tasks, rows, tokens, noise = ours.draws(np.array([len(m) for m in memories]))
        ours.update(rollout_of(steps))
        for k in range(len(tasks)):
            batch, context = (
                gathered([memories[task] for task in tasks[k]], places[k])
                for places in (rows, tokens)
            )
            pearl.pearl_update(oracle, batch, context, learns, noise[k])
        assert_moved_alike(before[0], ours.params, oracle.params, before[1])
        assert_moved_alike(before[2], ours.target, oracle.target, before[3])


def gathered(memories: list[Memory], places: np.ndarray) -> dict[str, np.ndarray]:
    """Steps [M, B] at places [M, B] of the tasks' memories."""
    parts = [memory.read(rows) for memory, rows in zip(memories, places, strict=True)]
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}
