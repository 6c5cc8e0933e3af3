"""What an algorithm may know about an environment: sizes, never the environment itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from adaptax.core.config import as_integer, as_list, from_dict, is_integer, to_dict
from adaptax.core.errors import check, unknown_name


@dataclass(frozen=True)
class Continuous:
    """Actions in [-1, 1]^size; only the pool scales them to the environment's bounds."""

    size: int
    dtype: ClassVar[str] = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _size(self.size, "size of an action"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one action, (size,)."""
        return (self.size,)


@dataclass(frozen=True)
class Discrete:
    """Actions 0, 1, ..., size - 1."""

    size: int
    dtype: ClassVar[str] = "int32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _size(self.size, "size of an action"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one action, a number."""
        return ()


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices in one action: part i is one of 0, 1, ..., sizes[i] - 1."""

    sizes: tuple[int, ...]
    dtype: ClassVar[str] = "int32"

    def __post_init__(self) -> None:
        given = self.sizes
        check(isinstance(given, Iterable), f"sizes must be several whole numbers, not {given!r}")
        object.__setattr__(self, "sizes", tuple(_size(size, "a size") for size in given))
        check(all(size > 0 for size in self.sizes), f"sizes must be greater than 0, not {given}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one action, (number of parts,)."""
        return (len(self.sizes),)

    @property
    def size(self) -> int:
        """Options of all parts together: the length of an action with every part one-hot."""
        return sum(self.sizes)


ActionSpace = Continuous | Discrete | MultiDiscrete
PICTURE_AXES = 3


@dataclass(frozen=True)
class EnvSpec:
    """Sizes and protocol of an environment; observations are flat vectors of float32 numbers."""

    observation_size: int
    action: ActionSpace
    horizon: int
    """Steps after which an episode ends."""
    horizon_terminates: bool = field(default=False, kw_only=True)
    """Whether the horizon belongs to the task, so that nothing is lost beyond it (`terminated`),
    or only cuts what would go on (`truncated`)."""
    trial_episodes: int = 1
    """Episodes an agent has on a new task by the suite's usual protocol."""
    test_episodes: int = 0
    """Episodes in which an agent that has adapted is then tested, each from the same state."""
    num_classes: int = 1
    """Classes that the training tasks fall into; tasks are drawn in multiples of it."""
    has_success: bool = False
    """Whether steps report success; then every rollout has `extras["success"]`."""
    picture: tuple[int, int, int] | None = field(default=None, kw_only=True)
    """Height, width and channels where an observation is a picture, row by row with the channels
    innermost, its values in [0, 1]: networks then begin with convolutions. None: numbers."""
    binary: bool = field(default=False, kw_only=True)
    """Whether observations are zeros and ones, as bools or integers: rollouts of a compiled
    environment then hold bools, of a quarter the size."""
    info_names: tuple[str, ...] = ()
    """Per-step figures of the pool, found in a rollout as `extras["info/NAME"]`."""

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        counts = "observation_size", "horizon", "trial_episodes", "test_episodes", "num_classes"
        for name in counts:
            object.__setattr__(self, name, _size(getattr(self, name), name))
        kinds = "a Continuous, Discrete or MultiDiscrete"
        check(isinstance(self.action, ActionSpace), f"action must be {kinds}, not {self.action!r}")
        check(self.observation_size > 0, f"observation size {self.observation_size} is not > 0")
        check(self.action.size > 0, f"action size {self.action.size} is not > 0")
        check(self.trial_episodes > 0, f"trial_episodes {self.trial_episodes} is not > 0")
        check(self.test_episodes >= 0, f"test_episodes {self.test_episodes} is negative")
        self._check_picture()
        names = as_list(self.info_names, "info_names must be several names")
        object.__setattr__(self, "info_names", tuple(names))
        check(self.num_classes > 0, f"num_classes {self.num_classes} is not > 0")

    def _check_picture(self) -> None:
        if self.picture is None:
            return
        is_shape = isinstance(self.picture, tuple) and len(self.picture) == PICTURE_AXES
        said = f"picture must be (height, width, channels), not {self.picture!r}"
        check(is_shape and all(map(is_integer, self.picture)), said)
        fits = math.prod(self.picture) == self.observation_size
        check(fits, f"pictures {self.picture} have not {self.observation_size} numbers")


def _size(number: Any, what: str) -> int:
    return as_integer(number, f"{what} must be a whole number")


def check_horizon(horizon: int) -> None:
    """Raise a ConfigError unless the longest an episode may be is a whole number of steps > 0."""
    check(is_integer(horizon), f"horizon must be a whole number of steps, not {horizon!r}")
    check(horizon > 0, f"horizon must be greater than 0, not {horizon}")


def check_task_count(n: int, num_classes: int, what: str = "the number of tasks") -> None:
    """Raise a ConfigError unless n tasks are as many of each class."""
    check(
        n % num_classes == 0,
        f"{what} must be a multiple of the suite's {num_classes} classes of tasks, not {n}",
    )


def spec_to_dict(spec: EnvSpec) -> dict[str, Any]:
    """A spec as JSON-ready values, the action's kind by the name of its class."""
    action = {"kind": type(spec.action).__name__, **to_dict(spec.action)}
    return {**to_dict(spec), "action": action}


def spec_from_dict(data: dict[str, Any]) -> EnvSpec:
    """The spec that `spec_to_dict` wrote."""
    kinds: dict[str, type[Any]] = {c.__name__: c for c in (Continuous, Discrete, MultiDiscrete)}
    action = dict(data["action"])
    kind = action.pop("kind")
    if kind not in kinds:
        raise unknown_name("kind of action", kind, kinds)
    return from_dict(EnvSpec, {**data, "action": from_dict(kinds[kind], action)}, where="spec")
