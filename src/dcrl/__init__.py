"""Density constrained reinforcement learning: say where an agent may spend its time.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dcrl import density as density
    from dcrl import dual as dual
    from dcrl import envs as envs
    from dcrl import tabular as tabular
    from dcrl.algorithm import solve as solve
    from dcrl.constraints import Bounds as Bounds
    from dcrl.constraints import Cost as Cost
    from dcrl.constraints import Density as Density
    from dcrl.constraints import Multipliers as Multipliers
    from dcrl.constraints import bind as bind
    from dcrl.constraints import costs_to_density as costs_to_density
    from dcrl.constraints import density_to_costs as density_to_costs
    from dcrl.constraints import density_to_one_cost as density_to_one_cost
    from dcrl.evaluation import evaluate as evaluate
    from dcrl.evaluation import evaluate_exactly as evaluate_exactly
    from dcrl.evaluation import evaluate_mixture as evaluate_mixture
    from dcrl.learners.ddpg import DDPG as DDPG
    from dcrl.learners.ppo import PPO as PPO
    from dcrl.learners.q_learning import QLearning as QLearning
    from dcrl.learners.trpo import TRPO as TRPO
    from dcrl.result import Result as Result
    from dcrl.result import Status as Status
    from dcrl.run import load as load
    from dcrl.tabular.model import Model as Model
    from dcrl.tabular.model import World as World
    from dcrl.training import Trained as Trained
    from dcrl.training import train as train

_ROOMS = ("density", "dual", "envs", "tabular")
_HOMES = {
    "Bounds": "constraints",
    "Cost": "constraints",
    "DDPG": "learners.ddpg",
    "Density": "constraints",
    "Model": "tabular.model",
    "Multipliers": "constraints",
    "PPO": "learners.ppo",
    "QLearning": "learners.q_learning",
    "Result": "result",
    "Status": "result",
    "TRPO": "learners.trpo",
    "Trained": "training",
    "World": "tabular.model",
    "bind": "constraints",
    "costs_to_density": "constraints",
    "density_to_costs": "constraints",
    "density_to_one_cost": "constraints",
    "evaluate": "evaluation",
    "evaluate_exactly": "evaluation",
    "evaluate_mixture": "evaluation",
    "load": "run",
    "solve": "algorithm",
    "train": "training",
}

__all__ = [*_ROOMS, *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"dcrl.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"dcrl.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'dcrl' has no attribute '{name}'")
