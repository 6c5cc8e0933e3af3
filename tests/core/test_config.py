from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptax.core.config import check_positive, check_types, check_unit, from_dict, to_dict
from adaptax.core.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5

    def __post_init__(self) -> None:
        check_unit(self, "rate")


@dataclass(frozen=True)
class Outer:
    count: int = 3
    sizes: tuple[int, ...] = (64, 64)
    limit: int | None = None
    mode: Literal["fast", "exact"] = "fast"
    name: str = "run"
    loud: bool = False
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check_positive(self, "count", "limit")


OTHER = Outer(5, (8,), 2, "exact", "other", True, Inner(0.25))


def test_to_dict_holds_every_field_of_nested_configs():
    assert to_dict(Outer()) == {
        "count": 3,
        "sizes": [64, 64],
        "limit": None,
        "mode": "fast",
        "name": "run",
        "loud": False,
        "inner": {"rate": 0.5},
    }


def test_a_path_is_its_text():
    assert to_dict(Outer(name=Path("a/b")))["name"] == "a/b"


@pytest.mark.parametrize("config", [Outer(), OTHER, dataclasses.replace(OTHER, sizes=())])
def test_a_config_comes_back_equal_through_json(config):
    assert from_dict(Outer, json.loads(json.dumps(to_dict(config)))) == config


def test_a_config_within_may_be_one_already():
    inner = Inner(0.25)
    assert from_dict(Outer, {"inner": inner}).inner is inner
    with pytest.raises(ConfigError, match="inner: expected an object, not Outer"):
        from_dict(Outer, {"inner": Outer()})


def test_fields_left_out_keep_their_defaults():
    assert from_dict(Outer, {"inner": {}, "count": 9}) == Outer(count=9)


def test_whole_numbers_serve_as_floats():
    config = from_dict(Inner, {"rate": 1})
    assert isinstance(config.rate, float)
    assert config.rate == 1.0


def test_numbers_of_numpys_are_taken_as_pythons():
    """Those of a loop over an array, or of a table's row."""
    numbers = {"count": np.int64(5), "sizes": np.array([8]), "inner": {"rate": np.float32(0.25)}}
    numbers |= {"limit": np.int32(2), "loud": np.bool_(True)}
    config = from_dict(Outer, {**numbers, "sizes": list(numbers["sizes"])})
    assert json.dumps(to_dict(config)) == json.dumps(
        to_dict(Outer(5, (8,), 2, loud=True, inner=Inner(0.25)))
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"count": np.float64(3)}, "run.count: expected int, not np.float64(3.0)"),
        ({"count": np.bool_(True)}, "run.count: expected int, not True"),
        ({"count": "3"}, "run.count: expected int, not '3'"),
        ({"count": 3.0}, "run.count: expected int, not 3.0"),
        ({"count": True}, "run.count: expected int, not True"),
        ({"count": None}, "run.count: expected int, not None"),
        ({"limit": "none"}, "run.limit: expected int, not 'none'"),
        ({"loud": 1}, "run.loud: expected bool, not 1"),
        ({"name": 1}, "run.name: expected str, not 1"),
        ({"sizes": 64}, "run.sizes: expected a list, not 64"),
        ({"sizes": [64, "a"]}, "run.sizes: expected int, not 'a'"),
        ({"mode": "slow"}, "run.mode: 'slow' is not one of ('fast', 'exact')"),
        ({"mode": []}, "run.mode: [] is not one of ('fast', 'exact')"),
        ({"inner": 0.5}, "run.inner: expected an object, not 0.5"),
        ({"inner": {"rate": "x"}}, "run.inner.rate: expected float, not 'x'"),
        ({"inner": {"rate": 1.5}}, "rate must lie in [0, 1], not 1.5"),
        ({"count": 0}, "count must be greater than 0, not 0"),
        ({"limit": -1}, "limit must be greater than 0, not -1"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(data, message):
    with pytest.raises(ConfigError) as caught:
        from_dict(Outer, data, where="run")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 1e3}, "run.count: expected int, not 1000.0"),
        ({"limit": 2.0}, "run.limit: expected int, not 2.0"),
        ({"sizes": [8, 8]}, "run.sizes: expected tuple, not [8, 8]"),
        ({"sizes": (8.0,)}, "run.sizes: expected int, not 8.0"),
        ({"name": Path("a")}, f"run.name: expected str, not {Path('a')!r}"),
        ({"mode": "slow"}, "run.mode: 'slow' is not one of ('fast', 'exact')"),
        ({"inner": {"rate": 0.5}}, "run.inner: expected an Inner, not {'rate': 0.5}"),
        ({"inner": Inner(True)}, "run.inner.rate: expected float, not True"),
        ({"count": np.int64(5)}, "run.count: expected int, not np.int64(5)"),
        ({"sizes": (np.int64(5),)}, "run.sizes: expected tuple, not (np.int64(5),)"),
    ],
)
def test_values_of_a_config_that_is_made_directly_are_of_the_types_of_its_fields(changes, message):
    with pytest.raises(ConfigError) as caught:
        check_types(Outer(**changes), "run")
    assert str(caught.value) == message
    check_types(OTHER, "run")


@dataclass(frozen=True)
class Strange:
    numbers: int | float | None = 0.5
    call: Callable[[int], int] | None = None
    table: dict[str, int] = field(default_factory=dict)
    whatever: Any = None
    rate: float = 1


def test_types_that_no_config_of_ours_has_are_let_pass():
    check_types(Strange(), "run")
    check_types(Strange(2, lambda x: x, {"a": 1}, [1]), "run")


def test_a_path_serves_as_text():
    assert from_dict(Outer, {"name": Path("a") / "b"}).name == str(Path("a") / "b")


def test_the_room_of_a_setting_makes_it_no_more_like_another():
    with pytest.raises(ConfigError, match=r"^unknown setting 'algorithm\.ratte'; did you mean"):
        from_dict(Inner, {"ratte": 1}, where="algorithm")
    with pytest.raises(ConfigError, match=r"'algorithm\.lrr' \(allowed: algorithm\.rate\)$"):
        from_dict(Inner, {"lrr": 1}, where="algorithm")


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ConfigError, match=r"unknown setting 'run.inner.rat'.*'run.inner.rate'"):
        from_dict(Outer, {"inner": {"rat": 0.5}}, where="run")


@pytest.mark.parametrize("data", [None, [], "run", 3])
def test_anything_but_an_object_is_refused(data):
    with pytest.raises(ConfigError, match="Outer: expected an object"):
        from_dict(Outer, data)


@pytest.mark.parametrize("value", [0, -1, 0.0, -0.5, float("nan")])
def test_check_positive_refuses(value):
    with pytest.raises(ConfigError, match="limit must be greater than 0"):
        Outer(limit=value)


def test_checks_of_size_name_a_field_that_holds_no_number():
    with pytest.raises(ConfigError, match=r"count: expected a number .*, not '3'"):
        Outer(count="3")
    with pytest.raises(ConfigError, match=r"limit: expected a number .*, not \[1, 2\]"):
        Outer(limit=[1, 2])
    with pytest.raises(ConfigError, match=r"rate: expected a number .*, not 'x'"):
        Inner("x")


@pytest.mark.parametrize("value", [-0.001, 1.001, float("nan"), float("inf")])
def test_check_unit_refuses(value):
    with pytest.raises(ConfigError, match="rate must lie in"):
        Inner(value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([*(f.name for f in dataclasses.fields(Outer)), "rate", "other"])


@settings(max_examples=300)
@given(st.dictionaries(NAMES, JSON_VALUES | st.dictionaries(NAMES, JSON_VALUES)))
def test_any_json_gives_a_config_or_a_config_error(data):
    try:
        config = from_dict(Outer, data)
    except ConfigError:
        return
    assert from_dict(Outer, to_dict(config)) == config


@dataclass(frozen=True)
class Pair:
    speed: float = 1.0
    weight: float = 2.0


@dataclass(frozen=True)
class Around:
    pair: Pair = field(default_factory=lambda: Pair(speed=5.0))


def test_a_config_within_a_config_keeps_what_it_has_there_by_default():
    assert from_dict(Around, {"pair": {"weight": 3.0}}) == Around(Pair(5.0, 3.0))
    assert from_dict(Around, {"pair": Pair()}) == Around(Pair())
