import functools
from collections.abc import Callable

import numpy as np
import pytest
from players.bandit_players import (
    epsilon_greedy_player,
    gittins_player,
    gittins_table,
    greedy_player,
    optimistic_thompson_player,
    play,
    random_player,
    thompson_player,
    ucb1_player,
)

Counts = tuple[int, ...]
Value = Callable[[Counts, Counts], float]
TABLE = gittins_table(10)


def plus(counts: Counts, arm: int) -> Counts:
    return (*counts[:arm], counts[arm] + 1, *counts[arm + 1 :])


def after_pull(value: Value, wins: Counts, losses: Counts, arm: int) -> float:
    """Expected reward of pulling `arm`, and `value` from then on."""
    p = (1 + wins[arm]) / (2 + wins[arm] + losses[arm])
    return p * (1 + value(plus(wins, arm), losses)) + (1 - p) * value(wins, plus(losses, arm))


def bayes_optimum(num_arms: int, num_pulls: int) -> float:
    """The best expected total reward, by recursion over the posteriors of all arms."""

    @functools.cache
    def value(wins: Counts, losses: Counts) -> float:
        if sum(wins) + sum(losses) == num_pulls:
            return 0.0
        return max(after_pull(value, wins, losses, arm) for arm in range(num_arms))

    return value((0,) * num_arms, (0,) * num_arms)


def gittins_value(num_arms: int, num_pulls: int) -> float:
    """The exact expected total reward of the index player, by the same recursion."""
    player, rng = gittins_player(gittins_table(num_pulls)), np.random.default_rng(0)

    @functools.cache
    def value(wins: Counts, losses: Counts) -> float:
        remaining = num_pulls - sum(wins) - sum(losses)
        if remaining == 0:
            return 0.0
        arm = player(np.array([wins]), np.array([losses]), remaining, rng)[0]
        return after_pull(value, wins, losses, int(arm))

    return value((0,) * num_arms, (0,) * num_arms)


def best_reward_per_pull(wins: int, losses: int, pulls: int) -> float:
    """The index as a ratio: the most expected reward per expected pull of any stopping rule.

    Goes through every rule: each is what to do after a success and after a failure.
    """

    def rules(s: int, f: int, left: int) -> np.ndarray:
        """Expected (reward, pulls) [K, 2] of all rules that pull at least once."""
        p = (1 + s) / (2 + s + f)
        if left == 1:
            return np.array([[p, 1.0]])
        stop = np.zeros((1, 2))
        won = np.concatenate([stop, rules(s + 1, f, left - 1)])
        lost = np.concatenate([stop, rules(s, f + 1, left - 1)])
        both = p * won[:, None] + (1 - p) * lost[None, :]
        return both.reshape(-1, 2) + np.array([p, 1.0])

    reward, length = rules(wins, losses, pulls).T
    return float((reward / length).max())


def retirement_reward(wins: int, losses: int, pulls: int) -> float:
    """The index by bisection on the reward, for one state."""

    def gain(reward: float) -> float:
        @functools.cache
        def value(s: int, f: int, left: int) -> float:
            p = (1 + s) / (2 + s + f)
            later = (value(s + 1, f, left - 1), value(s, f + 1, left - 1)) if left > 1 else (0, 0)
            return p * (1 + max(later[0], 0)) + (1 - p) * max(later[1], 0) - reward

        return value(wins, losses, pulls)

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) > 0 else (low, middle)
    return low


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (0, 3), (4, 5), (9, 0)])
def test_index_with_one_pull_left_is_the_posterior_mean(wins, losses):
    expected = (1 + wins) / (2 + wins + losses)
    assert TABLE[0][wins, losses] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("state", [(0, 0, 2), (0, 0, 3), (0, 0, 4), (1, 2, 4), (3, 0, 4)])
def test_index_is_the_best_ratio_over_all_stopping_rules(state):
    wins, losses, pulls = state
    assert TABLE[pulls - 1][wins, losses] == pytest.approx(best_reward_per_pull(*state), abs=1e-5)


@pytest.mark.parametrize("state", [(0, 0, 10), (2, 1, 7), (0, 4, 6), (1, 0, 9)])
def test_index_is_the_reward_at_which_retiring_is_as_good(state):
    wins, losses, pulls = state
    assert TABLE[pulls - 1][wins, losses] == pytest.approx(retirement_reward(*state), abs=1e-5)


def test_index_does_not_fall_with_more_pulls_to_go():
    later = [TABLE[r][: 9 - r, : 9 - r] - TABLE[r - 1][: 9 - r, : 9 - r] for r in range(1, 9)]
    assert min(x.min() for x in later) > -1e-9


@pytest.mark.parametrize("num_pulls", [3, 4, 5, 6])
def test_index_player_is_bayes_optimal_on_two_arms_and_few_pulls(num_pulls):
    expected = bayes_optimum(2, num_pulls)  # 1.6667, 2.2778, 2.8889, 3.5083
    assert gittins_value(2, num_pulls) == pytest.approx(expected, rel=1e-12)


def test_index_player_is_within_a_ten_thousandth_of_the_optimum_on_ten_pulls():
    loss = 1 - gittins_value(2, 10) / bayes_optimum(2, 10)
    assert 0.0 < loss < 1e-4  # 6.021521 of 6.021786: 4.4e-5


def test_bayes_optimum_of_two_pulls_is_known():
    assert bayes_optimum(2, 2) == pytest.approx(1 / 2 + 1 / 2 * 2 / 3 + 1 / 2 * 1 / 2, rel=1e-12)


def mean_reward(player, num_arms: int, num_pulls: int) -> float:
    rng = np.random.default_rng(0)
    return float(play(player, rng.random((10_000, num_arms)), num_pulls, rng).mean())


def test_played_mean_equals_the_exact_value():
    got = mean_reward(gittins_player(TABLE), 2, 10)
    assert got == pytest.approx(gittins_value(2, 10), abs=4 * 0.025)


def test_index_player_on_five_arms_and_ten_pulls():
    assert mean_reward(gittins_player(TABLE), 5, 10) == pytest.approx(6.67, abs=4 * 0.022)


def test_random_player_gets_half():
    assert mean_reward(random_player, 5, 10) == pytest.approx(5.0, abs=4 * 0.02)


def test_thompson_player_lies_between_random_and_index():
    assert mean_reward(thompson_player, 5, 10) == pytest.approx(5.81, abs=4 * 0.021)


def test_equal_indices_go_to_the_first_arm():
    fresh = np.zeros((3, 4), np.int64)
    arms = gittins_player(TABLE)(fresh, fresh, 10, np.random.default_rng(0))
    assert arms.tolist() == [0, 0, 0]


def test_a_certain_machine_pays_every_pull():
    means = np.ones((2, 3))
    total = play(random_player, means, 10, np.random.default_rng(0))
    assert total.tolist() == [10, 10]


def choices(player, wins: list[list[int]], losses: list[list[int]]) -> list[int]:
    rng = np.random.default_rng(0)
    return player(np.array(wins), np.array(losses), 1, rng).tolist()


def test_greedy_player_takes_the_highest_posterior_mean():
    # Means 3/5 and 2/3, then 1/3 and 1/2: the share of wins alone would be 2/3, 1 and 0, 0/0.
    assert choices(greedy_player, [[2, 1], [0, 0]], [[1, 0], [1, 0]]) == [1, 1]


def test_greedy_player_leaves_an_arm_only_below_a_half():
    assert choices(greedy_player, [[3, 0], [3, 0]], [[3, 0], [4, 0]]) == [0, 1]


def test_ucb1_indices_by_hand():
    # After 3 + 1 pulls t is 5; bonus c sqrt(2 ln 5 / T) with T = 5 and 3: 0.8023 c and 1.0358 c.
    # Means 3/5 and 1/3, so that the second arm leads from c = 0.26667 / 0.23350 = 1.1421 on.
    state = [[2, 0]], [[1, 1]]
    assert choices(ucb1_player(1.13), *state) == [0]
    assert choices(ucb1_player(1.15), *state) == [1]


def test_ucb1_has_no_bonus_at_the_first_pull():
    assert choices(ucb1_player(1e6), [[0, 0]], [[0, 0]]) == [0]


def test_ucb1_without_its_bonus_is_greedy():
    rng = np.random.default_rng(0)
    wins, losses = rng.integers(5, size=(2, 200, 4)).tolist()
    assert choices(ucb1_player(0.0), wins, losses) == choices(greedy_player, wins, losses)


def test_epsilon_greedy_takes_any_arm_so_often():
    fresh = np.zeros((40_000, 4), np.int64)
    arms = epsilon_greedy_player(0.2)(fresh, fresh, 1, np.random.default_rng(0))
    share = np.bincount(arms, minlength=4) / len(arms)
    assert share == pytest.approx([0.85, 0.05, 0.05, 0.05], abs=4 * 0.0018)


def test_epsilon_greedy_without_epsilon_is_greedy():
    rng = np.random.default_rng(0)
    wins, losses = rng.integers(5, size=(2, 200, 4)).tolist()
    assert choices(epsilon_greedy_player(0.0), wins, losses) == choices(greedy_player, wins, losses)


def test_thompson_player_takes_an_arm_as_often_as_it_is_the_best():
    # Beta(2, 1) against Beta(1, 1): P(x > y) = E[x] = 2/3.
    wins = np.tile([1, 0], (40_000, 1))
    arms = thompson_player(wins, 0 * wins, 1, np.random.default_rng(0))
    assert np.mean(arms == 0) == pytest.approx(2 / 3, abs=4 * 0.0024)


def test_optimistic_thompson_player_never_draws_below_the_mean():
    # x ~ Beta(2, 1) with mean 2/3, y uniform with mean 1/2. The second arm wins where
    # y > max(x, 2/3): with F(x) = x^2 that is (2/3)^2 / 3 + integral of (1 - x) 2 x over
    # [2/3, 1] = 4/27 + 7/81 = 19/81.
    wins = np.tile([1, 0], (40_000, 1))
    arms = optimistic_thompson_player(wins, 0 * wins, 1, np.random.default_rng(0))
    assert np.mean(arms == 1) == pytest.approx(19 / 81, abs=4 * 0.0021)


def exact_value(player, num_arms: int, num_pulls: int) -> float:
    """The expected total reward of a player that draws no lots, by recursion."""

    @functools.cache
    def value(wins: Counts, losses: Counts) -> float:
        if sum(wins) + sum(losses) == num_pulls:
            return 0.0
        (arm,) = choices(player, [list(wins)], [list(losses)])
        return after_pull(value, wins, losses, arm)

    return value((0,) * num_arms, (0,) * num_arms)


@pytest.mark.parametrize("player", [greedy_player, ucb1_player(0.2)], ids=["greedy", "ucb1"])
def test_played_worth_equals_the_exact_value_of_each_player(player):
    expected = exact_value(player, 2, 6)
    assert mean_reward(player, 2, 6) == pytest.approx(expected, abs=4 * 0.016)
    assert expected <= bayes_optimum(2, 6)


def test_worth_is_the_sum_of_the_pulled_arms_means():
    means = np.array([[0.25, 0.75]])
    second = lambda wins, losses, remaining, rng: np.ones(len(wins), int)  # noqa: E731
    assert play(second, means, 4, np.random.default_rng(0)).tolist() == [3.0]
