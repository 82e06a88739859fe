"""Projected gradient ascent on the multipliers: lines 9 and 10 of the paper's Algorithm 1."""

from dataclasses import dataclass
from typing import NamedTuple

from dcrl.constraints import Bounds, Multipliers
from dcrl.dual.column import Column


class AscentState(NamedTuple):
    """The multipliers, and the last policy seen: it is also the answer."""

    multipliers: Multipliers
    answer: Column

    @property
    def earning(self) -> bool:
        """Reward always counts."""
        return True

    @property
    def settled(self) -> bool:
        """Ascent has no stopping rule of its own."""
        return False

    @property
    def infeasible(self) -> bool:
        """Ascent cannot tell."""
        return False


def ascend(multipliers: Multipliers, bounds: Bounds, seen: Column, step_size: float) -> Multipliers:
    """Move against the violation of each bound and never below zero.

    sigma_upper <- max(0, sigma_upper + alpha (rho - rho_max))
    sigma_lower <- max(0, sigma_lower + alpha (rho_min - rho))

    Where a bound is on an integral over some volume, `rho` is the mean density in it.
    """
    error = 0.0 if seen.error is None else seen.error
    below = (bounds.lower - seen.value + error) / bounds.volume
    above = (seen.value - bounds.upper + error) / bounds.volume
    return Multipliers(
        (multipliers.lower + step_size * below).clip(0.0),
        (multipliers.upper + step_size * above).clip(0.0),
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

    @property
    def compiles(self) -> bool:
        """Yes."""
        return True

    def init(
        self, bounds: Bounds, start: Column, reward_scale: float, length: float
    ) -> AscentState:
        """Start from zero."""
        del reward_scale, length
        return AscentState(Multipliers.zeros(len(bounds)), start)

    def update(
        self, state: AscentState, bounds: Bounds, seen: Column, best_modified: float
    ) -> AscentState:
        """Take one step of ascent."""
        del best_modified
        return AscentState(ascend(state.multipliers, bounds, seen, self.step_size), seen)
