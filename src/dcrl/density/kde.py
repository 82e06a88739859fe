"""Weighted kernel densities in one, two or three dimensions: exact at any point, fast on a grid.

    rho(x) = sum_i w_i K_h(x - s_i),    with w_i = gamma^t / N the paper's estimate

Kernels spill over the boundary of a bounded feature, where the estimate then falls to half of the
density. With limits given, samples are mirrored there (reflection), so that no mass is lost.

Exact sums visit samples in boxes of neighbours. A box is passed over where its kernels are zero
or, for the Gaussian, where all that is passed over provably adds up to less than the tolerance.
"""

import concurrent.futures
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
import scipy.ndimage
import scipy.special
from jaxtyping import Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from dcrl.density.kernels import KERNELS
from dcrl.presets import choose

_fft: Any = scipy.fft  # annotated with what it dispatches on, not with what it returns

SAMPLE_BOX = 256  # neighbouring samples in a box
QUERY_BOX = 16  # and queries; so few that BLAS does not start threads of its own
PAIRS = 1 << 17  # kernels evaluated together: what the cache holds
VISITS = 1 << 20  # pairs of boxes looked at together
QUERY_BLOCK = 1 << 18  # queries sorted into boxes together
BIN_BLOCK = 1 << 15  # samples binned together
MOST_BINS = 1 << 25  # 256 MiB; a convolution holds a few arrays of this size
EDGE = 1e-9  # of a cell: points this far outside a grid are there by rounding
GAUSS = {2: 24, 3: 12}  # quadrature points per dimension where a compact kernel is cut by a box

PerDimension = float | Sequence[float] | Array
"""One number, or one for each dimension."""

Bandwidth = PerDimension | Callable[[Float[Array, "n k"], Float[Array, " n"]], Array]
"""One number, one per dimension, or a rule such as `scott`."""

Image = tuple[float, float]
"""A mirror image or a translation along one axis: `s` becomes `sign * s + shift`."""


def effective_size(weights: Float[Array, " n"]) -> float:
    """Return how many equal samples say as much as these: `(sum w)^2 / sum w^2`."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def spread(samples: Float[Array, "n k"], weights: Float[Array, " n"]) -> Float[Array, " k"]:
    """Return the weighted standard deviation along each dimension, unbiased for equal weights."""
    share = weights / weights.sum()
    mean = share @ samples
    bias = 1 - (share**2).sum()
    if bias <= 0:  # one sample has no spread
        return np.zeros(samples.shape[1])
    return np.sqrt(share @ (samples - mean) ** 2 / bias)


def scott(samples: Float[Array, "n k"], weights: Float[Array, " n"]) -> Float[Array, " k"]:
    """Return Scott's bandwidth, `std * n_eff^(-1 / (k + 4))`, per dimension."""
    return spread(samples, weights) * effective_size(weights) ** (-1 / (samples.shape[1] + 4))


def silverman(samples: Float[Array, "n k"], weights: Float[Array, " n"]) -> Float[Array, " k"]:
    """Return Silverman's bandwidth, `std * (n_eff (k + 2) / 4)^(-1 / (k + 4))`, per dimension."""
    size, dimension = effective_size(weights), samples.shape[1]
    return spread(samples, weights) * (size * (dimension + 2) / 4) ** (-1 / (dimension + 4))


def published(least: float) -> Callable[[Float[Array, "n k"], Float[Array, " n"]], Array]:
    """Return the rule of the published code, `max(least, std / 2)`.

    It follows the policy, so the constraint moves with it; a fixed bandwidth does not.
    """

    def rule(samples: Float[Array, "n k"], weights: Float[Array, " n"]) -> Float[Array, " k"]:
        return np.maximum(least, spread(samples, weights) / 2)

    return rule


@dataclass(frozen=True)
class KernelDensity:
    """A density made of kernels around weighted samples. Build it with `KernelDensity.fit`."""

    samples: Float[Array, "n k"]
    weights: Float[Array, " n"]
    bandwidth: Float[Array, " k"]
    kernel: str
    low: Float[Array, " k"]
    high: Float[Array, " k"]

    @classmethod
    def fit(
        cls,
        samples: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        kernel: str = "gaussian",
        bandwidth: Bandwidth = scott,
        low: PerDimension = -np.inf,
        high: PerDimension = np.inf,
    ) -> "KernelDensity":
        """Build the estimate.

        Args:
            samples: where states were, in the feature's space; shape `(n, k)`.
            weights: what each is worth; `1 / n` by default, so that the mass is one.
            kernel: gaussian, spherical or epanechnikov.
            bandwidth: one number, one per dimension, or a rule.
            low: limits of the feature, at which samples are mirrored as often as kernels reach
                back; none by default.
            high: see `low`.

        >>> kde = KernelDensity.fit(np.array([[0.0], [1.0]]), kernel="epanechnikov", bandwidth=0.5)
        >>> kde(np.array([[0.0], [0.25], [3.0]])).tolist()
        [0.75, 0.5625, 0.0]
        """
        choose("kernel", kernel, KERNELS)
        samples = np.asarray(samples, float)
        if samples.ndim != 2 or not 1 <= samples.shape[1] <= 3 or len(samples) == 0:
            raise ValueError(
                "samples must have shape (n, k) with at least one sample and k = 1, 2 or 3; they "
                f"have shape {samples.shape}."
            )
        least, most = _extent(samples)
        if not np.isfinite([least, most]).all():
            at = int(np.argwhere(~np.isfinite(samples))[0][0])
            raise ValueError(f"samples must be finite; sample {at} is {samples[at].tolist()}.")
        count, dimension = samples.shape
        weights = np.full(count, 1 / count) if weights is None else np.asarray(weights, float)
        if weights.shape != (count,) or not 0 <= weights.min() <= weights.max() < np.inf:
            raise ValueError(
                f"weights must be {count} finite numbers that are not negative, one per sample."
            )
        if not weights.sum() > 0:
            raise ValueError("the weights add up to zero, so there is no density to estimate.")
        width = bandwidth(samples, weights) if callable(bandwidth) else bandwidth
        width = _per_dimension("the bandwidth", width, dimension)
        if not (np.isfinite(width) & (width > 0)).all():
            raise ValueError(
                f"the bandwidth must be positive; it is {width.tolist()}. If a rule gave it, all "
                "samples agree in some dimension: give a number instead."
            )
        low = _per_dimension("low", low, dimension)
        high = _per_dimension("high", high, dimension)
        if not (low < high).all():
            raise ValueError(
                f"low must be below high; got {low.tolist()} and {high.tolist()} as limits."
            )
        if ((least < low) | (most > high)).any():
            raise ValueError(
                f"samples lie outside the limits {low.tolist()} to {high.tolist()} of the "
                "feature; widen them."
            )
        if (width > high - low).any():
            raise ValueError(
                f"the bandwidth {width.tolist()} is wider than the space between the limits "
                f"{low.tolist()} and {high.tolist()}, where the density would be flat; make it "
                "narrower."
            )
        return cls(samples, weights, width, kernel, low, high)

    @property
    def mass(self) -> float:
        """Return what the density integrates to: reflection loses nothing at the limits."""
        return float(self.weights.sum())

    def __call__(self, queries: ArrayLike, *, rtol: float = 1e-5) -> Float[Array, " m"]:
        """Return the density at each query; memory does not grow with queries times samples.

        Args:
            queries: points of shape `(m, k)`; the density is zero outside the limits.
            rtol: how far a Gaussian density may be off, relative to its true value, however small
                that is; 0 is exact to rounding, at about twice the cost. The other kernels always
                are.
        """
        points = _queries(queries, len(self.bandwidth))
        if not 0 <= rtol < 1:
            raise ValueError(f"rtol must lie in [0, 1); got {rtol}.")
        images = _combine(
            [
                [(sign, shift / h) for sign, shift in axis]
                for axis, h in zip(self._images, self.bandwidth, strict=True)
            ]
        )
        values = np.zeros(len(points))
        inside = np.flatnonzero(((points >= self.low) & (points <= self.high)).all(axis=1))
        for start in range(0, len(inside), QUERY_BLOCK):
            part = inside[start : start + QUERY_BLOCK]
            values[part] = _sums(
                self.kernel, self._boxes, images, points[part] / self.bandwidth, rtol
            )
        return values * self._peak

    def mass_within(self, low: PerDimension, high: PerDimension) -> float:
        """Return what the density integrates to in a box.

        Closed forms for the Gaussian and in one dimension. In two and three, compact kernels that
        the box cuts are integrated by Gauss-Legendre quadrature, each to 0.0003 of its weight or
        better; those wholly inside count exactly.

        >>> round(KernelDensity.fit(np.array([[0.0]]), bandwidth=1.0).mass_within(-1.96, 1.96), 3)
        0.95
        """
        dimension = len(self.bandwidth)
        low = np.maximum(_per_dimension("low", low, dimension), self.low)
        high = np.minimum(_per_dimension("high", high, dimension), self.high)
        if not (low < high).all():
            return 0.0
        support = KERNELS[self.kernel].support
        total = 0.0
        for start in range(0, len(self.samples), BIN_BLOCK):
            samples = self.samples[start : start + BIN_BLOCK]
            weights = self.weights[start : start + BIN_BLOCK]
            for sign, shift in zip(*_combine(self._images), strict=True):
                below = (low - (sign * samples + shift)) / self.bandwidth
                above = (high - (sign * samples + shift)) / self.bandwidth
                near = ((above > -support) & (below < support)).all(axis=1)
                total += weights[near] @ _inside(self.kernel, below[near], above[near])
        return float(total)

    def on_grid(
        self, low: PerDimension, high: PerDimension, counts: int | Sequence[int]
    ) -> "GridDensity":
        """Return the density on a regular grid, by linear binning and convolution.

        The time hardly depends on the number of queries, and only mildly on that of samples; the
        error falls with the square of the grid's spacing over the bandwidth. Where the kernel
        reaches so far beyond the grid that the bins would not fit into memory, the grid is
        evaluated exactly instead.

        Args:
            low: the first grid point, per dimension.
            high: the last.
            counts: grid points per dimension, both ends included.

        >>> samples = np.random.default_rng(0).normal(size=(1000, 1))
        >>> kde = KernelDensity.fit(samples)
        >>> grid = kde.on_grid(-5, 5, 1001)
        >>> bool(abs(grid(samples[:9]) - kde(samples[:9])).max() < 1e-4)
        True
        """
        dimension = len(self.bandwidth)
        count = _per_dimension("counts", counts, dimension).astype(int)
        first = _per_dimension("low", low, dimension)
        last = _per_dimension("high", high, dimension)
        finite = np.isfinite(first).all() and np.isfinite(last).all()
        if count.min() < 2 or not finite or not (first < last).all():
            raise ValueError(
                f"a grid needs finite low < high and at least 2 points along each of {dimension} "
                f"dimensions; got {first.tolist()}, {last.tolist()} and {count.tolist()}."
            )
        if np.prod(count, dtype=float) > MOST_BINS:
            raise ValueError(
                f"a grid of {count.tolist()} points has more than {MOST_BINS}; take fewer."
            )
        spacing = (last - first) / (count - 1)
        coarsest = self.bandwidth * (1.0 if self.kernel == "gaussian" else 0.5)
        if (spacing > coarsest * (1 + EDGE)).any():
            least = np.ceil((last - first) / coarsest).astype(int) + 1
            raise ValueError(
                f"the grid's spacing {spacing.tolist()} is too wide for the {self.kernel} kernel "
                f"of bandwidth {self.bandwidth.tolist()}; take at least {least.tolist()} points."
            )
        axes = [np.linspace(a, b, n) for a, b, n in zip(first, last, count, strict=True)]
        before, after = self._margins(first, last, spacing)
        lengths = self._lengths(spacing, count, before, after)
        if np.prod(lengths, dtype=float) > MOST_BINS:
            return GridDensity(self._exactly(axes), first, spacing)
        binned = _bin(
            self.samples,
            self.weights,
            self._images,
            first - before * spacing,
            spacing,
            count + before + after,
        )
        keep = [slice(b, b + n) for b, n in zip(before, count, strict=True)]
        values = np.maximum(self._convolve(binned, spacing, lengths, keep), 0.0)
        for axis, at in enumerate(axes):
            outside = np.maximum(self.low[axis] - at, at - self.high[axis]) > EDGE * spacing[axis]
            values[(slice(None),) * axis + (outside,)] = 0.0
        return GridDensity(values, first, spacing)

    @property
    def _peak(self) -> float:
        """Return the kernel's density at its centre."""
        return KERNELS[self.kernel].scale[len(self.bandwidth) - 1] / float(self.bandwidth.prod())

    @property
    def _images(self) -> list[list[Image]]:
        """Return along each axis the images of samples that reach back between the limits."""
        reach = self.bandwidth * KERNELS[self.kernel].support
        return [_images(*axis) for axis in zip(self.low, self.high, reach, strict=True)]

    @cached_property
    def _boxes(self) -> "_Boxes":
        heavy = self.weights > 0
        return _boxes(self.kernel, self.samples[heavy] / self.bandwidth, self.weights[heavy])

    def _margins(self, first: Array, last: Array, spacing: Array) -> tuple[Array, Array]:
        """Return how many more cells the bins need before and after the grid.

        Samples beyond the grid still reach into it, if there are any.
        """
        reach = np.ceil(self.bandwidth * KERNELS[self.kernel].support / spacing)
        least, most = _extent(self.samples)
        least = np.where(np.isfinite(self.low), -np.inf, least)
        most = np.where(np.isfinite(self.high), np.inf, most)
        before = np.clip(np.ceil((first - least) / spacing), 0, reach)
        after = np.clip(np.ceil((most - last) / spacing), 0, reach)
        return before.astype(int), after.astype(int)

    def _lengths(self, spacing: Array, count: Array, before: Array, after: Array) -> list[int]:
        """Return the periods of a convolution whose wrapping round touches no grid point."""
        furthest = count - 1 + np.maximum(before, after)  # from a bin to a grid point
        reach = np.ceil(self.bandwidth * KERNELS[self.kernel].support / spacing)
        needed = furthest + np.minimum(reach, furthest) + 1
        return [_fft.next_fast_len(int(length), real=True) for length in needed]

    def _convolve(
        self, binned: Array, spacing: Array, lengths: list[int], keep: list[slice]
    ) -> Array:
        """Return the bins under the kernel, without their margins."""
        cores = os.cpu_count() or 1
        squares = [
            (np.minimum(np.arange(n), n - np.arange(n)) * step) ** 2
            for n, step in zip(lengths, spacing / self.bandwidth, strict=True)
        ]
        if self.kernel != "gaussian":
            stencil = _profile(self.kernel, functools.reduce(np.add.outer, squares))
            stencil = _fft.rfftn(stencil, workers=cores)
            transform = _fft.rfftn(binned, lengths, workers=cores)
            transform *= stencil
            values = _fft.irfftn(transform, lengths, workers=cores, overwrite_x=True)
            return values[tuple(keep)] * self._peak
        # The Gaussian is a product over dimensions: one axis after the other.
        for axis, (length, square) in enumerate(zip(lengths, squares, strict=True)):
            stencil = _fft.rfft(_profile(self.kernel, square)).real
            transform = _fft.rfft(binned, length, axis, workers=cores)
            transform *= np.expand_dims(stencil, [a for a in range(binned.ndim) if a != axis])
            binned = _fft.irfft(transform, length, axis, workers=cores, overwrite_x=True)
            binned = binned[(slice(None),) * axis + (keep[axis],)]
        return binned * self._peak

    def _exactly(self, axes: list[Array]) -> Array:
        """Return the density at grid points, a block at a time."""
        shape = [len(axis) for axis in axes]
        values = np.empty(int(np.prod(shape)))
        for start in range(0, len(values), QUERY_BLOCK):
            block = slice(start, min(start + QUERY_BLOCK, len(values)))
            at = np.unravel_index(np.arange(block.start, block.stop), shape)
            points = [axis[index] for axis, index in zip(axes, at, strict=True)]
            values[block] = self(np.stack(points, axis=1))
        return values.reshape(shape)


@dataclass(frozen=True)
class GridDensity:
    """Values on a regular grid; between its points they are interpolated linearly."""

    values: Array
    low: Float[Array, " k"]
    spacing: Float[Array, " k"]

    def __call__(self, queries: ArrayLike) -> Float[Array, " m"]:
        """Return the density at each query; zero outside the grid."""
        points = _queries(queries, len(self.low))
        place = (points - self.low) / self.spacing
        last = np.array(self.values.shape) - 1
        inside = ((place >= -EDGE) & (place <= last + EDGE)).all(axis=1)
        values = scipy.ndimage.map_coordinates(self.values, place.T, order=1, mode="nearest")
        return np.where(inside, values, 0.0)


def linear_binning(
    samples: Float[Array, "n k"],
    weights: Float[Array, " n"],
    low: Float[Array, " k"],
    spacing: Float[Array, " k"],
    counts: Int[Array, " k"],
) -> Array:
    """Share each sample's weight out among the corners of its cell, the nearer the more.

    Samples outside the grid are left out.

    >>> at = np.array([[0.25]])
    >>> linear_binning(at, np.ones(1), np.zeros(1), np.ones(1), np.array([3])).tolist()
    [0.75, 0.25, 0.0]
    """
    return _bin(samples, weights, [[(1.0, 0.0)]] * len(counts), low, spacing, counts)


def _bin(
    samples: Array,
    weights: Array,
    images: list[list[Image]],
    low: Array,
    spacing: Array,
    counts: Array,
) -> Array:
    """Bin samples and their images, a block at a time so that the cache holds what is computed."""
    binned = np.zeros(int(np.prod(counts)))
    cells = [
        [(sign / step, (shift - start) / step) for sign, shift in axis]
        for axis, start, step in zip(images, low, spacing, strict=True)
    ]
    for start in range(0, len(samples), BIN_BLOCK):
        columns = list(np.ascontiguousarray(samples[start : start + BIN_BLOCK].T))
        parts = weights[start : start + BIN_BLOCK]
        for places, shares in _placed(columns, parts, cells, counts):
            _deposit(binned, places, shares, counts)
    return binned.reshape(tuple(counts))


def _placed(
    columns: list[Array], weights: Array, cells: list[list[Image]], counts: Array
) -> Iterator[tuple[list[Array], Array]]:
    """Yield the images of samples that lie on the grid, in cells from its low corner."""
    waiting = [(columns, weights, 0)]
    while waiting:
        columns, weights, axis = waiting.pop()
        if axis == len(columns):
            yield columns, weights
            continue
        for sign, shift in cells[axis]:
            place = sign * columns[axis] + shift
            last = counts[axis] - 1
            moved, kept = [*columns[:axis], place, *columns[axis + 1 :]], weights
            if place.min() < 0 or place.max() > last:
                inside = (place >= -EDGE) & (place <= last + EDGE)
                if not inside.any():
                    continue
                moved, kept = [column[inside] for column in moved], weights[inside]
                np.clip(moved[axis], 0, last, out=moved[axis])
            waiting.append((moved, kept, axis + 1))


def _deposit(binned: Array, places: list[Array], weights: Array, counts: Array) -> None:
    """Add weights to the corners of their cells."""
    flat, parts = np.zeros((), np.intp), [(0, weights)]
    for place, count in zip(places, counts, strict=True):
        corner = np.minimum(np.floor(place), count - 2)
        share = place - corner
        flat = flat * count + corner.astype(np.intp)
        split: list[tuple[int, Array]] = []
        for offset, part in parts:
            upper = part * share
            split += [(offset * count, part - upper), (offset * count + 1, upper)]
        parts = split
    for offset, part in parts:
        np.add.at(binned[offset:], flat, part)


def _per_dimension(name: str, value: PerDimension, dimension: int) -> Float[Array, " k"]:
    """Return one number per dimension."""
    value = np.asarray(value, float)
    if value.shape not in ((), (dimension,)) or np.isnan(value).any():
        raise ValueError(
            f"{name} must be one number, or one for each of {dimension} dimensions; got "
            f"{value.tolist()}."
        )
    return np.broadcast_to(value, (dimension,)).copy()


def _queries(queries: ArrayLike, dimension: int) -> Float[Array, "m k"]:
    queries = np.asarray(queries, float)
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise ValueError(
            f"queries must have shape (m, {dimension}) like the samples; they have shape "
            f"{queries.shape}."
        )
    if not np.isfinite(queries).all():
        at = int(np.argwhere(~np.isfinite(queries))[0][0])
        raise ValueError(f"queries must be finite; query {at} is {queries[at].tolist()}.")
    return queries


def _extent(points: Float[Array, "n k"]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Return the least and greatest of each column; many times faster than NumPy's along rows."""
    blocks = (
        np.ascontiguousarray(points[start : start + BIN_BLOCK].T)
        for start in range(0, len(points), BIN_BLOCK)
    )
    ends = np.array([(block.min(axis=1), block.max(axis=1)) for block in blocks])
    return ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)


def _profile(kernel: str, square: Array) -> Array:
    """Return the kernel of squared distances, as in `KERNELS` but compiled for no shape."""
    if kernel == "gaussian":
        return np.exp(-0.5 * square)
    if kernel == "epanechnikov":
        return np.maximum(1.0 - square, 0.0)
    square = np.minimum(square, 1.0)
    return 1.0 - np.sqrt(square) * (1.5 - 0.5 * square)


def _images(low: float, high: float, reach: float) -> list[Image]:
    """Return the images of `[low, high]` along a line that a kernel reaches back from.

    Between two mirrors they go on for ever, alternately mirrored and moved.
    """
    if not np.isfinite(low) and not np.isfinite(high):
        return [(1.0, 0.0)]
    if not np.isfinite(low) or not np.isfinite(high):
        return [(1.0, 0.0), (-1.0, 2 * (low if np.isfinite(low) else high))]
    width = high - low
    most = int(np.ceil(reach / width))
    return [
        (1.0, i * width) if i % 2 == 0 else (-1.0, 2 * low + (i + 1) * width)
        for i in range(-most, most + 1)
    ]


def _combine(images: list[list[Image]]) -> tuple[Float[Array, "g k"], Float[Array, "g k"]]:
    """Return signs and shifts of images in space: one along each axis."""
    both = np.array(list(itertools.product(*images)))
    return both[:, :, 0], both[:, :, 1]


# Exact sums. Lengths are in bandwidths from here on, and kernels one at their centre.


class _Boxes(NamedTuple):
    """Samples in boxes of neighbours, given from their mean; what fills the last weighs nothing."""

    centre: Float[Array, "b k"]
    low: Float[Array, "b k"]
    high: Float[Array, "b k"]
    total: Float[Array, " b"]  # weight
    variance: Float[Array, " b"]
    radius: Float[Array, " b"]
    offsets: Float[Array, "b k n"]
    weights: Float[Array, "b n 1"]  # as shares of the total
    features: Float[Array, "b f n"]  # see `_products`
    single: Float[Array, "b g n"]  # the same for single precision


def _neighbours(points: Float[Array, "n k"], length: int) -> Int[Array, "b length"]:
    """Sort points into boxes, halving the widest side; the last repeats a point to be full."""
    done: list[Array] = []
    waiting = [(np.arange(len(points)), np.ascontiguousarray(points.T))]
    while waiting:
        order, here = waiting.pop()
        if len(order) <= length:
            done.append(order)
            continue
        widest = np.argmax(here.max(axis=1) - here.min(axis=1))
        half = -(-len(order) // (2 * length)) * length  # so that all boxes but the last are full
        split = np.argpartition(here[widest], half)
        for part in (split[half:], split[:half]):
            waiting.append((order[part], here[:, part]))
    done.append(np.repeat(done[-1][-1:], -len(points) % length))
    return np.concatenate(done).reshape(-1, length)


def _boxes(kernel: str, samples: Float[Array, "n k"], weights: Float[Array, " n"]) -> _Boxes:
    order = _neighbours(samples, min(SAMPLE_BOX, len(samples)))
    weight = weights[order]
    weight.ravel()[len(samples) :] = 0.0
    total = weight.sum(axis=1)
    share = weight / total[:, None]
    at = samples[order]
    centre = np.einsum("bn,bnk->bk", share, at)
    offsets = np.ascontiguousarray((at - centre[:, None, :]).transpose(0, 2, 1))
    square = (offsets**2).sum(axis=1)
    return _Boxes(
        centre,
        at.min(axis=1),
        at.max(axis=1),
        total,
        (share * square).sum(axis=1),
        np.sqrt(square.max(axis=1)),
        offsets,
        share[:, :, None],
        *_features(kernel, offsets, square[:, None, :]),
    )


def _features(
    kernel: str, offsets: Float[Array, "b k n"], square: Float[Array, "b 1 n"]
) -> tuple[Array, Array]:
    """Return what makes the kernel's argument a product with `(x, 1, |x|^2)`."""
    ones = np.ones_like(square)
    if kernel == "gaussian":  # -|x - s|^2 / 2
        rows = np.concatenate([offsets, -0.5 * square, -0.5 * ones], axis=1)
        return rows, rows[:, :-1].astype(np.float32)
    rows = np.concatenate([2 * offsets, 1 - square, -ones], axis=1)  # 1 - |x - s|^2
    return rows, rows[:0]


def _sums(
    kernel: str,
    boxes: _Boxes,
    images: tuple[Array, Array],
    queries: Float[Array, "m k"],
    rtol: float,
) -> Float[Array, " m"]:
    """Add up kernels at each query, on every core."""
    order = _neighbours(queries, QUERY_BOX)
    cores = os.cpu_count() or 1
    together = min(16, len(order) // (4 * cores), VISITS // (len(boxes.total) * len(images[0])))
    together = max(1, together)

    def work(start: int) -> Array:
        return _block(kernel, boxes, images, queries[order[start : start + together]], rtol)

    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        found = list(pool.map(work, range(0, len(order), together)))
    values = np.empty(len(queries))
    values[order.ravel()] = np.concatenate(found).ravel()
    return values


def _block(
    kernel: str,
    boxes: _Boxes,
    images: tuple[Array, Array],
    queries: Float[Array, "c q k"],
    rtol: float,
) -> Float[Array, "c q"]:
    """Add up kernels at a few boxes of queries."""
    low, high = queries.min(axis=1), queries.max(axis=1)
    if kernel == "gaussian":
        cut = _cut(boxes, images, low, high, rtol)
    else:
        cut = np.ones((len(queries), 1))
    visits = []
    for number, image in enumerate(zip(*images, strict=True)):
        near, far = _distances(boxes, *_imaged(low, high, *image))
        query, box = np.nonzero(near < cut)
        visits.append((query, box, np.full(len(query), number), far[query, box]))
    query, box, image, far = (np.concatenate(part) for part in zip(*visits, strict=True))
    ways = _ways(kernel, far, boxes.radius[box], rtol)
    values = np.zeros(queries.shape[:2])
    for number, add in enumerate((_single, _products, _differences)):
        chosen = np.flatnonzero(ways == number)
        chosen = chosen[np.argsort(query[chosen], kind="stable")]
        ends = np.searchsorted(query[chosen], np.arange(len(queries) + 1))
        step = max(1, PAIRS // (queries.shape[1] * boxes.offsets.shape[2]))
        for at, (begin, end) in enumerate(itertools.pairwise(ends)):
            for first in range(begin, end, step):
                part = chosen[first : min(first + step, end)]
                sign, shift = (side[image[part], None, :] for side in images)
                here = box[part]
                seen = sign * (queries[at] - shift) - boxes.centre[here, None, :]
                values[at] += boxes.total[here] @ add(kernel, boxes, here, seen)
    return values


def _imaged(low: Array, high: Array, sign: Array, shift: Array) -> tuple[Array, Array]:
    """Return the box as an image sees it: moving samples there is moving queries back."""
    one, other = sign * (low - shift), sign * (high - shift)
    return np.minimum(one, other), np.maximum(one, other)


def _distances(boxes: _Boxes, low: Array, high: Array) -> tuple[Array, Array]:
    """Return squares of the least distance to any sample, and of the greatest to the mean."""
    near = far = np.zeros((len(low), len(boxes.total)))
    for axis in range(low.shape[1]):
        below, above = low[:, axis, None], high[:, axis, None]
        gap = np.maximum(boxes.low[:, axis] - above, below - boxes.high[:, axis])
        near = near + np.maximum(gap, 0.0) ** 2
        centre = boxes.centre[:, axis]
        far = far + np.maximum(above - centre, centre - below) ** 2
    return near, far


def _cut(
    boxes: _Boxes, images: tuple[Array, Array], low: Array, high: Array, rtol: float
) -> Float[Array, "c 1"]:
    """Return the squared distance beyond which Gaussians add less than a quarter of `rtol`.

    By Jensen's inequality a box adds at least its weight times the kernel at the mean squared
    distance. All boxes beyond the cut together add at most all weight times the kernel there.
    """
    least = np.full(len(low), -np.inf)
    for image in zip(*images, strict=True):
        _, far = _distances(boxes, *_imaged(low, high, *image))
        lowest = np.log(boxes.total) - 0.5 * (far + boxes.variance)
        least = np.logaddexp(least, scipy.special.logsumexp(lowest, axis=1))
    whole = np.log(boxes.total.sum() * len(images[0]))
    return 2 * (whole - least - np.log(max(rtol, 1e-16) / 4))[:, None]


def _ways(kernel: str, far: Array, radius: Array, rtol: float) -> Int[Array, " v"]:
    """Choose how boxes are added up: the first of `_single`, `_products`, `_differences` to do.

    In single precision the exponent is off by less than four roundings of its largest terms, which
    may be half of `rtol`. In double precision the squares of a few bandwidths lose nothing, except
    that the spherical kernel is a cone: there the root of a small error is a large one.
    """
    largest = (np.sqrt(far) + 0.5 * radius) * radius  # of x.s - |s|^2 / 2; must not overflow
    single = (largest <= min(2.0**21 * rtol, 64.0)) & (kernel == "gaussian")
    double = (far <= 256) & (kernel != "spherical")
    return np.where(single, 0, np.where(double, 1, 2))


def _single(
    kernel: str, boxes: _Boxes, here: Int[Array, " b"], seen: Float[Array, "b q k"]
) -> Float[Array, "b q"]:
    """Return mean Gaussians of boxes: `exp(-|x|^2 / 2)` times `exp(x.s - |s|^2 / 2)`.

    Without its largest term the exponent is small enough for single precision.
    """
    del kernel
    square = (seen**2).sum(axis=2, keepdims=True)
    sides = np.concatenate([seen, np.ones_like(square)], axis=2).astype(np.float32)
    kernels = sides @ boxes.single[here]
    np.exp(kernels, out=kernels)
    weights = boxes.weights[here].astype(np.float32)
    return ((kernels @ weights) * np.exp(-0.5 * square))[:, :, 0]


def _products(
    kernel: str, boxes: _Boxes, here: Int[Array, " b"], seen: Float[Array, "b q k"]
) -> Float[Array, "b q"]:
    """Return mean kernels of boxes, with `|x - s|^2 = |x|^2 - 2 x.s + |s|^2`."""
    square = (seen**2).sum(axis=2, keepdims=True)
    kernels = np.concatenate([seen, np.ones_like(square), square], axis=2) @ boxes.features[here]
    if kernel == "gaussian":
        np.exp(kernels, out=kernels)
    else:
        np.maximum(kernels, 0.0, out=kernels)
    return (kernels @ boxes.weights[here])[:, :, 0]


def _differences(
    kernel: str, boxes: _Boxes, here: Int[Array, " b"], seen: Float[Array, "b q k"]
) -> Float[Array, "b q"]:
    """Return mean kernels of boxes, from distances: slower, and exact."""
    offsets = boxes.offsets[here]
    square = np.zeros(())
    for axis in range(seen.shape[2]):
        step = seen[:, :, axis, None] - offsets[:, None, axis, :]
        square = square + step**2
    return (_profile(kernel, square) @ boxes.weights[here])[:, :, 0]


def _inside(kernel: str, low: Float[Array, "n k"], high: Float[Array, "n k"]) -> Float[Array, " n"]:
    """Return the share of each kernel's mass in a box given from its centre."""
    dimension = low.shape[1]
    if kernel == "gaussian":
        # Differences of small numbers rather than of numbers close to one.
        flip = low > -high
        below, above = np.where(flip, -high, low), np.where(flip, -low, high)
        return (scipy.special.ndtr(above) - scipy.special.ndtr(below)).prod(axis=1)
    low, high = np.clip(low, -1, 1), np.clip(high, -1, 1)
    if dimension == 1:
        return (_primitive(kernel, high) - _primitive(kernel, low))[:, 0]
    shares = np.ones(len(low))
    cut = np.flatnonzero(((low > -1) | (high < 1)).any(axis=1))
    nodes, weights = np.polynomial.legendre.leggauss(GAUSS[dimension])
    step = max(1, PAIRS // len(nodes) ** dimension)
    for start in range(0, len(cut), step):
        part = cut[start : start + step]
        middle, half = (high[part] + low[part]) / 2, (high[part] - low[part]) / 2
        square, weight = np.zeros((len(part), 1)), np.ones((len(part), 1))
        for axis in range(dimension):
            at = middle[:, axis, None] + half[:, axis, None] * nodes
            square = (square[:, :, None] + at[:, None, :] ** 2).reshape(len(part), -1)
            more = half[:, axis, None] * weights
            weight = (weight[:, :, None] * more[:, None, :]).reshape(len(part), -1)
        values = _profile(kernel, square) * KERNELS[kernel].scale[dimension - 1]
        shares[part] = (weight * values).sum(axis=1)
    return shares


def _primitive(kernel: str, at: Array) -> Array:
    """Return the mass of a kernel in one dimension from its centre to a place in `[-1, 1]`."""
    if kernel == "epanechnikov":
        return 0.75 * (at - at**3 / 3)
    size = np.abs(at)
    return np.sign(at) * 4 / 3 * (size - 0.75 * size**2 + size**4 / 8)
