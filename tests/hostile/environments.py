"""Faulty environments, registered as `gym:Faulty-NAME-v0`: what somebody's Python might do."""

from __future__ import annotations

import decimal
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Sound(gymnasium.Env[Any, Any]):
    """Nothing is wrong with it: a point on a line that is to be at zero."""

    observation_space: Any = spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin somewhere."""
        super().reset(seed=seed)
        self.place, self.count = self.np_random.normal(size=2), 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        """Move."""
        self.count += 1
        self.place = np.clip(0.9 * self.place + 0.1 * np.asarray(action, float).ravel()[0], -9, 9)
        return self.obs(), -float(abs(self.place[0])), False, False, {"success": False}

    def obs(self) -> Any:
        """Where it is."""
        return self.place.astype(np.float32)


def _answer(place: int, value: Any) -> type[Sound]:
    """One whose steps answer something else in one place, from the third on."""

    class Odd(Sound):
        def step(self, action: Any) -> Any:
            answer = list(super().step(action))
            if self.count > 2:
                answer[place] = value() if callable(value) else value
            return tuple(answer)

    return Odd


def _whole(value: Any) -> type[Sound]:
    """One whose third step answers something else as a whole."""

    class Odd(Sound):
        def step(self, action: Any) -> Any:
            answer = super().step(action)
            return value(answer) if self.count > 2 else answer

    return Odd


def _does(method: str, what: Callable[[], Any], at: int = 3) -> type[Sound]:
    """One that does something in a method, in steps from the third on."""

    class Odd(Sound):
        def __init__(self) -> None:
            if method == "__init__":
                what()

        def reset(self, **named: Any) -> Any:
            if method == "reset":
                what()
            return super().reset(**named)

        def step(self, action: Any) -> Any:
            answer = super().step(action)
            if method == "step" and self.count >= at:
                what()
            return answer

        def close(self) -> None:
            if method == "close":
                what()

    return Odd


def _raises(error: BaseException | type[BaseException]) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


def _spaces(observation: Any = None, action: Any = None) -> type[Sound]:
    class Odd(Sound):
        observation_space = observation or Sound.observation_space
        action_space = action or Sound.action_space

    return Odd


def _reset_answer(value: Callable[[Any], Any]) -> type[Sound]:
    class Odd(Sound):
        def reset(self, **named: Any) -> Any:
            return value(super().reset(**named)[0])

    return Odd


class Unspeakable(Exception):
    """Cannot even be told."""

    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Aliased(Sound):
    """Gives the same array at every step, and changes it."""

    def reset(self, **named: Any) -> Any:
        """Begin."""
        super().reset(**named)
        self.kept = np.zeros(2, np.float32)
        return self.kept, {}

    def step(self, action: Any) -> Any:
        """Move."""
        _, *rest = super().step(action)
        self.kept[:] = self.place
        action[:] = np.nan  # which it was lent
        return (self.kept, *rest)


class Deep(Exception):
    """An exception of many lines."""

    def __str__(self) -> str:
        return "first\nsecond\n" * 50


def _recursion() -> None:
    _recursion()


def _talks() -> None:
    print("x" * 10_000)
    print("\ud800", file=sys.stderr)


def _moves() -> None:
    os.chdir("/")
    os.environ.clear()


def _takes_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


REWARDS = {
    "nan": np.nan,
    "infinite": np.inf,
    "huge": 1e39,
    "beyond-any": 10**400,
    "text": "much",
    "none": None,
    "complex": 1j,
    "two": np.ones(2),
    "empty": np.ones(0),
    "object": object(),
    "bytes": b"1",
    "list": [[1.0]],
    "true": True,
    "decimal": decimal.Decimal("0.5"),
    "half": np.float16(0.5),
}
OBSERVATIONS = {
    "nan": np.full(2, np.nan),
    "infinite": np.full(2, -np.inf),
    "huge": np.full(2, 1e39),
    "long": np.zeros(3),
    "empty": np.zeros(0),
    "none": None,
    "text": "here",
    "complex": np.zeros(2, complex),
    "ragged": [[1], [1, 2]],
    "object": np.array([object(), object()]),
    "number": 1.0,
    "dict": {"x": 1},
    "list": [0.5, 0.5],
    "integers": np.zeros(2, np.int8),
    "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
}
FLAGS = {
    "none": None,
    "text": "yes",
    "two": np.ones(2, bool),
    "nan": np.nan,
    "list": [],
    "two-int": 2,
}
INFOS: dict[str, Any] = {
    "none": None,
    "list": [],
    "text": "info",
    "success-text": {"success": "yes"},
    "success-two": {"success": np.ones(2)},
    "success-none": {"success": None},
    "success-nan": {"success": np.nan},
    "success-object": {"success": object()},
}
WHOLE: dict[str, Callable[[Any], Any]] = {
    "old-gym": lambda answer: answer[:4],
    "six": lambda answer: (*answer, 1),
    "none": lambda answer: None,
    "generator": lambda answer: (x for x in answer),
    "both-ends": lambda answer: (*answer[:2], True, True, {}),
}
RAISED: dict[str, Any] = {
    "runtime": RuntimeError("motor on fire"),
    "lines": Deep(),
    "unspeakable": Unspeakable(),
    "surrogate": ValueError("\ud800 \x00 \x1b[31m"),
    "memory": MemoryError(),
    "stop": StopIteration(),
    "exit": SystemExit(0),
    "key": KeyError("x"),
    "pipe": BrokenPipeError(),
    "disk": OSError(28, "No space left on device"),
    "assertion": AssertionError(),
}

FAULTS: dict[str, type[Sound]] = {
    "none": Sound,
    **{f"reward-{name}": _answer(1, value) for name, value in REWARDS.items()},
    **{
        f"observation-{name}": _answer(0, lambda value=v: value) for name, v in OBSERVATIONS.items()
    },
    **{f"terminated-{name}": _answer(2, value) for name, value in FLAGS.items()},
    **{f"truncated-{name}": _answer(3, value) for name, value in list(FLAGS.items())[:3]},
    **{f"info-{name}": _answer(4, value) for name, value in INFOS.items()},
    **{f"answer-{name}": _whole(value) for name, value in WHOLE.items()},
    **{f"raises-{name}": _does("step", _raises(error)) for name, error in RAISED.items()},
    "raises-deep": _does("step", _recursion),
    "raises-at-first": _does("step", _raises(RuntimeError("at once")), 1),
    "reset-raises": _does("reset", _raises(ValueError("no reset"))),
    "reset-exits": _does("reset", _raises(SystemExit(3))),
    "reset-bare": _reset_answer(lambda obs: obs),
    "reset-none": _reset_answer(lambda obs: None),
    "reset-nan": _reset_answer(lambda obs: (obs * np.nan, {})),
    "init-raises": _does("__init__", _raises(RuntimeError("no licence"))),
    "init-exits": _does("__init__", _raises(SystemExit(1))),
    "close-raises": _does("close", _raises(RuntimeError("stuck"))),
    "close-exits": _does("close", _raises(SystemExit(1))),
    "space-none": _spaces(observation=spaces.Graph(spaces.Discrete(2), None)),
    "space-text": _spaces(observation=spaces.Text(3)),
    "space-pixels": _spaces(observation=spaces.Box(0, 255, (8, 8, 3), np.uint8)),
    "space-unbounded": _spaces(action=spaces.Box(-np.inf, np.inf, (1,), np.float32)),
    "space-integers": _spaces(action=spaces.Box(0, 5, (1,), np.int32)),
    "space-sequence": _spaces(action=spaces.Sequence(spaces.Discrete(2))),
    "aliased": Aliased,
    "talks": _does("step", _talks),
    "moves": _does("reset", _moves),
    "takes-signals": _does("step", _takes_signals),
    "leaves-threads": _does("reset", _leaves_a_thread),
    "seeds-others": _does("step", lambda: np.random.seed(0)),  # noqa: NPY002
}


def env_id(name: str) -> str:
    """The name under which Gymnasium has a fault."""
    return f"Faulty-{name}-v0"


def register() -> None:
    """Have Gymnasium know them all."""
    for name, cls in FAULTS.items():
        if env_id(name) not in gymnasium.registry:
            gymnasium.register(env_id(name), entry_point=cls, max_episode_steps=8)


register()
