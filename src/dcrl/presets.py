"""Named settings, as plain data: what the command line offers and what results are made from.

Nothing heavy is imported until something is built, so that `dcrl --help` answers at once.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcrl.tabular.model import World

TASKS = {
    "express": "express delivery: vans that pass every service point often enough",
}

METHODS = {
    "dcrl": "density constrained reinforcement learning; --dual says how multipliers move",
    "cers": "cross-entropy search over multipliers, the paper's baseline",
    "unconstrained": "the learner alone, no bounds",
}

DUALS = {
    "master": "a linear program over all policies so far; certified",
    "pi": "proportional-integral control with averaging; no oscillation",
    "ascent": "projected gradient ascent, as published",
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
    """Build the world of a task."""
    choose("task", task, TASKS)
    from dcrl.envs.express import express

    return express(**parameters)


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
