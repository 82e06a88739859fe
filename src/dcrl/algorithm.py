"""Algorithm 1: density constrained reinforcement learning, with any learner, density and dual."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

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
from dcrl.result import Best, Result, Round, Status, Stop, conclude
from dcrl.rollout import Experience, Simulator, simulator
from dcrl.tabular.model import World


@runtime_checkable
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


@runtime_checkable
class DensityEstimate(Protocol):
    """Any way to find out how long a policy spends where."""

    def __call__(self, key: JaxArray, world: Simulator, policy: Float[Array, "s a"]) -> Experience:
        """Return the state-action density of a policy, and what was seen on the way."""
        ...


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

    Interrupting it by hand (Ctrl-C) returns what was found so far.

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
    _refuse_unreachable(bounds, explored)
    replay, steps = explored.replay, explored.steps
    learned = learner.init(replay)
    start = _column(bounds, replay, explored.experience)
    inner = bounds.tighten(margin)
    length = float(start.makeup.sum())
    prices = dual.init(inner, start, replay.reward_scale, length)
    best = Best(np.inf, Multipliers.zeros(len(bounds)))
    history: list[Round] = []
    stop = Stop(rounds, seconds, gap, kkt, violation)
    status = None
    try:
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
            best_modified = info.value + info.excess
            if prices.earning:
                best = best.improve(bounds, multipliers, best_modified)
            following = dual.update(prices, inner, seen, best_modified)
            # Line 11: until the optimality conditions hold.
            answer = following.answer
            conditions = residuals(bounds, multipliers, answer.value, answer.objective)
            row = Round(
                round=len(history) + 1,
                seconds=clock.running(),
                objective=seen.objective,
                worst_slack=bounds.worst_slack(seen.value),
                answer_objective=answer.objective,
                answer_slack=bounds.worst_slack(answer.value),
                optimum_upper=best.upper,
                violation=conditions.violation,
                complementarity=conditions.complementarity,
                steps=steps,
                sweeps=info.sweeps,
            )
            history.append(row)
            status = stop.status(row, following, answers=answer is seen)
            if status is not Status.DIVERGED:
                prices = following
            if on_round is not None:
                on_round(row)
    except KeyboardInterrupt:
        if not history:
            raise
        status = Status.STOPPED
    return conclude(
        status, bounds, prices.answer, best, replay, explored, history, clock, most_repair
    )


def _column(bounds: Bounds, replay: Replay, experience: Experience) -> Column:
    x = experience.pair_density
    return Column(bounds.measure(x.sum(1)), float((x * replay.reward).sum()), x)


def _refuse_unreachable(bounds: Bounds, explored: Explored) -> None:
    """A state that must be visited but cannot be is a mistake in the bounds, not a task."""
    reached = explored.replay.reached.astype(float)
    for row in np.flatnonzero(bounds.lower > 0):
        if not (bounds.basis[[int(row)]] @ reached > 0).any():
            raise ValueError(
                f"{bounds.names[row]} must be at least {bounds.lower[row]:g}, but no van can get "
                "there. Drop this bound, or lead a way to it."
            )
