"""What a policy does, in the numbers that a dual rule sees."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.constraints import Bounds, Multipliers


class Column(NamedTuple):
    """One policy, or a mixture of several: value, objective and makeup average in a mixture.

    The fields are JAX arrays inside a compiled program.
    """

    value: Any  # (m,) the bounded quantities, `basis @ rho`
    objective: Any  # expected discounted reward, without multipliers
    makeup: Any  # on a table the state-action density (s, a); else the share of each kept policy
    error: Any = None  # (m,) the margin asked for against noise in the value


def mix(columns: Sequence[Column], weights: Float[Array, " k"]) -> Column:
    """Return what a mixture does that draws policy `k` with probability `weights[k]`."""
    value = np.zeros_like(columns[0].value)
    makeup = np.zeros_like(columns[0].makeup)
    objective = 0.0
    for column, weight in zip(columns, weights, strict=True):
        if weight > 0:
            value += weight * column.value
            makeup += weight * column.makeup
            objective += float(weight) * column.objective
    return Column(value, objective, makeup)


@runtime_checkable
class DualState(Protocol):
    """What every dual rule carries."""

    @property
    def multipliers(self) -> Multipliers:
        """Prices for the next policy."""
        ...

    @property
    def answer(self) -> Column:
        """What would be returned now: a policy or a mixture."""
        ...

    @property
    def earning(self) -> bool:
        """Whether reward counts now; a rule may look for feasibility first."""
        ...

    @property
    def settled(self) -> bool:
        """Whether the rule's own stopping criterion holds."""
        ...

    @property
    def infeasible(self) -> bool:
        """Whether the rule has shown that no policy keeps the bounds."""
        ...


State = TypeVar("State", bound=DualState)


@runtime_checkable
class Dual(Protocol[State]):
    """A rule by which multipliers move."""

    @property
    def compiles(self) -> bool:
        """Whether updates are plain arithmetic, which a compiled program can contain."""
        ...

    def init(self, bounds: Bounds, start: Column, reward_scale: float, length: float) -> State:
        """Start from the multipliers zero.

        Args:
            bounds: what is promised.
            start: what the policy did that explored.
            reward_scale: mean size of the rewards of a step, the unit of prices.
            length: expected discounted steps of an episode; an episode earns their product.
        """
        ...

    def update(self, state: State, bounds: Bounds, seen: Column, best_modified: float) -> State:
        """Move the multipliers.

        Args:
            state: from `init` or the last update.
            bounds: the ones of `init`.
            seen: what the policy for `state.multipliers` did.
            best_modified: no policy earns more modified reward than this.
        """
        ...
