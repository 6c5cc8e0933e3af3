"""Every row of docs/coming-from.md, by an import, a command or a flag."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from adaptax.algorithms.registry import find_algorithm
from adaptax.envs.registry import find_suite
from adaptax.experiment.cli import COMMANDS
from adaptax.experiment.trainer import TrainerConfig

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from.md").read_text()
ROWS = [
    cells
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("| there", "|---"))
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
]
CHECKLIST = """
RLAlgorithm MetaRLAlgorithm get_exploration_policy adapt_policy NOP init_opt optimize_policy CEM
CMAES train_once OffPolicyRLAlgorithm process_samples log_diagnostics ActorCritic expl_strat
sampler init_modules load_snapshot save_snapshot reset step update A2C loss_fcn PPO PPO2 GAE gae
tdlamda_returns values ValueBased memory DQL SAC ent_coeff SVPG kernel iter_particles
load_particle OptimizerHook Sampler obtain_samples MetaSampler update_tasks SampleProcessor
DiceSampleProcessor MetaSampleProcessor MetaIterativeEnvExecutor num_envs set_tasks
MetaParallelEnvExecutor PEARL augment_env_spec get_env_spec networks policy to PEARLWorker rollout
start_rollout step_rollout RL2 RL2PPO RL2TRPO RL2Env RL2Worker set_seed SetTaskSampler
MetaWorldTaskSampler MetaWorldSetTaskEnv MetaEvaluator LocalSampler LinearFeatureBaseline
GaussianGRUPolicy ConjugateGradientOptimizer wrap_experiment
"""
"""Names of the toolkits that adaptax started from."""
STABLE_BASELINES3 = """
PPO A2C DQN SAC TD3 DDPG learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range
clip_range_vf normalize_advantage ent_coef vf_coef max_grad_norm target_kl policy_kwargs net_arch
buffer_size learning_starts tau train_freq gradient_steps target_update_interval learn predict save
load exploration_fraction exploration_initial_eps exploration_final_eps action_noise policy_delay
target_policy_noise target_noise_clip target_entropy BaseCallback EvalCallback CheckpointCallback
VecNormalize make_vec_env SubprocVecEnv evaluate_policy tensorboard_log
"""


def found(name: str) -> Any:
    """What a dotted name leads to; a field of a dataclass counts, with a default or without."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            fields = {f.name: f for f in dataclasses.fields(thing)} if is_config(thing) else {}
            thing = fields[part] if part in fields else getattr(thing, part)
        return thing
    raise AssertionError(f"no module in {name}")


def is_config(thing: Any) -> bool:
    return isinstance(thing, type) and dataclasses.is_dataclass(thing)


def check(token: str) -> None:
    """Resolve a name, a command or a flag; raises what does not exist."""
    if token.startswith("adaptax "):
        _, command, *names = token.split()
        assert command in COMMANDS
        if command == "train":
            find_algorithm(names[0])
            find_suite(names[1])
    elif token.startswith("--"):
        assert token[2:].replace("-", "_") in TrainerConfig.__dataclass_fields__
    else:
        assert token.startswith("adaptax.")
        # Attributes that a constructor sets are no attributes of the class.
        if token != "adaptax.experiment.trainer.Trainer.iteration":
            found(token)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_exists(row):
    tokens = re.findall(r"`([^`]+)`", row[1])
    assert tokens
    for token in tokens:
        check(token)


def test_what_does_not_exist_is_noticed():
    for token in (
        "adaptax.algorithms.search.cem.CEN",
        "adaptax.algorithms.search.cem.CEMConfig.n_sample",
        "adaptax trai nop point-goal",
        "adaptax train nap point-goal",
        "--sed",
    ):
        with pytest.raises((AssertionError, AttributeError, ValueError)):
            check(token)


@pytest.mark.parametrize("name", CHECKLIST.split())
def test_every_name_of_the_checklist_has_a_row(name):
    there = " ".join(row[0] for row in ROWS)
    assert re.search(rf"[`.]{name}\b", there)


@pytest.mark.parametrize("name", STABLE_BASELINES3.split())
def test_every_name_of_stable_baselines3_has_a_row_of_its_own(name):
    section = PAGE.partition("## Stable-Baselines3\n")[2].partition("\n## ")[0]
    there = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    assert any(re.search(rf"[`.(]{name}\b", cell) for cell in there)
