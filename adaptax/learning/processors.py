"""Sample processors: from rollouts to advantages over fitted baselines, and to DiCE's rewards.

They are those of ProMP (Rothfuss et al. 2019; repository jonasrothfuss/ProMP,
meta_policy_search/samplers), task by task: member m has a baseline of its own. Lanes hold whole
episodes, one after another; nothing reaches across an episode's end, and padding comes out as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.config import check_unit
from adaptax.core.errors import check
from adaptax.core.experience import Array, Rollout
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.precision import in_64_bits
from adaptax.functional.masking import masked_shift_positive, masked_standardize
from adaptax.functional.returns import (
    discounted_returns,
    episode_index,
    gae,
    path_ends,
    time_in_episode,
)
from adaptax.learning.baselines import (
    FEATURES,
    fit_baseline,
    linear_time_features,
    predict_baseline,
    zero_features,
)


@dataclass(frozen=True)
class ProcessorConfig(Hyperparameters):
    """How advantages come from rewards."""

    discount: float = 0.99
    """Weight of a reward against one a step earlier, gamma."""
    gae_lambda: float = 1.0
    """Lambda of generalised advantage estimation. DiCE objectives weight actions by discounted
    rewards and ignore it."""
    normalize_advantage: bool = False
    """Standardise each task's advantages."""
    positive_advantage: bool = False
    """Then shift them so that the smallest is 1e-8."""
    baseline: Literal["linear", "linear_time", "zero"] = "linear"
    """What returns are compared with: a linear fit to features of observation and time, to time
    alone, or nothing. For DiCE objectives `linear` means time alone, since their baseline may not
    depend on states that actions led to."""
    baseline_fit: Literal["current", "previous"] = "current"
    """Whether a baseline is fitted to the episodes that it predicts, or to those before them."""
    bootstrap_truncated: bool = True
    """Whether what follows a time limit counts by the baseline's prediction; if not, as 0, as in
    ProMP. DiCE objectives ignore it."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
    """[M, P, H] discounted rewards minus their baseline, 0 in lanes without an episode.

    After an episode's end rewards are 0 and the baseline goes on: it may depend on the time, but
    not on whether the actions have ended the episode, which is what they get credit for.
    """
    adj_avg_rewards: Array
    """[M, P, H] as in `TaskSamples`."""
    weights: Array
    """[M, F] of the baseline fitted to these discounted rewards."""


def process_samples(
    rollout: Rollout, config: ProcessorConfig, weights: Array | None = None
) -> TaskSamples:
    """Generalised advantages [M, N, T] over a baseline fitted task by task.

    `weights` [M, F] are those of the episodes before, for `baseline_fit="previous"`; None predicts
    0 there. The returns that a baseline is fitted to end with the episode, cut or not, as its
    features include the time; only advantages count what it predicts after a cut, from the last
    observation.
    """
    samples: TaskSamples = in_64_bits(_samples, config, rollout.steps, weights)
    return samples


@jax.jit
def _samples(config: ProcessorConfig, steps: Rollout, weights: Array | None) -> TaskSamples:
    paths, features = _clean(steps), FEATURES[config.baseline]
    ends = {"terminated": paths.terminated, "truncated": paths.truncated, "valid": paths.valid}
    nothing = jnp.zeros_like(paths.reward)
    returns = discounted_returns(paths.reward, nothing, discount=config.discount, **ends)
    time = time_in_episode(paths.terminated, paths.truncated)
    phi = features(paths.obs, time, paths.valid)
    fitted = fit_baseline(phi, returns, paths.valid)
    used = fitted if config.baseline_fit == "current" else weights
    value = predict_baseline(phi, used)
    # Inside a path the next row holds the next state.
    next_value = jnp.where(path_ends(**ends), 0.0, jnp.roll(value, -1, axis=-1))
    if config.bootstrap_truncated:

        def expected(obs: jax.Array, time: jax.Array, valid: jax.Array) -> jax.Array:
            return predict_baseline(features(obs, time, valid), used)

        next_value = _with_last_values(expected, paths, time, next_value)
    advantage = gae(
        paths.reward,
        value.astype(jnp.float32),
        next_value.astype(jnp.float32),
        discount=config.discount,
        gae_lambda=config.gae_lambda,
        **ends,
    )
    return TaskSamples(
        returns=returns,
        value=value,
        advantage=_scaled(config, advantage, paths.valid),
        adj_avg_rewards=masked_standardize(paths.reward, paths.valid),
        weights=fitted,
    )


def process_dice_samples(
    rollout: Rollout,
    config: ProcessorConfig,
    horizon: int,
    weights: Array | None = None,
) -> DiceSamples:
    """Discounted rewards minus a baseline in time alone, for DiCE (Foerster et al. 2018).

    `baseline="zero"` has none; `gae_lambda` and `bootstrap_truncated` are of advantages.
    `weights` [M, F] are those of the episodes before, for `baseline_fit="previous"`.
    """
    process = partial(_dice_samples, horizon)
    samples: DiceSamples = in_64_bits(process, config, rollout.steps, weights)
    return samples


@partial(jax.jit, static_argnums=0)
def _dice_samples(
    horizon: int, config: ProcessorConfig, steps: Rollout, weights: Array | None
) -> DiceSamples:
    paths = one_episode_a_lane(steps, horizon)
    time = jnp.arange(horizon)
    discounted = config.discount**time * paths.reward
    there = jnp.broadcast_to(jnp.any(paths.valid, axis=-1, keepdims=True), paths.valid.shape)
    features = zero_features if config.baseline == "zero" else linear_time_features
    phi = features(paths.obs, time, there)
    fitted = fit_baseline(phi, discounted, there)
    used = fitted if config.baseline_fit == "current" else weights
    adjusted = (discounted - predict_baseline(phi, used)).astype(jnp.float32)
    return DiceSamples(
        paths=paths,
        adjusted_reward=_scaled(config, adjusted, there),
        adj_avg_rewards=masked_standardize(paths.reward, paths.valid),
        weights=fitted,
    )


def one_episode_a_lane(rollout: Rollout, horizon: int) -> Rollout:
    """The same episodes [M, N * E, H], H = `horizon`, each in its own lane from time 0.

    Lanes [M, N, E * H] hold at most E episodes, as `Sampler.episodes` and `Agent.rollout` fill them
    and `check_room` makes sure; where one has fewer, lanes stay empty. The carry, which belongs to
    whole lanes, is left out.
    """
    paths = _clean(rollout)
    num_members, num_lanes, num_steps = paths.valid.shape
    num_episodes, rest = divmod(num_steps, horizon)
    check(rest == 0, f"lanes of {num_steps} steps are not made for episodes of {horizon}")
    time = time_in_episode(paths.terminated, paths.truncated)
    index = episode_index(paths.terminated, paths.truncated)
    place = jnp.where(paths.valid, index * horizon + time, num_steps)
    m, n = jnp.ogrid[:num_members, :num_lanes]

    def split(x: jax.Array) -> jax.Array:
        moved = jnp.zeros_like(x).at[m[..., None], n[..., None], place].set(x, mode="drop")
        shape = (num_members, num_lanes * num_episodes, horizon)
        return moved.reshape(*shape, *x.shape[3:])

    split_paths: Rollout = jax.tree.map(split, paths)
    return split_paths


def check_room(rollout: Rollout, horizon: int) -> None:
    """Raise a ConfigError where `one_episode_a_lane` would lose steps; not for use in programs."""
    valid, ends = np.asarray(rollout.valid), (rollout.terminated, rollout.truncated)
    longest = int(np.asarray(time_in_episode(*ends))[valid].max(initial=-1)) + 1
    check(longest <= horizon, f"a path of {longest} steps is over {horizon}")
    most = int(np.asarray(episode_index(*ends))[valid].max(initial=0)) + 1
    room = valid.shape[-1] // horizon
    check(
        most <= room,
        f"{most} episodes in a lane of {valid.shape[-1]} steps; {horizon} steps for each, "
        f"with its padding, are room for {room}",
    )


def _with_last_values(
    expected: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    paths: Rollout,
    time: jax.Array,
    next_value: jax.Array,
) -> jax.Array:
    """`next_value` [M, N, T] with what is `expected` after the last observation of each path.

    Path by path of the lanes, most of which hold one: features of all steps would take longer.
    """
    ends = paths.terminated, paths.truncated, paths.valid
    last, index = path_ends(*ends) & paths.valid, episode_index(*ends[:2])

    def more(loop: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(last & (index >= loop[0]))

    def with_next_paths(loop: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, values = loop
        here = last & (index == number)
        place = jax.lax.argmax(here, 2, jnp.int32)[..., None]  # of int64 JAX can make no program
        obs = jnp.take_along_axis(paths.next_obs, place[..., None], axis=2)
        steps, there = (jnp.take_along_axis(x, place, axis=2) for x in (time + 1, here))
        return number + 1, jnp.where(here, expected(obs, steps, there), values)

    return jax.lax.while_loop(more, with_next_paths, (jnp.array(0), next_value))[1]


def _clean(rollout: Rollout) -> Rollout:
    """The rollout with rewards 0 where it is not valid, without its carry."""
    paths = rollout.steps
    return replace(paths, reward=jnp.where(paths.valid, paths.reward, 0.0))


def _scaled(config: ProcessorConfig, x: jax.Array, valid: jax.Array) -> jax.Array:
    """Standardised and shifted task by task, as the config says; always 0 where not valid."""
    flat, flat_valid = (jnp.reshape(y, (len(y), -1)) for y in (x, valid))
    if config.normalize_advantage:
        flat = jax.vmap(masked_standardize)(flat, flat_valid)
    if config.positive_advantage:
        flat = jax.vmap(masked_shift_positive)(flat, flat_valid)
    return jnp.where(valid, flat.reshape(valid.shape), 0.0)
