"""Which OpenGL draws off-screen: chosen before MuJoCo is imported, which then holds on to it."""

from __future__ import annotations

import os
import subprocess
import sys

from adaptax.core.errors import AdaptaxError

VARIABLE = "MUJOCO_GL"
BACKENDS = ("egl", "osmesa")
"""In the order in which they are tried: the first may use a graphics card, the other needs none."""
TRIAL = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
renderer = mujoco.Renderer(model, 32, 32)
renderer.update_scene(mujoco.MjData(model))
assert renderer.render().shape == (32, 32, 3)
print("drawn", flush=True)
"""


def choose_gl_backend() -> str:
    """Set MUJOCO_GL, unless it is set, to a backend that draws; raises an AdaptaxError if none."""
    asked = os.environ.get(VARIABLE)
    for backend in (asked,) if asked else BACKENDS:
        if _draws(backend):
            os.environ[VARIABLE] = backend
            return backend
    tried = f"{VARIABLE}={asked}" if asked else " and ".join(BACKENDS)
    raise AdaptaxError(
        f"nothing here draws off-screen (tried {tried}): install EGL or OSMesa, on Debian and "
        f"Ubuntu `apt install libegl1` or `apt install libosmesa6`, or set {VARIABLE}"
    )


def try_gl_backend() -> AdaptaxError | None:
    """The same where only MuJoCo's own pictures need one: gives the error instead."""
    try:
        choose_gl_backend()
    except AdaptaxError as error:
        return error
    return None


def _draws(backend: str) -> bool:
    """Whether a process with this backend can make a picture; some crash where they cannot."""
    environment = {**os.environ, VARIABLE: backend}
    if backend == "osmesa":
        environment["PYOPENGL_PLATFORM"] = backend
    command = [sys.executable, "-c", TRIAL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() == "drawn"
