from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.envs.locomotion.half_cheetah import (
    HalfCheetahDirConfig,
    HalfCheetahVelConfig,
    half_cheetah_dir,
    half_cheetah_vel,
)
from adaptax.envs.mujoco_pool import MujocoPool
from adaptax.envs.task import Suite, Task

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_SUITES = {
    "half_cheetah_vel": half_cheetah_vel(HalfCheetahVelConfig(num_threads=1)),
    "half_cheetah_dir": half_cheetah_dir(HalfCheetahDirConfig(num_threads=1)),
}
TASK = Task("fast", 0, {"target": 1.5})


def vel_pool(num_slots: int, *, seed: int = 0, **config) -> MujocoPool:
    suite = half_cheetah_vel(HalfCheetahVelConfig(**{"num_threads": 1, **config}))
    pool = suite.make_pool(num_slots)
    pool.reset(np.arange(num_slots), seeds_from(seed, num_slots), [TASK] * num_slots)
    return pool


def seeds_from(seed: int, num: int) -> np.ndarray:
    return np.arange(seed, seed + num, dtype=np.uint32)


def random_actions(num_steps: int, num_lanes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (num_steps, num_lanes, 6)).astype(np.float32)


def run(pool: MujocoPool, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Observations [T, P, O] and rewards [T, P] of all slots."""
    results = [pool.step(np.arange(pool.num_slots), a) for a in actions]
    return np.stack([r.next_obs for r in results]), np.stack([r.reward for r in results])


@pytest.mark.parametrize(("torso_position", "size"), [(True, 20), (False, 17)])
def test_velocity_reward_and_observation_equal_a_hand_computation(torso_position, size):
    pool = vel_pool(1, torso_position=torso_position)
    assert pool.spec.observation_size == size
    for action in 1.5 * random_actions(20, 1):
        before = pool.save()["state"][0]
        result = pool.step(np.arange(1), action)
        after = pool.save()["state"][0]
        velocity = (after[1] - before[1]) / 0.05
        cost = 0.05 * np.sum(np.clip(action[0], -1, 1).astype(np.float64) ** 2)
        assert result.reward[0] == pytest.approx(-abs(velocity - 1.5) - cost, abs=1e-6)
        assert result.info["velocity"][0] == pytest.approx(velocity, abs=1e-6)
        assert result.info["control_cost"][0] == pytest.approx(cost, abs=1e-6)
        assert result.next_obs.shape == (1, size)
        np.testing.assert_array_equal(result.next_obs[0, :17], after[2:].astype(np.float32))


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_direction_reward_equals_a_hand_computation(direction):
    pool = GOLDEN_SUITES["half_cheetah_dir"].make_pool(1)
    pool.reset(np.arange(1), seeds_from(0, 1), [Task("way", 0, {"direction": direction})])
    for action in random_actions(20, 1):
        result = pool.step(np.arange(1), action)
        cost = 0.05 * np.sum(action.astype(np.float64) ** 2)
        expected = direction * result.info["velocity"][0] - cost
        assert result.reward[0] == pytest.approx(expected, abs=1e-5)


def test_a_step_equals_gymnasiums_from_the_same_state():
    """Gymnasium's own step from our recorded states; trajectories are chaotic, single steps not.

    With a cold solver Gymnasium's state is ours to the last bit; observations are float32, hence
    5e-7. Gymnasium as it is starts the solver from the last step's forces, which moves a step's
    result by up to 5e-13 (facts.md), hence 1e-9. The torso's position is stale in both.
    """
    env = gymnasium.make("HalfCheetah-v5").unwrapped
    pool = vel_pool(1)
    for action in random_actions(50, 1):
        start = pool.save()["state"][0]
        result = pool.step(np.arange(1), action)
        ours = pool.save()["state"][0, 1:]
        env.set_state(start[1:10], start[10:])
        env.data.qacc_warmstart[:] = 0.0
        env.do_simulation(action[0], env.frame_skip)
        np.testing.assert_array_equal(ours, env.state_vector())
        torso = env.get_body_com("torso")
        np.testing.assert_allclose(result.next_obs[0, 17:], torso, rtol=0, atol=5e-7)
        env.set_state(start[1:10], start[10:])
        _, _, _, _, info = env.step(action[0])
        np.testing.assert_allclose(ours, env.state_vector(), rtol=0, atol=1e-9)
        assert result.info["velocity"][0] == pytest.approx(info["x_velocity"], abs=5e-7)


def test_reset_noise_is_gymnasiums_and_a_function_of_the_seed():
    pool = vel_pool(2, seed=11)
    state = pool.save()["state"]
    for slot, seed in enumerate((11, 12)):
        rng = np.random.default_rng(seed)
        np.testing.assert_array_equal(state[slot, 1:10], rng.uniform(-0.1, 0.1, 9))
        np.testing.assert_array_equal(state[slot, 10:], 0.1 * rng.standard_normal(9))


def test_thread_counts_give_equal_bits():
    actions = random_actions(40, 7)
    obs, reward = run(vel_pool(7, num_threads=1), actions)
    for num_threads in (2, 3):
        other_obs, other_reward = run(vel_pool(7, num_threads=num_threads), actions)
        np.testing.assert_array_equal(obs, other_obs)
        np.testing.assert_array_equal(reward, other_reward)


def test_stepping_some_slots_at_a_time_gives_the_bits_of_stepping_all():
    actions, rng = random_actions(40, 6), np.random.default_rng(1)
    obs, reward = run(vel_pool(6), actions)
    pool = vel_pool(6, num_threads=2)
    for t, action in enumerate(actions):
        order = rng.permutation(6)
        for slots in (order[:1], order[1:4], order[4:]):
            result = pool.step(slots, action[slots])
            np.testing.assert_array_equal(result.next_obs, obs[t, slots])
            np.testing.assert_array_equal(result.reward, reward[t, slots])


def test_an_episode_depends_only_on_task_seed_and_actions():
    actions = random_actions(30, 5)
    obs, reward = run(vel_pool(5, seed=20), actions)
    pool = vel_pool(2, seed=90)
    run(pool, random_actions(10, 2, seed=3))
    slot = np.array([1])
    pool.reset(slot, seeds_from(24, 1), [TASK])
    for t in range(30):
        result = pool.step(slot, actions[t, 4:])
        np.testing.assert_array_equal(result.next_obs[0], obs[t, 4])
        assert result.reward[0] == reward[t, 4]
    assert not np.array_equal(obs[:, 3], obs[:, 4])


def test_restore_in_mid_episode_goes_on_bit_for_bit():
    actions = random_actions(60, 3)
    pool = vel_pool(3)
    run(pool, actions[:30])
    saved = pool.save()
    obs, reward = run(pool, actions[30:])
    for other in (pool, vel_pool(3, seed=50, num_threads=2)):
        other.restore(saved, [TASK] * 3)
        again_obs, again_reward = run(other, actions[30:])
        np.testing.assert_array_equal(obs, again_obs)
        np.testing.assert_array_equal(reward, again_reward)


def test_restore_keeps_the_step_count():
    pool = vel_pool(1, horizon=5)
    run(pool, random_actions(3, 1))
    saved = pool.save()
    other = vel_pool(1, horizon=5)
    other.restore(saved, [TASK])
    flags = [other.step(np.arange(1), np.zeros((1, 6))).truncated[0] for _ in range(2)]
    assert flags == [False, True]


def test_episodes_are_cut_at_the_horizon_and_never_terminate():
    pool = vel_pool(2, horizon=3)
    results = [pool.step(np.arange(2), a) for a in random_actions(3, 2)]
    assert [r.truncated.tolist() for r in results] == [[False] * 2, [False] * 2, [True] * 2]
    assert not any(r.terminated.any() or r.success.any() for r in results)


def test_velocity_tasks_are_drawn_from_the_range_and_test_tasks_are_held_out():
    config = HalfCheetahVelConfig(low=1.0, high=3.0, num_train_tasks=40, num_test_tasks=30)
    suite = half_cheetah_vel(config)
    train = [t.params["target"] for t in suite.train.tasks]
    test = [t.params["target"] for t in suite.test.tasks]
    assert (len(train), len(test)) == (40, 30)
    assert not set(train) & set(test)
    assert 1.0 <= min(train + test) < 1.3 and 2.7 < max(train + test) <= 3.0


def test_task_lists_depend_on_the_task_seed_only():
    first, again = (half_cheetah_vel(HalfCheetahVelConfig()) for _ in range(2))
    other = half_cheetah_vel(HalfCheetahVelConfig(task_seed=1))
    assert first.task_set_hash() == again.task_set_hash() != other.task_set_hash()


def test_fresh_training_tasks_never_repeat():
    suite = half_cheetah_vel(HalfCheetahVelConfig())
    assert suite.train.tasks is None
    drawn = suite.train.sample(np.random.default_rng(0), 100)
    assert len({t.params["target"] for t in drawn}) == 100


def test_direction_tasks_are_forwards_and_backwards():
    suite = half_cheetah_dir(HalfCheetahDirConfig())
    assert [t.params["direction"] for t in suite.train.tasks] == [1.0, -1.0]
    assert suite.test.tasks == suite.train.tasks


def test_trial_lengths_follow_the_usual_protocol():
    assert GOLDEN_SUITES["half_cheetah_vel"].spec.trial_episodes == 4
    assert GOLDEN_SUITES["half_cheetah_dir"].spec.trial_episodes == 2


@pytest.mark.parametrize(
    "values",
    [{"low": 2.0}, {"horizon": 0}, {"num_train_tasks": 0}, {"num_threads": -1}, {"task_seed": -1}],
)
def test_bad_velocity_settings_are_refused_by_name(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        HalfCheetahVelConfig(**values)


@pytest.mark.parametrize("name", GOLDEN_SUITES)
def test_single_steps_equal_the_golden_record(name):
    """1e-5 leaves room for rounding on other processors, none for a wrong sensor or constant."""
    pool = GOLDEN_SUITES[name].make_pool(1)
    for record in json.loads((GOLDEN / f"{name}.json").read_text()):
        restore_state(pool, record["state"], record["task"])
        result = pool.step(np.arange(1), np.array([record["action"]]))
        np.testing.assert_allclose(result.next_obs[0], record["obs"], rtol=1e-5, atol=1e-5)
        assert result.reward[0] == pytest.approx(record["reward"], abs=1e-5)


def restore_state(pool: MujocoPool, state: list[float], params: dict[str, float]) -> None:
    """Put a physical state (time, qpos, qvel) into the only slot."""
    saved = pool.save()
    saved["state"][0], saved["running"][0] = state, True
    pool.restore(saved, [Task("golden", 0, params)])


def record_golden(name: str, suite: Suite) -> None:
    """Write five single steps, ten apart, of an episode of random actions; run by hand only."""
    pool, records = suite.make_pool(1), []
    task = suite.test.tasks[1]
    pool.reset(np.arange(1), seeds_from(0, 1), [task])
    for t, action in enumerate(random_actions(50, 1)):
        state = pool.save()["state"][0]
        result = pool.step(np.arange(1), action)
        if t % 10 == 0:
            arrays = {"state": state, "action": action[0], "obs": result.next_obs[0]}
            record = {"task": dict(task.params)} | {k: v.tolist() for k, v in arrays.items()}
            records.append(record | {"reward": float(result.reward[0])})
    (GOLDEN / f"{name}.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    for golden_name, golden_suite in GOLDEN_SUITES.items():
        record_golden(golden_name, golden_suite)
