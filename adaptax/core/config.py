"""Configurations: frozen dataclasses of plain values, to and from JSON with clear errors."""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import types
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from adaptax.core.errors import ConfigError, a_or_an, check, unknown_name

C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class FunctionOfBefore:
    """Stands for a function that a config had when it was written down, by its name."""

    function: str

    def __call__(self, *_: Any) -> Any:
        """Say that it is missing."""
        raise ConfigError(
            f"{self.function} is not known here: go on from Python, with the same setting and "
            "Trainer(config, algorithm, suite).resume()"
        )


def to_dict(config: Any) -> dict[str, Any]:
    """Every field of a config, defaults and nested configs included, as JSON-ready values."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_dict(cls: type[C], data: dict[str, Any], *, where: str = "") -> C:
    """The config `cls` with the values of `data`; fields left out keep their defaults.

    Those of a config within it keep what it has there by default.
    """
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if not isinstance(data, dict):
        such_as = (
            f" such as {{'kind': {data!r}}}" if isinstance(data, str) and "kind" in names else ""
        )
        raise ConfigError(f"{where or cls.__name__}: expected an object{such_as}, not {data!r}")
    hints = get_type_hints(cls)
    values = {}
    defaults = {f.name: default_of(f) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name, value in data.items():
        path = f"{where}.{name}" if where else name
        if name not in names:
            raise unknown_name("setting", name, names, room=f"{where}." if where else "")
        if isinstance(value, Mapping) and dataclasses.is_dataclass(defaults[name]):
            value = merged(to_dict(defaults[name]), value)
        values[name] = _typed(hints[name], value, path)
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        optional = not (f.default is f.default_factory is dataclasses.MISSING)
        check(optional or f.name in values, f"{where or cls.__name__}: {f.name} is missing")
    return cls(**values)


def merged(settings: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others over them; of configs within them too."""
    result = dict(settings)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = merged(result[name], value) if both else value
    return result


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their names joined by dots."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, dict)
        found |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return found


def default_of(field: dataclasses.Field[Any]) -> Any:
    """What a field is where it is not given; None where it has to be."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def check_positive(config: Any, *names: str) -> None:
    """Raise unless each named field is None or greater than zero, or a tuple of such values."""
    for name in names:
        for item in _numbers(config, name):
            check(item is None or item > 0, f"{name} must be greater than 0, not {item}")


def check_not_negative(config: Any, *names: str) -> None:
    """Raise unless each named field is None or at least zero."""
    for name in names:
        for item in _numbers(config, name):
            check(item is None or item >= 0, f"{name} must not be negative, not {item}")


def is_integer(given: Any) -> bool:
    """Whether it is a whole number, of NumPy's or JAX's perhaps, and no truth value."""
    if isinstance(given, bool):
        return False
    try:
        operator.index(given)
    except TypeError:
        return False
    return True


def as_integer(given: Any, said: str, among: range | None = None) -> int:
    """A whole number as Python's; a ConfigError of what is `said` where it is none, or another."""
    fits = is_integer(given) and (among is None or operator.index(given) in among)
    check(fits, f"{said}, not {given!r}")
    return operator.index(given)


def as_list(given: Any, said: str) -> list[Any]:
    """Several things as a list; a ConfigError of what is `said` where one stands alone."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    check(several, f"{said}, not {given!r}")
    return list(given)


def check_multiple(config: Any, name: str, divisor: str) -> None:
    """Raise unless one named field is a multiple of another."""
    number, parts = getattr(config, name), getattr(config, divisor)
    check(number % parts == 0, f"{name} {number} must be a multiple of {divisor} {parts}")


def _numbers(config: Any, name: str) -> tuple[Any, ...]:
    """The numbers, or None, that a field holds, one or a tuple; raises where it holds others."""
    value = getattr(config, name)
    found = value if isinstance(value, tuple) else (value,)
    for item in found:
        known = item is None or isinstance(item, Real)
        check(known, f"{name}: expected a number or a tuple of numbers, not {item!r}")
    return found


def check_numbers(config: Any, where: str, of_any_size: Collection[str] = ()) -> None:
    """Raise where a number of a config, or of one within it, is NaN, infinite or too large.

    Integers are counts and sizes and have to fit 32 bits; not so seeds, and of fields `of_any_size`
    as many as floating-point numbers tell apart.
    """
    for f in dataclasses.fields(config):
        value, path = getattr(config, f.name), f"{where}.{f.name}"
        if dataclasses.is_dataclass(value):
            check_numbers(value, path)
        for item in value if isinstance(value, tuple) else (value,):
            finite = not isinstance(item, float) or math.isfinite(item)
            check(finite, f"{path} must be a finite number, not {item}")
            if not isinstance(item, int):
                continue
            if f.name in of_any_size:
                check(abs(item) <= 2**53, f"{path} must be at most 2^53, not {item}")
            elif not f.name.endswith("seed"):
                check(abs(item) < 2**31, f"{path} must be less than 2^31, not {item}")


def check_unit(config: Any, *names: str) -> None:
    """Raise unless each named field lies in [0, 1]."""
    for name in names:
        for value in _numbers(config, name):
            within = value is not None and 0.0 <= value <= 1.0
            check(within, f"{name} must lie in [0, 1], not {value}")


def check_types(config: Any, where: str) -> None:
    """Raise where a value of a config, or of one within it, is not of the type of its field.

    That is what `from_dict` would not make of it: who makes a config in Python has no such check,
    and what a run then writes down could not be read back.
    """
    hints = get_type_hints(type(config))
    for f in dataclasses.fields(config):
        value, path = getattr(config, f.name), f"{where}.{f.name}"
        hint = hints[f.name]
        options = (hint, *get_args(hint))
        kinds = tuple(k for k in options if isinstance(k, type) and dataclasses.is_dataclass(k))
        if kinds and value is not None:
            wanted = a_or_an(kinds[0].__name__)
            check(isinstance(value, kinds), f"{path}: expected {wanted}, not {value!r}")
        if dataclasses.is_dataclass(value):
            check_types(value, path)
        typed = _typed(hint, value, path)
        numpys = any(map(_is_numpys, value if isinstance(value, tuple) else (value,)))
        same = typed is value or (typed == value and not numpys)
        check(same, f"{path}: expected {type(typed).__name__}, not {value!r}")


def _is_numpys(value: Any) -> bool:
    """Whether it is a number of NumPy's and none of Python's, which its float64 is, too.

    NumPy is not imported for that, as the command line answers without it.
    """
    alone = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return alone and not isinstance(value, (float, str))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if callable(value):
        return {"function": f"{value.__module__}.{getattr(value, '__qualname__', '')}"}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return list(value) if isinstance(value, tuple) else value


def _typed(hint: Any, value: Any, path: str) -> Any:
    """`value` checked against a field's type; raises a ConfigError that names the field."""
    if _is_numpys(value):
        value = value.item()
    if type(value) in (hint, *get_args(hint)) and dataclasses.is_dataclass(value):
        return value  # a config within a config, from Python
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where=path)  # type: ignore[arg-type]
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = get_args(hint)
        if value is None and type(None) in options:
            return None
        names = next((o for o in options if get_origin(o) is Literal), None)
        if type(value) in options:
            return value
        if isinstance(value, str) and names is not None:
            others = [o.__name__ for o in options if isinstance(o, type) and o is not type(None)]
            told = " or ".join([*others, *map(repr, get_args(names))])
            check(value in get_args(names), f"{path}: expected {told}, not {value!r}")
            return value
        return _typed(next(o for o in options if o is not type(None)), value, path)
    if origin is Literal and path.endswith("schedule"):  # which may be a function, from Python
        if isinstance(value, dict):
            return from_dict(FunctionOfBefore, value, where=path)
        if callable(value):
            return value
    if origin is Literal:
        check(value in get_args(hint), f"{path}: {value!r} is not one of {get_args(hint)}")
        return value
    if origin is tuple:
        check(isinstance(value, (list, tuple)), f"{path}: expected a list, not {value!r}")
        return tuple(_typed(get_args(hint)[0], item, path) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if hint is Any or not isinstance(hint, type):  # which only a config of one's own has
        return value
    matches = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    check(matches, f"{path}: expected {getattr(hint, '__name__', hint)}, not {value!r}")
    return value
