"""What a solve returns: a policy, and the evidence for it."""

import contextlib
import enum
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.compile_time import CompileClock
from dcrl.constraints import Bounds, Multipliers
from dcrl.dual.column import Column, DualState
from dcrl.explore import Explored
from dcrl.replay import Replay
from dcrl.tabular import dp, lp
from dcrl.tabular.certify import Certificate, certify
from dcrl.tabular.mix import Repaired, fold, pair_density, repair
from dcrl.tabular.model import Model

ROUNDING = 1e-9  # density by which a mended policy keeps its bounds


class Status(enum.Enum):
    """How a solve ended, as a sentence."""

    GAP = "The bounds are kept and the certified gap is within the one asked for."
    DONE = "The dual rule's own stopping rule holds."
    KKT = "The optimality conditions hold: the bounds are kept and no price is paid for slack."
    INFEASIBLE = "No policy keeps all bounds."
    ROUNDS = "The greatest number of rounds was reached; raise `rounds` to go on."
    TIME = "The time was used up; raise `seconds` to go on."
    STOPPED = "Stopped by hand; this is what was found so far."
    DIVERGED = "A value became infinite or not a number; the last good policy is returned."

    def __str__(self) -> str:
        return self.value


class Round(NamedTuple):
    """One line of the history. Slacks are relative to their bounds; >= 0 is kept."""

    round: int
    seconds: float  # without compiling
    objective: float  # of this round's policy
    worst_slack: float  # of this round's policy
    answer_objective: float  # of what would be returned now
    answer_slack: float
    optimum_upper: float  # least upper bound on the optimum so far
    violation: float  # KKT residuals of the answer
    complementarity: float
    steps: int  # van-steps so far
    sweeps: int


@dataclass(frozen=True)
class Result:
    """A policy, and the evidence for it. Everything here comes from sampled transitions.

    The certificate holds for the model that the replayed transitions suggest. Where every pair
    within reach was tried and the world is deterministic, that is the world itself; otherwise it
    is as good as the frequencies are, and fresh episodes decide (`evaluate`).
    """

    status: Status
    message: str
    policy: Float[Array, "s a"]
    density: Float[Array, " s"]
    multipliers: Multipliers  # of the least upper bound
    certificate: Certificate
    history: tuple[Round, ...]
    replay: Replay
    bounds: Bounds
    repaired: float  # share of a roomier policy that was mixed in to keep every bound
    untried: int  # pairs that exist but were never reached
    seconds: float  # without compiling
    compile_seconds: float
    steps: int  # transitions sampled

    @property
    def objective(self) -> float:
        """Expected discounted reward of the policy."""
        return self.certificate.lower

    @property
    def worst_slack(self) -> float:
        """Smallest relative slack; >= 0 where every bound is kept."""
        return self.certificate.worst_slack

    @property
    def optimum_lower(self) -> float | None:
        """What the best policy within the bounds earns at least; None if none was found."""
        return self.certificate.lower if self.certificate.feasible else None

    @property
    def optimum_upper(self) -> float:
        """What no policy within the bounds can exceed."""
        return self.certificate.upper

    def __str__(self) -> str:
        lower = "none found" if self.optimum_lower is None else f"{self.optimum_lower:.6g}"
        return (
            f"{self.message}\n"
            f"objective {self.objective:.6g}, optimum between {lower} and "
            f"{self.optimum_upper:.6g}; worst slack {self.worst_slack:+.3g} of its bound; "
            f"{len(self.history)} rounds, {self.steps:,} transitions, {self.seconds:.2f} s"
        )


class Stop(NamedTuple):
    """When to stop."""

    rounds: int
    seconds: float
    gap: float
    kkt: float
    violation: float

    def status(self, row: Round, prices: DualState, *, answers: bool) -> Status | None:
        """Say whether to stop, and why.

        Args:
            row: the round just done.
            prices: the dual rule after it.
            answers: whether the answer is the policy that responded to the last multipliers; only
                such a one is optimal for the modified reward, as the conditions ask.
        """
        if not (np.isfinite(row.objective) and np.isfinite(prices.multipliers.net).all()):
            return Status.DIVERGED
        if prices.infeasible:
            return Status.INFEASIBLE
        if prices.settled:
            return Status.DONE
        kept = row.violation <= self.violation
        gained = row.optimum_upper - row.answer_objective
        if kept and gained <= self.gap * abs(row.answer_objective):
            return Status.GAP
        if kept and answers and row.complementarity <= self.kkt:
            return Status.KKT
        if row.round >= self.rounds:
            return Status.ROUNDS
        return Status.TIME if row.seconds >= self.seconds else None


class Best(NamedTuple):
    """The least upper bound on the optimum so far, and the multipliers that prove it."""

    upper: float
    multipliers: Multipliers

    def improve(self, bounds: Bounds, multipliers: Multipliers, best_modified: float) -> "Best":
        """Weak duality: no policy within the bounds earns more than this."""
        upper = bounds.worth(multipliers) + best_modified
        return Best(upper, multipliers) if upper < self.upper else self


def conclude(
    status: Status,
    bounds: Bounds,
    answer: Column,
    best: Best,
    replay: Replay,
    explored: Explored,
    history: list[Round],
    clock: CompileClock,
    most_repair: float,
) -> Result:
    """Fold the answer into one Markov policy, mend what rounding broke, and certify it."""
    model = replay.model()
    policy = fold(model, answer.makeup)
    x = pair_density(model, policy)
    theta = 0.0
    if most_repair > 0:
        mended = _mend(model, bounds, x, explored.experience.pair_density)
        if mended is not None and mended.theta <= most_repair:
            policy, theta = fold(model, mended.pair_density), mended.theta
    message = str(status)
    if status is Status.INFEASIBLE:
        least = lp.least_violation(model, bounds)
        message = (
            f"Infeasible: {least.sentence()}"
            if least.names
            else "The bounds can be kept, but not with the margin asked for; lower `margin`."
        )
    return Result(
        status,
        message,
        policy,
        dp.density(model, policy),
        best.multipliers,
        certify(model, bounds, policy, best.multipliers),
        tuple(history),
        replay,
        bounds,
        theta,
        explored.untried,
        clock.running(),
        clock.compiling(),
        history[-1].steps,
    )


def _mend(model: Model, bounds: Bounds, x: Array, uniform: Array) -> Repaired | None:
    """Mix in the policy that explored, or else the roomiest there is."""
    with contextlib.suppress(ValueError):
        return repair(bounds, x, uniform, margin=ROUNDING)
    with contextlib.suppress(ValueError):
        return repair(bounds, x, lp.most_slack(model, bounds).pair_density, margin=ROUNDING)
    return None
