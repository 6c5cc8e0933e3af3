"""Every class of Meta-World against Meta-World's own environment objects, to the last bit."""

from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS, ML10_V3
from metaworld.policies import ENV_POLICY_MAP

from adaptax.envs.suites.metaworld.env import MetaWorldEnv
from adaptax.envs.suites.metaworld.fast import MODEL_FIELDS, _FastSteps, fast_class

NUM_STEPS, NUM_SCRIPTED = 200, 60


def original(name):
    """A new environment object of Meta-World's, made to draw its goals itself."""
    env = ALL_V3_ENVIRONMENTS[name]()
    env._set_task_called = True
    return env


def goal_of(env, seed):
    env._freeze_rand_vec, env.seeded_rand_vec = False, True
    env.seed(seed)
    env.reset()
    return env._last_rand_vec.copy()


def their_episode(name, goal, actions):
    """What a new object does after the first reset: observations, rewards and infos."""
    env = original(name)
    env._last_rand_vec = goal.copy()
    return env, record(env, env.reset()[0], actions)


def our_episode(env, name, goal, actions):
    return record(env, env.reset(options={"class": name, "rand_vec": goal})[0], actions)


def record(env, obs, actions):
    steps = [env.step(action) for action in actions]
    rewards = np.array([step[1] for step in steps])
    return np.stack([obs, *(s[0] for s in steps)]), rewards, [step[4] for step in steps]


def scripted(env, name, goal, rng):
    """Actions that grasp and push: Meta-World's own policy, which sees the goal, with noise."""
    policy = ENV_POLICY_MAP[name]()
    env._last_rand_vec = goal.copy()
    obs, _ = env.reset()
    actions = []
    for _ in range(NUM_SCRIPTED):
        seen = np.concatenate([obs[:-3], env._target_pos])
        action = policy.get_action(seen) + rng.normal(0.0, 0.1, 4)
        actions.append(np.clip(action, -1.0, 1.0).astype(np.float32))
        obs = env.step(actions[-1])[0]
    return actions


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours[:2], theirs[:2], strict=True)) and (
        ours[2] == theirs[2]
    )


IN_ML10 = [*ML10_V3["train"], *ML10_V3["test"]]
CLASSES = [
    pytest.param(name, marks=() if name in IN_ML10 else pytest.mark.slow)
    for name in ALL_V3_ENVIRONMENTS
]


@pytest.mark.filterwarnings("ignore:Constant")
@pytest.mark.parametrize("name", CLASSES)
def test_an_episode_is_that_of_a_new_object_whatever_came_before(name):
    rng = np.random.default_rng(len(name))
    untouched = original(name)
    fields = {field: getattr(untouched.model, field).copy() for field in model_fields(untouched)}
    one, other = goal_of(untouched, 1), goal_of(untouched, 2)
    skilled = scripted(untouched, name, other, rng)
    random = rng.uniform(-1.0, 1.0, (NUM_STEPS, 4)).astype(np.float32)
    theirs, on_one = their_episode(name, one, random)
    _, on_other = their_episode(name, other, skilled)
    env = MetaWorldEnv()
    assert same(our_episode(env, name, one, random), on_one)
    assert same(our_episode(env, name, other, skilled), on_other)
    our_episode(env, name, other, random[:30])  # left in the middle, then the same goal
    assert same(our_episode(env, name, other, skilled), on_other)
    assert same(our_episode(env, name, one, random), on_one)
    changed = {f for f in fields if not np.array_equal(fields[f], getattr(theirs.model, f))}
    assert changed <= set(MODEL_FIELDS)


@pytest.mark.parametrize("name", ["push-v3", "door-open-v3"])
def test_lanes_of_a_class_share_its_model_and_nothing_else(name):
    goals = [goal_of(original(name), seed) for seed in (1, 2)]
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 4)).astype(np.float32)
    lanes = [MetaWorldEnv(), MetaWorldEnv()]
    seen = [
        [env.reset(options={"class": name, "rand_vec": goal})[0]]
        for env, goal in zip(lanes, goals, strict=True)
    ]
    rewards = [[], []]
    for action in actions:
        for k, env in enumerate(lanes):
            obs, reward, *_ = env.step(action)
            seen[k].append(obs)
            rewards[k].append(reward)
    for k, goal in enumerate(goals):
        _, alone = their_episode(name, goal, actions)
        np.testing.assert_array_equal(seen[k], alone[0])
        np.testing.assert_array_equal(rewards[k], alone[1])
    assert lanes[0].model is lanes[1].model
    assert lanes[0].data is not lanes[1].data


def model_fields(env):
    """Every array of the model that is free of NaN."""
    names = (name for name in dir(env.model) if not name.startswith("_"))
    arrays = {name: getattr(env.model, name) for name in names}
    return [n for n, x in arrays.items() if isinstance(x, np.ndarray) and np.array_equal(x, x)]


@pytest.mark.parametrize("name", IN_ML10)
def test_every_faster_step_is_in_use_with_code_of_its_own(name):
    fast, other = (fast_class(ALL_V3_ENVIRONMENTS[each]) for each in (name, "coffee-pull-v3"))
    assert fast_class(ALL_V3_ENVIRONMENTS[name]) is fast
    for key, value in vars(_FastSteps).items():
        if isinstance(value, FunctionType | property):
            ours, theirs, source = (
                code_of(x) for x in (getattr(fast, key), getattr(other, key), value)
            )
            assert ours == theirs == source
            assert ours is not theirs


def code_of(method):
    """The code of a method or of a property's."""
    return getattr(method, "fget", method).__code__
