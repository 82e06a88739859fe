"""Hat functions on a regular grid: linear interpolation, and linear binning as its transpose."""

import itertools
from dataclasses import dataclass
from functools import reduce

import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from dcrl.density.bases import BoundFunction, integrate, transpose, within

GAUSS = 6  # quadrature points per cell and dimension


@dataclass(frozen=True)
class Hat:
    """Piecewise linear functions on a regular grid: one at its grid point, zero at all others.

    Args:
        low: the least feature, per dimension.
        high: the greatest.
        counts: grid points per dimension, both ends included.

    >>> Hat((0.0,), (1.0,), (3,)).project(jnp.array([[0.25]]), jnp.ones(1)).tolist()
    [0.5, 0.5, 0.0]
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self):
        if not len(self.low) == len(self.high) == len(self.counts) or not 1 <= len(self.low) <= 3:
            raise ValueError(
                "a grid needs low, high and counts of the same 1 to 3 dimensions; got "
                f"{self.low}, {self.high} and {self.counts}."
            )
        if not all(np.less(self.low, self.high)) or min(self.counts) < 2:
            raise ValueError(
                f"a grid needs low < high and at least 2 points along each dimension; got "
                f"{self.low}, {self.high} and {self.counts}."
            )

    @property
    def spacing(self) -> Float[Array, " k"]:
        """Return the distance between grid points."""
        return (np.array(self.high) - np.array(self.low)) / (np.array(self.counts) - 1)

    @property
    def axes(self) -> tuple[Float[Array, " c"], ...]:
        """Return the grid points along each dimension."""
        return tuple(map(np.linspace, self.low, self.high, self.counts))

    @property
    def nodes(self) -> Float[Array, "m k"]:
        """Return the grid points."""
        return np.stack(np.meshgrid(*self.axes, indexing="ij"), -1).reshape(-1, len(self.low))

    @property
    def volume(self) -> Float[Array, " m"]:
        """Return the integrals: half as much at each end."""
        sides = []
        for count, width in zip(self.counts, self.spacing, strict=True):
            side = np.full(count, width)
            side[[0, -1]] /= 2
            sides.append(side)
        return reduce(np.multiply.outer, sides).ravel()

    @property
    def peak(self) -> Float[Array, " m"]:
        """Return one for each."""
        return np.ones(int(np.prod(self.counts)))

    def evaluate(
        self, coefficients: Float[JaxArray, " m"], x: Float[JaxArray, " k"]
    ) -> Float[JaxArray, ""]:
        """Interpolate linearly."""
        counts = np.array(self.counts)
        place = (x - jnp.asarray(self.low, x.dtype)) / jnp.asarray(self.spacing, x.dtype)
        corner = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, jnp.asarray(counts - 2, jnp.int32))
        share = place - corner
        strides = jnp.asarray(np.append(np.cumprod(counts[:0:-1])[::-1], 1), jnp.int32)
        flat = jnp.sum(corner * strides)
        total = jnp.zeros((), coefficients.dtype)
        for side in itertools.product((0, 1), repeat=len(counts)):
            weight = jnp.ones((), x.dtype)
            offset = jnp.zeros((), jnp.int32)
            for axis, upper in enumerate(side):
                weight = weight * (share[axis] if upper else 1 - share[axis])
                offset = offset + upper * strides[axis]
            total = total + weight * coefficients[flat + offset]
        return jnp.where(self.covers(x), total, 0.0)

    def project(
        self, x: Float[JaxArray, "n k"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Share each point out among the corners of its cell."""
        return transpose(self.evaluate, len(self.volume), x, weights)

    def integrate(self, bound: BoundFunction) -> Float[Array, " m"]:
        """Integrate cell by cell with Gauss points."""
        points, weights = [], []
        for axis, width in zip(self.axes, self.spacing, strict=True):
            at, weight = np.polynomial.legendre.leggauss(GAUSS)
            points.append((axis[:-1, None] + (at + 1) / 2 * width).ravel())
            weights.append(np.tile(weight / 2 * width, len(axis) - 1))
        where = np.stack(np.meshgrid(*points, indexing="ij"), -1).reshape(-1, len(self.low))
        return integrate(self.project, bound, where, reduce(np.multiply.outer, weights).ravel())

    def covers(self, x: Float[JaxArray, " k"]) -> Bool[JaxArray, ""]:
        """Say whether a point lies on the grid."""
        return within(self.low, self.high, x)
