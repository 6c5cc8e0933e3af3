"""A task's parameters and its MuJoCo model, checked, and one model for all lanes that share it."""

from __future__ import annotations

from weakref import WeakValueDictionary

import mujoco
import numpy as np

from adaptax.core.errors import ConfigError, check
from adaptax.envs.physics.body import Body
from adaptax.envs.task import Task


class TaskModels:
    """The models of a body's tasks; none outlives those who hold it."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._models: WeakValueDictionary[bytes, mujoco.MjModel] = WeakValueDictionary()

    def params(self, task: Task) -> dict[str, np.ndarray]:
        """A task's parameters in float64; a one-line error unless they are the body's."""
        shapes = self._body.task_params
        check(
            task.params.keys() == shapes.keys(),
            f"task {task.name!r} has the parameters {sorted(task.params)}; "
            f"the environment takes {sorted(shapes)}",
        )
        for name, value in task.params.items():
            if np.asarray(value).dtype.kind not in "biuf":
                raise ConfigError(f"{name!r} of task {task.name!r} is {value!r}, not numbers")
            check(
                np.shape(value) == shapes[name],
                f"{name!r} of task {task.name!r} has the shape {np.shape(value)}; "
                f"the environment takes {shapes[name]}",
            )
        return {name: np.asarray(task.params[name], np.float64) for name in shapes}

    def model(self, params: dict[str, np.ndarray]) -> mujoco.MjModel:
        """The model for a task's parameters."""
        make = self._body.task_model
        if make is None:
            return self._body.model
        key = b"".join(values.tobytes() for values in params.values())
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = make(params)
        return model
