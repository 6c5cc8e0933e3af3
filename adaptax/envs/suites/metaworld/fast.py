"""Meta-World's environment classes with less Python around the same physics.

Three quarters of a step of theirs is Python: names looked up, arrays put together, rotations and
rewards computed by functions made for batches. Here the same numbers come out, to the last bit
(tests/envs/test_metaworld_parity.py compares all 50 classes), from views taken once and from
arithmetic on plain floats. Physics, rewards and resets remain Meta-World's.
"""

from __future__ import annotations

import math
from types import FunctionType, SimpleNamespace
from typing import Any

import mujoco
import numpy as np
from metaworld.sawyer_xyz_env import SawyerXYZEnv
from metaworld.utils import reward_utils
from scipy.spatial.transform import Rotation

VALUE_AT_MARGIN = 0.1
"""Meta-World's only one, `reward_utils._DEFAULT_VALUE_AT_MARGIN`."""
LONG_TAIL_SCALE = math.sqrt(1 / VALUE_AT_MARGIN - 1)
GAUSSIAN_SCALE = float(np.sqrt(-2 * np.log(VALUE_AT_MARGIN)))
ORTHOGONAL = 1e-13
"""Rows whose products are within this of 0 and 1 make a rotation that SciPy takes as it is."""


def fast_class(original: type[Any]) -> type[Any]:
    """A subclass of one of Meta-World's classes that steps to the same bits in less time."""
    replaced = {"reward_utils": FastRewards, "Rotation": FastRotation, "np": FAST_NUMPY}
    methods: dict[str, Any] = {}
    for base in reversed(original.__mro__):
        if issubclass(base, SawyerXYZEnv):
            methods |= {
                name: _with_globals(value, replaced)
                for name, value in vars(base).items()
                if _mentions(value, replaced)
            }
    same_steps = type(original.__name__, (original,), methods)
    return type(original.__name__, (_FastSteps, same_steps), {})


def fast_norm(x: Any, *more: Any, **named: Any) -> Any:
    """`numpy.linalg.norm`, in a third of the time for a plain vector."""
    plain = type(x) is np.ndarray and x.ndim == 1 and x.dtype == np.float64
    if plain and x.flags.c_contiguous and not (more or named):
        return np.sqrt(x.dot(x))
    return np.linalg.norm(x, *more, **named)


FAST_NUMPY = SimpleNamespace(
    **{**vars(np), "linalg": SimpleNamespace(**{**vars(np.linalg), "norm": fast_norm})}
)
"""NumPy as Meta-World's methods see it."""


class FastRewards:
    """What Meta-World's rewards use of `metaworld.utils.reward_utils`."""

    hamacher_product = staticmethod(reward_utils.hamacher_product)
    inverse_tolerance = staticmethod(reward_utils.inverse_tolerance)
    rect_prism_tolerance = staticmethod(reward_utils.rect_prism_tolerance)

    @staticmethod
    def tolerance(
        x: Any,
        bounds: tuple[float, float] = (0.0, 0.0),
        margin: Any = 0.0,
        sigmoid: str = "gaussian",
        value_at_margin: float = VALUE_AT_MARGIN,
    ) -> Any:
        """1 within the bounds, falling to `value_at_margin` at `margin` from them."""
        lower, upper = float(bounds[0]), float(bounds[1])
        plain = isinstance(x, float) and value_at_margin == VALUE_AT_MARGIN
        if not plain or sigmoid not in ("long_tail", "gaussian") or lower > upper or margin < 0:
            return reward_utils.tolerance(x, bounds, margin, sigmoid, value_at_margin)  # type: ignore[arg-type]
        x, margin = float(x), float(margin)
        if lower <= x <= upper:
            return 1.0
        if margin == 0.0:
            return 0.0
        distance = (lower - x if x < lower else x - upper) / margin
        if not distance < 1e100:
            return reward_utils.tolerance(x, bounds, margin, sigmoid)  # type: ignore[arg-type]
        if sigmoid == "long_tail":
            return 1.0 / ((distance * LONG_TAIL_SCALE) ** 2 + 1.0)
        return float(np.exp(-0.5 * (distance * GAUSSIAN_SCALE) ** 2))


class FastRotation:
    """What Meta-World's observations use of `scipy.spatial.transform.Rotation`."""

    def __init__(self, quat: np.ndarray) -> None:
        self._quat = quat

    @classmethod
    def from_matrix(cls, matrix: np.ndarray) -> FastRotation:
        """The rotation of a matrix [3, 3]."""
        (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()
        off = abs(a * d + b * e + c * f) + abs(a * g + b * h + c * i) + abs(d * g + e * h + f * i)
        on = abs(a * a + b * b + c * c - 1) + abs(d * d + e * e + f * f - 1)
        right_handed = a * (e * i - f * h) + b * (f * g - d * i) + c * (d * h - e * g) > 0
        if not (right_handed and off + on + abs(g * g + h * h + i * i - 1) < ORTHOGONAL):
            return cls(Rotation.from_matrix(matrix).as_quat())
        trace = a + e + i
        largest = max(a, e, i, trace)
        # Markley 2008, in SciPy's order: the first of the largest decides.
        if a == largest:
            quat = (1 - trace + 2 * a, d + b, g + c, h - f)
        elif e == largest:
            quat = (d + b, 1 - trace + 2 * e, h + f, c - g)
        elif i == largest:
            quat = (g + c, h + f, 1 - trace + 2 * i, d - b)
        else:
            quat = (h - f, c - g, d - b, 1 + trace)
        x, y, z, w = quat
        norm = math.sqrt(x * x + y * y + z * z + w * w)
        return cls(np.array((x / norm, y / norm, z / norm, w / norm)))

    def as_quat(self) -> np.ndarray:
        """[4], the scalar last."""
        return self._quat


class _FastSteps:
    """Overrides of SawyerXYZEnv: same results, found with fewer calls."""

    def get_body_com(self: Any, body_name: str) -> np.ndarray:
        return _view(self, "body", body_name)

    def get_endeff_pos(self: Any) -> np.ndarray:
        return _view(self, "body", "hand")

    def _get_site_pos(self: Any, site_name: str) -> np.ndarray:
        return _view(self, "site", site_name).copy()

    @property
    def tcp_center(self: Any) -> np.ndarray:
        right, left = (
            _view(self, "site", "rightEndEffector"),
            _view(self, "site", "leftEndEffector"),
        )
        centre: np.ndarray = (right + left) / 2.0
        return centre

    def touching_object(self: Any, object_geom_id: int) -> bool:
        contact, force = self.data.contact, self.data.efc_force
        pairs, address = contact.geom.tolist(), contact.efc_address.tolist()
        for pad in ("leftpad_geom", "rightpad_geom"):
            ids = {self.data.geom(pad).id, object_geom_id}
            touches = [k for k, pair in enumerate(pairs) if ids.issubset(pair)]
            if not sum(force[address[k]] for k in touches) > 0:
                return False
        return True

    def step(self: Any, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        model, data = self.model, self.data
        moved = data.mocap_pos[0] + np.minimum(np.maximum(action[:3], -1), 1) * self.action_scale
        data.mocap_pos[0] = np.minimum(np.maximum(moved, self.mocap_low), self.mocap_high)
        data.mocap_quat = (1, 0, 1, 0)
        data.ctrl = (action[3], -action[3])
        mujoco.mj_step(model, data, nstep=self.frame_skip)
        # Positions are those before the last substep until this; and the forces it leaves for
        # the next step to start from are part of the physics, so that no less will do.
        mujoco.mj_forward(model, data)
        self.curr_path_length += 1
        space = self.sawyer_observation_space
        obs = np.minimum(np.maximum(self._get_obs(), space.low), space.high)
        self._last_stable_obs = obs
        reward, info = self.evaluate_state(obs, action)
        return obs, reward, False, self.curr_path_length == self.max_path_length, info

    def _get_obs(self: Any) -> np.ndarray:
        obs = np.zeros(39)
        current = self._get_curr_obs_combined_no_goal()
        obs[:18], obs[18:36] = current, self._prev_obs
        if not self._partially_observable:
            obs[36:] = self._get_pos_goal()
        self._prev_obs = current
        return obs

    def _get_curr_obs_combined_no_goal(self: Any) -> np.ndarray:
        obs = np.zeros(18)
        gap = _view(self, "body", "rightclaw") - _view(self, "body", "leftclaw")
        obs[:3] = _view(self, "body", "hand")
        obs[3] = min(max(math.sqrt(gap.dot(gap)) / 0.1, 0.0), 1.0)
        position, rotation = self._get_pos_objects(), self._get_quat_objects()
        for k in range(len(position) // 3):
            obs[4 + 7 * k : 7 + 7 * k] = position[3 * k : 3 * k + 3]
            obs[7 + 7 * k : 11 + 7 * k] = rotation[4 * k : 4 * k + 4]
        return obs


def _view(env: Any, kind: str, name: str) -> np.ndarray:
    """Where a body or a site is [3], in the simulation's own memory."""
    views = env.__dict__.setdefault("_views", {})
    if name not in views:
        views[name] = getattr(env.data, kind)(name).xpos
    view: np.ndarray = views[name]
    return view


def _mentions(value: Any, names: dict[str, Any]) -> bool:
    function = value.__func__ if isinstance(value, staticmethod) else value
    return isinstance(function, FunctionType) and not names.keys().isdisjoint(
        function.__code__.co_names
    )


def _with_globals(value: Any, names: dict[str, Any]) -> Any:
    """The same function seeing other things under some global names."""
    function = value.__func__ if isinstance(value, staticmethod) else value
    code, seen = function.__code__, {**function.__globals__, **names}
    copy = FunctionType(code, seen, code.co_name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return staticmethod(copy) if isinstance(value, staticmethod) else copy
