"""What one step of interaction was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax

from adaptax.core.errors import EnvironmentFault
from adaptax.core.spec import EnvSpec

Array = Any
"""A NumPy or a JAX array."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Step:
    """A step of one lane, or of many: leading axes are K slots or [M, N] of members and lanes.

    Whoever makes one fills in what it knows: a compiled environment `reward`, `next_obs`, `info`,
    `terminated`, and `truncated` if it cuts episodes other than by the horizon; a pool `valid` too;
    the engine all of it.
    """

    obs: Array = None
    """[..., O]: what the agent saw before it acted."""
    action: Array = None
    """[..., A] float32, or int32 for choices."""
    reward: Array = None
    """[...]"""
    next_obs: Array = None
    """[..., O]: what the step led to, never the observation after a reset."""
    terminated: Array = None
    """[...] bool: an absorbing state was reached. A compiled environment and a MuJoCo body leave it
    out where nothing but the horizon ends an episode."""
    truncated: Array = None
    """[...] bool: the episode was cut, by its time limit for example."""
    valid: Array = None
    """[...] bool: False where no step was taken, of which only `next_obs` counts: a lane at rest,
    or an environment that spent the step on a reset of its own. None: every slot acted."""
    info: dict[str, Array] = field(default_factory=dict)
    """`success` where the spec has it, and figures by `EnvSpec.info_names`, each [...]."""


def ends(spec: EnvSpec, terminated: Array, truncated: Array, last: Array) -> tuple[Array, Array]:
    """(terminated, truncated) [...] with the time limit; `last` are the horizon's last steps.

    None stands for an environment that does not say.
    """
    terminated = last & False if terminated is None else terminated
    if spec.horizon_terminates:
        terminated = terminated | last
    cut = last if truncated is None else truncated | last
    return terminated, cut & ~terminated


def step_extras(spec: EnvSpec, step: Step) -> dict[str, Array]:
    """What a rollout's extras hold of a step's info: `success` and `info/NAME`."""
    names = {f"info/{name}": name for name in spec.info_names}
    if spec.has_success:
        names["success"] = "success"
    for name in names.values():
        if name not in step.info:
            raise EnvironmentFault(
                f"the spec says that steps report {name!r}; this one reports {sorted(step.info)}"
            )
    return {key: step.info[name] for key, name in names.items()}
