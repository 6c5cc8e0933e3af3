"""HalfCheetah task families: run at a target velocity, or run in a direction.

Rewards and observations follow garage's HalfCheetahVelEnv and HalfCheetahDirEnv, which follow
MAML (Finn et al. 2017, arXiv 1703.03400, section 5.2); the body, the frame skip and the reset
noise are those of Gymnasium's HalfCheetah-v5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import mujoco
import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.rng import named_generator
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.envs.mujoco_pool import Body, MujocoPool, Outcome, Physics, load_model
from adaptax.envs.task import Suite, TaskDistribution, TaskList, TaskRange

FRAME_SKIP = 5
STEP_SECONDS = 0.05
"""Frame skip times the model's 0.01 s."""
CONTROL_COST = 0.05
RESET_NOISE = 0.1
NUM_JOINTS = 9


@dataclass(frozen=True)
class HalfCheetahVelConfig:
    """Run at a target velocity, drawn uniformly."""

    low: float = 0.0
    """Least target velocity, m/s."""
    high: float = 2.0
    """Greatest target velocity, m/s (garage 2, ProMP and PEARL 3)."""
    horizon: int = 100
    """Steps of an episode."""
    torso_position: bool = True
    """Whether observations end with the torso's position (garage; it shows the absolute x)."""
    num_train_tasks: int | None = None
    """Number of training tasks; None draws new ones for ever."""
    num_test_tasks: int = 50
    """Number of held-out tasks."""
    task_seed: int = 0
    """Seed of the listed tasks."""
    num_threads: int = 0
    """Threads that step the physics; 0 means one a core."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon", "num_train_tasks", "num_test_tasks")
        check(self.low < self.high, f"low must be less than high, not {self.low} and {self.high}")
        check(self.task_seed >= 0, f"task_seed must not be negative, but is {self.task_seed}")
        check(self.num_threads >= 0, f"num_threads must not be negative, but is {self.num_threads}")


@dataclass(frozen=True)
class HalfCheetahDirConfig:
    """Run forwards or backwards, as fast as possible."""

    horizon: int = 100
    """Steps of an episode."""
    torso_position: bool = True
    """Whether observations end with the torso's position (garage; it shows the absolute x)."""
    num_threads: int = 0
    """Threads that step the physics; 0 means one a core."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")
        check(self.num_threads >= 0, f"num_threads must not be negative, but is {self.num_threads}")


def half_cheetah_vel(config: HalfCheetahVelConfig) -> Suite:
    """HalfCheetah at a target velocity: reward -|v_x - target| - 0.05 |a|^2."""
    name = "half-cheetah-vel"
    draw = partial(_draw_target, config.low, config.high)

    def listed(split: str, num_tasks: int) -> TaskList:
        rng = named_generator(config.task_seed, name, split)
        return TaskList(f"{name}-{split}", [draw(rng) for _ in range(num_tasks)])

    train: TaskDistribution = TaskRange(f"{name}-train", draw)
    if config.num_train_tasks is not None:
        train = listed("train", config.num_train_tasks)
    spec = _spec(config.horizon, config.torso_position, trial_episodes=4)
    body = _body(spec, config.torso_position, "target")
    pool = partial(MujocoPool, body, num_threads=config.num_threads)
    return Suite(name, spec, train, listed("test", config.num_test_tasks), pool)


def half_cheetah_dir(config: HalfCheetahDirConfig) -> Suite:
    """HalfCheetah forwards or backwards: reward direction * v_x - 0.05 |a|^2.

    There are only two tasks: training and test tasks are the same.
    """
    name = "half-cheetah-dir"
    tasks = TaskList(name, [{"direction": 1.0}, {"direction": -1.0}])
    spec = _spec(config.horizon, config.torso_position, trial_episodes=2)
    body = _body(spec, config.torso_position, "direction")
    pool = partial(MujocoPool, body, num_threads=config.num_threads)
    return Suite(name, spec, tasks, tasks, pool)


def _draw_target(low: float, high: float, rng: np.random.Generator) -> dict[str, float]:
    return {"target": float(rng.uniform(low, high))}


def _spec(horizon: int, torso_position: bool, trial_episodes: int) -> EnvSpec:
    return EnvSpec(
        observation_size=20 if torso_position else 17,
        action=Continuous(6),
        horizon=horizon,
        trial_episodes=trial_episodes,
        info_names=("velocity", "control_cost"),
    )


def _body(spec: EnvSpec, torso_position: bool, param: str) -> Body:
    # XBODY is the body's own frame, the `xpos` of the originals; BODY would be its centre of mass.
    torso = (mujoco.mjtSensor.mjSENS_FRAMEPOS, mujoco.mjtObj.mjOBJ_XBODY, "torso")
    return Body(
        spec=spec,
        model=load_model("half_cheetah.xml", {"torso_position": torso}),
        frame_skip=FRAME_SKIP,
        task_params={param: ()},
        reset_noise=_reset_noise,
        observation=partial(_observation, torso_position),
        outcome=_velocity_outcome if param == "target" else _direction_outcome,
    )


def _reset_noise(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """HalfCheetah-v5: qpos + U(-0.1, 0.1), qvel + 0.1 N(0, 1)."""
    qpos = rng.uniform(-RESET_NOISE, RESET_NOISE, NUM_JOINTS)
    return qpos, RESET_NOISE * rng.standard_normal(NUM_JOINTS)


def _observation(torso_position: bool, state: Physics) -> np.ndarray:
    """[K, 20]: qpos without x (8), qvel (9), torso position (3, optional)."""
    parts = [state.qpos[:, 1:], state.qvel]
    if torso_position:
        parts.append(state.sensors["torso_position"])
    return np.concatenate(parts, axis=1)


def _velocity_outcome(
    before: Physics, action: np.ndarray, after: Physics, params: Mapping[str, np.ndarray]
) -> Outcome:
    velocity = _velocity(before, after)
    return _outcome(-np.abs(velocity - params["target"]), velocity, action)


def _direction_outcome(
    before: Physics, action: np.ndarray, after: Physics, params: Mapping[str, np.ndarray]
) -> Outcome:
    velocity = _velocity(before, after)
    return _outcome(params["direction"] * velocity, velocity, action)


def _velocity(before: Physics, after: Physics) -> np.ndarray:
    """[K], m/s: mean over the step along x."""
    distance: np.ndarray = after.qpos[:, 0] - before.qpos[:, 0]
    return distance / STEP_SECONDS


def _outcome(running: np.ndarray, velocity: np.ndarray, action: np.ndarray) -> Outcome:
    """`running` [K] less the cost of the controls; the cheetah never terminates or succeeds."""
    control_cost = CONTROL_COST * np.square(action).sum(axis=1)
    return Outcome(
        reward=running - control_cost,
        terminated=np.zeros(len(action), bool),
        success=np.zeros(len(action), bool),
        info={"velocity": velocity, "control_cost": control_cost},
    )
