from __future__ import annotations

import os
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from families import states

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, load_model
from adaptax.envs.pools.mujoco import MujocoPool
from adaptax.envs.task import Task

LIMIT = 0.2
TASK = Task("steady", 0, {"target": 0.0})


def pendulum(horizon: int = 1000) -> Body:
    """An inverted pendulum, controls in [-3, 3], that terminates when it leans over 0.2 rad."""

    def noise(key):
        both = jax.random.uniform(key, (2, 2), minval=-0.01, maxval=0.01)
        return both[0], both[1]

    def observation(state: Physics) -> jax.Array:
        return jnp.concatenate([state.qpos, state.qvel, state.sensors["tip"]])

    def outcome(before: Physics, action, after: Physics, params) -> Step:
        leaning = jnp.abs(after.qpos[1]) > LIMIT
        reward = -jnp.abs(after.qpos[0] - params["target"])
        travel = after.qpos[0] - before.qpos[0]
        return Step(reward=reward, terminated=leaning, info={"success": leaning, "travel": travel})

    tip = (mujoco.mjtSensor.mjSENS_SUBTREECOM, mujoco.mjtObj.mjOBJ_BODY, "pole")
    return Body(
        spec=EnvSpec(7, Continuous(1), horizon, has_success=True, info_names=("travel",)),
        model=load_model("inverted_pendulum.xml", {"tip": tip}),
        frame_skip=2,
        task_params={"target": ()},
        reset_noise=noise,
        observation=observation,
        outcome=outcome,
    )


BODY = pendulum()


def started(num_slots: int, body: Body = BODY, num_threads: int = 1) -> MujocoPool:
    pool = MujocoPool(body, num_slots, num_threads)
    pool.reset(np.arange(num_slots), np.arange(num_slots, dtype=np.uint32), [TASK] * num_slots)
    return pool


def test_actions_are_scaled_to_the_control_range():
    pool = started(1)
    start = states(pool)[0]
    pool.step(np.arange(1), np.array([[0.5]]))
    data = mujoco.MjData(BODY.model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = start[1:3], start[3:5], 1.5
    mujoco.mj_step(BODY.model, data, nstep=2)
    expected = np.concatenate([data.qpos, data.qvel])
    np.testing.assert_allclose(states(pool)[0, 1:], expected, atol=1e-9)


def test_actions_beyond_one_act_as_one():
    pool = started(2)
    pool.reset(np.arange(2), np.full(2, 7, np.uint32), [TASK] * 2)
    result = pool.step(np.arange(2), np.array([[1.0], [50.0]]))
    np.testing.assert_array_equal(result.next_obs[0], result.next_obs[1])


def test_sensors_after_a_reset_are_those_of_the_start():
    pool = MujocoPool(BODY, 1, 1)
    obs = pool.reset(np.arange(1), np.array([5], np.uint32), [TASK])[0]
    data = mujoco.MjData(BODY.model)
    data.qpos[:] = obs[:2]
    mujoco.mj_forward(BODY.model, data)
    np.testing.assert_allclose(obs[4:], data.subtree_com[BODY.model.body("pole").id], atol=1e-6)


def test_termination_ends_only_its_own_lane():
    pool = started(2)
    for _ in range(200):
        result = pool.step(np.arange(2), np.array([[1.0], [0.0]]))
        if result.terminated.any():
            break
    assert result.terminated.tolist() == [True, False]
    assert result.truncated.tolist() == [False, False]
    assert result.info["success"].tolist() == [True, False]
    with pytest.raises(EnvironmentFault, match=r"slot 0, step \d+, .*no running episode"):
        pool.step(np.array([0]), np.zeros((1, 1)))
    assert pool.step(np.array([1]), np.zeros((1, 1))).reward.shape == (1,)


def test_time_limit_truncates_at_the_horizon_and_a_reset_starts_the_count_anew():
    pool = started(2, pendulum(horizon=5))
    both, idle = np.arange(2), np.zeros((2, 1))
    flags = [pool.step(both, idle).truncated.tolist() for _ in range(3)]
    pool.reset(np.array([1]), np.array([9], np.uint32), [TASK])
    flags += [pool.step(both, idle).truncated.tolist() for _ in range(2)]
    assert flags == [[False, False]] * 4 + [[True, False]]


def test_termination_on_the_last_allowed_step_is_not_truncation():
    pool = started(1)
    steps = 1
    while not pool.step(np.arange(1), np.ones((1, 1))).terminated[0]:
        steps += 1
    short = started(1, pendulum(horizon=steps))
    for _ in range(steps):
        result = short.step(np.arange(1), np.ones((1, 1)))
    assert (result.terminated[0], result.truncated[0]) == (True, False)


def test_next_obs_at_the_time_limit_is_the_true_successor():
    short, long = started(3, pendulum(horizon=4)), started(3)
    for _ in range(4):
        cut = short.step(np.arange(3), np.zeros((3, 1)))
        free = long.step(np.arange(3), np.zeros((3, 1)))
    assert cut.truncated.all() and not free.truncated.any()
    np.testing.assert_array_equal(cut.next_obs, free.next_obs)


def test_tasks_reach_exactly_their_slots():
    pool = MujocoPool(BODY, 4, 1)
    pool.reset(np.arange(4), np.full(4, 3, np.uint32), [TASK] * 4)
    far = Task("far", 1, {"target": 10.0})
    pool.reset(np.array([2]), np.array([3], np.uint32), [far])
    reward = pool.step(np.arange(4), np.zeros((4, 1))).reward
    assert reward[[0, 1, 3]] == pytest.approx([reward[0]] * 3, abs=0)
    assert reward[2] == pytest.approx(-10.0, abs=0.1)


def test_results_are_not_overwritten_by_the_next_step():
    pool = started(2)
    first = pool.step(np.arange(2), np.ones((2, 1)))
    kept = [first.next_obs.copy(), first.reward.copy(), first.info["travel"].copy()]
    pool.step(np.arange(2), np.ones((2, 1)))
    for now, then in zip((first.next_obs, first.reward, first.info["travel"]), kept, strict=True):
        np.testing.assert_array_equal(now, then)


def test_no_slots_give_empty_results():
    pool, none = started(2), np.arange(0)
    assert pool.reset(none, none.astype(np.uint32), []).shape == (0, 7)
    assert pool.step(none, np.zeros((0, 1))).next_obs.shape == (0, 7)


def test_a_step_before_any_reset_is_refused():
    pool = MujocoPool(BODY, 2, 1)
    with pytest.raises(EnvironmentFault, match="slot 0, step 0, task none: no running episode"):
        pool.step(np.arange(2), np.zeros((2, 1)))


def test_bad_actions_are_refused_with_what_was_wrong():
    pool = started(3)
    with pytest.raises(EnvironmentFault, match=r"shape \(3, 2\).* takes \(3, 1\)"):
        pool.step(np.arange(3), np.zeros((3, 2)))
    with pytest.raises(EnvironmentFault, match="slot 1, step 0, task 'steady': the action"):
        pool.step(np.arange(3), np.array([[0.0], [np.nan], [0.0]]))


def test_bad_slots_seeds_and_tasks_are_refused():
    pool = started(2)
    with pytest.raises(EnvironmentFault, match="3 slots were given to a pool of 2"):
        pool.step(np.array([0, 1, 0]), np.zeros((3, 1)))
    with pytest.raises(ConfigError, match=r"'odd' has the parameters \['mass'\]"):
        pool.reset(np.array([0]), np.array([0], np.uint32), [Task("odd", 0, {"mass": 1.0})])
    with pytest.raises(EnvironmentFault, match="2 slots was given 2 seeds and 1 tasks"):
        pool.reset(np.arange(2), np.zeros(2, np.uint32), [TASK])
    with pytest.raises(EnvironmentFault, match="2 slots was given 1 seeds and 2 tasks"):
        pool.reset(np.arange(2), np.zeros(1, np.uint32), [TASK] * 2)


@pytest.mark.parametrize(("num_slots", "num_threads"), [(0, 1), (1, -1)])
def test_bad_sizes_are_refused(num_slots, num_threads):
    with pytest.raises(ConfigError, match="num_"):
        MujocoPool(BODY, num_slots, num_threads)


def test_without_the_processor_among_jaxs_platforms_there_is_one_line(monkeypatch):
    def only_a_gpu(**_):
        raise RuntimeError("Unknown backend cpu. Available backends are ['cuda']")

    monkeypatch.setattr(jax, "local_devices", only_a_gpu)
    with pytest.raises(ConfigError, match="leave out the processor, where MuJoCo"):
        MujocoPool(pendulum(), 1)


def test_a_diverged_simulation_is_a_fault_that_names_its_lane(tmp_path, monkeypatch):
    """MuJoCo resets such a lane to its initial state and goes on with finite numbers."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes MUJOCO_LOG.TXT into the working directory.
    pool = started(3)
    pool.step(np.arange(3), np.zeros((3, 1)))
    saved = pool.save()
    saved["0"].view(np.float64)[2, 3] = 1e12
    pool.restore(saved, [TASK] * 3)
    with pytest.raises(EnvironmentFault, match="slot 2, step 1, task 'steady': the simulation div"):
        pool.step(np.arange(3), np.zeros((3, 1)))


def test_a_nan_reward_is_a_fault_and_leaves_the_state_as_it_was():
    pool = MujocoPool(BODY, 2, 1)
    tasks = [TASK, Task("void", 1, {"target": np.nan})]
    pool.reset(np.arange(2), np.zeros(2, np.uint32), tasks)
    before = pool.save()
    with pytest.raises(EnvironmentFault, match="slot 1, step 0, task 'void': the reward"):
        pool.step(np.arange(2), np.zeros((2, 1)))
    for name, array in pool.save().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_nan_at_reset_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = replace(BODY, reset_noise=lambda key: (jnp.full(2, jnp.nan), jnp.zeros(2)))
    with pytest.raises(EnvironmentFault, match="slot 1, step 0, task 'steady'"):
        MujocoPool(broken, 2, 1).reset(np.array([1]), np.zeros(1, np.uint32), [TASK])


def test_restore_refuses_the_state_of_another_size():
    with pytest.raises(EnvironmentFault, match=r"\(3, 10\); this pool of 2 slots takes \(2, 10\)"):
        started(2).restore(started(3).save(), [TASK] * 2)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="lists threads in /proc")
def test_close_ends_the_threads_and_refuses_further_steps():
    before = {*os.listdir("/proc/self/task")}
    pool = started(3, num_threads=3)
    new = {*os.listdir("/proc/self/task")} - before
    assert len(new) == 3
    pool.close()
    deadline = time.monotonic() + 60  # the system may still list one that has been joined
    while not new.isdisjoint(os.listdir("/proc/self/task")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(EnvironmentFault, match="no running episode"):
        pool.step(np.arange(3), np.zeros((3, 1)))
