import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Discrete
from adaptax.envs.suites.tabular_mdp import TabularMDPConfig, TabularMDPEnv, tabular_mdp

NUM = 20_000
SUITE = tabular_mdp(TabularMDPConfig())


def stepped(transition, reward_mean, state: int, action: int):
    """NUM steps from one state by one action, each with a key of its own: states and steps."""
    env = TabularMDPEnv(*np.shape(reward_mean), horizon=10, trial_episodes=1)
    task = {"transition": jnp.array(transition), "reward_mean": jnp.array(reward_mean)}
    keys = jax.random.split(jax.random.key(0), NUM)
    step = jax.vmap(lambda key: env.step(key, jnp.array(state), jnp.array(action), task))
    return jax.jit(step)(keys)


@pytest.fixture(scope="module")
def steps():
    transition = np.full((2, 2, 2), 0.5, np.float32)
    transition[1, 0] = [0.3, 0.7]
    return stepped(transition, np.float32([[0, 0], [2.5, 0]]), state=1, action=0)


def test_spec_is_the_papers():
    spec = SUITE.spec
    assert (spec.observation_size, spec.action, spec.horizon) == (10, Discrete(5), 10)
    assert (spec.trial_episodes, spec.has_success) == (10, False)


def test_rewards_are_normal_around_the_mean_of_state_and_action(steps):
    reward = np.asarray(steps[1].reward)
    assert reward.mean() == pytest.approx(2.5, abs=4 / np.sqrt(NUM))
    assert reward.std() == pytest.approx(1.0, abs=4 / np.sqrt(2 * NUM))


def test_transitions_have_the_probabilities_of_the_table(steps):
    share = float(np.mean(steps[0] == 1))
    assert share == pytest.approx(0.7, abs=4 * np.sqrt(0.21 / NUM))


def test_reward_and_transition_are_independent(steps):
    correlation = np.corrcoef(steps[1].reward, steps[0])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(NUM)


def test_observation_is_the_state_one_hot(steps):
    np.testing.assert_array_equal(steps[1].next_obs, np.eye(2)[steps[0]])


@pytest.mark.parametrize("target", [0, 1, 2])
def test_a_certain_transition_never_fails(target):
    transition = np.broadcast_to(np.eye(3, dtype=np.float32)[target], (3, 1, 3))
    state = stepped(transition, np.zeros((3, 1), np.float32), state=0, action=0)[0]
    assert set(np.asarray(state).tolist()) == {target}


def test_rounding_of_the_table_leads_to_no_state_outside_it():
    short = np.full((1, 1, 1), 0.9, np.float32)
    assert int(stepped(short, np.zeros((1, 1), np.float32), state=0, action=0)[0].max()) == 0


def test_every_episode_starts_in_the_first_state():
    pool = SUITE.make_pool(3)
    obs = pool.reset(np.arange(3), np.arange(3, dtype=np.uint32), SUITE.test.tasks[:3])
    np.testing.assert_array_equal(obs, np.eye(10)[[0, 0, 0]])


def test_tables_are_drawn_from_the_papers_priors():
    tasks = SUITE.train.sample(np.random.default_rng(0), 200)
    transition = np.stack([task.params["transition"] for task in tasks])
    reward_mean = np.stack([task.params["reward_mean"] for task in tasks])
    np.testing.assert_allclose(transition.sum(-1), np.ones((200, 10, 5)), rtol=1e-5)
    # A flat Dirichlet over 10 states: every entry has mean 1/10 and variance 9 / (100 * 11).
    assert transition.mean() == pytest.approx(0.1, abs=1e-6)
    assert transition.var() == pytest.approx(9 / 1100, rel=0.05)
    assert reward_mean.mean() == pytest.approx(1.0, abs=0.04)
    assert reward_mean.std() == pytest.approx(1.0, abs=0.03)


def test_held_out_tables_are_fixed_by_the_task_seed():
    again, other = (tabular_mdp(TabularMDPConfig(task_seed=seed)) for seed in (0, 1))
    assert SUITE.task_set_hash() == again.task_set_hash() != other.task_set_hash()


def test_an_mdp_without_actions_is_refused():
    with pytest.raises(ConfigError, match="num_actions must be greater than 0, not 0"):
        TabularMDPConfig(num_actions=0)
