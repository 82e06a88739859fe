"""Named settings, as plain data: what the command line offers and what results are made from.

Nothing heavy is imported until something is built, so that `dcrl --help` answers at once.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcrl.envs.native import Env
    from dcrl.tabular.model import World

TASKS = {
    "express": "express delivery: vans that pass every service point often enough",
    "motor": "a direct-current motor that follows a speed and should rarely run hot",
    "rover": "a Mars rover that saves energy and should hurry through a dangerous area",
}

TABLES = ("express",)
"""Tasks with a table of states; the others are native worlds with continuous ones."""

METHODS = {
    "dcrl": "density constrained reinforcement learning; --dual says how multipliers move",
    "cers": "cross-entropy search over multipliers, the paper's baseline (tables only)",
    "unconstrained": "the learner alone, no bounds",
}

DUALS = {
    "master": "a linear program over all policies so far; on tables certified",
    "pi": "proportional-integral control; no oscillation",
    "ascent": "projected gradient ascent, as published",
}

LEARNERS = {
    "ppo": "proximal policy optimisation",
    "trpo": "trust-region policy optimisation",
    "ddpg": "deep deterministic policy gradients, the paper's learner",
}


def choose(what: str, given: str, among: Iterable[str]) -> str:
    """Return `given` if it is one of the choices; otherwise say which one is nearest."""
    names = list(among)
    if given in names:
        return given
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.4)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise ValueError(f"unknown {what} '{given}'; choose one of: {', '.join(names)}.{hint}")


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, besides the world and the seed."""

    method: str = "dcrl"
    dual: str = "master"
    temperature: float = 0.0  # of the policy, in units of the mean reward; 0 is greedy
    max_sweeps: int = 20_000  # of Q-learning over the replay, per round
    vans: int = 64  # per density estimate
    gap: float = 5e-3  # certified relative gap at which to stop
    kkt: float = 2e-2  # of the paper's stopping rule
    margin: float = 0.0  # by which the bounds are tightened for the dual
    most_repair: float = 0.05  # greatest share of a roomier policy mixed in at the end
    rounds: int = 1_000_000
    seconds: float = 600.0
    step_size: float = 0.005  # of ascent
    proportional: float = 1.0  # of pi
    integral: float = 0.01  # of pi
    search_mean: float = 0.02  # of the first multipliers of cers, and their spread
    search_noise: float = 0.05  # least spread of the later ones


def settings(method: str = "dcrl", dual: str = "master") -> Settings:
    """Return the settings of a method, the same on every network.

    The greedy learner serves the rules that answer with mixtures. Ascent and CERS answer with a
    single policy, so theirs is a softmax, and its density is counted over more vans. Theirs were
    chosen by a grid on other networks (`benchmarks/tuning.py`).
    """
    choose("method", method, METHODS)
    choose("dual", dual, DUALS)
    plain = Settings(method=method, dual=dual)
    if method == "unconstrained":
        return replace(plain, dual="none", rounds=1)
    if method == "cers":
        return replace(plain, dual="cross_entropy", temperature=4.0, vans=1000, most_repair=0.0)
    if dual == "pi":
        return replace(plain, max_sweeps=500, gap=2e-2, margin=1e-2)
    if dual == "ascent":
        return replace(plain, temperature=4.0, max_sweeps=2000, vans=1000, gap=0.0, most_repair=0.0)
    return plain


def make_world(task: str, **parameters: Any) -> "World":
    """Build the world of a task with a table."""
    choose("task", task, TABLES)
    from dcrl.envs.express import express

    return express(**parameters)


@dataclass(frozen=True)
class NativeSettings:
    """Everything that decides a training in a native world, besides the world and the seeds."""

    method: str = "dcrl"
    learner: str = "ppo"
    dual: str = "pi"
    learning: Mapping[str, Any] = field(default_factory=dict)  # of the learner, not its defaults
    pricing: Mapping[str, Any] = field(default_factory=dict)  # of the dual rule, not its defaults
    rounds: int = 200
    lanes: int = 1024
    steps: int | None = None  # of a segment; the whole episode if none are given
    margin: float = 2.5  # standard errors
    average: int = 10  # policies in the answer
    together: int = 1  # seeds per program
    episodes: int = 4096  # fresh ones, to judge by


def native_settings(
    task: str, method: str = "dcrl", learner: str = "ppo", dual: str = "pi"
) -> NativeSettings:
    """Return the settings of a method on a task, the same for all seeds."""
    choose("task", task, [name for name in TASKS if name not in TABLES])
    choose("method", method, [name for name in METHODS if name != "cers"])
    choose("learner", learner, LEARNERS)
    choose("dual", dual, DUALS)
    plain = NativeSettings(method, learner, "none" if method == "unconstrained" else dual)
    by_dual = _NATIVE[task, learner]
    return replace(plain, **by_dual[""], **(by_dual.get(plain.dual) or _PRICING[task][plain.dual]))


_MOTOR = {"lanes": 3840, "steps": 200}
_ROVER = {"lanes": 512}
_PRICING: dict[str, dict[str, dict[str, Any]]] = {
    "motor": {
        "pi": {"pricing": {"proportional": 1.0, "integral": 0.1, "averaging": False}},
        "ascent": {"pricing": {"step_size": 1e-5}, "margin": 0.0, "average": 1},
        "master": {},
        "none": {},
    },
    "rover": {
        "pi": {"pricing": {"proportional": 3.0, "integral": 0.1, "averaging": False}},
        "ascent": {"pricing": {"step_size": 1e-2}, "margin": 0.0, "average": 1},
        "master": {},
        "none": {},
    },
}
"""Per task and dual rule: how multipliers move, with any learner."""

_NATIVE: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("motor", "ppo"): {
        "": {**_MOTOR, "learning": {"discount": 0.95, "cool": 50.0, "epochs": 2}},
    },
    ("motor", "trpo"): {
        "": {
            **_MOTOR,
            "learning": {
                "discount": 0.95,
                "cool": 100.0,
                "epochs": 2,
                "minibatches": 32,
                "share": 0.05,
            },
        },
    },
    ("motor", "ddpg"): {
        # More and smaller rounds, of as many steps in all, and slower multipliers.
        "": {
            "lanes": 960,
            "steps": 200,
            "rounds": 800,
            "average": 40,
            "learning": {"discount": 0.95, "cool": 100.0, "updates": 62, "smoothing": 0.001},
        },
        "pi": {
            "pricing": {"proportional": 0.3, "integral": 0.01, "averaging": False},
            "margin": 4.0,
        },
    },
    ("rover", "ppo"): {"": _ROVER},
    ("rover", "trpo"): {"": _ROVER},
    ("rover", "ddpg"): {"": {**_ROVER, "together": 5}},
}
"""Per task and learner: its settings and how the world is driven; then what is special with a dual
rule."""


def make_env(task: str, **parameters: Any) -> "Env":
    """Build a native world."""
    from dcrl.envs.motor import Motor
    from dcrl.envs.rover import Rover

    return {"motor": Motor, "rover": Rover}[task](**parameters)


def build_native(chosen: NativeSettings) -> dict[str, Any]:
    """Return the keyword arguments of `train` for these settings."""
    from dcrl.dual import Ascent, Fixed, Master, Pi
    from dcrl.learners.ddpg import DDPG
    from dcrl.learners.ppo import PPO
    from dcrl.learners.trpo import TRPO

    duals = {"none": Fixed, "master": Master, "pi": Pi, "ascent": Ascent}
    learners = {"ppo": PPO, "trpo": TRPO, "ddpg": DDPG}
    return {
        "learner": learners[chosen.learner](**chosen.learning),
        "dual": duals[chosen.dual](**chosen.pricing),
        "rounds": chosen.rounds,
        "lanes": chosen.lanes,
        "steps": chosen.steps,
        "margin": chosen.margin,
        "average": chosen.average,
        "together": chosen.together,
    }


def build(chosen: Settings) -> dict[str, Any]:
    """Return the keyword arguments of `solve` for these settings."""
    from dcrl.density.counts import Counts
    from dcrl.dual import Ascent, CrossEntropy, Fixed, Master, Pi
    from dcrl.learners.q_learning import QLearning

    duals = {
        "none": Fixed(),
        "master": Master(),
        "pi": Pi(chosen.proportional, chosen.integral),
        "ascent": Ascent(chosen.step_size),
        "cross_entropy": CrossEntropy(
            mean=chosen.search_mean, spread=chosen.search_mean, noise=chosen.search_noise
        ),
    }
    return {
        "learner": QLearning(temperature=chosen.temperature, max_sweeps=chosen.max_sweeps),
        "density": Counts(vans=chosen.vans),
        "dual": duals[chosen.dual],
        "gap": chosen.gap,
        "kkt": chosen.kkt,
        "margin": chosen.margin,
        "most_repair": chosen.most_repair,
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
    }
