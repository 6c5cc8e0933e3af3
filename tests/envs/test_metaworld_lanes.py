"""Meta-World inside the program against its own Python: the same episodes, in any company."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS, ML10_V3
from metaworld.policies import ENV_POLICY_MAP

from adaptax.algorithms.meta.rl2_ppo import RL2PPO, RL2PPOConfig
from adaptax.core.errors import EnvironmentFault
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.envs.physics import native
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.suites.metaworld import lanes
from adaptax.envs.suites.metaworld.env import MetaWorldEnv, Simulator
from adaptax.envs.suites.metaworld.goals import benchmark_goals
from adaptax.envs.suites.metaworld.lanes import MetaWorldLanes
from adaptax.envs.suites.metaworld.recording import record
from adaptax.envs.task import ClassTasks
from adaptax.experiment.build import make_suite
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.networks.memory import MemoryConfig
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

pytestmark = pytest.mark.skipif(native.problem() is not None, reason=str(native.problem()))

SPEC = EnvSpec(39, Continuous(4), 500, has_success=True)
SLOTS, SEEDS = np.arange(3), np.arange(3, dtype=np.uint32)
NUM_STEPS = 120


def some_tasks(*names):
    """Three tasks: goals of these classes in turns."""
    goals = {name: benchmark_goals([name], 0)[name] for name in names}
    of = {
        name: ClassTasks(name, {name: [{"rand_vec": goal} for goal in rows]}).tasks
        for name, rows in goals.items()
    }
    return [of[names[i % len(names)]][7 * i] for i in range(3)]


def pools(*, told=(), spec=SPEC):
    """Meta-World inside the program, and its own Python."""
    inside = CompiledPool(MetaWorldLanes(spec, told), 3)
    return inside, GymPool(lambda: MetaWorldEnv(told), spec, 3)


def skilled(outside, tasks, obs, rng):
    """Actions of Meta-World's own policies, which see the goal, with noise; the last at random."""
    actions = rng.normal(0.0, 0.1, (3, 4))
    for i, (task, env) in enumerate(zip(tasks, outside._envs, strict=True)):
        seen = np.concatenate([obs[i][:36], env._current.env._target_pos]).astype(np.float64)
        policy = ENV_POLICY_MAP[task.class_name]()
        actions[i] += policy.get_action(seen) if i < 2 else rng.uniform(-1.0, 1.0, 4)
    return np.clip(actions, -1.0, 1.0).astype(np.float32)


def assert_same(one, other):
    """Observations bit for bit, but for what is too small for a normal float32; rewards to one."""
    np.testing.assert_allclose(one.next_obs, other.next_obs, rtol=0, atol=1e-37)
    np.testing.assert_allclose(one.reward, other.reward, rtol=3e-7, atol=1e-7)
    for name in ("terminated", "truncated"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.info["success"], other.info["success"])


IN_ML10 = [*ML10_V3["train"], *ML10_V3["test"]]
QUICK = ("bin-picking-v3", "stick-pull-v3", "pick-place-v3", "peg-insert-side-v3", "lever-pull-v3")
CLASSES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in ALL_V3_ENVIRONMENTS
]


@pytest.mark.filterwarnings("ignore:Constant")
@pytest.mark.parametrize("name", CLASSES)
def test_an_episode_inside_the_program_is_that_of_metaworlds_python(name):
    rng, tasks = np.random.default_rng(len(name)), some_tasks(name)
    inside, outside = pools()
    for num_steps in (NUM_STEPS, 15):  # and again, from the middle of an episode
        obs = outside.reset(SLOTS, SEEDS, tasks)
        np.testing.assert_array_equal(inside.reset(SLOTS, SEEDS, tasks), obs)
        for _ in range(num_steps):
            action = skilled(outside, tasks, obs, rng)
            step = outside.step(SLOTS, action)
            assert_same(inside.step(SLOTS, action), step)
            obs = step.next_obs
        tasks = tasks[1:] + tasks[:1]  # on other goals than those a lane had


def test_the_goal_and_the_class_are_told():
    told = ("reach-v3", "door-open-v3")
    spec = EnvSpec(41, Continuous(4), 500, has_success=True)
    tasks, (inside, outside) = some_tasks(*told), pools(told=told, spec=spec)
    obs = inside.reset(SLOTS, SEEDS, tasks)
    np.testing.assert_array_equal(obs, outside.reset(SLOTS, SEEDS, tasks))
    np.testing.assert_array_equal(obs[:, 39:], [[1, 0], [0, 1], [1, 0]])
    assert obs[:, 36:39].any(1).all()
    for _ in range(5):
        action = np.random.default_rng(0).uniform(-1, 1, (3, 4)).astype(np.float32)
        assert_same(inside.step(SLOTS, action), outside.step(SLOTS, action))


def test_lanes_are_the_same_alone_and_after_save_and_restore():
    tasks = some_tasks("hammer-v3", "drawer-open-v3")
    env = MetaWorldLanes(SPEC)
    together, again, alone = (CompiledPool(env, n) for n in (3, 3, 1))
    first = together.reset(SLOTS, SEEDS, tasks)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (12, 3, 4)).astype(np.float32)
    steps = [together.step(SLOTS, action) for action in actions[:6]]
    again.restore(together.save(), tasks)
    steps += [together.step(SLOTS, action) for action in actions[6:]]
    for action, step in zip(actions[6:], steps[6:], strict=True):
        np.testing.assert_array_equal(again.step(SLOTS, action).next_obs, step.next_obs)
    for lane in range(3):
        one = alone.reset(SLOTS[:1], SEEDS[:1], [tasks[lane]])
        np.testing.assert_array_equal(one[0], first[lane])
        for action, step in zip(actions, steps, strict=True):
            own = alone.step(SLOTS[:1], action[lane : lane + 1])
            np.testing.assert_array_equal(own.next_obs[0], step.next_obs[lane])
            assert own.reward[0] == step.reward[lane]


def rollout(suite, actor=None):
    sampler = Sampler(suite, suite.train, 0, "test")
    tasks = sampler.sample_tasks(4)
    return sampler.episodes(actor or UniformActor(suite.spec.action), tasks, 2, 2)


def test_the_suite_is_the_same_in_the_program_in_python_and_on_any_number_of_threads():
    settings = {"horizon": 20, "classes": ("reach-v3", "push-v3")}
    settings["test_classes"] = ("door-close-v3",)
    one, two = (make_suite("ml10", num_threads=n, **settings) for n in (1, 2))
    python = make_suite("ml10", num_workers=0, **settings)
    assert (one.engine, two.engine, python.engine) == ("compiled", "compiled", "host")
    first, second, third = (rollout(suite) for suite in (one, two, python))
    np.testing.assert_array_equal(first.obs, second.obs)
    np.testing.assert_array_equal(first.reward, second.reward)
    assert first.obs.shape == (4, 2, 40, 39)
    np.testing.assert_allclose(first.obs, third.obs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(first.reward, third.reward, rtol=1e-6)
    np.testing.assert_array_equal(first.extras["success"], third.extras["success"])


def test_where_native_code_does_not_work_a_line_says_so(monkeypatch):
    monkeypatch.setattr(native, "problem", lambda: "no compiler was found")
    suite = make_suite("ml1-reach-v3", horizon=5)
    assert suite.engine == "workers"
    assert suite.note == (
        "Meta-World runs outside the compiled program, which is slower: no compiler was found"
    )
    asked = make_suite("ml1-reach-v3", horizon=5, num_workers=0)
    assert (asked.engine, asked.note) == ("host", None)


def test_an_action_that_is_no_number_is_a_fault_of_its_lane():
    tasks, (inside, _) = some_tasks("reach-v3"), pools()
    inside.reset(SLOTS, SEEDS, tasks)
    action = np.zeros((3, 4), np.float32)
    action[1, 2] = np.nan
    with pytest.raises(EnvironmentFault, match="action is not finite"):
        inside.step(SLOTS, action)


@pytest.mark.parametrize("name", ["peg-unplug-side-v3", "push-v3"])
def test_a_simulation_that_diverges_goes_on_as_in_metaworlds_python(name):
    """MuJoCo puts it back to the model's first state, in which Meta-World sees nothing special."""
    tasks, (inside, outside) = some_tasks(name), pools()
    rng = np.random.default_rng(0)
    for pool in (inside, outside):
        pool.reset(SLOTS, SEEDS, tasks)
    for i in range(12):
        if i == 5:
            data = outside._envs[1].data
            data.qvel[0] = 1e12
            state = np.array(inside.lanes.state).view(np.float64)
            state[1, 1 + len(data.qpos)] = 1e12  # after time and positions
            inside.lanes = replace(inside.lanes, state=native.to_words(state))
        action = rng.uniform(-1, 1, (3, 4)).astype(np.float32)
        assert_same(inside.step(SLOTS, action), outside.step(SLOTS, action))
    assert data.time < 8 * 5 * outside._envs[1].model.opt.timestep  # it began anew


def test_what_is_drawn_is_where_the_lane_stands():
    tasks, (inside, outside) = some_tasks("drawer-open-v3", "reach-v3"), pools()
    for pool in (inside, outside):
        pool.reset(SLOTS, SEEDS, tasks)
        for _ in range(10):
            pool.step(SLOTS, np.full((3, 4), 0.5, np.float32))
    for slot in range(3):
        (model, data), (_, theirs) = (pool.simulation(slot) for pool in (inside, outside))
        np.testing.assert_allclose(data.xpos, theirs.xpos, atol=1e-12)
        np.testing.assert_array_equal(
            data.body("hand").xpos.astype(np.float32), inside_hand(inside, slot)
        )
        assert model.nbody == len(data.xpos)


def inside_hand(pool, slot):
    return np.asarray(pool.lanes.obs)[slot, :3]


def test_an_environment_may_be_sent_to_another_process():
    sent = pickle.loads(pickle.dumps(MetaWorldLanes(SPEC, ("reach-v3",))))
    assert (sent.spec, sent.told_classes) == (SPEC, ("reach-v3",))


def recorded(reward):
    """What is recorded of `reach` with another reward, as another version might have."""
    simulator = Simulator("reach-v3", goal_hidden=True)
    simulator.begin(benchmark_goals(["reach-v3"], 0)["reach-v3"][0])

    def evaluate_state(self, obs, action):
        return reward(self, obs[0]), {"success": 0.0}

    original = ALL_V3_ENVIRONMENTS["reach-v3"]
    return record(simulator.env, type("Other", (original,), {"evaluate_state": evaluate_state}))


def test_what_cannot_be_written_down_is_an_error():
    def counts(self, x):
        self.num_resets += 1
        return x

    def looks_up(self, x):
        return x * self.model.body_pos[1, 2]  # which differs between tasks

    assert recorded(lambda self, x: 2.0 * x).memory
    with pytest.raises(EnvironmentFault, match="Other changes its num_resets"):
        recorded(counts)
    with pytest.raises(AttributeError, match="body_pos"):
        recorded(looks_up)
    with pytest.raises(TypeError, match="3 is no power"):
        recorded(lambda self, x: x**3)


def test_what_is_wrong_with_a_class_or_a_goal_is_one_line(monkeypatch):
    def never(*_):
        raise TypeError("no power")

    task = some_tasks("door-open-v3")[0]
    known = lanes._Class("door-open-v3", goal_hidden=True)
    with pytest.raises(EnvironmentFault, match=r"door-open-v3 cannot be reset to \[1. 1.\]: "):
        known.start(np.ones(2))
    too_near = np.zeros(6)  # an object at its goal, for which the reset would look for ever
    with pytest.raises(EnvironmentFault, match=r"push-v3 cannot be reset .*: Meta-World's reset r"):
        lanes._Class("push-v3", goal_hidden=True).start(too_near)
    monkeypatch.setattr(lanes, "record", never)
    with pytest.raises(
        EnvironmentFault, match=r"door-open-v3 cannot be written .*: TypeError: no power"
    ):
        known.start(np.asarray(task.params["rand_vec"]))


def test_threads_of_a_group_begin_episodes_side_by_side():
    """Objects of Meta-World's share models, which a reset changes."""
    names = ("push-v3", "door-open-v3")
    tasks = [task for seed in range(3) for task in some_tasks(*names)[seed:]]
    alone = [MetaWorldLanes(SPEC).task_arrays(task)[0] for task in tasks]
    lanes._class.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda t: MetaWorldLanes(SPEC).task_arrays(t)[0], tasks * 4))
    lanes._class.cache_clear()
    for i, own in enumerate(together):
        for name in ("places", "state", "obs"):
            np.testing.assert_array_equal(own[name], alone[i % len(tasks)][name])


def test_an_evaluation_draws_the_same_in_the_program_and_in_python():
    """Of more lanes than are simulated at once."""
    settings = {"horizon": 4, "classes": ("reach-v3",), "test_classes": ("door-close-v3",)}
    returns = []
    for num_workers in (None, 0):
        suite = make_suite("ml10", num_workers=num_workers, **settings)
        config = RL2PPOConfig(meta_batch_size=8, memory=MemoryConfig("gru", 8))
        algorithm = RL2PPO(config, suite.spec)
        evaluator = Evaluator(EvaluatorConfig(num_tasks=50, num_lanes=2, num_episodes=1), suite, 0)
        found = evaluator.evaluate(algorithm, algorithm.init(jax.random.key(0)))
        returns.append([task["returns"] for task in found.row()["tasks"]])
    np.testing.assert_allclose(*returns, rtol=1e-5)
