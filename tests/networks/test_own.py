"""Networks of one's own: refused in one line where they do not fit, before anything is learned."""

import dataclasses
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import SMALL

from adaptax import Continuous, Discrete, EnvSpec, MultiDiscrete, make_algorithm, make_suite
from adaptax.algorithms.meta import pearl, rl2_sac, varibad
from adaptax.algorithms.off_policy.family import Networks
from adaptax.core.errors import ConfigError
from adaptax.functional.distributions import DiagonalGaussian, TanhGaussian
from adaptax.networks.actor_critic import ActorCritic, FeedForward
from adaptax.sampling.sampler import Sampler

REACH = EnvSpec(4, Continuous(2), 10)
CHOOSE = EnvSpec(4, Discrete(3), 10)
SETTINGS = {
    "pearl": {"critic": "value"},
    "varibad": {"decode_next_obs": True, "reward_from": "transition"},
    "rl2-sac": {"critic": "two_hot"},
}
OF_CHOICES = ["sac", "dqn", "rl2-sac", "varibad", "promp", "cem"]
OF_MOVES = ["sac", "td3", "ddpg", "pearl", "rl2-sac", "varibad", "promp", "cma-es", "trpo-maml"]


class Numbers(nn.Module):
    """So many numbers of all inputs side by side."""

    num: int = 1

    @nn.compact
    def __call__(self, *inputs):
        lead = jnp.broadcast_shapes(*(x.shape[:-1] for x in inputs))
        inputs = [jnp.broadcast_to(x, (*lead, x.shape[-1])) for x in inputs]
        return nn.Dense(self.num)(jnp.concatenate(inputs, axis=-1))


def made(name, spec, networks=None):
    return make_algorithm(name, spec, networks=networks, **SETTINGS.get(name, {}))


@pytest.mark.parametrize(
    ("name", "spec"),
    [(name, CHOOSE) for name in OF_CHOICES] + [(name, REACH) for name in OF_MOVES],
)
def test_networks_like_the_default_ones_are_taken(name, spec):
    own = made(name, spec).networks
    assert made(name, spec, own).networks is own


@pytest.mark.parametrize("name", ["ppo", "rl2-ppo", "dqn", "promp", "dice-maml", "cem"])
@pytest.mark.parametrize("wrong", [3, Numbers, nn.Dense, "mlp"])
def test_what_is_no_module_is_refused(name, wrong):
    with pytest.raises(ConfigError, match="must be a Flax module, an instance of its class"):
        made(name, CHOOSE, wrong)


@pytest.mark.parametrize("name", ["sac", "td3", "pearl", "rl2-sac", "varibad"])
@pytest.mark.parametrize("wrong", [3, Numbers(), Numbers])
def test_one_module_for_several_networks_is_refused(name, wrong):
    with pytest.raises(ConfigError, match=r"networks must be adaptax\..*Networks\(\.\.\.\), not"):
        made(name, REACH, wrong)


@pytest.mark.parametrize(
    ("name", "spec", "part", "wrong", "said"),
    [
        ("td3", REACH, "policy", Numbers(3), r"must make \[3, 2\] of \[3, 4\], not \[3, 3\]"),
        ("td3", REACH, "policy", None, "policy must be a Flax module"),
        ("ddpg", REACH, "critics", Numbers(1), r"must make \[any, 3\] of \[3, 4\] and \[3, 2\]"),
        ("sac", REACH, "critics", Numbers(1), r"critics must make \[any, 3\]"),
        ("sac", REACH, "policy", Numbers(2), r"over actions .* of .*; \[3, 2\] has no sample_and"),
        ("sac", CHOOSE, "critics", Numbers(3), r"must make \[any, 3, 3\] of .*, not \[3, 3\]"),
        ("pearl", REACH, "critics", Numbers(1), r"critics must make \[any, 3\]"),
        ("pearl", REACH, "value", Numbers(1), r"value must make \[3\] of .* not \[3, 1\]"),
        ("pearl", REACH, "policy", Numbers(2), "a distribution over actions"),
        ("varibad", REACH, "reward_decoder", Numbers(2), r"must make \[3, 1\] of .*not \[3, 2\]"),
        ("varibad", REACH, "next_obs_decoder", Numbers(1), r"must make \[3, 4\] of"),
        ("varibad", REACH, "actor_critic", Numbers(2), "a distribution over .* and a value"),
        ("rl2-sac", REACH, "critics", Numbers(1), r"critics must make \[any, 3, 101\]"),
        ("rl2-sac", CHOOSE, "policy", Numbers(3), "a distribution over actions"),
        ("rl2-sac", CHOOSE, "encoder", Numbers(3), "encoder must make features.*; a trial fails"),
    ],
)
def test_a_network_that_makes_something_else_is_refused(name, spec, part, wrong, said):
    own = dataclasses.replace(made(name, spec).networks, **{part: wrong})
    with pytest.raises(ConfigError, match=f"networks.*{said}"):
        made(name, spec, own)


@pytest.mark.parametrize("name", ["reinforce", "ppo", "rl2-ppo", "rl2-trpo", "promp", "cem"])
@pytest.mark.parametrize(
    ("space", "other", "said"),
    [
        (Discrete(3), Discrete(2), r"one over Discrete\(size=2\)"),
        (MultiDiscrete((2, 3)), MultiDiscrete((3, 2)), r"one over MultiDiscrete\(sizes=\(3, 2\)\)"),
        (MultiDiscrete((2, 3)), Continuous(2), r"actions \[[23], 2\] with log-probabilities"),
        (Continuous(2), MultiDiscrete((2, 3)), r"choices \[[23], 2\] with log-probabilities"),
        (Continuous(2), Continuous(3), r"actions \[[23], 3\] with log-probabilities"),
    ],
)
def test_a_policy_over_other_actions_is_refused(name, space, other, said):
    own = made(name, EnvSpec(4, other, 5, trial_episodes=2)).networks
    spec = EnvSpec(4, space, 5, trial_episodes=2)
    with pytest.raises(ConfigError, match=f"over actions {re.escape(str(space))}.* {said}"):
        made(name, spec, ActorCritic(other) if "rl2" in name else own)


class Squashed(nn.Module):
    """A policy without a closed entropy, with one deviation for all observations."""

    value: bool = False
    squashed: bool = True

    @nn.compact
    def __call__(self, obs):
        kind = TanhGaussian if self.squashed else DiagonalGaussian
        policy = kind(nn.Dense(2)(obs), self.param("log_std", nn.initializers.zeros, (2,)))
        return (policy, nn.Dense(1)(obs)[..., 0]) if self.value else policy


@pytest.mark.parametrize("name", ["a2c", "ppo", "trpo", "rl2-ppo", "svpg"])
def test_a_distribution_without_an_entropy_is_refused_where_it_is_needed(name):
    with pytest.raises(ConfigError, match="TanhGaussian has no entropy, which the algorithm needs"):
        made(name, REACH, Squashed(value=True))
    made("reinforce", REACH, Squashed(value=True))
    made("promp", REACH, Squashed())


@pytest.mark.parametrize("name", ["promp", "dice-maml", "varibad"])
def test_one_deviation_for_all_observations_is_as_one_for_each(name):
    suite, networks = make_suite("point-goal", horizon=4), Squashed(squashed=False)
    if name == "varibad":
        default = make_algorithm(name, suite.spec, **SMALL[name]).networks
        own = FeedForward(Squashed(value=True, squashed=False))
        networks = dataclasses.replace(default, actor_critic=own)
    algorithm = make_algorithm(name, suite.spec, networks, **SMALL[name])
    sampler = Sampler(suite, suite.train, 0, "train")
    state = algorithm.init(jax.random.key(0))
    _, figures = algorithm.iteration(state, sampler)
    assert all(np.isfinite(x) for x in figures.values())


def test_values_that_would_broadcast_are_refused():
    with pytest.raises(ConfigError, match=r"networks must make \[3, 3\] of \[3, 4\], not \[3, 1\]"):
        made("dqn", CHOOSE, Numbers(1))


def test_a_distribution_without_a_joint_draw_is_refused_by_sac():
    policy = made("promp", REACH).networks
    own = Networks(policy, made("sac", REACH).networks.critics)
    with pytest.raises(ConfigError, match="DiagonalGaussian has no sample_and_log_prob"):
        made("sac", REACH, own)


def test_parts_that_may_be_left_out_may_be():
    for name, module in (("pearl", pearl), ("varibad", varibad)):
        own = make_algorithm(name, REACH).networks
        assert isinstance(own, module.Networks)
        make_algorithm(name, REACH, networks=own)
    assert rl2_sac.Networks.__dataclass_fields__["encoder"].default is dataclasses.MISSING


class Kept(nn.Module):
    """Keeps statistics beside its parameters."""

    of: nn.Module

    @nn.compact
    def __call__(self, *inputs):
        self.variable("batch_stats", "mean", lambda: jnp.zeros(1))
        return self.of(*inputs)


def test_variables_that_are_no_parameters_are_refused():
    with pytest.raises(ConfigError, match="it keeps batch_stats beside its parameters"):
        made("cem", CHOOSE, Kept(made("cem", CHOOSE).networks))


class Tabled(Numbers):
    table: Any = None


@pytest.mark.parametrize("name", ["ppo", "cem"])
def test_a_module_of_arrays_is_refused(name):
    with pytest.raises(ConfigError, match=r"networks cannot be told from others.*; have numbers"):
        made(name, CHOOSE, Tabled(table=np.ones(3)))
