import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_end import RandomEndEnv, random_end

from adaptax.core.spec import Continuous, Discrete
from adaptax.networks.actor_critic import ActorCritic, init_params
from adaptax.networks.heads import MLPPolicy
from adaptax.networks.memory import GRU
from adaptax.sampling.actors import PerMember, PolicyActor
from adaptax.sampling.memory_actors import MemoryActor
from adaptax.sampling.sampler import Sampler

MEMBERS, LANES = 3, 2
KEY = jax.random.key(5)
both_loops = pytest.mark.parametrize("stepped", [False, True], ids=["compiled", "host"])


def stacked(init):
    """Parameters of three members, [M, ...]."""
    return jax.vmap(init)(jax.random.split(jax.random.key(0), MEMBERS))


def policy_actor(space, deterministic=True):
    policy = MLPPolicy((), space)
    params = stacked(lambda key: policy.init(key, jnp.zeros((1, 3))))
    params = jax.tree.map(lambda x: 100 * x, params)  # far from the first policy's near zero
    return PolicyActor(params, policy, deterministic)


@jax.jit
def act(actor, carry, obs):
    return actor.act(carry, obs, KEY)


def member(actor, i: int):
    return jax.tree.map(lambda x: x[i], actor)


@pytest.mark.parametrize("space", [Continuous(2), Discrete(3)])
def test_each_member_acts_by_its_own_parameters(space):
    obs = jax.random.normal(KEY, (MEMBERS, LANES, 3))
    actors = policy_actor(space)
    action, _, _ = act(PerMember(actors), {}, obs)
    for i in range(MEMBERS):
        alone, _, _ = act(member(actors, i), {}, obs[i : i + 1])
        np.testing.assert_allclose(action[i], alone[0], rtol=1e-6)
    assert len({np.asarray(action[i]).tobytes() for i in range(MEMBERS)}) == MEMBERS


def test_members_with_equal_parameters_draw_differently():
    actors = policy_actor(Continuous(2), deterministic=False)
    equal = jax.tree.map(lambda x: jnp.repeat(x[:1], MEMBERS, axis=0), actors)
    action, _, extras = act(PerMember(equal), {}, jnp.zeros((MEMBERS, LANES, 3)))
    assert len(np.unique(action)) == action.size
    assert extras["log_prob"].shape == (MEMBERS, LANES)


@both_loops
def test_a_rollout_is_that_of_each_member_alone(stepped):
    env = RandomEndEnv(Continuous(2))
    suite = random_end(env, stepped=stepped)
    policy = MLPPolicy((), env.spec.action)
    size = env.spec.observation_size
    actors = PolicyActor(stacked(lambda k: policy.init(k, jnp.zeros((1, size)))), policy, True)
    tasks = suite.train.tasks[:1] * MEMBERS
    rollout = Sampler(suite, suite.train, 0, "train").episodes(PerMember(actors), tasks, LANES, 1)
    for i in range(MEMBERS):
        alone = Sampler(suite, suite.train, 0, "train").episodes(member(actors, i), tasks, LANES, 1)
        np.testing.assert_allclose(rollout.action[i], alone.action[i], atol=1e-6)
        np.testing.assert_allclose(rollout.reward[i], alone.reward[i], atol=1e-6)


def test_members_remember_for_themselves():
    env = RandomEndEnv(Continuous(2))
    network, size = ActorCritic(env.action, (4,), GRU(4)), env.spec.observation_size
    shapes = jax.eval_shape(lambda: init_params(network, KEY, size))
    rng = np.random.default_rng(0)  # drawn, since initialising takes seconds to compile
    params = jax.tree.map(lambda x: jnp.array(rng.normal(size=(MEMBERS, *x.shape))), shapes)
    actors = MemoryActor(params, network, deterministic=True)
    obs = jax.random.normal(KEY, (MEMBERS, LANES, size))
    _, carry, _ = act(PerMember(actors), actors.begin(MEMBERS, LANES, KEY), obs)
    assert carry["memory"]["policy"].shape == (MEMBERS, LANES, 4)
    for i in range(MEMBERS):
        _, alone, _ = act(member(actors, i), actors.begin(1, LANES, KEY), obs[i : i + 1])
        expected = alone["memory"]["policy"][0]
        np.testing.assert_allclose(carry["memory"]["policy"][i], expected, rtol=1e-5)
