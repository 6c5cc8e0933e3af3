"""An algorithm of your own in one file: REINFORCE with a baseline (Williams 1992).

`python examples/own_algorithm.py` trains it; with the package in examples/plugin installed it is
`adaptax train my-reinforce SUITE`.
"""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import adaptax
from adaptax.core.config import check_positive
from adaptax.core.experience import zero_padding
from adaptax.functional.masking import masked_mean
from adaptax.functional.returns import discounted_returns
from adaptax.networks.heads import ActionHead


class Policy(nn.Module):
    """Observations [..., O] to a distribution over the actions of `space`."""

    space: Any

    @nn.compact
    def __call__(self, obs):
        """The distribution, batch axes those of `obs`."""
        return ActionHead(self.space)(nn.tanh(nn.Dense(32)(obs)))


@dataclass(frozen=True)
class MyReinforceConfig(adaptax.Hyperparameters):
    """Settings; each is a flag too, such as `--algorithm.lr 0.01`."""

    num_tasks: int = 8
    """Tasks an iteration."""
    num_lanes: int = 4
    """Episodes on each task, side by side."""
    discount: float = 0.99
    lr: float = 0.02
    """Adam's step size."""

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "num_tasks", "num_lanes", "lr")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """All that is learned: snapshots and resume need no more than this."""

    params: Any
    opt_state: Any


class MyReinforce(adaptax.Algorithm):
    """REINFORCE; its baseline is the mean of all episodes' returns from the same step on."""

    name = "my-reinforce"

    def __init__(self, config, spec, networks=None):
        super().__init__(config, spec, networks)
        self.networks = networks or Policy(spec.action)

    @property
    def optimizer(self):
        """Not kept by `__init__`: programs are compiled once for all values of `lr`."""
        return optax.adam(self.config.lr)

    def init(self, key):
        """The state before training."""
        params = self.networks.init(key, jnp.zeros(self.spec.observation_size))
        return State(params, self.optimizer.init(params))

    def collect(self, state, sampler):
        """Whole episodes [M, N, T]: M tasks, N lanes, T steps."""
        tasks = sampler.sample_tasks(self.config.num_tasks)
        return sampler.episodes(self.actor(state), tasks, self.config.num_lanes, 1)

    def update(self, state, data):
        """One gradient step; a pure function, which adaptax compiles."""
        data = zero_padding(data)
        returns = discounted_returns(
            data.reward,
            jnp.zeros_like(data.reward),
            terminated=data.terminated,
            truncated=data.truncated,
            valid=data.valid,
            discount=self.config.discount,
        )
        baseline = returns.sum((0, 1)) / jnp.maximum(data.valid.sum((0, 1)), 1)

        def loss(params):
            log_prob = self.networks.apply(params, data.obs).log_prob(data.action)
            return -masked_mean(log_prob * (returns - baseline), data.valid)

        value, grads = jax.value_and_grad(loss)(state.params)
        updates, opt_state = self.optimizer.update(grads, state.opt_state)
        return State(optax.apply_updates(state.params, updates), opt_state), {"policy_loss": value}

    def actor(self, state, *, deterministic=False):
        """What acts."""
        return adaptax.PolicyActor(state.params, self.networks, deterministic)


def main(num_iterations: int = 60, run_dir: str = "runs/own-algorithm"):
    """Train on CartPole; the mean return, of 500 at most, before and after."""
    suite = adaptax.make_suite("cartpole")
    algorithm = MyReinforce(MyReinforceConfig(), suite.spec)
    settings = {"num_iterations": num_iterations, "run_dir": run_dir, "overwrite": True}
    trainer = adaptax.train(algorithm, suite, evaluation={"num_lanes": 20}, **settings)
    return trainer.evaluate_untrained().returns.mean(), trainer.evaluate().returns.mean()


if __name__ == "__main__":
    print("untrained {:.0f}, trained {:.0f}".format(*main()))
