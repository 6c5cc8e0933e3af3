"""CompiledPool: lanes of a compiled environment, whole rollouts of which compile to one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.cores import usable_cores
from adaptax.core.errors import AdaptaxError, ConfigError, EnvironmentFault, check, one_line
from adaptax.core.experience import PyTree, Step, select
from adaptax.core.spec import EnvSpec
from adaptax.core.step import step_extras
from adaptax.envs.env import Env, Lanes, TaskArrays, as_numbers, reset_lanes, step_lanes
from adaptax.envs.pools.pool import Slots, check_actions, check_reset, check_saved_form, idle
from adaptax.envs.task import Task


class CompiledPool:
    """P lanes of an Env; the sampler's compiled loop works on `env`, `task_arrays` and `lanes`."""

    def __init__(self, env: Env, num_slots: int, num_threads: int = 1) -> None:
        self.env, self.spec, self.num_slots = env, env.spec, num_slots
        self.num_threads = num_threads or len(usable_cores())
        self._threads: ThreadPoolExecutor | None = None
        self.programs: set[Any] = set()
        """What has run on these threads and is compiled."""
        self.task_arrays: TaskArrays | None = None
        self.lanes: Lanes | None = None
        self._tasks: list[Task | None] = [None] * num_slots
        self._running = np.zeros(num_slots, bool)
        if hasattr(env, "simulation"):
            self.simulation = self._simulation
        if hasattr(env, "render"):
            self.picture = self._picture
        self._kept: list[Any] = [None] * num_slots

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots."""
        check_reset(slots, seeds, tasks)
        if not len(slots):
            return np.zeros((0, self.spec.observation_size), np.float32)
        self._set_tasks(slots, tasks)
        every = np.zeros(self.num_slots, np.uint32)
        every[slots] = seeds
        fresh = _reset(self.env, self.task_arrays, every)
        whole = self.lanes is None or len(slots) == self.num_slots
        self.lanes = fresh if whole else self._chosen(slots, fresh)
        self._running[slots] = True
        return np.asarray(as_numbers(self.lanes.obs))[slots]

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in K slots, one call after another: the reference for the compiled loop."""
        check_actions(self.spec, actions, len(slots))
        at = Slots(self.num_slots)
        at.tasks = self._tasks
        if self.lanes is not None:
            at.num_steps = np.asarray(self.lanes.steps)
        at.require(self._running[slots], slots, "no running episode: reset it first")
        at.require_finite(np.clip(actions, -1.0, 1.0), slots, "the action")
        every = np.zeros((self.num_slots, *actions.shape[1:]), actions.dtype)
        every[slots] = actions
        after, step = _step(self.env, self.task_arrays, self.lanes, every)
        step = Step(
            reward=step.reward,
            next_obs=as_numbers(step.next_obs),
            terminated=step.terminated,
            truncated=step.truncated,
            info=step.info,
        )
        answered: Step = jax.tree.map(lambda x: np.asarray(x)[slots], step)
        at.require_finite(answered.next_obs, slots, "the observation")
        at.require_finite(answered.reward, slots, "the reward")
        self.lanes = self._chosen(slots, after)
        self._running[slots] = ~(answered.terminated | answered.truncated)
        return answered

    def save(self) -> PyTree:
        """The lanes' arrays, by position."""
        return {str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(self.lanes))}

    def restore(
        self, saved: PyTree, tasks: Sequence[Task], at_work: Callable[[], None] = idle
    ) -> None:
        """Go on exactly where `save` stood."""
        check_saved_form(saved, played=False)
        slots = np.arange(self.num_slots)
        self.reset(slots, np.zeros(self.num_slots, np.uint32), tasks)
        leaves = [jnp.asarray(saved[str(i)]) for i in range(len(saved))]
        fresh, form = jax.tree.flatten(self.lanes)
        if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in fresh]:
            raise ValueError("what the environments keep has other shapes or types")
        self.lanes = jax.tree.unflatten(form, leaves)
        self._running = np.asarray(self.lanes.steps) < self.spec.horizon

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Where parts of the lanes run side by side."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.num_threads, "adaptax-lanes")
        return self._threads

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _simulation(self, slot: int) -> tuple[Any, Any]:
        """MuJoCo's model and data of a slot, to draw it."""
        assert self.lanes is not None
        simulated: Any = self.env
        return simulated.simulation(np.asarray(self.lanes.state[slot]), self._tasks[slot])

    def _picture(self, slot: int) -> np.ndarray:
        """What the environment renders of a slot."""
        assert self.lanes is not None
        drawn: Any = self.env
        task = self._tasks[slot]
        assert task is not None
        state = jax.tree.map(lambda x: np.asarray(x)[slot], self.lanes.state)
        picture: np.ndarray = drawn.render(state, task.params)
        return picture

    def _chosen(self, slots: np.ndarray, new: Lanes) -> Lanes:
        """`new` in these slots, the lanes as they are in the others."""
        chosen = np.zeros(self.num_slots, bool)
        chosen[slots] = True
        lanes: Lanes = select(chosen, new, self.lanes)
        return lanes

    def take(self, lanes: Lanes, tasks: Sequence[Task]) -> None:
        """Go on from these lanes, on these tasks of all slots."""
        if any(old is not new for old, new in zip(self._tasks, tasks, strict=True)):
            self._set_tasks(np.arange(self.num_slots), tasks)
        self.lanes = lanes
        self._running[:] = True

    def _set_tasks(self, slots: np.ndarray, tasks: Sequence[Task]) -> None:
        arrays, kept = tasks_as_arrays(self.env, tasks)
        if self.task_arrays is None:
            # All lanes run, those without a task too: nulls would be no address of a model.
            self.task_arrays = {k: x[:1].repeat(self.num_slots, 0) for k, x in arrays.items()}
            self._kept = kept[:1] * self.num_slots
        _check_shapes(tasks[0], _shapes(arrays), _shapes(self.task_arrays))
        for name, old in self.task_arrays.items():
            # One task may say 0 where another says 0.5, which must not become 0.
            real = "f" in old.dtype.kind + arrays[name].dtype.kind
            self.task_arrays[name] = old.astype(np.float32 if real else old.dtype)
            self.task_arrays[name][slots] = arrays[name]
        for slot, task, model in zip(slots.tolist(), tasks, kept, strict=True):
            self._tasks[slot], self._kept[slot] = task, model


def tasks_as_arrays(env: Env, tasks: Sequence[Task]) -> tuple[dict[str, np.ndarray], list[Any]]:
    """The parameters of tasks as arrays [K, ...], and what must live as long as these are in use.

    A ConfigError where the environment cannot take a step with them.
    """
    # Lanes on one task share its object; each is looked at once.
    distinct = {id(task): task for task in tasks}
    of_task = getattr(env, "task_arrays", _arrays)
    found = [of_task(task) for task in distinct.values()]
    place = {key: i for i, key in enumerate(distinct)}
    rows = np.array([place[id(task)] for task in tasks])
    first = found[0][0]
    _check_fit(env, tasks[0], first)
    for task, (own, _) in zip(distinct.values(), found, strict=True):
        shapes = [{name: x.shape for name, x in params.items()} for params in (own, first)]
        _check_shapes(task, *shapes)
    arrays = {name: np.stack([own[name] for own, _ in found])[rows] for name in first}
    # Integers of one task beside numbers of another are numbers.
    numbers = {k: x.astype(np.float32) for k, x in arrays.items() if x.dtype.kind == "f"}
    return {**arrays, **numbers}, [found[row][1] for row in rows.tolist()]


def _shapes(arrays: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """The shape of one row of each array, by name."""
    return {name: x.shape[1:] for name, x in arrays.items()}


def _check_shapes(task: Task, own: dict[str, Any], before: dict[str, Any]) -> None:
    if own != before:
        raise ConfigError(
            f"task {task.name!r} has parameters of the shapes {own}; "
            f"the tasks before it have {before}"
        )


def _arrays(task: Task) -> tuple[dict[str, np.ndarray], None]:
    """A task's parameters as float32 or int32, but for the name of its class."""
    named = task.params.get("class")
    params = {k: v for k, v in task.params.items() if k != "class" or not isinstance(named, str)}
    return {name: _array(task, name, np.asarray(value)) for name, value in params.items()}, None


def _array(task: Task, name: str, value: np.ndarray) -> np.ndarray:
    number = value.dtype.kind == "f"
    most = np.finfo(np.float32) if number else np.iinfo(np.int32)
    fits = value.dtype.kind != "U" and bool(((value >= most.min) & (value <= most.max)).all())
    check(
        fits,
        f"task {task.name!r}: its parameter {name!r} is {value.tolist()!r}; "
        "those of a compiled environment are numbers of 32 bits",
    )
    return value.astype(np.float32 if number else np.int32)


def _check_fit(env: Env, task: Task, params: dict[str, np.ndarray]) -> None:
    """Raise a one-line error where the environment cannot take a step with a task's parameters."""
    shapes = {name: x.shape for name, x in params.items()}
    try:
        _try_step(
            env,  # type: ignore[arg-type]
            tuple((name, x.shape, x.dtype) for name, x in params.items()),
        )
    except KeyError as error:
        raise ConfigError(
            f"task {task.name!r} has the parameters {sorted(params)}; the environment takes {error}"
        ) from error
    except AdaptaxError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the environment cannot take a step with task {task.name!r}, whose parameters have "
            f"the shapes {shapes}: {one_line(error)}"
        ) from error


@cache
def _try_step(env: Env, params: tuple[tuple[str, tuple[int, ...], Any], ...]) -> None:
    """Raise what a step with parameters of these names, shapes and types raises."""

    def one_step(params: TaskArrays) -> Any:
        key, spec = jax.random.key(0), env.spec
        state, obs = env.reset(key, params)
        action = jnp.zeros(spec.action.shape, spec.action.dtype)
        answer = env.step(key, state, action, params)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Step)):
            raise EnvironmentFault("a step of a compiled environment gives a state and a Step")
        after, step = answer
        if step.reward is None or step.next_obs is None:
            raise EnvironmentFault("a step of a compiled environment gives reward and next_obs")
        extras = step_extras(spec, step)
        _check_declared(spec, step)
        for name, x in {"the first observation": obs, "next_obs": step.next_obs}.items():
            _check_shape(name, x, (spec.observation_size,))
            if spec.binary:
                _check_exact(name, x)
        ends = {"terminated": step.terminated, "truncated": step.truncated}
        for name, x in {"reward": step.reward, **ends, **extras}.items():
            _check_shape(name, 0 if x is None else x, ())
        _check_state(state, after)
        return extras

    arrays = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in params}  # type: ignore[no-untyped-call]
    jax.eval_shape(one_step, arrays)


def _check_declared(spec: EnvSpec, step: Step) -> None:
    if "success" in step.info and not spec.has_success:
        raise EnvironmentFault(
            "a step of a compiled environment reports 'success', of which its spec does not tell: "
            "EnvSpec(..., has_success=True)"
        )


def _check_shape(name: str, x: Any, wanted: tuple[int, ...]) -> None:
    shape = jnp.asarray(x).shape
    told = f"{name} of a compiled environment has the shape {shape}; by its spec it is {wanted}"
    if shape != wanted:
        raise EnvironmentFault(told)


def _check_exact(name: str, x: Any) -> None:
    kind = jnp.asarray(x).dtype
    if kind.kind not in "biu":
        raise EnvironmentFault(
            f"{name} of a compiled environment, zeros and ones by its spec, is {kind}; bools or "
            "integers are asked for"
        )


def _check_state(before: PyTree, after: PyTree) -> None:
    old, new = (
        (jax.tree.structure(state), [jax.typeof(x).str_short() for x in jax.tree.leaves(state)])
        for state in (before, after)
    )
    if any(
        jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(before)
    ):
        raise EnvironmentFault(
            "the state of a compiled environment has a typed key, which no snapshot holds: keep "
            "jax.random.key_data(key), and use jax.random.wrap_key_data of it"
        )
    if old != new:
        raise EnvironmentFault(
            f"a step of a compiled environment leaves another kind of state than a reset: "
            f"{', '.join(new[1])} in place of {', '.join(old[1])}"
        )


_reset = partial(jax.jit, static_argnums=0)(reset_lanes)
_step = partial(jax.jit, static_argnums=0)(step_lanes)
