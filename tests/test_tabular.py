"""Models, dynamic programming, the occupancy LP and mixtures, against hand and exact answers."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from dcrl import Density, Model, bind
from dcrl.envs import tiny
from dcrl.tabular import (
    Infeasible,
    best_response,
    density,
    fold,
    fold_mixture,
    least_violation,
    most_slack,
    objective,
    occupancy_lp,
    repair,
    soft_best_response,
    value,
)
from dcrl.tabular.dp import action_values, chain
from dcrl.tabular.mix import pair_density
from problems import bounded, random_model, random_policy

seeds = st.integers(0, 10_000)


def test_a_chain_matches_its_hand_solution():
    p, q, discount = 0.1, 0.2, 0.9
    model = Model.from_arrays([[[1 - p, p]], [[q, 1 - q]]], [[0.0], [1.0]], [1, 0], discount)
    rho = density(model, np.ones((2, 1)))
    at_first = (1 - discount + discount * q) / (1 - discount + discount * (p + q))
    np.testing.assert_allclose(rho * (1 - discount), [at_first, 1 - at_first], rtol=1e-12)


@given(seeds)
def test_densities_sum_to_the_discounted_mass(seed):
    model = random_model(seed)
    assert density(model, random_policy(model, seed)).sum() == pytest.approx(10.0, rel=1e-12)


@given(seeds)
def test_mass_that_ends_is_not_counted_again(seed):
    """Every unit of mass ends at last: `sum_{s alive} (1 - gamma) rho(s) + rho(end) = 1`."""
    model = random_model(seed, terminal=True)
    rho = density(model, random_policy(model, seed))
    assert 0.1 * rho[1:].sum() + rho[0] == pytest.approx(1.0, rel=1e-12)


@given(seeds)
def test_density_satisfies_the_papers_recursion(seed):
    """`rho(s) = phi(s) + gamma sum_{s',a} rho(s') pi(a|s') P(s|s',a)`, and is its time sum."""
    model = random_model(seed)
    policy = random_policy(model, seed)
    rho = density(model, policy)
    step = model.transition.toarray().reshape(5, 3, 5)
    after = np.einsum("s,sa,sat->t", rho, policy, step)
    np.testing.assert_allclose(rho, model.initial + model.discount * after, atol=1e-12)
    summed, now = np.zeros(5), model.initial
    for _ in range(400):
        summed = summed + now
        now = model.discount * chain(model, policy).T @ now
    np.testing.assert_allclose(rho, summed, atol=1e-12)


@given(seeds)
def test_density_and_value_are_dual(seed):
    """`rho @ r_pi = phi @ V`: Section 3 of the paper."""
    model = random_model(seed)
    policy = random_policy(model, seed)
    assert objective(model, policy) == pytest.approx(model.initial @ value(model, policy))


@given(seeds)
def test_best_response_beats_every_deterministic_policy(seed):
    model = random_model(seed, num_states=3, num_actions=2)
    bonus = np.random.default_rng(seed).normal(size=3)
    found = best_response(model, bonus)
    values = [
        value(model, np.eye(2)[list(choice)], model.reward + bonus[:, None])
        for choice in itertools.product(range(2), repeat=3)
        if model.available[np.arange(3), list(choice)].all()
    ]
    np.testing.assert_allclose(found.value, np.max(values, axis=0), atol=1e-10)


@given(seeds)
def test_soft_values_are_the_fixed_point_of_log_sum_exp(seed):
    model = random_model(seed)
    soft = soft_best_response(model, 0.3)
    q = action_values(model, soft.value)
    again = 0.3 * np.log(np.where(model.available, np.exp(q / 0.3), 0).sum(1))
    np.testing.assert_allclose(soft.value, again, atol=1e-8)
    np.testing.assert_allclose(soft.policy, np.exp((q - again[:, None]) / 0.3), atol=1e-7)
    bias = soft.value - best_response(model).value
    assert (bias >= -1e-9).all()
    assert (bias <= 0.3 * np.log(3) / 0.1 + 1e-9).all()


@given(seeds)
def test_the_lp_agrees_with_dynamic_programming_where_nothing_is_bounded(seed):
    model = random_model(seed)
    optimum = occupancy_lp(model, bind([], 5))
    assert optimum.objective == pytest.approx(
        model.initial @ best_response(model).value, abs=1e-8, rel=1e-8
    )
    np.testing.assert_allclose(density(model, optimum.policy), optimum.density, atol=1e-8)


@given(seeds)
def test_multipliers_make_the_optimum_unconstrained(seed):
    """Strong duality: the optimum is what the best response to the multipliers is worth."""
    model, bounds = bounded(seed)
    optimum = occupancy_lp(model, bounds)
    assert bounds.worst_slack(bounds.measure(optimum.density)) >= -1e-7
    response = best_response(model, bounds.bonus(optimum.multipliers))
    dual = bounds.worth(optimum.multipliers) + model.initial @ response.value
    assert optimum.objective == pytest.approx(dual, abs=1e-7)


@given(seeds)
def test_both_solvers_find_the_same_optimum(seed):
    model, bounds = bounded(seed)
    highs, clarabel = (occupancy_lp(model, bounds, name) for name in ("highs", "clarabel"))
    assert highs.objective == pytest.approx(clarabel.objective, abs=1e-7)


@pytest.mark.parametrize(
    ("world", "optimum", "net"),
    [
        (tiny.two_rooms(upper=3.0), 3.0, -1.0),
        (tiny.fork(upper=0.7), -1.6, -2.0),
        (tiny.detour(lower=0.5), -2.5, 3.0),
        (tiny.slippery(limit=2.5), 2.5, -1.0),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_tiny_worlds_have_the_answers_they_state(world, optimum, net):
    found = occupancy_lp(world.model, world.bounds)
    assert found.objective == pytest.approx(optimum, abs=1e-9)
    np.testing.assert_allclose(found.multipliers.net, [net], atol=1e-9)


def test_tiny_worlds_state_their_unbounded_optimum():
    assert best_response(tiny.two_rooms(discount=0.8).model).value[0] == pytest.approx(4.0)
    ice = best_response(tiny.slippery(slip=0.3, discount=0.7).model).value[0]
    assert ice == pytest.approx(0.7 / (0.3 * (1 + 0.7 * 0.3)))


def test_infeasible_bounds_are_named():
    world = tiny.detour(lower=0.25)
    both = bind(
        [Density(lower=1.5, states=[1]), Density(upper=5, states=[0])], 3, world.state_names
    )
    with pytest.raises(Infeasible) as caught:
        occupancy_lp(world.model, both)
    assert caught.value.names == ("density of shop",)
    assert "breaks density of shop" in str(caught.value)
    # At most one visit per trip is possible, so a third of the bound must be missed.
    assert least_violation(world.model, both).total == pytest.approx(1 / 3)


def test_a_state_out_of_reach_cannot_be_bounded_below():
    island = Model.from_arrays(np.eye(2)[:, None], np.zeros((2, 1)), [1, 0], 0.5)
    with pytest.raises(Infeasible, match="density of state 1"):
        occupancy_lp(island, bind([Density(lower=[0, 0.1])], 2))


@given(seeds)
def test_folding_a_mixture_keeps_its_density(seed):
    model = random_model(seed)
    policies = [random_policy(model, seed + k) for k in range(3)]
    weights = np.random.default_rng(seed).dirichlet(np.ones(3))
    mixed = sum(w * density(model, p) for w, p in zip(weights, policies, strict=True))
    folded = fold_mixture(model, policies, weights)
    np.testing.assert_allclose(density(model, folded), mixed, atol=1e-10)
    earned = sum(w * objective(model, p) for w, p in zip(weights, policies, strict=True))
    assert objective(model, folded) == pytest.approx(earned, abs=1e-10)


def test_folding_is_uniform_where_nothing_was_visited():
    model = random_model(3)
    x = np.zeros(model.reward.shape)
    x[0, 0] = 1.0
    np.testing.assert_allclose(fold(model, x)[1:], model.uniform_policy()[1:])


@given(seeds)
def test_repair_restores_the_bounds_with_the_least_share(seed):
    model, bounds = bounded(seed)
    roomy = most_slack(model, bounds)
    assert roomy.slack > 0
    broken = pair_density(model, random_policy(model, seed + 7))
    mended = repair(bounds, broken, roomy.pair_density)
    slack = bounds.slack(bounds.measure(mended.pair_density.sum(1)))
    assert slack.min() >= -1e-9
    if 0 < mended.theta < 1:  # no smaller share would do
        assert slack.min() == pytest.approx(0, abs=1e-9)
    policy = fold(model, mended.pair_density)
    assert bounds.worst_slack(bounds.measure(density(model, policy))) >= -1e-8


def test_the_roomiest_policy_has_the_slack_it_claims():
    world = tiny.fork(upper=0.4)
    bounds = bind([Density(lower=0.1, upper=0.5, states=[1])], 4)
    roomy = most_slack(world.model, bounds)
    # min((x - .1) / .1, (.5 - x) / .5) is greatest at x = 1/6, where both sides are 2/3
    assert roomy.slack == pytest.approx(2 / 3)
    assert density(world.model, roomy.policy)[1] == pytest.approx(1 / 6)


def test_repair_refuses_a_policy_without_room():
    world = tiny.two_rooms(upper=4.0)
    rich = pair_density(world.model, best_response(world.model).policy)
    with pytest.raises(ValueError, match="with room to spare"):
        repair(world.bounds, rich, rich)


def test_sparse_and_dense_transitions_are_the_same_model():
    dense = random_model(5)
    rows = scipy.sparse.csr_array(dense.transition)
    sparse = Model.from_arrays(rows, dense.reward, dense.initial, 0.9, available=dense.available)
    policy = random_policy(dense, 5)
    np.testing.assert_array_equal(density(dense, policy), density(sparse, policy))


STAY = [[[1.0, 0.0]], [[0.0, 1.0]]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"discount": 1.5}, "the discount must lie in [0, 1]; got 1.5"),
        ({"discount": -0.1}, "the discount must lie in [0, 1]"),
        ({"transition": [[[0.5, 0.4]], [[0, 1]]]}, "row (s=0, a=0) sums to 0.9"),
        ({"transition": [[[1.5, -0.5]], [[0, 1]]]}, "finite and not negative"),
        ({"transition": np.ones((2, 1, 3))}, "with 2 states"),
        ({"initial": [0.5, 0.4]}, "initial must sum to 1; it sums to 0.9"),
        ({"initial": [1.5, -0.5]}, "initial must be probabilities"),
        ({"reward": [[0.0], [np.nan]]}, "reward[1, 0] is nan"),
        ({"reward": [[0.0, 1.0]]}, "reward must have shape (2, 1)"),
        ({"available": [[True], [False]]}, "state 1 has no available action"),
        ({"terminal": [True]}, "terminal must have shape (2,)"),
    ],
)
def test_bad_models_get_a_sentence(changes, sentence):
    good = {"transition": STAY, "reward": [[0.0], [0.0]], "initial": [1, 0], "discount": 0.9}
    with pytest.raises(ValueError) as caught:
        Model.from_arrays(**{**good, **changes})
    assert sentence in str(caught.value)


def test_nothing_is_earned_in_a_terminal_state():
    model = Model.from_arrays(STAY, [[1.0], [5.0]], [0.5, 0.5], 0.5, terminal=[False, True])
    assert objective(model, np.ones((2, 1))) == pytest.approx(0.5 * 2 * 1.0)


def test_a_policy_that_never_ends_has_no_undiscounted_density():
    model = Model.from_arrays(STAY, [[0.0], [0.0]], [1, 0], 1.0)
    with pytest.raises(ValueError, match="never ends"):
        density(model, np.ones((2, 1)))


def test_an_unbounded_reward_is_said():
    model = Model.from_arrays(
        [[[1, 0], [0, 1]], [[0, 1], [0, 1]]], [[1, 0], [0, 0]], [1, 0], 1.0, terminal=[False, True]
    )
    with pytest.raises(ValueError, match="earns for ever"):
        occupancy_lp(model, bind([], 2))


def test_unknown_solver_is_named():
    world = tiny.fork()
    with pytest.raises(ValueError, match="unknown solver 'simplex'"):
        occupancy_lp(world.model, world.bounds, "simplex")
