"""MujocoPool: every lane stepped by one native call; all else is vectorised over the lanes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from adaptax.core.errors import EnvironmentFault, check
from adaptax.core.experience import PyTree, Step
from adaptax.envs.physics.body import Body, Physics
from adaptax.envs.pools.pool import SlotNotFinite, Slots, check_actions, check_reset
from adaptax.envs.task import Params, Task


class _Buffers:
    """Where MuJoCo reads controls and writes states for up to K lanes over S substeps."""

    def __init__(self, model: mujoco.MjModel, num_lanes: int, num_substeps: int) -> None:
        state_size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
        self.control = np.zeros((num_lanes, num_substeps, model.nu))
        self.states = np.empty((num_lanes, num_substeps, state_size))
        self.sensors = np.empty((num_lanes, num_substeps, model.nsensordata))


class MujocoPool:
    """P lanes of one body, stepped together in native threads.

    The physics starts from the bare state at every step (no solver warm start), so this state is
    all there is: lanes, threads and the order of calls change nothing, and save is exact. Where
    tasks change the dynamics, lanes on the same task share its model; none outlives its lanes.
    """

    def __init__(self, body: Body, num_slots: int, num_threads: int = 0) -> None:
        check(num_slots > 0, f"num_slots must be greater than 0, not {num_slots}")
        check(num_threads >= 0, f"num_threads must not be negative, but is {num_threads}")
        self.spec, self.num_slots = body.spec, num_slots
        self._body, model = body, body.model
        self._num_threads = min(num_threads or len(os.sched_getaffinity(0)), num_slots)
        # A pool of one thread would only add a hand-over: 0 steps on the calling thread.
        self._rollout = Rollout(nthread=self._num_threads if self._num_threads > 1 else 0)
        self._data = [mujoco.MjData(model) for _ in range(self._num_threads)]
        self._models = [model] * num_slots
        self._task_models: WeakValueDictionary[bytes, mujoco.MjModel] = WeakValueDictionary()
        self._buffers = _Buffers(model, num_slots, body.frame_skip)
        low, high = model.actuator_ctrlrange.T
        self._control_centre, self._control_half_range = (low + high) / 2, (high - low) / 2
        self._sensor_slices = _sensor_slices(model)

        self._every_slot = np.arange(num_slots)
        self._state = np.zeros((num_slots, self._buffers.states.shape[-1]))
        self._slots = Slots(num_slots)
        self._params = {n: np.zeros((num_slots, *shape)) for n, shape in body.task_params.items()}

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        check_reset(slots, seeds, tasks)
        self._set_tasks(slots, tasks)
        state = np.zeros((len(slots), self._state.shape[1]))
        for row, seed in zip(state, seeds, strict=True):
            row[:] = self._initial_state(int(seed))
        # Sensors are computed before integration: those of one discarded substep are the start's.
        _, sensors = self._simulate(slots, state, _Buffers(self._body.model, len(slots), 1))
        obs = self._body.observation(self._physics(state, sensors[:, 0])).astype(np.float32)
        self._slots.num_steps[slots] = 0
        self._slots.require_finite(obs, slots, "the observation after the reset")
        self._state[slots] = state
        self._slots.running[slots] = True
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in K slots; actions [K, A], clipped to [-1, 1] and scaled to the control range."""
        check_actions(self.spec, actions, len(slots))
        running = self._slots.running.take(slots)
        self._slots.require(running, slots, "no running episode: reset it first")
        where = self._index(slots)
        action = np.clip(actions, -1.0, 1.0).astype(np.float64)
        self._slots.require_finite(action, slots, "the action")
        before_state = self._state[where]
        control = self._control_centre + self._control_half_range * action
        states, sensors = self._simulate(slots, before_state, self._buffers, control)
        state = states[:, -1]
        before = self._physics(before_state, sensors[:, 0])
        after = self._physics(state, sensors[:, -1])
        params = {name: values[where] for name, values in self._params.items()}
        outcome = self._body.outcome(before, action, after, params)
        obs = self._body.observation(after).astype(np.float32)
        self._check_physics(slots, before_state, state)
        self._slots.require_finite(obs, slots, "the observation")
        self._slots.require_finite(outcome.reward, slots, "the reward")
        self._state[where] = state
        self._slots.num_steps[where] += 1
        return self._whole(where, obs, outcome)

    def save(self) -> PyTree:
        """The state of all slots in mid-episode, each array [P, ...]."""
        return {
            "state": self._state.copy(),
            "num_steps": self._slots.num_steps.copy(),
            "running": self._slots.running.copy(),
        }

    def restore(self, saved: PyTree, tasks: Sequence[Task]) -> None:
        """Go on exactly where `save` stood; `tasks` are those of the P slots."""
        if np.shape(saved["state"]) != self._state.shape:
            raise EnvironmentFault(
                f"the saved state has shape {np.shape(saved['state'])}; "
                f"this pool of {self.num_slots} slots takes {self._state.shape}"
            )
        self._set_tasks(self._every_slot, tasks)
        self._state[:] = saved["state"]
        self._slots.num_steps[:], self._slots.running[:] = saved["num_steps"], saved["running"]

    def simulation(self, slot: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """MuJoCo's model and data of a slot, to draw it."""
        model, data = self._models[slot], mujoco.MjData(self._models[slot])
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        mujoco.mj_setState(model, data, self._state[slot], kind)
        mujoco.mj_forward(model, data)
        return model, data

    def close(self) -> None:
        """End the threads and free the simulations."""
        self._rollout.close()
        self._data.clear()
        self._slots.running[:] = False

    def _set_tasks(self, slots: np.ndarray, tasks: Sequence[Task]) -> None:
        for slot, task in zip(slots.tolist(), tasks, strict=True):
            if task is self._slots.tasks[slot]:
                continue
            if task.params.keys() != self._params.keys():
                raise EnvironmentFault(
                    f"slot {slot}: task {task.name!r} has the parameters {sorted(task.params)}; "
                    f"the environment takes {sorted(self._params)}"
                )
            # Until all of it is written: a wrong value below may raise.
            self._slots.tasks[slot] = None
            for name, value in task.params.items():
                self._set_param(slot, task, name, value)
            self._models[slot] = self._task_model(slot, task.params)
            self._slots.tasks[slot] = task

    def _set_param(self, slot: int, task: Task, name: str, value: Any) -> None:
        """Write one parameter of a slot's task; its shape must be the environment's."""
        expected = self._body.task_params[name]
        if np.shape(value) != expected:
            raise EnvironmentFault(
                f"slot {slot}: {name!r} of task {task.name!r} has the shape {np.shape(value)}; "
                f"the environment takes {expected}"
            )
        self._params[name][slot] = value

    def _task_model(self, slot: int, params: Params) -> mujoco.MjModel:
        """The model for a slot's parameters, one for all lanes whose parameters are the same."""
        make = self._body.task_model
        if make is None:
            return self._body.model
        key = b"".join(values[slot].tobytes() for values in self._params.values())
        model = self._task_models.get(key)
        if model is None:
            model = self._task_models[key] = make(params)
        return model

    def _initial_state(self, seed: int) -> np.ndarray:
        """Time, qpos, qvel and actuator activations at the start of the episode `seed`."""
        model = self._body.model
        qpos, qvel = self._body.reset_noise(np.random.default_rng(seed))
        return np.concatenate([[0.0], model.qpos0 + qpos, qvel, np.zeros(model.na)])

    def _index(self, slots: np.ndarray) -> slice | np.ndarray:
        """An index for `slots`: a slice if they are all slots, so that nothing is gathered."""
        return slice(None) if np.array_equal(slots, self._every_slot) else slots

    def _simulate(
        self,
        slots: np.ndarray,
        start: np.ndarray,
        buffers: _Buffers,
        control: np.ndarray | float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """States after each substep of `buffers`, and sensors before it, from `start` [K, S]."""
        num = len(start)
        states, sensors = buffers.states[:num], buffers.sensors[:num]
        # Unchecked, MuJoCo crashes on no lane at all or on more lanes than the outputs hold.
        if num != len(states):
            raise EnvironmentFault(f"{num} slots were given to a pool of {self.num_slots}")
        buffers.control[:num] = control if isinstance(control, float) else control[:, None]
        share = math.ceil(num / self._num_threads)
        every = isinstance(self._index(slots), slice)
        models = self._models if every else [self._models[slot] for slot in slots.tolist()]
        if num:
            self._rollout.rollout(
                models,
                self._data,
                start,
                buffers.control[:num],
                skip_checks=True,
                nstep=states.shape[1],
                state=states,
                sensordata=sensors,
                # Four chunks a thread: one that wakes up late leaves the others more. Measured, in
                # the sampler: 1.1 times as fast as one chunk a thread. Below eight lanes the
                # hand-over costs more than it evens out.
                chunk_size=max(math.ceil(share / 4), min(8, share)),
            )
        return states, sensors

    def _physics(self, state: np.ndarray, sensors: np.ndarray) -> Physics:
        nq, nv = self._body.model.nq, self._body.model.nv
        return Physics(
            qpos=state[:, 1 : 1 + nq],
            qvel=state[:, 1 + nq : 1 + nq + nv],
            sensors={name: sensors[:, where] for name, where in self._sensor_slices.items()},
        )

    def _whole(self, where: slice | np.ndarray, obs: np.ndarray, outcome: Step) -> Step:
        """The whole of the step, with the time limit where the episode did not terminate."""
        terminated = outcome.terminated
        if terminated is None:
            terminated = np.zeros(len(obs), bool)
        truncated = (self._slots.num_steps[where] >= self.spec.horizon) & ~terminated
        self._slots.running[where] = ~(terminated | truncated)
        info = {name: outcome.info[name].astype(np.float32) for name in self.spec.info_names}
        if self.spec.has_success:
            info["success"] = outcome.info["success"]
        return Step(
            reward=outcome.reward.astype(np.float32),
            next_obs=obs,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )

    def _check_physics(self, slots: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        """Raise where MuJoCo gave up: it resets a diverged lane silently, and its clock with it."""
        timestep = self._body.model.opt.timestep
        elapsed = after[:, 0] - before[:, 0]
        whole = np.abs(elapsed - self._body.frame_skip * timestep) < 0.5 * timestep
        self._slots.require(whole, slots, "the simulation diverged", SlotNotFinite)


def _sensor_slices(model: mujoco.MjModel) -> dict[str, slice]:
    """Where each named sensor, or group of sensors, of the model lies in its sensor data."""
    slices: dict[str, slice] = {}
    for i, (start, size) in enumerate(zip(model.sensor_adr, model.sensor_dim, strict=True)):
        name = model.sensor(i).name.partition("/")[0]
        slices[name] = slice(slices[name].start if name in slices else start, start + size)
    return slices
