"""MuJoCo's step inside compiled programs: a small library of our own, compiled at first use.

It is kept in the user's cache directory under a name that says what it was made of and for.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import weakref
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from adaptax.core.compilation import cache_folder
from adaptax.core.devices import processor
from adaptax.core.errors import AdaptaxError, one_line
from adaptax.core.files import own_folder, read_plain

SOURCE = Path(__file__).with_name("mj_step.cc")
PACKED = Path(__file__).with_name("mj_step.so")
"""Where a wheel carries the library."""
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-w")
"""No contraction: fused or not, products and sums would have other bits on another processor."""
STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS.value


class NativeError(AdaptaxError):
    """The library cannot be made or does not work here."""


@functools.cache
def problem() -> str | None:
    """Why physics cannot run inside compiled programs here, in one line; None where it can.

    The first call in a user's life compiles the library, for some seconds.
    """
    if os.environ.get("ADAPTAX_PHYSICS") == "host":
        return "ADAPTAX_PHYSICS=host asks for it"
    if (backend := jax.default_backend()) != "cpu":
        return f"JAX computes on {backend} here"
    try:
        library()
    except NativeError as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return one_line(error)
    return None


class Simulations:
    """Simulations in the library for models of one shape, taken by calls that run side by side."""

    def __init__(self, model: mujoco.MjModel, loaded: Library | None = None) -> None:
        functions = (loaded or library()).functions
        address = functions.adaptax_simulations_new(model._address)
        self.words = address_words(address)
        # It holds the model, which must outlive them.
        weakref.finalize(self, _delete_simulations, functions, address, model).atexit = False


def _delete_simulations(functions: ctypes.CDLL, address: int, model: mujoco.MjModel) -> None:
    functions.adaptax_simulations_delete(address)


def step(
    simulations: jax.Array,
    model: jax.Array,
    state: jax.Array,
    action: jax.Array,
    *,
    num_sensors: int,
    num_substeps: int,
) -> tuple[jax.Array, jax.Array]:
    """One lane's state [2 S] after `num_substeps`, and sensors [2, 2 D] before the first and last.

    `simulations` and `model` [2] are the words of addresses, states and sensors are float64 as
    words, `action` [A] is in [-1, 1]. Batched by `vmap`. A lane that diverges, or whose action is
    not finite, is all NaN.
    """
    inputs = (simulations, model, state, action)
    return _call(library().target, inputs, num_sensors=num_sensors, num_substeps=num_substeps)


def _call(
    target: str, inputs: tuple[Any, ...], *, num_sensors: int, num_substeps: int
) -> tuple[jax.Array, jax.Array]:
    words = partial(jax.ShapeDtypeStruct, dtype=jnp.uint32)
    outputs = [words(inputs[2].shape), words((2, 2 * num_sensors))]
    call = jax.ffi.ffi_call(target, outputs, vmap_method="broadcast_all")
    after, sensors = call(*inputs, num_substeps=np.int64(num_substeps))
    return after, sensors


def address_words(address: int) -> np.ndarray:
    """An address as two words [2]."""
    return np.array([address], np.uint64).view(np.uint32)


def to_words(x: np.ndarray) -> np.ndarray:
    """Float64 [..., n] as words [..., 2 n]."""
    return np.ascontiguousarray(x, np.float64).view(np.uint32)


@dataclass(frozen=True)
class Library:
    """The library, loaded, and its handlers' names in JAX."""

    functions: ctypes.CDLL
    target: str

    @property
    def scenes(self) -> str:
        """The handler of scenes."""
        return f"{self.target}_scenes"


@functools.cache
def library() -> Library:
    """The one that the package carries, if it was made for what is installed, or our own."""
    if is_as_written(PACKED):
        with contextlib.suppress(NativeError, OSError, AttributeError):  # of other source
            return load(PACKED, "adaptax_mj_step_packed", probe=True)
    found = compiler()
    kept = own_folder(cache_folder()) / f"mj_step-{_key(found)}.so"
    if is_as_written(kept):
        with contextlib.suppress(NativeError, OSError):
            return load(kept, "adaptax_mj_step")
    compile_library(found, kept)
    try:
        return load(kept, "adaptax_mj_step", probe=True)
    except (NativeError, OSError):
        kept.unlink(missing_ok=True)
        raise


def is_as_written(path: Path) -> bool:
    """Whether a library is what was compiled; one that is damaged crashes Python when loaded."""
    try:
        return read_plain(_digest_of(path)).decode().strip() == _digest(path)
    except (OSError, ValueError):  # most often: there is none yet
        return False


def _digest_of(path: Path) -> Path:
    """The file beside a library that has its digest."""
    return path.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(read_plain(path)).hexdigest()


def compiler() -> str:
    """A C++ compiler: CXX, or the first that is found."""
    names = filter(None, (os.environ.get("CXX"), *COMPILERS))
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NativeError("no C++ compiler was found (CXX, c++, g++, clang++)")
    return found


def compile_library(with_compiler: str, path: Path, source: Path = SOURCE) -> None:
    """Make a library at `path`, whole or not at all, whoever else is at it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder, include = _folder("mujoco"), _folder("jaxlib") / "include"
    physics = max(folder.glob("libmujoco.*"))
    with tempfile.TemporaryDirectory(prefix=".mj_step-", dir=path.parent) as unfinished:
        made = Path(unfinished) / path.name
        options = [*FLAGS, f"-I{folder / 'include'}", f"-I{include}", "-o", made, source, physics]
        try:
            subprocess.run(
                [with_compiler, *map(str, options)], check=True, capture_output=True, timeout=300
            )
        except subprocess.SubprocessError as error:
            said = (getattr(error, "stderr", None) or b"").decode(errors="replace").splitlines()
            wrong = [line for line in said if "error" in line] or said or [str(error)]
            raise NativeError(f"{with_compiler} could not compile it: {wrong[0]}") from error
        told = _digest_of(made)
        told.write_text(_digest(made))
        # Whoever reads in between, or after another's library, compiles once more.
        os.replace(made, path)
        os.replace(told, _digest_of(path))


def _key(with_compiler: str) -> str:
    """What the library is made of and for."""
    told = subprocess.run([with_compiler, "--version"], capture_output=True, timeout=60).stdout
    parts = [version("mujoco"), version("jaxlib"), platform.machine(), str(_folder("mujoco"))]
    digest = hashlib.sha256(SOURCE.read_bytes() + told + "\n".join([*parts, *FLAGS]).encode())
    return digest.hexdigest()[:16]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


_NUMBERS, _INTEGERS = (
    np.ctypeslib.ndpointer(dtype, flags="C_CONTIGUOUS") for dtype in (np.float64, np.int32)
)
_SCENE_ARGUMENTS: list[Any] = [
    *(ctypes.c_void_p, _NUMBERS, _NUMBERS, ctypes.c_double, ctypes.c_int32),
    *(_INTEGERS, ctypes.c_int64, _NUMBERS, ctypes.c_int64),
    *(_INTEGERS, ctypes.c_int64, _INTEGERS, ctypes.c_int64),
]


def load(path: Path, target: str, *, probe: bool = False) -> Library:
    """Load a library; `probe` sees whether it works with the JAX that runs here.

    JAX says so only when it first calls it.
    """
    library = ctypes.CDLL(str(path))  # MuJoCo is loaded already, and found by its name
    if library.adaptax_mujoco_version() != mujoco.mj_version():
        raise NativeError(f"{path} was made for another version of MuJoCo")
    library.adaptax_simulations_new.restype = ctypes.c_void_p
    library.adaptax_simulations_new.argtypes = [ctypes.c_void_p]
    library.adaptax_simulations_delete.argtypes = [ctypes.c_void_p]
    library.adaptax_simulations_delete.restype = None
    library.adaptax_scene_new.restype = ctypes.c_void_p
    library.adaptax_scene_new.argtypes = _SCENE_ARGUMENTS
    library.adaptax_scene_delete.argtypes = [ctypes.c_void_p]
    library.adaptax_scene_delete.restype = None
    loaded = Library(library, target)
    handlers = {target: library.AdaptaxMjStep, loaded.scenes: library.AdaptaxStepScenes}
    for name, handler in handlers.items():
        capsule = jax.ffi.pycapsule(handler)  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    if probe:
        _probe(loaded, path)
    return loaded


def _probe(library: Library, path: Path) -> None:
    """Step an empty world once."""
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    simulations = Simulations(model, library)
    state, action = to_words(np.zeros(1)), np.zeros(0, np.float32)
    inputs = (simulations.words, address_words(model._address), state, action)
    with jax.default_device(processor()):
        try:
            after = _call(library.target, inputs, num_sensors=0, num_substeps=1)[0]
        except Exception as error:
            raise NativeError(f"{path} does not work here: {one_line(error)}") from error
    if np.asarray(after).view(np.float64)[0] != model.opt.timestep:
        raise NativeError(f"{path} does not work here: an empty world stood still")


if __name__ == "__main__":
    compile_library(compiler(), PACKED)
    print(f"made {PACKED}")
