"""The compiled programs of an algorithm: its update alone, or whole iterations.

An iteration is one program, interaction and learning, where the environment can be compiled and
nothing is gained by running its lanes side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.devices import over_devices
from adaptax.core.errors import EnvironmentFault, check, one_line
from adaptax.core.experience import PyTree
from adaptax.learning.minibatches import Metrics
from adaptax.sampling.in_program import Draw, Plan, SamplerInProgram, Standing, strongly_typed
from adaptax.sampling.sampler import Sampler

if TYPE_CHECKING:
    from adaptax.algorithms.base import Algorithm
    from adaptax.sampling.draws import Counted, Drawn

NUMBERS = (int, float, np.generic, np.ndarray, jax.Array, type(None))
"""What a figure may be; None where there is none."""
ABSENT = float(np.finfo(np.float32).min)
"""What an update gives in a cycle that lacks a figure which others have."""
STEPS_OF_A_CALL = 2**14
"""Environment steps after which a program of several iterations ends."""
MOST_ITERATIONS = 256
"""Most iterations of one program; their figures are known only at its end."""


def updated(algorithm: Algorithm[Any, Any], state: Any, data: Any) -> tuple[Any, Metrics]:
    """What `algorithm.update` gives, compiled if it can be."""
    if not algorithm.traceable:
        return _checked_update(algorithm, state, data)
    rows, rest = _rows_apart(algorithm, state)
    run = partial(_compiled_update(tuple(algorithm.compiler_options.items())), algorithm, rows)
    if algorithm.data_by_task:
        result: tuple[Any, Metrics] = over_devices(run, rest, data)
        return result
    return run(rest, data)


def collected(algorithm: Algorithm[Any, Any], state: Any, sampler: Any) -> Any:
    """What `algorithm.collect` gives; a ConfigError where it keeps a thing."""
    before = dict(vars(algorithm))
    data = algorithm.collect(state, sampler)
    _check_kept_nothing(algorithm, before, "collect", "no snapshot holds")
    return data


@cache
def _compiled_update(options: tuple[tuple[str, str], ...]) -> Callable[..., Any]:
    """The program of an update; one for all algorithms with these compiler options."""

    def run(
        algorithm: Algorithm[Any, Any], rows: dict[str, Any], rest: Any, data: Any
    ) -> tuple[Any, Metrics]:
        return _checked_update(algorithm, _with_rows(rest, rows), data)

    return jax.jit(run, donate_argnums=1, compiler_options=dict(options))


@dataclass(frozen=True)
class IterationProgram:
    """Whole iterations as one program, of algorithms alike, on the environment of a sampler."""

    env: Any
    plan: Plan
    iterations_per_call: int
    """Iterations of one call, at most."""
    steps_per_iteration: int
    """Environment steps of an iteration, if no lane ends its episodes before others."""
    example: Any = field(compare=False)
    """Parameters of a few tasks."""
    standing: Any = field(compare=False)
    """Shapes and types of where interaction stands; None if nothing goes on."""
    num_listed: int | None = None
    """Tasks that there are, if they can be listed."""

    def run(
        self,
        algorithm: Algorithm[Any, Any],
        state: PyTree,
        sampler: Sampler,
        num: int,
        keep: Callable[[PyTree], None] | None = None,
    ) -> tuple[PyTree, list[Metrics], list[Counted]]:
        """The state after `num` iterations, and of each its metrics and what was counted.

        Where replays of the given state lose their rows, `keep` is called with what is left of it.
        """
        drawn, draws, owners = self._drawn(algorithm, sampler, num)
        inputs = sampler.standing(self.standing), draws
        (after, standing), record = self._called(_iterations, algorithm, state, inputs, num)
        if keep is not None and algorithm.in_place:
            keep(rewound(state, after, algorithm.in_place))
        counted = self._counted(sampler, drawn, standing, record)
        del owners  # where interaction stands are addresses of it: the sampler holds it by now
        return after, *counted

    def run_together(
        self,
        algorithms: PyTree,
        states: PyTree,
        samplers: Sequence[Sampler],
        num: int,
        keep: Callable[[PyTree], None] | None = None,
    ) -> tuple[PyTree, list[tuple[list[Metrics], list[Counted]]]]:
        """The same for S runs at once: algorithms and states [S, ...], a sampler of each."""
        drawn, draws, owners = zip(
            *(self._drawn(algorithms, sampler, num) for sampler in samplers), strict=True
        )
        standing = stacked([sampler.standing(self.standing) for sampler in samplers])
        inputs = standing, jax.tree.map(lambda *xs: np.stack(xs), *draws)
        (after, standing), record = self._called(_together, algorithms, states, inputs, num)
        if keep is not None and (names := algorithms.in_place):
            keep(jax.vmap(lambda old, new: rewound(old, new, names))(states, after))
        standings = unstacked(standing, len(samplers))
        records = [jax.tree.map(lambda x: x[i], record) for i in range(len(samplers))]  # noqa: B023
        each = zip(samplers, drawn, standings, records, strict=True)
        counted = [self._counted(*one) for one in each]
        del owners  # as above
        return after, counted

    def _drawn(
        self, algorithm: Algorithm[Any, Any], sampler: Sampler, num: int
    ) -> tuple[Drawn, tuple[Draw, ...], Any]:
        drawn = sampler.draw(self.plan, num, algorithm.num_cycles)
        draws, owners = sampler.arrays_of(drawn, self.example)
        return drawn, jax.tree.map(partial(_padded, self.iterations_per_call), draws), owners

    def _called(
        self,
        function: Any,
        algorithm: Algorithm[Any, Any],
        state: PyTree,
        inputs: tuple[Any, tuple[Draw, ...]],
        num: int,
    ) -> Any:
        """What comes of it, figures and outcomes as NumPy arrays."""
        rows, rest = _rows_apart(algorithm, jax.tree.map(_strong, state))
        run = _compiled(function, tuple(algorithm.compiler_options.items()))
        try:
            after, record = run(self, rows, algorithm, rest, *inputs, np.int32(num))
            return after, jax.device_get(record)
        except jax.errors.JaxRuntimeError as error:
            raise EnvironmentFault(one_line(error)) from error

    def _counted(
        self, sampler: Sampler, drawn: Drawn, standing: Any, record: Any
    ) -> tuple[list[Metrics], list[Counted]]:
        num = drawn.num_iterations
        metrics, outcomes = jax.tree.map(lambda x: x[:num], record)
        counted = sampler.count(drawn, outcomes, standing)
        each = [jax.tree.map(lambda x: x[k], metrics) for k in range(num)]  # noqa: B023
        return [without_absent(figures) for figures in each], counted


def stacked(trees: Sequence[PyTree]) -> PyTree:
    """Leaves [S, ...] of S trees."""
    return _stacked(tuple(trees))


@jax.jit
def _stacked(trees: tuple[PyTree, ...]) -> PyTree:
    return jax.tree.map(lambda *xs: jnp.stack(xs), *trees)


@partial(jax.jit, static_argnums=1)
def unstacked(tree: PyTree, num: int) -> list[PyTree]:
    """S trees of leaves [S, ...]."""
    return [jax.tree.map(lambda x: x[i], tree) for i in range(num)]  # noqa: B023


def iteration_program(
    algorithm: Algorithm[Any, Any], state: PyTree, sampler: Sampler, *, beside_others: bool = False
) -> IterationProgram | None:
    """Whole iterations as a program, or None where they cannot or need not be one.

    They need not where threads share out its lanes, unless they have other runs to do beside it.
    """
    if not (algorithm.traceable and algorithm.collects_in_program) or sampler.env is None:
        return None
    num_threads = 1 if beside_others else sampler.num_threads
    if num_threads > 1 and not algorithm.in_place:
        return None  # it collects long rollouts: without a look at them
    if algorithm.data_by_task and len(jax.local_devices()) > 1 and not beside_others:
        return None  # devices share out the update instead
    kind = jax.tree.structure(algorithm)
    if kind not in sampler.programs:
        sampler.programs[kind] = _planned(algorithm, state, sampler)
    program: IterationProgram = sampler.programs[kind]
    calls = program.plan.calls
    if sum(call.num_episodes is None for call in calls) > 1:
        return None  # episodes that one `steps` leaves to the next are counted on the host alone
    return None if any(call.runs_apart(num_threads) for call in calls) else program


def _planned(algorithm: Algorithm[Any, Any], state: PyTree, sampler: Sampler) -> IterationProgram:
    """What `collect` asks for, found by tracing it."""
    plans: list[Plan] = []
    env, example = sampler.env, sampler.example_tasks()
    assert env is not None

    def collect(state: PyTree) -> Standing | None:
        asked = SamplerInProgram(env, None, None, example, sampler.num_listed)
        collected(algorithm, state, asked)
        plans.append(asked.plan)
        return asked.standing

    standing = jax.eval_shape(collect, state)
    plan = plans[-1]
    steps = sum(int(np.prod(call.shape)) * call.num_steps for call in plan.calls)
    steps = max(steps * algorithm.num_cycles, 1)
    most = 1 if algorithm.in_place else int(np.clip(STEPS_OF_A_CALL // steps, 1, MOST_ITERATIONS))
    return IterationProgram(env, plan, most, steps, example, standing, sampler.num_listed)


@cache
def _compiled(function: Callable[..., Any], options: tuple[tuple[str, str], ...]) -> Any:
    """A program of whole iterations with these compiler options."""
    return jax.jit(function, static_argnums=0, donate_argnums=1, compiler_options=dict(options))


def _together(program: IterationProgram, *arguments: Any) -> Any:
    """`_iterations` of S runs, leaves [S, ...] of all arguments but `num`."""
    return jax.vmap(partial(_iterations, program), (0, 0, 0, 0, 0, None))(*arguments)


def _iterations(
    program: IterationProgram,
    rows: dict[str, Any],
    algorithm: Algorithm[Any, Any],
    rest: Any,
    standing: Standing | None,
    draws: tuple[Draw, ...],
    num: jax.Array,
) -> Any:
    """The state and standing after `num` iterations, and figures and outcomes [K, ...] of each."""
    start = strongly_typed((_with_rows(rest, rows), standing))
    first = jax.tree.map(lambda x: x[0], draws)
    if program.iterations_per_call == 1:
        after, record = _iteration(program, algorithm, start, first)
        return after, jax.tree.map(lambda x: x[None], record)
    shapes = jax.eval_shape(partial(_iteration, program), algorithm, start, first)[1]
    blank = jax.tree.map(
        lambda x: jnp.zeros((program.iterations_per_call, *x.shape), x.dtype), shapes
    )

    def iteration(loop: Any) -> Any:
        done, now, record = loop
        now, new = _iteration(program, algorithm, now, jax.tree.map(lambda x: x[done], draws))
        return done + 1, now, jax.tree.map(lambda x, y: x.at[done].set(y), record, new)

    loop = (jnp.int32(0), start, blank)
    _, after, record = jax.lax.while_loop(lambda loop: loop[0] < num, iteration, loop)
    return after, record


@partial(jax.jit, static_argnums=0)
def _iteration(
    program: IterationProgram, algorithm: Algorithm[Any, Any], start: Any, draws: tuple[Draw, ...]
) -> Any:
    """One iteration; draws [C, ...]. Compiled by itself it is traced once, whoever calls it."""

    def cycle(now: Any, draws: tuple[Draw, ...]) -> Any:
        state, standing = now
        sampler = SamplerInProgram(
            program.env, draws, standing, program.example, program.num_listed
        )
        data = collected(algorithm, state, sampler)
        assert sampler.plan == program.plan
        state, metrics = _checked_update(algorithm, state, data)
        metrics = {name: x if x is None else jnp.asarray(x) for name, x in metrics.items()}
        return strongly_typed((state, sampler.standing)), (metrics, tuple(sampler.outcomes))

    num = algorithm.num_cycles  # there may be no draws to count
    after, (metrics, outcomes) = jax.lax.scan(cycle, start, draws, length=num)
    return after, ({k: _over_cycles(x) for k, x in metrics.items()}, outcomes)


def _over_cycles(x: jax.Array | None) -> jax.Array | None:
    """The mean [] over the cycles [C] that have a figure; of integers, which count, the last."""
    if x is None or jnp.issubdtype(x.dtype, jnp.integer):
        return x if x is None else x[-1]
    if len(x) == 1:
        return x[0]
    found = x != ABSENT
    return jnp.where(found.any(), jnp.mean(x, where=found), ABSENT)


def means(cycles: Sequence[Metrics]) -> Metrics:
    """Each figure's mean over the cycles that have it; of integers, which count, the last."""
    names = list(dict.fromkeys(name for metrics in cycles for name in metrics))
    figures = {name: [m[name] for m in cycles if m.get(name) is not None] for name in names}
    return {name: _mean(np.array(found)) if found else None for name, found in figures.items()}


def _mean(column: np.ndarray) -> float:
    return int(column[-1]) if column.dtype.kind in "iu" else float(np.mean(column))


def without_absent(metrics: Metrics) -> Metrics:
    """The figures that are not absent."""
    return {name: x for name, x in metrics.items() if x is None or x != ABSENT}


def _strong(x: Any) -> Any:
    """The array with a type of its own, or each of two types would have its program."""
    return jnp.asarray(x, x.dtype) if getattr(x, "weak_type", False) else x


def _padded(most: int, x: np.ndarray) -> np.ndarray:
    """Rows [K, ...] with zeros behind, so many in all."""
    if len(x) == most:
        return x
    return np.concatenate([x, np.zeros((most - len(x), *x.shape[1:]), x.dtype)])


def _checked_update(algorithm: Algorithm[Any, Any], state: Any, data: Any) -> tuple[Any, Metrics]:
    """What an update gives; a ConfigError where it is wrong, or keeps a thing.

    It is to be a state of the same types and shapes, and numbers by name.
    """
    before = dict(vars(algorithm))
    result = algorithm.update(state, data)
    _check_kept_nothing(algorithm, before, "update", "a compiled program forgets")
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
    check(pair, "update must give the state after it and a dict of metrics")
    for name, value in result[1].items():
        shape = getattr(value, "shape", ())
        what = f"of shape {shape}" if shape else f"a {type(value).__name__}"
        number = isinstance(value, NUMBERS) and not shape
        check(number, f"the metric {name!r} of an update must be a number, but is {what}")
    if algorithm.traceable:
        _check_leaves(state, result[0])
    return result


def _check_kept_nothing(
    algorithm: Algorithm[Any, Any], before: dict[str, Any], verb: str, why: str
) -> None:
    """Raise a ConfigError where an attribute of the algorithm is another than before."""
    after = vars(algorithm)
    assigned = [name for name in after if name not in before or before[name] is not after[name]]
    check(
        not assigned,
        f"{verb} sets self.{', self.'.join(assigned)}, which {why}: what it keeps belongs in the "
        "state",
    )


def _check_leaves(before: Any, after: Any) -> None:
    """Raise a ConfigError where an update changes type or shape of a leaf, or drops or adds one."""
    was, now = _kinds(before), _kinds(after)
    for name in {**was, **now}:
        old, new = (kinds.get(name, "not there") for kinds in (was, now))
        check(
            old == new,
            f"update must give a state of the same types and shapes: {name or 'it'} was {old}, and "
            f"is {new} after it",
        )


def _kinds(state: Any) -> dict[str, str]:
    """Type and shape of every leaf, by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): _kind(leaf) for path, leaf in leaves}


def _kind(leaf: Any) -> str:
    if not isinstance(leaf, NUMBERS):
        return f"a {type(leaf).__name__}"
    return f"{jnp.result_type(leaf)}{list(getattr(leaf, 'shape', ()))}"


def _rows_apart(algorithm: Algorithm[Any, Any], state: Any) -> tuple[dict[str, Any], Any]:
    """The rows of the replays that are written in place, and the state without them."""
    rows = {name: getattr(state, name).rows for name in algorithm.in_place}
    return rows, _with_rows(state, dict.fromkeys(rows))


def _with_rows(state: Any, rows: Mapping[str, Any]) -> Any:
    """The state with other rows in the named replays."""
    replays = {name: replace(getattr(state, name), rows=x) for name, x in rows.items()}
    return replace(state, **replays) if replays else state


def rewound(before: Any, after: Any, names: Sequence[str]) -> Any:
    """The state before, with what is left of its replays in the rows of the state after."""
    return replace(
        before, **{name: getattr(before, name).rewound(getattr(after, name)) for name in names}
    )
