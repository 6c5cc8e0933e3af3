from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import jax
import pytest

from adaptax.core.config import check_positive
from adaptax.core.errors import ConfigError
from adaptax.core.hyperparameters import Hyperparameters, changed


@dataclass(frozen=True)
class Inner(Hyperparameters):
    lr: float = 0.5

    def __post_init__(self) -> None:
        check_positive(self, "lr")


@dataclass(frozen=True)
class Settings(Hyperparameters):
    discount: float = 0.9
    bound: float | None = None
    fraction: float = field(default=0.1, metadata={"static": True})
    size: int = 3
    sizes: tuple[float, ...] = (1.0,)
    schedule: Literal["constant", "linear"] = "constant"
    inner: Inner = Inner()


@dataclass(frozen=True)
class Descendant(Settings):
    tau: float = 0.25


def leaves(config) -> dict[str, float]:
    found, _ = jax.tree_util.tree_flatten_with_path(config)
    return {jax.tree_util.keystr(path): x for path, x in found}


def test_numbers_are_leaves_and_all_else_is_static():
    assert leaves(Settings()) == {".discount": 0.9, ".inner.lr": 0.5}
    assert leaves(Descendant(bound=2.0)) == {**leaves(Settings()), ".bound": 2.0, ".tau": 0.25}


@pytest.mark.parametrize(
    "other", [{"bound": 1.0}, {"fraction": 0.2}, {"size": 4}, {"schedule": "linear"}]
)
def test_a_program_serves_all_numbers_but_not_another_static_setting(other):
    traced = []

    @jax.jit
    def program(config):
        traced.append(config)
        return config.discount * config.inner.lr

    assert program(Settings()) == pytest.approx(0.45)
    assert program(Settings(0.8, inner=Inner(0.25))) == pytest.approx(0.2)
    assert len(traced) == 1
    program(changed(Settings(), **other))
    assert len(traced) == 2


def test_a_config_comes_back_equal_and_unchecked():
    config = Descendant(bound=1.0, schedule="linear")
    assert jax.tree.map(lambda x: x, config) == config
    assert jax.tree.map(lambda x: -x, config).inner == changed(Inner(), lr=-0.5)
    assert config.inner.lr == 0.5
    with pytest.raises(ConfigError):
        Inner(-0.5)
