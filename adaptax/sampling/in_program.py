"""A sampler for use inside a compiled program, and what the program is given and gives for it.

Which tasks come, and from which seeds, is drawn on the host beforehand: an algorithm's `collect`
is traced once to see what it asks for (its plan), and the draws of many such calls go in as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.errors import check
from adaptax.core.experience import Array, PyTree, Rollout
from adaptax.core.rng import episode_seeds, folded
from adaptax.core.spec import check_task_count
from adaptax.envs.env import Env, Lanes, TaskArrays, reset_lanes
from adaptax.functional.masking import anywhere
from adaptax.sampling.actors import Actor, is_by_lane
from adaptax.sampling.compiled_engine import Settings, first_fault, interact, shared_out
from adaptax.sampling.host_engine import begin
from adaptax.sampling.size import check_rollout_fits, check_tasks_fit, steps_of

NO_FAULT = -1


@dataclass(frozen=True)
class TaskInProgram:
    """What stands for a task in a program: its place among those that `collect` asks for."""

    place: int


@dataclass(frozen=True)
class Call:
    """What `collect` asks to be run."""

    tasks: tuple[int, ...]
    """M places among the tasks that it asked for."""
    num_lanes: int
    num_steps: int
    num_episodes: int | None
    """None for steps, which go on where the last ones stopped."""
    by_lane: bool
    """Whether the lanes of its actor may run apart."""

    @property
    def shape(self) -> tuple[int, int]:
        """(M, N)."""
        return len(self.tasks), self.num_lanes

    def runs_apart(self, num_threads: int) -> bool:
        """Whether so many threads would share its lanes."""
        threads = num_threads if self.by_lane else 1
        return shared_out(self.shape, threads, self.num_steps) != self.shape


@dataclass(frozen=True)
class Plan:
    """What `collect` asks its sampler for, in this order."""

    requests: tuple[tuple[str, int], ...]
    """Tasks: the sampler's method, and how many."""
    calls: tuple[Call, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Draw:
    """What the host has drawn for one call."""

    tasks: TaskArrays
    """[M, ...]"""
    root: Array
    """[2] uint32: stream of the episodes' seeds."""
    words: Array
    """[W] uint32: path of the stream of the actor's draws."""
    fresh: Array
    """[] bool: whether it starts afresh, on these tasks; if not, the other fields are ignored."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Standing:
    """Where interaction stands between two calls."""

    lanes: Lanes
    carry: PyTree
    """The actor's, leading axes [M, N]."""
    episode: Array
    """[P] uint32: how many episodes each lane has ended."""
    t: Array
    """[] uint32: steps since the start."""
    root: Array
    key: Array
    """[2] uint32: data of the key of the actor's draws."""
    tasks: TaskArrays
    """[M, ...]"""
    reward_sum: Array
    """[M, N]: undiscounted, of the episode under way."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Outcome:
    """What the host counts of a call, arrays [M, N, T], and its first fault."""

    reward_sum: Array
    """[M, N]: of the episodes under way when it began, as `Standing` has it."""
    reward: Array
    ended: Array
    valid: Array
    success: Array
    """None where the suite knows none."""
    fault: Array
    """[3] int32: NO_FAULT, or what `first_fault` gives."""


class SamplerInProgram:
    """What `collect` sees of a sampler while it is traced: the same methods, on arrays."""

    def __init__(
        self,
        env: Env,
        draws: tuple[Draw, ...] | None,
        standing: Standing | None,
        example: TaskArrays,
        num_listed: int | None = None,
    ) -> None:
        """Without `draws` it only finds out the plan; `example` are parameters of some tasks.

        `num_listed` tasks are all that there are, if they can be listed.
        """
        self.env, self.spec = env, env.spec
        self.standing = standing
        """What `steps` goes on from; None before the first."""
        self.outcomes: list[Outcome] = []
        self._draws, self._example, self._num_listed = draws, example, num_listed
        self._requests: list[tuple[str, int]] = []
        self._calls: list[Call] = []
        self._num_tasks = 0

    @property
    def plan(self) -> Plan:
        """What was asked for so far."""
        return Plan(tuple(self._requests), tuple(self._calls))

    def sample_tasks(self, n: int) -> tuple[Any, ...]:
        """The next n tasks."""
        return self._requested("sample_tasks", n)

    def fixed_tasks(self, n: int) -> tuple[Any, ...]:
        """The tasks of an algorithm that always trains on the same ones, all of fewer."""
        n = n if self._num_listed is None else min(n, self._num_listed)
        return self._requested("fixed_tasks", n)

    def tasks_of_iteration(self, n: int) -> tuple[Any, ...]:
        """The `n` tasks of this iteration: the same whenever they are asked for until it ends."""
        return self._requested("tasks_of_iteration", n)

    def episodes(
        self,
        actor: Actor,
        tasks: tuple[TaskInProgram, ...],
        num_lanes: int,
        num_episodes: int,
        most_steps: int | None = None,
    ) -> Rollout:
        """Episodes from fresh resets, whole or cut at `most_steps`."""
        num_steps = steps_of(self.spec, num_episodes, most_steps)
        call, draw = self._called(actor, tasks, num_lanes, num_steps, num_episodes)
        return self._run(call, actor, self._begun(call, draw, actor))[0]

    def steps(
        self, actor: Actor, tasks: tuple[TaskInProgram, ...], num_lanes: int, num_steps: int
    ) -> Rollout:
        """Steps in every lane, going on where the last call stopped unless the draw is fresh."""
        call, draw = self._called(actor, tasks, num_lanes, num_steps, None)
        standing = self.standing
        if standing is None:
            standing = self._begun(call, draw, actor)
        else:
            old = standing

            def begun() -> Standing:
                every = jnp.broadcast_to(draw.fresh, ())
                new = self._begun(call, draw, actor)
                chosen: Standing = jax.tree.map(lambda a, b: jnp.where(every, a, b), new, old)
                return chosen

            standing = jax.lax.cond(anywhere(draw.fresh), begun, lambda: old)
        rollout, self.standing = self._run(call, actor, standing)
        return rollout

    def goes_on(self, tasks: tuple[TaskInProgram, ...], num_lanes: int) -> Any:
        """Whether `steps`, called next, will go on where the last call stopped."""
        if self._draws is None:
            return jnp.array(False)
        return ~self._draws[len(self._calls)].fresh

    def _requested(self, method: str, n: int) -> tuple[Any, ...]:
        check_task_count(n, self.spec.num_classes)
        check_tasks_fit(n)
        self._requests.append((method, n))
        first, self._num_tasks = self._num_tasks, self._num_tasks + n
        return tuple(TaskInProgram(first + i) for i in range(n))

    def _called(
        self,
        actor: Actor,
        tasks: tuple[TaskInProgram, ...],
        num_lanes: int,
        num_steps: int,
        num_episodes: int | None,
    ) -> tuple[Call, Draw]:
        check(len(tasks) > 0 and num_lanes > 0, "a rollout needs at least one task and one lane")
        check_rollout_fits(self.spec, len(tasks), num_lanes, num_steps)
        check(
            all(isinstance(task, TaskInProgram) for task in tasks),
            "tasks in a program come from its sampler: sample_tasks, fixed_tasks or "
            "tasks_of_iteration; without collects_in_program any will do",
        )
        places = tuple(task.place for task in tasks)
        call = Call(places, num_lanes, num_steps, num_episodes, is_by_lane(actor))
        self._calls.append(call)
        if self._draws is None:
            return call, blank_draw(self._example, len(tasks))
        return call, self._draws[len(self._calls) - 1]

    def _begun(self, call: Call, draw: Draw, actor: Actor) -> Standing:
        num = call.shape[0] * call.shape[1]
        root = jnp.asarray(draw.root)
        key = folded(jnp.asarray(draw.words))
        seeds = episode_seeds(root, jnp.arange(num, dtype=jnp.uint32))
        standing = Standing(
            lanes=reset_lanes(self.env, self._of_lanes(call, draw.tasks), seeds),
            carry=begin(actor, call.shape, key),
            episode=jnp.zeros(num, jnp.uint32),
            t=jnp.uint32(0),
            root=root,
            key=jax.random.key_data(key),
            tasks=jax.tree.map(jnp.asarray, draw.tasks),
            reward_sum=jnp.zeros(call.shape, jnp.float32),
        )
        return strongly_typed(standing)

    def _of_lanes(self, call: Call, tasks: TaskArrays) -> TaskArrays:
        return jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), call.num_lanes, axis=0), tasks)

    def _run(self, call: Call, actor: Actor, standing: Standing) -> tuple[Rollout, Standing]:
        settings = Settings(self.env, call.shape, call.num_steps, call.num_episodes, call.shape)
        tasks = self._of_lanes(call, standing.tasks)
        key = jax.random.wrap_key_data(standing.key)
        inputs = (tasks, standing.root, key, standing.t)
        start = (standing.lanes, standing.carry, standing.episode)
        rollout, (lanes, episode), finite = interact(settings, actor, inputs, start, np.uint32(0))
        ended = rollout.terminated | rollout.truncated
        first = partial(first_fault, self.env.spec.action, rollout, standing.lanes.steps)
        fault = jax.lax.cond(
            anywhere(~finite),
            lambda: jnp.where(finite, NO_FAULT, first()),
            lambda: jnp.full(3, NO_FAULT, jnp.int32),
        )
        success = rollout.extras.get("success")
        before = standing.reward_sum
        self.outcomes.append(Outcome(before, rollout.reward, ended, rollout.valid, success, fault))
        rollout = replace(rollout, initial_carry=standing.carry, initial_return=before)
        after = replace(
            standing,
            lanes=lanes,
            carry=rollout.final_carry,
            episode=episode,
            t=standing.t + jnp.uint32(call.num_steps),
            reward_sum=_since_last_end(rollout.reward, ended, before),
        )
        return rollout, strongly_typed(after)


def blank_draw(example: TaskArrays, num_members: int) -> Draw:
    """A draw that is ignored, on `num_members` tasks of the shapes of `example` [K, ...]."""
    tasks = {k: np.zeros((num_members, *x.shape[1:]), x.dtype) for k, x in example.items()}
    return Draw(tasks, np.zeros(2, np.uint32), np.zeros(5, np.uint32), np.array(False))


def strongly_typed(tree: PyTree) -> PyTree:
    """The same arrays with types of their own, as loops ask of what they carry."""

    def strong(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        return jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(strong, tree)


def _since_last_end(reward: jax.Array, ended: jax.Array, before: jax.Array) -> jax.Array:
    """Sums [M, N] of rewards [M, N, T], padding 0, after each lane's last end, or with `before`."""
    time = jnp.arange(reward.shape[-1])
    last = jnp.max(jnp.where(ended, time, -1), axis=-1)
    after = jnp.sum(jnp.where(time > last[..., None], reward, 0.0), axis=-1)
    return jnp.where(last < 0, before, 0.0) + after
