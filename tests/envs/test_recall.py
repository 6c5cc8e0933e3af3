import jax
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Discrete
from adaptax.envs.suites.recall import RecallConfig, recall


def played(suite, action, seed=0):
    """Observations [T + 1, O], rewards, successes and ends of one episode of cue 2."""
    task, pool, slot = suite.test.tasks[2], suite.make_pool(1), np.arange(1)
    seen, rows = [pool.reset(slot, np.full(1, seed, np.uint32), [task])[0]], []
    for _ in range(suite.spec.horizon):
        step = pool.step(slot, np.array([action], np.int32))
        seen.append(np.asarray(step.next_obs)[0])
        rows.append((step.reward[0], step.info["success"][0], step.terminated[0]))
    return (np.array(seen), *map(np.array, zip(*rows, strict=True)))


def test_spec():
    spec = recall(RecallConfig()).spec
    assert (spec.observation_size, spec.action, spec.horizon) == (6, Discrete(4), 250)
    assert (spec.trial_episodes, spec.horizon_terminates, spec.has_success) == (1, True, True)


@pytest.mark.parametrize(("num_questions", "asked"), [(1, [11]), (2, [5, 11]), (3, [2, 5, 11])])
def test_the_cue_is_shown_first_and_asked_for_twice_as_late_each_time(num_questions, asked):
    suite = recall(RecallConfig(horizon=12, num_questions=num_questions))
    seen, rewards, success, ends = played(suite, action=2)
    np.testing.assert_array_equal(seen[0], [0, 0, 1, 0, 1, 0])
    question = np.isin(np.arange(12), asked)
    np.testing.assert_array_equal(seen[:12, 5], question)
    np.testing.assert_array_equal(seen[1:, 4], 0)
    np.testing.assert_array_equal(seen[:12, :4].sum(-1), ~question)
    np.testing.assert_array_equal(rewards, question)
    np.testing.assert_array_equal(success, question)
    np.testing.assert_array_equal(ends, np.arange(12) == 11)


def test_another_answer_pays_nothing():
    _, rewards, success, _ = played(recall(RecallConfig(horizon=12, num_questions=2)), action=1)
    assert not rewards.any()
    assert not success.any()


def test_distracting_symbols_are_all_alike_and_tell_nothing_of_the_cue():
    config = RecallConfig(num_questions=1)
    seen, *_ = played(recall(config), action=0)
    other, *_ = played(recall(config), action=0, seed=1)
    np.testing.assert_allclose(seen[1:249, :4].mean(0), 0.25, atol=0.1)
    assert np.any(seen != other)
    assert jax.tree.map(np.shape, recall(RecallConfig()).test.tasks[0].params) == {"cue": ()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_cues": 1}, "num_cues must be at least 2, not 1"),
        ({"num_questions": 0}, "num_questions must be greater than 0"),
        ({"horizon": 31, "num_questions": 5}, "horizon 31 must be at least 32 for num_questions 5"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        RecallConfig(**settings)
