"""The paper's three kernels, each of unit mass in one, two or three dimensions.

`K_h(d) = K(|d| / h) / h^k`, where the bandwidth `h` is the standard deviation of the Gaussian, and
the radius beyond which the other two are zero. scikit-learn means the same; KDEpy's Epanechnikov
of bandwidth `b` is ours of bandwidth `b sqrt(5)`, in any dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import jax.numpy as jnp
from jax import Array as JaxArray


@dataclass(frozen=True)
class KernelShape:
    """A radial profile of unit mass: `scale[k - 1] * profile(r^2)`, zero beyond its support."""

    profile: Callable[[JaxArray], JaxArray]  # of the squared distance in bandwidths
    scale: tuple[float, float, float]  # in 1, 2 and 3 dimensions
    support: float  # in bandwidths; where the Gaussian is below 1e-17 of its peak


def _gaussian(square: JaxArray) -> JaxArray:
    return jnp.exp(-0.5 * square)


def _epanechnikov(square: JaxArray) -> JaxArray:
    return jnp.maximum(1.0 - square, 0.0)


def _spherical(square: JaxArray) -> JaxArray:
    # A square root has no slope at zero, so it is never taken there.
    radius = jnp.sqrt(jnp.where(square > 0, jnp.minimum(square, 1.0), 1.0))
    return jnp.where(square > 0, 1.0 - 1.5 * radius + 0.5 * radius**3, 1.0)


KERNELS = {
    "gaussian": KernelShape(_gaussian, ((2 * pi) ** -0.5, (2 * pi) ** -1, (2 * pi) ** -1.5), 9.0),
    "spherical": KernelShape(_spherical, (4 / 3, 5 / pi, 6 / pi), 1.0),
    "epanechnikov": KernelShape(_epanechnikov, (3 / 4, 2 / pi, 15 / (8 * pi)), 1.0),
}
