"""Proportional-integral control of the multipliers: ascent without the swinging.

Ascent only integrates the violation, so it answers late, overshoots and swings. A proportional
term answers at once. Both act on *relative* violations `e`, since densities span orders of
magnitude:

    I     <- max(0, I + integral * scale * clip(e, -1, 1))        (windup ends at the clip)
    sigma <- max(0, I + proportional * scale * e)

in units of the reward's `scale`. This is the augmented Lagrangian

    L(policy) = J - sum_j b_j scale / (2 proportional) max(0, I_j / scale + proportional e_j)^2

seen from its gradient: `sigma` is exactly the slope of the penalty term, `b_j` the bound.

An optimum must randomise, and a single greedy policy cannot. With `averaging`, the densities that
the rule acts on are those of a mixture of all policies so far, and a new policy enters with the
weight that maximises `L` on the way to it (Frank-Wolfe with exact line search): a policy that
helps enters with much, one that would swing to the other side with little.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.optimize import brentq

from dcrl.constraints import Bounds, Multipliers
from dcrl.dual.column import Column, mix


def relative_violation(bounds: Bounds, value: Float[Array, " m"]) -> Multipliers:
    """Return `(rho_min - rho) / rho_min` and `(rho - rho_max) / rho_max`, at most as in Bounds."""
    scale_lower, scale_upper = bounds.scales
    return Multipliers((bounds.lower - value) / scale_lower, (value - bounds.upper) / scale_upper)


@dataclass(frozen=True)
class PiState:
    """The integrals, and what the controlled policy does."""

    integral: Multipliers
    multipliers: Multipliers
    answer: Column
    bounds: Bounds
    reward_scale: float
    earning: bool = True
    settled: bool = False
    infeasible: bool = False  # control cannot tell


@dataclass(frozen=True)
class Pi:
    """The controlled dual rule.

    Args:
        proportional: price of a violation of 100 %, in units of the reward's scale.
        integral: how fast a lasting violation raises the price, in the same units per round.
        averaging: control the mixture of all policies, and answer with it; otherwise the last.
    """

    proportional: float = 1.0
    integral: float = 0.1
    averaging: bool = True

    def __post_init__(self):
        if not self.proportional > 0:
            raise ValueError(
                f"proportional must be positive; got {self.proportional}. Ascent has none."
            )
        if not self.integral > 0:
            raise ValueError(f"integral must be positive; got {self.integral}.")

    def init(self, bounds: Bounds, start: Column, reward_scale: float) -> PiState:
        """Start from the policy that explored and empty integrals."""
        nothing = Multipliers.zeros(len(bounds))
        return PiState(
            nothing,
            self._price(nothing, bounds, start.value, reward_scale),
            start,
            bounds,
            reward_scale,
        )

    def update(self, state: PiState, seen: Column, best_modified: float) -> PiState:
        """Let the new policy in, then move integrals and prices."""
        del best_modified
        answer = self._let_in(state, seen) if self.averaging else seen
        error = relative_violation(state.bounds, answer.value)
        gain = self.integral * state.reward_scale
        integral = Multipliers(
            np.maximum(0.0, state.integral.lower + gain * np.clip(error.lower, -1, 1)),
            np.maximum(0.0, state.integral.upper + gain * np.clip(error.upper, -1, 1)),
        )
        multipliers = self._price(integral, state.bounds, answer.value, state.reward_scale)
        return PiState(integral, multipliers, answer, state.bounds, state.reward_scale)

    def _price(
        self, integral: Multipliers, bounds: Bounds, value: Array, reward_scale: float
    ) -> Multipliers:
        error = relative_violation(bounds, value)
        gain = self.proportional * reward_scale
        return Multipliers(
            np.maximum(0.0, integral.lower + gain * error.lower),
            np.maximum(0.0, integral.upper + gain * error.upper),
        )

    def _let_in(self, state: PiState, seen: Column) -> Column:
        """Mix in `seen` with the weight at which the augmented Lagrangian is greatest."""
        move = seen.value - state.answer.value
        earn = seen.objective - state.answer.objective

        def slope(weight: float) -> float:
            value = state.answer.value + weight * move
            price = self._price(state.integral, state.bounds, value, state.reward_scale)
            return earn + float(price.net @ move)

        if slope(0.0) <= 0:
            return state.answer
        weight = 1.0 if slope(1.0) >= 0 else cast(float, brentq(slope, 0.0, 1.0, xtol=1e-12))
        return mix([state.answer, seen], np.array([1 - weight, weight]))
