"""An environment that shows a step counter, for tests of whatever runs environments.

In a module of its own: worker processes import it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from adaptax.envs.task import Task

PLAIN = Task("plain", 0, {})


class Counting(gymnasium.Env):
    """Its observation is the step counter; its options say what happens at which count.

    `ends_at` and `cut_at` end the episode, `nan_at` and `huge_at` give a NaN and 1e39 as the
    reward, `raise_at` raises, `exit_at` and `kill_at` end the process, `hang_at` sleeps; every step
    takes `sleep` seconds. With `once`, the name of a file, the process is killed only if there is
    no such file yet.
    """

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Box(-2.0, 6.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options, self.count, self.seed = options or {}, 0, seed
        return self.obs(), {}

    def step(self, action):
        self.count += 1
        time.sleep(self.options.get("sleep", 0.0))
        if self.at("raise_at"):
            raise RuntimeError("motor on fire")
        if self.at("exit_at"):
            os._exit(3)
        if self.at("kill_at") and self.first_time():
            os.kill(os.getpid(), signal.SIGKILL)
        if self.at("hang_at"):
            time.sleep(600)
        odd = {"nan_at": np.nan, "huge_at": 1e39}
        reward = next((x for e, x in odd.items() if self.at(e)), float(action.sum()))
        return self.obs(), reward, self.at("ends_at"), self.at("cut_at"), self.info()

    def at(self, event: str) -> bool:
        return self.count == self.options.get(event)

    def first_time(self) -> bool:
        mark = self.options.get("once")
        if mark is None:
            return True
        if Path(mark).exists():
            return False
        Path(mark).touch()
        return True

    def obs(self):
        return np.array([self.count], np.float32)

    def info(self):
        return {"is_success": self.count >= 2}


class Random(gymnasium.Env):
    """A walk whose steps, rewards and end are drawn from its seed; the task is its drift."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drift = options["drift"]
        self.place = self.np_random.normal(size=2)
        return self.place.astype(np.float32), {}

    def step(self, action):
        noise = self.np_random.normal(size=2)
        self.place = self.place + action + noise + self.drift
        ends = bool(self.np_random.random() < 0.15)
        info = {"success": self.place[0] > 1}
        return self.place.astype(np.float32), self.place.sum(), ends, False, info


class Forgiving(Random):
    """Bears a reset without options, which is of drift 0."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options or {"drift": 0.0})


def sync(make_env, mode: AutoresetMode | str, num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([make_env] * num_envs, autoreset_mode=mode)


def begun(pool, *tasks: dict):
    """The pool with an episode begun in as many slots as there are tasks."""
    slots = np.arange(len(tasks))
    named = [Task(f"t{i}", i, params) for i, params in enumerate(tasks)]
    pool.reset(slots, slots.astype(np.uint32), named)
    return pool


def step(pool, num_slots: int):
    """A step of all slots of a pool of Counting, by no action."""
    return pool.step(np.arange(num_slots), np.zeros((num_slots, 2), np.float32))


def xla_threads(share) -> tuple[int, str]:
    """In a worker: threads that XLA computes with, and the type of its numbers."""
    x = jnp.ones((300, 300)) @ jnp.ones((300, 300))
    names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("tf_XLAEigen") for name in names), str(x.dtype)


CACHE_EVENTS: list[str] = []
"""In a worker: what its compilation cache said, `hits` and `misses`."""


def listen_to_cache(share) -> None:
    """In a worker: begin to write down `CACHE_EVENTS`."""

    def listener(event: str, **_) -> None:
        if "/compilation_cache/cache_" in event:
            CACHE_EVENTS.append(event.rpartition("_")[2])

    jax.monitoring.register_event_listener(listener)


def cache_events(share) -> list[str]:
    """In a worker: `CACHE_EVENTS`."""
    return CACHE_EVENTS
