"""Suites of installed packages, found by their entry points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, get_type_hints

from adaptax.core.errors import check, one_line
from adaptax.core.plugins import described, loaded, summary_of

if TYPE_CHECKING:
    from adaptax.envs.suite import Suite

ENTRY_POINTS = "adaptax.suites"
"""Their group; each names MODULE:FUNCTION, a function from its config to the suite of the entry
point's name, whose only parameter is annotated with the config's class, a dataclass."""


@dataclass(frozen=True)
class PluginSuite:
    """What the registry has of a suite of ours, of another package's."""

    name: str
    summary: str
    config: type[Any]
    make: Callable[[Any], Suite]

    @classmethod
    def of(cls, point: EntryPoint) -> PluginSuite:
        """The suite of an entry point; a ConfigError where it names none."""
        make, what = loaded(point), described(point)
        check(callable(make), f"{what} is not a function from a config to a suite")
        try:
            hints = get_type_hints(make)
            hints.pop("return", None)
            (config,) = hints.values()
            sound, problem = is_dataclass(config()), f"{config} is not a dataclass"
        except Exception as error:  # whatever somebody's annotations and defaults do
            sound, problem = False, one_line(error)
        check(sound, f"{what} does not take one parameter annotated with its config: {problem}")
        return cls(point.name, summary_of(make), config, make)

    def load(self) -> tuple[type[Any], Callable[[Any], Suite]]:
        """The config's class, and the function from config to suite."""
        return self.config, self._made

    def _made(self, config: Any) -> Suite:
        suite = self.make(config)
        name = getattr(suite, "name", None)
        # A run knows its suite by name only.
        check(name == self.name, f"the suite of the entry point {self.name!r} is called {name!r}")
        return suite
