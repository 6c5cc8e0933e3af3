"""What environments of one's own may answer with, and what is refused in a line."""

import warnings
from dataclasses import dataclass, field
from functools import partial

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import adaptax
from adaptax import Discrete, EnvSpec, Step, Task, TaskRange
from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.pools.gym_spaces import as_flag, observation_encoder
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.suites.gym import gym_suite, vector_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

ONE = np.arange(1)


class Telling(gymnasium.Env):
    """Answers what it was made with; an episode has four steps."""

    observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, **answers):
        self.answers, self.count = answers, 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.answers.get("reset", (np.zeros(1, np.float32), {}))

    def step(self, action):
        self.count += 1
        get = self.answers.get
        info = get("infos", [{}] * 4)[self.count - 1]
        reward, ended = get("reward", 0.0), get("terminated", self.count == 4)
        return np.zeros(1, np.float32), reward, ended, False, info


def first_step(**answers) -> Step:
    suite = gym_suite("told", partial(Telling, **answers), horizon=4)
    pool = suite.make_pool(1)
    pool.reset(ONE, np.zeros(1, np.uint32), suite.train.tasks)
    return pool.step(ONE, np.zeros(1, np.int32))


@pytest.mark.parametrize("value", [0.3, np.nan, 2, np.float32(0.5)])
def test_a_truth_value_between_true_and_false_is_a_fault(value):
    with pytest.raises(EnvironmentFault, match=r"terminated is .*, not True or False"):
        first_step(terminated=value)
    with pytest.raises(EnvironmentFault, match=r"success is .*, not True or False"):
        first_step(infos=[{"success": value}] * 4)


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, np.True_, np.float32(1.0), np.array([0])])
def test_zero_and_one_are_truth_values(value):
    assert as_flag(value, "it") == bool(value)


def test_a_reward_of_none_is_called_one():
    with pytest.raises(EnvironmentFault, match="reward None is not made of real numbers"):
        first_step(reward=None)


def test_a_reset_without_an_info_is_one_line():
    with pytest.raises(EnvironmentFault, match="something else than an observation and an info"):
        first_step(reset=np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("space", "obs", "told"),
    [
        (spaces.Box(0, 1, (2, 3)), np.zeros((3, 2)), r"shape \(3, 2\); its space has \(2, 3\)"),
        (spaces.Box(0, 255, (12, 10, 3), np.uint8), np.zeros((3, 12, 10), np.uint8), "shape"),
        (spaces.Box(0, 255, (9, 9, 3), np.uint8), np.zeros((9, 9, 3)), "made of fractions"),
        (spaces.Discrete(3), 1.7, "1.7 is no whole number"),
        (spaces.MultiDiscrete([3, 3]), np.array([1.0, 0.5]), "0.5 is no whole number"),
    ],
)
def test_an_observation_unlike_its_space_is_refused(space, obs, told):
    with pytest.raises((TypeError, ValueError), match=told):
        observation_encoder(space)[1](obs)


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (3,)])
def test_axes_of_one_are_nobodys_concern(shape):
    obs = np.arange(3.0).reshape(shape)
    assert observation_encoder(spaces.Box(0, 9, (3,)))[1](obs).tolist() == [0, 1, 2]


def test_environments_that_share_an_array_have_observations_of_their_own():
    shared = np.zeros(1, np.float32)

    class Sharing(Telling):
        made = 0

        def __init__(self):
            super().__init__()
            Sharing.made += 1
            self.number = Sharing.made

        def step(self, action):
            shared[:] = self.number
            return shared, float(self.number), False, False, {}

    pool = gym_suite("sharing", Sharing, horizon=4).make_pool(3)
    every = np.arange(3)
    pool.reset(every, np.zeros(3, np.uint32), [Task("t", 0, {})] * 3)
    step = pool.step(every, np.zeros(3, np.int32))
    assert step.next_obs[:, 0].tolist() == step.reward.tolist()


@pytest.mark.parametrize("make", [gym_suite, vector_suite])
def test_success_that_only_a_last_step_tells_is_warned_of(make):
    infos = [{}, {}, {}, {"success": True}]
    lanes = partial(Telling, infos=infos)
    one = lanes if make is gym_suite else lambda n: SyncVectorEnv([lanes] * n)
    suite = make("late", one, horizon=4)
    assert not suite.spec.has_success
    pool = suite.make_pool(1)
    pool.reset(ONE, np.zeros(1, np.uint32), suite.train.tasks)
    for _ in range(3):
        pool.step(ONE, np.zeros(1, np.int32))
    with pytest.warns(UserWarning, match="told by some steps only .* setting late_success"):
        pool.step(ONE, np.zeros(1, np.int32))


@pytest.mark.parametrize("name", ["success", "is_success"])
@pytest.mark.parametrize("make", [gym_suite, vector_suite])
def test_late_success_counts_where_a_step_tells_it(make, name):
    lanes = partial(Telling, infos=[{}, {}, {name: True}, {}])
    one = lanes if make is gym_suite else lambda n: SyncVectorEnv([lanes] * n)
    suite = make("late", one, horizon=4, late_success=True)
    assert suite.spec.has_success
    sampler = Sampler(suite, suite.train, 0, "train")
    with warnings.catch_warnings(action="error"):
        rollout = sampler.episodes(UniformActor(suite.spec.action), suite.train.tasks, 1, 1)
    np.testing.assert_array_equal(rollout.extras["success"], [[[False, False, True, False]]])
    assert sampler.statistics.take()["success"] == 1.0


def test_success_of_a_registered_environment_may_come_late():
    assert adaptax.make_suite("gym:CartPole-v1", late_success=True).spec.has_success
    assert not adaptax.make_suite("gym:CartPole-v1").spec.has_success


def test_lanes_of_a_vector_environment_bring_their_time_limit():
    def made(num):
        return SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * num)

    assert vector_suite("v", made).spec.horizon == 200
    with pytest.raises(ConfigError, match=r"horizon 1000 is over the time limit of .*, 200 steps"):
        vector_suite("v", made, horizon=1000)


def test_an_environment_that_alone_resets_its_lanes_needs_its_own_time_limit():
    def made(num):
        return gymnasium.make_vec("CartPole-v1", num, vectorization_mode="vector_entry_point")

    assert vector_suite("v", made).spec.horizon == 500
    with pytest.raises(ConfigError, match=r"horizon 20 is under the time limit of .*, 500 steps"):
        vector_suite("v", made, horizon=20)


def test_what_only_looks_like_an_environment_is_refused():
    class Duck:
        observation_space, action_space = Telling.observation_space, Telling.action_space

        def reset(self, *, seed=None, options=None): ...

        def step(self, action): ...

    with pytest.raises(ConfigError, match="must make a Gymnasium one, not a Duck"):
        gym_suite("duck", Duck)


def test_workers_are_a_whole_number():
    with pytest.raises(ConfigError, match="num_workers must be a whole number, not '2'"):
        gym_suite("told", Telling, horizon=4, num_workers="2")


def test_tasks_that_cannot_be_drawn_are_one_line():
    with pytest.raises(ConfigError, match="a task of 'x' cannot be drawn: TypeError"):
        TaskRange("x", lambda: 1.0).sample(np.random.default_rng(0), 1)


def test_tasks_may_be_listed_as_tasks():
    suite = gym_suite("told", Telling, horizon=4, train=[Task("mine", 3, {"value": 2.0})])
    assert [task.params for task in suite.train.tasks] == [{"value": 2.0}]


@pytest.mark.parametrize(
    ("train", "test", "held_out"),
    [
        ([1, 2, 3], [3.0, 4.0], False),
        ([1, 2, 3], [4.0], True),
        ([2**24], [2**24 + 1], True),
        ([{"g": np.array([1, 2], np.float32)}], [{"g": np.array([1, 2])}], False),
        (TaskRange("t", lambda rng: int(rng.integers(3))), [0, 1], False),
        (TaskRange("t", lambda rng: int(rng.integers(3))), [3.0, 4.0], True),
        (TaskRange("t", lambda rng: float(rng.uniform())), [0.5], True),
    ],
)
def test_held_out_is_what_no_number_of_training_says(train, test, held_out):
    suite = gym_suite("told", Telling, horizon=4, train=train, test=test)
    assert suite.held_out == held_out


@dataclass(frozen=True)
class Still:
    """An environment of zeros and ones; an episode ends when action 1 is taken."""

    bits: type = bool

    @property
    def spec(self):
        return EnvSpec(2, Discrete(2), 5, binary=True)

    def reset(self, key, task):
        return jnp.zeros(2), jnp.zeros(2, bool)

    def step(self, key, state, action, task):
        seen = jnp.zeros(2, self.bits)
        return state, Step(reward=1.0, next_obs=seen, terminated=action == 1)


def begun(env) -> CompiledPool:
    pool = CompiledPool(env, 2)
    pool.reset(np.arange(2), np.zeros(2, np.uint32), [Task("t", 0, {})] * 2)
    return pool


def test_an_episode_that_has_ended_is_not_stepped():
    pool = begun(Still())
    pool.step(np.arange(2), np.array([0, 1], np.int32))
    with pytest.raises(EnvironmentFault, match=r"slot 1, step 1, .*no running episode"):
        pool.step(np.arange(2), np.zeros(2, np.int32))
    pool.reset(np.array([1]), np.zeros(1, np.uint32), [Task("t", 0, {})])
    pool.step(np.arange(2), np.zeros(2, np.int32))


def test_a_step_of_gymnasiums_kind_is_told_what_is_asked_for():
    class OfGymnasium(Still):
        def step(self, key, state, action, task):
            return jnp.zeros(2), 1.0, False, False, {}

    with pytest.raises(EnvironmentFault, match="gives a state and a Step"):
        begun(OfGymnasium())


def test_zeros_and_ones_are_no_fractions():
    with pytest.raises(EnvironmentFault, match=r"zeros and ones .* is float32"):
        begun(Still(bits=jnp.float32))

    class Begun(Still):
        def reset(self, key, task):
            return jnp.zeros(2), jnp.full(2, 0.3)

    with pytest.raises(
        EnvironmentFault, match=r"first observation .* zeros and ones .* is float32"
    ):
        begun(Begun())


def test_an_observation_may_be_a_list():
    class Listing(Still):
        spec = EnvSpec(2, Discrete(2), 5)

        def reset(self, key, task):
            return jnp.zeros(2), [0.0, 1.0]

    assert begun(Listing()).lanes.obs.tolist() == [[0, 1], [0, 1]]


def test_an_integer_may_be_called_class():
    class Classed(Still):
        def reset(self, key, task):
            return jnp.zeros(2) + task["class"], jnp.zeros(2, bool)

    pool = CompiledPool(Classed(), 1)
    pool.reset(ONE, np.zeros(1, np.uint32), [Task("t", 0, {"class": 3})])
    assert pool.lanes.state.tolist() == [[3, 3]]


def test_an_environment_that_may_change_is_refused():
    @dataclass(eq=False)
    class Changeable:
        spec = EnvSpec(2, Discrete(2), 5)
        reward: float = 1.0

    with pytest.raises(ConfigError, match="Changeable has to be a frozen dataclass"):
        compiled_suite("c", Changeable(), [{}], [{}])


def test_fields_that_tell_nothing_apart_are_one_line():
    @dataclass(frozen=True)
    class Mapped(Still):
        walls: np.ndarray = field(default_factory=lambda: np.zeros(3))

    with pytest.raises(ConfigError, match=r"unhashable .*make its fields tuples"):
        compiled_suite("c", Mapped(), [{}], [{}])

    @dataclass(frozen=True, eq=False)
    class Alone:
        spec = EnvSpec(2, Discrete(2), 5)
        walls: np.ndarray

    assert compiled_suite("c", Alone(np.zeros(3)), [{}], [{}]).spec.horizon == 5


def test_what_adaptax_refuses_is_its_own_error():
    with pytest.raises(adaptax.AdaptaxError):
        gym_suite("told", Telling)
