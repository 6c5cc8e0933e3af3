"""Scenes: an arm that follows a guide in a native step, which also tells what is seen of it.

A scene is a MuJoCo model whose arm is held to a guide by a weld (MuJoCo's mocap), and a program of
arithmetic: what is seen after a step, of the positions there, of the action and of a memory of
numbers, and that memory afterwards.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from adaptax.envs.physics import native
from adaptax.envs.physics.symbols import Program

STATE = sum(
    kind.value
    for kind in (
        mujoco.mjtState.mjSTATE_FULLPHYSICS,
        mujoco.mjtState.mjSTATE_WARMSTART,
        mujoco.mjtState.mjSTATE_MOCAP_POS,
        mujoco.mjtState.mjSTATE_MOCAP_QUAT,
    )
)
"""What physics goes on from, with what its solver starts at and where the guide is."""
FIELDS = ("qpos", "xpos", "xquat", "xmat", "site_xpos", "site_xmat", "geom_xpos", "geom_xmat")
"""What programs read of MuJoCo's data, in the order of mj_step.cc."""


@dataclass(frozen=True)
class Guide:
    """How actions move the guide, and for how long the arm then follows."""

    low: np.ndarray
    """[3] least position, m."""
    high: np.ndarray
    """[3] greatest position, m."""
    scale: float
    """Metres for an action of 1."""
    num_substeps: int


class Scene:
    """A scene in the library."""

    def __init__(self, model: mujoco.MjModel, guide: Guide, program: Program, num_seen: int):
        """The first `num_seen` results of the program are seen, the others are the memory."""
        functions = native.library().functions
        seen, kept = program.results[:num_seen], program.results[num_seen:]
        arrays = (program.code, program.constants, seen, kept)
        address = functions.adaptax_scene_new(
            model._address,
            guide.low,
            guide.high,
            guide.scale,
            guide.num_substeps,
            *(x for array in arrays for x in (array, len(array))),
        )
        self.model = model
        self.words = native.address_words(address)
        finalize = weakref.finalize(self, _delete, functions, address, model)
        finalize.atexit = False


def _delete(functions: ctypes.CDLL, address: int, model: mujoco.MjModel) -> None:
    functions.adaptax_scene_delete(address)


def step_scenes(
    scene: jax.Array, places: jax.Array, state: jax.Array, action: jax.Array, num_seen: int
) -> tuple[jax.Array, jax.Array]:
    """One lane's state [2 S] after a step, and what is seen of it, float32 [num_seen].

    `scene` [2] are the words of an address, `places` [2 P] the positions of the model's bodies and
    sites as this lane has them, states MuJoCo's with the memory after it, all float64 as words;
    `action` [4] is in [-1, 1]. Batched by `vmap`, lanes of other scenes among them. A lane
    whose action is not finite is all NaN from there on. One that diverges goes on from the model's
    first state, where MuJoCo puts it.
    """
    shape: Any = jax.ShapeDtypeStruct
    outputs = [shape(state.shape, jnp.uint32), shape((num_seen,), jnp.float32)]
    call = jax.ffi.ffi_call(native.library().scenes, outputs, vmap_method="broadcast_all")
    after, seen = call(scene, places, state, action)
    return after, seen
