"""Scattered support points: linear interpolation on simplices, or the nearest point's cell."""

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.spatial import Delaunay, QhullError  # pyright: ignore[reportAttributeAccessIssue]

from dcrl.density.bases import (
    BoundFunction,
    check_limits,
    check_points,
    fine_grid,
    integrate,
    transpose,
    within,
)


@dataclass(frozen=True)
class Simplices:
    """Linear interpolation between scattered points, on their Delaunay triangulation.

    Args:
        points: the support points, one tuple each; intervals between neighbours in one dimension.
    """

    points: tuple[tuple[float, ...], ...]

    def __post_init__(self):
        check_points(self.points)
        nodes = self.nodes
        if len(nodes) <= nodes.shape[1]:
            raise ValueError(
                f"interpolation in {nodes.shape[1]} dimensions needs at least "
                f"{nodes.shape[1] + 1} support points; got {len(nodes)}."
            )
        _ = self._cells

    @property
    def nodes(self) -> Float[Array, "m k"]:
        """Return the support points."""
        return np.array(self.points, float)

    @cached_property
    def _cells(self) -> tuple[Array, Array, Array]:
        """Return the corners of each simplex, and the map to barycentric coordinates."""
        nodes = self.nodes
        dimension = nodes.shape[1]
        if dimension == 1:
            order = np.argsort(nodes[:, 0])
            corners = np.stack([order[:-1], order[1:]], 1)
        else:
            try:
                corners = Delaunay(nodes).simplices
            except QhullError as error:
                raise ValueError(
                    "the support points lie on one line or plane; spread them out."
                ) from error
        edges = nodes[corners[:, :-1]] - nodes[corners[:, -1:]]  # (cells, k, k)
        sizes = np.abs(np.linalg.det(edges))
        corners, edges = corners[sizes > 0], edges[sizes > 0]
        if len(corners) == 0:
            raise ValueError("the support points coincide; give different ones.")
        return corners, np.linalg.inv(edges), nodes[corners[:, -1]]

    @property
    def volume(self) -> Float[Array, " m"]:
        """Return the integrals: each simplex is shared out evenly among its corners."""
        corners, inverse, _ = self._cells
        dimension = inverse.shape[1]
        size = 1 / np.abs(np.linalg.det(inverse)) / np.prod(np.arange(1, dimension + 1))
        shared = np.repeat(size / (dimension + 1), dimension + 1)
        return np.bincount(corners.ravel(), shared, len(self.points))

    def _place(self, x: JaxArray) -> tuple[JaxArray, JaxArray, JaxArray]:
        """Return the corners of the simplex around `x`, its shares, and whether there is one."""
        corners, inverse, last = (jnp.asarray(array) for array in self._cells)
        first = jnp.einsum("ck,ckj->cj", x[None, :] - last.astype(x.dtype), inverse.astype(x.dtype))
        shares = jnp.concatenate([first, 1 - first.sum(1, keepdims=True)], 1)
        best = jnp.argmax(shares.min(1))
        return corners[best], shares[best], shares[best].min() >= -1e-6

    @property
    def peak(self) -> Float[Array, " m"]:
        """Return one for each."""
        return np.ones(len(self.points))

    def evaluate(
        self, coefficients: Float[JaxArray, " m"], x: Float[JaxArray, " k"]
    ) -> Float[JaxArray, ""]:
        """Interpolate between the corners of the simplex around `x`."""
        corners, shares, inside = self._place(x)
        return jnp.where(inside, jnp.sum(coefficients[corners] * shares), 0.0)

    def project(
        self, x: Float[JaxArray, "n k"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Share each point out among the corners of its simplex."""
        return transpose(self.evaluate, len(self.points), x, weights)

    def integrate(self, bound: BoundFunction) -> Float[Array, " m"]:
        """Integrate on a fine grid around the points."""
        nodes = self.nodes
        where, weights = fine_grid(nodes.min(0), nodes.max(0))
        return integrate(self.project, bound, where, weights)

    def covers(self, x: Float[JaxArray, " k"]) -> Bool[JaxArray, ""]:
        """Say whether a point lies in the convex hull of the support points."""
        return self._place(x)[2]


@dataclass(frozen=True)
class Nearest:
    """Piecewise constant: every point belongs to the nearest of scattered support points.

    Args:
        points: the support points, one tuple each.
        low: limits of the feature, per dimension, outside of which nothing is said.
        high: see `low`.
    """

    points: tuple[tuple[float, ...], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self):
        check_points(self.points)
        check_limits(self.nodes, self.low, self.high)

    @property
    def nodes(self) -> Float[Array, "m k"]:
        """Return the support points."""
        return np.array(self.points, float)

    @property
    def volume(self) -> Float[Array, " m"]:
        """Return the sizes of the cells, from a fine grid."""
        return self._volume

    @cached_property
    def _volume(self) -> Float[Array, " m"]:
        return self.integrate(lambda x: np.ones(len(x)))

    @property
    def peak(self) -> Float[Array, " m"]:
        """Return one for each."""
        return np.ones(len(self.points))

    def evaluate(
        self, coefficients: Float[JaxArray, " m"], x: Float[JaxArray, " k"]
    ) -> Float[JaxArray, ""]:
        """Return the coefficient of the nearest support point."""
        distance = jnp.sum((x[None, :] - jnp.asarray(self.nodes, x.dtype)) ** 2, 1)
        return jnp.where(self.covers(x), coefficients[jnp.argmin(distance)], 0.0)

    def project(
        self, x: Float[JaxArray, "n k"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Return the weight in each cell."""
        return transpose(self.evaluate, len(self.points), x, weights)

    def integrate(self, bound: BoundFunction) -> Float[Array, " m"]:
        """Integrate on a fine grid between the limits."""
        where, weights = fine_grid(np.array(self.low), np.array(self.high))
        return integrate(self.project, bound, where, weights)

    def covers(self, x: Float[JaxArray, " k"]) -> Bool[JaxArray, ""]:
        """Say whether a point lies between the limits."""
        return within(self.low, self.high, x)
