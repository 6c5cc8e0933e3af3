"""The table of docs/boundaries.md, by the functions that algorithms are made of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.algorithms.meta import rl2
from adaptax.algorithms.meta.rl2 import RL2Config
from adaptax.algorithms.meta.rl2_sac import RL2SAC, RL2SACConfig
from adaptax.algorithms.meta.varibad import VariBADConfig
from adaptax.algorithms.on_policy.family import OnPolicyConfig
from adaptax.core.experience import Rollout
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.functional.q_learning import td_target
from adaptax.functional.returns import discounted_returns
from adaptax.learning.estimator import estimate
from adaptax.learning.processors import ProcessorConfig, process_samples
from adaptax.learning.replay import ReplayConfig, add, make_replay, read
from adaptax.learning.sequences import Sequences, episode_sequences
from adaptax.learning.trials import make_trials, with_trials

PAGE = (Path(__file__).parent.parent / "docs" / "boundaries.md").read_text()
SPEC = EnvSpec(1, Continuous(1), 2)
DISCOUNT, VALUE, NUM_STEPS = 0.5, 8.0, 6
TERMINATED, TRUNCATED = 1, 3
"""The steps that end the first two episodes; the last step is cut."""


def rollout(num_steps: int = NUM_STEPS, *, cut: bool = False) -> Rollout:
    """The page's lane, of which only so many steps happened; `cut`: a time limit ends the last."""
    steps = np.arange(NUM_STEPS)[None, None]
    valid, zeros = steps < num_steps, np.zeros((1, 1, NUM_STEPS, 1), np.float32)
    memory = {"memory": (), "reset": np.ones((1, 1), bool)}
    return Rollout(
        obs=steps[..., None].astype(np.float32) * valid[..., None],
        action=zeros,
        reward=np.float32(valid),
        next_obs=zeros,
        terminated=(steps == TERMINATED) & valid,
        truncated=((steps == TRUNCATED) & valid) | (cut & (steps == num_steps - 1)),
        valid=valid,
        extras={"log_prob": np.zeros((1, 1, NUM_STEPS), np.float32)},
        initial_carry={**memory, "actor": memory},
    )


def targets(sequences: Sequences) -> np.ndarray:
    """What a value that is 8 everywhere is to learn, and advantages are the rest of."""

    def values(network, params, sequences):
        return 2 * (jnp.full(sequences.reward.shape, VALUE),)

    settings = OnPolicyConfig(discount=DISCOUNT, gae_lambda=1.0)
    return np.asarray(estimate(settings, None, {}, {}, sequences, values=values)[0].target[0])


def reinforce() -> np.ndarray:
    whole = rollout(4)
    ends = {name: getattr(whole, name) for name in ("terminated", "truncated", "valid")}
    nothing = np.zeros_like(whole.reward)
    return discounted_returns(whole.reward, nothing, **ends, discount=DISCOUNT)[0, 0, :4]


def on_policy() -> np.ndarray:
    return targets(episode_sequences(rollout(), None))


def maml(*, bootstrap_truncated: bool = True) -> np.ndarray:
    config = ProcessorConfig(
        discount=DISCOUNT,
        baseline="linear_time",
        baseline_fit="previous",
        bootstrap_truncated=bootstrap_truncated,
    )
    constant = np.array([[0.0, 0.0, 0.0, VALUE]])
    return np.asarray(process_samples(rollout(4), config, constant).advantage[0, 0, :4]) + VALUE


def trial(config: RL2Config) -> np.ndarray:
    state = rl2.State({}, {}, {}, jnp.array(0), jax.random.key(0))
    made = rl2.sequences_of(config, None, SPEC, state, rollout(cut=True))
    return targets(replace(made, reward=made.reward / config.reward_scale))


def replayed(n_step: int = 1) -> np.ndarray:
    empty = make_replay(ReplayConfig(8, 1, n_step), SPEC, DISCOUNT, (1, 1))
    replay = jax.jit(add)(empty, replace(rollout(), extras={}, initial_carry={}))
    size = int(replay.sizes[0])
    batch = read(replay, np.zeros(size, int), np.arange(size))
    by_time = np.argsort(batch.obs[:, 0])
    target = td_target(batch.reward, batch.discount, batch.terminated, jnp.float32(VALUE))
    return np.asarray(target)[by_time]


def rl2_sac() -> np.ndarray:
    spec = replace(SPEC, horizon=NUM_STEPS // 2)
    config = RL2SACConfig(num_episodes=2, discount=DISCOUNT, reward_scale=1.0)
    algorithm = RL2SAC(config, spec)
    empty = make_trials(1, NUM_STEPS, spec, DISCOUNT, truncated=True)
    trials, _ = jax.jit(with_trials)(empty, jnp.int32(0), rollout(cut=True))
    kept = algorithm.minibatch(trials, jnp.array([0]))
    return td_target(kept.reward, DISCOUNT, kept.ended, jnp.float32(VALUE))[0]


ROWS = {
    "reinforce": reinforce,
    "a2c, ppo, ppo2, trpo, svpg, with `gae_lambda` 1": on_policy,
    "promp, trpo-maml, vpg-maml, with `gae_lambda` 1": maml,
    "the same with `--algorithm.no-bootstrap-truncated`": lambda: maml(bootstrap_truncated=False),
    "rl2-ppo, rl2-trpo, with `gae_lambda` 1": lambda: trial(RL2Config()),
    "the same with `--algorithm.no-bootstrap-trial-end`": lambda: trial(
        RL2Config(bootstrap_trial_end=False)
    ),
    "varibad (`cut_at_termination`), with `gae_lambda` 1": lambda: trial(VariBADConfig()),
    "dqn, ddpg, td3, sac, pearl, with `n_step` 1": replayed,
    "dqn, ddpg, td3, sac with `n_step` 2": lambda: replayed(2),
    "rl2-sac": rl2_sac,
}


def told() -> dict[str, list[float]]:
    """The page's rows, by what they are of; without the steps that have no return."""
    rows = re.findall(r"^\| ([^|]*[a-z][^|]*) \|((?: [\d.a-z]* ?\|){6})$", PAGE, flags=re.M)
    cells = {name: [x.strip() for x in line.split("|")[:-1]] for name, line in rows}
    return {
        name: [float(x) for x in found if x not in ("", "waits")] for name, found in cells.items()
    }


def test_every_row_is_made_here():
    assert list(told()) == list(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_the_numbers_are_those_of_the_code(name):
    np.testing.assert_array_equal(ROWS[name](), told()[name])
