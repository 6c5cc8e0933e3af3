from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from counting import Counting, Random, sync
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.envs.pools.vector import AutoresetPool, VectorPool
from adaptax.envs.suites.gym import gym_suite, vector_suite
from adaptax.envs.task import Task
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

MODES = list(AutoresetMode)
OWN_MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
LANES = 4


def spawned(make_env, mode: AutoresetMode, num_envs: int) -> AsyncVectorEnv:
    # By default it forks, which a process with JAX's threads should not do.
    return AsyncVectorEnv([make_env] * num_envs, autoreset_mode=mode, context="spawn")


class Native(VectorEnv):
    """Lanes that count their steps and start at a number drawn by a generator they share.

    Lane i ends after `first_end` + i steps. It knows no reset of a single lane.
    """

    def __init__(self, mode: AutoresetMode | None, num_envs: int, first_end: int = 2) -> None:
        self.num_envs, self.mode, self.first_end = num_envs, mode, first_end
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.start = np.zeros((2, self.num_envs))
        self.begin(np.ones(self.num_envs, bool))
        self.over = np.zeros(self.num_envs, bool)
        return self.obs(), {}

    def begin(self, lanes):
        self.start[lanes] = 100 * self.np_random.integers(1, 9, size=lanes.sum())
        self.count[lanes] = 0

    def obs(self):
        return (self.start + self.count).astype(np.float32)[:, None]

    def step(self, actions):
        waiting = self.over & (self.mode is AutoresetMode.NEXT_STEP)
        self.count += 1
        self.begin(waiting)
        over = (self.count >= self.first_end + np.arange(self.num_envs)) & ~waiting
        reward = np.where(waiting, -1000.0, 1.0 + actions[:, 0])
        info = {"success": over}
        self.over = over
        if self.mode is AutoresetMode.SAME_STEP and over.any():
            final = np.full(self.num_envs, None)
            for lane in np.flatnonzero(over):
                final[lane] = self.obs()[lane]
            info = {"success": np.zeros_like(over), "final_info": {"success": over}}
            info["final_obs"] = final
            self.begin(over)
        return self.obs(), reward, over.copy(), np.zeros_like(over), info


def sampler(suite) -> Sampler:
    return Sampler(suite, suite.train, 0, "train")


def rollouts(suite, num_lanes: int = LANES):
    """Whole episodes, and steps before and after a restore in mid-episode.

    After 14 steps a lane of `Native` has ended, and waits for its reset in mode NEXT_STEP.
    """
    first, actor = sampler(suite), UniformActor(suite.spec.action)
    tasks = first.sample_tasks(len(suite.train.tasks))
    found = [first.episodes(actor, tasks, num_lanes, 3), first.steps(actor, tasks, num_lanes, 14)]
    second = sampler(suite)
    second.restore(first.save())
    found += [s.steps(actor, tasks, num_lanes, 11) for s in (first, second)]
    first.close()
    second.close()
    return found


def leaves(rollout) -> dict[str, np.ndarray]:
    fields = {k: np.asarray(v) for k, v in vars(rollout).items() if isinstance(v, np.ndarray)}
    return fields | rollout.extras


def assert_same(one, other) -> None:
    assert leaves(one).keys() == leaves(other).keys()
    for name, expected in leaves(other).items():
        np.testing.assert_array_equal(leaves(one)[name], expected, err_msg=name)


COUNTING = [{"ends_at": 3}, {"cut_at": 4}, {}]
DRIFTS = [{"drift": -1.0}, {"drift": 0.0}, {"drift": 1.0}]


class InPlace(Counting):
    """Gives the same array every time, into which it writes what is seen."""

    def __init__(self) -> None:
        self.seen = np.zeros(1, np.float32)

    def obs(self):
        self.seen[:] = self.count
        return self.seen


def assert_same_as_single(make_vec, make_env, train, num_lanes) -> None:
    vector = vector_suite("v", make_vec, train=train, horizon=6)
    single = gym_suite("v", make_env, train=train, horizon=6)
    assert vector.spec == single.spec
    found = zip(rollouts(vector, num_lanes), rollouts(single, num_lanes), strict=True)
    for got, expected in found:
        assert_same(got, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("make_env", "train"), [(Counting, COUNTING), (Random, DRIFTS), (InPlace, COUNTING)]
)
def test_every_mode_gives_the_data_of_single_environments(mode, make_env, train):
    assert_same_as_single(partial(sync, make_env, mode), make_env, train, 4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_lanes_in_processes_give_the_data_of_single_environments(mode):
    assert_same_as_single(partial(spawned, Random, mode), Random, DRIFTS[:2], 1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", OWN_MODES)
def test_processes_that_would_reset_a_lane_beside_us_are_refused(mode):
    def make_vec(num_envs):
        return AsyncVectorEnv(
            [Counting] * num_envs, autoreset_mode=mode, context="spawn", shared_memory=False
        )

    with pytest.raises(ConfigError, match=rf"^AsyncVectorEnv in mode {mode.name} .*'Disabled'"):
        vector_suite("v", make_vec, horizon=6)


class Moving(gymnasium.Env):
    """A goal that moves by one, in place, at every step."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = options["goal"]
        return self.goal.astype(np.float32), {}

    def step(self, action):
        self.goal += 1.0
        return self.goal.astype(np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("mode", MODES)
def test_lanes_do_not_share_what_a_task_says(mode):
    def make_vec(num_envs):
        return SyncVectorEnv([Moving] * num_envs, autoreset_mode=mode)

    tasks = [{"goal": np.array([10.0])}, {"goal": np.array([50.0])}]
    suite = vector_suite("moving", make_vec, train=tasks, horizon=3)
    rollout = rollouts(suite, 3)[0]
    starts = np.array([task["goal"] for task in tasks])[:, None]
    expected = np.broadcast_to(starts + np.arange(3), (2, 3, 3))
    found = np.sort(np.asarray(rollout.obs)[..., :3, 0], axis=0)
    np.testing.assert_array_equal(found, expected)


def native_suite(mode: AutoresetMode):
    return vector_suite("native", partial(Native, mode), horizon=9)


def assert_no_dummy_step(rollout) -> None:
    """What follows an observation is the next number, at ends too; no reset is among it."""
    valid = rollout.valid
    np.testing.assert_array_equal(rollout.next_obs[valid], rollout.obs[valid] + 1)
    assert rollout.reward[valid].min() >= 0.0
    np.testing.assert_array_equal(valid, np.sort(valid, axis=-1)[..., ::-1])
    follows = (rollout.obs[:, :, 1:] == rollout.next_obs[:, :, :-1])[..., 0]
    ended = (rollout.terminated | rollout.truncated)[:, :, :-1]
    both = valid[:, :, 1:]
    np.testing.assert_array_equal(follows[both], ~ended[both])


@pytest.mark.parametrize("mode", OWN_MODES)
def test_no_step_of_an_environments_own_resets_enters_a_rollout(mode):
    episodes, steps, _, _ = rollouts(native_suite(mode))
    assert_no_dummy_step(episodes)
    assert_no_dummy_step(steps)
    lengths = 3 * (2 + np.arange(LANES))
    np.testing.assert_array_equal(episodes.valid.sum(-1), [lengths])
    np.testing.assert_array_equal(episodes.terminated.sum(-1), np.full((1, LANES), 3))
    np.testing.assert_array_equal(episodes.extras["success"], episodes.terminated)


def test_a_lane_that_waits_for_its_reset_has_fewer_steps_in_a_rollout():
    same_step = rollouts(native_suite(AutoresetMode.SAME_STEP))[1]
    next_step = rollouts(native_suite(AutoresetMode.NEXT_STEP))[1]
    np.testing.assert_array_equal(same_step.valid.sum(-1), np.full((1, LANES), 14))
    np.testing.assert_array_equal(next_step.valid.sum(-1), [[10, 11, 12, 12]])


@pytest.mark.parametrize("mode", OWN_MODES)
def test_an_environment_with_own_resets_goes_on_exactly_after_a_restore(mode):
    _, _, expected, restored = rollouts(native_suite(mode))
    assert_same(restored, expected)
    assert len(np.unique(expected.obs)) > 10


class Stale(Native):
    """In a step that is a reset: a reward that is no number, and an end, a cut in odd lanes."""

    def step(self, actions):
        reset, odd = self.over, np.arange(self.num_envs) % 2 == 1
        obs, reward, over, _, info = super().step(actions)
        return obs, np.where(reset, np.nan, reward), over | (reset & ~odd), reset & odd, info


def test_nothing_counts_that_is_told_of_a_step_that_is_a_reset():
    mode = AutoresetMode.NEXT_STEP
    stale = rollouts(vector_suite("native", partial(Stale, mode), horizon=9))
    for got, expected in zip(stale, rollouts(native_suite(mode)), strict=True):
        assert_same(got, expected)


def test_gymnasiums_native_cart_pole_has_no_dummy_step():
    suite = vector_suite("cart-pole", partial(gymnasium.make_vec, "CartPole-v1"))
    assert isinstance(suite.make_pool(2), AutoresetPool)
    assert suite.spec.horizon == 500
    episodes, steps, expected, restored = rollouts(suite)
    assert episodes.reward[episodes.valid].min() == 1.0
    np.testing.assert_array_equal(episodes.terminated.sum(-1), np.full((1, LANES), 3))
    moved = np.abs(steps.next_obs - steps.obs)[steps.valid]
    assert moved.max() < 1.0
    assert_same(restored, expected)


def own_reset_pool(mode=AutoresetMode.SAME_STEP, horizon: int = 9, first_end: int = 2):
    make_vec, num_slots = partial(Native, mode, first_end=first_end), 3
    pool = vector_suite("native", make_vec, horizon=horizon).make_pool(num_slots)
    pool.reset(np.arange(num_slots), np.full(num_slots, 7, np.uint32), [TASK] * num_slots)
    return pool


TASK = Task("native-0", 0, {})


def act(pool, slots):
    return pool.step(np.array(slots), np.zeros((len(slots), *pool.spec.action.shape), np.float32))


def test_own_resets_need_the_environments_own_time_limit():
    pool = own_reset_pool(horizon=1)
    act(pool, [0, 1, 2])
    with pytest.raises(EnvironmentFault, match=r"slot 1, .* cut at the horizon of 1 steps"):
        pool.reset(np.array([1]), np.zeros(1, np.uint32), [TASK])


def test_a_step_that_is_a_reset_is_not_cut_at_a_horizon_of_one():
    pool = own_reset_pool(AutoresetMode.NEXT_STEP, horizon=1, first_end=1)
    act(pool, [0, 1, 2])
    pool.reset(np.array([0]), np.zeros(1, np.uint32), [TASK])
    reset, acted = act(pool, [0]), act(pool, [0])
    assert (reset.valid, reset.terminated, reset.truncated) == (False, False, False)
    assert (acted.valid, acted.terminated) == (None, True)


def test_own_resets_cannot_change_the_task():
    pool = own_reset_pool()
    act(pool, [0, 1, 2])
    act(pool, [0, 1, 2])
    with pytest.raises(EnvironmentFault, match=r"slot 0, .* cannot change its task"):
        pool.reset(np.array([0]), np.zeros(1, np.uint32), [Task("other", 1, {"x": 1})])
    with pytest.raises(EnvironmentFault, match="one task for all its lanes"):
        pool.reset(np.arange(3), np.zeros(3, np.uint32), [TASK, TASK, Task("other", 1, {})])


def test_a_lane_that_was_left_out_has_no_running_episode():
    pool = own_reset_pool()
    act(pool, [0, 2])
    with pytest.raises(EnvironmentFault, match=r"slot 1, .* no running episode"):
        act(pool, [1, 2])


@pytest.mark.parametrize("mode", OWN_MODES)
def test_lanes_are_cut_at_a_number_of_steps_that_they_reach_at_different_times(mode):
    suite = vector_suite("native", partial(Native, mode), horizon=10)
    own, actor = sampler(suite), UniformActor(suite.spec.action)
    cut = own.episodes(actor, suite.train.tasks, LANES, 6, most_steps=7)
    np.testing.assert_array_equal(cut.valid.sum(-1), [[7] * LANES])
    assert np.asarray(cut.reward).min() > -1000.0
    whole = own.episodes(actor, suite.train.tasks, LANES, 2)
    np.testing.assert_array_equal(whole.valid.sum(-1), [[4, 6, 8, 10]])
    own.close()


def test_an_ended_lane_needs_a_reset():
    pool = own_reset_pool()
    act(pool, [0, 1, 2])
    act(pool, [0, 1, 2])
    with pytest.raises(EnvironmentFault, match=r"slot 0, .* no running episode"):
        act(pool, [0, 1, 2])


def test_an_environment_that_does_not_tell_its_mode_is_refused():
    with pytest.raises(ConfigError, match="does not tell when it resets its lanes"):
        vector_suite("native", partial(Native, None), horizon=9)


def test_an_environment_without_a_time_limit_needs_a_horizon():
    with pytest.raises(ConfigError, match="no time limit: give a horizon"):
        vector_suite("native", partial(Native, AutoresetMode.SAME_STEP))


def test_a_horizon_beyond_the_time_limit_is_refused():
    with pytest.raises(ConfigError, match=r"horizon 501 is over the time limit of .*, 500 steps"):
        vector_suite("long", partial(gymnasium.make_vec, "CartPole-v1"), horizon=501)


def counting_pool(params: dict, num_slots: int = 2) -> VectorPool:
    make_vec = partial(sync, Counting, AutoresetMode.NEXT_STEP)
    pool = vector_suite("counting", make_vec, horizon=9).make_pool(num_slots)
    tasks = [Task(f"t{i}", i, params if i else {}) for i in range(num_slots)]
    pool.reset(np.arange(num_slots), np.zeros(num_slots, np.uint32), tasks)
    return pool


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("event", ["nan_at", "huge_at"])
def test_a_reward_that_float32_cannot_hold_names_slot_step_and_task(event):
    with pytest.raises(EnvironmentFault, match=r"slot 1, step 0, task 't1': .*not finite"):
        act(counting_pool({event: 1}), [0, 1])


def test_an_exception_is_one_line_with_its_cause():
    with pytest.raises(EnvironmentFault, match="failed: RuntimeError: motor on fire") as fault:
        act(counting_pool({"raise_at": 1}), [0, 1])
    assert isinstance(fault.value.__cause__, RuntimeError)


def test_a_bad_action_names_its_slot():
    pool = counting_pool({})
    with pytest.raises(EnvironmentFault, match=r"shape \(2, 3\).* takes \(2, 2\)"):
        pool.step(np.arange(2), np.zeros((2, 3), np.float32))
    with pytest.raises(EnvironmentFault, match=r"slot 1, .*not finite"):
        pool.step(np.arange(2), np.array([[0, 0], [0, np.nan]], np.float32))


def test_the_first_reset_may_leave_lanes_out():
    make_vec = partial(sync, Counting, AutoresetMode.DISABLED)
    pool = vector_suite("counting", make_vec, train=[{"ends_at": 2}], horizon=9).make_pool(3)
    task = Task("ends", 0, {"ends_at": 2})
    for _ in range(3):
        pool.reset(np.array([1]), np.zeros(1, np.uint32), [task])
        act(pool, [1])
        act(pool, [1])
    np.testing.assert_array_equal(pool.save()["num_steps"], [0, 2, 0])


class Misfitting(Native):
    """Answers a step of three lanes, the first of which ends, with what it is told to."""

    def __init__(self, answer: dict, num_envs: int) -> None:
        super().__init__(AutoresetMode.SAME_STEP, num_envs, first_end=1)
        self.answer = answer

    def step(self, actions):
        answer = dict(
            zip(("obs", "reward", "over", "cut", "info"), super().step(actions), strict=True)
        )
        return tuple((answer | self.answer).values()) if self.num_envs > 1 else answer.values()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"info": {}}, r"mode SAME_STEP needs info\['final_obs'\]"),
        ({"info": None}, "info is None, not a dict"),
        (
            {"info": {"final_obs": np.zeros((3, 1)), "final_info": np.array([{}] * 3)}},
            r"info\['final_info'\] is array.*, not a dict",
        ),
        ({"info": {"success": "yes"}}, r"success in info has shape \(\); 3 lanes need \(3,\)"),
        ({"info": {"success": ["no"] * 3}}, "success in info is .*, not True or False"),
        ({"over": None}, r"terminated has shape \(\)"),
        ({"cut": np.zeros((3, 1), bool)}, r"truncated has shape \(3, 1\)"),
        ({"reward": np.zeros((3, 1))}, r"the reward has shape \(3, 1\)"),
        ({"obs": np.zeros((2, 1))}, "2 observations of 3 lanes"),
    ],
)
def test_an_answer_that_does_not_fit_is_one_line(answer, message):
    pool = vector_suite("odd", partial(Misfitting, answer), horizon=9).make_pool(3)
    pool.reset(np.arange(3), np.zeros(3, np.uint32), [TASK] * 3)
    with pytest.raises(EnvironmentFault, match=f"^the vector environment failed: .*{message}") as e:
        act(pool, [0, 1, 2])
    assert "\n" not in str(e.value)


def test_a_lane_that_tells_nothing_of_success_has_none():
    answer = {"info": {"final_obs": np.zeros((3, 1)), "success": np.array([None, True, False])}}
    pool = vector_suite("odd", partial(Misfitting, answer), horizon=9).make_pool(3)
    pool.reset(np.arange(3), np.zeros(3, np.uint32), [TASK] * 3)
    step = pool.step(np.arange(3), np.zeros((3, 1), np.float32))
    assert step.info["success"].tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("make_vec", "error", "message"),
    [
        (lambda n: 1 / 0, EnvironmentFault, "cannot be made: ZeroDivisionError"),
        (lambda: 0, EnvironmentFault, "cannot be made: TypeError"),
        (lambda n: None, ConfigError, "must make a Gymnasium one, not a NoneType"),
        (lambda n: gymnasium.make("CartPole-v1"), ConfigError, "a Gymnasium vector environment"),
        (lambda n: gymnasium.make_vec("CartPole-v1", 4), ConfigError, "so many lanes, not of 4"),
        (3, ConfigError, "takes a function that makes environments, not 3"),
        (gymnasium.make_vec("CartPole-v1"), ConfigError, "a function that makes environments"),
    ],
)
def test_what_makes_no_vector_environments_is_refused(make_vec, error, message):
    with pytest.raises(error, match=message):
        vector_suite("none", make_vec)
