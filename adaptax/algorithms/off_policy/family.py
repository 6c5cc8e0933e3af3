"""What DQN, DDPG, TD3 and SAC share: settings, state, collection, and a cycle of gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from adaptax.algorithms.base import Metrics
from adaptax.algorithms.program import ABSENT
from adaptax.core.config import check_multiple, check_positive, check_unit
from adaptax.core.errors import check
from adaptax.core.experience import Array, PyTree, Rollout, Transitions, select
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.spec import ActionSpace, Discrete, EnvSpec
from adaptax.functional.masking import anywhere
from adaptax.learning import minibatches
from adaptax.learning.context import bare
from adaptax.learning.minibatches import MakeOptimizer
from adaptax.learning.replay import Replay, ReplayConfig, add, make_replay, sample
from adaptax.learning.schedules import Schedule, Scheduled
from adaptax.sampling.actors import Actor, UniformActor
from adaptax.sampling.exploration import AfterWarmup
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class OffPolicyConfig(Hyperparameters):
    """How experience is collected, kept and learned from.

    An iteration is `num_cycles` cycles, each of `num_steps` environment steps and then
    `num_updates` gradient steps.
    """

    network_settings: ClassVar[tuple[str, ...]] = ("hidden_sizes",)

    num_lanes: int = 1
    """Environments run side by side."""
    num_tasks: int = 1
    """Tasks drawn an iteration, each with its share of the lanes, all in one replay. On a family
    of tasks every iteration draws new ones and starts their episodes afresh."""
    num_cycles: int = 20
    """Cycles of an iteration (garage's `steps_per_epoch`)."""
    num_steps: int = 50
    """Environment steps of a cycle in all lanes, equally many in each; they go on where the last
    cycle stopped (Achiam 2018, Spinning Up)."""
    num_updates: int | Literal["auto"] = "auto"
    """Gradient steps of a cycle; `auto`: as many as its environment steps."""
    buffer_size: int = 1_000_000
    """Transitions kept; the oldest make room for new ones."""
    num_initial_steps: int | None = 1_000
    """Environment steps, by uniform actions, before the first cycle with gradient steps: from
    `batch_size` to `buffer_size`; None: `buffer_size`."""
    batch_size: int = 256
    """Transitions of a minibatch."""
    discount: float = 0.99
    """Weight of a reward against one a step earlier, gamma."""
    n_step: int = 1
    """Rewards that a target sums before it bootstraps from a value, fewer at an episode's end."""
    reward_scale: float = 1.0
    """Factor on rewards where they are learned from; what is logged does not have it."""
    normalize_rewards: bool = False
    """Whether rewards are learned in units of the standard deviation of all seen."""
    target_update_interval: int = 1
    """Gradient steps from one update of the targets to the next."""
    tau: float = 0.005
    """Weight of the new values in an update of the targets; 1 copies."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Hidden layers of every network."""
    lr: float = 3e-4
    """Step size of every optimizer."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from gradient step to gradient step."""
    lr_schedule_steps: int | None = None
    """Gradient steps until a linear or cosine schedule is at 0, an exponential one at a tenth;
    None: the whole run."""
    max_grad_norm: float | None = None
    """Bound on the norm of the gradients of each optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_lanes", "num_tasks", "num_cycles", "num_steps", "buffer_size")
        check_positive(self, "num_initial_steps", "batch_size", "n_step", "reward_scale")
        check_positive(self, "target_update_interval", "hidden_sizes", "lr", "lr_schedule_steps")
        check_positive(self, "max_grad_norm")
        check_unit(self, "discount")
        check(self.n_step < 256, f"n_step must be less than 256, not {self.n_step}")
        check(0 < self.tau <= 1, f"tau must lie in (0, 1], not {self.tau}")
        check(
            self.num_updates == "auto"
            or (isinstance(self.num_updates, int) and self.num_updates > 0),
            f"num_updates must be greater than 0 or 'auto', not {self.num_updates!r}",
        )
        check_multiple(self, "num_lanes", "num_tasks")

    @property
    def lane_steps(self) -> int:
        """Environment steps of a cycle in one lane."""
        return -(-self.num_steps // self.num_lanes)

    @property
    def cycle_updates(self) -> int:
        """Gradient steps of a cycle."""
        if isinstance(self.num_updates, int):
            return self.num_updates
        return self.lane_steps * self.num_lanes

    @property
    def iteration_steps(self) -> int:
        """Environment steps of an iteration."""
        return self.num_cycles * self.lane_steps * self.num_lanes

    @property
    def passes_per_iteration(self) -> int:
        """Gradient steps of an iteration that learns in all its cycles."""
        return self.num_cycles * self.cycle_updates

    @property
    def warmup_steps(self) -> int:
        """Environment steps by uniform actions, after which something can be learned from."""
        wanted = self.buffer_size if self.num_initial_steps is None else self.num_initial_steps
        # A lane's first transition is there after n_step steps.
        least = max(self.batch_size, self.n_step * self.num_lanes)
        return max(min(wanted, self.buffer_size), least)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearnerState:
    """What gradient steps change."""

    params: PyTree
    """Parameters of the networks, by name."""
    target: PyTree
    """Copies of some of them that lag behind."""
    opt_state: PyTree
    """States of the optimizers, by name."""
    num_updates: jax.Array
    """Gradient steps so far."""
    key: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned, and what to learn from."""

    learner: LearnerState
    replay: Replay
    num_cycles: jax.Array
    """Cycles so far, [] int32."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """What a cycle collects."""

    rollout: Rollout
    """Steps of all lanes, without extras."""
    goes_on: Array
    """[] bool, whether its lanes start where those of the cycle before stopped."""
    learn: Array
    """[] bool, whether gradient steps follow: not while the replay is filled at first."""


@dataclass(frozen=True)
class Networks:
    """The networks of SAC, DDPG and TD3: two Flax modules, yours or the family's.

    Batch axes come first: O numbers of an observation, A of an action or A choices, E critics.
    """

    policy: nn.Module
    """obs [..., O] -> DDPG and TD3: action [..., A] in [-1, 1]. SAC: a distribution over actions
    with `sample`, `mode`, `log_prob`, and `sample_and_log_prob` for continuous ones or `logits`
    [..., A] for one choice (functional/distributions.py: `TanhGaussian`, `Categorical`)."""
    critics: nn.Module
    """(obs [..., O], action [..., A]) -> values [E, ...]; for one choice obs [..., O] ->
    [E, ..., A]. Every critic has parameters of its own (networks/critics.py: `ensemble`)."""


Optimizers = dict[str, optax.GradientTransformation]
"""By the names of the networks they move."""
GradientStep = Callable[[LearnerState, Transitions, jax.Array], tuple[LearnerState, Metrics]]
"""(learner, minibatch, key) -> learner, figures."""


def init_state(
    config: OffPolicyConfig,
    spec: EnvSpec,
    params: PyTree,
    target: PyTree,
    optimizers: Optimizers,
    key: jax.Array,
) -> State:
    """The state before training: targets equal to what they lag behind, nothing in the replay."""
    layout = ReplayConfig(config.buffer_size, 1, config.n_step)
    replay = make_replay(layout, spec, config.discount, (1, config.num_lanes))
    learner = init_learner(params, target, optimizers, key)
    return State(learner, replay, jnp.zeros((), jnp.int32))


def init_learner(
    params: PyTree, target: PyTree, optimizers: Optimizers, key: jax.Array
) -> LearnerState:
    """A learner before its first step, its targets copies of what they lag behind."""
    opt_state = {name: step.init(params[name]) for name, step in optimizers.items()}
    return LearnerState(
        params, jax.tree.map(jnp.array, target), opt_state, jnp.zeros((), jnp.int32), key
    )


def collect(config: OffPolicyConfig, state: State, sampler: Sampler, explorer: Actor) -> Data:
    """A cycle's steps, uniformly at random while fewer than `warmup_steps` came."""
    tasks = sampler.tasks_of_iteration(config.num_tasks)
    learn = state.replay.num_added[0] >= config.warmup_steps
    actor = AfterWarmup(explorer, UniformActor(sampler.spec.action), learn)
    num_lanes = config.num_lanes // len(tasks)
    goes_on = jnp.asarray(sampler.goes_on(tasks, num_lanes))
    rollout = sampler.steps(actor, tasks, num_lanes, config.lane_steps)
    return Data(bare(rollout), goes_on, learn)


def update(
    config: OffPolicyConfig, state: State, data: Data, gradient_step: GradientStep
) -> tuple[State, Metrics]:
    """Adds to the replay, and makes a cycle's gradient steps on minibatches of it, in one scan.

    While the replay is filled at first there are none, nor their figures.
    """
    replay = add(state.replay, data.rollout, goes_on=data.goes_on)
    scale = config.reward_scale / (replay.reward_std if config.normalize_rewards else 1.0)

    def step(learner: LearnerState, batch_key: jax.Array, step_key: jax.Array) -> Any:
        batch = sample(replay, batch_key, (config.batch_size,))
        batch = replace(batch, reward=scale * batch.reward)
        return gradient_step(learner, batch, step_key)

    learner, figures = gradient_steps(step, state.learner, config.cycle_updates, data.learn)
    counters = {"replay_size": jnp.sum(replay.sizes), "num_updates": learner.num_updates}
    return State(learner, replay, state.num_cycles + 1), {**figures, **counters}


def gradient_steps(
    step: Callable[[LearnerState, jax.Array, jax.Array], tuple[LearnerState, Metrics]],
    learner: LearnerState,
    num: int,
    learn: Array,
) -> tuple[LearnerState, Metrics]:
    """The learner after `num` gradient steps in one scan, and their mean figures.

    Unless `learn` [] is True, the learner as it is and figures that are absent. `step` takes two
    keys: one to draw its minibatch with, and one for itself.
    """

    def counted(learner: LearnerState, _: None) -> tuple[LearnerState, Metrics]:
        key, batch_key, step_key = jax.random.split(learner.key, 3)
        learner, figures = step(learner, batch_key, step_key)
        return replace(learner, key=key, num_updates=learner.num_updates + 1), figures

    def learned(learner: LearnerState) -> tuple[LearnerState, Metrics]:
        learner, figures = jax.lax.scan(counted, learner, length=num)
        return learner, jax.tree.map(jnp.mean, figures)

    shapes = jax.eval_shape(learned, learner)[1]
    none = jax.tree.map(lambda x: jnp.full(x.shape, ABSENT, x.dtype), shapes)

    def learned_where_due(learner: LearnerState) -> tuple[LearnerState, Metrics]:
        chosen: tuple[LearnerState, Metrics] = select(learn, learned(learner), (learner, none))
        return chosen

    result: tuple[LearnerState, Metrics] = jax.lax.cond(
        anywhere(learn), learned_where_due, lambda learner: (learner, none), learner
    )
    return result


def check_target_entropy(
    asked: float | None, *, is_learned: bool, needs: str = "learn_temperature"
) -> None:
    """Raise a ConfigError where an entropy is `asked` that no temperature is learned for."""
    check(
        is_learned or asked is None,
        f"target_entropy needs {needs}: a temperature that stays aims at none",
    )


def check_reachable(asked: float | None, space: ActionSpace) -> None:
    """Raise a ConfigError where no policy over one choice has the entropy that is `asked`."""
    if asked is not None and isinstance(space, Discrete):
        highest = float(np.log(space.size))
        check(
            0 <= asked <= highest,
            f"target_entropy {asked} is out of reach: that of a choice among {space.size} is 0 to "
            f"{highest:.4g} nats",
        )


def target_entropy(asked: float | None, space: ActionSpace) -> float:
    """The entropy in nats that SAC's temperature is learned for, or what is `asked`.

    Minus the number of action dimensions (Haarnoja et al. 2018b, appendix D), or half of the
    highest for one choice.
    """
    if asked is not None:
        return asked
    return 0.5 * float(np.log(space.size)) if isinstance(space, Discrete) else -float(space.size)


def off_policy_optimizer(
    config: Scheduled, make: MakeOptimizer = optax.adam, passes_per_update: int = 1
) -> optax.GradientTransformation:
    """Adam with the epsilon of its paper, 1e-8 (Kingma and Ba 2015), or what `make` gives.

    `passes_per_update` is how many steps of a schedule each of its steps is. With the 1e-5 of PPO2
    and Pyrado SAC learns more slowly (docs/off-policy.md, departures).
    """
    return minibatches.optimizer(config, make=make, passes_per_update=passes_per_update)


def descended(
    learner: LearnerState,
    loss: Callable[[PyTree], tuple[jax.Array, Any]],
    optimizers: Optimizers,
) -> tuple[LearnerState, Any]:
    """The learner with the networks that have an optimizer here one gradient step further down.

    `loss` takes their parameters by name; what it gives beside the loss comes second.
    """
    params, opt_state = dict(learner.params), dict(learner.opt_state)
    grads, aux = jax.grad(loss, has_aux=True)({name: params[name] for name in optimizers})
    for name, step in optimizers.items():
        updates, opt_state[name] = step.update(grads[name], opt_state[name], params[name])
        params[name] = optax.apply_updates(params[name], updates)
    return replace(learner, params=params, opt_state=opt_state), aux


def with_target(config: OffPolicyConfig, learner: LearnerState, online: PyTree) -> LearnerState:
    """After a gradient step: with the target moved towards `online`, if that is due."""
    num_updates = learner.num_updates + 1
    target = updated_target(config, num_updates, learner.target, online)
    return replace(learner, target=target)


def updated_target(
    config: OffPolicyConfig, num_updates: jax.Array, target: PyTree, online: PyTree
) -> PyTree:
    """The target after so many updates of what it lags behind."""
    after = optax.incremental_update(online, target, config.tau)
    if config.target_update_interval == 1:
        return after
    due = num_updates % config.target_update_interval == 0
    return jax.tree.map(lambda new, old: jnp.where(due, new, old), after, target)
