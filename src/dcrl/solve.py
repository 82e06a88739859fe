"""Algorithm 1: density constrained reinforcement learning, with any learner, density and dual."""

import contextlib
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.compile_time import CompileClock
from dcrl.constraints import Bounds, Multipliers
from dcrl.density.counts import Counts
from dcrl.dual.column import Column, Dual
from dcrl.dual.kkt import residuals
from dcrl.dual.master import Master
from dcrl.explore import Explored, explore
from dcrl.learners.q_learning import QLearning
from dcrl.replay import Replay
from dcrl.rollout import Experience, Simulator, simulator
from dcrl.tabular import dp, lp
from dcrl.tabular.certify import Certificate, certify
from dcrl.tabular.mix import Repaired, fold, pair_density, repair
from dcrl.tabular.model import Model, World


class Status(enum.Enum):
    """How a solve ended, as a sentence."""

    GAP = "The bounds are kept and the certified gap is within the one asked for."
    DONE = "The dual rule's own stopping rule holds."
    KKT = "The optimality conditions hold: the bounds are kept and no price is paid for slack."
    INFEASIBLE = "No policy keeps all bounds."
    ROUNDS = "The greatest number of rounds was reached; raise `rounds` to go on."
    TIME = "The time was used up; raise `seconds` to go on."
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


class Learner(Protocol):
    """Any method that improves a policy for a given reward."""

    def init(self, replay: Replay) -> Any:
        """Start."""
        ...

    def improve(
        self, state: Any, replay: Replay, bonus: Float[Array, " s"], *, earning: bool = True
    ) -> tuple[Any, Any]:
        """Improve for the reward plus the bonus of each state."""
        ...

    def policy(self, state: Any, replay: Replay) -> Float[Array, "s a"]:
        """Return the policy to drive."""
        ...


class DensityEstimate(Protocol):
    """Any way to find out how long a policy spends where."""

    def __call__(self, key: JaxArray, world: Simulator, policy: Float[Array, "s a"]) -> Experience:
        """Return the state-action density of a policy, and what was seen on the way."""
        ...


ROUNDING = 1e-9  # density by which a mended policy keeps its bounds


def solve(
    world: World,
    *,
    key: JaxArray | int = 0,
    learner: Learner | None = None,
    density: DensityEstimate | None = None,
    dual: Dual[Any] | None = None,
    rounds: int = 100_000,
    seconds: float = 600.0,
    gap: float = 5e-3,
    kkt: float = 1e-2,
    violation: float = 1e-3,
    margin: float = 0.0,
    most_repair: float = 0.05,
    tries: int = 1,
    on_round: Callable[[Round], None] | None = None,
) -> Result:
    """Find a policy that keeps the bounds of a world and earns as much as possible.

    Args:
        world: what to sample, and what must be kept. The model in it only simulates.
        key: randomness, or a seed.
        learner: improves the policy; Q-learning by default.
        density: estimates its density; the paper's count by default.
        dual: moves the multipliers; the certified master by default.
        rounds: stop after so many.
        seconds: stop after so long, compiling apart.
        gap: stop when the bounds are kept and the objective is certified within this share.
        kkt: stop by the paper's rule when the price paid for slack is within this share of the
            objective.
        violation: greatest relative violation that counts as a kept bound when stopping.
        margin: ask for bounds tighter by this share, to cover noise.
        most_repair: greatest share of a roomier policy that may be mixed in at the end to keep
            every bound exactly; 0 returns the policy as it was found.
        tries: try every action so often before the first round; more where outcomes are random.
        on_round: called after every round.

    >>> from dcrl.envs import tiny
    >>> result = solve(tiny.fork(upper=0.4))
    >>> round(result.objective, 6), result.status.name
    (-2.2, 'GAP')
    """
    learner = QLearning() if learner is None else learner
    density = Counts() if density is None else density
    dual = Master() if dual is None else dual
    key = jax.random.key(key) if isinstance(key, int) else key
    sampler, bounds, clock = simulator(world.model), world.bounds, CompileClock()
    key, key_explore = jax.random.split(key)

    explored = explore(key_explore, sampler, tries=tries)
    replay, steps = explored.replay, explored.steps
    learned = learner.init(replay)
    start = _column(bounds, replay, explored.experience)
    prices = dual.init(bounds.tighten(margin), start, replay.reward_scale)
    history: list[Round] = []
    best = Best(np.inf, Multipliers.zeros(len(bounds)))
    status = None
    while status is None:
        key, key_round = jax.random.split(key)
        multipliers = prices.multipliers
        # Lines 4 and 5: improve the policy for the reward plus sigma_lower - sigma_upper.
        learned, info = learner.improve(
            learned, replay, bounds.bonus(multipliers), earning=prices.earning
        )
        policy = learner.policy(learned, replay)
        # Lines 6 and 7: drive it, and estimate its density.
        experience = density(key_round, sampler, policy)
        replay, steps = replay.add(experience), steps + experience.steps
        seen = _column(bounds, replay, experience)
        # Lines 8 to 10: move the multipliers.
        if prices.earning:
            best = best.improve(bounds, multipliers, info.value + info.excess)
        following = dual.update(prices, seen, info.value + info.excess)
        # Line 11: until the optimality conditions hold.
        answer = following.answer
        conditions = residuals(bounds, multipliers, answer.value, answer.objective)
        history.append(
            Round(
                len(history) + 1,
                clock.running(),
                seen.objective,
                bounds.worst_slack(seen.value),
                answer.objective,
                bounds.worst_slack(answer.value),
                best.upper,
                *conditions,
                steps,
                info.sweeps,
            )
        )
        if on_round is not None:
            on_round(history[-1])
        finite = np.isfinite(seen.objective) and np.isfinite(following.multipliers.net).all()
        if not finite:
            status = Status.DIVERGED
            break
        prices = following
        if prices.infeasible:
            status = Status.INFEASIBLE
        elif prices.settled:
            status = Status.DONE
        elif conditions.violation <= violation and best.gap(answer.objective) <= gap:
            status = Status.GAP
        elif answer is seen and conditions.hold(violation, kkt):
            # Only a policy that answers these multipliers is optimal for the modified reward.
            status = Status.KKT
        elif len(history) >= rounds:
            status = Status.ROUNDS
        elif clock.running() >= seconds:
            status = Status.TIME

    return _result(
        status,
        replay,
        bounds,
        prices.answer,
        best.multipliers,
        most_repair,
        explored,
        history,
        clock,
        steps,
    )


class Best(NamedTuple):
    """The least upper bound on the optimum so far, and the multipliers that prove it."""

    upper: float
    multipliers: Multipliers

    def improve(self, bounds: Bounds, multipliers: Multipliers, best_modified: float) -> "Best":
        """Weak duality: no policy within the bounds earns more than this."""
        upper = bounds.worth(multipliers) + best_modified
        return Best(upper, multipliers) if upper < self.upper else self

    def gap(self, objective: float) -> float:
        """Return how much more than `objective` could be earned, as a share of it."""
        return (self.upper - objective) / max(abs(objective), 1e-12)


def _column(bounds: Bounds, replay: Replay, experience: Experience) -> Column:
    x = experience.pair_density
    return Column(bounds.measure(x.sum(1)), float((x * replay.reward).sum()), x)


def _result(
    status: Status,
    replay: Replay,
    bounds: Bounds,
    answer: Column,
    multipliers: Multipliers,
    most_repair: float,
    explored: Explored,
    history: list[Round],
    clock: CompileClock,
    steps: int,
) -> Result:
    """Fold the answer into one Markov policy, mend what rounding broke, and certify it."""
    model = replay.model()
    policy = fold(model, answer.pair_density)
    x = pair_density(model, policy)
    theta = 0.0
    if most_repair > 0:
        mended = _mend(model, bounds, x, explored.experience.pair_density)
        if mended is not None and mended.theta <= most_repair:
            policy, theta = fold(model, mended.pair_density), mended.theta
    message = str(status)
    if status is Status.INFEASIBLE:
        message = f"{message} {lp.least_violation(model, bounds).sentence().capitalize()}"
    return Result(
        status,
        message,
        policy,
        dp.density(model, policy),
        multipliers,
        certify(model, bounds, policy, multipliers),
        tuple(history),
        replay,
        bounds,
        theta,
        explored.untried,
        clock.running(),
        clock.compiling(),
        steps,
    )


def _mend(model: Model, bounds: Bounds, x: Array, uniform: Array) -> Repaired | None:
    """Mix in the policy that explored, or else the roomiest there is."""
    with contextlib.suppress(ValueError):
        return repair(bounds, x, uniform, margin=ROUNDING)
    with contextlib.suppress(ValueError):
        return repair(bounds, x, lp.most_slack(model, bounds).pair_density, margin=ROUNDING)
    return None
