"""What DQN, DDPG, TD3 and SAC share."""

from __future__ import annotations

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_worlds import Counter, Faulty, OneState, suite_of
from toys import (
    EVALUATION,
    ChangingSampler,
    fingerprint,
    point_suite,
    train_sampler,
    trained,
)

from adaptax.algorithms.off_policy.family import (
    Data,
    LearnerState,
    Networks,
    OffPolicyConfig,
    gradient_steps,
    off_policy_optimizer,
    update,
    updated_target,
)
from adaptax.algorithms.off_policy.sac import SAC, SACConfig
from adaptax.algorithms.program import ABSENT
from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.errors import ConfigError, NotFinite
from adaptax.core.experience import Rollout
from adaptax.core.rng import named_key
from adaptax.core.snapshot import flatten, unflatten
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig
from adaptax.functional.distributions import TanhGaussian
from adaptax.learning.replay import read, sample

SMALL = {
    "num_cycles": 2,
    "num_steps": 10,
    "num_updates": 3,
    "num_initial_steps": 40,
    "batch_size": 8,
    "hidden_sizes": (8,),
    "n_step": 2,
    "normalize_rewards": True,
}
"""One for most tests, so that little is compiled."""


SLOW_NAMES = [pytest.param(name, marks=pytest.mark.slow) for name in ("ddpg", "td3")]


@pytest.fixture(params=["dqn", "sac", *SLOW_NAMES])
def name(request):
    return request.param


def agent(name: str, **settings):
    """A small one on a point in the plane, and a sampler for it."""
    suite = point_suite(ALGORITHMS[name])
    return make_algorithm(name, suite.spec, **{**SMALL, **settings}), train_sampler(suite)


@pytest.mark.parametrize(
    ("wanted", "steps"), [(None, 500), (10, 64), (100, 100), (10_000, 500), (64, 64)]
)
def test_the_replay_is_filled_by_the_rule(wanted, steps):
    """buffer_size 500, batch_size 64."""
    config = OffPolicyConfig(buffer_size=500, num_initial_steps=wanted, batch_size=64)
    assert config.warmup_steps == steps


def test_every_lane_has_a_transition_before_the_first_gradient_step():
    config = OffPolicyConfig(num_initial_steps=1, batch_size=1, n_step=3, num_lanes=4)
    assert config.warmup_steps == 12


def test_no_gradient_step_is_made_before_enough_steps_came_and_all_of_them_after(name):
    """40 steps are asked for, 2 cycles of 10 steps and 3 updates an iteration."""
    algorithm, sampler = agent(name)
    actors = []

    def note(rollout, actor):
        actors.append((bool(actor.warm), rollout.valid.size))
        return rollout

    sampler = ChangingSampler(sampler.suite, note)
    state = algorithm.init(named_key(0, "init"))
    counts = []
    for _ in range(4):
        state, metrics = algorithm.iteration(state, sampler)
        counts.append(metrics["num_updates"])
        assert metrics["num_updates"] == int(state.learner.num_updates)
        assert ("critic_loss" in metrics) == (metrics["num_updates"] > 0)
    assert counts == [0, 0, 6, 12]
    assert actors == [(False, 10)] * 4 + [(True, 10)] * 4
    assert state.replay.num_added[0] == 80


def test_a_member_still_in_its_warm_up_makes_no_gradient_step_beside_one_that_learns():
    def step(learner, batch_key, key):
        return replace(learner, params=learner.params + 1), {"loss": learner.params}

    def learned(key, learn):
        learner = LearnerState(jnp.float32(0), jnp.float32(0), {}, jnp.int32(0), key)
        return gradient_steps(step, learner, 5, learn)

    keys, learn = jax.random.split(jax.random.key(0), 2), jnp.array([True, False])
    learner, figures = jax.jit(jax.vmap(learned))(keys, learn)
    assert learner.params.tolist() == learner.num_updates.tolist() == [5, 0]
    assert figures["loss"].tolist() == [2.0, ABSENT]
    assert (learner.key == keys).tolist() == [False, True]


def test_the_first_steps_are_those_of_uniform_actions(name):
    """Where an iteration is longer than the warm-up, its last cycles learn."""
    algorithm, sampler = agent(name, num_initial_steps=10, num_cycles=3)
    state, metrics = trained(algorithm, sampler, 1)
    assert metrics["num_updates"] == 6
    assert state.num_cycles == 3


def test_tasks_are_drawn_anew_by_the_iteration():
    """Their episodes go on from cycle to cycle."""
    suite, goals = point_suite(), []

    def note(rollout, actor):
        moved = rollout.next_obs - rollout.obs
        assert moved.shape[2] == 5
        goals.append(sampler.tasks_of_iteration(2)[0].params["goal"].tolist())
        return rollout

    sampler = ChangingSampler(suite, note)
    algorithm = make_algorithm("sac", suite.spec, **{**SMALL, "num_lanes": 2, "num_tasks": 2})
    trained(algorithm, sampler, 2)
    assert goals[0] == goals[1] != goals[2] == goals[3]
    assert sampler.num_steps == 40


def test_auto_makes_as_many_updates_as_environment_steps():
    config = OffPolicyConfig(num_lanes=3, num_steps=10)
    assert (config.lane_steps, config.cycle_updates) == (4, 12)


def test_targets_are_copies_of_the_networks_at_the_start(name):
    algorithm, _ = agent(name)
    learner = algorithm.init(named_key(0, "init")).learner
    online = {"dqn": lambda p: p["q"], "sac": lambda p: p["critics"]}.get(name, lambda p: p)
    assert fingerprint(learner.target) == fingerprint(online(learner.params))


def test_targets_are_copied_every_kth_gradient_step():
    """With k = 3 and tau 1, from 0 towards 1, in 7 steps."""
    config = OffPolicyConfig(target_update_interval=3, tau=1.0)
    target, copied = np.zeros(2), []
    for num in range(1, 8):
        after = updated_target(config, num, target, np.ones(2))
        copied.append(bool(np.all(after == 1)))
    assert copied == [False, False, True, False, False, True, False]


def test_small_gradients_move_parameters_as_far_as_large_ones():
    """Adam's first step is lr g / (|g| + eps), by the 1e-8 of its paper."""
    step, grads = off_policy_optimizer(OffPolicyConfig(lr=0.1)), np.array([1.0, -1e-6], np.float32)
    moved, _ = step.update(grads, step.init(grads))
    np.testing.assert_allclose(moved, [-0.1, 0.1 / 1.01], rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.0}, r"tau must lie in \(0, 1\], not 0.0"),
        ({"tau": 1.1}, r"tau must lie in \(0, 1\], not 1.1"),
        ({"num_updates": 0}, "num_updates must be greater than 0 or 'auto', not 0"),
        ({"num_updates": "all"}, "num_updates: expected int or 'auto', not 'all'"),
        ({"n_step": 300}, "n_step must be less than 256, not 300"),
        ({"num_lanes": 3, "num_tasks": 2}, "num_lanes 3 must be a multiple of num_tasks 2"),
        ({"batch_size": 0}, "batch_size must be greater than 0, not 0"),
        ({"discount": 1.5}, r"discount must lie in \[0, 1\], not 1.5"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        OffPolicyConfig(**settings)


@pytest.mark.parametrize(
    ("name", "env_id", "message"),
    [
        ("dqn", "Pendulum-v1", "dqn takes one discrete action; for continuous ones take sac"),
        ("ddpg", "CartPole-v1", "ddpg takes continuous actions only; for discrete ones take dqn"),
        ("td3", "CartPole-v1", "td3 takes continuous actions only; for discrete ones take dqn"),
    ],
)
def test_actions_of_the_wrong_kind_are_refused(name, env_id, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm(name, make_suite(f"gym:{env_id}").spec)


def one_state(name: str, sampler=None, **settings):
    """The figures of the last of two iterations, the first half of the first one uniform."""
    action = Discrete(2) if name == "dqn" else Continuous(1)
    suite = suite_of(OneState(action))
    shared = {
        "discount": 0.9,
        "hidden_sizes": (8,),
        "batch_size": 16,
        "num_initial_steps": 100,
        "num_steps": 20,
        "num_updates": 400,
        "num_cycles": 10,
        "lr": 3e-3,
        "tau": 0.1,
        "target_update_interval": 1,
        "max_grad_norm": None,
    }
    special = {"sac": {"learn_temperature": False, "init_temperature": 1e-6}}.get(name, {})
    special |= {"optimizer": "adam"} if name == "dqn" else {}
    algorithm = make_algorithm(name, suite.spec, **{**shared, **special, **settings})
    return trained(algorithm, sampler or train_sampler(suite), 2)[1]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dqn", {"reward_scale": 1.0}),
        pytest.param("ddpg", {}, marks=pytest.mark.slow),
        pytest.param("td3", {}, marks=pytest.mark.slow),
        ("sac", {}),
        pytest.param(
            "dqn", {"n_step": 3, "double": True, "reward_scale": 1.0}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_time_limit_is_no_termination(name, settings):
    """1 / (1 - .9) = 10, where time limits taken for terminations would give 5.26."""
    assert one_state(name, **settings)["q"] == pytest.approx(10.0, abs=0.05)


def test_reward_scale_doubles_the_values_and_not_the_returns():
    suite = suite_of(OneState(Discrete(2)))
    sampler = train_sampler(suite)
    metrics = one_state("dqn", sampler, reward_scale=2.0)
    assert metrics["q"] == pytest.approx(20.0, abs=0.1)
    assert sampler.statistics.take()["return"] == 10.0


def test_returns_of_episodes_cut_by_collections_are_counted_once_and_whole():
    """Episodes of 20 steps in pieces of 15."""
    suite, rollouts = make_suite("gym:Pendulum-v1", horizon=20), []
    sampler = ChangingSampler(suite, lambda rollout, actor: rollouts.append(rollout) or rollout)
    settings = {**SMALL, "num_steps": 15, "num_initial_steps": 1000}
    algorithm = make_algorithm("sac", suite.spec, **settings)
    state, means = algorithm.init(named_key(0, "init")), []
    for _ in range(4):
        state, _ = algorithm.iteration(state, sampler)
        figures = sampler.statistics.take()
        means.append((figures["return"], figures["episode_length"]))
    rewards = np.concatenate([r.reward[0, 0] for r in rollouts])
    assert len(rewards) == 120
    whole = rewards.reshape(-1, 20).sum(-1)
    expected = [whole[0], whole[1:3].mean(), whole[3], whole[4:].mean()]
    assert [m for m, _ in means] == pytest.approx(expected, rel=1e-5)
    assert [length for _, length in means] == [20] * 4


def test_what_is_kept_leads_where_it_led():
    """Of observations that count the steps, past falls and time limits."""
    suite = suite_of(Counter())
    settings = {**SMALL, "num_lanes": 2, "n_step": 1, "num_steps": 30, "num_initial_steps": 500}
    algorithm = make_algorithm("dqn", suite.spec, **settings)
    state, _ = trained(algorithm, train_sampler(suite), 3)
    size = int(state.replay.sizes[0])
    assert size == 180
    rows = read(state.replay, jnp.zeros(size, int), jnp.arange(size))
    np.testing.assert_array_equal(rows.next_obs, rows.obs + 1)
    assert 0.05 < rows.terminated.mean() < 0.25
    assert rows.next_obs.max() == 7


def test_a_saved_state_goes_on_bit_for_bit(name):
    """In one process; `test_resume` kills one."""
    algorithm, sampler = agent(name, num_initial_steps=20)
    state, _ = trained(algorithm, sampler, 2)
    saved = {k: np.array(x) for k, x in flatten(state).items()}
    template = algorithm.init(named_key(0, "init"))
    place = sampler.save()
    state, _ = algorithm.iteration(state, sampler)
    sampler.restore(place)
    other, _ = algorithm.iteration(unflatten(template, saved), sampler)
    assert fingerprint(other) == fingerprint(state)


def scales(rewards, **settings):
    """What a gradient step gets of a minibatch's rewards, by what the replay holds."""
    algorithm, _ = agent("sac", n_step=1, batch_size=64, **settings)
    state = algorithm.init(named_key(0, "init"))
    shape = (1, 1, len(rewards))
    obs, no = np.zeros((*shape, 2), np.float32), np.zeros(shape, bool)
    rollout = Rollout(obs, obs, np.reshape(rewards, shape), obs, no, no, ~no)

    def step(learner, batch, key):
        return learner, {"lowest": batch.reward.min(), "highest": batch.reward.max()}

    data = Data(rollout, np.array(False), learn=np.array(True))
    return update(algorithm.config, state, data, step)[1]


def test_rewards_are_learned_in_units_of_their_deviation():
    rewards = np.array([1.0, 4.0], np.float32)  # of deviation 1.5
    figures = scales(rewards, reward_scale=3.0)
    assert (figures["lowest"], figures["highest"]) == (pytest.approx(2.0), pytest.approx(8.0))
    figures = scales(rewards, reward_scale=3.0, normalize_rewards=False)
    assert (figures["lowest"], figures["highest"]) == (3.0, 12.0)


def test_the_replay_is_written_in_place(name):
    """No update copies it, gradient steps and all."""
    algorithm, sampler = agent(name, buffer_size=100_000, num_initial_steps=10)
    state, _ = trained(algorithm, sampler, 1)
    places = {k: x.unsafe_buffer_pointer() for k, x in state.replay.rows.items()}
    given = state
    state, _ = algorithm.iteration(state, sampler)
    assert {k: x.unsafe_buffer_pointer() for k, x in state.replay.rows.items()} == places
    assert given.replay.rows["obs"].is_deleted()


def test_looking_at_a_state_leaves_it_as_it_is(name):
    algorithm, sampler = agent(name)
    state, _ = trained(algorithm, sampler, 1)
    before = fingerprint(state)
    sample(state.replay, jax.random.key(0), (2, 4))
    algorithm.actor(state)
    state.replay.save()
    assert fingerprint(state) == before


def faulty_run(run_dir, num_iterations: int, buffer_size: int, on_nan: str) -> Trainer:
    """DQN on a suite whose rewards are now and then no number."""
    suite = suite_of(Faulty(Discrete(2)))
    settings = {**SMALL, "num_initial_steps": 10, "buffer_size": buffer_size}
    algorithm = make_algorithm("dqn", suite.spec, **settings)
    config = TrainerConfig(
        str(run_dir),
        num_iterations=num_iterations,
        snapshot_interval=100,
        evaluation_interval=None,
        on_nan=on_nan,
        quiet=True,
    )
    return Trainer(config, algorithm, suite)


@pytest.mark.filterwarnings("ignore:iteration")
@pytest.mark.parametrize("buffer_size", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_run_that_skips_iterations_goes_on_from_the_replay_before_them(tmp_path, buffer_size):
    """With a ring that is full and one that is not; resumed, it is the same run."""
    whole = faulty_run(tmp_path / "whole", 12, buffer_size, "skip")
    whole.run()
    skipped = ["skipped" in row for row in read_rows(whole.run_dir / "progress.jsonl")]
    assert 0 < sum(skipped) < 10
    done = 12 - sum(skipped)
    assert int(whole.state.num_cycles) == 2 * done
    assert int(whole.state.replay.num_added[0]) == 20 * done
    size = int(whole.state.replay.sizes[0])
    if buffer_size == 1000:
        assert size in (20 * done, 20 * done - 1)  # one may wait for its second reward
    else:
        assert 10 <= size <= 30
    held = read(whole.state.replay, jnp.zeros(size, int), jnp.arange(size))
    assert np.isfinite(held.reward).all()
    cut = skipped.index(True) + 1
    faulty_run(tmp_path / "parted", cut, buffer_size, "skip").run()
    parted = faulty_run(tmp_path / "parted", 12, buffer_size, "skip")
    parted.resume()
    assert fingerprint(parted.state) == fingerprint(whole.state)


def test_a_run_that_stops_leaves_the_state_before_the_iteration(tmp_path):
    run = faulty_run(tmp_path / "run", 12, 1000, "stop")
    with pytest.raises(NotFinite, match="the reward is not finite"):
        run.run()
    whole = faulty_run(tmp_path / "whole", run.iteration, 1000, "stop")
    whole.run()
    assert fingerprint(run.state) == fingerprint(whole.state)
    resumed = faulty_run(tmp_path / "run", 12, 1000, "skip")
    with pytest.warns(UserWarning, match="is skipped"):
        resumed.resume()
    assert resumed.iteration == 12


class Skewed(nn.Module):
    """A network of a user's own: a policy of one layer whose deviation is the same everywhere."""

    num_dimensions: int

    @nn.compact
    def __call__(self, obs):
        mean = nn.Dense(self.num_dimensions)(obs)
        return TanhGaussian(mean, self.param("log_std", nn.initializers.zeros, mean.shape[-1:]))


class Bilinear(nn.Module):
    """Three critics of a user's own, values [3, ...]."""

    @nn.compact
    def __call__(self, obs, action):
        both = jnp.concatenate([obs, action, jnp.square(action)], axis=-1)
        return jnp.moveaxis(nn.Dense(3)(nn.tanh(nn.Dense(16)(both))), -1, 0)


@pytest.mark.slow
def test_sac_trains_and_resumes_with_networks_of_ones_own(tmp_path):
    suite = point_suite()
    networks = Networks(Skewed(2), Bilinear())
    own = {name: x for name, x in SMALL.items() if name not in SACConfig.network_settings}
    config = SACConfig(**{**own, "num_initial_steps": 20})

    def trainer(name: str, num_iterations: int) -> Trainer:
        about = TrainerConfig(str(tmp_path / name), num_iterations=num_iterations, quiet=True)
        about = replace(about, evaluation=EVALUATION, evaluation_interval=None)
        return Trainer(about, SAC(config, suite.spec, networks), suite)

    whole = trainer("whole", 4)
    row = whole.run()
    assert row["train/num_updates"] == 18
    trainer("parted", 2).run()
    parted = trainer("parted", 4)
    parted.resume()
    assert fingerprint(parted.state) == fingerprint(whole.state)
    assert jax.tree.leaves(whole.state.learner.params["policy"])[0].shape in {(2,), (2, 2)}


def test_equal_networks_make_equal_algorithms():
    """So that what is compiled for one serves the other."""
    spec, config = EnvSpec(3, Continuous(2), 10), SACConfig(hidden_sizes=(8,))
    assert SAC(config, spec) == SAC(config, spec)
    own = SAC(config, spec, Networks(Skewed(2), Bilinear()))
    assert own == SAC(config, spec, Networks(Skewed(2), Bilinear())) != SAC(config, spec)
    assert hash(own) == hash(SAC(config, spec, Networks(Skewed(2), Bilinear())))
