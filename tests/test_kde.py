"""Kernel densities, against quadrature, hand values and other libraries."""

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dcrl.density import kde as module
from dcrl.density.kde import (
    KernelDensity,
    effective_size,
    linear_binning,
    published,
    scott,
    silverman,
)
from dcrl.density.kernels import KERNELS

seeds = st.integers(0, 10_000)
shapes = pytest.mark.parametrize(
    ("kernel", "dimension"), list(itertools.product(KERNELS, (1, 2, 3)))
)
kernels = pytest.mark.parametrize("kernel", KERNELS)
dimensions = pytest.mark.parametrize("dimension", [1, 2, 3])


def cloud(seed, count, dimension):
    """A mixture with a dense and a thin part, and unequal weights."""
    random = np.random.default_rng(seed)
    thin = random.random((count, 1)) < 0.3
    samples = random.normal(size=(count, dimension)) * np.where(thin, 2.0, 0.5) + 3.0 * thin
    return samples, random.exponential(size=count) / count


def plain(kernel, samples, weights, bandwidth, queries):
    """The definition, one query after the other, with the kernels written out again."""
    dimension = samples.shape[1]
    height = {
        "gaussian": (2 * np.pi) ** (-dimension / 2),
        "spherical": [4 / 3, 5 / np.pi, 6 / np.pi][dimension - 1],
        "epanechnikov": [3 / 4, 2 / np.pi, 15 / (8 * np.pi)][dimension - 1],
    }[kernel] / np.prod(np.broadcast_to(bandwidth, dimension))
    values = []
    for query in queries:
        r = np.sqrt((((query - samples) / bandwidth) ** 2).sum(axis=1))
        values.append(
            {
                "gaussian": np.exp(-(r**2) / 2),
                "spherical": np.where(r < 1, 1 - 1.5 * r + 0.5 * r**3, 0.0),
                "epanechnikov": np.where(r < 1, 1 - r**2, 0.0),
            }[kernel]
            @ weights
        )
    return height * np.array(values)


# Kernels


@shapes
def test_kernels_have_unit_mass(kernel, dimension):
    """Their integral over shells of the radius, `dV = 2, 2 pi r, 4 pi r^2 dr`, is one."""
    shape = KERNELS[kernel]
    surface = [2.0, 2 * np.pi, 4 * np.pi][dimension - 1]
    kde = KernelDensity.fit(np.zeros((1, dimension)), kernel=kernel, bandwidth=1.0)

    def shell(radius):
        at = np.eye(1, dimension) * radius
        return surface * radius ** (dimension - 1) * kde(at, rtol=0)[0]

    mass, _ = scipy.integrate.quad(shell, 0, shape.support, epsabs=1e-11)
    assert mass == pytest.approx(1.0, abs=1e-9)


@kernels
def test_compiled_profiles_are_what_is_added_up(kernel):
    radius = np.linspace(0, 1.2, 25)[:, None]
    kde = KernelDensity.fit(np.zeros((1, 1)), kernel=kernel, bandwidth=1.0)
    shape = KERNELS[kernel]
    with jax.enable_x64(True):
        profile = shape.scale[0] * np.asarray(shape.profile(jnp.asarray(radius[:, 0] ** 2)))
    np.testing.assert_allclose(kde(radius, rtol=0), profile, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("kernel", "dimension", "value"),
    [
        # Two samples of weights 1 and 3 at distances h / 2 and 2 h, with h = 2.
        ("epanechnikov", 1, 3 / 4 * 3 / 4 / 2),
        ("epanechnikov", 2, 2 / np.pi * 3 / 4 / 4),
        ("epanechnikov", 3, 15 / (8 * np.pi) * 3 / 4 / 8),
        ("spherical", 1, 4 / 3 * 5 / 16 / 2),
        ("spherical", 2, 5 / np.pi * 5 / 16 / 4),
        ("spherical", 3, 6 / np.pi * 5 / 16 / 8),
        ("gaussian", 1, (np.exp(-1 / 8) + 3 * np.exp(-2)) / np.sqrt(2 * np.pi) / 2),
        ("gaussian", 2, (np.exp(-1 / 8) + 3 * np.exp(-2)) / (2 * np.pi) / 4),
        ("gaussian", 3, (np.exp(-1 / 8) + 3 * np.exp(-2)) / (2 * np.pi) ** 1.5 / 8),
    ],
)
def test_values_by_hand(kernel, dimension, value):
    samples = np.zeros((2, dimension))
    samples[:, -1] = [1.0, -4.0]
    kde = KernelDensity.fit(samples, [1.0, 3.0], kernel=kernel, bandwidth=2.0)
    assert kde(np.zeros((1, dimension)), rtol=0)[0] == pytest.approx(value, rel=1e-14)


@shapes
def test_exact_sums_are_the_definition(kernel, dimension):
    """With boxes of samples that are skipped, full ones and a last one that is not."""
    samples, weights = cloud(0, 3000, dimension)
    weights[::7] = 0.0
    bandwidth = np.array([0.3, 0.4, 0.2])[:dimension]
    queries = np.concatenate([cloud(1, 300, dimension)[0], samples[:20]])
    kde = KernelDensity.fit(samples, weights, kernel=kernel, bandwidth=bandwidth)
    want = plain(kernel, samples, weights, bandwidth, queries)
    # A kernel that barely reaches a query is the difference of two numbers close to one.
    np.testing.assert_allclose(kde(queries, rtol=0), want, rtol=1e-12, atol=1e-15 * want.max())
    np.testing.assert_allclose(kde(queries), want, rtol=1e-5, atol=1e-15 * want.max())


@dimensions
@pytest.mark.parametrize("rtol", [1e-2, 1e-5, 1e-8, 0.0])
def test_the_tolerance_holds_however_small_the_density(dimension, rtol):
    """Queries tens of bandwidths from the nearest sample; some samples far from all others."""
    samples, weights = cloud(2, 2000, dimension)
    samples[:4] *= 1e4
    random = np.random.default_rng(3)
    queries = np.concatenate(
        [samples[:300], random.uniform(-9, 12, (200, dimension)), samples[:4] + 0.7]
    )
    kde = KernelDensity.fit(samples, weights, bandwidth=0.25)
    want = plain("gaussian", samples, weights, 0.25, queries)
    seen = want > 1e-290  # smaller ones have no sixteen digits
    assert want[seen].min() < 1e-100 * want.max()
    np.testing.assert_allclose(kde(queries, rtol=rtol)[seen], want[seen], rtol=max(rtol, 1e-10))


@pytest.mark.parametrize("share", [1e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1.0])
def test_what_is_passed_over_is_less_than_the_tolerance(share):
    """A little weight here, and much at a distance where it adds that share."""
    weights = np.repeat([1e-12, 1.0], module.SAMPLE_BOX) / module.SAMPLE_BOX
    distance = np.sqrt(-2 * np.log(1e-12 * share))
    samples = np.repeat([[0.0], [distance]], module.SAMPLE_BOX, axis=0)
    kde = KernelDensity.fit(samples, weights, bandwidth=1.0)
    want = 1e-12 * (1 + share) / np.sqrt(2 * np.pi)
    assert kde(np.zeros((1, 1)), rtol=0.01)[0] == pytest.approx(want, rel=0.01, abs=0)


@pytest.mark.parametrize("count", [1000, 1001, 70])
def test_boxes_hold_neighbours(count):
    """Runs of a shuffled line, all of them full; the last point fills up the last box."""
    line = np.random.default_rng(23).permutation(count).astype(float)
    boxes = line[module._neighbours(line[:, None], 100)]
    np.testing.assert_array_equal(np.sort(boxes.ravel()[:count]), np.arange(count))
    full = np.sort(boxes[: count // 100])
    np.testing.assert_array_equal(full - full[:, :1], np.tile(np.arange(100), (len(full), 1)))


@pytest.mark.parametrize("distance", [0.0, 5.0, 12.0, 20.0])
def test_samples_far_from_the_mean_of_their_box_are_seen_from_there(distance):
    """Two samples on both sides of a query: nothing is near, and nothing may underflow."""
    samples = np.array([[-distance], [distance]])
    kde = KernelDensity.fit(samples, bandwidth=1.0)
    want = scipy.stats.norm.pdf(distance)
    assert kde(np.zeros((1, 1)))[0] == pytest.approx(want, rel=1e-5)


@kernels
@given(seed=seeds, factor=st.floats(0.01, 100), move=st.floats(-1e3, 1e3))
def test_a_density_moves_and_stretches_with_its_samples(kernel, seed, factor, move):
    samples, weights = cloud(seed, 60, 2)
    queries, _ = cloud(seed + 1, 10, 2)
    first = KernelDensity.fit(samples, weights, kernel=kernel)(queries, rtol=0)
    moved = KernelDensity.fit(factor * samples + move, weights, kernel=kernel)
    np.testing.assert_allclose(
        moved(factor * queries + move, rtol=0) * factor**2,
        first,
        rtol=1e-6,
        atol=1e-6 * first.max(),
    )


@shapes
def test_weights_are_repeated_samples(kernel, dimension):
    samples, _ = cloud(4, 200, dimension)
    times = np.random.default_rng(5).integers(0, 4, 200)
    repeated = np.repeat(samples, times, axis=0)
    queries, _ = cloud(6, 50, dimension)
    one = KernelDensity.fit(samples, times / times.sum(), kernel=kernel, bandwidth=0.5)
    other = KernelDensity.fit(repeated, kernel=kernel, bandwidth=0.5)
    np.testing.assert_allclose(one(queries, rtol=0), other(queries, rtol=0), rtol=1e-12, atol=1e-14)


def test_no_queries_have_no_densities():
    kde = KernelDensity.fit(np.zeros((1, 2)), bandwidth=1.0)
    assert kde(np.zeros((0, 2))).shape == (0,)


# Other libraries


@dimensions
@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_scikit_learn_agrees(kernel, dimension):
    """Its bandwidth is ours."""
    neighbors = pytest.importorskip("sklearn.neighbors")
    samples, weights = cloud(7, 500, dimension)
    queries, _ = cloud(8, 100, dimension)
    peer = neighbors.KernelDensity(bandwidth=0.6, kernel=kernel).fit(samples, sample_weight=weights)
    ours = KernelDensity.fit(samples, weights / weights.sum(), kernel=kernel, bandwidth=0.6)
    with np.errstate(divide="ignore"):
        want = np.exp(peer.score_samples(queries))
    np.testing.assert_allclose(ours(queries, rtol=0), want, rtol=1e-9, atol=1e-12)


@dimensions
def test_scipy_agrees(dimension):
    """Its bandwidth is a factor of the covariance; ours is isotropic after whitening."""
    samples, weights = cloud(9, 500, dimension)
    queries, _ = cloud(10, 100, dimension)
    root = np.linalg.cholesky(np.cov(samples.T, aweights=weights).reshape(dimension, dimension))
    peer = scipy.stats.gaussian_kde(samples.T, bw_method=0.4, weights=weights)
    white = np.linalg.inv(root)
    ours = KernelDensity.fit(samples @ white.T, weights / weights.sum(), bandwidth=0.4)
    want = peer(queries.T) * np.linalg.det(root)
    np.testing.assert_allclose(ours(queries @ white.T, rtol=0), want, rtol=1e-11)


@dimensions
@pytest.mark.parametrize(("theirs", "kernel"), [("gaussian", "gaussian"), ("epa", "epanechnikov")])
def test_kdepy_agrees(theirs, kernel, dimension):
    """Its Epanechnikov of bandwidth `b` is ours of `b sqrt(5)`, in every dimension."""
    peers = pytest.importorskip("KDEpy")
    samples, weights = cloud(11, 300, dimension)
    queries, _ = cloud(12, 50, dimension)
    order = np.argsort(queries[:, 0])
    peer = peers.NaiveKDE(kernel=theirs, bw=0.5).fit(samples, weights)
    radius = 0.5 * (np.sqrt(5) if kernel == "epanechnikov" else 1)
    ours = KernelDensity.fit(samples, weights / weights.sum(), kernel=kernel, bandwidth=radius)
    want = np.asarray(peer.evaluate(queries[order])).ravel()
    np.testing.assert_allclose(ours(queries[order], rtol=0), want, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("dimension", "count"), [(1, 513), (2, 129), (3, 65)])
def test_grids_are_those_of_kdepy(dimension, count):
    """Both bin linearly and convolve, so they agree much better than either with exact values."""
    peers = pytest.importorskip("KDEpy")
    samples = np.clip(cloud(13, 2000, dimension)[0], -7, 7)
    axes = [np.linspace(-8, 8, count)] * dimension
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dimension)
    peer = peers.FFTKDE(kernel="gaussian", bw=0.5).fit(samples).evaluate(points)
    ours = KernelDensity.fit(samples, bandwidth=0.5).on_grid(-8, 8, count)
    # Theirs cuts the Gaussian off where it falls below 1e-4.
    np.testing.assert_allclose(ours.values.ravel(), peer.ravel(), atol=1e-4 * peer.max())


# Bandwidths


@pytest.mark.parametrize(("rule", "name"), [(scott, "scott"), (silverman, "silverman")])
@dimensions
def test_rules_are_those_of_scipy(rule, name, dimension):
    samples, weights = cloud(14, 400, dimension)
    peer = scipy.stats.gaussian_kde(samples.T, bw_method=name, weights=weights)
    variance = np.diag(peer.covariance)
    np.testing.assert_allclose(rule(samples, weights), np.sqrt(variance), rtol=1e-12)
    assert effective_size(weights) == pytest.approx(peer.neff, rel=1e-12)


def test_rules_by_hand():
    """Four equal samples at 0, 0, 2 and 2: unbiased variance 4 / 3."""
    samples, weights = np.array([[0.0], [0.0], [2.0], [2.0]]), np.ones(4)
    std = np.sqrt(4 / 3)
    assert scott(samples, weights)[0] == pytest.approx(std * 4**-0.2)
    assert silverman(samples, weights)[0] == pytest.approx(std * 3**-0.2)
    assert published(0.01)(samples, weights)[0] == pytest.approx(std / 2)
    assert published(0.7)(samples, weights)[0] == 0.7


@given(seeds, st.floats(0.1, 10))
def test_rules_do_not_depend_on_the_scale_of_weights(seed, factor):
    samples, weights = cloud(seed, 50, 2)
    for rule in (scott, silverman, published(0.1)):
        np.testing.assert_allclose(rule(samples, factor * weights), rule(samples, weights))


# Limits


@shapes
def test_reflection_is_a_sum_over_mirror_images(kernel, dimension):
    """A sample in the corner of a box, each limit a mirror: images by hand."""
    low, high = np.full(dimension, -1.0), np.full(dimension, 2.0)
    samples = np.random.default_rng(15).uniform(-1, 2, (40, dimension))
    queries = np.random.default_rng(16).uniform(-1, 2, (60, dimension))
    kde = KernelDensity.fit(samples, kernel=kernel, bandwidth=0.9, low=-1.0, high=2.0)
    want = np.zeros(60)
    for turns in itertools.product(range(-4, 5), repeat=dimension):
        image = [
            s if turn == 0 else (s + 3 * turn if turn % 2 == 0 else 3 * turn + 1 - s)
            for s, turn in zip(samples.T, turns, strict=True)
        ]
        want += plain(kernel, np.stack(image, axis=1), np.full(40, 1 / 40), 0.9, queries)
    np.testing.assert_allclose(kde(queries, rtol=0), want, rtol=1e-12)
    assert (kde(np.stack([low - 0.1, high + 0.1])) == 0).all()


@pytest.mark.parametrize("limits", [(0.0, 1.0), (0.0, np.inf), (-np.inf, 1.0)])
@shapes
def test_reflection_conserves_the_mass(kernel, dimension, limits):
    """Midpoints of a grid over the feature, where limits are; beyond the kernels elsewhere."""
    samples = np.random.default_rng(17).beta(0.5, 0.5, (30, dimension))
    bandwidth = 0.15 if kernel == "gaussian" else 0.9
    kde = KernelDensity.fit(
        samples, kernel=kernel, bandwidth=bandwidth, low=limits[0], high=limits[1]
    )
    low, high = max(limits[0], -1.0), min(limits[1], 2.0)
    count = {1: 1000, 2: 100, 3: 24}[dimension]
    at = low + (np.arange(count) + 0.5) * (high - low) / count
    points = np.stack(np.meshgrid(*[at] * dimension, indexing="ij"), -1).reshape(-1, dimension)
    mass = kde(points).mean() * (high - low) ** dimension
    assert mass == pytest.approx(1.0, abs=3e-3)
    assert kde.mass == pytest.approx(1.0, rel=1e-12)
    assert kde.mass_within(-9, 9) == pytest.approx(1.0, rel=1e-3)


@kernels
def test_reflection_has_no_bias_at_the_boundary_of_a_uniform_density(kernel):
    """Evenly spaced samples: the density is one everywhere, corners included."""
    at = (np.arange(40) + 0.5) / 40
    samples = np.stack(np.meshgrid(at, at), -1).reshape(-1, 2)
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 0.5], [1.0, 0.31], [0.5, 0.5]])
    bounded = KernelDensity.fit(samples, kernel=kernel, bandwidth=0.2, low=0, high=1)
    free = KernelDensity.fit(samples, kernel=kernel, bandwidth=0.2)
    np.testing.assert_allclose(bounded(corners), 1.0, rtol=0.01)
    np.testing.assert_allclose(free(corners)[:4], [1 / 4, 1 / 4, 1 / 2, 1 / 2], rtol=0.15)


# Mass of a box


@shapes
def test_mass_in_a_box_is_the_integral_of_the_density(kernel, dimension):
    samples = np.random.default_rng(18).uniform(0, 1, (25, dimension))
    low, high = np.array([-0.1, 0.1, 0.3])[:dimension], np.array([0.6, 2.0, 0.9])[:dimension]
    kde = KernelDensity.fit(samples, kernel=kernel, bandwidth=0.4, low=0.0)
    count = {1: 1000, 2: 150, 3: 40}[dimension]
    start = np.maximum(low, 0.0)
    axes = [
        a + (np.arange(count) + 0.5) * (b - a) / count for a, b in zip(start, high, strict=True)
    ]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dimension)
    want = kde(points).mean() * np.prod(high - start)
    assert kde.mass_within(low, high) == pytest.approx(want, rel=1e-3 if dimension > 1 else 1e-5)


@shapes
def test_halves_quarters_and_eighths_of_a_kernel(kernel, dimension):
    kde = KernelDensity.fit(np.ones((1, dimension)), [2.0], kernel=kernel, bandwidth=0.7)
    rel = 1e-12 if kernel == "gaussian" or dimension == 1 else 1e-3
    assert kde.mass_within(1.0, np.inf) == pytest.approx(2 * 0.5**dimension, rel=rel)
    high = np.full(dimension, np.inf)
    high[0] = 1.0
    assert kde.mass_within(-np.inf, high) == pytest.approx(1.0, rel=rel)
    assert kde.mass_within(-50.0, 50.0) == pytest.approx(2.0, rel=1e-12)
    assert kde.mass_within(50.0, 51.0) == pytest.approx(0.0, abs=1e-30)
    assert kde.mass_within(1.0, 1.0) == 0.0


@given(seeds, st.floats(-3, 5), st.floats(0, 4), st.floats(0, 4))
def test_masses_of_parts_add_up(seed, start, first, second):
    samples, weights = cloud(seed, 40, 1)
    for kernel in KERNELS:
        kde = KernelDensity.fit(samples, weights, kernel=kernel)
        parts = kde.mass_within(start, start + first) + kde.mass_within(
            start + first, start + first + second
        )
        assert parts == pytest.approx(kde.mass_within(start, start + first + second), abs=1e-13)


def test_a_far_tail_keeps_its_digits():
    kde = KernelDensity.fit(np.zeros((1, 1)), bandwidth=1.0)
    assert kde.mass_within(8.0, np.inf) == pytest.approx(scipy.stats.norm.sf(8.0), rel=1e-10, abs=0)


# Grids


@given(seeds, st.integers(1, 3))
def test_binning_conserves_mass_and_mean(seed, dimension):
    """A hat function at each grid point: they add up to one, and to `x` if weighted by it."""
    random = np.random.default_rng(seed)
    samples = random.uniform(0, 1, (50, dimension))
    samples[0], samples[1] = 0.0, 1.0
    weights = random.random(50)
    counts = random.integers(2, 6, dimension)
    binned = linear_binning(samples, weights, np.zeros(dimension), 1 / (counts - 1), counts)
    assert binned.shape == tuple(counts)
    assert binned.sum() == pytest.approx(weights.sum(), rel=1e-12)
    for axis in range(dimension):
        rest = tuple(other for other in range(dimension) if other != axis)
        mean = binned.sum(axis=rest) @ np.linspace(0, 1, counts[axis])
        assert mean == pytest.approx(weights @ samples[:, axis], rel=1e-12)


def test_binning_by_hand():
    samples = np.array([[0.25, 1.5], [2.0, 2.0], [2.1, 0.0], [-0.1, 0.0]])
    binned = linear_binning(
        samples, np.array([8.0, 1.0, 1.0, 1.0]), np.zeros(2), np.ones(2), np.array([3, 3])
    )
    # The first lies between (0, 1), (0, 2), (1, 1) and (1, 2); the last two off the grid.
    np.testing.assert_allclose(binned, [[0, 3, 3], [0, 1, 1], [0, 0, 1]], atol=1e-12)


@shapes
def test_grid_values_approach_the_exact_ones(kernel, dimension):
    """Twice as many grid points, a quarter of the error; spherical cones make it less regular."""
    samples, weights = cloud(19, 400, dimension)
    kde = KernelDensity.fit(samples, weights, kernel=kernel, bandwidth=1.5)
    errors = []
    for count in (25, 49, 97) if dimension < 3 else (17, 33, 65):
        grid = kde.on_grid(-2, 4, count)
        every = (count - 1) // 8
        axes = [-2 + np.arange(0, count, every) * 6 / (count - 1)] * dimension
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dimension)
        values = grid.values[(slice(None, None, every),) * dimension].ravel()
        exact = kde(points, rtol=0)
        errors.append(np.sqrt(np.mean((values - exact) ** 2)) / exact.max())
        np.testing.assert_allclose(grid(points), values, atol=1e-12)
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(orders, 2.0, atol=0.3 if kernel == "gaussian" else 0.6)
    assert errors[-1] < 2e-3


@kernels
def test_samples_beyond_a_grid_and_beyond_mirrors_reach_into_it(kernel):
    """A window that does not line up with the limits."""
    random = np.random.default_rng(20)
    samples = random.uniform(0, 1, (300, 2)) * [1.0, 3.0]
    kde = KernelDensity.fit(samples, kernel=kernel, bandwidth=0.4, low=[0, -np.inf], high=[1, 3.1])
    grid = kde.on_grid([0.013, 1.0], [0.71, 1.9], (141, 181))
    queries = random.uniform([0.013, 1.0], [0.71, 1.9], (200, 2))
    np.testing.assert_allclose(grid(queries), kde(queries), rtol=2e-3)


@kernels
def test_a_grid_that_crosses_the_limits_is_zero_beyond_them(kernel):
    samples = np.random.default_rng(21).uniform(0, 1, (100, 1))
    kde = KernelDensity.fit(samples, kernel=kernel, bandwidth=0.3, low=0, high=1)
    grid = kde.on_grid(-1, 2, 301)
    points = np.linspace(-1, 2, 301)
    assert (grid.values[(points < -1e-6) | (points > 1 + 1e-6)] == 0).all()
    inside = (points > -1e-6) & (points < 1 + 1e-6)
    np.testing.assert_allclose(
        grid.values[inside], kde(np.clip(points[inside], 0, 1)[:, None]), rtol=3e-3
    )


@shapes
def test_a_small_window_of_a_wide_kernel_is_exact(kernel, dimension):
    """Bins out to the end of the kernel would need more memory than there is."""
    samples, weights = cloud(22, 50, dimension)
    samples *= 30
    kde = KernelDensity.fit(samples, weights, kernel=kernel, bandwidth=100.0)
    size = {1: 1e-5, 2: 0.01, 3: 0.4}[dimension]
    grid = kde.on_grid(0.0, size, 3)
    points = np.array(list(itertools.product([0, size / 2, size], repeat=dimension)))
    np.testing.assert_array_equal(grid.values.ravel(), kde(points))


def test_interpolation_is_linear_between_grid_points_and_zero_outside():
    grid = module.GridDensity(
        np.array([[0.0, 1.0], [2.0, 5.0]]), np.array([10.0, 0.0]), np.array([2.0, 0.1])
    )
    queries = np.array([[10, 0], [10, 0.1], [11, 0.05], [12, 0.1], [12, 0.025], [12.01, 0], [9, 0]])
    np.testing.assert_allclose(grid(queries), [0, 1, 2, 5, 2.75, 0, 0], atol=1e-12)


@given(seeds)
def test_the_last_grid_point_is_on_the_grid(seed):
    random = np.random.default_rng(seed)
    samples = random.normal(size=(30, 1)) * random.exponential()
    low, high = samples.min(), samples.max()
    grid = KernelDensity.fit(samples).on_grid(low, high, int(random.integers(20, 400)))
    assert (grid(np.array([[low], [high]])) > 0).all()
    counts = np.array([random.integers(3, 100)])
    spacing = np.array([high - low]) / (counts - 1)
    binned = linear_binning(samples, np.ones(30), np.array([low]), spacing, counts)
    assert binned.sum() == pytest.approx(30, rel=1e-12)


# Errors


ONE = np.array([[0.0], [1.0]])
TWO = np.zeros((2, 2))


@pytest.mark.parametrize(
    ("samples", "options", "sentence"),
    [
        (np.zeros(3), {}, "samples must have shape (n, k)"),
        (np.zeros((0, 1)), {}, "at least one sample"),
        (np.zeros((2, 4)), {}, "k = 1, 2 or 3; they have shape (2, 4)"),
        ([[0.0], [np.nan]], {}, "samples must be finite; sample 1 is [nan]"),
        ([[np.inf], [0.0]], {}, "sample 0 is [inf]"),
        (ONE, {"weights": [1.0]}, "weights must be 2 finite numbers"),
        (ONE, {"weights": [1.0, -1.0]}, "not negative"),
        (ONE, {"weights": [1.0, np.nan]}, "weights must be 2 finite numbers"),
        (ONE, {"weights": [np.inf, 1.0]}, "weights must be 2 finite numbers"),
        (ONE, {"weights": [0.0, 0.0]}, "add up to zero"),
        (ONE, {"kernel": "epanetchnikov"}, "Did you mean 'epanechnikov'?"),
        (ONE, {"bandwidth": 0.0}, "the bandwidth must be positive; it is [0.0]"),
        (ONE, {"bandwidth": -1.0}, "the bandwidth must be positive"),
        (ONE, {"bandwidth": [1.0, 2.0]}, "one for each of 1 dimensions; got [1.0, 2.0]"),
        (TWO, {}, "all samples agree in some dimension"),
        ([[1.0]], {}, "all samples agree in some dimension"),
        (ONE, {"low": 0.5}, "samples lie outside the limits [0.5] to [inf]"),
        (ONE, {"high": 0.5}, "samples lie outside the limits"),
        (ONE, {"low": 2.0, "high": 1.0}, "low must be below high; got [2.0] and [1.0]"),
        (ONE, {"low": np.nan}, "low must be one number"),
        (ONE, {"low": 0.0, "high": 1.0, "bandwidth": 1.5}, "wider than the space between"),
    ],
)
def test_bad_estimates_get_a_sentence(samples, options, sentence):
    with pytest.raises(ValueError) as caught:
        KernelDensity.fit(samples, **options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("queries", "rtol", "sentence"),
    [
        (np.zeros(3), 0.0, "queries must have shape (m, 1)"),
        (np.zeros((3, 2)), 0.0, "they have shape (3, 2)"),
        ([[0.0], [np.nan]], 0.0, "queries must be finite; query 1 is [nan]"),
        (ONE, -1.0, "rtol must lie in [0, 1); got -1.0"),
        (ONE, 1.0, "rtol must lie in [0, 1)"),
    ],
)
def test_bad_queries_get_a_sentence(queries, rtol, sentence):
    kde = KernelDensity.fit(ONE)
    with pytest.raises(ValueError) as caught:
        kde(queries, rtol=rtol)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("low", "high", "counts", "sentence"),
    [
        (0.0, 1.0, 1, "at least 2 points"),
        (1.0, 0.0, 50, "low < high"),
        (0.0, np.inf, 50, "finite low < high"),
        (0.0, 1.0, (50, 50), "one for each of 1 dimensions"),
        ([0.0, 0.0], 1.0, 50, "low must be one number, or one for each of 1 dimensions"),
        (0.0, 1.0, 10**8, "take fewer"),
        (0.0, 10.0, 11, "take at least [21] points"),
    ],
)
def test_bad_grids_get_a_sentence(low, high, counts, sentence):
    kde = KernelDensity.fit(ONE, bandwidth=0.5)
    with pytest.raises(ValueError) as caught:
        kde.on_grid(low, high, counts)
    assert sentence in str(caught.value)


def test_grids_want_queries_of_their_dimension():
    grid = KernelDensity.fit(ONE).on_grid(0, 1, 50)
    with pytest.raises(ValueError, match=r"queries must have shape \(m, 1\)"):
        grid(np.zeros((2, 2)))


# Memory


MEMORY = """
import resource
import numpy as np
from dcrl.density.kde import KernelDensity

random = np.random.default_rng(0)
KernelDensity.fit(random.normal(size=(100, 1))).on_grid(-1, 1, 50)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{run}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""

EXACT = """
samples, queries = random.uniform(0, 1, (1_000_000, {k})), random.uniform(0, 1, (10_000, {k}))
KernelDensity.fit(samples, kernel="{kernel}", bandwidth={h}, low=0, high=1)(queries)
"""

GRID = """
samples = random.uniform(0, 1, (1_000_000, 3))
KernelDensity.fit(samples, kernel="{kernel}", bandwidth={h}, low=0, high=1).on_grid(0, 1, 256)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        EXACT.format(k=1, kernel="gaussian", h=0.02),
        EXACT.format(k=3, kernel="gaussian", h=0.02),
        EXACT.format(k=3, kernel="spherical", h=0.1),
        GRID.format(kernel="gaussian", h=0.02),
        GRID.format(kernel="epanechnikov", h=0.1),
    ],
    ids=["exact-1", "exact-3", "exact-3-spherical", "grid-gaussian", "grid-epanechnikov"],
)
def test_memory_is_bounded(run):
    """Eighty gigabytes of pairs, or a 3-D grid: less than two are taken."""
    code = MEMORY.format(run=run)
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(told.stdout) < 2 * 1024**2  # in KiB
