"""Dynamics families: run forwards in a body whose masses, damping and friction differ by task.

They follow the rand-param environments of PEARL (Rakelly et al. 2019, arXiv 1903.08254) and ProMP:
dennisl88/rand_param_envs, base.py (RandomEnv.sample_tasks), walker_rand_params.py and
hopper_rand_params.py. Every entry of four arrays of the model has its own factor: of body_mass,
body_inertia and geom_friction 1.5^U(-s, s), of dof_damping 1.3^U(-s, s), s = 3 by default.

The originals change these arrays only. Here the constants that MuJoCo derives from them at
compilation (`mj_setConst`: inverse weights, which set the softness of contacts and limits) are
derived anew, as if the model had been compiled with the task's values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, load_spec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion.families import (
    TRIAL_EPISODES,
    DrawnTasksConfig,
    drawn_tasks_suite,
    mean_velocity,
    squared_norm,
    uniform_noise,
)
from adaptax.envs.task import Params

FACTOR_BASES = {"body_mass": 1.5, "body_inertia": 1.5, "dof_damping": 1.3, "geom_friction": 1.5}
"""By array of the model, in the order in which a task's factors are drawn."""
ALIVE_BONUS = 1.0
CONTROL_COST = 1e-3
VELOCITY_LIMIT = 10.0
"""Joint velocities beyond so many m/s or rad/s are observed as so many."""
RESET_NOISE = 0.005
TEXTURE_PIXELS = 8
"""Textures of so many pixels a side; Gymnasium's are 25 times the rest of a model, and every task
has its model."""

Healthy = Callable[[Physics], jax.Array]
"""Where False, the episode terminates."""


def dynamics_suite(
    name: str,
    asset: str,
    config: DrawnTasksConfig,
    log_scale: float,
    frame_skip: int,
    healthy: Healthy,
) -> Suite:
    """A dynamics family of a body that moves in a plane: reward 1 + v_x - 0.001 |a|^2."""
    model = _plain_model(asset)
    shapes = {field: getattr(model, field).shape for field in FACTOR_BASES}
    step_seconds = frame_skip * model.opt.timestep
    body = Body(
        spec=planar_spec(model, config.horizon),
        model=model,
        frame_skip=frame_skip,
        task_params=shapes,
        reset_noise=partial(uniform_noise, model.nq, model.nv, RESET_NOISE),
        observation=planar_observation,
        outcome=partial(_outcome, step_seconds, healthy),
        task_model=partial(_task_model, model),
    )
    return drawn_tasks_suite(name, config, body, partial(_draw_factors, shapes, log_scale))


def planar_spec(model: mujoco.MjModel, horizon: int) -> EnvSpec:
    """Sizes of a body with `planar_observation`."""
    return EnvSpec(
        observation_size=model.nq - 1 + model.nv,
        action=Continuous(model.nu),
        horizon=horizon,
        trial_episodes=TRIAL_EPISODES,
        info_names=("velocity", "control_cost"),
    )


def planar_observation(state: Physics) -> jax.Array:
    """[nq - 1 + nv]: qpos without x, and qvel clipped to [-10, 10]."""
    velocity = jnp.clip(state.qvel, -VELOCITY_LIMIT, VELOCITY_LIMIT)
    return jnp.concatenate([state.qpos[1:], velocity])


def _plain_model(asset: str) -> mujoco.MjModel:
    """Gymnasium's model with small textures."""
    spec = load_spec(asset, {})
    for texture in spec.textures:
        texture.width = texture.height = TEXTURE_PIXELS
    return spec.compile()


def _draw_factors(
    shapes: Mapping[str, tuple[int, ...]], log_scale: float, rng: np.random.Generator
) -> Params:
    """A task: a factor for every entry of every array."""
    return {
        field: base ** rng.uniform(-log_scale, log_scale, shapes[field])
        for field, base in FACTOR_BASES.items()
    }


def _task_model(model: mujoco.MjModel, factors: Params) -> mujoco.MjModel:
    """A copy of `model`, nothing loaded or compiled, with its arrays multiplied by the factors."""
    changed = copy.copy(model)
    for field, factor in factors.items():
        getattr(changed, field)[:] *= factor
    mujoco.mj_setConst(changed, mujoco.MjData(changed))
    return changed


def _outcome(
    step_seconds: float,
    healthy: Healthy,
    before: Physics,
    action: jax.Array,
    after: Physics,
    params: Mapping[str, jax.Array],
) -> Step:
    velocity = mean_velocity(before, after, step_seconds)
    control_cost = CONTROL_COST * squared_norm(action)
    return Step(
        reward=ALIVE_BONUS + velocity - control_cost,
        terminated=~healthy(after),
        info={"velocity": velocity, "control_cost": control_cost},
    )
