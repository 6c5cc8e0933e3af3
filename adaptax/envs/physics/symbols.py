"""Arithmetic that is written down while it runs: a Python function on symbols becomes a program.

A symbol is one number. NumPy's object arrays hold many, so that code written for arrays runs as it
is. Where Python asks whether a comparison of symbols holds, both answers are followed, and what
comes of them is put together by `select`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

# fmt: off
OPERATIONS = (
    "constant", "read", "memory", "action", "touch",
    "add", "subtract", "multiply", "divide", "negative", "absolute",
    "sqrt", "exp", "log", "sin", "cos",
    "less", "less_equal", "equal", "both", "lesser", "greater", "select",
)
# fmt: on
"""In the order of mj_step.cc."""
MOST_PATHS = 1000
"""More paths through one function are a mistake."""


class Sheet:
    """What has been written down; the same operation on the same symbols is one symbol."""

    def __init__(self) -> None:
        self._symbols: dict[tuple[Any, ...], Symbol] = {}
        self._script: Sequence[bool] = ()
        self._asked: list[tuple[Symbol, bool]] = []

    def symbol(self, operation: str, *args: Any) -> Symbol:
        """The result of an operation."""
        key = (operation, *(x.place if isinstance(x, Symbol) else x for x in args))
        found = self._symbols.get(key)
        if found is None:
            found = self._symbols[key] = Symbol(self, len(self._symbols), operation, args)
        return found

    def holds(self, condition: Symbol) -> bool:
        """Whether a condition holds on the path that is followed now."""
        for asked, answer in self._asked:
            if asked is condition:
                return answer
        place = len(self._asked)
        answer = self._script[place] if place < len(self._script) else True
        self._asked.append((condition, answer))
        return answer

    def every_path(self, function: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
        """What a function gives, whichever way its conditions turn out.

        What an assertion of its own rules out is taken not to happen.
        """
        self._num_paths = 0
        answer = self._paths(function, [])
        assert answer is not None
        return answer

    def _paths(
        self, function: Callable[[], dict[Any, Any]], script: list[bool]
    ) -> dict[Any, Any] | None:
        """Those that begin with the answers in `script`; None where there are none."""
        self._num_paths += 1
        if self._num_paths > MOST_PATHS:
            raise RuntimeError(f"more than {MOST_PATHS} paths lead through {function}")
        self._script, self._asked = script, []
        answer: dict[Any, Any] | None = None
        with suppress(AssertionError):
            answer = function()
        asked = self._asked
        for i in range(len(asked) - 1, len(script) - 1, -1):
            condition = asked[i][0]
            other = self._paths(function, [*(held for _, held in asked[:i]), False])
            if answer is None or other is None:
                answer = answer or other
            else:
                answer = {name: select(condition, x, other[name]) for name, x in answer.items()}
        return answer


class Symbol:
    """A number that is known when the program runs; of a comparison, 1 where it holds, else 0."""

    def __init__(self, sheet: Sheet, place: int, operation: str, args: tuple[Any, ...]) -> None:
        self.sheet, self.place, self.operation, self.args = sheet, place, operation, args

    def do(self, operation: str, *args: Any) -> Symbol:
        """The result of an operation on symbols and plain numbers."""
        symbols = (
            x if isinstance(x, Symbol) else self.sheet.symbol("constant", float(x)) for x in args
        )
        return self.sheet.symbol(operation, *symbols)

    def __add__(self, other: Any) -> Any:
        return self.do("add", self, other) if _is_number(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self.do("add", other, self) if _is_number(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self.do("subtract", self, other) if _is_number(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self.do("subtract", other, self) if _is_number(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return self.do("multiply", self, other) if _is_number(other) else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        return self.do("multiply", other, self) if _is_number(other) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        return self.do("divide", self, other) if _is_number(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return self.do("divide", other, self) if _is_number(other) else NotImplemented

    def __pow__(self, other: Any) -> Any:
        if other != 2:
            raise TypeError(f"{other} is no power of a symbol that is known here")
        return self * self

    def __neg__(self) -> Symbol:
        return self.do("negative", self)

    def __abs__(self) -> Symbol:
        return self.do("absolute", self)

    def __lt__(self, other: Any) -> Symbol:
        return self.do("less", self, other)

    def __gt__(self, other: Any) -> Symbol:
        return self.do("less", other, self)

    def __le__(self, other: Any) -> Symbol:
        return self.do("less_equal", self, other)

    def __ge__(self, other: Any) -> Symbol:
        return self.do("less_equal", other, self)

    def __eq__(self, other: Any) -> Symbol:  # type: ignore[override]
        return self.do("equal", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return self.sheet.holds(self)

    def __float__(self) -> float:
        raise TypeError("a symbol is no number yet")

    # NumPy calls these of what its object arrays hold.
    def sqrt(self) -> Symbol:
        """The square root."""
        return self.do("sqrt", self)

    def exp(self) -> Symbol:
        """The exponential function of it."""
        return self.do("exp", self)

    def log(self) -> Symbol:
        """The natural logarithm."""
        return self.do("log", self)

    def sin(self) -> Symbol:
        """The sine."""
        return self.do("sin", self)

    def cos(self) -> Symbol:
        """The cosine."""
        return self.do("cos", self)

    def item(self) -> Symbol:
        """Itself, as of an array with one number."""
        return self


def _is_number(x: Any) -> bool:
    return isinstance(x, (Symbol, float, int, np.floating, np.integer, np.bool_))


def _one_of(operation: str, plain: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    symbol = a if isinstance(a, Symbol) else b
    return symbol.do(operation, a, b) if isinstance(symbol, Symbol) else plain(a, b)


def lesser(a: Any, b: Any) -> Any:
    """The lesser of two."""
    return _one_of("lesser", min, a, b)


def greater(a: Any, b: Any) -> Any:
    """The greater of two."""
    return _one_of("greater", max, a, b)


def both(a: Any, b: Any) -> Any:
    """Whether both conditions hold."""
    return _one_of("both", lambda a, b: bool(a and b), a, b)


def select(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`."""
    if not isinstance(condition, Symbol):
        return a if condition else b
    return a if a is b else condition.do("select", condition, a, b)


@dataclass(frozen=True)
class Program:
    """Operations in order, each on earlier ones, and which of them are wanted."""

    code: np.ndarray
    """[n, 4] int32: the operation, and its arguments."""
    constants: np.ndarray
    """[k] float64"""
    results: np.ndarray
    """[r] int32: which operations give the results."""


def parts(results: Iterable[Any]) -> list[Symbol]:
    """All symbols that results are made of, each after those that it is made of itself."""
    found: dict[int, Symbol] = {}
    waiting = [x for x in results if isinstance(x, Symbol)]
    while waiting:
        symbol = waiting.pop()
        if symbol.place not in found:
            found[symbol.place] = symbol
            waiting += [x for x in symbol.args if isinstance(x, Symbol)]
    return [found[place] for place in sorted(found)]


def program(sheet: Sheet, results: Sequence[Any], memory: Sequence[Any]) -> Program:
    """What computes `results`, symbols or plain numbers, and no more than that takes.

    `memory` has the arguments of the symbols of that operation, in the order of what is remembered.
    """
    wanted = [x if isinstance(x, Symbol) else sheet.symbol("constant", float(x)) for x in results]
    used = parts(wanted)
    register = {symbol.place: i for i, symbol in enumerate(used)}
    constants: list[float] = []
    code = np.zeros((len(used), 4), np.int32)
    for symbol, row in zip(used, code, strict=True):
        args = [register[x.place] if isinstance(x, Symbol) else x for x in symbol.args]
        if symbol.operation == "constant":
            args = [len(constants)]
            constants += symbol.args
        elif symbol.operation == "memory":
            args = [memory.index(symbol.args)]
        row[0] = OPERATIONS.index(symbol.operation)
        row[1 : 1 + len(args)] = args
    places = np.array([register[x.place] for x in wanted], np.int32)
    return Program(code, np.array(constants), places)
