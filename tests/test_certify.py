"""Certificates: weak duality on random models, and every figure again in rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcrl import Multipliers
from dcrl.envs import tiny
from dcrl.tabular import Model, certify, density, objective, occupancy_lp, upper_bound
from problems import bounded, random_policy

seeds = st.integers(0, 10_000)


@given(seeds)
def test_every_dual_value_bounds_every_feasible_policy(seed):
    model, bounds = bounded(seed)
    random = np.random.default_rng([seed, 3])
    multipliers = Multipliers(
        random.exponential(size=len(bounds)), random.exponential(size=len(bounds))
    )
    value = random.normal(size=5) * 5  # any value function will do
    upper = min(
        upper_bound(model, bounds, multipliers), upper_bound(model, bounds, multipliers, value)
    )
    candidates = [random_policy(model, seed)]  # the bounds were built around this one
    candidates += [random_policy(model, seed + k) for k in range(1, 20)]
    candidates.append(occupancy_lp(model, bounds).policy)
    for policy in candidates:
        if bounds.worst_slack(bounds.measure(density(model, policy))) >= -1e-9:
            assert objective(model, policy) <= upper + 1e-7


@given(seeds)
def test_the_optimum_is_certified_without_a_gap(seed):
    model, bounds = bounded(seed)
    optimum = occupancy_lp(model, bounds)
    checked = certify(model, bounds, optimum.policy, optimum.multipliers)
    assert checked.lower == pytest.approx(optimum.objective, abs=1e-8)
    assert checked.upper == pytest.approx(optimum.objective, abs=1e-7)
    assert checked.error < 1e-12


def test_a_poor_value_function_is_paid_for():
    world = tiny.two_rooms(upper=4.0)
    multipliers = Multipliers(np.zeros(1), np.ones(1))
    # r - sigma is zero everywhere, so V = 0 is exact and V = -1 has a residual of 0.1:
    # the bound is 4 - 1 + 0.1 / (1 - 0.9) = 4 again, and V = (0, -1) gives 4 + 0.9... / 0.1.
    assert upper_bound(world.model, world.bounds, multipliers, np.zeros(2)) == pytest.approx(4)
    low = upper_bound(world.model, world.bounds, multipliers, np.full(2, -1.0))
    assert low == pytest.approx(4)
    uneven = upper_bound(world.model, world.bounds, multipliers, np.array([0.0, -1.0]))
    assert uneven == pytest.approx(4 + 1 / 0.1)


def test_prices_on_sides_without_a_bound_prove_nothing():
    world = tiny.two_rooms(upper=4.0)
    with_nonsense = Multipliers(np.array([100.0]), np.ones(1))
    assert upper_bound(world.model, world.bounds, with_nonsense) == pytest.approx(4)


def exactly(array) -> list:
    return [Fraction(float(entry)) for entry in array]


def solve_exactly(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Gauss-Jordan elimination without rounding."""
    size = len(right)
    rows = [[*row, entry] for row, entry in zip(matrix, right, strict=True)]
    for pivot in range(size):
        swap = next(r for r in range(pivot, size) if rows[r][pivot] != 0)
        rows[pivot], rows[swap] = rows[swap], rows[pivot]
        rows[pivot] = [entry / rows[pivot][pivot] for entry in rows[pivot]]
        for row in range(size):
            if row != pivot and rows[row][pivot] != 0:
                factor = rows[row][pivot]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    return [row[-1] for row in rows]


def rational_check(model: Model, bounds, policy, multipliers, value):
    """Recompute slack, objective and upper bound of a certificate with fractions only."""
    size, actions = model.reward.shape
    transition = model.transition.toarray().reshape(size, actions, size)
    discount = Fraction(model.discount)
    pi = [exactly(row) for row in policy]
    step = [
        [
            sum(pi[s][a] * Fraction(float(transition[s, a, t])) for a in range(actions))
            for t in range(size)
        ]
        for s in range(size)
    ]
    flow = [[int(s == t) - discount * step[t][s] for t in range(size)] for s in range(size)]
    rho = solve_exactly(flow, exactly(model.initial))
    earned = sum(
        rho[s] * pi[s][a] * Fraction(float(model.reward[s, a]))
        for s in range(size)
        for a in range(actions)
    )
    basis = bounds.basis.toarray()
    slacks = []
    for row, weights in enumerate(basis):
        measured = sum(Fraction(float(w)) * r for w, r in zip(weights, rho, strict=True))
        if np.isfinite(bounds.lower[row]):
            slacks.append(measured - Fraction(float(bounds.lower[row])))
        if np.isfinite(bounds.upper[row]):
            slacks.append(Fraction(float(bounds.upper[row])) - measured)
    net = exactly(multipliers.net)
    bonus = [
        sum(Fraction(float(basis[row, s])) * net[row] for row in range(len(net)))
        for s in range(size)
    ]
    v = exactly(value)
    excess = Fraction(0)
    for s in range(size):
        for a in range(actions):
            if model.available[s, a]:
                ahead = sum(Fraction(float(transition[s, a, t])) * v[t] for t in range(size))
                q = Fraction(float(model.reward[s, a])) + bonus[s] + discount * ahead
                excess = max(excess, q - v[s])
    constant = Fraction(0)
    for row in range(len(net)):
        if multipliers.upper[row] > 0:
            constant += Fraction(float(multipliers.upper[row])) * Fraction(float(bounds.upper[row]))
        if multipliers.lower[row] > 0:
            constant -= Fraction(float(multipliers.lower[row])) * Fraction(float(bounds.lower[row]))
    start = sum(p * x for p, x in zip(exactly(model.initial), v, strict=True))
    return min(slacks), earned, constant + start + excess / (1 - discount)


@settings(max_examples=15)
@given(seeds, st.integers(2, 8))
def test_certificates_hold_in_rational_arithmetic(seed, num_states):
    model, bounds = bounded(seed, num_states=num_states, num_actions=2)
    optimum = occupancy_lp(model, bounds)
    # Only sides with a bound may carry a price, as `certify` assumes.
    multipliers = Multipliers(
        np.where(np.isfinite(bounds.lower), np.maximum(optimum.multipliers.lower, 0), 0),
        np.where(np.isfinite(bounds.upper), np.maximum(optimum.multipliers.upper, 0), 0),
    )
    value = np.random.default_rng(seed).normal(size=num_states)
    checked = certify(model, bounds, optimum.policy, multipliers, value)
    slack, earned, upper = rational_check(model, bounds, optimum.policy, multipliers, value)
    assert abs(float(earned) - checked.lower) < 1e-9
    assert abs(float(upper) - checked.upper) < 1e-9 * (1 + abs(checked.upper))
    assert earned <= upper  # exactly: no tolerance
    if checked.feasible:
        assert float(slack) >= -1e-12
