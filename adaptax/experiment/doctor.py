"""What this machine is and how fast it steps environments."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from adaptax.envs.suite import Suite
from adaptax.experiment.build import make_suite
from adaptax.experiment.provenance import provenance
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler


def examine() -> dict[str, Any]:
    """Versions, cores, device, GL backend and measured environment steps a second."""
    mujoco_suite = make_suite("half-cheetah-vel")
    about = provenance(mujoco_suite)
    about.pop("task_set"), about.pop("engine")
    return {
        **about,
        "physics": mujoco_suite.note or "MuJoCo runs inside compiled programs",
        "gl_backend": os.environ.get("MUJOCO_GL", "not set"),
        "steps_per_second": {
            "half-cheetah-vel, 64 lanes": _rate(mujoco_suite, 64),
            "point-goal, 4096 lanes": _rate(make_suite("point-goal"), 4096),
        },
    }


def _rate(suite: Suite, num_lanes: int) -> int:
    """Steps a second of the sampler with random actions, over about a second."""
    sampler = Sampler(suite, suite.train, 0, "doctor")
    actor = UniformActor(suite.spec.action)
    tasks = sampler.sample_tasks(1)
    sampler.episodes(actor, tasks, num_lanes, 1)  # compiles
    before, started = sampler.num_steps, time.perf_counter()
    while time.perf_counter() - started < 1.0:
        np.asarray(sampler.episodes(actor, tasks, num_lanes, 1).reward)
    rate = (sampler.num_steps - before) / (time.perf_counter() - started)
    sampler.close()
    return round(rate)
