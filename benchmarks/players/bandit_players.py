"""Players of Bernoulli bandits that know the prior: what a learned bandit player is compared with.

The arms' means are independent and uniform on [0, 1], so that after s successes and f failures
an arm's mean has the posterior Beta(1 + s, 1 + f) with expectation (1 + s) / (2 + s + f). Every
player but the random one starts from that prior, which is to have seen one success and one
failure of each arm (Duan et al. 2016, arXiv 1611.02779, section 3.1). Of equal arms, players that
draw no lots take the first: arms are independent, so that their order means nothing.

The constants of `ucb1_player` and `epsilon_greedy_player` are tuned, as in the paper: the defaults
are the best on 10 arms and 100 pulls of a grid played on machines of their own, and
`benchmarks/rl2_tables.py tune` repeats it for every size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Player = Callable[[np.ndarray, np.ndarray, int, np.random.Generator], np.ndarray]
"""(successes [B, k], failures [B, k], pulls that remain, rng) -> arms [B] int."""


def play(player: Player, means: np.ndarray, num_pulls: int, rng: np.random.Generator) -> np.ndarray:
    """What `num_pulls` pulls on each of B machines with arms' means [B, k] were worth, [B].

    That is the sum of the means of the arms pulled, of which the expectation is that of the
    rewards paid, with less noise.
    """
    wins, losses = np.zeros(means.shape, np.int64), np.zeros(means.shape, np.int64)
    machine = np.arange(len(means))
    for remaining in range(num_pulls, 0, -1):
        arm = player(wins, losses, remaining, rng)
        won = rng.random(len(means)) < means[machine, arm]
        wins[machine, arm] += won
        losses[machine, arm] += ~won
    worth: np.ndarray = ((wins + losses) * means).sum(axis=1)
    return worth


def random_player(
    wins: np.ndarray, losses: np.ndarray, remaining: int, rng: np.random.Generator
) -> np.ndarray:
    """Any arm, all alike."""
    return rng.integers(wins.shape[1], size=len(wins))


def thompson_player(
    wins: np.ndarray, losses: np.ndarray, remaining: int, rng: np.random.Generator
) -> np.ndarray:
    """The best arm of a draw from the posterior (Thompson 1933)."""
    return _best(rng.beta(1 + wins, 1 + losses))


def optimistic_thompson_player(
    wins: np.ndarray, losses: np.ndarray, remaining: int, rng: np.random.Generator
) -> np.ndarray:
    """Thompson's, but no draw counts less than its expectation (May et al. 2012, algorithm OBS).

    "Optimistic Bayesian sampling in contextual-bandit problems", JMLR 13.
    """
    return _best(np.maximum(rng.beta(1 + wins, 1 + losses), _mean(wins, losses)))


def greedy_player(
    wins: np.ndarray, losses: np.ndarray, remaining: int, rng: np.random.Generator
) -> np.ndarray:
    """The arm of the highest posterior mean."""
    return _best(_mean(wins, losses))


def epsilon_greedy_player(epsilon: float = 0.003) -> Player:
    """Any arm with probability `epsilon`, else the arm of the highest posterior mean."""

    def choose(
        wins: np.ndarray, losses: np.ndarray, remaining: int, rng: np.random.Generator
    ) -> np.ndarray:
        explores = rng.random(len(wins)) < epsilon
        anything = random_player(wins, losses, remaining, rng)
        return np.where(explores, anything, _best(_mean(wins, losses)))

    return choose


def ucb1_player(constant: float = 0.2) -> Player:
    """The arm of the highest mean + c sqrt(2 ln t / T) at pull t = 1, 2, ... (Auer et al. 2002).

    "Finite-time analysis of the multiarmed bandit problem", Machine Learning 47, figure 1, where
    c is 1, with the mean and the number of pulls T counted from one success and one failure.
    """

    def choose(
        wins: np.ndarray, losses: np.ndarray, remaining: int, rng: np.random.Generator
    ) -> np.ndarray:
        pulls = wins + losses
        time = 1 + pulls.sum(axis=1, keepdims=True)
        bonus = constant * np.sqrt(2 * np.log(time) / (2 + pulls))
        return _best(_mean(wins, losses) + bonus)

    return choose


def gittins_player(table: list[np.ndarray]) -> Player:
    """The arm of the highest index in a `gittins_table`; among equals the one listed first."""

    def choose(
        wins: np.ndarray, losses: np.ndarray, remaining: int, rng: np.random.Generator
    ) -> np.ndarray:
        return _best(table[remaining - 1][wins, losses])

    return choose


def gittins_table(num_pulls: int, grid_size: int = 1024) -> list[np.ndarray]:
    """Finite-horizon Gittins indices: entry r - 1 is [s, f] for r pulls to go; s, f <= n - r.

    The index of an arm is the reward per pull at which retiring is as good as pulling the arm at
    least once more and stopping at the best time among the r pulls (Gittins 1979; with a finite
    horizon and no discounting Kaufmann 2018, "On Bayesian index policies for sequential resource
    allocation"). It is found by calibration: dynamic programming for every reward on a grid, and
    where the gain from pulling, convex and piecewise linear in the reward, crosses 0, its chord.
    Costs O(n^3 grid_size): 2 s for n = 100, 40 s for n = 500 with a grid of 256.
    """
    index = [np.zeros((n, n)) for n in range(num_pulls, 0, -1)]
    last_gain = [np.ones_like(x) for x in index]
    wins, losses = np.ogrid[: num_pulls + 1, : num_pulls + 1]
    mean = _mean(wins, losses)
    step = 1.0 / grid_size
    for reward in np.arange(grid_size + 1) * step:
        value = np.zeros_like(mean)
        for own, last in zip(index, last_gain, strict=True):
            gain = _gain(mean[: len(own), : len(own)], value, reward)
            crossed = (gain <= 0) & (last > 0)
            before, after = last[crossed], gain[crossed]
            own[crossed] = reward - step * after / (after - before)
            last[:] = gain
            value = np.maximum(gain, 0)
    return index


def _gain(mean: np.ndarray, value: np.ndarray, reward: float) -> np.ndarray:
    """Gain [n, n] from pulling once at a cost of `reward` and going on with `value` [n+1, n+1]."""
    expected: np.ndarray = mean * (1 + value[1:, :-1]) + (1 - mean) * value[:-1, 1:]
    return expected - reward


def _mean(wins: np.ndarray, losses: np.ndarray) -> np.ndarray:
    mean: np.ndarray = (1 + wins) / (2 + wins + losses)
    return mean


def _best(score: np.ndarray) -> np.ndarray:
    arm: np.ndarray = np.argmax(score, axis=1)
    return arm
