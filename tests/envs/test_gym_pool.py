from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
from counting import PLAIN, Counting
from gymnasium import spaces

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.core.spec import Continuous, Discrete
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.pools.gym_spaces import action_decoder
from adaptax.envs.pools.pool import SlotFault, SlotNotFinite
from adaptax.envs.suites.gym import GymConfig, gym_id_suite, gym_spec, gym_suite
from adaptax.envs.task import Task


class Noisy(Counting):
    """Draws from a generator that no seed reaches."""

    def obs(self):
        return np.random.default_rng().random(1).astype(np.float32)


class Digit(gymnasium.Env):
    """Discrete observations and actions that do not start at 0: it shows the last action."""

    observation_space = spaces.Discrete(3, start=5)
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        return 5, {}

    def step(self, action):
        return action, 0.0, False, False, {}


class Spaces(gymnasium.Env):
    """An environment with the given spaces only."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space


def new_pool(num_slots: int, horizon: int | None = None, make_env=Counting) -> GymPool:
    return GymPool(make_env, gym_spec(make_env, horizon), num_slots)


def started(num_slots: int, horizon: int, params: dict | None = None, make_env=Counting) -> GymPool:
    pool = new_pool(num_slots, horizon, make_env)
    reset_all(pool, params)
    return pool


def reset_all(pool: GymPool, params: dict | None = None) -> np.ndarray:
    slots = np.arange(pool.num_slots)
    task = Task("plain", 0, params or {})
    return pool.reset(slots, slots.astype(np.uint32), [task] * pool.num_slots)


def idle(num_slots: int) -> np.ndarray:
    return np.zeros((num_slots, 2), np.float32)


def test_every_next_obs_is_the_successor_also_at_ends_and_limits():
    pool = new_pool(3, 5)
    tasks = [Task("t", i, p) for i, p in enumerate([{}, {"ends_at": 3}, {"cut_at": 4}])]
    slots = np.arange(3)
    obs = pool.reset(slots, np.zeros(3, np.uint32), tasks)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(20):
        result = pool.step(slots, idle(3))
        np.testing.assert_array_equal(result.next_obs, obs + 1)
        obs = result.next_obs.copy()
        ends["terminated"] += result.terminated.sum()
        ends["truncated"] += result.truncated.sum()
        over = np.flatnonzero(result.terminated | result.truncated)
        obs[over] = pool.reset(over, over.astype(np.uint32), [tasks[i] for i in over])
        np.testing.assert_array_equal(obs[over], 0.0)
    assert ends == {"terminated": 6, "truncated": 9}


def test_termination_on_the_last_allowed_step_is_not_truncation():
    pool = started(1, 3, {"ends_at": 3, "cut_at": 3})
    for _ in range(3):
        result = pool.step(np.arange(1), idle(1))
    assert (result.terminated[0], result.truncated[0]) == (True, False)


def test_the_horizon_truncates_where_the_environment_goes_on():
    pool = started(2, 3)
    flags = [pool.step(np.arange(2), idle(2)).truncated.tolist() for _ in range(3)]
    assert flags == [[False, False], [False, False], [True, True]]


def test_actions_are_clipped_and_scaled_to_the_bounds():
    pool = started(3, 9)
    actions = np.array([[-1.0, -9.0], [0.0, 0.0], [1.0, 9.0]])
    np.testing.assert_allclose(pool.step(np.arange(3), actions).reward, [-4.0, 4.0, 12.0])


def test_no_action_is_a_rounding_outside_a_float64_box():
    rng = np.random.default_rng(0)
    for low, high in rng.integers([-99, 0], [0, 99], (200, 2)) / 100:
        space = spaces.Box(low, high + 0.01, (1,), np.float64)
        _, decode = action_decoder(space)
        assert all(space.contains(decode(np.array([end]))) for end in (-1.0, 1.0))


def test_the_horizon_terminates_where_the_spec_says_so():
    spec = replace(gym_spec(Counting, 2), horizon_terminates=True)
    pool = GymPool(Counting, spec, 1)
    reset_all(pool)
    flags = [pool.step(np.arange(1), idle(1)) for _ in range(2)]
    assert [f.terminated.tolist() for f in flags] == [[False], [True]]
    assert not any(f.truncated.any() for f in flags)


def test_who_restores_is_told_of_every_step():
    pool, told = started(2, 9), []
    for _ in range(3):
        pool.step(np.arange(2), idle(2))
    new_pool(2, 9).restore(pool.save(), [PLAIN] * 2, lambda: told.append(1))
    assert len(told) >= 3


def test_discrete_spaces_that_do_not_start_at_zero_are_shifted():
    pool = started(3, 9, make_env=Digit)
    assert (pool.spec.observation_size, pool.spec.action) == (3, Discrete(3))
    np.testing.assert_array_equal(pool.step(np.arange(3), np.arange(3)).next_obs, np.eye(3))


def test_seed_and_parameters_reach_reset():
    pool = new_pool(2, 9)
    task = Task("late", 0, {"ends_at": 4})
    pool.reset(np.arange(2), np.array([7, 4294967295], np.uint32), [task, PLAIN])
    envs = pool._envs
    assert [env.seed for env in envs] == [7, 4294967295]
    assert [env.options for env in envs] == [{"ends_at": 4}, {}]


def test_success_is_read_from_the_info():
    assert gym_spec(Counting, 9).has_success
    assert not gym_spec(Digit, 9).has_success
    pool = started(1, 9)
    told = [pool.step(np.arange(1), idle(1)).info["success"][0] for _ in range(2)]
    assert told == [False, True]
    assert started(1, 9, make_env=Digit).step(np.arange(1), np.zeros(1, int)).info == {}


def test_stepping_some_slots_leaves_the_others():
    pool = started(3, 9)
    pool.step(np.array([2]), idle(1))
    np.testing.assert_array_equal(pool.step(np.arange(3), idle(3)).next_obs[:, 0], [1, 1, 2])


def test_an_episode_depends_only_on_seed_and_actions():
    pool = new_pool(2, make_env=partial(gymnasium.make, "CartPole-v1"))
    actions = np.array([0, 1, 1, 0, 1])
    runs = []
    for slot in (0, 1):
        first = pool.reset(np.array([slot]), np.array([3], np.uint32), [PLAIN])
        rest = [pool.step(np.array([slot]), actions[t : t + 1]).next_obs for t in range(5)]
        runs.append(np.concatenate([first, *rest]))
    np.testing.assert_array_equal(runs[0], runs[1])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3"])
def test_restore_in_mid_episode_goes_on_bit_for_bit(env_id):
    if env_id == "LunarLander-v3":
        pytest.importorskip("Box2D")
    suite = gym_id_suite(env_id, GymConfig())
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (8, 3))
    if isinstance(suite.spec.action, Continuous):
        actions = rng.uniform(-1, 1, (8, 3, 1))
    pool = suite.make_pool(3)
    reset_all(pool)
    for action in actions[:4]:
        pool.step(np.arange(3), action)
    saved = pool.save()
    rest = [pool.step(np.arange(3), action) for action in actions[4:]]
    other = suite.make_pool(3)
    other.restore(saved, [PLAIN] * 3)
    for expected, action in zip(rest, actions[4:], strict=True):
        result = other.step(np.arange(3), action)
        np.testing.assert_array_equal(result.next_obs, expected.next_obs)
        np.testing.assert_array_equal(result.reward, expected.reward)


def test_restore_keeps_step_counts_and_tasks():
    pool = started(2, 5, {"ends_at": 4})
    pool.step(np.arange(2), idle(2))
    other = new_pool(2, 5)
    other.restore(pool.save(), [Task("late", 0, {"ends_at": 4}), PLAIN])
    results = [other.step(np.arange(2), idle(2)) for _ in range(3)]
    assert results[-1].terminated.tolist() == [True, False]
    assert other.step(np.array([1]), idle(1)).truncated.tolist() == [True]


def test_restore_leaves_ended_slots_ended():
    pool = started(2, 5, {"ends_at": 1})
    pool.step(np.array([0]), idle(1))
    saved = pool.save()
    other = new_pool(2, 5)
    other.restore(saved, [PLAIN] * 2)
    for name, array in other.save().items():
        np.testing.assert_array_equal(array, saved[name])
    with pytest.raises(EnvironmentFault, match="slot 0, step 1, task 'plain': no running episode"):
        other.step(np.array([0]), idle(1))


def test_restore_of_an_environment_that_no_seed_reaches_says_so():
    saved = started(1, 9, make_env=Noisy).save()
    with pytest.raises(EnvironmentFault, match=r"slot 0, step 0, task 'plain': .* not det"):
        new_pool(1, 9, Noisy).restore(saved, [PLAIN])


def test_restore_refuses_the_state_of_another_size():
    with pytest.raises(EnvironmentFault, match=r"\(3, 0, 2\); this pool of 2 slots"):
        started(2, 9).restore(started(3, 9).save(), [PLAIN] * 2)


def test_what_is_kept_and_saved_grows_with_the_episodes_not_with_the_horizon():
    pool = started(2, 10**12)
    for _ in range(5):
        pool.step(np.arange(2), idle(2))
    pool.reset(np.array([0]), np.zeros(1, np.uint32), [PLAIN])
    saved = pool.save()
    assert saved["actions"].shape == (2, 5, 2) and not saved["actions"][0].any()
    assert pool._log.actions.shape[1] < 10
    other = new_pool(2, 10**12)
    other.restore(saved, [PLAIN] * 2)
    np.testing.assert_array_equal(other.step(np.arange(2), idle(2)).next_obs[:, 0], [1, 6])
    longer = {**saved, "num_steps": np.array([0, 6])}
    for state, horizon in ((longer, 9), (saved, 4)):
        with pytest.raises(EnvironmentFault, match=f"every step and at most {horizon}"):
            new_pool(2, horizon).restore(state, [PLAIN] * 2)


def test_an_exception_in_the_environment_names_slot_step_and_task():
    pool = new_pool(2, 9)
    tasks = [PLAIN, Task("fire", 1, {"raise_at": 3})]
    pool.reset(np.arange(2), np.zeros(2, np.uint32), tasks)
    pool.step(np.arange(2), idle(2))
    pool.step(np.arange(2), idle(2))
    with pytest.raises(EnvironmentFault, match=r"slot 1, step 2, task 'fire': .*motor") as fault:
        pool.step(np.arange(2), idle(2))
    assert isinstance(fault.value.__cause__, RuntimeError)
    with pytest.raises(EnvironmentFault, match=r"slot 1, .*no running episode"):
        pool.step(np.array([1]), idle(1))


@pytest.mark.filterwarnings("error")  # of an overflow: the fault says it all
@pytest.mark.parametrize("event", ["nan_at", "huge_at"])
def test_a_reward_that_float32_cannot_hold_names_slot_step_and_task(event):
    pool = started(2, 9, {event: 1})
    with pytest.raises(SlotNotFinite, match=r"slot 0, step 0, task 'plain': the reward is not fin"):
        pool.step(np.arange(2), idle(2))


class Answering(Counting):
    """Answers a step with what it is told to."""

    def __init__(self, **answer):
        self.answer = answer

    def step(self, action):
        if "exit" in self.answer:
            sys.exit(self.answer["exit"])
        usual = {"obs": np.zeros(1), "reward": 0, "terminated": 0, "truncated": 0, "info": {}}
        return tuple((usual | self.answer).values())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"obs": np.array([-1e39])}, "the observation is not finite as float32"),
        ({"obs": np.array([1j])}, r"the observation array\(\[.*\]\) is not made of real numbers"),
        ({"reward": "1.0"}, "the reward '1.0' is not made of real numbers"),
        ({"reward": np.zeros(2)}, "size 1"),
        ({"terminated": np.zeros(2, bool)}, r"terminated is array\(.*\), not True or False"),
        ({"truncated": "False"}, "truncated is 'False', not True or False"),
        ({"info": {"success": "no"}}, "success is 'no', not True or False"),
        ({"exit": 3}, "SystemExit: 3"),
    ],
)
def test_an_answer_that_makes_no_sense_is_the_slots_fault(answer, message):
    pool = started(2, 9)
    pool._envs[1] = Answering(**answer)
    reset_all(pool)
    with pytest.raises(SlotFault, match=f"^slot 1, step 0, task 'plain': .*{message}") as fault:
        pool.step(np.arange(2), idle(2))
    assert "\n" not in str(fault.value)


def test_an_environment_that_fails_to_close_hides_nothing():
    class Stuck(Counting):
        def close(self):
            raise RuntimeError("still in use")

    with pytest.warns(UserWarning, match="failed to close: RuntimeError: still in use"):
        pool = started(2, 9, make_env=Stuck)
    with pytest.warns(UserWarning, match="failed to close"):
        pool.close()
    assert not pool.save()["running"].any()
    with pytest.warns(UserWarning), pytest.raises(EnvironmentFault, match="motor on fire"):
        gym_suite("stuck", Stuck, train=[{"raise_at": 1}], horizon=9)


def test_an_observation_that_does_not_fit_its_space_is_a_fault():
    class Growing(Counting):
        def obs(self):
            return np.zeros(1 + self.count, np.float32)

    pool = started(1, 9, make_env=Counting)
    pool._envs[0] = Growing()
    reset_all(pool)
    with pytest.raises(EnvironmentFault, match=r"shape \(2,\); its space has \(1,\)"):
        pool.step(np.arange(1), idle(1))


def test_an_action_that_is_not_finite_names_slot_step_and_task():
    with pytest.raises(EnvironmentFault, match=r"slot 1, step 0, task 'plain': .*not finite"):
        started(2, 9).step(np.arange(2), np.array([[0.0, 0.0], [0.0, np.nan]]))


def test_bad_actions_are_refused():
    with pytest.raises(EnvironmentFault, match=r"shape \(2, 3\).* takes \(2, 2\)"):
        started(2, 9).step(np.arange(2), np.zeros((2, 3)))
    with pytest.raises(EnvironmentFault, match=r"slot 1, .*action 3 is outside 0\.\.2"):
        started(2, 9, make_env=Digit).step(np.arange(2), np.array([0, 3]))


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Box(0, 255, (2, 8, 8, 3), np.uint8), BOX, "pixels"),
        (spaces.Dict({"eye": spaces.Box(0, 255, (8, 8, 3), np.uint8)}), BOX, "pixels"),
        (spaces.Dict({"eye": spaces.Box(0, 255, (8, 8), np.uint8)}), BOX, "pixels"),
        (spaces.Tuple([spaces.Text(4)]), BOX, "a Box of numbers"),
        (spaces.Graph(BOX, None), BOX, "a Box of numbers"),
        (BOX, spaces.Dict({"x": BOX}), "takes a Discrete, a MultiDiscrete or a Box of floats"),
        (BOX, spaces.Box(0, 9, (1,), np.int32), "takes a Discrete, a MultiDiscrete or a Box"),
        (BOX, spaces.Box(-np.inf, np.inf, (1,)), "unbounded"),
    ],
)
def test_unsupported_spaces_are_refused_with_what_is_supported(observation, action, message):
    with pytest.raises(ConfigError, match=message) as error:
        gym_spec(lambda: Spaces(observation, action), horizon=5)
    assert "\n" not in str(error.value)


def test_the_horizon_is_the_shortest_limit_and_none_beyond_it():
    make_env = partial(gymnasium.make, "CartPole-v1")
    by_hand = gymnasium.wrappers.TimeLimit(Counting(), 30)
    assert gym_spec(make_env).horizon == 500
    assert gym_spec(make_env, horizon=20).horizon == 20
    with pytest.raises(ConfigError, match=r"^horizon 900 is over the time limit of .*, 500 steps"):
        gym_spec(make_env, horizon=900)
    assert gym_spec(partial(make_env, max_episode_steps=900)).horizon == 900
    assert gym_spec(lambda: by_hand).horizon == 30


def test_an_environment_without_a_time_limit_needs_a_horizon():
    with pytest.raises(ConfigError, match="no time limit: give a horizon"):
        gym_spec(Counting)
    with pytest.raises(ConfigError, match="horizon must be greater than 0, not -1"):
        gym_spec(Counting, horizon=-1)
    with pytest.raises(ConfigError, match="horizon must be a whole number of steps, not '5'"):
        gym_spec(Counting, horizon="5")


def test_observations_of_several_axes_are_made_flat():
    class Board(Counting):
        observation_space = spaces.Box(0, 9, (2, 3), np.int64)

        def obs(self):
            return np.arange(6).reshape(2, 3) + self.count

    pool = started(1, 9, make_env=Board)
    result = pool.step(np.arange(1), idle(1))
    assert result.next_obs.dtype == np.float32
    np.testing.assert_array_equal(result.next_obs, [[1, 2, 3, 4, 5, 6]])


def test_a_suite_puts_tasks_and_environments_together():
    suite = gym_suite(
        "counting",
        Counting,
        train=[{"ends_at": 2}, {"ends_at": 3}],
        test=[{"ends_at": 4}],
        horizon=9,
        trial_episodes=3,
    )
    assert [t.params["ends_at"] for t in suite.train.tasks] == [2, 3]
    assert [t.params["ends_at"] for t in suite.test.tasks] == [4]
    assert suite.spec.trial_episodes == 3
    assert suite.make_pool(2).spec == suite.spec


def test_a_suite_without_tasks_has_one_without_parameters():
    suite = gym_suite("counting", Counting, horizon=9)
    assert [dict(t.params) for t in suite.train.tasks] == [{}]
    assert suite.test.tasks == suite.train.tasks


def test_unknown_ids_are_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="'CartPol-v1'; did you mean 'CartPole-v1'"):
        gym_id_suite("CartPol-v1", GymConfig())
    with pytest.raises(ConfigError, match="horizon must be greater than 0"):
        GymConfig(horizon=0)


def test_a_trial_step_that_fails_is_a_fault():
    with pytest.raises(EnvironmentFault, match="failed in a trial step: RuntimeError: motor"):
        gym_suite("fire", Counting, train=[{"raise_at": 1}], horizon=9)


class Talking(Counting):
    """Tells beside a step what no step tells."""

    def step(self, action):
        return *super().step(action)[:4], []


def test_what_a_step_tells_beside_must_be_a_dict():
    with pytest.raises(EnvironmentFault, match=r"tells beside is \[\], not a dict"):
        gym_suite("talking", Talking, horizon=9)


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("not even that")


def test_an_exception_that_cannot_be_told_is_a_fault_too():
    def make_env():
        raise Unspeakable

    with pytest.raises(EnvironmentFault, match=r": Unspeakable: it cannot say what is wrong$"):
        gym_suite("s", make_env, horizon=3)


@pytest.mark.parametrize("error", [RuntimeError("no licence"), SystemExit("no licence")])
def test_an_environment_that_cannot_be_made_is_a_fault(error):
    def make_env():
        raise error

    with pytest.raises(EnvironmentFault, match=r"^an environment cannot be made: .*no licence$"):
        gym_suite("s", make_env, horizon=3)


def test_environments_that_were_made_are_closed_where_a_later_one_cannot_be():
    made, closed = [], []

    class Scarce(Counting):
        def __init__(self):
            if len(made) == 3:
                raise RuntimeError("no display")
            made.append(self)

        def close(self):
            closed.append(self)

    with pytest.raises(EnvironmentFault, match="cannot be made: RuntimeError: no display"):
        GymPool(Scarce, gym_spec(Counting, 9), 4)
    assert closed == made


@pytest.mark.parametrize("wrap", [lambda env: env, gymnasium.wrappers.RecordEpisodeStatistics])
def test_one_environment_for_several_slots_or_pools_is_refused(wrap):
    env = Counting()
    spec = gym_spec(Counting, 8)
    with pytest.raises(ConfigError, match="is made twice: what makes environments must make a new"):
        GymPool(lambda: wrap(env), spec, 2)
    pool = GymPool(lambda: wrap(env), spec, 1)
    with pytest.raises(ConfigError, match="is made twice"):
        GymPool(lambda: wrap(env), spec, 1)
    pool.close()
    GymPool(lambda: wrap(env), spec, 1)


class LateSuccess(Counting):
    """Tells of success at the end only."""

    def step(self, action):
        *told, truncated, _ = super().step(action)
        return *told, truncated, {"is_success": True} if truncated else {}


def test_success_that_only_some_steps_tell_of_is_warned_of():
    suite = gym_suite("late", LateSuccess, train=[{"cut_at": 3}], horizon=8)
    assert not suite.spec.has_success
    pool = suite.make_pool(1)
    pool.reset(np.array([0]), np.zeros(1, np.uint32), [suite.train.tasks[0]])
    with pytest.warns(UserWarning, match="success is told by some steps only"):
        for _ in range(3):
            pool.step(np.array([0]), idle(1))
