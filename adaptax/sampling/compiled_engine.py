"""The compiled engine: policy and environment together in one program, for a CompiledPool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.errors import EnvironmentFault, one_line
from adaptax.core.experience import PyTree, Rollout, Step, select
from adaptax.core.products import alike_in_every_row
from adaptax.core.rng import episode_seeds, lane_numbers
from adaptax.core.spec import ActionSpace, Continuous, MultiDiscrete
from adaptax.core.step import step_extras
from adaptax.envs.env import Env, Lanes, TaskArrays, as_numbers, reset_lanes, step_lanes
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.pools.pool import SlotFault, SlotNotFinite, check_actions
from adaptax.envs.task import Task
from adaptax.functional.masking import anywhere
from adaptax.sampling.actors import Actor, ByLane, Part, is_by_lane
from adaptax.sampling.host_engine import FIELDS, Cursor, act, observe


def compiled_loop(
    pool: CompiledPool, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> tuple[Rollout, Cursor]:
    """The same contract and the same data (to rounding) as the host loop.

    Equal shares of the lanes run side by side on the pool's threads and meet at the end only.
    """
    share = shared_out(cursor.shape, pool.num_threads if is_by_lane(actor) else 1, num_steps)
    settings = Settings(pool.env, cursor.shape, num_steps, num_episodes, share)
    inputs = (pool.task_arrays, cursor.root, cursor.key, np.uint32(cursor.t))
    start = (pool.lanes, cursor.carry, np.asarray(cursor.episode))
    run = partial(_compiled(), settings, actor, inputs, start)
    try:
        if settings.num_parts == 1:
            rollout, (lanes, episode), finite = run(np.uint32(0))
        else:
            rollout, (lanes, episode), finite = _joined(
                settings, _side_by_side(pool, settings, run)
            )
        finite = bool(finite)
    except jax.errors.JaxRuntimeError as error:
        raise EnvironmentFault(one_line(error)) from error
    if not finite:
        assert pool.lanes is not None
        fault = first_fault(pool.spec.action, rollout, pool.lanes.steps)
        raise slot_fault(fault, cursor.tasks, cursor.shape)
    pool.lanes = lanes
    after = replace(
        cursor,
        obs=lanes.obs,
        carry=rollout.final_carry,
        episode=episode,
        t=cursor.t + num_steps,
    )
    return rollout, after


def _side_by_side(pool: CompiledPool, settings: Settings, run: partial[Result]) -> Sequence[Result]:
    """All parts; the first goes ahead where its program is new, or each would compile it."""
    parts = [np.uint32(i) for i in range(settings.num_parts)]
    program = (settings, jax.tree.structure(run.args))
    ahead = [] if program in pool.programs else [run(parts.pop(0))]
    pool.programs.add(program)

    def whole(number: np.uint32) -> Result:
        # Programs that nobody waits for may be put on one thread, one after the other.
        result: Result = jax.block_until_ready(run(number))  # type: ignore[no-untyped-call]
        return result

    return [*ahead, *pool.threads.map(whole, parts)]


State = tuple[Lanes, PyTree, jax.Array]
"""Environments, the actor's carry, and how many episodes each lane has ended."""
Loop = tuple[jax.Array, State, dict[str, Any], jax.Array]
"""Steps done, the state after them, the record with so many rows written, whether all of it is
finite."""
Result = tuple[Rollout, tuple[Lanes, jax.Array], jax.Array]
"""The rollout, lanes and episode numbers after it, and whether its observations, actions and
rewards are all finite."""


@dataclass(frozen=True)
class Settings:
    """What a compiled loop is made for."""

    env: Env
    shape: tuple[int, int]
    """(M, N) of all parts together."""
    num_steps: int
    num_episodes: int | None
    """Episodes after which a lane stops; None to go on."""
    share: tuple[int, int]
    """(M, N) of one part: the same but for one axis, which it divides."""

    @property
    def num_parts(self) -> int:
        """Parts that run side by side."""
        return math.prod(self.shape) // math.prod(self.share)

    def part(self, number: jax.Array) -> Part:
        """The lanes of a part."""
        axis = int(self.share[0] == self.shape[0])
        return Part(axis, self.share[axis], number * self.share[axis])

    def rows(self, part: Part, tree: PyTree) -> PyTree:
        """The part's rows of leaves [P, ...] of all lanes."""

        def own(x: jax.Array) -> jax.Array:
            found = part.lanes(x.reshape(*self.shape, *x.shape[1:]))
            return found.reshape(-1, *x.shape[1:])

        return jax.tree.map(own, tree)

    def running(self, episode: jax.Array) -> jax.Array:
        """Which lanes [P] still step."""
        if self.num_episodes is None:
            return jnp.ones(episode.shape, bool)
        return episode < self.num_episodes

    def split(self, x: jax.Array) -> jax.Array:
        """[P, ...] of one part as [M, N, ...]."""
        return x.reshape(*self.share, *x.shape[1:])


LEAST_STEPS = 64
"""Fewest lane-steps worth a thread: to hand it fewer costs more than it gains."""


def shared_out(shape: tuple[int, int], num_threads: int, num_steps: int) -> tuple[int, int]:
    """(M, N) of one part where threads share out the lanes equally; no part is a single lane."""
    (num_members, num_lanes), best = shape, shape
    for num in range(2, num_threads + 1):
        if num_members * num_lanes * num_steps < num * LEAST_STEPS:
            break
        if num_members % num == 0 and shape != (num, 1):
            best = (num_members // num, num_lanes)
        elif num_lanes % num == 0 and shape != (1, num):
            best = (num_members, num_lanes // num)
    return best


@partial(jax.jit, static_argnums=0)
def interact(
    settings: Settings, actor: Actor, inputs: tuple[Any, ...], start: State, number: Any
) -> Result:
    """Interaction in one part of the lanes, the `number`th; see `Result`."""
    (tasks, root, key, first), (lanes, carry, episode) = inputs, start
    numbers = lane_numbers(*settings.shape)
    if settings.num_parts > 1:
        part = settings.part(number)
        assert isinstance(actor, ByLane)
        actor, carry, numbers = actor.part(part), part.lanes(carry), part.lanes(numbers)
        tasks, lanes, episode = (settings.rows(part, x) for x in (tasks, lanes, episode))
    start, space = (lanes, carry, episode), settings.env.spec.action

    def goes_on(loop: Loop) -> jax.Array:
        done, (_, _, episode), _, _ = loop
        return (done < settings.num_steps) & anywhere(settings.running(episode))

    def step(state: State, t: jax.Array) -> tuple[State, dict[str, Any]]:
        return _step(settings, actor, (tasks, root, key, t, numbers), state)

    def step_and_write(loop: Loop) -> Loop:
        done, state, record, finite = loop
        state, row = step(state, first + done.astype(jnp.uint32))
        record = jax.tree.map(partial(_written, done), record, row)
        return done + 1, state, record, finite & _finite(space, row, row, large=True)

    rows = jax.eval_shape(step, start, first)[1]
    blank = jax.tree.map(partial(_blank, settings.num_steps), rows)
    # Not a scan: once every lane has its episodes, the rest of the record stays zero for nothing.
    loop = (jnp.array(0), start, blank, jnp.array(True))
    _, (lanes, carry, episode), record, finite = jax.lax.while_loop(goes_on, step_and_write, loop)
    record = jax.tree.map(
        lambda x, row: x if _is_large(row) else jnp.moveaxis(x, 0, 2), record, rows
    )
    finite = finite & _finite(space, record, rows, large=False)
    return Rollout(**record, final_carry=carry), (lanes, episode), finite


LARGE = 64
"""Numbers in a lane's row from which on its record is [M, N, T, ...] from the start; records of
smaller rows are [T, M, N, ...] while they are written, and transposed in the end."""


def _is_large(row: Any) -> bool:
    return math.prod(row.shape[2:]) >= LARGE


def _blank(num_steps: int, row: Any) -> jax.Array:
    """A record of so many rows [M, N, ...]."""
    shape = row.shape
    place = (*shape[:2], num_steps, *shape[2:]) if _is_large(row) else (num_steps, *shape)
    return jnp.zeros(place, row.dtype)


def _written(t: jax.Array, record: jax.Array, row: jax.Array) -> jax.Array:
    """The record with a row at step t."""
    return record.at[:, :, t].set(row) if _is_large(row) else record.at[t].set(row)


def _finite(
    space: ActionSpace, record: dict[str, Any], rows: dict[str, Any], *, large: bool
) -> jax.Array:
    """Whether all that has to be finite is, of what has large rows or of the rest."""
    names = [name for name in _NUMBERS if _is_large(rows[name]) == large]
    return jnp.array([_is_good(space, name, record[name]).all() for name in names], bool).all()


def _is_good(space: ActionSpace, name: str, x: jax.Array) -> jax.Array:
    """Where the numbers of a name are finite; of choices, where there are such."""
    if name != "action" or isinstance(space, Continuous):
        return jnp.isfinite(x)
    sizes = jnp.array(space.sizes if isinstance(space, MultiDiscrete) else space.size)
    return (x >= 0) & (x < sizes)


@cache
def _compiled() -> Any:
    """`interact` as a program of its own; how lanes are shared out costs a rounding at most."""
    options = alike_in_every_row()
    return jax.jit(interact, static_argnums=0, compiler_options=options)


@partial(jax.jit, static_argnums=0)
def _joined(settings: Settings, parts: Sequence[Result]) -> Result:
    """What comes of all lanes."""
    axis = settings.part(jnp.array(0)).axis

    def lanes(*xs: jax.Array) -> jax.Array:
        return jnp.concatenate(xs, axis)

    def rows(*xs: jax.Array) -> jax.Array:
        whole = lanes(*(settings.split(x) for x in xs))
        return whole.reshape(-1, *whole.shape[2:])

    rollouts, after, finite = zip(*parts, strict=True)
    whole = jax.tree.map(lanes, *rollouts)
    return whole, jax.tree.map(rows, *after), jnp.array(finite).all()


_NUMBERS = {
    "obs": "the observation after the reset",
    "action": "the action",
    "next_obs": "the observation",
    "reward": "the reward",
}
"""What of a step must be finite, in the order in which it comes about."""
NO_CHOICE = len(_NUMBERS)
"""Stands for an action that is none of the environment's."""


@partial(jax.jit, static_argnums=0)
def first_fault(space: ActionSpace, rollout: Rollout, begun: jax.Array) -> jax.Array:
    """The first step with a number that is not finite or a bad choice: [what, slot, step] int32.

    `what` is a place in `_NUMBERS`, or NO_CHOICE; `step` counts from the episode's start, of which
    `begun` [P] steps came before the rollout.
    """
    shape = rollout.valid.shape
    good = [_is_good(space, name, getattr(rollout, name)) for name in _NUMBERS]
    bad = jnp.stack([~x.reshape(*shape, -1).all(-1) for x in good])
    by_time = bad.any((1, 2))
    t = jnp.argmax(by_time.any(0))
    what = jnp.argmax(by_time[:, t])
    slot = jnp.argmax(bad[what, :, :, t])
    ended = (rollout.terminated | rollout.truncated).reshape(-1, shape[-1])[slot]
    time = jnp.arange(shape[-1])
    last = jnp.max(jnp.where(ended & (time < t), time, -1))
    step = jnp.where(last >= 0, t - 1 - last, t + begun[slot])
    if not isinstance(space, Continuous):
        what = jnp.where(what == list(_NUMBERS).index("action"), NO_CHOICE, what)
    return jnp.array([what, slot, step], jnp.int32)


def slot_fault(fault: jax.Array, tasks: Sequence[Task], shape: tuple[int, int]) -> SlotFault:
    """What to raise of a first fault."""
    what, slot, step = np.asarray(fault).tolist()
    if what == NO_CHOICE:
        problem = "the action is none of those that the environment has"
        return SlotFault(slot, step, tasks[slot // shape[1]], problem)
    problem = f"{list(_NUMBERS.values())[what]} is not finite"
    return SlotNotFinite(slot, step, tasks[slot // shape[1]], problem)


def _step(
    settings: Settings, actor: Actor, inputs: tuple[Any, ...], state: State
) -> tuple[State, dict[str, Any]]:
    """One step of every lane that runs, and what a rollout records of it."""
    (tasks, root, key, t, numbers), (lanes, carry, episode) = inputs, state
    env, running = settings.env, settings.running(episode)
    obs = as_numbers(settings.split(lanes.obs))
    action, acted, extras = act(actor, carry, obs, key, t, numbers)
    check_actions(env.spec, action, *settings.share)
    flat = action.reshape(-1, *action.shape[2:])
    after, step = step_lanes(env, tasks, lanes, flat, running)
    ended = running & (step.terminated | step.truncated)
    in_lanes: Step = jax.tree.map(settings.split, replace(step, valid=running))
    seen = replace(in_lanes, info={}, obs=obs, next_obs=as_numbers(in_lanes.next_obs))
    carry = observe(actor, (carry, acted), seen, key, t + 1, numbers)
    record = {name: getattr(in_lanes, name) for name in FIELDS}
    record["extras"] = {**extras, **step_extras(env.spec, in_lanes)}
    zeros = jax.tree.map(jnp.zeros_like, record)
    record = select(in_lanes.valid, record, zeros)
    episode = episode + ended
    lanes = select(running, after, lanes)
    again = ended & settings.running(episode)
    number = episode * np.uint32(math.prod(settings.shape)) + numbers.reshape(-1)
    restart = partial(_restart, env, tasks, again, episode_seeds(jnp.asarray(root), number))
    return (jax.lax.cond(anywhere(again), restart, lambda old: old, lanes), carry, episode), record


def _restart(
    env: Env, tasks: TaskArrays, again: jax.Array, seeds: jax.Array, lanes: Lanes
) -> Lanes:
    """The lanes with the next episode, of `seeds` [P], begun where `again` [P] says."""
    return select(again, reset_lanes(env, tasks, seeds), lanes)
