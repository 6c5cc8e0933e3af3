"""What tests of the locomotion families share: the families, players, single steps, golden records.

The records of `golden/` are steps (task, state, action, observation, reward, terminated). They are
written anew, after a change of physics or reward that is meant, by this command alone:

    python tests/envs/families.py record [FAMILY ...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np

from adaptax.envs.physics.body import Body
from adaptax.envs.pools.mujoco import MujocoPool
from adaptax.envs.pools.pool import Pool
from adaptax.envs.suite import Suite
from adaptax.envs.task import Task
from adaptax.experiment.build import make_suite

GOLDEN = Path(__file__).parent / "golden"
NUM_RECORDS = 5
FAMILIES = (
    "half-cheetah-vel",
    "half-cheetah-dir",
    "ant-vel",
    "ant-dir",
    "ant-dir-2d",
    "ant-goal",
    "humanoid-dir",
    "walker-vel",
    "walker-params",
    "hopper-params",
    "swimmer-vel",
)
DYNAMICS = ("walker-params", "hopper-params")
FALLING = ("humanoid-dir", "walker-vel", "walker-params", "hopper-params")
"""Families in which random actions soon end an episode."""
UNENDING = ("half-cheetah-vel", "half-cheetah-dir", "ant-goal", "swimmer-vel")
"""Families in which nothing but the horizon ends an episode."""
Records = list[dict[str, Any]]


@cache
def family(name: str, **settings: Any) -> Suite:
    return make_suite(name, **{"num_threads": 1, **settings})


def seeds_from(first: int, num: int) -> np.ndarray:
    return np.arange(first, first + num, dtype=np.uint32)


def random_actions(size: int, num_steps: int, num_lanes: int, seed: int = 0) -> np.ndarray:
    """[T, K, A], uniform."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (num_steps, num_lanes, size)).astype(np.float32)


def some_tasks(suite: Suite, num: int) -> list[Task]:
    """Another task in every lane, as far as there are other ones."""
    assert suite.test.tasks is not None
    return [suite.test.tasks[i % len(suite.test.tasks)] for i in range(num)]


def started(suite: Suite, num_slots: int, *, seed: int = 0, tasks=None) -> Pool:
    pool = suite.make_pool(num_slots)
    tasks = some_tasks(suite, num_slots) if tasks is None else tasks
    pool.reset(np.arange(num_slots), seeds_from(seed, num_slots), tasks)
    return pool


def play(
    pool: Pool, tasks: Sequence[Task], actions: np.ndarray, order: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """What the slots saw [T, P, ...], each starting anew by itself where an episode ends.

    `order` [T, P] steps the slots of step t in that order, in three calls of changing sizes.
    """
    num, seen = pool.num_slots, []
    for t, action in enumerate(actions):
        slots = np.arange(num) if order is None else order[t]
        row = {}
        for part in [slots] if order is None else np.split(slots, [1, 1 + t % (num - 1)]):
            result = pool.step(part, action[part])
            ended = part[result.terminated | result.truncated]
            start = pool.reset(ended, seeds_from(0, num)[ended] + 97 * t, [tasks[i] for i in ended])
            facts = {
                "obs": result.next_obs,
                "reward": result.reward,
                "terminated": result.terminated,
                "truncated": result.truncated,
            }
            for name, values in facts.items():
                row.setdefault(name, np.zeros((num, *values.shape[1:]), values.dtype))[part] = (
                    values
                )
            row.setdefault("start", np.zeros((num, start.shape[1]), start.dtype))[ended] = start
        seen.append(row)
    return {name: np.stack([row[name] for row in seen]) for name in seen[0]}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def put(pool: Pool, state: Sequence[float], task: Task) -> None:
    """Put a physical state (time, qpos, qvel) into the only slot."""
    pool.reset(np.arange(1), np.zeros(1, np.uint32), [task])
    saved = pool.save()
    words = np.asarray(state, np.float64).view(np.uint32)
    pool.restore(saved | {"0": words[None], "3": np.zeros(1, np.int32)}, [task])


def body(pool: Pool) -> Body:
    """The body of a pool, inside the program or on the host."""
    return pool._body if isinstance(pool, MujocoPool) else pool.env.body


def models(pool: Pool) -> list[mujoco.MjModel]:
    """The model of every slot."""
    return pool._models if isinstance(pool, MujocoPool) else pool._kept


def states(pool: Pool) -> np.ndarray:
    """Time, qpos and qvel of all slots [P, S]."""
    return np.array(pool.save()["0"]).view(np.float64)


def mujoco_step(
    model: mujoco.MjModel, state: np.ndarray, control: np.ndarray, num_substeps: int
) -> mujoco.MjData:
    """Plain MuJoCo's data, everything up to date, so many substeps after `state`.

    The solver starts cold, as in the pool; with that, single steps are equal to the last bit.
    """
    data = mujoco.MjData(model)
    data.time, data.ctrl[:] = state[0], control
    data.qpos[:], data.qvel[:] = state[1 : 1 + model.nq], state[1 + model.nq :]
    mujoco.mj_step(model, data, nstep=num_substeps)
    mujoco.mj_forward(model, data)
    return data


def gymnasium_model(env_id: str) -> mujoco.MjModel:
    """The model of Gymnasium's own environment."""
    return gymnasium.make(env_id).unwrapped.model


def read_golden(name: str) -> Records:
    return json.loads(golden_path(name).read_text())


def golden_path(name: str) -> Path:
    return GOLDEN / f"{name.replace('-', '_')}.json"


def record_golden(name: str) -> None:
    """Write five single steps, ten apart, of random actions."""
    suite = family(name)
    task, records = some_tasks(suite, 2)[1], []
    pool = started(suite, 1, tasks=[task])
    for t, action in enumerate(random_actions(suite.spec.action.size, 10 * NUM_RECORDS, 1)):
        state = states(pool)[0]
        result = pool.step(np.arange(1), action)
        if t % 10 == 0:
            arrays = {"state": state, "action": action[0], "obs": result.next_obs[0]}
            record = {"task": task.plain()[2]} | {k: v.tolist() for k, v in arrays.items()}
            ends = {"reward": float(result.reward[0]), "terminated": bool(result.terminated[0])}
            records.append(record | ends)
        if result.terminated[0]:
            pool.reset(np.arange(1), seeds_from(t, 1), [task])
    golden_path(name).write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] != ["record"]:
        sys.exit(__doc__)
    for family_name in sys.argv[2:] or FAMILIES:
        record_golden(family_name)
