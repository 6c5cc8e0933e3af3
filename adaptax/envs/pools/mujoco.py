"""MujocoPool: every lane stepped by one native call; all else is vectorised over the lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco.rollout import Rollout

from adaptax.core.cores import usable_cores
from adaptax.core.devices import processor
from adaptax.core.errors import EnvironmentFault, check
from adaptax.core.experience import PyTree, Step
from adaptax.core.step import ends
from adaptax.envs.env import episode_key
from adaptax.envs.physics import native
from adaptax.envs.physics.body import Body
from adaptax.envs.physics.env import forwarded
from adaptax.envs.physics.task_models import TaskModels
from adaptax.envs.pools.pool import SlotNotFinite, Slots, check_actions, check_reset, idle
from adaptax.envs.task import Task


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
        processor()  # complains before anything has begun
        self.spec, self.num_slots = body.spec, num_slots
        self._body, model = body, body.model
        self.num_threads = min(num_threads or len(usable_cores()), num_slots)
        # A pool of one thread would only add a hand-over: 0 steps on the calling thread.
        self._rollout = Rollout(nthread=self.num_threads if self.num_threads > 1 else 0)
        self._data = [mujoco.MjData(model) for _ in range(self.num_threads)]
        self._models = [model] * num_slots
        self._buffers = _Buffers(model, num_slots, body.frame_skip)
        self._task_models, self._functions = TaskModels(body), _functions(body)
        low, high = model.actuator_ctrlrange.T
        self._control_centre, self._control_half_range = (low + high) / 2, (high - low) / 2

        self._every_slot = np.arange(num_slots)
        self._state = np.zeros((num_slots, self._buffers.states.shape[-1]))
        self._obs = np.zeros((num_slots, self.spec.observation_size), np.float32)
        self._seeds = np.zeros(num_slots, np.uint32)
        self._slots = Slots(num_slots)
        self._params = {n: np.zeros((num_slots, *shape)) for n, shape in body.task_params.items()}

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        check_reset(slots, seeds, tasks)
        self._set_tasks(slots, tasks)
        noise = self._over_lanes(self._functions.reset_noise, seeds.astype(np.uint32))
        with jax.enable_x64(True):
            state = self._over_lanes(self._functions.initial_state, noise)
        # Sensors are computed before integration: those of one discarded substep are the start's.
        _, sensors = self._simulate(slots, state, _Buffers(self._body.model, len(slots), 1))
        with jax.enable_x64(True):
            obs = self._over_lanes(self._functions.observation, (state, sensors[:, 0]))
        self._slots.num_steps[slots] = 0
        self._slots.require_finite(obs, slots, "the observation after the reset")
        self._state[slots], self._obs[slots], self._seeds[slots] = state, obs, seeds
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
        params = {name: values[where] for name, values in self._params.items()}
        seen = (before_state, sensors[:, 0], action, state, sensors[:, -1], params)
        with jax.enable_x64(True):
            step = self._over_lanes(self._functions.outcome, seen)
        self._check_physics(slots, before_state, state)
        self._slots.require_finite(step.next_obs, slots, "the observation")
        self._slots.require_finite(step.reward, slots, "the reward")
        self._state[where], self._obs[where] = state, step.next_obs
        self._slots.num_steps[where] += 1
        return self._completed(where, step)

    def save(self) -> PyTree:
        """The state of all slots in mid-episode, each array [P, ...], as a CompiledPool's."""
        steps = self._slots.num_steps.astype(np.int32)
        lanes = (native.to_words(self._state), self._obs, self._seeds, steps)
        return {str(i): x.copy() for i, x in enumerate(lanes)}

    def restore(
        self, saved: PyTree, tasks: Sequence[Task], at_work: Callable[[], None] = idle
    ) -> None:
        """Go on exactly where `save` stood; `tasks` are those of the P slots."""
        words = np.ascontiguousarray(saved["0"])
        expected = (self.num_slots, 2 * self._state.shape[1])
        if words.shape != expected:
            raise EnvironmentFault(
                f"the saved state has shape {words.shape}; "
                f"this pool of {self.num_slots} slots takes {expected}"
            )
        self._set_tasks(self._every_slot, tasks)
        self._state[:], self._obs[:] = words.view(np.float64), saved["1"]
        self._seeds[:], self._slots.num_steps[:] = saved["2"], saved["3"]
        self._slots.running[:] = True

    def simulation(self, slot: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """MuJoCo's model and data of a slot, to draw it."""
        return self._models[slot], forwarded(self._models[slot], self._state[slot])

    def close(self) -> None:
        """End the threads and free the simulations."""
        self._rollout.close()
        self._data.clear()
        self._slots.running[:] = False

    def _set_tasks(self, slots: np.ndarray, tasks: Sequence[Task]) -> None:
        for slot, task in zip(slots.tolist(), tasks, strict=True):
            if task is self._slots.tasks[slot]:
                continue
            params = self._task_models.params(task)
            # Until all of it is written: a wrong value below may raise.
            self._slots.tasks[slot] = None
            for name, value in params.items():
                self._params[name][slot] = value
            self._models[slot] = self._task_models.model(params)
            self._slots.tasks[slot] = task

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
        share = math.ceil(num / self.num_threads)
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

    def _over_lanes(self, function: Callable[[Any], Any], rows: Any) -> Any:
        """`function` of leaves [K, ...], made up to all P lanes: one program for any number.

        On the CPU, where MuJoCo is.
        """
        num = len(jax.tree.leaves(rows)[0])
        if num < self.num_slots:

            def padded(x: Any) -> np.ndarray:
                return np.concatenate([x, np.zeros((self.num_slots - num, *x.shape[1:]), x.dtype)])

            rows = jax.tree.map(padded, rows)
        with jax.default_device(processor()):
            return jax.tree.map(lambda x: np.array(x)[:num], function(rows))

    def _completed(self, where: slice | np.ndarray, step: Step) -> Step:
        """The whole of the step, with the time limit where the episode did not terminate."""
        last = self._slots.num_steps[where] >= self.spec.horizon
        terminated, truncated = ends(self.spec, step.terminated, step.truncated, last)
        self._slots.running[where] = ~(terminated | truncated)
        return replace(step, terminated=terminated, truncated=truncated)

    def _check_physics(self, slots: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        """Raise where MuJoCo gave up: it resets a diverged lane silently, and its clock with it."""
        timestep = self._body.model.opt.timestep
        elapsed = after[:, 0] - before[:, 0]
        whole = np.abs(elapsed - self._body.frame_skip * timestep) < 0.5 * timestep
        self._slots.require(whole, slots, "the simulation diverged", SlotNotFinite)


@dataclass(frozen=True)
class _Functions:
    """A body's functions, compiled, over lanes; all but `reset_noise` want float64 enabled."""

    reset_noise: Callable[[Any], Any]
    initial_state: Callable[[Any], Any]
    observation: Callable[[Any], Any]
    outcome: Callable[[Any], Any]


@cache
def _functions(body: Body) -> _Functions:
    def reset_noise(seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        return body.reset_noise(episode_key(seed, 0))

    def observation(seen: tuple[jax.Array, jax.Array]) -> jax.Array:
        return body.observation(body.physics(*seen)).astype(jnp.float32)

    def outcome(seen: tuple[Any, ...]) -> Step:
        before, first, action, after, last, params = seen
        states = body.physics(before, first), body.physics(after, last)
        return body.float32_step(states[0], action, states[1], params)

    functions = (reset_noise, body.initial_state, observation, outcome)
    return _Functions(*(jax.jit(jax.vmap(function)) for function in functions))
