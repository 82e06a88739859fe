"""Kernels around nodes: the paper's estimate at these points, as a basis; and its mixed form."""

from dataclasses import dataclass
from functools import cached_property, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from dcrl.density.bases import (
    BoundFunction,
    bound_at,
    check_limits,
    check_points,
    transpose,
)
from dcrl.density.hat import Hat
from dcrl.density.kernels import KERNELS
from dcrl.presets import choose


@dataclass(frozen=True)
class Kernels:
    """Kernels around nodes: the paper's estimate there, and the penalty that belongs to it.

    With limits, kernels are mirrored there, so that a node at the boundary counts in full.

    Args:
        points: the nodes, one tuple each.
        bandwidth: of all kernels; fixed, so that the bound does not move with the policy.
        kernel: gaussian, spherical or epanechnikov.
        low: limits of the feature, per dimension; none by default.
        high: see `low`.
    """

    points: tuple[tuple[float, ...], ...]
    bandwidth: float
    kernel: str = "epanechnikov"
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None

    def __post_init__(self):
        choose("kernel", self.kernel, KERNELS)
        check_points(self.points)
        check_limits(self.nodes, self.low, self.high)
        if not (np.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(f"the bandwidth must be positive; it is {self.bandwidth}.")

    @property
    def nodes(self) -> Float[Array, "m k"]:
        """Return the nodes."""
        return np.array(self.points, float)

    @property
    def volume(self) -> Float[Array, " m"]:
        """Return one for each: a kernel has unit mass, and mirrors what would leave the limits."""
        return np.ones(len(self.points))

    @cached_property
    def _images(self) -> tuple[Float[Array, "m k"], ...]:
        """Return the nodes, and their mirror images in the same order."""
        images = [self.nodes]
        for axis in range(images[0].shape[1]):
            here = list(images)
            for limits in (self.low, self.high):
                if limits is not None and np.isfinite(limits[axis]):
                    for nodes in here:
                        mirrored = nodes.copy()
                        mirrored[:, axis] = 2 * limits[axis] - mirrored[:, axis]
                        images.append(mirrored)
        return tuple(images)

    @property
    def peak(self) -> Float[Array, " m"]:
        """Return a limit of each kernel with its mirror images."""
        nodes = self.nodes
        scale = KERNELS[self.kernel].scale[nodes.shape[1] - 1]
        return np.full(len(nodes), len(self._images) * scale / self.bandwidth ** nodes.shape[1])

    def _squares(self, x: Float[JaxArray, " k"]) -> list[Float[JaxArray, " m"]]:
        """Return squared distances to the nodes and to each of their images, in bandwidths."""
        inverse = 1 / self.bandwidth
        squares: list[JaxArray] = []
        for nodes in self._images:
            square = jnp.zeros(len(nodes), x.dtype)
            for axis in range(nodes.shape[1]):
                place = jnp.asarray(nodes[:, axis] * inverse, x.dtype)
                square = square + (x[axis] * inverse - place) ** 2
            squares.append(square)
        return squares

    def evaluate(
        self, coefficients: Float[JaxArray, " m"], x: Float[JaxArray, " k"]
    ) -> Float[JaxArray, ""]:
        """Add up kernels."""
        shape = KERNELS[self.kernel]
        scale = shape.scale[len(x) - 1] / self.bandwidth ** len(x)
        kernels = reduce(jnp.add, map(shape.profile, self._squares(x)))
        return scale * jnp.sum(coefficients * kernels)

    def project(
        self, x: Float[JaxArray, "n k"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Return the kernel estimate at the nodes."""
        return transpose(self.evaluate, len(self.points), x, weights)

    def integrate(self, bound: BoundFunction) -> Float[Array, " m"]:
        """Return the bound as the kernels blur it."""
        nodes, shape = self.nodes, KERNELS[self.kernel]
        dimension = nodes.shape[1]
        at, weight = np.polynomial.legendre.leggauss(40)
        reach = min(shape.support, 6.0)
        offsets = np.stack(np.meshgrid(*[at * reach] * dimension, indexing="ij"), -1)
        offsets = offsets.reshape(-1, dimension)
        with jax.enable_x64(True):
            profile = np.asarray(shape.profile(jnp.asarray((offsets**2).sum(1))))
        weights = reduce(np.multiply.outer, [weight * reach] * dimension).ravel() * profile
        weights = weights / weights.sum()
        used = weights > 0
        values = np.array([bound_at(bound, self._folded(node, offsets[used])) for node in nodes])
        infinite = np.isinf(values).any(axis=1)
        finite = np.where(np.isfinite(values), values, 0.0) @ weights[used]
        return np.where(infinite, values.max(axis=1) if len(values) else 0.0, finite)

    def _folded(self, node: Array, offsets: Array) -> Array:
        """Return the points of a kernel, those beyond a limit mirrored back."""
        x = node + self.bandwidth * offsets
        if self.low is not None:
            x = np.where(x < np.array(self.low), 2 * np.array(self.low) - x, x)
        if self.high is not None:
            x = np.where(x > np.array(self.high), 2 * np.array(self.high) - x, x)
        return x

    def covers(self, x: Float[JaxArray, " k"]) -> Bool[JaxArray, ""]:
        """Say whether a point lies within reach of a kernel."""
        reach = min(KERNELS[self.kernel].support, 3.0)
        nearest = reduce(jnp.minimum, map(jnp.min, self._squares(x)))
        return nearest <= reach**2


@dataclass(frozen=True)
class PaperMixed:
    """The paper's form: a kernel estimate at nodes, but a penalty interpolated between them.

    What is charged for is not what is measured, so a fixed point of the algorithm need not satisfy
    the optimality conditions of any problem (docs/densities.md shows how far off it is). It is here
    to be compared with.

    Args:
        estimate: kernels at the grid points of the penalty.
        penalty: the grid on which multipliers are interpolated.
    """

    estimate: Kernels
    penalty: Hat

    def __post_init__(self):
        if self.estimate.nodes.shape != self.penalty.nodes.shape or not np.allclose(
            self.estimate.nodes, self.penalty.nodes
        ):
            raise ValueError("the kernels must sit at the grid points of the penalty.")

    @property
    def nodes(self) -> Float[Array, "m k"]:
        """Return the grid points."""
        return self.penalty.nodes

    @property
    def volume(self) -> Float[Array, " m"]:
        """Return one for each: the estimate is a density."""
        return self.estimate.volume

    @property
    def peak(self) -> Float[Array, " m"]:
        """Return that of the kernels."""
        return self.estimate.peak

    def evaluate(
        self, coefficients: Float[JaxArray, " m"], x: Float[JaxArray, " k"]
    ) -> Float[JaxArray, ""]:
        """Interpolate linearly."""
        return self.penalty.evaluate(coefficients, x)

    def project(
        self, x: Float[JaxArray, "n k"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Return the kernel estimate at the grid points."""
        return self.estimate.project(x, weights)

    def integrate(self, bound: BoundFunction) -> Float[Array, " m"]:
        """Return the bound at the grid points, unblurred, as in the paper."""
        return bound_at(bound, self.nodes)

    def covers(self, x: Float[JaxArray, " k"]) -> Bool[JaxArray, ""]:
        """Say whether a point lies on the grid."""
        return self.penalty.covers(x)
