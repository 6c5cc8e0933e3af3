import functools
import itertools

import numpy as np
import pytest
from players.mdp_players import (
    Belief,
    MDPs,
    beb_player,
    epsilon_greedy_player,
    greedy_player,
    optimal_player,
    optimistic_expectation,
    optimistic_psrl_player,
    plan,
    play,
    psrl_player,
    random_player,
    ucrl2_player,
)

from adaptax.experiment.build import make_suite

S, A, H = 3, 2, 4


def drawn(num_mdps: int, states: int = S, actions: int = A, horizon: int = H, seed: int = 9):
    """MDPs from the suite's prior; players need another seed, or they would draw the truth."""
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.ones(states), (num_mdps, states, actions))
    return MDPs(transition, rng.normal(1, 1, (num_mdps, states, actions)), horizon)


def some_belief(num_mdps: int = 4, seed: int = 0) -> Belief:
    rng = np.random.default_rng(seed)
    counts = rng.integers(4, size=(num_mdps, S, A, S)).astype(float)
    return Belief(counts, rng.normal(1, 2, (num_mdps, S, A)), H)


def certain_belief(mdps: MDPs, visits: float = 1e12) -> Belief:
    """The belief of who has seen everything so often that its posterior is a point."""
    return Belief(visits * mdps.transition, visits * mdps.reward, mdps.horizon)


def value_of(policy: np.ndarray, transition: np.ndarray, reward: np.ndarray) -> float:
    """Expected return from state 0 of a policy [H, S] in one MDP, forward in time."""
    here, total = np.eye(len(reward))[0], 0.0
    for action in policy:
        states = np.arange(len(reward))
        total += here @ reward[states, action]
        here = here @ transition[states, action]
    return float(total)


def best_of_all_policies(transition: np.ndarray, reward: np.ndarray, horizon: int) -> float:
    """The optimum over every deterministic policy of step and state, one after another."""
    states, actions = reward.shape
    policies = itertools.product(range(actions), repeat=horizon * states)
    shape = (horizon, states)
    return max(value_of(np.reshape(p, shape), transition, reward) for p in policies)


def slow_plan(transition, reward, horizon):
    """Policy [H, S] and value by recursion, one number at a time."""

    @functools.cache
    def best(step: int, state: int) -> tuple[float, int]:
        if step == horizon:
            return 0.0, 0
        worth = [
            reward[state, a] + sum(p * best(step + 1, s)[0] for s, p in enumerate(after))
            for a, after in enumerate(transition[state])
        ]
        return max(worth), int(np.argmax(worth))

    policy = [[best(h, s)[1] for s in range(len(reward))] for h in range(horizon)]
    return policy, best(0, 0)[0]


def test_optimum_equals_the_best_of_all_policies_on_two_states_and_two_steps():
    mdps = drawn(20, states=2, actions=2, horizon=2)
    policy, value = plan(mdps)
    for i, (transition, reward) in enumerate(zip(mdps.transition, mdps.reward, strict=True)):
        expected = best_of_all_policies(transition, reward, 2)
        assert value[i] == pytest.approx(expected, rel=1e-12)
        assert value_of(policy[i], transition, reward) == pytest.approx(expected, rel=1e-12)


def test_plan_equals_a_slow_recursion():
    mdps = drawn(3)
    policy, value = plan(mdps)
    for i in range(3):
        expected, best = slow_plan(mdps.transition[i], mdps.reward[i], H)
        assert policy[i].tolist() == expected
        assert value[i] == pytest.approx(best, rel=1e-12)


def test_posterior_means_by_hand():
    counts = np.zeros((1, 3, 2, 3))
    counts[0, 1, 0] = [2, 0, 1]
    reward_sum = np.zeros((1, 3, 2))
    reward_sum[0, 1, 0] = 7.0
    mean = Belief(counts, reward_sum, H).mean
    assert mean.transition[0, 1, 0] == pytest.approx([3 / 6, 1 / 6, 2 / 6])
    assert mean.transition[0, 0, 0] == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert mean.reward[0, 1, 0] == pytest.approx((1 + 7) / (1 + 3))
    assert mean.reward[0, 0, 1] == 1.0


def test_posterior_samples_have_the_moments_of_their_distributions():
    counts = np.broadcast_to([[[[4.0, 1.0]]]], (40_000, 1, 1, 2))
    belief = Belief(counts, np.full((40_000, 1, 1), 3.0), H)
    mdps = belief.sample(np.random.default_rng(0))
    first = mdps.transition[:, 0, 0, 0]  # Beta(5, 2)
    assert mdps.transition.sum(-1) == pytest.approx(1.0)
    assert first.mean() == pytest.approx(5 / 7, abs=4 * 0.0008)
    assert first.var() == pytest.approx(10 / (49 * 8), rel=0.05)
    assert mdps.reward.mean() == pytest.approx(4 / 6, abs=4 * 0.002)
    assert mdps.reward.var() == pytest.approx(1 / 6, rel=0.05)


def test_posterior_of_a_reward_equals_a_sum_over_a_grid():
    seen, grid = np.array([0.3, 2.5, -0.4]), np.linspace(-8, 10, 20_001)
    log_density = -((grid - 1) ** 2) / 2 - sum((r - grid) ** 2 for r in seen) / 2
    weight = np.exp(log_density) / np.exp(log_density).sum()
    belief = Belief(np.full((1, 1, 1, 1), 3.0), np.full((1, 1, 1), seen.sum()), H)
    assert belief.mean.reward[0, 0, 0] == pytest.approx(weight @ grid, rel=1e-9)


@pytest.mark.parametrize(
    "player",
    [
        psrl_player,
        optimistic_psrl_player(3),
        greedy_player,
        beb_player(5.0),
        ucrl2_player(0.1),
        epsilon_greedy_player(0.0),
    ],
    ids=["psrl", "optimistic psrl", "greedy", "beb", "ucrl2", "epsilon 0"],
)
def test_who_is_certain_plays_the_optimum(player):
    mdps = drawn(50)
    policy = player(certain_belief(mdps), np.random.default_rng(0))
    assert (policy == plan(mdps)[0]).all()


def test_psrl_plays_the_optimum_of_its_sample():
    belief = some_belief()
    policy = psrl_player(belief, np.random.default_rng(7))
    sample = belief.sample(np.random.default_rng(7))
    for i in range(len(policy)):
        assert policy[i].tolist() == slow_plan(sample.transition[i], sample.reward[i], H)[0]


def test_optimistic_psrl_of_one_sample_is_psrl():
    belief = some_belief()
    one, same = (
        p(belief, np.random.default_rng(3)) for p in (optimistic_psrl_player(1), psrl_player)
    )
    assert (one == same).all()


def test_optimistic_psrl_plays_the_most_valuable_of_its_samples():
    belief = some_belief()
    policy = optimistic_psrl_player(4)(belief, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    samples = [belief.sample(rng) for _ in range(4)]
    for i in range(len(policy)):
        plans = [slow_plan(m.transition[i], m.reward[i], H) for m in samples]
        assert policy[i].tolist() == max(plans, key=lambda plan: plan[1])[0]


def test_beb_plays_the_optimum_with_its_bonus():
    belief = some_belief()
    policy = beb_player(6.0)(belief, np.random.default_rng(0))
    for i in range(len(policy)):
        alpha = belief.counts[i] + 1
        transition = alpha / alpha.sum(-1, keepdims=True)
        visits = belief.counts[i].sum(-1)
        reward = (1 + belief.reward_sum[i]) / (1 + visits) + 6.0 / (1 + alpha.sum(-1))
        assert policy[i].tolist() == slow_plan(transition, reward, H)[0]


def test_optimistic_expectation_is_the_best_of_a_fine_grid_of_distributions():
    side = np.arange(101) / 100
    grid = np.array([(p, q, 1 - p - q) for p in side for q in side if p + q <= 1 + 1e-9])
    rng = np.random.default_rng(0)
    for _ in range(20):
        center, value = rng.multinomial(20, np.ones(3) / 3) / 20, rng.normal(size=3)
        distance = rng.integers(1, 60) / 25
        rows = np.broadcast_to(center, (1, 3, 1, 3))
        got = optimistic_expectation(rows, np.full((1, 3, 1), distance), value[None])
        allowed = grid[np.abs(grid - center).sum(-1) <= distance + 1e-9]
        assert got.ravel() == pytest.approx([(allowed @ value).max()] * 3, abs=1e-9)


def test_ucrl2_plays_the_optimum_of_its_bounds():
    belief, scale, delta = some_belief(), 0.3, 0.1
    policy = ucrl2_player(scale, delta)(belief, np.random.default_rng(0))
    for i in range(len(policy)):
        alpha, visits = belief.counts[i] + 1, belief.counts[i].sum(-1)
        transition, time = alpha / alpha.sum(-1, keepdims=True), visits.sum()
        value = np.zeros(S)
        for step in reversed(range(H)):
            worth = np.zeros((S, A))
            for s, a in itertools.product(range(S), range(A)):
                n = max(1, visits[s, a])
                reward = (1 + belief.reward_sum[i, s, a]) / (1 + visits[s, a])
                reward += scale * np.sqrt(7 * np.log(2 * S * A * time / delta) / (2 * n))
                width = scale * np.sqrt(14 * S * np.log(2 * A * time / delta) / n)
                worth[s, a] = reward + best_expectation(transition[s, a], width, value)
            assert policy[i, step].tolist() == worth.argmax(-1).tolist()
            value = worth.max(-1)


def best_expectation(p: np.ndarray, distance: float, value: np.ndarray) -> float:
    """The inner maximum of Jaksch et al. 2010, figure 2, state by state."""
    p, order = p.copy(), np.argsort(-value)
    p[order[0]] = min(1.0, p[order[0]] + distance / 2)
    for state in order[::-1]:
        if p.sum() <= 1:
            break
        p[state] = max(0.0, 1 - p.sum() + p[state])
    return float(p @ value)


def test_epsilon_greedy_departs_so_often():
    belief = Belief(np.zeros((5_000, S, A, S)), np.zeros((5_000, S, A)), H)
    policy = epsilon_greedy_player(0.2)(belief, np.random.default_rng(0))
    assert np.mean(policy == 1) == pytest.approx(0.1, abs=4 * 0.0013)


def test_random_player_is_worth_the_prior_mean_a_step():
    # Whatever is done, a pair is new in expectation: 1 for each of 10 steps.
    worth = play(random_player, drawn(4_000, 10, 5, 10), 3, np.random.default_rng(0))
    assert worth.mean(0) == pytest.approx([10.0] * 3, abs=4 * 0.035)


def test_optimal_player_is_worth_its_value():
    mdps = drawn(200)
    worth = play(optimal_player(mdps), mdps, 100, np.random.default_rng(0)).mean(-1)
    assert (worth - plan(mdps)[1]).mean() == pytest.approx(0.0, abs=4 * 0.01)


def test_nobody_is_worth_more_than_the_optimum():
    mdps = drawn(300, 10, 5, 10)
    best = plan(mdps)[1].mean()
    for player in (psrl_player, greedy_player, beb_player(20.0)):
        worth = play(player, mdps, 10, np.random.default_rng(0))
        assert worth[:, 0].mean() < worth[:, -1].mean() < best


def test_belief_takes_in_what_was_seen():
    seen = []

    def watch(belief, rng):
        seen.append((belief.counts.copy(), belief.reward_sum.copy()))
        return np.ones((1, H, S), int)

    # Action 1 goes round the states, and pays 5, 6 and 7 plus a normal error.
    transition = np.zeros((1, S, A, S))
    transition[0, :, 0, 0] = 1
    transition[0, [0, 1, 2], 1, [1, 2, 0]] = 1
    reward = np.zeros((1, S, A))
    reward[0, :, 1] = [5, 6, 7]
    worth = play(watch, MDPs(transition, reward, H), 2, np.random.default_rng(0))
    assert worth.tolist() == [[23.0, 23.0]]
    counts, reward_sum = seen[1]
    expected = np.zeros((1, S, A, S))
    expected[0, [0, 1, 2], 1, [1, 2, 0]] = [2, 1, 1]
    assert (counts == expected).all()
    assert reward_sum[0, :, 1] == pytest.approx([10, 6, 7], abs=4)
    assert (reward_sum[0, :, 0] == 0).all()


def test_players_meet_the_suites_prior():
    """The suite draws what the players assume: flat rows, and rewards around 1."""
    suite = make_suite("tabular-mdp", num_test_tasks=200)
    transition = np.stack([task.params["transition"] for task in suite.test.tasks])
    reward = np.stack([task.params["reward_mean"] for task in suite.test.tasks])
    assert transition.shape[1:] == (10, 5, 10)
    assert transition.var() == pytest.approx(9 / (100 * 11), rel=0.05)  # Beta(1, 9)
    assert (reward.mean(), reward.std()) == pytest.approx((1.0, 1.0), abs=4 * 0.01)
