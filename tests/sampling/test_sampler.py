import functools
from dataclasses import dataclass, replace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_end import DRIFTS, RandomEndEnv, random_end, trial_actor

from adaptax.core.errors import ConfigError, SnapshotError
from adaptax.core.experience import Rollout
from adaptax.core.snapshot import Snapshots
from adaptax.core.spec import ActionSpace, Continuous, Discrete
from adaptax.envs.suite import Suite
from adaptax.envs.suites.gym import gym_suite
from adaptax.envs.task import TaskRange
from adaptax.experiment.build import make_suite
from adaptax.sampling.exploration import UniformActor
from adaptax.sampling.sampler import Sampler

SPACES = [Continuous(2), Discrete(3)]
LANES, EPISODES, STEPS, HORIZON = 2, 2, 7, 5
both_loops = pytest.mark.parametrize("stepped", [False, True], ids=["compiled", "host"])

actor_for = functools.cache(trial_actor)


@functools.cache
def suite(space: ActionSpace, stepped: bool) -> Suite:
    return random_end(RandomEndEnv(space), stepped=stepped)


def new_sampler(space: ActionSpace = SPACES[0], stepped: bool = False, seed: int = 0) -> Sampler:
    family = suite(space, stepped)
    return Sampler(family, family.train, seed, "train")


def episodes(sampler: Sampler) -> Rollout:
    actor = actor_for(sampler.spec.action)
    return sampler.episodes(actor, sampler.suite.train.tasks, LANES, EPISODES)


def steps(sampler: Sampler) -> Rollout:
    actor = actor_for(sampler.spec.action)
    return sampler.steps(actor, sampler.suite.train.tasks, LANES, STEPS)


@functools.cache
def rollouts(space: ActionSpace, stepped: bool) -> dict[str, Rollout]:
    """Whole episodes, steps, and the steps that follow them, from one sampler."""
    sampler = new_sampler(space, stepped)
    return {"episodes": episodes(sampler), "steps": steps(sampler), "more steps": steps(sampler)}


def named_leaves(tree) -> dict[str, np.ndarray]:
    found = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in found}


def assert_equal(got, expected, atol: float = 0.0) -> None:
    got, expected = named_leaves(got), named_leaves(expected)
    assert got.keys() == expected.keys()
    for name in got:
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=atol, err_msg=name)


def differ(first: Rollout, second: Rollout) -> bool:
    return not np.allclose(first.obs[:, :, 0], second.obs[:, :, 0])


def ends(rollout: Rollout) -> np.ndarray:
    return np.asarray(rollout.terminated | rollout.truncated)


@pytest.mark.parametrize("kind", ["episodes", "steps", "more steps"])
def test_compiled_engine_equals_host_engine(kind):
    compiled, stepped = rollouts(SPACES[0], False)[kind], rollouts(SPACES[0], True)[kind]
    assert_equal(compiled, stepped, atol=1e-6)


def test_compiled_engine_equals_host_engine_with_discrete_actions():
    compiled, stepped = (episodes(new_sampler(SPACES[1], stepped)) for stepped in (False, True))
    assert compiled.action.dtype == stepped.action.dtype == np.int32
    assert_equal(compiled, stepped, atol=1e-6)


@pytest.mark.parametrize("kind", ["episodes", "steps"])
def test_both_kinds_of_ends_occur_in_the_test_data(kind):
    rollout = rollouts(SPACES[0], False)[kind]
    assert int(rollout.terminated.sum()) > 2 and int(rollout.truncated.sum()) > 1


@both_loops
def test_every_lane_has_exactly_the_episodes_asked_for(stepped):
    rollout = rollouts(SPACES[0], stepped)["episodes"]
    np.testing.assert_array_equal(ends(rollout).sum(-1), np.full((3, LANES), EPISODES))


@both_loops
def test_episodes_cut_at_a_number_of_steps_are_the_first_steps_of_whole_ones(stepped):
    whole = rollouts(SPACES[0], stepped)["episodes"]
    sampler, num = new_sampler(stepped=stepped), HORIZON + 1
    cut = sampler.episodes(
        actor_for(SPACES[0]), sampler.suite.train.tasks, LANES, EPISODES, most_steps=num
    )
    assert cut.valid.shape[-1] == num and ends(cut).sum(-1).min() < EPISODES
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid"):
        expected = np.asarray(getattr(whole, name))[:, :, :num]
        np.testing.assert_allclose(getattr(cut, name), expected, rtol=0, atol=1e-6, err_msg=name)
    assert sampler.num_steps == np.sum(cut.valid) and sampler.num_episodes == ends(cut).sum()
    assert_equal(episodes(sampler), episodes(after_a_call(stepped)))


def after_a_call(stepped: bool) -> Sampler:
    sampler = new_sampler(stepped=stepped)
    episodes(sampler)
    return sampler


@both_loops
def test_valid_steps_are_those_up_to_the_last_end(stepped):
    rollout = rollouts(SPACES[0], stepped)["episodes"]
    length = EPISODES * HORIZON - np.argmax(ends(rollout)[..., ::-1], axis=-1)
    np.testing.assert_array_equal(
        rollout.valid, np.arange(rollout.valid.shape[-1]) < length[..., None]
    )
    assert len(set(length.ravel())) > 1


@both_loops
def test_padding_is_zero(stepped):
    rollout = rollouts(SPACES[0], stepped)["episodes"]
    padded = ~np.asarray(rollout.valid)
    leaves = [x for x in jax.tree.leaves(rollout) if x.shape[:3] == padded.shape]
    assert max(float(np.abs(np.asarray(x)[padded]).max()) for x in leaves) == 0.0


@both_loops
def test_no_episode_is_longer_than_the_horizon(stepped):
    rollout = rollouts(SPACES[0], stepped)["episodes"]
    first = np.argmax(ends(rollout), axis=-1) + 1
    assert first.max() == HORIZON


@both_loops
@pytest.mark.parametrize("kind", ["episodes", "steps"])
def test_observations_follow_one_another_but_across_resets(kind, stepped):
    rollout = rollouts(SPACES[0], stepped)[kind]
    obs, next_obs = np.asarray(rollout.obs), np.asarray(rollout.next_obs)
    same = (obs[:, :, 1:] == next_obs[:, :, :-1]).all(-1)
    following = np.asarray(rollout.valid)[:, :, 1:]
    np.testing.assert_array_equal(same[following], ~ends(rollout)[:, :, :-1][following])


@both_loops
def test_next_obs_at_an_end_is_where_the_step_led(stepped):
    rollout = rollouts(SPACES[0], stepped)["episodes"]
    moved = (np.asarray(rollout.next_obs) - np.asarray(rollout.obs))[..., 0]
    error = (moved - np.array(DRIFTS)[:, None, None])[ends(rollout)]
    assert np.abs(error).max() < 0.06


@both_loops
def test_every_member_acts_in_its_own_task(stepped):
    rollout = rollouts(SPACES[0], stepped)["steps"]
    moved = (np.asarray(rollout.next_obs) - np.asarray(rollout.obs))[..., 0]
    np.testing.assert_allclose(moved.mean((1, 2)), DRIFTS, atol=0.02)


@both_loops
def test_second_call_goes_on_where_the_first_stopped(stepped):
    found = rollouts(SPACES[0], stepped)
    before, after = found["steps"], found["more steps"]
    goes_on = ~ends(before)[:, :, -1]
    assert 0 < goes_on.sum() < goes_on.size
    same = (np.asarray(after.obs)[:, :, 0] == np.asarray(before.next_obs)[:, :, -1]).all(-1)
    np.testing.assert_array_equal(same, goes_on)


def test_two_calls_give_the_steps_of_one():
    found = rollouts(SPACES[0], True)
    sampler = new_sampler(stepped=True)
    episodes(sampler)
    actor = actor_for(SPACES[0])
    whole = sampler.steps(actor, sampler.suite.train.tasks, LANES, 2 * STEPS)
    parts = [found["steps"], found["more steps"]]
    assert_equal(whole.reward, np.concatenate([p.reward for p in parts], axis=2))


def test_steps_start_afresh_on_other_tasks():
    sampler = new_sampler(stepped=True)
    before = steps(sampler)
    tasks = sampler.suite.train.tasks
    actor = actor_for(SPACES[0])
    after = sampler.steps(actor, (tasks[0], tasks[0], tasks[1]), LANES, STEPS)
    assert not (np.asarray(after.obs)[:, :, 0] == np.asarray(before.next_obs)[:, :, -1]).any()


@both_loops
def test_counters_count_steps_and_ended_episodes(stepped):
    sampler = new_sampler(stepped=stepped)
    whole, part = episodes(sampler), steps(sampler)
    assert sampler.num_steps == int(whole.valid.sum()) + 3 * LANES * STEPS
    assert sampler.num_episodes == 3 * LANES * EPISODES + int(ends(part).sum())


@both_loops
def test_restored_sampler_goes_on_in_mid_episode_bit_for_bit(stepped):
    sampler, other = new_sampler(stepped=stepped), new_sampler(stepped=stepped)
    steps(sampler)
    other.restore(sampler.save())
    expected = [steps(sampler), episodes(sampler)]
    assert_equal([steps(other), episodes(other)], expected)
    assert (other.num_steps, other.num_episodes) == (sampler.num_steps, sampler.num_episodes)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Counting:
    """Uniform actions; the carry is a list of trees, as any tree may be one."""

    uniform: UniformActor

    def begin(self, num_members, num_lanes, key):
        zeros = jnp.zeros((num_members, num_lanes))
        return [{"steps": zeros, "ends": zeros}, zeros]

    def act(self, carry, obs, key):
        action, _, extras = self.uniform.act((), obs, key)
        return action, carry, extras

    def observe(self, carry, step, key):
        counted, rewards = carry
        ended = step.terminated | step.truncated
        counted = {"steps": counted["steps"] + 1, "ends": counted["ends"] + ended}
        return [counted, rewards + step.reward]


@both_loops
def test_a_carry_may_be_a_list_and_is_one_after_a_restart(stepped):
    actor = Counting(UniformActor(SPACES[0]))
    sampler, other = new_sampler(stepped=stepped), new_sampler(stepped=stepped)
    tasks = sampler.suite.train.tasks
    sampler.steps(actor, tasks, LANES, STEPS)
    other.restore(sampler.save())
    rollout = sampler.steps(actor, tasks, LANES, STEPS)
    assert_equal(other.steps(actor, tasks, LANES, STEPS), rollout)
    counted, _ = rollout.final_carry
    np.testing.assert_array_equal(counted["steps"], 2 * STEPS)


def test_restored_sampler_can_be_saved_before_it_goes_on():
    sampler, other, third = new_sampler(), new_sampler(), new_sampler()
    steps(sampler)
    other.restore(sampler.save())
    third.restore(other.save())
    assert_equal(steps(third), steps(sampler))


def test_saved_state_is_not_changed_by_going_on():
    sampler, other = new_sampler(stepped=True), new_sampler(stepped=True)
    steps(sampler)
    saved = sampler.save()
    expected = steps(sampler)
    other.restore(saved)
    assert_equal(steps(other), expected)


def test_sampler_comes_back_from_a_snapshot_bit_for_bit(tmp_path):
    sampler, other = new_sampler(), new_sampler()
    steps(sampler)
    snapshots = Snapshots(tmp_path)
    snapshots.save(0, {"sampler": sampler.save()})
    other.restore(snapshots.load(0)["sampler"])
    assert_equal(steps(other), steps(sampler))


def test_a_listed_task_comes_back_from_a_snapshot_as_it_was_given(tmp_path):
    """A snapshot has lists where it has tuples, and an environment may compare."""
    seen = []

    class Seeing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            seen.append(options["goal"])
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, {}

    suite = gym_suite("seeing", Seeing, train=[{"goal": (1, 0)}], horizon=4)
    samplers = [Sampler(suite, suite.train, 0, "train") for _ in range(2)]
    actor, tasks = UniformActor(suite.spec.action), suite.train.tasks
    samplers[0].steps(actor, tasks, 1, 3)
    Snapshots(tmp_path).save(0, samplers[0].save())
    samplers[1].restore(Snapshots(tmp_path).load(0))
    samplers[1].steps(actor, tuple(replace(task) for task in tasks), 1, 9)
    assert len(seen) > 4
    assert {type(goal) for goal in seen} == {tuple}


@both_loops
def test_saved_arrays_of_other_shapes_are_refused(stepped, tmp_path):
    """As somebody's file may have them; each one that has an axis is made shorter."""
    sampler = new_sampler(stepped=stepped)
    steps(sampler)
    saved = named_leaves({key: sampler.save()[key] for key in ("cursor", "pool")})
    of_lanes = [name for name, x in saved.items() if np.ndim(x) and "tasks" not in name]
    assert len(of_lanes) > 6
    for name in of_lanes:
        forged = sampler.save()
        *path, last = (part.strip("[]'") for part in name.replace("][", "]|[").split("|"))
        part = functools.reduce(lambda tree, key: tree[key], path, forged)
        part[last] = part[last][:-1]
        with pytest.raises(SnapshotError), Snapshots(tmp_path).reading(0):
            new_sampler(stepped=stepped).restore(forged)


@both_loops
def test_restart_repeats_the_first_calls(stepped):
    sampler = new_sampler(stepped=stepped)
    first = (sampler.sample_tasks(2), episodes(sampler), steps(sampler))
    sampler.restart()
    again = (sampler.sample_tasks(2), episodes(sampler), steps(sampler))
    assert again[0] == first[0]
    assert_equal(again[1:], first[1:])


def test_data_of_a_call_do_not_depend_on_what_the_calls_before_did():
    sampler, other = new_sampler(), new_sampler()
    episodes(sampler)
    other.sample_tasks(1)
    steps(other)
    steps(other)
    assert_equal(episodes(other), episodes(sampler))


def test_data_do_not_depend_on_another_sampler_of_the_suite():
    sampler, other = new_sampler(), new_sampler(seed=9)
    first = episodes(sampler)
    steps(other)
    alone = new_sampler()
    expected = [episodes(alone), steps(alone)]
    assert_equal([first, steps(sampler)], expected)


def test_every_call_seed_and_stream_has_data_of_its_own():
    sampler = new_sampler()
    family = sampler.suite
    first = episodes(sampler)
    others = [sampler, new_sampler(seed=1), Sampler(family, family.train, 0, "test")]
    assert all(differ(first, episodes(other)) for other in others)


def test_lanes_and_episodes_differ_from_one_another():
    starts = np.asarray(rollouts(SPACES[0], False)["episodes"].obs)[:, :, 0].reshape(-1, 2)
    assert len(np.unique(starts, axis=0)) == 3 * LANES


def test_each_listed_task_comes_once_in_a_cycle():
    sampler = new_sampler()
    drawn = [task.index for _ in range(6) for task in sampler.sample_tasks(2)]
    assert [sorted(drawn[i : i + 3]) for i in range(0, 12, 3)] == [[0, 1, 2]] * 4


def test_tasks_come_in_a_new_order_in_every_cycle():
    sampler = new_sampler()
    orders = {tuple(task.index for task in sampler.sample_tasks(3)) for _ in range(12)}
    assert len(orders) > 2


def test_tasks_drawn_do_not_depend_on_the_size_of_the_batches():
    one, other = new_sampler(), new_sampler()
    first = [task for _ in range(3) for task in one.sample_tasks(4)]
    assert first == [task for _ in range(2) for task in other.sample_tasks(6)]


def test_tasks_from_a_continuum_never_repeat():
    family = suite(SPACES[0], False)
    continuum = TaskRange("drift", lambda rng: {"drift": rng.uniform()})
    sampler = Sampler(family, continuum, 0, "train")
    drawn = [task.params["drift"] for n in (3, 1, 4) for task in sampler.sample_tasks(n)]
    assert len(set(drawn)) == 8


def test_task_cursor_is_saved_and_restored():
    sampler, other = new_sampler(), new_sampler()
    sampler.sample_tasks(2)
    other.restore(sampler.save())
    assert other.sample_tasks(5) == sampler.sample_tasks(5)


@pytest.mark.parametrize("suite", ["point-goal", "gym:CartPole-v1"])
def test_what_can_never_fit_into_memory_is_refused_before_anything_is_drawn(suite, monkeypatch):
    monkeypatch.setattr("adaptax.core.devices.memory_size", lambda: 16 << 30)
    made = make_suite(suite)
    sampler = Sampler(made, made.train, 0, "huge")
    actor = UniformActor(made.spec.action)
    (task,) = sampler.sample_tasks(1)
    with pytest.raises(ConfigError, match="1,000,000,000 tasks at a time: at least 466 GiB, of"):
        sampler.sample_tasks(10**9)
    for ask in (sampler.episodes, sampler.steps):
        with pytest.raises(ConfigError, match=r"1 tasks x 1,000,000,000 lanes x .*fewer tasks"):
            ask(actor, (task,), 10**9, 10)


def test_an_actor_that_is_no_pytree_is_refused_by_name():
    class Mine(UniformActor):
        """Not decorated, as its base is."""

    suite = make_suite("point-goal")
    sampler = Sampler(suite, suite.train, 0, "train")
    with pytest.raises(ConfigError, match="Mine is no pytree of JAX's: decorate its class"):
        sampler.steps(Mine(suite.spec.action), sampler.sample_tasks(1), 1, 1)
