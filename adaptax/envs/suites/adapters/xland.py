"""XLand-MiniGrid: a task is a set of rules and a goal, neither of which is shown.

Nikulin et al. 2023, "XLand-MiniGrid" (arXiv 2312.12044). Grids, rules and goals are its package's.
Its benchmarks are files to download; here tasks are drawn, from its rules and goals (section 4.1),
as trees in which rules make what a goal asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.errors import check, unknown_name
from adaptax.core.experience import PyTree, Step
from adaptax.core.rng import named_generator
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.adapters.package import imported
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import Params, TaskList

PREFIX = "XLand-MiniGrid-"
NUM_INPUTS = {"AgentHold": 1, "AgentNear": 1, "TileNear": 2}
"""Kinds of rules and goals that tasks are made of, and how many objects each is about."""
TILE_NEAR_GOAL, TILE_NEAR_RULE = 4, 3
"""What the encoding of a TileNear begins with; two tiles follow, of two numbers each."""


@dataclass(frozen=True)
class XLandConfig:
    """Tasks on one layout of rooms."""

    num_rules: int = 1
    """Rules that have to be used one after another to make what the goal asks for; 0: none."""
    num_distractors: int = 2
    """Objects that nothing is made of."""
    num_episodes: int = 4
    """Episodes on one task, a trial."""
    horizon: int | None = None
    """Steps of an episode; None is the package's, three a cell of the grid."""
    num_train_tasks: int = 1000
    """Tasks to train on."""
    num_test_tasks: int = 100
    """Held-out tasks: no training task has the goal and the rules of one."""
    task_seed: int = 0
    """Seed of all tasks."""

    def __post_init__(self) -> None:
        check_positive(self, "num_episodes", "horizon", "num_train_tasks", "num_test_tasks")
        for name in ("num_rules", "num_distractors"):
            value = getattr(self, name)
            check(0 <= value <= 8, f"{name} must lie in [0, 8], not {value}")


@dataclass(frozen=True, eq=False)
class XLandEnv:
    """What the agent sees around it, each cell's tile and colour one-hot, is a picture.

    The reward is the package's: 1 - 0.9 t / horizon where the goal is reached in step t, which ends
    the episode, else 0.
    """

    env: Any
    params: Any
    trial_episodes: int

    @property
    def spec(self) -> EnvSpec:
        """A view [V, V, tiles + colours] seen, one of six actions chosen."""
        side = self.params.view_size
        picture = (side, side, sum(self._depths))
        return EnvSpec(
            side * side * sum(self._depths),
            Discrete(self.env.num_actions(self.params)),
            self.params.max_steps,
            self.trial_episodes,
            has_success=True,
            picture=picture,
            binary=True,
        )

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """Objects and agent anywhere; `task` has the arrays of `drawn_task`."""
        from xminigrid.types import RuleSet

        rules = RuleSet(**{name: jnp.asarray(task[name], jnp.uint8) for name in task})
        timestep = self.env.reset(self.params.replace(ruleset=rules), jax.random.key_data(key))
        return timestep.state, self._seen(timestep.observation)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """Go forward, turn right or left, pick up, put down, or toggle."""
        from xminigrid.types import StepType, TimeStep

        before = TimeStep(state, StepType.MID, jnp.float32(0.0), jnp.float32(1.0), None)
        after = self.env.step(self.params, before, action)
        reached = after.discount == 0
        step = Step(
            reward=jnp.asarray(after.reward, jnp.float32),
            next_obs=self._seen(after.observation),
            terminated=reached,
            info={"success": reached},
        )
        return jax.tree.map(lambda new, old: new.astype(old.dtype), after.state, state), step

    @property
    def _depths(self) -> tuple[int, int]:
        from xminigrid.core.constants import NUM_COLORS, NUM_TILES

        return NUM_TILES, NUM_COLORS

    def _seen(self, view: jax.Array) -> jax.Array:
        hot = [
            jax.nn.one_hot(view[..., i], depth, dtype=bool) for i, depth in enumerate(self._depths)
        ]
        return jnp.concatenate(hot, axis=-1).reshape(-1)


def drawn_task(rng: np.random.Generator, num_rules: int, num_distractors: int) -> Params:
    """A goal, the rules that lead to it, as XLand-MiniGrid encodes them, and the first objects.

    `goal` [G], `rules` [max(num_rules, 1), R] and `init_tiles` [K, 2], empty tiles last; K depends
    on the numbers alone. Every rule makes something that the goal or the rule before it needs.
    """
    from xminigrid.core import goals, rules
    from xminigrid.core.constants import PICKABLE, Colors, Tiles

    tiles = [int(tile) for tile in PICKABLE]
    colours = range(int(Colors.RED), int(Colors.PINK) + 1)
    every = [(tile, colour) for tile in tiles for colour in colours]
    fresh = (np.array(every[i], np.uint8) for i in rng.permutation(len(every)))

    def drawn_kind() -> tuple[str, list[np.ndarray]]:
        kind = list(NUM_INPUTS)[rng.integers(len(NUM_INPUTS))]
        return kind, [next(fresh) for _ in range(NUM_INPUTS[kind])]

    kind, needed = drawn_kind()
    goal = getattr(goals, f"{kind}Goal")(*map(jnp.asarray, needed)).encode()
    made, there = [], list(needed)
    for _ in range(num_rules):
        product = there.pop(rng.integers(len(there)))
        kind, inputs = drawn_kind()
        rule = getattr(rules, f"{kind}Rule")(*map(jnp.asarray, inputs), jnp.asarray(product))
        made.append(np.asarray(rule.encode()))
        there += inputs
    if not made:
        made.append(np.asarray(rules.EmptyRule().encode()))
    there += [next(fresh) for _ in range(num_distractors)]
    empty = np.array([int(Tiles.EMPTY), int(Colors.EMPTY)], np.uint8)
    num_objects = 2 + num_rules + num_distractors
    there += [empty] * (num_objects - len(there))
    arrays = {"goal": np.asarray(goal), "rules": np.stack(made), "init_tiles": np.stack(there)}
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def _meant(task: Params) -> tuple[str, str]:
    """Goal and rules of a task, and its first objects, however they are written.

    Two tiles near each other, rules and objects have no order.
    """
    goal, rules, tiles = (task[name].tolist() for name in ("goal", "rules", "init_tiles"))
    pairs = [rule for rule in rules if rule[0] == TILE_NEAR_RULE]
    for encoding in [*pairs, goal] if goal[0] == TILE_NEAR_GOAL else pairs:
        first, second = sorted([encoding[1:3], encoding[3:5]])
        encoding[1:5] = first + second
    return repr((goal, sorted(rules))), repr(sorted(tiles))


def xland(layout: str, config: XLandConfig) -> Suite:
    """The suite `xland:LAYOUT`, R1-9x9 for example: one room of 9 x 9 cells."""
    xminigrid = imported("xminigrid", "xland")
    known = [name.removeprefix(PREFIX) for name in xminigrid.registered_environments()]
    layouts = [name for name in known if name.startswith("R")]
    if layout not in layouts:
        raise unknown_name("layout of XLand-MiniGrid", layout, layouts)
    env, params = xminigrid.make(PREFIX + layout)
    if config.horizon is not None:
        params = params.replace(max_steps=config.horizon)
    name, rng = f"xland:{layout}", named_generator(config.task_seed, "xland", "tasks")
    wanted = config.num_train_tasks + config.num_test_tasks
    tested: dict[tuple[str, str], Params] = {}
    trained: dict[tuple[str, str], Params] = {}
    asked: set[str] = set()
    for _ in range(20 * wanted):
        params_of_task = drawn_task(rng, config.num_rules, config.num_distractors)
        meant = _meant(params_of_task)
        if len(tested) < config.num_test_tasks:
            tested[meant] = params_of_task
            asked.add(meant[0])
        elif meant[0] not in asked:  # other objects beside it do not make a goal a new one
            trained[meant] = params_of_task
        if len(trained) == config.num_train_tasks:
            break
    enough = len(trained) == config.num_train_tasks
    check(enough, f"there are not {wanted} different tasks of this kind")
    train = TaskList(f"{name}-train", list(trained.values()))
    test = TaskList(f"{name}-test", list(tested.values()))
    return compiled_suite(name, XLandEnv(env, params, config.num_episodes), train, test)
