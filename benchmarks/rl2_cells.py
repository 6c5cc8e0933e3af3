"""The cells of the RL2 paper's tables: their suites, how RL2 is trained, constants to be tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from players import bandit_players as bandits
from players import mdp_players as mdps

from adaptax.envs.suite import Suite
from adaptax.experiment.build import make_suite


@dataclass(frozen=True)
class Cell:
    """One column of a table, and how RL2 is trained for it."""

    suite: str
    settings: dict[str, int]
    """Of the suite."""
    algorithm: dict[str, Any] = field(default_factory=dict)
    """Settings of rl2-ppo beside those of `RL2`."""
    num_iterations: int = 1500
    """Of training."""
    first: dict[str, Any] = field(default_factory=dict)
    """Settings other than those above of a run before, whose network training begins with."""
    num_first_iterations: int = 0
    required: bool = True
    """Whether commands without a cell mean this one too."""

    def rl2(self, *, first: bool = False) -> dict[str, Any]:
        """All settings of rl2-ppo: the step size falls to 0 at the end of training."""
        settings = {**RL2, **self.algorithm}
        settings["lr_schedule_steps"] = self.num_iterations * settings["num_epochs"]
        return {**settings, **(self.first if first else {})}

    def make_suite(self) -> Suite:
        """The suite with all its held-out tasks."""
        return make_suite(self.suite, **self.settings)


def bandit_cell(num_arms: int, num_pulls: int, algorithm: dict[str, Any], **others: Any) -> Cell:
    settings = {"num_arms": num_arms, "num_pulls": num_pulls, "num_test_tasks": 10_000}
    return Cell("bandit", settings, {"reward_scale": 2 / num_pulls, **algorithm}, **others)


def mdp_cell(
    num_episodes: int, algorithm: dict[str, Any], num_test_tasks: int = 1_000, **others: Any
) -> Cell:
    settings = {"num_episodes": num_episodes, "num_test_tasks": num_test_tasks}
    algorithm = {"reward_scale": 0.1 / num_episodes, **ASSOCIATING, **algorithm}
    parts = {"num_iterations": 240, "first": MYOPIC, "num_first_iterations": 40, **others}
    return Cell("tabular-mdp", settings, algorithm, **parts)


RL2: dict[str, Any] = {
    "meta_batch_size": 512,
    "hidden_sizes": (32,),
    "memory": {"kind": "gru", "size": 64},
    "num_epochs": 4,
    "num_minibatches": 8,
    "lr": 2e-3,
    "lr_schedule": "linear",
    # Errors of the value are around a twentieth, advantages around 1.
    "value_coeff": 10.0,
    # With 0.02, 5 arms and 10 pulls ended 0.3 % higher by the mode than with none.
    "entropy_method": "regularized",
    "entropy_coeff": 0.005,
    # A trial ends by itself, and all of its rewards count alike.
    "discount": 1.0,
    "gae_lambda": 0.95,
}
"""Settings of rl2-ppo in every cell; the cell's own keep value targets between 1 and 2."""
MANY_TRIALS: dict[str, Any] = {"meta_batch_size": 1024}
"""Where a trial is short."""
EXPLORING: dict[str, Any] = {
    **MANY_TRIALS,
    # With 0.005 from first to last, 10 arms and 100 pulls stay 3.5 % below Gittins from 20 million
    # steps on: the policy settles on the first good arm before it has learned to look further.
    "entropy_coeff": 0.05,
    "entropy_schedule": "linear",
}
"""Where there is much to explore, and pulls enough for it to pay."""
ASSOCIATING: dict[str, Any] = {
    "memory": {"kind": "fast-weights", "size": 64},
    "gae_lambda": 0.97,
    # With 0.01, 25 episodes ended at 435: it is chance that finds out what exploring is worth.
    "entropy_coeff": 0.05,
    "entropy_schedule": "linear",
    "lr": 1.5e-3,
}
"""Where something is to be remembered of each of many states."""
MYOPIC: dict[str, Any] = {
    # What an action pays itself is the least noisy of all that tells states apart; with all of
    # the trial's rewards, the best action whatever the state comes first, and stays.
    "discount": 0.9,
    "gae_lambda": 0.5,
    "reward_scale": 0.05,
    "value_coeff": 2.0,
}
"""How to begin there; to explore for the sake of later episodes is learned afterwards."""
CELLS = {
    "bandit-5x10": bandit_cell(5, 10, MANY_TRIALS),
    "bandit-10x10": bandit_cell(10, 10, MANY_TRIALS),
    "bandit-5x100": bandit_cell(5, 100, {}),
    "bandit-10x100": bandit_cell(10, 100, EXPLORING, num_iterations=1600),
    # The first part alone ends 3.2 % below Gittins by its mode, 4.3 % as drawn.
    "bandit-50x100": bandit_cell(
        50,
        100,
        {**EXPLORING, "lr": 1e-3, "entropy_coeff": 0.01},
        num_iterations=300,
        first={"lr": 2e-3, "entropy_coeff": 0.05, "lr_schedule_steps": 2800},
        num_first_iterations=700,
    ),
    "bandit-5x500": bandit_cell(5, 500, EXPLORING, required=False),
    "bandit-10x500": bandit_cell(10, 500, EXPLORING, required=False),
    "bandit-50x500": bandit_cell(50, 500, EXPLORING, required=False),
    "mdp-10": mdp_cell(10, {}),
    "mdp-25": mdp_cell(
        25,
        {"entropy_coeff": 0.03},
        # With 1,000 the interval of the lead on the best player is as wide as the lead itself.
        num_test_tasks=4_000,
        num_iterations=600,
        first={**MYOPIC, "lr_schedule_steps": 800},
    ),
    "mdp-50": mdp_cell(50, {}, required=False),
    "mdp-75": mdp_cell(75, {}, required=False),
}
REQUIRED = [name for name, cell in CELLS.items() if cell.required]

GRIDS: dict[str, dict[str, tuple[Any, tuple[float, ...]]]] = {
    "bandit": {
        "UCB1": (bandits.ucb1_player, (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)),
        "epsilon-greedy": (bandits.epsilon_greedy_player, (0.003, 0.01, 0.03, 0.1, 0.2)),
    },
    "tabular-mdp": {
        "optimistic PSRL": (mdps.optimistic_psrl_player, (2, 3, 5, 10)),
        "UCRL2": (mdps.ucrl2_player, (0.01, 0.03, 0.1, 0.3)),
        "BEB": (mdps.beb_player, (1, 3, 10, 20, 30, 50)),
        "epsilon-greedy": (mdps.epsilon_greedy_player, (0.003, 0.01, 0.03, 0.1, 0.2)),
    },
}
"""Players that have a constant: how they are made, and the values tried."""
