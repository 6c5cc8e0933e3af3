"""What Meta-World's Python does after a physics step, written down as arithmetic.

Observations, rewards and success remain Meta-World's own code: it runs once for each class, on
symbols in place of what MuJoCo knows, of the action and of the object's own numbers, and what it
does with them is a program for the native step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from metaworld.sawyer_xyz_env import SawyerMocapBase

from adaptax.core.errors import EnvironmentFault
from adaptax.envs.physics.scene import FIELDS
from adaptax.envs.physics.symbols import (
    Program,
    Sheet,
    Symbol,
    both,
    greater,
    lesser,
    parts,
    program,
    select,
)
from adaptax.envs.suites.metaworld.fast import (
    GAUSSIAN_SCALE,
    LONG_TAIL_SCALE,
    FastRotation,
    with_globals,
)

NUM_SEEN = 41
"""Observation (39), reward, success."""
FIRST = ("the first step", 0)
"""In a memory 1 until a step is done."""
NOT_NUMBERS = ("data", "model", "_kept_views", "shared_model")
"""Attributes of an environment object that are its simulation, and have stand-ins of their own."""


@dataclass(frozen=True)
class Recording:
    """A class's step after the physics."""

    program: Program
    """Gives what is seen, then the memory after the step."""
    memory: tuple[tuple[str, int], ...]
    """Which numbers of the object it goes on from: attributes, with places in them."""
    views: dict[str, tuple[str, int]]
    """Attributes that show where something is now, not where it was: read of the physics."""
    settings: dict[str, Any]
    """Attributes that are no numbers of an episode, by which it may have been decided."""

    def numbers(self, env: Any) -> np.ndarray:
        """The memory of an environment object, float64."""
        if (views(env), settings(env)) != (self.views, self.settings):
            name = type(env).__name__
            raise EnvironmentFault(f"{name} has other attributes than with its first goal")
        known = {**vars(env), FIRST[0]: 1.0}
        found = [
            0.0 if known[name] is None else np.asarray(known[name], np.float64).flat[i]
            for name, i in self.memory
        ]
        return np.array(found, np.float64)


def record(env: Any, original: type[Any]) -> Recording:
    """Write down the step of one of Meta-World's classes, by an object at an episode's start."""
    sheet, seen_as = Sheet(), views(env)
    begun = {
        name: _symbols(sheet, name, value, seen_as.get(name))
        for name, value in vars(env).items()
        if name not in NOT_NUMBERS and not isinstance(value, list | dict | tuple)
    }
    stand_in = _StandIn(sheet, env, original)
    after = sheet.every_path(partial(stand_in.step, begun))
    late = {name: sheet.symbol("memory", name, 0) for name in stand_in.late}
    if late:  # as `bin-picking` keeps a distance that its first step finds to be None
        other = sheet.every_path(partial(stand_in.step, {**begun, **late}))
        first = sheet.symbol("memory", *FIRST)
        after = {place: select(first, x, other[place]) for place, x in after.items()}
        after[FIRST] = 0.0
    results, memory = [after[i] for i in range(NUM_SEEN)], list[tuple[str, int]]()
    while True:  # for what has to be remembered may be made of more that has to be
        results = [*results[:NUM_SEEN], *(after[place] for place in memory)]
        used = {x.args for x in parts(results) if x.operation == "memory"}
        if used == set(memory):
            break
        memory = sorted(used)
    return Recording(program(sheet, results, memory), tuple(memory), seen_as, settings(env))


class _StandIn:
    """An object of one of Meta-World's classes that computes with symbols."""

    def __init__(self, sheet: Sheet, env: Any, original: type[Any]) -> None:
        self._object = object.__new__(_stand_in_class(original))
        self._data, self._model = _Data(sheet, env.data), _Model(env.model)
        self._action = _array(sheet.symbol("action", i) for i in range(4))
        self.late: set[str] = set()
        """Attributes that were unset before a step and are numbers after it."""

    def step(self, attributes: dict[str, Any]) -> dict[Any, Any]:
        """What is seen, by number, and what has become of the attributes, by name and place."""
        stand_in, known = self._object, vars(self._object)
        known.clear()
        known.update({name: _apart(value) for name, value in attributes.items()})
        stand_in.data, stand_in.model = self._data, self._model
        space = stand_in.sawyer_observation_space
        obs = _clip(stand_in._get_obs(), space.low, space.high)
        reward, info = stand_in.evaluate_state(obs, self._action)
        after = dict(enumerate([*obs, reward, info["success"]]))
        for name, value in known.items():
            before = attributes.get(name)
            if before is None and isinstance(value, Symbol):
                self.late.add(name)
            elif name in attributes and not (_is_symbolic(before) or value is before):
                raise EnvironmentFault(f"{type(stand_in).__name__} changes its {name}")
            if _is_symbolic(value):
                after |= {(name, i): x for i, x in enumerate(np.ravel(value))}
        return after


def _is_symbolic(x: Any) -> bool:
    return isinstance(x, Symbol) or (isinstance(x, np.ndarray) and x.dtype == object)


def views(env: Any) -> dict[str, tuple[str, int]]:
    """Attributes that are arrays of the simulation itself: which of its fields, and from where."""
    fields = {name: _span(getattr(env.data, name)) for name in FIELDS}
    found = {}
    for name, value in vars(env).items():
        if name in NOT_NUMBERS or not isinstance(value, np.ndarray):
            continue
        start, _ = _span(value)
        for field, (first, end) in fields.items():
            if first <= start < end:
                found[name] = (field, (start - first) // value.itemsize)
    return found


def settings(env: Any) -> dict[str, Any]:
    """Attributes that are truth values, whole numbers, text or None."""
    return {k: x for k, x in vars(env).items() if x is None or isinstance(x, bool | int | str)}


def _span(x: np.ndarray) -> tuple[int, int]:
    """The addresses where an array begins and ends."""
    start = x.__array_interface__["data"][0]
    return start, start + x.nbytes


def _array(symbols: Iterable[Any]) -> np.ndarray:
    return np.array(list(symbols), dtype=object)


def _symbols(sheet: Sheet, name: str, value: Any, view: tuple[str, int] | None) -> Any:
    """An attribute with symbols in place of its numbers; another, which no step changes, as is."""
    if isinstance(value, float):
        return sheet.symbol("memory", name, 0)
    if not (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        return value
    if view is not None:
        return _read(sheet, view[0], view[1], value.size).reshape(value.shape)
    return _array(sheet.symbol("memory", name, i) for i in range(value.size)).reshape(value.shape)


def _read(sheet: Sheet, field: str, start: int, size: int) -> np.ndarray:
    """Numbers of one of MuJoCo's fields."""
    return _array(sheet.symbol("read", FIELDS.index(field), start + i) for i in range(size))


def _apart(value: Any) -> Any:
    """Numbers that no write into an array of the object reaches."""
    return value.copy() if _is_symbolic(value) and isinstance(value, np.ndarray) else value


class _Data:
    """MuJoCo's data as symbols, by the names of bodies, sites, geoms and joints."""

    def __init__(self, sheet: Sheet, data: Any) -> None:
        self.sheet, self._data = sheet, data

    def body(self, name: str) -> Any:
        """Its position, quaternion and rotation."""
        return self._placed(self._data.body(name).id, "")

    def site(self, name: str) -> Any:
        """Its position and rotation."""
        return self._placed(self._data.site(name).id, "site_")

    def geom(self, name: str) -> Any:
        """Its position and rotation."""
        return self._placed(self._data.geom(name).id, "geom_")

    def joint(self, name: str) -> Any:
        """Its coordinates."""
        own = self._data.joint(name).qpos
        start = (_span(own)[0] - _span(self._data.qpos)[0]) // own.itemsize
        return SimpleNamespace(qpos=_read(self.sheet, "qpos", start, own.size))

    def _placed(self, number: int, kind: str) -> Any:
        sizes = {"xpos": 3, "xmat": 9} | ({} if kind else {"xquat": 4})
        read = {
            field: _read(self.sheet, kind + field, size * number, size)
            for field, size in sizes.items()
        }
        return SimpleNamespace(id=number, **read)


class _Model:
    """What a step may ask of the model, which differs between tasks otherwise."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def geom_name2id(self, name: str) -> int:
        """The number of a geom."""
        return int(self._model.geom(name).id)

    def geom(self, name: str) -> Any:
        """A geom's number alone."""
        return SimpleNamespace(id=self.geom_name2id(name))


def _stand_in_class(original: type[Any]) -> type[Any]:
    """One of Meta-World's classes whose methods compute with symbols."""
    made: Any = type(original.__name__, (original,), {})
    replaced: dict[str, Any] = {
        "np": NUMPY,
        "Rotation": _Rotation,
        "reward_utils": _Rewards,
        "float": _itself,
        "bool": _itself,
        "min": partial(_of_all, lesser),
        "max": partial(_of_all, greater),
        original.__name__: made,  # whose static methods some find by its name
    }
    for base in reversed(original.__mro__):
        if issubclass(base, SawyerMocapBase):
            for name, value in vars(base).items():
                if isinstance(value, FunctionType | staticmethod | property):
                    setattr(made, name, with_globals(_undecorated(value), replaced))
    made.get_body_com = lambda self, name: self.data.body(name).xpos
    made.touching_object = _touching
    return made


def _undecorated(method: Any) -> Any:
    """The function within one that checks that a task is set."""
    code = getattr(method, "__code__", None)
    decorated = code is not None and code.co_freevars == ("func",)
    return method.__closure__[0].cell_contents if decorated else method


def _touching(self: Any, geom: int) -> Symbol:
    """Whether both pads push at a geom."""
    pads = (self.data.geom(name).id for name in ("leftpad_geom", "rightpad_geom"))
    sheet: Sheet = self.data.sheet
    return sheet.symbol("touch", geom, *pads)


def _itself(x: Any) -> Any:
    """A symbol in place of what would be a plain number."""
    return x.item() if isinstance(x, np.ndarray) else x


def _of_all(function: Callable[[Any, Any], Any], *numbers: Any) -> Any:
    """A function of two over all numbers, or over those of one list."""
    return reduce(function, numbers if len(numbers) > 1 else numbers[0])


def _over_arrays(function: Callable[..., Any], arity: int) -> Callable[..., Any]:
    """A function of numbers, of arrays of them as NumPy's are."""
    over = np.frompyfunc(function, arity, 1)
    return lambda *args, **named: over(*args)


def _zeros(shape: Any) -> np.ndarray:
    """Zeros that symbols can take the place of."""
    return np.full(shape, 0.0, dtype=object)


_clip = _over_arrays(lambda x, low, high: lesser(greater(x, low), high), 3)
NUMPY = SimpleNamespace(**{**vars(np), "clip": _clip, "zeros": _zeros})
"""NumPy as Meta-World's methods see it."""


class _Rewards:
    """`metaworld.utils.reward_utils`."""

    @staticmethod
    def tolerance(
        x: Any,
        bounds: tuple[Any, Any] = (0.0, 0.0),
        margin: Any = 0.0,
        sigmoid: str = "gaussian",
    ) -> Any:
        """1 within the bounds, falling to 0.1 at `margin` from them."""
        lower, upper = bounds
        inside = both(lower <= x, x <= upper)
        distance = select(x < lower, lower - x, x - upper) / margin
        value = select(margin == 0, 0.0, _sigmoid(distance, sigmoid))
        return select(inside, 1.0, value)

    @staticmethod
    def hamacher_product(a: Any, b: Any) -> Any:
        """The product of two numbers over their sum less it."""
        product = a * b
        below = a + b - product
        return select(below > 0, product / below, 0.0)

    @staticmethod
    def rect_prism_tolerance(curr: Any, zero: Any, one: Any) -> Any:
        """Within a prism the product of how far one is along each side, else 1."""
        inside, value = True, 1.0
        for x, start, end in zip(curr, zero, one, strict=True):
            inside = both(inside, both(lesser(start, end) <= x, x <= greater(start, end)))
            value = value * ((x - start) / (end - start))
        return select(inside, value, 1.0)


def _sigmoid(x: Any, kind: str) -> Any:
    if kind == "long_tail":
        return 1 / ((x * LONG_TAIL_SCALE) ** 2 + 1)
    if kind == "gaussian":
        return np.exp(-0.5 * (x * GAUSSIAN_SCALE) ** 2)
    raise EnvironmentFault(f"no reward of Meta-World's known here uses the sigmoid {kind!r}")


class _Rotation(FastRotation):
    @classmethod
    def from_matrix(cls, matrix: np.ndarray) -> _Rotation:
        """The rotation of a matrix [3, 3] (Markley 2008, in SciPy's order)."""
        (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()
        trace = a + e + i
        largest = greater(greater(greater(a, e), i), trace)
        quat = (h - f, c - g, d - b, 1 + trace)
        for diagonal, other in (
            (i, (g + c, h + f, 1 - trace + 2 * i, d - b)),
            (e, (d + b, 1 - trace + 2 * e, h + f, c - g)),
            (a, (1 - trace + 2 * a, d + b, g + c, h - f)),
        ):
            chosen = diagonal == largest
            quat = tuple(select(chosen, x, y) for x, y in zip(other, quat, strict=True))
        x, y, z, w = quat
        norm = np.sqrt(x * x + y * y + z * z + w * w)
        return cls(_array(component / norm for component in quat))
