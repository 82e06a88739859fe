"""Bases: what is charged is what is measured, and what is measured is the integral it should be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.interpolate import LinearNDInterpolator, RegularGridInterpolator

from dcrl.density import Ball, Hat, Kernels, Nearest, PaperMixed, Rectangle, Regions, Simplices

seeds = st.integers(0, 10_000)
SCATTER_1 = ((0.0,), (0.4,), (0.5,), (1.0,))
SCATTER_2 = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.3, 0.6))
ADJOINT = {
    "hat-1": Hat((0.0,), (1.0,), (5,)),
    "hat-2": Hat((0.0, -1.0), (1.0, 2.0), (4, 3)),
    "hat-3": Hat((0.0,) * 3, (1.0,) * 3, (3, 2, 4)),
    "regions": Regions((Rectangle((0.2, 0.2), (0.7, 0.9)), Ball((0.5, 0.5), 0.4))),
    "kernels": Kernels(SCATTER_2, 0.3, low=(0.0, 0.0), high=(1.0, 1.0)),
    "kernels-gaussian": Kernels(SCATTER_1, 0.2, "gaussian"),
    "kernels-spherical": Kernels(((0.1, 0.2, 0.3), (0.9, 0.8, 0.7)), 0.8, "spherical"),
    "simplices-1": Simplices(SCATTER_1),
    "simplices-2": Simplices(SCATTER_2),
    "nearest": Nearest(SCATTER_2, (0.0, 0.0), (1.0, 1.0)),
}
bases = pytest.mark.parametrize("basis", ADJOINT.values(), ids=ADJOINT.keys())


def points(basis, seed, count=40):
    random = np.random.default_rng(seed)
    return jnp.asarray(random.uniform(-0.2, 1.2, (count, basis.nodes.shape[1])), jnp.float32)


@bases
@given(seeds)
def test_the_charge_is_the_adjoint_of_the_measure(basis, seed):
    """`sum_i w_i bonus(x_i) == sigma @ measure(x, w)`: what Algorithm 1 rests on."""
    random = np.random.default_rng(seed)
    x = points(basis, seed)
    weights = jnp.asarray(random.exponential(size=len(x)), jnp.float32)
    sigma = jnp.asarray(random.normal(size=len(basis.volume)), jnp.float32)
    charged = weights @ jax.vmap(basis.evaluate, (None, 0))(sigma, x)
    measured = sigma @ basis.project(x, weights)
    np.testing.assert_allclose(charged, measured, rtol=1e-4, atol=1e-4)


def test_the_papers_mixed_form_is_not_adjoint():
    grid = Hat((0.0,), (1.0,), (11,))
    mixed = PaperMixed(Kernels(tuple(map(tuple, grid.nodes)), 0.2), grid)
    x, weights = jnp.array([[0.04]]), jnp.ones(1)
    sigma = jnp.zeros(11).at[0].set(1.0)
    charged = mixed.evaluate(sigma, x[0])
    measured = mixed.project(x, weights)[0]
    assert charged == pytest.approx(0.6)
    assert measured == pytest.approx(0.75 / 0.2 * (1 - 0.2**2), rel=1e-5)


@bases
def test_a_density_of_one_measures_the_volume(basis):
    """Many even points in the unit cube weigh as much as the integrals of the functions there."""
    dimension = basis.nodes.shape[1]
    if isinstance(basis, Kernels) and basis.low is None:
        pytest.skip("without limits its kernels reach beyond the cube")
    if isinstance(basis, Regions):
        pytest.skip("regions are bounded by times, in units of which their volume is one")
    low, high = (np.array(getattr(basis, name, [end] * dimension)) for name, end in
                 (("low", 0.0), ("high", 1.0)))  # fmt: skip
    count = {1: 20_000, 2: 300, 3: 48}[dimension]
    axes = [a + (np.arange(count) + 0.5) / count * (b - a) for a, b in zip(low, high, strict=True)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dimension)
    weights = np.full(len(x), np.prod((high - low) / count))
    measured = basis.project(jnp.asarray(x, jnp.float32), jnp.asarray(weights, jnp.float32))
    np.testing.assert_allclose(measured, basis.volume, rtol=2e-2, atol=1e-4)


@bases
@given(seeds)
def test_no_function_exceeds_its_peak_or_falls_below_zero(basis, seed):
    x = points(basis, seed, 20)
    each = np.asarray(jax.vmap(lambda p: basis.project(p[None], jnp.ones(1)))(x))
    assert (each >= -1e-5).all()
    assert (each <= basis.peak * (1 + 1e-5) + 1e-5).all()


@given(seeds)
def test_hats_interpolate_like_scipy(seed):
    random = np.random.default_rng(seed)
    basis = ADJOINT["hat-3"]
    sigma = random.normal(size=basis.counts)
    x = random.uniform(0, 1, (50, 3))
    expected = RegularGridInterpolator(basis.axes, sigma)(x)
    got = jax.vmap(basis.evaluate, (None, 0))(jnp.asarray(sigma.ravel()), jnp.asarray(x))
    np.testing.assert_allclose(got, expected, atol=1e-5)


@given(seeds)
def test_simplices_interpolate_like_scipy(seed):
    random = np.random.default_rng(seed)
    nodes = random.uniform(size=(12, 2))
    basis = Simplices(tuple(map(tuple, nodes.tolist())))
    sigma = random.normal(size=12)
    x = random.uniform(size=(50, 2))
    expected = LinearNDInterpolator(nodes, sigma)(x)
    got = np.asarray(jax.vmap(basis.evaluate, (None, 0))(jnp.asarray(sigma), jnp.asarray(x)))
    inside = np.isfinite(expected)
    np.testing.assert_allclose(got[inside], expected[inside], atol=1e-3)
    covered = np.asarray(jax.vmap(basis.covers)(jnp.asarray(x, jnp.float32)))
    # Rounding decides on the very edge, and nowhere else.
    assert (covered != inside).mean() <= 0.05


def test_multipliers_are_zero_outside():
    ones = jnp.ones(5)
    hat = ADJOINT["hat-1"]
    assert hat.evaluate(ones, jnp.array([-0.01])) == 0
    assert hat.evaluate(ones, jnp.array([1.01])) == 0
    assert hat.evaluate(ones, jnp.array([0.333])) == pytest.approx(1)  # hats add up to one
    assert not hat.covers(jnp.array([1.01]))
    assert hat.covers(jnp.array([1.0]))


def test_a_bound_is_integrated_against_each_hat():
    def bound(x):
        return np.where(x[:, 0] < 0.25, np.inf, 2 + np.sin(9 * x[:, 0]))

    hat = Hat((0.0,), (1.0,), (5,))
    got = hat.integrate(bound)
    assert np.isinf(got[:2]).all()  # the second hat reaches into the free part
    for j, at in enumerate(hat.nodes[:, 0]):
        if j >= 2:
            low, high = at - 0.25, min(at + 0.25, 1.0)
            expected = quad(lambda x, at=at: (1 - abs(x - at) / 0.25) * (2 + np.sin(9 * x)), low,
                            high, points=[at])[0]  # fmt: skip
            assert got[j] == pytest.approx(expected, rel=1e-8)


def test_a_bound_on_kernels_is_blurred_by_them():
    kernels = Kernels(((0.5,), (0.0,)), 0.2, low=(0.0,), high=(1.0,))
    got = kernels.integrate(lambda x: x[:, 0] ** 2)
    # Epanechnikov of radius h: the mean of u^2 is h^2 / 5, on the half line too.
    np.testing.assert_allclose(got, [0.25 + 0.04 / 5, 0.04 / 5], rtol=1e-3)


def test_scattered_bounds_are_integrated():
    simplices = Simplices(SCATTER_1)
    np.testing.assert_allclose(simplices.volume, [0.2, 0.25, 0.3, 0.25], atol=1e-9)
    np.testing.assert_allclose(simplices.integrate(lambda x: 0 * x[:, 0] + 3), 3 * simplices.volume,
                               rtol=1e-3)  # fmt: skip
    nearest = Nearest(((0.2,), (0.6,)), (0.0,), (1.0,))
    np.testing.assert_allclose(nearest.volume, [0.4, 0.6], atol=1e-3)


def test_a_node_at_a_limit_counts_in_full():
    """A uniform density is measured as one everywhere, at the boundary too, thanks to mirrors."""
    x = jnp.linspace(0, 1, 20_001)[:, None]
    weights = jnp.full(20_001, 1 / 20_001)
    mirrored = Kernels(((0.0,), (0.05,), (0.5,), (1.0,)), 0.1, low=(0.0,), high=(1.0,))
    np.testing.assert_allclose(mirrored.project(x, weights), 1, rtol=1e-3)
    bare = Kernels(((0.0,),), 0.1)
    np.testing.assert_allclose(bare.project(x, weights), 0.5, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Hat((0.0,), (1.0,), (1,)), "at least 2 points"),
        (lambda: Hat((1.0,), (0.0,), (3,)), "low < high"),
        (lambda: Hat((0.0, 0.0), (1.0,), (3,)), "the same 1 to 3 dimensions"),
        (lambda: Regions(()), "at least one"),
        (lambda: Regions((Ball((0.0,), 1.0), Ball((0.0, 0.0), 1.0))), "same dimension"),
        (lambda: Regions((Ball((0.0,), 1.0),)).integrate(np.ones_like), "one number per region"),
        (lambda: Kernels(((0.0,),), 0.0), "bandwidth must be positive"),
        (lambda: Kernels(((0.0,),), 1.0, "gausian"), "Did you mean 'gaussian'"),
        (lambda: Kernels(((2.0,),), 0.1, low=(0.0,), high=(1.0,)), "outside the limits"),
        (lambda: Nearest(((2.0,),), (0.0,), (1.0,)), "outside the limits"),
        (lambda: Simplices(((0.0,),)), "at least 2 support points"),
        (lambda: Simplices(((0.0,), (np.nan,))), "must be finite"),
        (lambda: Simplices(((0.0, 0.0), (1.0, 1.0), (2.0, 2.0))), "one line"),
        (lambda: Hat((0.0,), (1.0,), (3,)).integrate(lambda x: x), "one number per point"),
        (lambda: Hat((0.0,), (1.0,), (3,)).integrate(lambda x: x[:, 0] * np.nan), "it is NaN"),
    ],
)  # fmt: skip
def test_bad_bases_are_refused_with_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
