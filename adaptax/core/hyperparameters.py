"""Hyperparameters: settings whose numbers a program takes as arguments.

What is compiled for one learning rate then serves any other, and runs that differ in such numbers
can be an axis of one program.
"""

from __future__ import annotations

import copy
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

import jax

from adaptax.core.config import check_types, default_of

C = TypeVar("C")


class Hyperparameters:
    """An ancestor of configs, frozen dataclasses, which makes them pytrees.

    Fields of type float are leaves, and so are those of configs within it. All else is static:
    sizes, counts, choices and schedules, which are functions or their names. So are the few floats
    that arithmetic alone does not do with, whose fields say `metadata={"static": True}`:

    - `init_std`, `min_std`, `max_std` of policies: networks are static, and these are part of
      their description;
    - `elite_fraction`: a number of candidates, which is a shape;
    - `base_eps`: whether it is large enough depends on the precision of the program.

    A program does not know the values of leaves: it cannot branch on them in Python or check them,
    but it can see whether one is None, which is static too.
    """

    network_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that describe networks and nothing else: networks of one's own leave them without
    effect, and are refused beside others than the defaults."""

    def __post_init__(self) -> None:
        check_types(self, type(self).__name__)  # before anything is computed with a value

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, _unflatten)


def changed(config: C, **values: Any) -> C:
    """The config with other values, unchecked, since within a program they are not known."""
    new = copy.copy(config)
    for name, value in values.items():
        object.__setattr__(new, name, value)
    return new


def set_for_networks(config: Any, usual: Any = None) -> list[str]:
    """The names of `network_settings` that are not as by default, or not as `usual` has them.

    Of configs within it too.
    """
    if not isinstance(config, Hyperparameters):
        return []
    found = list[str]()
    for f in fields(config):  # type: ignore[arg-type]  # configs are dataclasses
        own = getattr(config, f.name)
        default = default_of(f) if usual is None else getattr(usual, f.name)
        if f.name in config.network_settings:
            found += [f.name] if own != default else []
        elif type(own) is type(default):
            found += [f"{f.name}.{name}" for name in set_for_networks(own, default)]
    return found


def _flatten_with_keys(config: Any) -> tuple[list[tuple[Any, Any]], Any]:
    names = _leaf_fields(config.__class__)
    leaves = [(jax.tree_util.GetAttrKey(name), getattr(config, name)) for name in names]
    return leaves, changed(config, **dict.fromkeys(names))


def _unflatten(static: Any, leaves: Any) -> Any:
    return changed(static, **dict(zip(_leaf_fields(static.__class__), leaves, strict=True)))


@cache
def _leaf_fields(cls: type[Any]) -> tuple[str, ...]:
    hints = get_type_hints(cls)
    dynamic = [f.name for f in fields(cls) if not f.metadata.get("static", False)]
    return tuple(name for name in dynamic if _holds_leaves(hints[name]))


def _holds_leaves(hint: Any) -> bool:
    """Whether a field of this type is a number, None perhaps, or a config with numbers."""
    types = set(get_args(hint) or (hint,)) - {type(None)}
    return types == {float} or (isinstance(hint, type) and issubclass(hint, Hyperparameters))
