"""Sample processors: from rollouts to advantages over fitted baselines, and to DiCE's rewards.

They are those of ProMP (Rothfuss et al. 2019; repository jonasrothfuss/ProMP,
meta_policy_search/samplers), task by task: member m has a baseline of its own. Lanes hold whole
episodes, one after another; nothing reaches across an episode's end, and padding comes out as 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.config import check_unit
from adaptax.core.errors import check
from adaptax.core.experience import Array, Rollout
from adaptax.functional.masking import masked_shift_positive, masked_standardize
from adaptax.functional.returns import discounted_returns, episode_index, gae, path_ends
from adaptax.learning.baselines import (
    FEATURES,
    fit_baseline,
    linear_time_features,
    predict_baseline,
    time_in_episode,
)


@dataclass(frozen=True)
class ProcessorConfig:
    """How advantages come from rewards."""

    discount: float = 0.99
    gae_lambda: float = 1.0
    normalize_advantage: bool = False
    """Standardise each task's advantages."""
    positive_advantage: bool = False
    """Then shift them so that the smallest is 1e-8."""
    baseline: Literal["linear", "linear_time", "zero"] = "linear"
    """What advantages are over: a fit to observations and time, to time alone, or nothing."""
    baseline_fit: Literal["current", "previous"] = "current"
    """Whether a baseline is fitted to the episodes that it predicts, or to those before them."""
    bootstrap_truncated: bool = True
    """Count what follows a cut episode at its baseline; False counts it as 0, as ProMP does."""

    def __post_init__(self) -> None:
        check_unit(self, "discount", "gae_lambda")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TaskSamples:
    """What `process_samples` makes of a rollout: arrays [M, N, T], 0 where it is not valid."""

    returns: Array
    """Discounted sums of the rewards to come in the episode: what the baseline is fitted to."""
    value: Array
    """The baseline's predictions."""
    advantage: Array
    adj_avg_rewards: Array
    """Rewards standardised over all tasks together, for E-MAML (Stadie et al. 2018)."""
    weights: Array
    """[M, F] of the baseline fitted to these returns."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiceSamples:
    """What `process_dice_samples` makes of a rollout: P episodes a task of H steps at most."""

    paths: Rollout
    """[M, P, H], an episode a lane; `paths.valid` is the mask."""
    adjusted_reward: Array
    """[M, P, H] discounted rewards minus their baseline."""
    adj_avg_rewards: Array
    """[M, P, H] as in `TaskSamples`."""
    weights: Array
    """[M, F] of the baseline fitted to these discounted rewards."""


def process_samples(
    rollout: Rollout, config: ProcessorConfig, weights: np.ndarray | None = None
) -> TaskSamples:
    """Generalised advantages [M, N, T] over a baseline fitted task by task.

    `weights` [M, F] are those of the episodes before, for `baseline_fit="previous"`; None predicts
    0 there. A baseline's features include the time, so that what it is fitted to may end where the
    episode does, cut or not: only advantages count what it expects after a cut, from the last
    observation.
    """
    paths, features = _on_host(rollout), FEATURES[config.baseline]
    time, ends = time_in_episode(paths.terminated, paths.truncated), _ends(paths)
    returns, path_end = _returns(config.discount, paths.reward, ends)
    last = np.asarray(path_end)
    phi = features(paths.obs, time, paths.valid)
    fitted = fit_baseline(phi, np.asarray(returns), paths.valid)
    used = fitted if config.baseline_fit == "current" else weights
    value = predict_baseline(phi, used)
    next_value = np.roll(value, -1, axis=-1)  # inside a path the next row holds the next state
    next_value[last] = 0.0
    if config.bootstrap_truncated:
        own = None if used is None else used[np.nonzero(last)[0]]
        last_phi = features(paths.next_obs[last], time[last] + 1, paths.valid[last])
        next_value[last] = predict_baseline(last_phi, own)
    advantage = _advantages(config, paths.reward, value, next_value, ends)
    return TaskSamples(returns, value, advantage, _standardized(paths.reward, paths.valid), fitted)


def process_dice_samples(
    rollout: Rollout,
    config: ProcessorConfig,
    max_path_length: int,
    weights: np.ndarray | None = None,
) -> DiceSamples:
    """Discounted rewards minus a baseline in time alone, for DiCE (Foerster et al. 2018).

    `weights` [M, F] are those of the episodes before, for `baseline_fit="previous"`.
    """
    paths = one_episode_a_lane(rollout, max_path_length)
    time = np.broadcast_to(np.arange(max_path_length), paths.valid.shape)
    discounted = config.discount**time * paths.reward
    phi = linear_time_features(paths.obs, time, paths.valid)
    fitted = fit_baseline(phi, discounted, paths.valid)
    used = fitted if config.baseline_fit == "current" else weights
    adjusted = np.where(paths.valid, discounted - predict_baseline(phi, used), 0.0)
    adjusted_reward = _scaled(config, adjusted, paths.valid)
    adj_avg_rewards = _standardized(paths.reward, paths.valid)
    return DiceSamples(paths, adjusted_reward, adj_avg_rewards, fitted)


def one_episode_a_lane(rollout: Rollout, max_path_length: int) -> Rollout:
    """The same episodes [M, P, H], H = `max_path_length`, each in a lane of its own from time 0.

    P is N times the number of episodes in the fullest lane; where others have fewer, lanes stay
    empty. The carry, which belongs to whole lanes, is left out.
    """
    paths = _on_host(rollout)
    time = time_in_episode(paths.terminated, paths.truncated)
    index = episode_index(paths.terminated, paths.truncated)
    m, n, t = np.nonzero(paths.valid)
    longest = int(time[m, n, t].max(initial=-1)) + 1
    check(longest <= max_path_length, f"a path of {longest} steps is over {max_path_length}")
    num_members, num_lanes, _ = paths.valid.shape
    num_episodes = int(index[m, n, t].max(initial=0)) + 1

    def split(x: np.ndarray) -> np.ndarray:
        shape = (num_members, num_lanes, num_episodes, max_path_length, *x.shape[3:])
        out = np.zeros(shape, x.dtype)
        out[m, n, index[m, n, t], time[m, n, t]] = x[m, n, t]
        return out.reshape(num_members, num_lanes * num_episodes, *shape[3:])

    split_paths: Rollout = jax.tree.map(split, paths)
    return split_paths


def _on_host(rollout: Rollout) -> Rollout:
    """The rollout as NumPy arrays, rewards 0 where it is not valid, without its carry."""
    paths: Rollout = jax.tree.map(np.asarray, rollout.steps)
    return replace(paths, reward=np.where(paths.valid, paths.reward, 0.0))


def _ends(paths: Rollout) -> dict[str, np.ndarray]:
    return {"terminated": paths.terminated, "truncated": paths.truncated, "valid": paths.valid}


@partial(jax.jit, static_argnums=0)
def _returns(
    discount: float, reward: jax.Array, ends: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns and where paths end."""
    nothing = jnp.zeros_like(reward)
    return discounted_returns(reward, nothing, discount=discount, **ends), path_ends(**ends)


@partial(jax.jit, static_argnums=0)
def _advantages(
    config: ProcessorConfig,
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    ends: dict[str, jax.Array],
) -> jax.Array:
    discount, gae_lambda = config.discount, config.gae_lambda
    advantage = gae(reward, value, next_value, discount=discount, gae_lambda=gae_lambda, **ends)
    return _scaled(config, advantage, ends["valid"])


@partial(jax.jit, static_argnums=0)
def _scaled(config: ProcessorConfig, x: jax.Array, valid: jax.Array) -> jax.Array:
    """Standardised and shifted task by task, as the config says; always 0 where not valid."""
    flat, flat_valid = (jnp.reshape(y, (len(y), -1)) for y in (x, valid))
    if config.normalize_advantage:
        flat = jax.vmap(masked_standardize)(flat, flat_valid)
    if config.positive_advantage:
        flat = jax.vmap(masked_shift_positive)(flat, flat_valid)
    return flat.reshape(valid.shape)


_standardized = jax.jit(masked_standardize)
