"""Meta-World's environment classes with less Python around the same physics.

Three quarters of a step of theirs is Python: names looked up, arrays put together, rotations and
rewards computed by functions made for batches. Here the same numbers come out, to the last bit
(tests/envs/test_metaworld_parity.py compares all 50 classes), from views taken once and from
arithmetic on plain floats. Physics, rewards and resets remain Meta-World's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

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
MODEL_FIELDS = ("body_pos", "site_pos")
"""What a task changes in the model."""
STRAIGHT_DOWN = np.array([1.0, 0.0, 1.0, 0.0])
"""The quaternion that the hand's guide has in every step."""


@functools.cache
def fast_class(original: type[Any]) -> type[Any]:
    """A subclass of one of Meta-World's classes that steps to the same bits in less time.

    All its methods have code of their own, in which Python remembers what it found of a type: code
    that serves the objects of several classes in turns forgets it every time.
    """
    replaced = {"reward_utils": FastRewards, "Rotation": FastRotation, "np": FAST_NUMPY}
    methods: dict[str, Any] = {}
    for base in reversed(original.__mro__):
        if issubclass(base, SawyerXYZEnv):
            methods |= {
                name: with_globals(value, replaced)
                for name, value in vars(base).items()
                if _mentions(value, replaced)
            }
        if base is SawyerXYZEnv:
            # Some classes have their own.
            methods["_gripper_caging_reward"] = with_globals(_caging_reward, {})
    same_steps = type(original.__name__, (original,), methods)
    steps = {
        name: with_globals(value, {})
        for name, value in vars(_FastSteps).items()
        if isinstance(value, FunctionType | property)
    }
    return type(original.__name__, (same_steps,), steps)


def fast_norm(x: Any, ord: Any = None, **named: Any) -> Any:
    """`numpy.linalg.norm`, in less time for a plain vector or number."""
    if ord in (None, 2) and not named:
        if type(x) is np.ndarray and x.ndim == 1 and x.dtype == np.float64 and x.flags.c_contiguous:
            return np.float64(math.sqrt(x.dot(x)))
        if ord is None and isinstance(x, float):
            return np.float64(math.sqrt(x * x))
    return np.linalg.norm(x, ord, **named)


def fast_clip(x: Any, low: Any, high: Any) -> Any:
    """`numpy.clip`, in less time for a number within the bounds."""
    within = isinstance(x, (np.float32, np.float64)) and low <= x <= high
    return x if within else np.clip(x, low, high)


FAST_NUMPY = SimpleNamespace(
    **{
        **vars(np),
        "clip": fast_clip,
        "linalg": SimpleNamespace(**{**vars(np.linalg), "norm": fast_norm}),
    }
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


class SharedModel:
    """MuJoCo's model of a class, 20 MB, for all simulators of that class in a process."""

    kept: ClassVar[WeakValueDictionary[str, SharedModel]] = WeakValueDictionary()
    """Those in use, by their file."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._places = {name: getattr(model, name) for name in MODEL_FIELDS}
        self.new = self.fields()
        self.standing: dict[str, np.ndarray] | None = self.new
        """What was put into the model last, if nothing else has changed it since."""

    def fields(self) -> dict[str, np.ndarray]:
        """A copy of what a task changes."""
        return {name: place.copy() for name, place in self._places.items()}

    def put(self, fields: dict[str, np.ndarray]) -> None:
        """Have the model as `fields`, which nobody changes, say."""
        if self.standing is not fields:
            for name, values in fields.items():
                self._places[name][:] = values
            self.standing = fields


class _Views:
    """Where a simulation keeps what every step reads and writes, in its own memory."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.mocap_pos, self.mocap_quat, self.ctrl = (
            data.mocap_pos[0],
            data.mocap_quat[0],
            data.ctrl,
        )
        self.body = _ByName(lambda name: data.body(name).xpos)
        self.site = _ByName(lambda name: data.site(name).xpos)
        """Positions [3] by name."""
        self.pads = [data.geom(name).id for name in ("leftpad_geom", "rightpad_geom")]


class _ByName(dict[str, Any]):
    """What `find` finds of a name, found once."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self.find = find

    def __missing__(self, name: str) -> Any:
        self[name] = found = self.find(name)
        return found


class _FastSteps:
    """Overrides of SawyerXYZEnv: same results, found with fewer calls."""

    shared_model: SharedModel

    def _initialize_simulation(self: Any) -> tuple[Any, Any]:
        shared = SharedModel.kept.get(self.fullpath)
        if shared is None:
            model, data = SawyerXYZEnv._initialize_simulation(self)
            self.shared_model = SharedModel.kept[self.fullpath] = SharedModel(model)
            return model, data
        self.shared_model = shared
        shared.put(shared.new)
        return shared.model, mujoco.MjData(shared.model)

    @property
    def _views(self: Any) -> _Views:
        views: _Views | None = self.__dict__.get("_kept_views")
        if views is None:
            views = self._kept_views = _Views(self.data)
        return views

    def get_body_com(self: Any, body_name: str) -> np.ndarray:
        return self._views.body[body_name]

    def get_endeff_pos(self: Any) -> np.ndarray:
        return self._views.body["hand"]

    def _get_site_pos(self: Any, site_name: str) -> np.ndarray:
        return self._views.site[site_name].copy()

    @property
    def tcp_center(self: Any) -> np.ndarray:
        site = self._views.site
        centre: np.ndarray = (site["rightEndEffector"] + site["leftEndEffector"]) / 2.0
        return centre

    def touching_object(self: Any, object_geom_id: int) -> bool:
        contact = self.data.contact
        pairs = contact.geom.tolist()
        touches = [k for k, pair in enumerate(pairs) if object_geom_id in pair]
        if not touches:
            return False
        force, address = self.data.efc_force, contact.efc_address.tolist()
        return all(
            sum(force[address[k]] for k in touches if pad in pairs[k]) > 0
            for pad in self._views.pads
        )

    def step(self: Any, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        views = self._views
        moved = np.minimum(np.maximum(action[:3], -1), 1) * self.action_scale + views.mocap_pos
        np.minimum(np.maximum(moved, self.mocap_low), self.mocap_high, out=views.mocap_pos)
        views.mocap_quat[:] = STRAIGHT_DOWN
        views.ctrl[0], views.ctrl[1] = action[3], -action[3]
        mujoco.mj_step(self.model, views.data, nstep=self.frame_skip)
        # Positions are those before the last substep until this; and the forces it leaves for
        # the next step to start from are part of the physics, so that no less will do.
        mujoco.mj_forward(self.model, views.data)
        self.curr_path_length += 1
        space, obs = self.sawyer_observation_space, self._get_obs()
        np.minimum(np.maximum(obs, space.low, out=obs), space.high, out=obs)
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
        obs, body = np.zeros(18), self._views.body
        gap = body["rightclaw"] - body["leftclaw"]
        obs[:3] = body["hand"]
        obs[3] = min(max(math.sqrt(gap.dot(gap)) / 0.1, 0.0), 1.0)
        position, rotation = self._get_pos_objects(), self._get_quat_objects()
        for k in range(len(position) // 3):
            obs[4 + 7 * k : 7 + 7 * k] = position[3 * k : 3 * k + 3]
            obs[7 + 7 * k : 11 + 7 * k] = rotation[4 * k : 4 * k + 4]
        return obs


def _caging_reward(
    self: Any,
    action: np.ndarray,
    obj_pos: np.ndarray,
    obj_radius: float,
    pad_success_thresh: float,
    object_reach_radius: float,
    xz_thresh: float,
    desired_gripper_effort: float = 1.0,
    high_density: bool = False,
    medium_density: bool = False,
) -> Any:
    """`SawyerXYZEnv._gripper_caging_reward` on plain floats: how well the pads enclose an object.

    Only lengths are taken from arrays: what a dot product rounds is not what floats do.
    """
    tolerance, product = FastRewards.tolerance, FastRewards.hamacher_product
    body, tcp = self._views.body, self.tcp_center
    x, y, z = obj_pos.tolist()
    first_x, first_y, first_z = self.obj_init_pos.tolist()
    tcp_x, _, tcp_z = tcp.tolist()
    first_tcp_x, _, first_tcp_z = self.init_tcp.tolist()
    pads = [
        tolerance(
            abs(pad - y),
            (obj_radius, pad_success_thresh),
            abs(abs(pad - first_y) - pad_success_thresh),
            "long_tail",
        )
        for pad in (body["leftpad"].item(1), body["rightpad"].item(1))
    ]
    margin = fast_norm(np.array((first_x - first_tcp_x, first_z - first_tcp_z))) - xz_thresh
    distance = fast_norm(np.array((tcp_x - x, tcp_z - z)))
    beside = tolerance(distance, (0, xz_thresh), margin, "long_tail")
    caging = product(product(*pads), float(beside))
    closed = min(max(0, action[-1]), desired_gripper_effort) / desired_gripper_effort
    reward = product(caging, closed if caging > 0.97 else 0.0)
    if high_density:
        return (reward + caging) / 2
    if medium_density:
        first = fast_norm(self.obj_init_pos - self.init_tcp)
        margin, distance = abs(first - object_reach_radius), fast_norm(obj_pos - tcp)
        reach = tolerance(distance, (0, object_reach_radius), margin, "long_tail")
        return (reward + float(reach)) / 2
    return reward


def _mentions(value: Any, names: dict[str, Any]) -> bool:
    function = value.__func__ if isinstance(value, staticmethod) else value
    return isinstance(function, FunctionType) and not names.keys().isdisjoint(
        function.__code__.co_names
    )


def with_globals(value: Any, names: dict[str, Any]) -> Any:
    """The same function, its code apart, seeing other things under some global names."""
    if isinstance(value, property):
        return property(with_globals(value.fget, names))
    function = value.__func__ if isinstance(value, staticmethod) else value
    code, seen = function.__code__.replace(), {**function.__globals__, **names}
    copy = FunctionType(code, seen, code.co_name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return staticmethod(copy) if isinstance(value, staticmethod) else copy
