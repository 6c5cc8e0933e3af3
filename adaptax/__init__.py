"""adaptax: agents that learn to adapt to a new task within a few episodes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # for editors and type checkers; at run time a name is imported when it is used
    from adaptax.algorithms.base import Algorithm as Algorithm
    from adaptax.algorithms.meta.dice_maml import DICEMAML as DICEMAML
    from adaptax.algorithms.meta.dice_maml import DICEMAMLConfig as DICEMAMLConfig
    from adaptax.algorithms.meta.pearl import PEARL as PEARL
    from adaptax.algorithms.meta.pearl import PEARLConfig as PEARLConfig
    from adaptax.algorithms.meta.promp import ProMP as ProMP
    from adaptax.algorithms.meta.promp import ProMPConfig as ProMPConfig
    from adaptax.algorithms.meta.rl2_ppo import RL2PPO as RL2PPO
    from adaptax.algorithms.meta.rl2_ppo import RL2PPOConfig as RL2PPOConfig
    from adaptax.algorithms.meta.rl2_sac import RL2SAC as RL2SAC
    from adaptax.algorithms.meta.rl2_sac import RL2SACConfig as RL2SACConfig
    from adaptax.algorithms.meta.rl2_trpo import RL2TRPO as RL2TRPO
    from adaptax.algorithms.meta.rl2_trpo import RL2TRPOConfig as RL2TRPOConfig
    from adaptax.algorithms.meta.trpo_maml import TRPOMAML as TRPOMAML
    from adaptax.algorithms.meta.trpo_maml import TRPOMAMLConfig as TRPOMAMLConfig
    from adaptax.algorithms.meta.varibad import VariBAD as VariBAD
    from adaptax.algorithms.meta.varibad import VariBADConfig as VariBADConfig
    from adaptax.algorithms.meta.vpg_maml import VPGMAML as VPGMAML
    from adaptax.algorithms.meta.vpg_maml import VPGMAMLConfig as VPGMAMLConfig
    from adaptax.algorithms.off_policy.ddpg import DDPG as DDPG
    from adaptax.algorithms.off_policy.ddpg import DDPGConfig as DDPGConfig
    from adaptax.algorithms.off_policy.dqn import DQN as DQN
    from adaptax.algorithms.off_policy.dqn import DQNConfig as DQNConfig
    from adaptax.algorithms.off_policy.sac import SAC as SAC
    from adaptax.algorithms.off_policy.sac import SACConfig as SACConfig
    from adaptax.algorithms.off_policy.td3 import TD3 as TD3
    from adaptax.algorithms.off_policy.td3 import TD3Config as TD3Config
    from adaptax.algorithms.on_policy.a2c import A2C as A2C
    from adaptax.algorithms.on_policy.a2c import A2CConfig as A2CConfig
    from adaptax.algorithms.on_policy.ppo import PPO as PPO
    from adaptax.algorithms.on_policy.ppo import PPOConfig as PPOConfig
    from adaptax.algorithms.on_policy.ppo2 import PPO2 as PPO2
    from adaptax.algorithms.on_policy.ppo2 import PPO2Config as PPO2Config
    from adaptax.algorithms.on_policy.reinforce import Reinforce as Reinforce
    from adaptax.algorithms.on_policy.reinforce import ReinforceConfig as ReinforceConfig
    from adaptax.algorithms.on_policy.svpg import SVPG as SVPG
    from adaptax.algorithms.on_policy.svpg import SVPGConfig as SVPGConfig
    from adaptax.algorithms.on_policy.trpo import TRPO as TRPO
    from adaptax.algorithms.on_policy.trpo import TRPOConfig as TRPOConfig
    from adaptax.algorithms.search.cem import CEM as CEM
    from adaptax.algorithms.search.cem import CEMConfig as CEMConfig
    from adaptax.algorithms.search.cma_es import CMAES as CMAES
    from adaptax.algorithms.search.cma_es import CMAESConfig as CMAESConfig
    from adaptax.algorithms.search.nop import NOP as NOP
    from adaptax.algorithms.search.nop import NOPConfig as NOPConfig
    from adaptax.core.errors import AdaptaxError as AdaptaxError
    from adaptax.core.experience import Rollout as Rollout
    from adaptax.core.experience import Step as Step
    from adaptax.core.hyperparameters import Hyperparameters as Hyperparameters
    from adaptax.core.spec import Continuous as Continuous
    from adaptax.core.spec import Discrete as Discrete
    from adaptax.core.spec import EnvSpec as EnvSpec
    from adaptax.core.spec import MultiDiscrete as MultiDiscrete
    from adaptax.envs.env import Env as Env
    from adaptax.envs.suite import Suite as Suite
    from adaptax.envs.suites.compiled import compiled_suite as compiled_suite
    from adaptax.envs.suites.gym import gym_suite as gym_suite
    from adaptax.envs.suites.gym import vector_suite as vector_suite
    from adaptax.envs.task import Task as Task
    from adaptax.envs.task import TaskList as TaskList
    from adaptax.envs.task import TaskRange as TaskRange
    from adaptax.experiment.agent import Agent as Agent
    from adaptax.experiment.agent import load as load
    from adaptax.experiment.build import load_group as load_group
    from adaptax.experiment.build import load_run as load_run
    from adaptax.experiment.build import make_algorithm as make_algorithm
    from adaptax.experiment.build import make_suite as make_suite
    from adaptax.experiment.build import train as train
    from adaptax.experiment.callbacks import Callback as Callback
    from adaptax.experiment.callbacks import EarlyStopping as EarlyStopping
    from adaptax.experiment.comparison import compare as compare
    from adaptax.experiment.evaluation import Evaluation as Evaluation
    from adaptax.experiment.evaluator import Evaluator as Evaluator
    from adaptax.experiment.evaluator import EvaluatorConfig as EvaluatorConfig
    from adaptax.experiment.group import Group as Group
    from adaptax.experiment.share import export_run as export_run
    from adaptax.experiment.share import import_run as import_run
    from adaptax.experiment.sweep import sweep as sweep
    from adaptax.experiment.trackers import MLflow as MLflow
    from adaptax.experiment.trackers import TensorBoard as TensorBoard
    from adaptax.experiment.trackers import Trackio as Trackio
    from adaptax.experiment.trackers import WandB as WandB
    from adaptax.experiment.trainer import Trainer as Trainer
    from adaptax.experiment.trainer_config import TrainerConfig as TrainerConfig
    from adaptax.experiment.video import VideoConfig as VideoConfig
    from adaptax.experiment.video import write_videos as write_videos
    from adaptax.networks.memory import Memory as Memory
    from adaptax.sampling.actors import PolicyActor as PolicyActor
    from adaptax.sampling.sampler import Sampler as Sampler

_MODULES = {
    "Algorithm": "adaptax.algorithms.base",
    "AdaptaxError": "adaptax.core.errors",
    "Rollout": "adaptax.core.experience",
    "Step": "adaptax.core.experience",
    "Hyperparameters": "adaptax.core.hyperparameters",
    "Continuous": "adaptax.core.spec",
    "Discrete": "adaptax.core.spec",
    "EnvSpec": "adaptax.core.spec",
    "MultiDiscrete": "adaptax.core.spec",
    "Env": "adaptax.envs.env",
    "Suite": "adaptax.envs.suite",
    "compiled_suite": "adaptax.envs.suites.compiled",
    "gym_suite": "adaptax.envs.suites.gym",
    "vector_suite": "adaptax.envs.suites.gym",
    "Task": "adaptax.envs.task",
    "TaskList": "adaptax.envs.task",
    "TaskRange": "adaptax.envs.task",
    "Agent": "adaptax.experiment.agent",
    "compare": "adaptax.experiment.comparison",
    "load": "adaptax.experiment.agent",
    "load_group": "adaptax.experiment.build",
    "load_run": "adaptax.experiment.build",
    "make_algorithm": "adaptax.experiment.build",
    "make_suite": "adaptax.experiment.build",
    "train": "adaptax.experiment.build",
    "Callback": "adaptax.experiment.callbacks",
    "EarlyStopping": "adaptax.experiment.callbacks",
    "Evaluation": "adaptax.experiment.evaluation",
    "Evaluator": "adaptax.experiment.evaluator",
    "EvaluatorConfig": "adaptax.experiment.evaluator",
    "Group": "adaptax.experiment.group",
    "export_run": "adaptax.experiment.share",
    "import_run": "adaptax.experiment.share",
    "sweep": "adaptax.experiment.sweep",
    "MLflow": "adaptax.experiment.trackers",
    "TensorBoard": "adaptax.experiment.trackers",
    "Trackio": "adaptax.experiment.trackers",
    "WandB": "adaptax.experiment.trackers",
    "Trainer": "adaptax.experiment.trainer",
    "TrainerConfig": "adaptax.experiment.trainer_config",
    "VideoConfig": "adaptax.experiment.video",
    "write_videos": "adaptax.experiment.video",
    "Memory": "adaptax.networks.memory",
    "PolicyActor": "adaptax.sampling.actors",
    "Sampler": "adaptax.sampling.sampler",
}
"""Where public names are, but for those of algorithms, which the registry knows."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules())
    if not name.startswith("_") and name in (modules := _modules()):
        value = globals()[name] = getattr(importlib.import_module(modules[name]), name)
        return value
    raise AttributeError(f"module 'adaptax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *sorted(_modules())]


def _modules() -> dict[str, str]:
    """The module of every public name."""
    from adaptax.algorithms.registry import ALGORITHMS

    modules = dict(_MODULES)
    for entry in ALGORITHMS.values():
        module, _, name = entry.where.partition(":")
        modules |= dict.fromkeys((name, f"{name}Config"), f"adaptax.algorithms{module}")
    return modules
