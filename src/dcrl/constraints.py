"""What is promised: bounds on how much time is spent where.

Every constraint of a table is `lower <= of @ rho <= upper`, where `rho` is the state density and
each row of `of` weighs the states. Bounds per state have `of = identity`; an expected cost has its
cost vector as the only row (Remark 3 of the paper). `bind` turns any list of them into one vector.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import scipy.sparse
from jaxtyping import Float
from numpy import ndarray as Array
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from dcrl.density.bases import Basis

Bound = float | ArrayLike | Callable[..., Any]
"""A number for all, one number per state or basis function, or a function: on tables of a state's
index, in a feature space of many points at once."""


@dataclass(frozen=True)
class Density:
    """Bounds on the state density: `lower(s) <= rho(s) <= upper(s)` at every state.

    `rho(s) = sum_t gamma^t P(s_t = s)` counts discounted visits, so with a discount near one it
    is the expected number of visits in an episode.

    On a table, `of` weighs states. In a native world with continuous states, `of` names a feature
    of one to three dimensions and `basis` the functions that its density is measured with; bounds
    are then densities per unit of the feature, or times where the basis is made of regions.

    Args:
        lower: least density; a number, one per state or basis function, or a function.
        upper: greatest density, given in the same way.
        states: on a table, the states that are bounded; all of them by default.
        of: on a table, weights, one row per bound: bounds `of @ rho` instead of `rho` itself, for
            example the total density of a region. In a native world, a function from an observation
            to the feature; the observation itself by default.
        name: how the bounds are called in reports.
        basis: in a native world, the functions on the feature space.

    >>> Density(lower=0.3, states=[1, 2]).lower
    0.3
    """

    lower: Bound = 0.0
    upper: Bound = np.inf
    states: Sequence[int] | None = None
    of: ArrayLike | Callable[..., Any] | None = None
    name: str = "density"
    basis: "Basis | None" = None


@dataclass(frozen=True)
class Cost:
    """A limit on an expected discounted cost: `sum_s rho(s) cost(s) <= limit`.

    Args:
        cost: the cost of spending one step in a state: a number, one per state, or a function; in a
            native world a function of an observation.
        limit: the greatest expected discounted sum.
        name: how the bound is called in reports.
    """

    cost: Bound
    limit: float
    name: str = "cost"


Constraint = Density | Cost


Prices = Float[Any, " m"]
"""A NumPy array, or a JAX array inside a compiled program."""


class Multipliers(NamedTuple):
    """The price of each bound: `sigma_lower` rewards visits, `sigma_upper` charges for them."""

    lower: Prices
    upper: Prices

    @property
    def net(self) -> Prices:
        """`sigma_lower - sigma_upper`: what one unit of density at each bound is worth."""
        return self.lower - self.upper

    @classmethod
    def from_net(cls, net: Prices) -> "Multipliers":
        """Split a net price by its sign; at an optimum at most one side of a bound is active."""
        return cls(np.maximum(net, 0.0), np.maximum(-net, 0.0))

    @classmethod
    def zeros(cls, count: int) -> "Multipliers":
        """Return the paper's start: nothing is priced."""
        return cls(np.zeros(count), np.zeros(count))


class Sides(NamedTuple):
    """Every finite side of every bound in one form, `rows @ rho <= limit`, upper sides first."""

    rows: scipy.sparse.csr_array  # (k, num_states)
    limit: Float[Array, " k"]
    scale: Float[Array, " k"]  # what the violation of this side is divided by
    num_upper: int


@dataclass(frozen=True)
class Bounds:
    """All bounds of a problem as one vector of length `m`: `lower <= basis @ rho <= upper`.

    `slack >= 0` means kept, everywhere in the library.
    """

    basis: scipy.sparse.csr_array  # (m, num_states); of no states where there is no table
    lower: Float[Array, " m"]
    upper: Float[Array, " m"]
    names: tuple[str, ...]
    sizes: Float[Array, " m"] | None = None  # volumes, where bounds are on integrals over some

    @property
    def volume(self) -> Float[Array, " m"]:
        """Return what a density of one measures; one for each bound of a table."""
        return np.ones(len(self)) if self.sizes is None else self.sizes

    def __len__(self) -> int:
        return len(self.lower)

    def measure(self, rho: Float[Array, " s"]) -> Float[Array, " m"]:
        """Return the bounded quantities of a state density, `basis @ rho`."""
        return self.basis @ rho

    def bonus(self, multipliers: Multipliers) -> Float[Array, " s"]:
        """What Algorithm 1 (line 4) adds to the reward: `sigma_lower(s) - sigma_upper(s)`.

        It is the adjoint of `measure`, so `bonus(sigma) @ rho == sigma.net @ measure(rho)`.
        """
        return self.basis.T @ multipliers.net

    @cached_property
    def scales(self) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """What violations of the lower and of the upper bounds are measured in: the bounds.

        A bound of zero has no scale of its own and is taken in absolute terms.
        """
        lower, upper = (
            np.where((bound != 0) & np.isfinite(bound), np.abs(bound), 1.0)
            for bound in (self.lower, self.upper)
        )
        return lower, upper

    @cached_property
    def sides(self) -> Sides:
        """Return the finite sides as one list of inequalities, for linear programs."""
        upper, lower = np.isfinite(self.upper), np.isfinite(self.lower)
        return Sides(
            scipy.sparse.csr_array(scipy.sparse.vstack([self.basis[upper], -self.basis[lower]])),
            np.concatenate([self.upper[upper], -self.lower[lower]]),
            np.concatenate([self.scales[1][upper], self.scales[0][lower]]),
            int(upper.sum()),
        )

    def from_sides(self, prices: Float[Array, " k"]) -> Multipliers:
        """Return the multipliers of the bounds from the prices of their sides."""
        upper, lower = np.zeros(len(self)), np.zeros(len(self))
        upper[np.isfinite(self.upper)] = prices[: self.sides.num_upper]
        lower[np.isfinite(self.lower)] = prices[self.sides.num_upper :]
        return Multipliers(lower, upper)

    def worth(self, multipliers: Multipliers) -> float:
        """Return `sigma_upper @ upper - sigma_lower @ lower`, over the sides that are priced.

        It is what the bounds add to the dual function; a price on a side without a bound is
        infinitely bad, and says nothing.
        """
        upper = np.where(multipliers.upper > 0, self.upper, 0.0)
        lower = np.where(multipliers.lower > 0, self.lower, 0.0)
        return float(multipliers.upper @ upper - multipliers.lower @ lower)

    def slack(self, value: Float[Array, " m"]) -> Float[Array, " m"]:
        """Distance to the nearer bound; negative where it is broken."""
        return np.minimum(value - self.lower, self.upper - value)

    def relative_slack(self, value: Float[Array, " m"]) -> Float[Array, " m"]:
        """Slack divided by its own bound: densities span orders of magnitude."""
        scale_lower, scale_upper = self.scales
        return np.minimum((value - self.lower) / scale_lower, (self.upper - value) / scale_upper)

    def worst_slack(self, value: Float[Array, " m"]) -> float:
        """Return the smallest relative slack; infinite where nothing is bounded."""
        return float(self.relative_slack(value).min(initial=np.inf))

    def tighten(self, margin: float) -> "Bounds":
        """Move every bound inwards by `margin` of itself, but never past the middle of its pair."""
        finite_lower, finite_upper = np.isfinite(self.lower), np.isfinite(self.upper)
        lower, upper = self.lower.copy(), self.upper.copy()
        lower[finite_lower] += margin * np.abs(self.lower[finite_lower])
        upper[finite_upper] -= margin * np.abs(self.upper[finite_upper])
        both = finite_lower & finite_upper
        middle = (self.lower[both] + self.upper[both]) / 2
        lower[both], upper[both] = np.minimum(lower[both], middle), np.maximum(upper[both], middle)
        return replace(self, lower=lower, upper=upper)


def bind(
    constraints: Sequence[Constraint],
    num_states: int,
    state_names: Sequence[str] | None = None,
) -> Bounds:
    """Return every finite bound of `constraints` on a table of `num_states` states.

    >>> bounds = bind([Density(lower=[0, 0.5]), Cost([1.0, 0.0], limit=2.0)], num_states=2)
    >>> bounds.names
    ('density of state 1', 'cost')
    >>> bounds.lower.tolist(), bounds.upper.tolist()
    ([0.5, -inf], [inf, 2.0])
    """
    names = [f"state {s}" for s in range(num_states)] if state_names is None else list(state_names)
    parts = [
        _bind_density(c, num_states, names) if isinstance(c, Density) else _bind_cost(c, num_states)
        for c in constraints
    ]
    if not parts:
        empty = np.zeros(0)
        return Bounds(scipy.sparse.csr_array((0, num_states)), empty, empty, ())
    return Bounds(
        scipy.sparse.csr_array(scipy.sparse.vstack([p.basis for p in parts])),
        np.concatenate([p.lower for p in parts]),
        np.concatenate([p.upper for p in parts]),
        tuple(name for p in parts for name in p.names),
    )


def _bind_density(constraint: Density, num_states: int, state_names: list[str]) -> Bounds:
    what = f"`{constraint.name}`"
    if constraint.basis is not None or callable(constraint.of):
        raise ValueError(
            f"{what} bounds the density of a feature, but this world is a table: give weights of "
            "states, or none, as `of` and leave `basis` out."
        )
    if constraint.of is None:
        rows = scipy.sparse.csr_array(scipy.sparse.eye_array(num_states))
        labels = [f"{constraint.name} of {name}" for name in state_names]
    else:
        weights = np.atleast_2d(np.asarray(constraint.of, float))
        if weights.shape[1] != num_states:
            raise ValueError(
                f"{what}: `of` must weigh each of the {num_states} states; its rows have "
                f"{weights.shape[1]} entries."
            )
        _refuse_nonfinite(weights.ravel(), f"{what}: the weights `of`")
        rows = scipy.sparse.csr_array(weights)
        labels = [f"{constraint.name} {row}" for row in range(len(weights))]
    count = len(labels)
    lower = _values(constraint.lower, count, f"{what}: lower")
    upper = _values(constraint.upper, count, f"{what}: upper")
    if constraint.of is None:
        for side, values in (("lower", lower), ("upper", upper)):
            if (values < 0).any():
                at = int(np.argmax(values < 0))
                raise ValueError(
                    f"{what}: a density is never negative, but the {side} bound of "
                    f"{labels[at]} is {values[at]:g}. Use 0 for no lower bound."
                )
        # A density cannot be below zero, so such a lower bound says nothing.
        lower = np.where(lower == 0, -np.inf, lower)
    if (lower > upper).any():
        at = int(np.argmax(lower > upper))
        raise ValueError(
            f"{what}: no density keeps both bounds of {labels[at]}: lower {lower[at]:g} is above "
            f"upper {upper[at]:g}. Exchange them or relax one."
        )
    keep = np.isfinite(lower) | np.isfinite(upper)
    if constraint.states is not None:
        chosen = np.zeros(count, bool)
        for state in constraint.states:
            if not 0 <= state < count:
                raise ValueError(
                    f"{what}: `states` names {state}; the states run from 0 to {count - 1}."
                )
            chosen[state] = True
        keep &= chosen
    return Bounds(
        scipy.sparse.csr_array(rows[keep]),
        lower[keep],
        upper[keep],
        tuple(label for label, kept in zip(labels, keep, strict=True) if kept),
    )


def _bind_cost(constraint: Cost, num_states: int) -> Bounds:
    what = f"`{constraint.name}`"
    cost = _values(constraint.cost, num_states, f"{what}: cost")
    _refuse_nonfinite(cost, f"{what}: the cost")
    if np.isnan(constraint.limit):
        raise ValueError(f"{what}: the limit must be a number; it is NaN.")
    return Bounds(
        scipy.sparse.csr_array(cost[None]),
        np.array([-np.inf]),
        np.array([float(constraint.limit)]),
        (constraint.name,),
    )


def _values(bound: Bound, count: int, what: str) -> Float[Array, " n"]:
    if callable(bound):
        values = np.array([float(bound(index)) for index in range(count)])
    else:
        values = np.asarray(cast(ArrayLike, bound), float)
        if values.ndim == 0:
            values = np.full(count, float(values))
    if values.shape != (count,):
        raise ValueError(
            f"{what} must be one number, or {count} numbers, one per state; it has shape "
            f"{values.shape}."
        )
    if np.isnan(values).any():
        raise ValueError(
            f"{what} must be numbers; entry {int(np.argmax(np.isnan(values)))} is NaN. "
            "Use 0 for no lower bound and infinity for no upper bound."
        )
    return values


def _refuse_nonfinite(values: Array, what: str) -> None:
    if not np.isfinite(values).all():
        at = int(np.argmax(~np.isfinite(values)))
        raise ValueError(f"{what} must be finite; entry {at} is {values[at]}.")


def density_to_costs(constraint: Density, num_states: int) -> list[Cost]:
    """Return one expected-cost limit per bound: exactly the same promise in cost language.

    An upper bound at `s` is the cost `1[s]` with limit `upper(s)`; a lower bound the cost `-1[s]`
    with limit `-lower(s)`. Methods that keep one cost critic per limit pay for each of them.

    >>> [(c.cost.tolist(), c.limit) for c in density_to_costs(Density(upper=[0.2, np.inf]), 2)]
    [([1.0, 0.0], 0.2)]
    """
    bounds = bind([constraint], num_states)
    costs: list[Cost] = []
    for row in range(len(bounds)):
        weights = bounds.basis[[row]].toarray()[0]
        if np.isfinite(bounds.upper[row]):
            costs.append(Cost(weights, float(bounds.upper[row]), f"{bounds.names[row]}, upper"))
        if np.isfinite(bounds.lower[row]):
            costs.append(Cost(-weights, -float(bounds.lower[row]), f"{bounds.names[row]}, lower"))
    return costs


def density_to_one_cost(constraint: Density, num_states: int, weights: ArrayLike = 1.0) -> Cost:
    """Return a single cost limit that the density bounds imply, for methods that take only one.

    It adds up the limits of `density_to_costs` with non-negative `weights`. Every policy that
    keeps the bounds keeps this limit, but not the other way round: too much time in one state can
    be paid for by too little in another.

    >>> one = density_to_one_cost(Density(upper=[0.2, 0.3]), 2)
    >>> one.cost.tolist(), one.limit
    ([1.0, 1.0], 0.5)
    """
    costs = density_to_costs(constraint, num_states)
    if not costs:
        raise ValueError(f"`{constraint.name}` bounds nothing, so there is no cost to make of it.")
    weight = np.broadcast_to(np.asarray(weights, float), (len(costs),))
    if not ((weight >= 0) & np.isfinite(weight)).all():
        raise ValueError("the weights of the added-up limits must be finite and not negative.")
    total = np.sum([w * np.asarray(c.cost) for w, c in zip(weight, costs, strict=True)], axis=0)
    limit = float(np.sum([w * c.limit for w, c in zip(weight, costs, strict=True)]))
    return Cost(total, limit, f"{constraint.name}, added up")


def costs_to_density(costs: Sequence[Cost], num_states: int) -> Density:
    """Return expected-cost limits as bounds on weighted densities (Remark 3), nothing lost.

    >>> density = costs_to_density([Cost([1.0, 2.0], limit=3.0)], num_states=2)
    >>> density.of.tolist(), density.upper.tolist()
    ([[1.0, 2.0]], [3.0])
    """
    bounds = bind(costs, num_states)
    return Density(
        lower=np.full(len(bounds), -np.inf),
        upper=bounds.upper,
        of=bounds.basis.toarray(),
        name="cost",
    )
