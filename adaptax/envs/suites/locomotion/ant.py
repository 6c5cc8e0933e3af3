"""Ant task families: run at a target velocity, in a direction, or to a goal.

Rewards follow, where a is the action in [-1, 1]^8 and v the torso's mean velocity in a step:

- ant-vel: MAML's AntEnvRand (Finn et al. 2017, arXiv 1703.03400; cbfinn/maml_rl,
  rllab/envs/mujoco/ant_env_rand.py);
- ant-dir, ant-dir-2d: ProMP's AntRandDirecEnv and AntRandDirec2DEnv (Rothfuss et al. 2019,
  arXiv 1810.06784) and PEARL's AntDirEnv (Rakelly et al. 2019, arXiv 1903.08254;
  katerakelly/oyster, rlkit/envs/ant_dir.py);
- ant-goal: ProMP's AntRandGoalEnv and PEARL's AntGoalEnv, which are the same.

The body, the frame skip and the reset noise are those of Gymnasium's Ant-v5. The originals take
0.0005 of the sum of squares of MuJoCo's external forces (`cfrc_ext`, clipped to 1) off the
reward, and ProMP observes them. No sensor gives them, and from MuJoCo 2.0 on they are zero
unless asked for (openai/gym issue 1541). Instead `contact_forces` gives the normal force of each
part's contacts, at the same price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, load_spec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion.families import (
    TRIAL_EPISODES,
    DrawnTasksConfig,
    FixedTasksConfig,
    check_range,
    draw_uniform,
    drawn_tasks_suite,
    squared_norm,
    two_directions_suite,
    uniform_normal_noise,
)
from adaptax.envs.task import Params

FRAME_SKIP = 5
STEP_SECONDS = 0.05
"""Frame skip times the model's 0.01 s."""
HEALTHY_HEIGHT = (0.2, 1.0)
"""Heights of the torso, m, outside of which an episode terminates (ProMP 0 and 1)."""
CONTACT_COST = 5e-4
CONTACT_LIMIT = 1.0
"""Contact forces above so many N count as so many."""
NUM_PARTS = 13


@dataclass(frozen=True)
class AntVelConfig(DrawnTasksConfig):
    """Run along x at a target velocity, drawn uniformly."""

    low: float = 0.0
    """Least target velocity, m/s."""
    high: float = 3.0
    """Greatest target velocity, m/s."""
    contact_forces: bool = False
    """Whether contacts are observed, 13 normal forces in N, at most 1, and cost reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self)


@dataclass(frozen=True)
class AntDirConfig(FixedTasksConfig):
    """Run along x, forwards or backwards, as fast as possible."""

    contact_forces: bool = False
    """Whether contacts are observed, 13 normal forces in N, at most 1, and cost reward."""


@dataclass(frozen=True)
class AntDir2DConfig(DrawnTasksConfig):
    """Run in a direction of the plane, drawn uniformly, as fast as possible."""

    contact_forces: bool = False
    """Whether contacts are observed, 13 normal forces in N, at most 1, and cost reward."""


@dataclass(frozen=True)
class AntGoalConfig(DrawnTasksConfig):
    """Run to a goal, drawn uniformly from a disc around the start."""

    radius: float = 3.0
    """Radius of the disc, m."""
    contact_forces: bool = False
    """Whether contacts are observed, 13 normal forces in N, at most 1, and cost reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "radius")


Progress = Callable[[Physics, Physics, Mapping[str, jax.Array]], tuple[jax.Array, jax.Array]]
"""(state before, state after, task parameters) -> reward before costs, figure for info."""


@dataclass(frozen=True)
class _Family:
    """What one family asks of the ant."""

    task_params: dict[str, tuple[int, ...]]
    progress: Progress
    info: str
    """Name of the figure that `progress` gives."""
    control_cost: float
    """Reward lost for each |a|^2."""
    terminates: bool = True
    """Whether an unhealthy height ends an episode."""
    position: bool = False
    """Whether observations begin with the torso's x and y."""


def ant_vel(config: AntVelConfig) -> Suite:
    """Ant at a target velocity: reward 1.05 - |v_x - target| - 0.005 |a|^2 while healthy."""
    family = _Family({"target": ()}, _towards_target, "velocity", control_cost=0.005)
    draw = partial(draw_uniform, "target", config.low, config.high)
    return drawn_tasks_suite("ant-vel", config, _body(family, config), draw)


def ant_dir(config: AntDirConfig) -> Suite:
    """Ant forwards or backwards: reward 1 + direction * v_x - 0.5 |a|^2 while healthy."""
    family = _Family({"direction": ()}, _along_x, "velocity", control_cost=0.5)
    return two_directions_suite("ant-dir", config, _body(family, config))


def ant_dir_2d(config: AntDir2DConfig) -> Suite:
    """Ant in any direction: reward 1 + v . (cos angle, sin angle) - 0.5 |a|^2 while healthy."""
    family = _Family({"angle": ()}, _along_angle, "velocity", control_cost=0.5)
    draw = partial(draw_uniform, "angle", 0.0, 2 * np.pi)
    return drawn_tasks_suite("ant-dir-2d", config, _body(family, config), draw)


def ant_goal(config: AntGoalConfig) -> Suite:
    """Ant to a goal: reward -|x - x_goal| - |y - y_goal| - 0.1 |a|^2; it never terminates."""
    family = _Family(
        {"goal": (2,)}, _near_goal, "distance", control_cost=0.1, terminates=False, position=True
    )
    draw = partial(_draw_goal, config.radius)
    return drawn_tasks_suite("ant-goal", config, _body(family, config), draw)


def _draw_goal(radius: float, rng: np.random.Generator) -> Params:
    """A goal uniform on the disc: angle U(0, 2 pi), distance radius * sqrt(U(0, 1))."""
    angle, distance = 2 * np.pi * rng.uniform(), radius * np.sqrt(rng.uniform())
    return {"goal": distance * np.array([np.cos(angle), np.sin(angle)])}


def _body(
    family: _Family, config: AntVelConfig | AntDirConfig | AntDir2DConfig | AntGoalConfig
) -> Body:
    first = 0 if family.position else 2
    contacts = config.contact_forces
    spec = EnvSpec(
        observation_size=29 - first + (NUM_PARTS if contacts else 0),
        action=Continuous(8),
        horizon=config.horizon,
        trial_episodes=TRIAL_EPISODES,
        info_names=(family.info, "control_cost"),
    )
    return Body(
        spec=spec,
        model=_model(contacts),
        frame_skip=FRAME_SKIP,
        task_params=family.task_params,
        reset_noise=partial(uniform_normal_noise, 15, 14, 0.1),
        observation=partial(_observation, first, contacts),
        outcome=partial(_outcome, family, contacts),
    )


def _model(contacts: bool) -> mujoco.MjModel:
    """The ant, with a touch sensor around each part where contacts are asked for."""
    spec = load_spec("ant.xml", {})
    touch, site = mujoco.mjtSensor.mjSENS_TOUCH, mujoco.mjtObj.mjOBJ_SITE
    # A sensor sums the contacts of its own part only, so that one of 1 m reaches all of them.
    for i, part in enumerate(_parts(spec.worldbody) if contacts else []):
        name = f"contact/{i}"
        part.add_site(name=name, size=[1.0, 1.0, 1.0])
        spec.add_sensor(name=name, type=touch, objtype=site, objname=name)
    return spec.compile()


def _parts(root: mujoco.MjsBody) -> list[mujoco.MjsBody]:
    """What hangs on a body, in the order of the compiled model, which is depth first."""
    return [part for child in root.bodies for part in (child, *_parts(child))]


def _observation(first: int, contacts: bool, state: Physics) -> jax.Array:
    """[O]: qpos from `first` on (13 or 15), qvel (14), contact forces (13, optional)."""
    parts = [state.qpos[first:], state.qvel]
    return jnp.concatenate(parts + ([_contact_forces(state)] if contacts else []))


def _contact_forces(state: Physics) -> jax.Array:
    """[13]: normal force of the contacts of each part, N, at most 1."""
    return jnp.minimum(state.sensors["contact"], CONTACT_LIMIT)


def _towards_target(
    before: Physics, after: Physics, params: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """MAML's bonus of 1 keeps the reward from being negative, and 0.05 is for being healthy."""
    velocity = _velocity(before, after)[0]
    return 1.05 - jnp.abs(velocity - params["target"]), velocity


def _along_x(
    before: Physics, after: Physics, params: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    velocity = _velocity(before, after)[0]
    return 1.0 + params["direction"] * velocity, velocity


def _along_angle(
    before: Physics, after: Physics, params: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    velocity, angle = _velocity(before, after), params["angle"]
    along = velocity[0] * jnp.cos(angle) + velocity[1] * jnp.sin(angle)
    return 1.0 + along, along


def _near_goal(
    before: Physics, after: Physics, params: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    distance = jnp.abs(after.qpos[:2] - params["goal"]).sum()
    return -distance, distance


def _velocity(before: Physics, after: Physics) -> jax.Array:
    """[2], m/s: the torso's mean over the step; its joint is at its origin."""
    moved: jax.Array = after.qpos[:2] - before.qpos[:2]
    return moved / STEP_SECONDS


def _outcome(
    family: _Family,
    contacts: bool,
    before: Physics,
    action: jax.Array,
    after: Physics,
    params: Mapping[str, jax.Array],
) -> Step:
    reward, figure = family.progress(before, after, params)
    control_cost = family.control_cost * squared_norm(action)
    if contacts:
        reward = reward - CONTACT_COST * squared_norm(_contact_forces(after))
    low, high = HEALTHY_HEIGHT
    height = after.qpos[2]
    unhealthy = (height < low) | (height > high) if family.terminates else None
    return Step(
        reward=reward - control_cost,
        terminated=unhealthy,
        info={family.info: figure, "control_cost": control_cost},
    )
