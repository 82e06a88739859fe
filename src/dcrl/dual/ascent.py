"""Projected gradient ascent on the multipliers: lines 9 and 10 of the paper's Algorithm 1."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.constraints import Bounds, Multipliers
from dcrl.dual.column import Column


@dataclass(frozen=True)
class AscentState:
    """The multipliers, and the last policy seen: it is also the answer."""

    multipliers: Multipliers
    answer: Column
    bounds: Bounds
    earning: bool = True
    settled: bool = False
    infeasible: bool = False  # ascent cannot tell


def ascend(
    multipliers: Multipliers, bounds: Bounds, value: Float[Array, " m"], step_size: float
) -> Multipliers:
    """Move against the violation of each bound and never below zero.

    sigma_upper <- max(0, sigma_upper + alpha (rho - rho_max))
    sigma_lower <- max(0, sigma_lower + alpha (rho_min - rho))
    """
    return Multipliers(
        np.maximum(0.0, multipliers.lower + step_size * (bounds.lower - value)),
        np.maximum(0.0, multipliers.upper + step_size * (value - bounds.upper)),
    )


@dataclass(frozen=True)
class Ascent:
    """The dual rule as published.

    Args:
        step_size: the paper's alpha, which it does not state.
    """

    step_size: float = 0.1

    def __post_init__(self):
        if not self.step_size > 0:
            raise ValueError(f"step_size must be positive; got {self.step_size}.")

    def init(self, bounds: Bounds, start: Column, reward_scale: float) -> AscentState:
        """Start from zero."""
        del reward_scale
        return AscentState(Multipliers.zeros(len(bounds)), start, bounds)

    def update(self, state: AscentState, seen: Column, best_modified: float) -> AscentState:
        """Take one step of ascent."""
        del best_modified
        return AscentState(
            ascend(state.multipliers, state.bounds, seen.value, self.step_size), seen, state.bounds
        )
