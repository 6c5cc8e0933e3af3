"""The sampler's contract on every pool for Gymnasium environments, and the same data from each."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import Counting, Random, sync
from random_end import trial_actor

from adaptax.core.errors import EnvironmentFault
from adaptax.core.spec import Continuous
from adaptax.envs.suite import Suite
from adaptax.envs.suites.gym import gym_suite, vector_suite
from adaptax.sampling.actors import Memoryless
from adaptax.sampling.memory_actors import TrialInputs
from adaptax.sampling.sampler import Sampler

LANES, EPISODES, HORIZON = 2, 3, 6
IN_PROCESS, RAY = "in-process", "2 Ray actors"
KINDS = [
    IN_PROCESS,
    pytest.param("1 worker", marks=pytest.mark.slow),
    "2 workers",
    "NextStep",
    "SameStep",
    "Disabled",
    pytest.param(RAY, marks=pytest.mark.slow),
]
every_kind = pytest.mark.parametrize("kind", KINDS)
SLOW = pytest.param("2 workers", marks=pytest.mark.slow)
anew = pytest.mark.parametrize("kind", [SLOW if kind == "2 workers" else kind for kind in KINDS])
"""For a test that starts workers of its own."""
TASKS = [{"ends_at": 2}, {"cut_at": 4}, {}, {"ends_at": 1}]
LENGTHS = [2, 4, HORIZON, 1]
"""Steps of an episode on each task."""


def suite(kind: str, make_env, train: list[dict]) -> Suite:
    """The environments `make_env` on the tasks `train`, run in one way or another."""
    settings = {"train": train, "horizon": HORIZON, "trial_episodes": EPISODES}
    number, _, noun = kind.partition(" ")
    if noun.startswith("worker"):
        return gym_suite("s", make_env, **settings, num_workers=int(number))
    if kind == RAY:
        return gym_suite("s", make_env, **settings, num_ray_actors=2)
    if kind == IN_PROCESS:
        return gym_suite("s", make_env, **settings)
    return vector_suite("s", partial(sync, make_env, kind), **settings)


@pytest.fixture(autouse=True)
def cluster(request):
    """A Ray cluster, where the test's environments are to run on one."""
    if request.node.callspec.params["kind"] == RAY:
        request.getfixturevalue("local_ray")


def new_sampler(family: Suite) -> Sampler:
    return Sampler(family, family.train, 0, "train")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LevelActor(Memoryless):
    """Every member has an action of its own."""

    level: jax.Array
    """[M]"""

    def act(self, carry, obs, key):
        return jnp.broadcast_to(self.level[:, None, None], (*obs.shape[:2], 2)), carry, {}


@functools.cache
def counted(kind: str):
    """Whole episodes on the counting environment, and the sampler's counters after them."""
    family = suite(kind, Counting, TASKS)
    sampler = new_sampler(family)
    actor = LevelActor(jnp.array([-1.0, 0.0, 0.5, 1.0]))
    rollout = sampler.episodes(actor, family.train.tasks, LANES, EPISODES)
    sampler.close()
    return rollout, (sampler.num_steps, sampler.num_episodes)


def ends(rollout) -> np.ndarray:
    return rollout.terminated | rollout.truncated


@every_kind
def test_members_are_the_tasks_in_order_with_equal_numbers_of_episodes(kind):
    rollout, _ = counted(kind)
    assert rollout.obs.shape == (len(TASKS), LANES, EPISODES * HORIZON, 1)
    np.testing.assert_array_equal(ends(rollout).sum(-1), np.full((4, LANES), EPISODES))
    expected = EPISODES * np.array(LENGTHS)
    np.testing.assert_array_equal(rollout.valid.sum(-1), np.stack([expected] * LANES, axis=1))


@every_kind
def test_steps_and_episodes_are_counted_exactly(kind):
    expected = LANES * EPISODES * sum(LENGTHS), LANES * EPISODES * len(TASKS)
    assert counted(kind)[1] == expected


@every_kind
def test_each_members_actions_come_from_its_own_parameters(kind):
    rollout, _ = counted(kind)
    for member, reward in enumerate([-4.0, 4.0, 8.0, 12.0]):  # 2 (2 + 4 level)
        np.testing.assert_array_equal(rollout.reward[member][rollout.valid[member]], reward)


@every_kind
def test_each_task_reaches_exactly_its_group(kind):
    rollout, _ = counted(kind)
    terminated = rollout.terminated.any((1, 2)).tolist()
    assert terminated == [True, False, False, True]
    assert rollout.truncated.any((1, 2)).tolist() == [False, True, True, False]


@every_kind
def test_what_follows_an_observation_is_the_next_count_at_ends_too(kind):
    rollout, _ = counted(kind)
    np.testing.assert_array_equal(rollout.next_obs[rollout.valid], rollout.obs[rollout.valid] + 1)
    after_end = rollout.obs[:, :, 1:][ends(rollout)[:, :, :-1] & rollout.valid[:, :, 1:]]
    assert len(after_end) == LANES * len(TASKS) * (EPISODES - 1)
    assert after_end.max() == 0.0


@functools.cache
def actor_with_memory() -> TrialInputs:
    return trial_actor(Continuous(2))


@functools.cache
def random_data(kind: str):
    """Episodes, steps and more steps with a memory; and the last ones after a restore.

    Episodes end at random, so that the restore is in the midst of some.
    """
    family = suite(kind, Random, [{"drift": -1.0}, {"drift": 0.0}, {"drift": 1.0}])
    sampler, other = new_sampler(family), new_sampler(family)
    actor, tasks = actor_with_memory(), family.train.tasks
    whole = sampler.episodes(actor, tasks, LANES, EPISODES)
    part = sampler.steps(actor, tasks, LANES, 7)
    saved = sampler.save()
    other.restore(saved)
    rest, restored = (s.steps(actor, tasks, LANES, 8) for s in (sampler, other))
    sampler.close()
    other.close()
    return {"episodes": whole, "steps": part, "rest": rest, "restored": restored}, saved


def assert_same(one, other) -> None:
    one, other = (
        jax.tree_util.tree_leaves_with_path(one),
        jax.tree_util.tree_leaves_with_path(other),
    )
    assert [path for path, _ in one] == [path for path, _ in other]
    for (path, x), (_, y) in zip(one, other, strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


@every_kind
@pytest.mark.parametrize("call", ["episodes", "steps", "rest"])
def test_data_are_bit_equal_wherever_environments_run(kind, call):
    assert_same(random_data(kind)[0][call], random_data(IN_PROCESS)[0][call])


@every_kind
def test_a_restored_sampler_goes_on_in_mid_episode_bit_for_bit(kind):
    data, saved = random_data(kind)
    assert 0 < saved["pool"]["num_steps"].max() < HORIZON
    assert_same(data["restored"], data["rest"])


@anew
def test_what_one_pool_has_saved_another_goes_on_with(kind):
    data, _ = random_data(IN_PROCESS)
    assert_same(random_data(kind)[1], random_data(IN_PROCESS)[1])
    family = suite(kind, Random, [{"drift": -1.0}, {"drift": 0.0}, {"drift": 1.0}])
    sampler = new_sampler(family)
    sampler.restore(random_data(IN_PROCESS)[1])
    rest = sampler.steps(actor_with_memory(), family.train.tasks, LANES, 8)
    sampler.close()
    assert_same(rest, data["rest"])


@anew
def test_a_nan_names_slot_step_and_task(kind):
    family = suite(kind, Counting, [{}, {"nan_at": 3}])
    sampler = new_sampler(family)
    with pytest.raises(EnvironmentFault, match=r"^slot [23], step 2, task 's-1': .*not finite"):
        sampler.episodes(LevelActor(jnp.zeros(2)), family.train.tasks, LANES, 1)
    sampler.close()


@anew
def test_a_policy_whose_action_has_a_wrong_size_is_told_so(kind):
    family = suite(kind, Counting, [{}])
    sampler = new_sampler(family)
    actor = OneActionActor(jnp.zeros(1))
    with pytest.raises(EnvironmentFault, match=r"actions have shape \(., 1\); .* takes \(., 2\)"):
        sampler.episodes(actor, family.train.tasks, LANES, 1)
    sampler.close()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OneActionActor(LevelActor):
    """A policy for an environment with one action."""

    def act(self, carry, obs, key):
        action, carry, extras = super().act(carry, obs, key)
        return action[..., :1], carry, extras
