"""What on-policy algorithms share: settings, state, collection, and the ways networks learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.config import check_multiple, check_positive, check_unit
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.masking import masked_mean
from adaptax.functional.value_losses import explained_variance
from adaptax.learning.estimator import (
    Estimate,
    EstimatorSettings,
    FitSettings,
    Normalization,
    Values,
    estimate,
    fit_value,
    network_values,
    policy_advantage,
)
from adaptax.learning.minibatches import (
    ADAM,
    Loss,
    MakeOptimizer,
    Metrics,
    Passes,
    Stop,
    run_passes,
)
from adaptax.learning.schedules import Schedule, share_left
from adaptax.learning.sequences import (
    Batch,
    Sequences,
    as_batch,
    episode_sequences,
    in_pieces,
)
from adaptax.networks.actor_critic import (
    ActorCritic,
    are_apart,
    checked_actor_critic,
    has_memory,
    init_params,
    part_of,
    with_part,
)
from adaptax.networks.convolutions import torso_for
from adaptax.networks.memory import MemoryConfig
from adaptax.networks.normalizer import Moments, fresh_moments, observed
from adaptax.sampling.actors import Actor
from adaptax.sampling.memory_actors import MemoryActor
from adaptax.sampling.sampler import Sampler

NOT_BY_STEPS = (
    "shuffle 'steps' does not go with a memory: networks with a memory learn from whole sequences, "
    "not from shuffled steps"
)


@dataclass(frozen=True)
class OnPolicyConfig(Hyperparameters):
    """How experience is collected and learned from, and what the networks look like."""

    network_settings: ClassVar[tuple[str, ...]] = ("hidden_sizes", "memory", "init_std")

    num_lanes: int = 8
    """Environments run side by side."""
    num_tasks: int = 1
    """Tasks drawn an iteration, each with its share of the lanes. On a family of tasks every
    iteration draws new ones and starts their episodes afresh."""
    num_steps: int = 2048
    """Environment steps of an iteration in all lanes, equally many in each; they go on where the
    last iteration stopped (Schulman et al. 2017, table 3)."""
    num_episodes: int | None = None
    """If given, an iteration is whole episodes instead: so many in all lanes, equally many in
    each, whatever `num_steps` says."""
    discount: float = 0.99
    """Weight of a reward against one a step earlier, gamma."""
    gae_lambda: float = 0.95
    """Lambda of the advantages: 0 trusts the value after one step, 1 only after all of them."""
    normalize_advantage: Normalization = "batch"
    """Whose moments give the policy's advantages mean 0 and standard deviation 1: those of the
    iteration, of each lane, of all so far, or none; with none they are in units of the returns'
    deviation where `normalize_returns` is on."""
    positive_advantage: ClassVar[bool] = False
    """Fixed: of the configs from which `estimator.policy_advantage` reads it, only RL2's lets one
    set it."""
    num_minibatches: int = 32
    """Parts of a pass over the data; of whole lanes with a memory, of which each has at least
    one."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy and of the value (Schulman et al. 2017, section 6.1)."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """What policy and value remember by, behind the hidden layers."""
    shuffle: Literal["auto", "sequences", "steps"] = "auto"
    """What minibatches are made of: single steps or whole lanes; `auto` takes lanes with memory,
    which needs them, and steps without."""
    num_bptt_steps: int | None = None
    """Steps of the pieces that lanes are cut into, beyond whose start no gradient flows back;
    minibatches are of pieces then. None: whole lanes. Without a memory, and `shuffle` `auto`,
    minibatches are of single steps whatever it is."""
    init_std: float = field(default=0.4, metadata={"static": True})
    """Standard deviation of the first policy's actions; at 1 a third of them would be clipped."""
    lr: float = 5e-4
    """Step size of the gradient optimizer."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from pass to pass."""
    lr_schedule_steps: int | None = None
    """Passes until a linear or cosine schedule is at 0, an exponential one at a tenth; None: the
    whole run."""
    max_grad_norm: float | None = None
    """Bound on the norm of all gradients that an optimizer owns, taken together."""
    normalize_obs: bool = True
    """Whether networks see observations standardised by the moments of all so far; pictures are
    left as they are, since rare pixels would become large."""
    normalize_returns: bool = True
    """Whether values are learned in units of the returns so far: minus their mean, by their std."""

    @property
    def passes_per_iteration(self) -> int:
        """Passes over the data of an iteration."""
        return self.num_epochs  # type: ignore[attr-defined]  # each subclass has it

    @property
    def iteration_steps(self) -> int | None:
        """Environment steps of an iteration; None where episodes say how many."""
        return None if self.num_episodes else -(-self.num_steps // self.num_lanes) * self.num_lanes

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_lanes", "num_tasks", "num_steps", "num_episodes", "init_std")
        check_positive(self, "num_minibatches", "hidden_sizes", "lr", "lr_schedule_steps")
        check_positive(self, "max_grad_norm", "num_bptt_steps")
        check_unit(self, "discount", "gae_lambda")
        check_multiple(self, "num_lanes", "num_tasks")
        check(self.memory.kind == "none" or self.shuffle != "steps", NOT_BY_STEPS)
        check(
            self.num_bptt_steps is None or self.shuffle != "steps",
            "num_bptt_steps cuts whole lanes into pieces: it needs shuffle 'auto' or 'sequences'",
        )

    @property
    def task_lanes(self) -> int:
        """Lanes on each task."""
        return self.num_lanes // self.num_tasks

    @property
    def lane_episodes(self) -> int | None:
        """Whole episodes of an iteration in one lane; None if it is steps."""
        return None if self.num_episodes is None else -(-self.num_episodes // self.num_lanes)

    def lane_steps(self, spec: EnvSpec) -> int:
        """Steps of an iteration in one lane, padding included."""
        if self.lane_episodes is not None:
            return self.lane_episodes * spec.horizon
        return -(-self.num_steps // self.num_lanes)

    def check_minibatches(self, name: str, num_minibatches: int, spec: EnvSpec) -> None:
        """Raise a ConfigError where there are more minibatches than steps."""
        total = self.num_lanes * self.lane_steps(spec)
        check(
            num_minibatches <= total,
            f"{name} {num_minibatches} is more than the {total} steps of an iteration: lower it, "
            f"or raise num_{'episodes' if self.num_episodes else 'steps'}",
        )


class Settings(EstimatorSettings, Passes, Protocol):
    """Settings that every on-policy algorithm learns by, RL2's too."""

    @property
    def normalize_obs(self) -> bool:
        """Whether networks see observations standardised by the moments of all so far."""

    @property
    def normalize_returns(self) -> bool:
        """Whether values are learned in units of the returns so far."""

    @property
    def shuffle(self) -> Literal["auto", "sequences", "steps"]:
        """What minibatches are made of."""

    @property
    def num_bptt_steps(self) -> int | None:
        """Steps of the pieces that whole lanes are cut into; None: into none."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    params: PyTree
    """What Flax's `init` gives."""
    opt_state: PyTree
    """The state of one optimizer, or a dict of several by what they move."""
    moments: dict[str, Moments]
    """Running moments of `obs`, `return` and `advantage`, as far as they are in use."""
    num_passes: jax.Array
    """Passes over the data so far."""
    key: jax.Array


def default_networks(config: OnPolicyConfig, spec: EnvSpec) -> ActorCritic:
    """Policy and value apart, alike in shape; with convolutions first where they see pictures."""
    memory = config.memory.make(spec.horizon + 1)  # with what is seen after the last step
    torso = torso_for(spec.picture, config.hidden_sizes)
    return ActorCritic(spec.action, config.hidden_sizes, memory, config.init_std, torso=torso)


def networks_for(config: OnPolicyConfig, spec: EnvSpec, networks: nn.Module | None) -> Any:
    """The given network, obs -> (distribution, value) or an ActorCritic, or the default one."""
    if networks is None:
        return default_networks(config, spec)
    own = checked_actor_critic(networks, spec.action, spec.observation_size)
    check(not has_memory(own) or config.shuffle != "steps", NOT_BY_STEPS)
    return own


def batch_of(
    config: Settings,
    network: Any,
    params: PyTree,
    sequences: Sequences,
    advantage: jax.Array,
    estimated: Estimate,
    *,
    pieces: bool = True,
) -> Batch:
    """What a network with these parameters learns from: steps, whole lanes, or pieces of them.

    `pieces` False: lanes stay whole, whatever `num_bptt_steps` is.
    """
    whole = config.shuffle == "sequences" or has_memory(network)
    batch = as_batch(sequences, advantage, estimated.value, estimated.target, whole=whole)
    if not (whole and pieces) or config.num_bptt_steps is None:
        return batch
    return in_pieces(batch, network, params, config.num_bptt_steps)


def init_state(
    config: Settings,
    network: Any,
    input_size: int,
    key: jax.Array,
    init_optimizer: Callable[[PyTree], PyTree],
    *,
    pictures: bool = False,
) -> State:
    """The state before training; `input_size` numbers, or `pictures`, are what the network sees."""
    key, init_key = jax.random.split(key)
    params = init_params(network, init_key, input_size)
    in_use = {
        "obs": config.normalize_obs and not pictures,
        "return": config.normalize_returns,
        "advantage": config.normalize_advantage == "running",
    }
    sizes = {"obs": input_size, "return": 1, "advantage": 1}
    moments = {name: fresh_moments(sizes[name]) for name, used in in_use.items() if used}
    return State(params, init_optimizer(params), moments, jnp.array(0), key)


def fresh_state(
    config: Settings,
    network: Any,
    spec: EnvSpec,
    key: jax.Array,
    init_optimizer: Callable[[PyTree], PyTree],
) -> State:
    """The state before training of a network that sees observations, or pictures as they are."""
    pictures = spec.picture is not None
    return init_state(
        config, network, spec.observation_size, key, init_optimizer, pictures=pictures
    )


def policy_actor(network: Any, state: State, *, deterministic: bool) -> MemoryActor:
    """The policy at the start of an episode."""
    return MemoryActor(state.params, network, state.moments.get("obs"), deterministic)


def collect(
    config: OnPolicyConfig, actor: Actor, sampler: Sampler, tasks: tuple[Any, ...] = ()
) -> Rollout:
    """What an iteration learns from: whole episodes or steps, on new tasks or those given."""
    tasks = tasks or sampler.sample_tasks(config.num_tasks)
    if config.lane_episodes is not None:
        return sampler.episodes(actor, tasks, config.task_lanes, config.lane_episodes)
    return sampler.steps(actor, tasks, config.task_lanes, config.lane_steps(sampler.spec))


def sequences_of(state: State, rollout: Rollout) -> Sequences:
    """A rollout as the policy that acted saw it."""
    return episode_sequences(rollout, state.moments.get("obs"))


def with_obs_moments(state: State, sequences: Sequences) -> State:
    """The state with the moments of what was observed.

    Called only after an update, which must normalise its inputs as the policy that acted did.
    """
    if "obs" not in state.moments:
        return state
    moments = observed(state.moments["obs"], sequences.inputs, sequences.valid)
    return replace(state, moments={**state.moments, "obs": moments})


def scheduled(config: Settings, schedule: Schedule, state: State) -> jax.Array:
    """What is left of a value that falls over as many passes as the step size."""
    return share_left(schedule, state.num_passes, config.lr_schedule_steps)


def learn_jointly(
    config: Any,
    network: Any,
    state: State,
    sequences: Sequences,
    loss: Loss,
    *,
    make: MakeOptimizer = ADAM,
    stop: Stop | None = None,
    values: Values = network_values,
) -> tuple[State, Batch, Metrics]:
    """Advantages by the present `values`, then policy and value together down one loss."""
    estimated, moments = estimate(
        config,
        network,
        state.params,
        state.moments,
        sequences,
        monte_carlo=config.monte_carlo_returns,
        values=values,
    )
    advantage, moments = policy_advantage(config, estimated.advantage, sequences.valid, moments)
    batch = batch_of(config, network, state.params, sequences, advantage, estimated)
    key, shuffle_key = jax.random.split(state.key)
    (params, opt_state), figures = run_passes(
        config, loss, (state.params, state.opt_state), batch, shuffle_key, make=make, stop=stop
    )
    num_passes = state.num_passes + config.num_epochs
    after = State(params, opt_state, moments, num_passes, key)
    return with_obs_moments(after, sequences), batch, figures


def fit_critic(
    config: Settings,
    fit: FitSettings,
    network: Any,
    state: State,
    sequences: Sequences,
    *,
    pieces: bool = True,
) -> tuple[State, Batch, Metrics]:
    """Fit the value to targets fixed over all passes: state, batch for the policy, figures.

    `pieces`: whether the policy's batch is cut by `num_bptt_steps`, as the value's is.
    """
    estimated, moments = estimate(
        config,
        network,
        state.params,
        state.moments,
        sequences,
        monte_carlo=fit.monte_carlo_returns,
    )
    raw = estimated.advantage
    batch = batch_of(config, network, state.params, sequences, raw, estimated)
    key, shuffle_key = jax.random.split(state.key)
    start = (part_of(state.params, "value"), state.opt_state["value"])
    (value_params, opt_state), figures = fit_value(
        fit, network, state.params, start, batch, shuffle_key
    )
    params = with_part(state.params, value_params)
    if fit.advantage_from == "new":
        raw = estimate(config, network, params, moments, sequences)[0].advantage
    advantage, moments = policy_advantage(config, raw, sequences.valid, moments)
    if pieces:
        batch = batch.with_advantage(advantage)
    else:
        batch = batch_of(config, network, params, sequences, advantage, estimated, pieces=False)
    after = State(params, {**state.opt_state, "value": opt_state}, moments, state.num_passes, key)
    return after, batch, figures


def changes(network: Any, before: PyTree, after: PyTree, batch: Batch, loss: Loss) -> Metrics:
    """What an update did, over all of the batch: to the loss, the policy and the value."""
    (old, _), (new, value) = batch.outputs(network, before), batch.outputs(network, after)
    return {
        "loss_before": loss(before, batch)[0],
        "loss_after": loss(after, batch)[0],
        "kl": masked_mean(old.kl(new), batch.valid),
        "entropy": masked_mean(new.entropy(), batch.valid),
        "explained_variance": explained_variance(value, batch.target, batch.valid),
    }


def with_kl_of_all(
    network: Any, acted: PyTree, after: PyTree, batch: Batch, figures: Metrics
) -> Metrics:
    """Figures of a policy's step whose `kl` is from the policy that acted.

    Where policy and value share parameters, the value's fit before the step has moved it too.
    """
    if are_apart(after):
        return figures
    old, new = (batch.outputs(network, params)[0] for params in (acted, after))
    return {**figures, "kl": masked_mean(old.kl(new), batch.valid)}


Entropy = Callable[[Distribution, jax.Array], jax.Array]
"""(policy, actions) -> entropies in nats."""


def plain_entropy(distribution: Distribution, action: jax.Array) -> jax.Array:
    """The policy's entropy in nats, whatever was done."""
    return distribution.entropy()


def kl_exceeds(target_kl: float | None) -> Stop | None:
    """Whether a minibatch's `approx_kl` exceeds one and a half times the target, if there is one.

    The factor is Spinning Up's and Stable-Baselines3's.
    """
    if target_kl is None:
        return None
    return lambda figures: figures["approx_kl"] > 1.5 * target_kl
