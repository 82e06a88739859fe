import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcrl import Cost, Density, Multipliers, bind, costs_to_density, density_to_costs
from dcrl.constraints import density_to_one_cost
from dcrl.tabular import density
from problems import random_model, random_policy

seeds = st.integers(0, 10_000)


def test_bounds_are_one_vector_with_one_sign():
    bounds = bind([Density(lower=[0, 1, 2], upper=[4, np.inf, 3]), Cost([1, 1, 0], 5)], 3)
    assert bounds.lower.tolist() == [-np.inf, 1, 2, -np.inf]
    assert bounds.upper.tolist() == [4, np.inf, 3, 5]
    value = bounds.measure(np.array([5.0, 1.5, 1.0]))
    assert value.tolist() == [5.0, 1.5, 1.0, 6.5]
    assert bounds.slack(value).tolist() == [-1, 0.5, -1, -1.5]
    assert bounds.relative_slack(value).tolist() == [-0.25, 0.5, -0.5, -0.3]
    assert bounds.worst_slack(value) == -0.5


def test_a_bound_may_be_a_function_of_the_state():
    bounds = bind([Density(upper=lambda state: 1.0 + state, states=[1, 2])], 4)
    assert bounds.upper.tolist() == [2, 3]
    assert bounds.names == ("density of state 1", "density of state 2")


def test_a_region_is_one_bound():
    bounds = bind([Density(of=[[1, 1, 0], [0, 0, 2]], lower=[0.5, -np.inf], upper=[1, 4])], 3)
    assert bounds.measure(np.array([0.25, 0.5, 1.0])).tolist() == [0.75, 2.0]


@given(seeds)
def test_the_bonus_is_the_adjoint_of_the_measure(seed):
    random = np.random.default_rng(seed)
    bounds = bind([Density(lower=0.1, upper=random.random(4) + 0.1), Cost(random.random(4), 1)], 4)
    multipliers = Multipliers(random.random(5), random.random(5))
    rho = random.random(4)
    assert bounds.bonus(multipliers) @ rho == pytest.approx(multipliers.net @ bounds.measure(rho))


@given(seeds)
def test_costs_say_the_same_as_the_bounds_they_come_from(seed):
    model = random_model(seed)
    random = np.random.default_rng(seed)
    constraint = Density(lower=random.random(5), upper=1 + 2 * random.random(5))
    costs = density_to_costs(constraint, 5)
    rho = density(model, random_policy(model, seed))
    kept = bind([constraint], 5).worst_slack(rho) >= 0
    assert kept == all(rho @ np.asarray(c.cost) <= c.limit for c in costs)
    again = bind([costs_to_density(costs, 5)], 5)
    assert kept == (again.worst_slack(again.measure(rho)) >= 0)
    if kept:  # the added-up limit is implied, and only implied
        one = density_to_one_cost(constraint, 5, random.random(len(costs)))
        assert rho @ np.asarray(one.cost) <= one.limit + 1e-12


def test_the_added_up_limit_lets_states_pay_for_each_other():
    constraint = Density(upper=[1.0, 1.0])
    one = density_to_one_cost(constraint, 2)
    rho = np.array([2.0, 0.0])
    assert rho @ np.asarray(one.cost) <= one.limit
    assert bind([constraint], 2).worst_slack(rho) < 0


def test_tightening_moves_both_sides_inwards_and_never_past_each_other():
    bounds = bind([Density(lower=[1, 0, 1], upper=[np.inf, 2, 1.1])], 3).tighten(0.1)
    np.testing.assert_allclose(bounds.lower, [1.1, -np.inf, 1.05])
    np.testing.assert_allclose(bounds.upper, [np.inf, 1.8, 1.05])


def test_a_bound_of_zero_is_measured_in_absolute_terms():
    bounds = bind([Density(upper=[0.0, 10.0])], 2)
    assert bounds.relative_slack(np.array([0.5, 5.0])).tolist() == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("constraint", "sentence"),
    [
        (Density(lower=2.0, upper=1.0), "lower 2 is above upper 1"),
        (Density(lower=[0.1, np.nan]), "entry 1 is NaN"),
        (Density(upper=[1.0, 2.0, 3.0]), "has shape (3,)"),
        (Density(lower=-0.5), "never negative, but the lower bound of density of state 0 is -0.5"),
        (Density(upper=-1.0), "never negative, but the upper bound"),
        (Density(lower=0.1, states=[2]), "`states` names 2; the states run from 0 to 1"),
        (Density(of=[[1.0, 2.0, 3.0]], upper=1.0), "must weigh each of the 2 states"),
        (Density(of=[[1.0, np.inf]], upper=1.0), "must be finite"),
        (Cost([1.0], 1.0), "has shape (1,)"),
        (Cost([1.0, np.inf], 1.0), "must be finite; entry 1 is inf"),
        (Cost([1.0, 1.0], np.nan), "the limit must be a number"),
    ],
)
def test_bad_bounds_get_a_sentence(constraint, sentence):
    with pytest.raises(ValueError) as caught:
        bind([constraint], 2)
    assert sentence in str(caught.value)
