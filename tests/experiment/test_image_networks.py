"""Convolutions of one's own on images: observations are flat vectors, which a module reshapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import fingerprint

import adaptax
from adaptax.core.experience import Step
from adaptax.core.spec import ActionSpace, Discrete, EnvSpec
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer_config import TrainerConfig
from adaptax.networks.actor_critic import ActorCritic
from adaptax.networks.heads import ActionHead
from adaptax.networks.memory import GRU
from adaptax.sampling.sampler import Sampler

SIDE = 6
SETTINGS = {
    "num_lanes": 8,
    "num_steps": 64,
    "num_minibatches": 2,
    "num_epochs": 2,
    "critic": {"num_epochs": 2, "num_minibatches": 2},
}


@dataclass(frozen=True)
class ImageEnv:
    """A dot in a picture of 6 x 6 pixels that is to be moved to the right."""

    horizon: int = 10

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(SIDE * SIDE, Discrete(4), self.horizon)

    def reset(self, key, task):
        state = jax.random.randint(key, (2,), 0, SIDE)
        return state, picture(state)

    def step(self, key, state, action, task):
        moves = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
        state = jnp.clip(state + moves[action], 0, SIDE - 1)
        return state, Step(reward=(state[1] == SIDE - 1) * 1.0, next_obs=picture(state))


def picture(place: jax.Array) -> jax.Array:
    return jnp.zeros((SIDE, SIDE)).at[place[0], place[1]].set(1.0).reshape(-1)


def image_suite():
    tasks = TaskList("only", [{}])
    return compiled_suite("image", ImageEnv(), tasks, tasks)


class Convolutions(nn.Module):
    """Flat pictures [..., 36] -> features [..., 8]."""

    @nn.compact
    def __call__(self, obs):
        x = obs.reshape(-1, SIDE, SIDE, 1)
        x = nn.relu(nn.Conv(4, (3, 3), strides=2)(x))
        features = nn.relu(nn.Dense(8)(x.reshape(len(x), -1)))
        return features.reshape(*obs.shape[:-1], -1)


class Plain(nn.Module):
    """Pictures -> a distribution over actions, and a value."""

    space: ActionSpace

    @nn.compact
    def __call__(self, obs):
        features = Convolutions()(obs)
        return ActionHead(self.space)(features), nn.Dense(1)(features)[..., 0]


ACTIONS = ImageEnv().spec.action
NETWORKS = {
    "torso": ActorCritic(ACTIONS, torso=Convolutions()),
    "shared torso and memory": ActorCritic(
        ACTIONS, memory=GRU(5), shared=True, torso=Convolutions()
    ),
    "plain": Plain(ACTIONS),
}
one_else_slow = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind == "plain" else pytest.mark.slow) for kind in NETWORKS],
)


def config(run_dir, num_iterations: int) -> TrainerConfig:
    return TrainerConfig(
        str(run_dir),
        num_iterations=num_iterations,
        quiet=True,
        evaluation_interval=None,
        snapshot_interval=1,
    )


def trainer(run_dir, num_iterations: int, networks, name: str = "ppo"):
    suite, settings = image_suite(), dict(SETTINGS)
    if name != "ppo":
        del settings["critic"]
    algorithm = adaptax.make_algorithm(name, suite.spec, networks, **settings)
    return adaptax.Trainer(config(run_dir, num_iterations), algorithm, suite)


@one_else_slow
def test_every_layer_learns_and_resume_is_exact(tmp_path, kind):
    networks = NETWORKS[kind]
    whole = trainer(tmp_path / "whole", 3, networks)
    fresh = whole.algorithm.init(jax.random.key(0)).params
    kernels = [x for x in jax.tree.leaves(fresh) if x.shape == (3, 3, 1, 4)]
    assert len(kernels) == (2 if kind == "torso" else 1)
    whole.run()
    trainer(tmp_path / "parts", 1, networks).run()
    parts = trainer(tmp_path / "parts", 3, networks)
    before = parts.algorithm.init(jax.random.key(0))
    parts.resume()
    assert fingerprint(parts.state) == fingerprint(whole.state)
    rows = [read_rows(t.run_dir / "progress.jsonl")[-1] for t in (parts, whole)]
    assert rows[0]["train/policy_loss"] == rows[1]["train/policy_loss"]
    assert jax.tree.structure(before.params) == jax.tree.structure(whole.state.params)


@one_else_slow
def test_every_parameter_moves_in_an_update(kind):
    suite = image_suite()
    algorithm = adaptax.make_algorithm("ppo", suite.spec, NETWORKS[kind], **SETTINGS)
    state = algorithm.init(jax.random.key(0))
    after, figures = algorithm.iteration(state, Sampler(suite, suite.train, 0, "train"))
    assert np.isfinite(figures["kl"]) and float(figures["kl"]) > 0
    pairs = zip(*(jax.tree.leaves(s.params) for s in (state, after)), strict=True)
    assert all(np.any(a != b) for a, b in pairs)


@pytest.mark.slow
def test_ppo_learns_from_pictures():
    suite = image_suite()
    settings = {**SETTINGS, "num_steps": 320, "num_epochs": 8, "lr": 5e-3}
    settings["critic"] = {**SETTINGS["critic"], "lr": 5e-3}
    algorithm = adaptax.make_algorithm("ppo", suite.spec, NETWORKS["plain"], **settings)
    sampler = Sampler(suite, suite.train, 0, "train")
    state = algorithm.init(jax.random.key(0))
    for _ in range(30):
        state, _ = algorithm.iteration(state, sampler)
    rollout = sampler.episodes(algorithm.actor(state), suite.train.tasks, 32, 1)
    assert float(np.mean(np.sum(rollout.reward, axis=-1))) > 6.0  # at random 1.7, at best 8.3


@pytest.mark.parametrize("name", ["a2c", "ppo", "ppo2", "trpo", "svpg"])
def test_pictures_are_not_standardised_and_numbers_are(name):
    moments = {}
    for suite in ("catch", "cartpole"):
        algorithm = adaptax.make_algorithm(name, adaptax.make_suite(suite).spec)
        if name == "svpg":
            particle = replace(algorithm.config.particle, normalize_obs=True)
            algorithm = algorithm.with_config(replace(algorithm.config, particle=particle))
        shapes = jax.eval_shape(algorithm.init, jax.random.key(0))
        moments[suite] = (shapes.particles if name == "svpg" else shapes).moments
    assert "obs" not in moments["catch"] and "obs" in moments["cartpole"]


@pytest.mark.slow
def test_ppo2_catches_a_falling_pixel_by_its_recipe(tmp_path):
    trainer = adaptax.train("ppo2", "catch", run_dir=tmp_path / "run", quiet=True)
    assert trainer.evaluate_untrained().returns.mean() < -0.5
    assert trainer.evaluate().returns.mean() > 0.6  # measured 0.80 to 0.98 over five seeds
