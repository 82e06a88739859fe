"""Regions: the expected discounted time in each, as a basis of indicators."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from dcrl.density.bases import BoundFunction, transpose


@dataclass(frozen=True)
class Rectangle:
    """A box-shaped region."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def contains(self, x: JaxArray) -> JaxArray:
        """Say whether the last axis of `x` is a point inside."""
        return jnp.all((x >= jnp.asarray(self.low)) & (x <= jnp.asarray(self.high)), axis=-1)

    @property
    def center(self) -> tuple[float, ...]:
        """Return the middle."""
        return tuple((a + b) / 2 for a, b in zip(self.low, self.high, strict=True))

    @property
    def volume(self) -> float:
        """Return the length, area or volume."""
        return float(np.prod(np.subtract(self.high, self.low)))


@dataclass(frozen=True)
class Ball:
    """An interval, a disc or a ball."""

    center: tuple[float, ...]
    radius: float

    def contains(self, x: JaxArray) -> JaxArray:
        """Say whether the last axis of `x` is a point inside."""
        return jnp.sum((x - jnp.asarray(self.center)) ** 2, axis=-1) <= self.radius**2

    @property
    def volume(self) -> float:
        """Return the length, area or volume."""
        return (2.0, np.pi, 4 * np.pi / 3)[len(self.center) - 1] * self.radius ** len(self.center)


Region = Rectangle | Ball


@dataclass(frozen=True)
class Regions:
    """Indicators of regions: what is bounded is the expected discounted time in each.

    Bounds of regions are therefore given per region as a time, not as a density.

    Args:
        regions: rectangles and balls; they may overlap.

    >>> disc = Regions((Ball((0.0, 0.0), 1.0),))
    >>> disc.project(jnp.array([[0.5, 0.5], [1.0, 1.0]]), jnp.array([0.9, 0.8])).round(6).tolist()
    [0.8999999761581421]
    """

    regions: tuple[Region, ...]

    def __post_init__(self):
        if not self.regions or len({len(region.center) for region in self.regions}) != 1:
            raise ValueError("regions must be at least one, all of the same dimension.")

    @property
    def nodes(self) -> Float[Array, "m k"]:
        """Return the centres."""
        return np.array([region.center for region in self.regions], float)

    @property
    def volume(self) -> Float[Array, " m"]:
        """Return one for each: regions are measured by time, not by density."""
        return np.ones(len(self.regions))

    @property
    def peak(self) -> Float[Array, " m"]:
        """Return one for each."""
        return np.ones(len(self.regions))

    def evaluate(
        self, coefficients: Float[JaxArray, " m"], x: Float[JaxArray, " k"]
    ) -> Float[JaxArray, ""]:
        """Add up the coefficients of the regions that contain `x`."""
        inside = jnp.stack([region.contains(x) for region in self.regions])
        return jnp.sum(jnp.where(inside, coefficients, 0.0))

    def project(
        self, x: Float[JaxArray, "n k"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Return the time spent in each region."""
        return transpose(self.evaluate, len(self.regions), x, weights)

    def integrate(self, bound: BoundFunction) -> Float[Array, " m"]:
        """Regions take times."""
        del bound
        raise ValueError(
            "a region is bounded by the time spent in it: give one number per region instead of a "
            "function of the feature."
        )

    def covers(self, x: Float[JaxArray, " k"]) -> Bool[JaxArray, ""]:
        """Say yes: what lies outside of all regions is free, on purpose."""
        del x
        return jnp.ones((), bool)
