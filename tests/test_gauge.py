import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcrl import Cost, Density
from dcrl.density import Ball, Hat, Kernels, Nearest, PaperMixed, Rectangle, Regions, Simplices
from dcrl.envs.native import Outcome
from dcrl.gauge import bind_features
from dcrl.policies import Box

HAT = Hat((0.0,), (2.0,), (5,))  # half a unit apart
AREAS = Regions((Rectangle((0.0, 0.0), (1.0, 1.0)), Ball((1.0, 1.0), 0.5)))
BUMPS = Kernels(((0.2,), (0.7,)), 0.4)


@dataclass(frozen=True)
class Plane:
    name = "plane"
    observation_names = ("x", "y", "heat")
    actions = Box((0.0,), (1.0,))
    discount = 0.9
    horizon = 10
    terminates = False
    constraints = ()

    def reset(self, key):
        return jax.random.uniform(key, (3,))

    def observe(self, state):
        return state

    def step(self, key, state, action):
        del key, action
        return Outcome(state, jnp.zeros(()), jnp.zeros((), bool))


def x_of(observation):
    return observation[:1]


def place_of(observation):
    return observation[:2]


def heat_of(observation):
    return observation[2:]


ALL = (
    Density(of=x_of, basis=HAT, upper=3.0, name="x"),
    Cost(lambda o: o[0] * o[2], limit=4.0, name="burn"),
    Density(of=place_of, basis=AREAS, upper=[1.5, 2.5], name="areas"),
    Density(of=heat_of, basis=BUMPS, lower=0.1, name="heat"),
)


def bind(*constraints):
    return bind_features(constraints, Plane())


@functools.cache
def compiled():
    gauge = bind(*ALL)
    return jax.jit(gauge.measure), jax.jit(jax.vmap(gauge.bonus, (None, 0)))


@given(st.integers(0, 10_000))
def test_the_bonus_is_the_adjoint_of_the_measure(seed):
    random = np.random.default_rng(seed)
    measure, bonus = compiled()
    seen = jnp.asarray(random.uniform(-0.3, 2.3, (30, 3)), jnp.float32)
    weights = jnp.asarray(random.exponential(size=30), jnp.float32)
    net = jnp.asarray(random.normal(size=5 + 1 + 2 + 2), jnp.float32)
    charged = weights @ bonus(net, seen)
    np.testing.assert_allclose(charged, net @ measure(seen, weights), rtol=1e-4, atol=1e-4)


def test_one_visit_measures_each_function_where_it_is():
    measure, _ = compiled()
    found = measure(jnp.array([[0.9, 0.75, 0.3]]), jnp.array([2.0]))
    hats = [0.0, 0.2, 0.8, 0.0, 0.0]
    bumps = 0.75 / 0.4 * (1 - np.array([0.1 / 0.4, 1.0]) ** 2)
    want = 2 * np.array([*hats, 0.9 * 0.3, 1.0, 1.0, *bumps])
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_every_constraint_is_charged_by_its_own_multipliers():
    _, bonus = compiled()
    net = jnp.array([0.0, 1.0, 2.0, 0.0, 0.0, 10.0, 100.0, 1000.0, 0.0, 0.0])
    want = 0.2 * 1 + 0.8 * 2 + 0.27 * 10 + 100 + 1000
    assert bonus(net, jnp.array([[0.9, 0.75, 0.3]]))[0] == pytest.approx(want, rel=1e-5)


def test_without_constraints_nothing_is_measured_or_charged():
    gauge = bind()
    assert gauge.measure(jnp.ones((4, 3)), jnp.ones(4)).shape == (0,)
    assert gauge.uncovered(jnp.ones((4, 3)), jnp.ones(4)).shape == (0,)
    assert gauge.bonus(jnp.zeros(0), jnp.ones(3)) == 0


def test_bounds_come_in_the_order_of_their_constraints():
    bounds = bind(*ALL).bounds
    volume = [0.25, 0.5, 0.5, 0.5, 0.25]
    np.testing.assert_allclose(bounds.volume, [*volume, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(bounds.upper, [*(3 * np.array(volume)), 4, 1.5, 2.5, np.inf, np.inf])
    np.testing.assert_allclose(bounds.lower, [-np.inf] * 8 + [0.1, 0.1])  # zero says nothing
    assert bounds.names[0] == "x at 0"
    assert bounds.names[4:8] == ("x at 2", "burn", "areas at 0.5, 0.5", "areas at 1, 1")


def test_a_density_is_bounded_per_unit_of_its_feature():
    grid = Hat((0.0, -1.0), (1.0, 3.0), (3, 2))
    bounds = bind(Density(of=place_of, basis=grid, upper=5.0, lower=1.0)).bounds
    by_hand = np.outer([0.25, 0.5, 0.25], [2.0, 2.0]).ravel()
    np.testing.assert_allclose(bounds.upper, 5 * by_hand)
    np.testing.assert_allclose(bounds.lower, by_hand)
    each = np.arange(1.0, 7.0)
    bounds = bind(Density(of=place_of, basis=grid, upper=each)).bounds
    np.testing.assert_allclose(bounds.upper, each * by_hand)


def test_a_linear_bound_is_integrated_exactly():
    bounds = bind(Density(of=x_of, basis=HAT, upper=lambda x: 1 + 3 * x[:, 0])).bounds
    # Inside, the width times the value at the node; at the ends, of a half hat over [0, h],
    # the integral of (1 - x / h) (a + b x) is a h / 2 + b h^2 / 6.
    h, inside = 0.5, 0.5 * (1 + 3 * np.array([0.5, 1.0, 1.5]))
    want = [1 * h / 2 + 3 * h**2 / 6, *inside, 7 * h / 2 - 3 * h**2 / 6]
    np.testing.assert_allclose(bounds.upper, want, rtol=1e-12)


def test_an_even_density_at_its_bound_keeps_it_without_slack():
    x = np.linspace(0, 2, 40_001)[:, None] * np.ones((1, 3))
    density = 3.0
    weights = jnp.full(len(x), density * 2 / len(x))
    gauge = bind(Density(of=x_of, basis=HAT, upper=density))
    measured = gauge.measure(jnp.asarray(x, jnp.float32), weights)
    np.testing.assert_allclose(measured, gauge.bounds.upper, rtol=1e-3)


def test_uncovered_weight_is_reported_per_constraint():
    seen = jnp.array([[-0.1, 0.0, 0.2], [1.0, 5.0, 0.2], [2.1, 0.0, 9.0], [2.0, 0.0, 1.2]])
    found = bind(*ALL).uncovered(seen, jnp.array([1.0, 2.0, 4.0, 8.0]))
    np.testing.assert_allclose(found, [1 + 4, 0, 0, 4 + 8])


def test_the_observation_itself_is_the_feature_by_default():
    cube = Regions((Ball((0.0, 0.0, 0.0), 1.0),))
    gauge = bind(Density(basis=cube, upper=1.0))
    seen = jnp.array([[0.5, 0.5, 0.5], [0.6, 0.6, 0.6]])
    assert gauge.measure(seen, jnp.array([3.0, 1.0])).tolist() == [3.0]


REFUSED = {
    "no-basis": (Density(of=x_of), "`density`: plane has continuous states.*give one"),
    "states": (Density(of=x_of, basis=HAT, states=[0]), "`states` belongs to tables"),
    "of-weights": (Density(of=np.ones(3), basis=HAT), "`of` must be a function"),
    "of-too-long": (
        Density(of=place_of, basis=HAT),
        r"of 1 dimension\(s\).*shape \(1,\); for an observation of plane it gives shape \(2,\)",
    ),
    "of-scalar": (Density(of=lambda o: o[0], basis=HAT), r"it gives shape \(\)"),
    "of-itself": (Density(basis=HAT), r"it gives shape \(3,\)"),
    "of-fails": (
        Density(of=lambda o: o @ jnp.ones((4, 1)), basis=HAT),
        r"failed on an array of shape \(3,\), x, y, heat: ",
    ),
    "negative": (
        Density(of=x_of, basis=HAT, upper=[1, 1, -2, 1, 1]),
        "never negative, but the upper bound of density at 1 is -1. Use 0",
    ),
    "negative-lower": (Density(of=x_of, basis=HAT, lower=-1.0), "the lower bound of density at 0"),
    "negative-function": (
        Density(of=x_of, basis=HAT, upper=lambda x: x[:, 0] - 5),
        "never negative, but the upper bound of density at 0",
    ),
    "crossed": (
        Density(of=x_of, basis=HAT, lower=2.0, upper=[4, 4, 4, 4, 1], name="speed"),
        "no density keeps both bounds of speed at 2: lower 0.5 is above upper 0.25. Exchange",
    ),
    "count": (
        Density(of=x_of, basis=HAT, upper=[1.0, 2.0]),
        r"upper must be one number, a function, or 5 numbers.*it has shape \(2,\)",
    ),
    "nan": (Density(of=x_of, basis=HAT, upper=np.nan), "upper must be numbers; NaN is none"),
    "nan-lower": (Density(of=x_of, basis=HAT, lower=[0, np.nan, 0, 0, 0]), "lower must be numbers"),
    "function-on-regions": (
        Density(of=place_of, basis=AREAS, upper=lambda x: x[:, 0]),
        "give one number per region",
    ),
    "cost-number": (Cost(1.0, 2.0), "`cost`: plane has continuous states, so its cost must be"),
    "cost-vector": (
        Cost(x_of, 2.0, "burn"),
        r"`burn`: a cost must be one number; it has shape \(1,\)",
    ),
    "cost-limit": (Cost(lambda o: o[0], np.nan), "the limit must be a number; it is NaN"),
    "cost-fails": (Cost(lambda o: o["heat"], 1.0), r"failed on an array of shape \(3,\), x, y"),
}


@pytest.mark.parametrize(("constraint", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_constraints_are_refused_with_a_sentence(constraint, sentence):
    with pytest.raises(ValueError, match=sentence):
        bind(constraint)


def not_a_number(x):
    return np.where(x[:, 0] < 0.5, np.nan, 1.0)


FUNCTION_BASES = {
    "hat": HAT,
    "kernels": BUMPS,
    "mixed": PaperMixed(Kernels(tuple(map(tuple, HAT.nodes.tolist())), 0.5), HAT),
    "simplices": Simplices(((0.0,), (0.4,), (2.0,))),
    "nearest": Nearest(((0.4,), (1.5,)), (0.0,), (2.0,)),
}


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [(not_a_number, "NaN"), (lambda x: x, "one number per point")],
    ids=["nan", "shape"],
)
@pytest.mark.parametrize("basis", FUNCTION_BASES.values(), ids=FUNCTION_BASES.keys())
def test_bad_bound_functions_are_refused_on_every_basis(basis, bound, sentence):
    with pytest.raises(ValueError, match=sentence):
        bind(Density(of=x_of, basis=basis, upper=bound))
