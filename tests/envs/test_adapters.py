"""gymnax and XLand-MiniGrid as suites: what they give is what these packages' own steps give."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.rng import named_generator
from adaptax.envs.env import episode_key
from adaptax.envs.suites.adapters.gymnax_ids import suite_of
from adaptax.experiment import cli
from adaptax.experiment.build import make_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler


def rollout_of(suite, num_lanes=2, num_episodes=1):
    sampler = Sampler(suite, suite.train, 0, "train")
    actor = UniformActor(suite.spec.action)
    return sampler.episodes(actor, sampler.sample_tasks(1), num_lanes, num_episodes)


@pytest.mark.parametrize(
    ("name", "needed", "extra"),
    [("gymnax:CartPole-v1", "gymnax", "gymnax"), ("xland:R1-9x9", "xminigrid", "xland")],
)
def test_a_package_that_is_not_there_is_a_line(name, needed, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, needed, None)
    with pytest.raises(ConfigError, match=rf"{needed}.*'adaptax\[{extra}\]'") as refused:
        make_suite(name)
    assert "\n" not in str(refused.value)


def test_a_wrong_id_is_answered_with_the_nearest():
    pytest.importorskip("gymnax")
    with pytest.raises(ConfigError, match="did you mean 'CartPole-v1'"):
        make_suite("gymnax:CartPol-v1")


def test_a_horizon_beyond_the_time_limit_is_refused():
    pytest.importorskip("gymnax")
    with pytest.raises(
        ConfigError, match="horizon 201 is over the time limit of gymnax:Pendulum-v1"
    ):
        make_suite("gymnax:Pendulum-v1", horizon=201)


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "PointRobot-misc"]
)
def test_an_episode_is_what_gymnax_steps(env_id):
    gymnax = pytest.importorskip("gymnax")
    suite = make_suite(f"gymnax:{env_id}", horizon=40)
    env, params = gymnax.make(env_id)
    rollout = rollout_of(suite, num_lanes=1)
    keys = jax.random.split(jax.random.key(3), 41)
    own = suite.make_pool(1).env
    obs, state = jax.jit(env.reset_env)(keys[0], params)
    ours, seen = jax.jit(own.reset)(keys[0], {})
    step_theirs, step_ours = jax.jit(env.step_env), jax.jit(own.step)
    np.testing.assert_array_equal(seen, jnp.ravel(obs))
    for t in range(1, 41):
        action = rollout.action[0, 0, t - 1]
        native = {"Pendulum-v1": 2.0, "PointRobot-misc": 0.1}.get(env_id, 1) * action
        obs, state, reward, done, _ = step_theirs(keys[t], state, native, params)
        ours, step = step_ours(keys[t], ours, action, {})
        np.testing.assert_allclose(step.next_obs, jnp.ravel(obs), atol=1e-6)
        assert float(step.reward) == pytest.approx(float(jnp.squeeze(reward)), abs=1e-5)
        assert bool(step.terminated) == bool(done)
        if done:
            break
    picture = (10, 10, 4) if env_id == "Breakout-MinAtar" else None
    assert suite.spec.picture == picture


def test_a_time_limit_of_gymnax_truncates():
    pytest.importorskip("gymnax")
    rollout = rollout_of(make_suite("gymnax:Pendulum-v1"))
    assert rollout.reward.shape[-1] == 200
    assert np.all(rollout.truncated[..., -1]) and not np.any(rollout.terminated)
    ends = rollout_of(make_suite("gymnax:CartPole-v1"))
    assert np.all(np.any(ends.terminated, -1)) and not np.any(ends.truncated)


@pytest.mark.parametrize("name", ["Asterix", "Breakout", "Freeway", "SpaceInvaders"])
def test_a_time_limit_that_an_environment_writes_down_truncates_too(name):
    gymnax = pytest.importorskip("gymnax")
    env, params = gymnax.make(f"{name}-MinAtar")
    rollout = rollout_of(suite_of(name, env, params.replace(max_steps_in_episode=4)))
    assert rollout.reward.shape[-1] == 4
    assert np.all(rollout.truncated[..., -1]) and not np.any(rollout.terminated)


SMALL_XLAND = {"num_train_tasks": 6, "num_test_tasks": 3, "horizon": 60}


@pytest.mark.slow
def test_an_episode_is_what_xland_steps():
    xminigrid = pytest.importorskip("xminigrid")
    from xminigrid.types import RuleSet

    suite = make_suite("xland:R1-9x9", **SMALL_XLAND)
    env, params = xminigrid.make("XLand-MiniGrid-R1-9x9")
    task = suite.train.tasks[0].params
    rules = RuleSet(**{name: jnp.asarray(x, jnp.uint8) for name, x in task.items()})
    params = params.replace(max_steps=60, ruleset=rules)
    key = episode_key(jnp.uint32(5), 0)
    own = suite.make_pool(1).env
    timestep = jax.jit(env.reset)(params, jax.random.key_data(key))
    state, obs = jax.jit(own.reset)(key, task)
    rng = np.random.default_rng(0)
    step_theirs, step_ours = jax.jit(env.step), jax.jit(own.step)
    for _ in range(50):
        view = timestep.observation
        hot = np.concatenate([np.eye(13)[view[..., 0]], np.eye(12)[view[..., 1]]], -1)
        np.testing.assert_array_equal(obs.reshape(5, 5, 25), hot)
        action = jnp.int32(rng.integers(6))
        timestep = step_theirs(params, timestep, action)
        state, step = step_ours(key, state, action, task)
        obs = step.next_obs
        assert float(step.reward) == float(timestep.reward)
        assert bool(step.terminated) == (float(timestep.discount) == 0)


def test_tasks_of_xland_can_be_solved_by_their_rules():
    pytest.importorskip("xminigrid")
    from adaptax.envs.suites.adapters.xland import drawn_task

    for seed in range(30):
        rng = named_generator(seed, "a test")
        task = drawn_task(rng, num_rules=2, num_distractors=1)
        assert {k: v.shape[0] for k, v in task.items()} | {"goal": 0} == {
            "goal": 0,
            "rules": 2,
            "init_tiles": 5,
        }
        there = {tuple(x) for x in task["init_tiles"].tolist() if tuple(x) != (0, 0)}
        for rule in task["rules"][::-1].tolist():
            objects = pairs(rule[1:])
            inputs, product = objects[:-1], objects[-1]
            assert set(inputs) <= there  # all that a rule needs is there, or was made before
            there = (there - set(inputs)) | {product}
        assert set(pairs(task["goal"][1:].tolist())) <= there


def pairs(numbers: list[int]) -> list[tuple[int, int]]:
    """Tile and colour of each object in a goal or rule; what is padding is left out."""
    found = [(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=False)]
    return [pair for pair in found if pair != (0, 0)]


def test_no_task_of_xland_is_drawn_twice_by_another_order():
    pytest.importorskip("xminigrid")
    from xminigrid.core.goals import AgentNearGoal, TileNearGoal
    from xminigrid.core.rules import EmptyRule, TileNearRule

    from adaptax.envs.suites.adapters.xland import _meant

    a, b, c = (jnp.array(tile) for tile in ([4, 2], [3, 1], [3, 5]))

    def meant(goal, *rules, tiles=(a, b)):
        arrays = {"goal": goal.encode(), "init_tiles": jnp.stack(tiles)}
        return _meant(arrays | {"rules": jnp.stack([rule.encode() for rule in rules])})

    near, none = TileNearGoal(a, b), EmptyRule()
    assert meant(near, none) == meant(TileNearGoal(b, a), none, tiles=(b, a))
    assert meant(near, none) not in (meant(TileNearGoal(a, c), none), meant(AgentNearGoal(a), none))
    made = TileNearRule(a, b, c), TileNearRule(b, c, a)
    assert meant(near, *made) == meant(near, TileNearRule(c, b, a), TileNearRule(b, a, c))
    assert meant(near, *made) != meant(near, made[0], TileNearRule(b, a, c))


@pytest.mark.slow
def test_test_tasks_of_xland_are_new_and_rollouts_reach_goals():
    pytest.importorskip("xminigrid")
    suite = make_suite("xland:R1-9x9", **{**SMALL_XLAND, "num_rules": 0})
    assert suite.held_out
    assert (len(suite.train.tasks), len(suite.test.tasks)) == (6, 3)
    many = make_suite("xland:R1-9x9", num_rules=0, num_train_tasks=300, num_test_tasks=30)
    asked = [{tuple(t.params["goal"].tolist()) for t in d.tasks} for d in (many.train, many.test)]
    assert len(asked[0]) > 30 and not asked[0] & asked[1]
    rollout = rollout_of(suite, num_lanes=32)
    reached = np.asarray(rollout.terminated)
    assert reached.any()
    assert np.all((np.asarray(rollout.reward) > 0) == reached)


def test_a_wrong_layout_is_a_line(capsys):
    pytest.importorskip("xminigrid")
    with pytest.raises(SystemExit):
        cli.main(["train", "nop", "xland:R1-9x8"])
    out, err = capsys.readouterr()
    assert out == "" and "did you mean 'R1-9x9'" in err
