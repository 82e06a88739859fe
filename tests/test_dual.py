"""How multipliers move: each rule against hand figures, and the master against the exact LP."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcrl import Density, Multipliers, bind
from dcrl.dual import Ascent, Column, CrossEntropy, Fixed, Master, Pi, mix, residuals
from dcrl.dual.ascent import ascend
from dcrl.envs import tiny
from dcrl.tabular import best_response, density, occupancy_lp
from dcrl.tabular.mix import pair_density
from problems import bounded, random_policy

seeds = st.integers(0, 10_000)


def column(model, bounds, policy) -> Column:
    x = pair_density(model, policy)
    return Column(bounds.measure(x.sum(1)), float((x * model.reward).sum()), x)


def just(value, objective=0.0) -> Column:
    return Column(np.asarray(value, float), objective, np.zeros((1, 1)))


def test_ascent_is_lines_9_and_10():
    bounds = bind([Density(lower=[1.0, 0.5], upper=[2.0, 3.0])], 2)
    before = Multipliers(np.array([0.0, 0.3]), np.array([0.1, 0.0]))
    after = ascend(before, bounds, just([0.5, 4.0]), step_size=0.1)
    # sigma_lower + 0.1 (lower - rho) and sigma_upper + 0.1 (rho - upper), never below zero
    np.testing.assert_allclose(after.lower, [0.05, 0.0])
    np.testing.assert_allclose(after.upper, [0.0, 0.1])


def test_pi_starts_from_the_proportional_term_and_integrates_up_to_the_clip():
    bounds = bind([Density(upper=[2.0])], 1)
    rule = Pi(proportional=0.5, integral=0.1, averaging=False)
    state = rule.init(bounds, just([3.0]), reward_scale=10.0, length=1.0)
    assert state.multipliers.upper[0] == pytest.approx(0.5 * 10 * 0.5)
    state = rule.update(state, bounds, just([8.0]), 0.0)  # violated by 300 %, integrated as 100 %
    assert state.integral.upper[0] == pytest.approx(0.1 * 10 * 1)
    assert state.multipliers.upper[0] == pytest.approx(1 + 0.5 * 10 * 3)
    for _ in range(5):  # slack unwinds the integral, and never past zero
        state = rule.update(state, bounds, just([1.0]), 0.0)
    assert state.integral.upper[0] == 0
    assert state.multipliers.upper[0] == 0


def test_pi_lets_a_policy_in_with_the_best_weight():
    """The line search against a fine grid of the augmented Lagrangian."""
    bounds = bind([Density(lower=[1.0, 0.0], upper=[np.inf, 2.0])], 2)
    rule = Pi(proportional=0.7, integral=0.2)
    state = rule.init(bounds, just([0.2, 0.5], -1.0), 2.0, 1.0)
    state = rule.update(state, bounds, just([0.4, 1.0], -2.0), 0.0)
    new = just([3.0, 5.0], -1.5)

    def lagrangian(weight):
        seen = mix([state.answer, new], np.array([1 - weight, weight]))
        error = np.array([1.0 - seen.value[0], (seen.value[1] - 2.0) / 2.0])
        held = np.array([state.integral.lower[0], state.integral.upper[1]]) / 2.0
        size = np.array([1.0, 2.0])
        penalty = size * 2.0 / (2 * 0.7) * np.maximum(0, held + 0.7 * error) ** 2
        return seen.objective - penalty.sum()

    grid = np.linspace(0, 1, 100_001)
    best = grid[np.argmax([lagrangian(weight) for weight in grid])]
    after = rule.update(state, bounds, new, 0.0)
    share = (after.answer.value[0] - state.answer.value[0]) / (3.0 - state.answer.value[0])
    assert 0 < best < 1
    assert share == pytest.approx(best, abs=2e-5)


def test_pi_keeps_out_a_policy_that_only_harms():
    bounds = bind([Density(upper=[2.0])], 1)
    rule = Pi()
    state = rule.init(bounds, just([1.0], 0.0), 1.0, 1.0)
    assert rule.update(state, bounds, just([5.0], -1.0), 0.0).answer is state.answer


@given(seeds)
def test_the_master_over_all_policies_is_the_occupancy_lp(seed):
    model, bounds = bounded(seed, num_states=3, num_actions=2)
    rule = Master(slack_price=1e4)  # dear enough at once: no upper bounds are given here
    state = rule.init(bounds, column(model, bounds, random_policy(model, seed)), 1.0, 1.0)
    for choice in itertools.product(range(2), repeat=3):
        if model.available[np.arange(3), list(choice)].all():
            state = rule.update(
                state, bounds, column(model, bounds, np.eye(2)[list(choice)]), np.inf
            )
    optimum = occupancy_lp(model, bounds)
    assert state.answer.objective == pytest.approx(optimum.objective, abs=1e-7)
    assert bounds.worst_slack(state.answer.value) >= -1e-7


@given(seeds)
def test_the_master_closes_the_gap_on_random_models(seed):
    model, bounds = bounded(seed)
    rule = Master()
    state = rule.init(bounds, column(model, bounds, random_policy(model, seed + 1)), 1.0, 1.0)
    upper = np.inf
    for _ in range(300):
        bonus = bounds.bonus(state.multipliers)
        reward = model.reward if state.earning else np.zeros_like(model.reward)
        modified = type(model)(**{**model.__dict__, "reward": reward})
        response = best_response(modified, bonus)
        worth = float(model.initial @ response.value)
        if state.earning:
            upper = min(upper, bounds.worth(state.multipliers) + worth)
        state = rule.update(state, bounds, column(model, bounds, response.policy), worth)
        kept = bounds.worst_slack(state.answer.value) >= -1e-9
        if kept and upper - state.answer.objective <= 1e-6:
            break
    optimum = occupancy_lp(model, bounds).objective
    assert state.answer.objective == pytest.approx(optimum, abs=1e-5)
    assert upper == pytest.approx(optimum, abs=1e-5)


def infeasible_state(rule):
    world = tiny.two_rooms()
    bounds = bind([Density(lower=[3.0, 8.0])], 2)  # 11 of a mass of 10
    model = world.model
    state = rule.init(bounds, column(model, bounds, model.uniform_policy()), 1.0, 1.0)
    for _ in range(20):
        nothing = type(model)(**{**model.__dict__, "reward": np.zeros_like(model.reward)})
        response = best_response(nothing, bounds.bonus(state.multipliers))
        worth = float(model.initial @ response.value)
        state = rule.update(state, bounds, column(model, bounds, response.policy), worth)
        if state.infeasible:
            break
    return state


def test_the_master_proves_that_bounds_are_infeasible():
    state = infeasible_state(Master())
    assert state.infeasible
    # At least one unit is missing, relative to a bound of at most 8.
    assert -state.best_bound <= 1 / 8 + 1e-9


def test_the_master_forgets_columns_that_are_never_used():
    model, bounds = bounded(11)
    rule = Master(pool=2)
    state = rule.init(bounds, column(model, bounds, random_policy(model, 11)), 1.0, 1.0)
    for seed in range(200):
        state = rule.update(
            state, bounds, column(model, bounds, random_policy(model, seed)), np.inf
        )
    assert len(state.columns) <= 2 * (len(bounds) + 1)
    assert state.program.num_columns == len(state.columns) == len(state.idle)
    everything = Master(pool=1000)
    full = everything.init(bounds, column(model, bounds, random_policy(model, 11)), 1.0, 1.0)
    for seed in range(200):
        full = everything.update(
            full, bounds, column(model, bounds, random_policy(model, seed)), np.inf
        )
    assert state.answer.objective == pytest.approx(full.answer.objective, abs=1e-6)


def test_slack_that_is_too_cheap_gets_dearer():
    world = tiny.detour(lower=0.5)
    bounds = world.bounds
    rule = Master(
        slack_price=1e-3
    )  # giving up the shop saves 3 per visit and costs next to nothing
    passes = column(world.model, bounds, np.array([[1.0, 0], [1, 0], [1, 0]]))
    visits = column(world.model, bounds, np.array([[0, 1.0], [1, 0], [1, 0]]))
    state = rule.init(bounds, visits, 1.0, 1.0)
    for seen in [passes, visits] * 10:
        state = rule.update(state, bounds, seen, float(seen.objective + 3 * 0.5))
    assert bounds.worst_slack(state.answer.value) >= -1e-9
    assert state.answer.objective == pytest.approx(-2.5)


def test_cross_entropy_refits_to_the_elites():
    bounds = bind([Density(lower=[1.0])], 1)
    rule = CrossEntropy(samples=4, elites=2, smoothing=0.5, seed=3)
    noisy = CrossEntropy(samples=4, elites=2, smoothing=0.5, seed=3, noise=2.0)
    state, wide = (
        rule.init(bounds, just([0.0]), 1.0, 1.0),
        noisy.init(bounds, just([0.0]), 1.0, 1.0),
    )
    drawn = state.drawn[:, 0]
    for value in [0.1, 0.9, 0.5, 0.7]:
        state = rule.update(state, bounds, just([value]), 0.0)
        wide = noisy.update(wide, bounds, just([value]), 0.0)
    # Violations 0.9, 0.1, 0.5, 0.3: the elites are the second and the last vector.
    elite = drawn[[1, 3]]
    assert state.mean[0] == pytest.approx(0.5 * elite.mean() + 0.5 * 0.5)
    assert state.spread[0] == pytest.approx(0.5 * elite.std() + 0.5 * 0.5)
    assert wide.spread[0] == 2.0
    assert state.generation == 1
    assert state.answer.value[0] == 0.9
    assert not state.settled
    assert rule.update(state, bounds, just([1.0]), 0.0).settled


def test_cross_entropy_draws_no_negative_multipliers():
    bounds = bind([Density(lower=0.1, upper=1.0)], 3)
    state = CrossEntropy(mean=0.1, spread=1.0, samples=500).init(bounds, just([0, 0, 0]), 1.0, 1.0)
    assert state.drawn.shape == (500, 6)
    assert state.drawn.min() >= 0


def test_fixed_multipliers_stay():
    bounds = bind([Density(upper=[1.0])], 1)
    given_ones = Multipliers(np.zeros(1), np.array([0.7]))
    state = Fixed(given_ones).init(bounds, just([2.0]), 1.0, 1.0)
    state = Fixed(given_ones).update(state, bounds, just([5.0]), 0.0)
    assert state.multipliers.upper[0] == 0.7
    assert state.settled


def test_residuals_are_zero_at_the_optimum_only():
    world = tiny.two_rooms(upper=4.0)
    optimum = occupancy_lp(world.model, world.bounds)
    value = world.bounds.measure(optimum.density)
    at = residuals(world.bounds, optimum.multipliers, value, optimum.objective)
    np.testing.assert_allclose(at, [0.0, 0.0], atol=1e-9)
    paid_for_nothing = residuals(world.bounds, optimum.multipliers, np.array([2.0]), 2.0)
    # One unit of price on two units of slack, relative to an objective of two.
    assert (paid_for_nothing.violation, paid_for_nothing.complementarity) == (0.0, 1.0)
    broken = residuals(world.bounds, optimum.multipliers, np.array([5.0]), 5.0)
    assert broken.violation == pytest.approx(0.25)


def test_columns_average_in_every_field():
    world = tiny.two_rooms()
    bounds = world.bounds
    both = [
        column(world.model, bounds, policy)
        for policy in (world.model.uniform_policy(), np.array([[1.0, 0.0], [0.0, 1.0]]))
    ]
    mixed = mix(both, np.array([0.25, 0.75]))
    assert mixed.objective == pytest.approx(0.25 * both[0].objective + 0.75 * both[1].objective)
    np.testing.assert_allclose(mixed.value, bounds.measure(mixed.makeup.sum(1)))


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        (Ascent, {"step_size": 0.0}),
        (Pi, {"proportional": 0.0}),
        (Pi, {"integral": -1.0}),
        (Master, {"smoothing": 1.0}),
        (Master, {"slack_price": 0.0}),
        (Master, {"pool": 1}),
        (CrossEntropy, {"elites": 1}),
        (CrossEntropy, {"elites": 60}),
        (CrossEntropy, {"smoothing": 0.0}),
        (CrossEntropy, {"noise": -1.0}),
    ],
)
def test_bad_settings_are_refused(rule, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        rule(**wrong)


def test_an_unpriced_density_is_the_unconstrained_one():
    world = tiny.two_rooms()
    free = best_response(world.model, world.bounds.bonus(Multipliers.zeros(1)))
    assert density(world.model, free.policy)[1] == pytest.approx(9.0)
