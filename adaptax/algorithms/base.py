"""What an algorithm is: `collect` acts in the world, `update` learns from what came of it.

A third verb, `adapt`, is the evaluator's.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, final, get_type_hints

import jax
import numpy as np

from adaptax.algorithms.program import (
    collected,
    iteration_program,
    means,
    rewound,
    updated,
    without_absent,
)
from adaptax.core.config import check_numbers, check_types
from adaptax.core.devices import check_fits
from adaptax.core.errors import NotFinite, check, check_kind
from adaptax.core.experience import Rollout
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.spec import EnvSpec, check_task_count
from adaptax.learning.minibatches import Metrics
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler
from adaptax.sampling.size import check_tasks_fit

__all__ = ["Algorithm", "Data", "Metrics", "State", "check_finite"]

State = TypeVar("State")
Data = TypeVar("Data")


class Algorithm(ABC, Generic[State, Data]):
    """Everything learned is the state, one pytree; the object itself never changes.

    It is a pytree, which programs take as an argument: numbers of a config that are Hyperparameters
    are its leaves, all else is static. Two algorithms share what is compiled where all that is
    static is equal: class, other settings, spec, networks, and what else `__init__` has kept.
    """

    name: ClassVar[str]
    """What the command line and run directories call it."""
    traceable: ClassVar[bool] = True
    """Whether `init` and `update` can be compiled; else they run as they stand."""
    collects_in_program: bool = False
    """Whether `collect` can be traced, so that a whole iteration is one compiled program where the
    environment compiles. It may then use of its sampler only `spec`, `sample_tasks`,
    `fixed_tasks`, `tasks_of_iteration`, `episodes`, `steps` and `goes_on`, and must not read array
    values in Python."""
    in_place: ClassVar[tuple[str, ...]] = ()
    """Fields of the state, each a `Replay`, whose rows an update overwrites in place: the state
    given to it cannot be used again."""
    data_by_task: ClassVar[bool] = False
    """Whether all leaves of the data are [M, ...], so that devices can share out the tasks."""
    finite_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics of an update that must be finite, where it has them."""
    may_be_infinite: ClassVar[tuple[str, ...]] = ()
    """Leaves of the state that may hold infinity or NaN, by the end of their path; in all others
    the trainer takes them for a fault."""
    learned: ClassVar[tuple[str, ...]] = (".params", ".moments")
    """Beginnings of the paths of leaves that hold what was learned: networks and the moments that
    scale their inputs. `--init-from` and exports take these; not optimizers, replays, counters or
    keys."""
    acting: ClassVar[tuple[str, ...]] = ()
    """Beginnings of the paths of further leaves that `actor` and `adapt` read; taken along with
    `learned`."""
    task_counts: ClassVar[tuple[str, ...]] = ("meta_batch_size", "num_tasks")
    """Settings, where it has them, that say how many tasks it asks the sampler for."""
    trained_episodes: int | None = None
    """Episodes in a row on one task in training (adaptations + 1); None where an evaluation may run
    any number."""
    infers_from_history: ClassVar[bool] = False
    """Whether `adapt` uses every rollout of `history`, not only the last one, so that it need not
    be called after each."""
    lanes_per_task: int = 1
    """Lanes that an evaluation runs on each task by default: as many as one adaptation takes."""
    num_cycles: int = 1
    """Cycles of an iteration, each of one `collect` and one `update`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, _unflatten)

    def __init__(self, config: Any, spec: EnvSpec, networks: Any = None) -> None:
        """`networks` None stands for those that the config describes."""
        is_spec = isinstance(spec, EnvSpec)
        what = type(spec).__name__
        check(is_spec, f"an algorithm takes a suite's spec, suite.spec, not a {what}")
        kind = _config_class(type(self))
        if kind is not None:
            check_kind(config, kind, type(self).__name__)
        self.config, self.spec, self.networks = config, spec, networks
        if is_dataclass(config):
            check_numbers(config, "algorithm")
        if isinstance(config, Hyperparameters):
            check_types(config, "algorithm")  # `__post_init__` of one's own may not call ours
        for name in self.task_counts:
            number = getattr(config, name, None)
            if number is not None:  # rather now than after the first evaluation
                check_task_count(number, spec.num_classes, name)
                check_tasks_fit(number, name)

    @abstractmethod
    def init(self, key: jax.Array) -> State:
        """The state before training."""

    @abstractmethod
    def collect(self, state: State, sampler: Sampler) -> Data:
        """Interact with environments through the sampler: the data that `update` learns from."""

    @abstractmethod
    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """The state after learning from the data, and figures; a pure function of arrays."""

    @abstractmethod
    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """An actor that knows nothing of its task yet."""

    def adapt(
        self,
        state: State,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """The actor after adapting to its tasks.

        `history`: the rollouts on them so far, [M, N, T], oldest first. Changes neither `state` nor
        `actor`, and shares nothing mutable with these or with `history`. By default no adaptation:
        the same actor.
        """
        return actor

    @final
    def iteration(
        self, state: State, sampler: Sampler, keep: Callable[[State], None] | None = None
    ) -> tuple[State, Metrics]:
        """`num_cycles` times collect and update; figures are means over the cycles.

        After every update that overwrote replay rows, `keep` is called with what is left of the
        given state. Raises NotFinite where one of `finite_metrics` is not finite.
        """
        program = iteration_program(self, state, sampler)
        if program is not None:
            state, (metrics,), (counted,) = program.run(self, state, sampler, 1, keep)
            sampler.statistics.count(*counted.ended)
        else:
            state, metrics = self._cycle_by_cycle(state, sampler, keep)
        self.check_metrics(metrics)
        return state, metrics

    def check_metrics(self, metrics: Metrics) -> None:
        """Raise NotFinite where one of `finite_metrics` is not finite."""
        check_finite(metrics, *(name for name in self.finite_metrics if name in metrics))

    def _cycle_by_cycle(
        self, state: State, sampler: Sampler, keep: Callable[[State], None] | None
    ) -> tuple[State, Metrics]:
        cycles: list[Metrics] = []
        before = state
        sampler.begin_iteration()
        for _ in range(self.num_cycles):
            data = collected(self, state, sampler)
            state, metrics = updated(self, state, data)
            cycles.append(without_absent(metrics))
            if keep is not None and self.in_place:
                keep(rewound(before, state, self.in_place))
        return state, cycles[0] if len(cycles) == 1 else means(cycles)

    @final
    def initial_state(self, key: jax.Array) -> State:
        """`init`, compiled: piece by piece it would be dozens of programs.

        Raises a ConfigError where the state does not fit into memory.
        """
        self.check_size()
        if not self.traceable:
            return self.init(key)
        state: State = _initial_state(self, key)
        return state

    @final
    def check_size(self) -> None:
        """Raise a ConfigError where a state can never fit into memory."""
        if not self.traceable:
            return
        shapes = jax.tree.leaves(jax.eval_shape(_initial_state, self, jax.random.key(0)))
        largest = max((x.shape for x in shapes), key=math.prod, default=())
        check_fits(
            sum(x.size * x.dtype.itemsize for x in shapes),
            f"the parameters and all else that {self.name} keeps, arrays up to {list(largest)}",
            "smaller networks fit",
        )

    @property
    def compiler_options(self) -> dict[str, str]:
        """Options of the compiler for `update`."""
        return {}

    @final
    def with_config(self, config: Any) -> Self:
        """The same algorithm with another config; what `__init__` has kept stays."""
        other = copy.copy(self)
        other.config = config
        return other

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        own, others = vars(self), vars(other)
        return own.keys() == others.keys() and all(_same(own[name], others[name]) for name in own)

    def __hash__(self) -> int:
        return hash((type(self), self.config, self.spec, self.networks))


@cache
def _config_class(algorithm: type[Algorithm[Any, Any]]) -> type | None:
    """The class that an algorithm says its config is of; None where it says none."""
    try:
        kind = get_type_hints(algorithm).get("config")
    except NameError:  # what only type checkers import
        return None
    return kind if isinstance(kind, type) else None


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except ValueError:  # arrays do not say it in one word
        return False


def _flatten_with_keys(algorithm: Algorithm[Any, Any]) -> tuple[list[tuple[Any, Any]], Any]:
    key, config = jax.tree_util.GetAttrKey("config"), algorithm.config
    if isinstance(config, Hyperparameters):
        return [(key, config)], algorithm.with_config(None)
    return [], algorithm


def _unflatten(static: Algorithm[Any, Any], config: Any) -> Algorithm[Any, Any]:
    return static.with_config(*config) if config else static


@jax.jit
def _initial_state(algorithm: Algorithm[State, Any], key: jax.Array) -> State:
    return algorithm.init(key)


def check_finite(figures: Mapping[str, Any], *names: str) -> None:
    """Raise NotFinite where a named figure of an update, a term of its loss say, is not finite."""
    for name in names:
        if not np.isfinite(figures[name]):
            raise NotFinite(
                f"the update diverged: {name} is {float(figures[name])}; a smaller lr or "
                "max_grad_norm may help"
            )
