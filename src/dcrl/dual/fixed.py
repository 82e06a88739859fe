"""Multipliers that do not move: none at all for unconstrained learning, or given ones."""

from dataclasses import dataclass
from typing import NamedTuple

from dcrl.constraints import Bounds, Multipliers
from dcrl.dual.column import Column


class FixedState(NamedTuple):
    """The multipliers, and the last policy seen."""

    multipliers: Multipliers
    answer: Column
    settled: bool

    @property
    def earning(self) -> bool:
        """Reward always counts."""
        return True

    @property
    def infeasible(self) -> bool:
        """Nobody asks."""
        return False


@dataclass(frozen=True)
class Fixed:
    """The dual rule of methods without one.

    Args:
        multipliers: the prices; zero by default, which ignores the bounds.
    """

    multipliers: Multipliers | None = None

    @property
    def compiles(self) -> bool:
        """Yes."""
        return True

    def init(self, bounds: Bounds, start: Column, reward_scale: float, length: float) -> FixedState:
        """Start from the given multipliers."""
        del reward_scale, length
        return FixedState(self.multipliers or Multipliers.zeros(len(bounds)), start, False)

    def update(
        self, state: FixedState, bounds: Bounds, seen: Column, best_modified: float
    ) -> FixedState:
        """Keep the multipliers; one policy answers them."""
        del bounds, best_modified
        return FixedState(state.multipliers, seen, True)
