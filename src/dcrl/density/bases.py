"""Declared bases: what is measured of a density in a feature space, and what is charged for it.

A basis is a list of functions `phi_j` on the feature space. It bounds `E sum_t gamma^t phi_j(x_t)`,
and charges `sum_j sigma_j phi_j(x)` for being at `x`. Both come from one definition, `evaluate`:
the estimate is its transpose (`project`), so that what is charged for is what is measured.

`Hat` is the default. Its multipliers are interpolated linearly between grid points, as in the
paper, and the exact counterpart of that is linear binning: no bias at the boundary, and bounds that
do not move with the policy.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from numpy.typing import ArrayLike

FINE = {1: 4000, 2: 400, 3: 80}  # points per dimension where cells have no regular shape

BoundFunction = Callable[[Float[Array, "q k"]], Float[Array, " q"]]
"""A density bound as a function of the feature, of many points at once."""


@runtime_checkable
class Basis(Protocol):
    """Functions on a feature space of one to three dimensions."""

    @property
    def nodes(self) -> Float[Array, "m k"]:
        """Where each function sits."""
        ...

    @property
    def volume(self) -> Float[Array, " m"]:
        """What a density of one measures: the integral of each function."""
        ...

    @property
    def peak(self) -> Float[Array, " m"]:
        """The greatest value of each function; none is ever negative."""
        ...

    def evaluate(
        self, coefficients: Float[JaxArray, " m"], x: Float[JaxArray, " k"]
    ) -> Float[JaxArray, ""]:
        """Return `sum_j coefficients_j phi_j(x)`; zero outside."""
        ...

    def project(
        self, x: Float[JaxArray, "n k"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Return `sum_i weights_i phi_j(x_i)`."""
        ...

    def integrate(self, bound: BoundFunction) -> Float[Array, " m"]:
        """Return the integral of `phi_j` times a density bound; infinite where the bound is."""
        ...

    def covers(self, x: Float[JaxArray, " k"]) -> Bool[JaxArray, ""]:
        """Say whether the basis says anything about a point."""
        ...


def transpose(
    evaluate: Callable[[JaxArray, JaxArray], JaxArray],
    size: int,
    x: Float[JaxArray, "n k"],
    weights: Float[JaxArray, " n"],
) -> Float[JaxArray, " m"]:
    """Return the estimate that belongs to a way of charging: its transpose, by construction."""
    _, pull = jax.vjp(
        lambda coefficients: jax.vmap(evaluate, (None, 0))(coefficients, x),
        jnp.zeros(size, weights.dtype),
    )
    return pull(weights)[0]


def within(
    low: Sequence[float], high: Sequence[float], x: Float[JaxArray, " k"]
) -> Bool[JaxArray, ""]:
    """Say whether a point lies between limits."""
    return jnp.all((x >= jnp.asarray(low, x.dtype)) & (x <= jnp.asarray(high, x.dtype)))


def check_points(points: Sequence[tuple[float, ...]]) -> None:
    """Refuse support points that are not finite or of mixed dimensions."""
    nodes = np.array(points, float)
    if nodes.ndim != 2 or not 1 <= nodes.shape[1] <= 3 or not np.isfinite(nodes).all():
        raise ValueError(
            "points must be finite and all of the same 1 to 3 dimensions; they have shape "
            f"{nodes.shape}."
        )


def check_limits(
    points: Float[Array, "m k"], low: Sequence[float] | None, high: Sequence[float] | None
) -> None:
    """Refuse support points beyond the limits of the feature."""
    for limits, beyond in ((low, np.less), (high, np.greater)):
        if limits is not None and (outside := beyond(points, np.array(limits)).any(axis=1)).any():
            at = int(np.argmax(outside))
            raise ValueError(
                f"support point {at}, {points[at].tolist()}, lies outside the limits {low} to "
                f"{high} of the feature; move it or widen them."
            )


def fine_grid(low: ArrayLike, high: ArrayLike) -> tuple[Array, Array]:
    """Return the middles of many small cells, and their size."""
    low, high = np.asarray(low, float), np.asarray(high, float)
    count = FINE[len(low)]
    axes = [a + (np.arange(count) + 0.5) * (b - a) / count for a, b in zip(low, high, strict=True)]
    where = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(low))
    return where, np.full(len(where), np.prod((high - low) / count))


def bound_at(bound: BoundFunction, where: Float[Array, "q k"]) -> Float[Array, " q"]:
    """Return a bound at some points, after checking that it gives numbers there."""
    values = np.asarray(bound(where), float)
    if values.shape != (len(where),):
        raise ValueError(
            "a bound must give one number per point: for points of shape "
            f"{where.shape} it gave shape {values.shape}."
        )
    if np.isnan(values).any():
        at = where[int(np.argmax(np.isnan(values)))].tolist()
        raise ValueError(f"a bound must be a number everywhere; at {at} it is NaN.")
    return values


def integrate(
    project: Callable[[JaxArray, JaxArray], JaxArray],
    bound: BoundFunction,
    where: Float[Array, "q k"],
    weights: Float[Array, " q"],
) -> Float[Array, " m"]:
    """Return the integrals of a bound by quadrature, infinite where the bound is anywhere."""
    values = bound_at(bound, where)
    with jax.enable_x64(True):

        def total(of: Array) -> Array:
            return np.asarray(project(jnp.asarray(where), jnp.asarray(weights * of)))

        finite = total(np.where(np.isfinite(values), values, 0.0))
        above, below = (total((values == limit).astype(float)) for limit in (np.inf, -np.inf))
    return np.where(above > 0, np.inf, np.where(below > 0, -np.inf, finite))
