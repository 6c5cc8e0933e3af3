"""The learner: iterations in memory, which leave nothing on disk."""

from __future__ import annotations

import pytest
from small import SMALL
from toys import cliff_suite, fingerprint

from adaptax.core.rng import named_key
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.learner import Learner
from adaptax.experiment.trainer_config import TrainerConfig
from adaptax.sampling.sampler import Sampler


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes learners of one seed, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # How many iterations go into a call is then not the clock's.
    monkeypatch.setattr("adaptax.experiment.learner.MOST_SECONDS", 1e6)
    suite = cliff_suite()
    algorithm = make_algorithm("ppo", suite.spec, **SMALL["ppo"])

    def learner() -> Learner:
        config = TrainerConfig("none", evaluation_interval=None)
        made = Learner(config, algorithm, Sampler(suite, suite.train, 0, "train"))
        made.begin(algorithm.initial_state(named_key(0, "init")))
        return made

    return learner


def go_on(learner: Learner, num: int) -> list[dict]:
    """Train up to an iteration; the rows but for what they took."""
    limits, rows = {"iteration": num}, []
    while not learner.has_reached(limits):
        rows += learner.some_iterations(limits, learner.sampler.save())
    return [{**row, "seconds": None} for row in rows]


def test_what_it_saved_goes_on_as_if_nothing_had_been(make, tmp_path):
    whole, first, second = make(), make(), make()
    rows = go_on(whole, 6)
    before = go_on(first, 3)
    second.take_up(3, first.saved(first.sampler.save()), episodes=True)
    assert before + go_on(second, 6) == rows
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert fingerprint((second.state, second.sampler.save())) == fingerprint(
        (whole.state, whole.sampler.save())
    )
    assert list(tmp_path.iterdir()) == []


def test_it_begins_anew_as_at_first(make):
    learner = make()
    state = learner.state
    rows = go_on(learner, 3)
    learner.begin(state)
    assert learner.last == {} and learner.iteration == 0
    assert go_on(learner, 3) == rows


@pytest.mark.parametrize("one_by_one", [False, True])
def test_several_in_a_call_are_as_many_as_there_is_room_for(make, one_by_one):
    learner = make()
    go_on(learner, 2)
    learner.one_by_one = one_by_one
    rows = learner.some_iterations({"iteration": 5}, learner.sampler.save())
    assert len(rows) == (1 if one_by_one else 3)


def test_how_many_iterations_are_made_at_once_changes_no_row(make):
    """Rewards with decimals, and episodes that last over several iterations."""
    suite = make_suite("pendulum")
    settings = {"hidden_sizes": [4], "num_lanes": 2, "num_steps": 60, "num_minibatches": 1}
    algorithm = make_algorithm("ppo", suite.spec, **settings)

    def rows(*, one_by_one: bool) -> list[dict]:
        config = TrainerConfig("none", evaluation_interval=None, snapshot_interval=100)
        learner = Learner(config, algorithm, Sampler(suite, suite.train, 0, "train"))
        learner.begin(algorithm.initial_state(named_key(0, "init")))
        learner.one_by_one = one_by_one
        return go_on(learner, 12)

    assert rows(one_by_one=False) == rows(one_by_one=True)
