"""Proportional-integral control of the multipliers: ascent without the swinging.

Ascent only integrates the violation, so it answers late, overshoots and swings. A proportional
term answers at once. Both act on *relative* violations `e`, since densities span orders of
magnitude:

    I     <- max(0, I + integral * scale * clip(e, -1, 1))        (windup ends at the clip)
    sigma <- max(0, I + proportional * scale * min(e, largest))

in units of the reward's `scale`. Where a free policy breaks a bound many times over, a limit on the
violation that is answered at once keeps the first prices from driving the policy to where nothing
is to be gained and nothing to be learned. Without it, this is the augmented Lagrangian

    L(policy) = J - sum_j b_j scale / (2 proportional) max(0, I_j / scale + proportional e_j)^2

seen from its gradient: `sigma` is exactly the slope of the penalty term, `b_j` the bound.

An optimum must randomise, and a single greedy policy cannot. With `averaging`, the densities that
the rule acts on are those of a mixture of all policies so far, and a new policy enters with the
weight that maximises `L` on the way to it (Frank-Wolfe with exact line search): a policy that
helps enters with much, one that would swing to the other side with little. Without it, the rule
acts on the last policy, through a running mean where densities are noisy.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.optimize import brentq

from dcrl.constraints import Bounds, Multipliers
from dcrl.dual.column import Column, mix


def relative_violation(bounds: Bounds, seen: Column) -> Multipliers:
    """Return `(rho_min - rho) / rho_min` and `(rho - rho_max) / rho_max`, at most as in Bounds."""
    scale_lower, scale_upper = bounds.scales
    error = 0.0 if seen.error is None else seen.error
    return Multipliers(
        (bounds.lower - seen.value + error) / scale_lower,
        (seen.value - bounds.upper + error) / scale_upper,
    )


class PiState(NamedTuple):
    """The integrals, and what the controlled policy does."""

    integral: Multipliers
    multipliers: Multipliers
    answer: Column
    reward_scale: Any  # a number; a JAX scalar inside a compiled program

    @property
    def earning(self) -> bool:
        """Reward always counts."""
        return True

    @property
    def settled(self) -> bool:
        """Control has no stopping rule of its own."""
        return False

    @property
    def infeasible(self) -> bool:
        """Control cannot tell."""
        return False


@dataclass(frozen=True)
class Pi:
    """The controlled dual rule.

    Args:
        proportional: price of a violation of 100 %, in units of the reward's scale.
        integral: how fast a lasting violation raises the price, in the same units per round.
        averaging: control the mixture of all policies, and answer with it; otherwise the last.
        smoothing: without averaging, the share of the past in the running mean that is acted on.
        largest: relative violation that is answered at once; what is above is left to the integral.
    """

    proportional: float = 1.0
    integral: float = 0.1
    averaging: bool = True
    smoothing: float = 0.0
    largest: float = math.inf

    def __post_init__(self):
        if not self.proportional > 0:
            raise ValueError(
                f"proportional must be positive; got {self.proportional}. Ascent has none."
            )
        if not self.integral > 0:
            raise ValueError(f"integral must be positive; got {self.integral}.")
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1); got {self.smoothing}.")
        if not self.largest > 0:
            raise ValueError(f"largest must be positive; got {self.largest}.")

    @property
    def compiles(self) -> bool:
        """Without averaging, whose line search belongs to the host."""
        return not self.averaging

    def init(self, bounds: Bounds, start: Column, reward_scale: float, length: float) -> PiState:
        """Start from the policy that explored and empty integrals."""
        del length
        nothing = Multipliers.zeros(len(bounds))
        return PiState(
            nothing, self._price(nothing, bounds, start, reward_scale), start, reward_scale
        )

    def update(self, state: PiState, bounds: Bounds, seen: Column, best_modified: float) -> PiState:
        """Let the new policy in, then move integrals and prices."""
        del best_modified
        answer = self._let_in(state, bounds, seen) if self.averaging else self._smooth(state, seen)
        error = relative_violation(bounds, answer)
        gain = self.integral * state.reward_scale
        integral = Multipliers(
            (state.integral.lower + gain * error.lower.clip(-1.0, 1.0)).clip(0.0),
            (state.integral.upper + gain * error.upper.clip(-1.0, 1.0)).clip(0.0),
        )
        multipliers = self._price(integral, bounds, answer, state.reward_scale)
        return PiState(integral, multipliers, answer, state.reward_scale)

    def _price(
        self, integral: Multipliers, bounds: Bounds, seen: Column, reward_scale: Any
    ) -> Multipliers:
        error = relative_violation(bounds, seen)
        gain = self.proportional * reward_scale
        return Multipliers(
            (integral.lower + gain * error.lower.clip(max=self.largest)).clip(0.0),
            (integral.upper + gain * error.upper.clip(max=self.largest)).clip(0.0),
        )

    def _smooth(self, state: PiState, seen: Column) -> Column:
        past = self.smoothing
        return seen._replace(value=past * state.answer.value + (1 - past) * seen.value)

    def _let_in(self, state: PiState, bounds: Bounds, seen: Column) -> Column:
        """Mix in `seen` with the weight at which the augmented Lagrangian is greatest."""
        move = seen.value - state.answer.value
        earn = seen.objective - state.answer.objective

        def slope(weight: float) -> float:
            there = state.answer._replace(value=state.answer.value + weight * move)
            price = self._price(state.integral, bounds, there, state.reward_scale)
            return earn + float(price.net @ move)

        if slope(0.0) <= 0:
            return state.answer
        weight = 1.0 if slope(1.0) >= 0 else cast(float, brentq(slope, 0.0, 1.0, xtol=1e-12))
        return mix([state.answer, seen], np.array([1 - weight, weight]))
