"""What an environment's spec takes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Continuous, Discrete, EnvSpec, MultiDiscrete, spec_to_dict


@pytest.mark.parametrize(
    ("sizes", "settings", "message"),
    [
        ((2.0, Discrete(3), 5), {}, "observation_size must be a whole number, not 2.0"),
        (("2", Discrete(3), 5), {}, "observation_size must be a whole number, not '2'"),
        ((2, 3, 5), {}, "action must be a Continuous, Discrete or MultiDiscrete, not 3"),
        ((2, Discrete(3), 2.5), {}, "horizon must be a whole number of steps, not 2.5"),
        (
            (2, Discrete(3), 5),
            {"trial_episodes": 2.5},
            "trial_episodes must be a whole number",
        ),
        (
            (2, Discrete(3), 5),
            {"trial_episodes": "2"},
            "trial_episodes must be a whole number",
        ),
    ],
)
def test_sizes_that_are_no_whole_numbers_are_refused(sizes, settings, message):
    with pytest.raises(ConfigError, match=message):
        EnvSpec(*sizes, **settings)


@pytest.mark.parametrize("size", [2.0, "2", None])
@pytest.mark.parametrize("kind", [Continuous, Discrete])
def test_sizes_of_actions_that_are_no_whole_numbers_are_refused(kind, size):
    with pytest.raises(ConfigError, match="size of an action must be a whole number, not"):
        kind(size)


def test_numpys_integers_can_be_written_down():
    two = np.int64(2)
    actions = Continuous(two), Discrete(two), MultiDiscrete([two, 3])
    specs = [EnvSpec(two, action, two, two) for action in actions]
    assert [json.loads(json.dumps(spec_to_dict(spec)))["horizon"] for spec in specs] == [2, 2, 2]
    assert specs[2].action == MultiDiscrete((2, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"info_names": "velocity"}, "info_names must be several names, not 'velocity'"),
        ({"info_names": 3}, "info_names must be several names, not 3"),
        ({"picture": 3}, r"picture must be \(height, width, channels\), not 3"),
        ({"picture": (2, 2)}, r"picture must be \(height, width, channels\)"),
        ({"picture": (2, 2, 2)}, "have not 4 numbers"),
    ],
)
def test_what_describes_no_environment_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        EnvSpec(4, Discrete(2), 5, **settings)


@pytest.mark.parametrize(
    ("sizes", "message"), [(3, "several whole numbers, not 3"), ((3, -1), "greater than 0, not")]
)
def test_several_choices_have_sizes(sizes, message):
    with pytest.raises(ConfigError, match=message):
        MultiDiscrete(sizes)


def test_names_may_be_a_list():
    assert hash(EnvSpec(4, Discrete(2), 5, info_names=["x"])) is not None
