from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from adaptax.core.errors import ConfigError
from adaptax.envs.registry import SUITES, find_suite


@pytest.mark.parametrize("name", SUITES)
def test_every_line_names_a_config_and_a_function(name):
    config_class, make = find_suite(name).load()
    assert dataclasses.is_dataclass(config_class)
    assert callable(make)


@pytest.mark.parametrize(
    ("name", "argument"), [("gym:CartPole-v1", "CartPole-v1"), ("ml1-reach-v3", "reach-v3")]
)
def test_what_follows_a_prefix_is_the_first_argument(name, argument):
    entry = find_suite(name)
    make = entry.load()[1]
    assert isinstance(make, partial)
    assert make.args == (argument,)
    assert (entry.name, argument in entry.summary) == (name, True)


def test_an_unknown_name_comes_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown suite 'ant-gaol'; did you mean 'ant-goal'\?"):
        find_suite("ant-gaol")
