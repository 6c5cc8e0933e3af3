"""Networks of one's own in the place of the default ones, tried before anything is learned.

Otherwise they would go wrong in the midst of learning, in words that name no network; or not even
then, where an axis too many broadcasts.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.errors import ConfigError, check, one_line
from adaptax.core.spec import ActionSpace, Continuous, Discrete, EnvSpec, MultiDiscrete
from adaptax.functional.distributions import Categorical, MultiCategorical

Networks = TypeVar("Networks")
Shape = tuple[int | None, ...]
"""None stands for any number."""
ROWS = 3
"""Rows of the inputs that networks are tried with."""


def own_or(default: Networks, networks: Networks | None) -> Networks:
    """The networks given, or else the default ones; a ConfigError where they are no such thing."""
    if networks is None:
        return default
    if isinstance(default, nn.Module):
        check_module("networks", networks)
        return networks
    kind = type(default)
    name = f"{kind.__module__}.{kind.__name__}"
    given = " ".join(reprlib.repr(networks).split())
    check(isinstance(networks, kind), f"networks must be {name}(...), not {given}")
    for part in fields(kind):  # type: ignore[arg-type]  # one dataclass of modules an algorithm
        module = getattr(networks, part.name)
        if module is not None or part.default is MISSING:
            check_module(f"networks.{part.name}", module)
    return networks


def own_policy(default: Any, networks: Any, spec: EnvSpec, needs: tuple[str, ...] = ()) -> Any:
    """As `own_or`, observations [..., O] -> a distribution over actions that has `needs`."""
    own = own_or(default, networks)
    if networks is not None:
        check_gives("networks", own, [(spec.observation_size,)], spec.action, needs)
    return own


def check_module(name: str, network: Any) -> None:
    """Raise a ConfigError unless it has what a Flax module has."""
    kind = type(network)
    is_one = hasattr(kind, "init") and hasattr(kind, "apply")
    wanted = f"{name} must be a Flax module, an instance of its class"
    check(is_one, f"{wanted}, not {reprlib.repr(network)}")
    try:
        hash(network)
    except TypeError as error:
        raise ConfigError(
            f"{name} cannot be told from others: a field of it, an array say, cannot be hashed; "
            "have numbers and tuples there"
        ) from error


def check_parameters_only(variables: Any) -> None:
    """Raise a ConfigError where a network has other variables, which Adam would change as well."""
    others = sorted(set(variables) - {"params"})
    check(not others, f"it keeps {', '.join(others)} beside its parameters, which is not supported")


def check_gives(
    name: str,
    network: Any,
    inputs: Sequence[tuple[int, ...]],
    wanted: Shape | ActionSpace,
    needs: tuple[str, ...] = (),
) -> None:
    """Raise a ConfigError unless a network gives what is `wanted` for `inputs`, shapes without [B].

    `wanted` is an array's shape, in which 0 stands for the axis B and None for any number; or an
    action space, for a distribution over its actions that has what it `needs` by name as well.
    """
    if isinstance(wanted, tuple):
        wanted = tuple(ROWS if size == 0 else size for size in wanted)
        gives = _shown(wanted)
    else:
        gives = f"a distribution over actions {wanted}"
    arrays = [jnp.zeros((ROWS, *shape)) for shape in inputs]
    of = " and ".join(_shown(array.shape) for array in arrays)
    said = f"{name} must make {gives} of {of}"
    gave = list[str | None]()

    def call(key: jax.Array) -> tuple[()]:
        params = network.init(key, *arrays)
        check_parameters_only(params)
        out = network.apply(params, *arrays)
        if isinstance(wanted, tuple):
            gave.append(None if _fits(out, wanted) else described(out))
        else:
            check_has(out, needs)
            gave.append(other_than_actions(out, wanted, ROWS, key))
        return ()

    traced(said, call)
    check(gave[0] is None, f"{said}, not {gave[0]}")


def check_has(distribution: Any, needs: tuple[str, ...]) -> None:
    """Raise a ConfigError unless a distribution has these methods."""
    missing = [name for name in needs if not hasattr(distribution, name)]
    has_no = f"{described(distribution)} has no {' and no '.join(missing)}"
    check(not missing, f"{has_no}, which the algorithm needs")


def other_than_actions(
    distribution: Any, space: ActionSpace, num_rows: int, key: jax.Array
) -> str | None:
    """What draws [B] of a distribution are, in words; None if they are actions of the space."""
    action = distribution.sample(key)
    log_prob = distribution.log_prob(action)
    is_choice = jnp.issubdtype(action.dtype, jnp.integer)
    fits = _fits(action, (num_rows, *space.shape)) and _fits(log_prob, (num_rows,))
    if not fits or is_choice == isinstance(space, Continuous):
        kind = "choices" if is_choice else "actions"
        return f"{kind} {described(action)} with log-probabilities {described(log_prob)}"
    # Only of these it is known what they choose among.
    if isinstance(distribution, Categorical):
        own: ActionSpace = Discrete(distribution.logits.shape[-1])
    elif isinstance(distribution, MultiCategorical):
        own = MultiDiscrete(distribution.sizes)
    else:
        return None
    return None if own == space else f"one over {own}"


def traced(said: str, call: Callable[[jax.Array], Any]) -> Any:
    """Shapes of what networks give, without numbers; a ConfigError where they fail."""
    try:
        return jax.eval_shape(call, jax.random.key(0))
    except ConfigError as error:
        raise ConfigError(f"{said}; {error}") from error
    except Exception as error:
        raise ConfigError(f"{said}; a trial fails: {one_line(error)}") from error


def _fits(found: Any, wanted: Shape) -> bool:
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) != len(wanted):
        return False
    return all(size in (None, own) for own, size in zip(shape, wanted, strict=True))


def _shown(shape: Shape) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def described(found: Any) -> str:
    """The shape of an array, the class of anything else."""
    return _shown(found.shape) if hasattr(found, "shape") else type(found).__name__
