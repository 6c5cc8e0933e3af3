"""Players of random tabular MDPs that know the prior: what a learned player is compared with.

The prior is that of the suite `tabular-mdp` (Duan et al. 2016, arXiv 1611.02779, section 3.2):
transitions from a flat Dirichlet distribution, mean rewards from N(1, 1), rewards normal around
them with variance 1, and episodes of H steps that start in state 0. A player makes a policy for
every step of an episode at its start, by dynamic programming in one or several MDPs that its
belief suggests; between episodes the belief takes in what was seen.

B MDPs are played side by side. The constants of players that have one are tuned, as in the
paper: the defaults are the best for 25 episodes of a grid played on MDPs of their own, and
`benchmarks/rl2_tables.py tune` repeats it for every number of episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MDPs:
    """B tabular MDPs of S states and A actions."""

    transition: np.ndarray
    """[B, S, A, S]"""
    reward: np.ndarray
    """[B, S, A] mean rewards."""
    horizon: int
    """H, steps an episode."""


@dataclass(frozen=True)
class Belief:
    """What was seen of B MDPs, and what follows from it and the prior."""

    counts: np.ndarray
    """[B, S, A, S] transitions seen."""
    reward_sum: np.ndarray
    """[B, S, A] of the rewards seen."""
    horizon: int

    @property
    def visits(self) -> np.ndarray:
        """[B, S, A]"""
        visits: np.ndarray = self.counts.sum(axis=-1)
        return visits

    @property
    def mean(self) -> MDPs:
        """The posterior means: (1 + count) / (S + visits), and (1 + reward sum) / (1 + visits)."""
        alpha, visits = 1.0 + self.counts, self.visits
        transition = alpha / alpha.sum(axis=-1, keepdims=True)
        return MDPs(transition, (1 + self.reward_sum) / (1 + visits), self.horizon)

    def sample(self, rng: np.random.Generator) -> MDPs:
        """From Dirichlet(1 + counts) and N((1 + reward sum) / (1 + visits), 1 / (1 + visits))."""
        gamma = rng.standard_gamma(1.0 + self.counts)
        noise = rng.standard_normal(self.reward_sum.shape) / np.sqrt(1 + self.visits)
        transition = gamma / gamma.sum(axis=-1, keepdims=True)
        return MDPs(transition, self.mean.reward + noise, self.horizon)


Policy = np.ndarray
"""[B, H, S] int: the action of each step and state."""
Player = Callable[[Belief, np.random.Generator], Policy]
"""The policy of the next episode."""


def plan(mdps: MDPs) -> tuple[Policy, np.ndarray]:
    """The optimal policy, and its value [B] from state 0, by backward induction over H steps."""

    def expected(value: np.ndarray) -> np.ndarray:
        return _expected(mdps.transition, value)

    return _backward_induction(mdps.reward, mdps.horizon, expected)


def play(player: Player, mdps: MDPs, num_episodes: int, rng: np.random.Generator) -> np.ndarray:
    """What each episode was worth, [B, num_episodes], to a player new to each of the MDPs.

    That is the sum of the mean rewards of what was done, of which the expectation is that of the
    rewards paid, with less noise.
    """
    belief = Belief(np.zeros_like(mdps.transition), np.zeros_like(mdps.reward), mdps.horizon)
    cumulative = np.cumsum(mdps.transition, axis=-1)
    worth = np.zeros((len(mdps.reward), num_episodes))
    for episode in range(num_episodes):
        policy = player(belief, rng)
        worth[:, episode] = _play_episode(policy, mdps, cumulative, belief, rng)
    return worth


def _play_episode(
    policy: Policy,
    mdps: MDPs,
    cumulative: np.ndarray,
    belief: Belief,
    rng: np.random.Generator,
) -> np.ndarray:
    """What one episode was worth [B]; what is seen is added to the belief's arrays."""
    lane = np.arange(len(policy))
    state, total = np.zeros(len(policy), np.int64), np.zeros(len(policy))
    for step in range(mdps.horizon):
        action = policy[lane, step, state]
        mean = mdps.reward[lane, state, action]
        reward = mean + rng.standard_normal(len(policy))
        place = cumulative[lane, state, action] <= rng.random((len(policy), 1))
        # The sum may fall short of 1 by rounding.
        after = np.minimum(place.sum(axis=-1), mdps.reward.shape[1] - 1)
        belief.counts[lane, state, action, after] += 1
        belief.reward_sum[lane, state, action] += reward
        state, total = after, total + mean
    return total


def random_player(belief: Belief, rng: np.random.Generator) -> Policy:
    """Any action, all alike."""
    num_mdps, num_states, num_actions = belief.reward_sum.shape
    return rng.integers(num_actions, size=(num_mdps, belief.horizon, num_states))


def optimal_player(mdps: MDPs) -> Player:
    """The optimum of who is told the MDPs: a bound that no learner can reach."""
    policy, _ = plan(mdps)
    return lambda belief, rng: policy


def greedy_player(belief: Belief, rng: np.random.Generator) -> Policy:
    """The optimum of the posterior means."""
    return plan(belief.mean)[0]


def epsilon_greedy_player(epsilon: float = 0.003) -> Player:
    """At each step any action with probability `epsilon`, else the optimum of posterior means."""

    def choose(belief: Belief, rng: np.random.Generator) -> Policy:
        policy = greedy_player(belief, rng)
        # An episode meets each (step, state) at most once: lots can be drawn beforehand.
        explores = rng.random(policy.shape) < epsilon
        return np.where(explores, random_player(belief, rng), policy)

    return choose


def psrl_player(belief: Belief, rng: np.random.Generator) -> Policy:
    """The optimum of one MDP drawn from the posterior (Strens 2000; Osband et al. 2013, alg. 1)."""
    return plan(belief.sample(rng))[0]


def optimistic_psrl_player(num_samples: int = 10) -> Player:
    """PSRL with the most valuable, from state 0, of several MDPs drawn from the posterior.

    The optimistic variant that Duan et al. 2016 compare with; one sample is PSRL itself.
    """

    def choose(belief: Belief, rng: np.random.Generator) -> Policy:
        policy, best = plan(belief.sample(rng))
        for _ in range(num_samples - 1):
            other, value = plan(belief.sample(rng))
            policy = np.where((value > best)[:, None, None], other, policy)
            best = np.maximum(value, best)
        return policy

    return choose


def beb_player(beta: float = 10.0) -> Player:
    """The optimum of posterior means with a bonus of beta / (1 + S + visits) on rewards.

    The exploration bonus of Kolter & Ng 2009, "Near-Bayesian exploration in polynomial time":
    the denominator is 1 plus the sum of the Dirichlet's parameters. There rewards are known; here
    their posterior mean stands for them.
    """

    def choose(belief: Belief, rng: np.random.Generator) -> Policy:
        mean = belief.mean
        bonus = beta / (1 + mean.reward.shape[1] + belief.visits)
        return plan(MDPs(mean.transition, mean.reward + bonus, mean.horizon))[0]

    return choose


def ucrl2_player(scale: float = 0.03, delta: float = 0.05) -> Player:
    """The optimum of the best MDP within confidence bounds (Jaksch et al. 2010, section 3).

    Bounds at time t, times `scale`: sqrt(7 ln(2 S A t / delta) / (2 n)) on mean rewards (eq. 3),
    sqrt(14 S ln(2 A t / delta) / n) on the L1 norm of transitions (eq. 4), n = max(1, visits).
    Departures: the centres are posterior means; rewards are not bounded, so neither are the
    optimistic ones; a new policy is made every episode, by H steps of extended value iteration.
    """

    def choose(belief: Belief, rng: np.random.Generator) -> Policy:
        mean, visits = belief.mean, belief.visits
        _, num_states, num_actions = visits.shape
        time = np.maximum(visits.sum(axis=(1, 2), keepdims=True), 1)
        tries = np.maximum(visits, 1)
        by_reward = 7 * np.log(2 * num_states * num_actions * time / delta) / (2 * tries)
        by_transition = 14 * num_states * np.log(2 * num_actions * time / delta) / tries
        distance = scale * np.sqrt(by_transition)

        def expected(value: np.ndarray) -> np.ndarray:
            return optimistic_expectation(mean.transition, distance, value)

        optimistic = mean.reward + scale * np.sqrt(by_reward)
        return _backward_induction(optimistic, belief.horizon, expected)[0]

    return choose


def optimistic_expectation(
    transition: np.ndarray, distance: np.ndarray, value: np.ndarray
) -> np.ndarray:
    """The most [B, S, A] that `value` [B, S] of the next state can be expected to be.

    Over distributions within an L1 `distance` [B, S, A] of `transition` [B, S, A, S]: the best
    state gets half the distance, as far as it goes, and the worst states give it (Jaksch et al.
    2010, figure 2). What the states up to the i-th worst give together is min(their mass, all
    that is moved), and it gains the step from the i-th value to the next.
    """
    order = np.argsort(value, axis=-1)
    lane = np.arange(len(value))[:, None]
    ranked = np.moveaxis(transition, -1, 1)[lane, order]
    moved = np.minimum(distance / 2, 1 - ranked[:, -1])
    given = np.minimum(np.cumsum(ranked[:, :-1], axis=1), moved[:, None])
    steps = np.diff(value[lane, order], axis=-1)
    gain: np.ndarray = (given * steps[:, :, None, None]).sum(axis=1)
    return _expected(transition, value) + gain


def _backward_induction(
    reward: np.ndarray, horizon: int, expected: Callable[[np.ndarray], np.ndarray]
) -> tuple[Policy, np.ndarray]:
    """Policy and value [B] from state 0; `expected` makes values [B, S] after a step [B, S, A]."""
    num_mdps, num_states, _ = reward.shape
    policy = np.zeros((num_mdps, horizon, num_states), np.int64)
    value = np.zeros((num_mdps, num_states))
    for step in reversed(range(horizon)):
        action_value = reward + expected(value)
        policy[:, step] = action_value.argmax(axis=-1)
        value = action_value.max(axis=-1)
    return policy, value[:, 0]


def _expected(transition: np.ndarray, value: np.ndarray) -> np.ndarray:
    """E [B, S, A] of the next state's value [B, S]."""
    num_mdps, num_states, num_actions, _ = transition.shape
    rows = transition.reshape(num_mdps, -1, num_states)
    expected: np.ndarray = (rows @ value[..., None]).reshape(num_mdps, num_states, num_actions)
    return expected
