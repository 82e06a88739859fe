"""Algorithm 1 with every dual, on worlds whose answer is known."""

import jax
import numpy as np
import pytest

import dcrl
from dcrl import Cost, Density, Model, QLearning, Status, World, solve
from dcrl.density import Counts, Exact
from dcrl.dual import Ascent, CrossEntropy, Fixed, Master, Pi
from dcrl.envs import express, tiny
from dcrl.tabular import density, occupancy_lp
from problems import bounded

TINY = [tiny.two_rooms(), tiny.fork(), tiny.detour(), tiny.slippery()]


@pytest.mark.parametrize("world", TINY, ids=lambda world: world.name)
def test_the_master_finds_the_optimum_and_says_so(world):
    found = solve(world, gap=1e-6)
    optimum = occupancy_lp(world.model, world.bounds).objective
    assert found.status is Status.GAP
    assert found.objective == pytest.approx(optimum, rel=2e-6)
    assert found.optimum_lower is not None
    # Frequencies of random outcomes are not probabilities; these worlds have one that slips.
    slack = 0 if world.name != "slippery" else 1e-3
    assert found.optimum_lower - slack <= optimum <= found.optimum_upper + slack + 1e-9


@pytest.mark.parametrize("world", TINY, ids=lambda world: world.name)
def test_pi_control_settles_at_the_optimum(world):
    found = solve(world, dual=Pi(), gap=5e-3, rounds=2000)
    optimum = occupancy_lp(world.model, world.bounds).objective
    assert found.objective == pytest.approx(optimum, rel=1e-2)
    assert world.bounds.worst_slack(world.bounds.measure(found.density)) >= -1e-9


def test_ascent_swings_where_one_policy_cannot_be_optimal():
    """The bridge of the fork: greedy policies cross it always or never, and never settle."""
    found = solve(tiny.fork(upper=0.4), dual=Ascent(0.5), rounds=400, most_repair=0.0)
    assert found.status is Status.ROUNDS
    late = [row.worst_slack for row in found.history[200:]]
    assert min(late) == pytest.approx(-1.5)  # always: 1.0 against a bound of 0.4
    assert max(late) == pytest.approx(1.0)  # never


def test_softmax_ascent_settles_where_greedy_ascent_swings():
    found = solve(
        tiny.fork(upper=0.4),
        learner=QLearning(temperature=0.2),
        density=Exact(tiny.fork().model),
        dual=Ascent(0.2),
        most_repair=0.0,
        kkt=1e-2,
        gap=0.0,
    )
    assert found.status is Status.KKT
    assert found.density[1] == pytest.approx(0.4, rel=1e-2)


def test_cross_entropy_stops_at_the_first_policy_that_keeps_the_bounds():
    world = tiny.detour(lower=0.25)
    found = solve(
        world,
        learner=QLearning(temperature=0.3),
        density=Exact(world.model),
        dual=CrossEntropy(mean=1.0, spread=1.0),
        most_repair=0.0,
    )
    assert found.status is Status.DONE
    assert found.density[1] >= 0.25 - 1e-9
    assert all(row.worst_slack < 0 for row in found.history[:-1])


def test_without_bounds_the_learner_is_alone():
    world = tiny.two_rooms()
    found = solve(world, dual=Fixed(), most_repair=0.0)
    assert found.objective == pytest.approx(9.0, abs=1e-3)
    assert len(found.history) == 1
    assert found.worst_slack == pytest.approx((4 - 9) / 4, abs=1e-3)


def test_express_is_solved_to_the_optimum_from_transitions_alone():
    world = express(points=20, lower=0.3, seed=2)
    found = solve(world)
    optimum = occupancy_lp(world.model, world.bounds).objective
    assert found.status is Status.GAP
    assert found.certificate.feasible
    assert found.untried == 0
    rho = density(world.model, found.policy)
    assert world.bounds.worst_slack(world.bounds.measure(rho)) >= 0
    assert optimum * 1.005 <= found.objective <= optimum + 1e-9
    assert found.optimum_upper >= optimum - 1e-9


def test_any_density_serves_any_dual():
    world = express(points=10, lower=0.1)
    counted = solve(world, density=Counts(vans=8))
    exact = solve(world, density=Exact(world.model))
    assert counted.objective == pytest.approx(exact.objective, rel=5e-3)


@pytest.mark.parametrize("dual", [Master(), Pi()], ids=["master", "pi"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bounds_of_all_kinds_at_once(dual, seed):
    model, bounds = bounded(seed, branches=1)
    world = World("random", model, (_as_density(bounds),))
    found = solve(world, dual=dual, gap=1e-2, rounds=3000)
    optimum = occupancy_lp(model, bounds).objective
    assert found.certificate.feasible
    assert abs(found.objective - optimum) <= 0.015 * abs(optimum)


def _as_density(bounds) -> Density:
    return Density(of=bounds.basis.toarray(), lower=bounds.lower, upper=bounds.upper)


def test_infeasible_bounds_are_recognised_and_named():
    world = tiny.two_rooms()
    both = World("both", world.model, (Density(lower=[3.0, 8.0]),), ("poor", "rich"))
    found = solve(both)
    assert found.status is Status.INFEASIBLE
    assert "density of" in found.message
    assert found.optimum_lower is None
    assert len(found.history) < 20


def test_bounds_that_leave_no_room_end_where_estimates_end():
    # 3 + 7 is all the mass there is, and counted densities miss the tail of it.
    world = tiny.two_rooms()
    tight = World("tight", world.model, (Density(lower=[3.0, 7.0]),))
    found = solve(tight)
    assert found.status is Status.GAP
    assert found.objective == pytest.approx(7.0, rel=1e-4)
    assert found.worst_slack >= -1e-4
    assert len(found.history) < 300


def test_a_margin_that_is_too_wide_is_said():
    world = tiny.two_rooms()
    narrow = World("narrow", world.model, (Density(lower=[0, 8.9]),))
    found = solve(narrow, margin=0.05)
    assert found.status is Status.INFEASIBLE
    assert "lower `margin`" in found.message


def test_a_state_out_of_reach_cannot_be_asked_for():
    island = Model.from_arrays(np.eye(2)[:, None], np.zeros((2, 1)), [1, 0], 0.5)
    with pytest.raises(ValueError, match="no van can get there"):
        solve(World("island", island, (Density(lower=[0, 0.1]),)))


def test_a_margin_leaves_room():
    world = tiny.two_rooms(upper=4.0)
    found = solve(world, margin=0.1, gap=0.2)
    assert found.density[1] == pytest.approx(3.6, abs=1e-3)


def test_the_same_seed_gives_the_same_numbers():
    world = express(points=10, lower=0.3)
    first, second = solve(world, key=5), solve(world, key=jax.random.key(5))
    np.testing.assert_array_equal(first.policy, second.policy)
    assert [row.answer_objective for row in first.history] == [
        row.answer_objective for row in second.history
    ]


def test_time_and_rounds_are_limits():
    world = express(points=20, lower=0.5)
    assert solve(world, gap=0.0, rounds=3).status is Status.ROUNDS
    assert solve(world, gap=0.0, dual=Pi(), seconds=0.05).status is Status.TIME


def test_stopping_by_hand_returns_what_was_found():
    world = express(points=20, lower=0.3)

    def interrupt(row):
        if row.round == 10:
            raise KeyboardInterrupt

    found = solve(world, gap=0.0, on_round=interrupt)
    assert found.status is Status.STOPPED
    assert len(found.history) == 10
    assert found.certificate.feasible  # a mixture of the policies so far keeps the bounds
    same = solve(world, gap=0.0, rounds=10)
    np.testing.assert_array_equal(found.policy, same.policy)


def test_every_round_is_told():
    told = []
    found = solve(tiny.detour(), on_round=told.append)
    assert tuple(told) == found.history
    assert [row.round for row in told] == list(range(1, len(told) + 1))
    uppers = [row.optimum_upper for row in told]
    assert uppers == sorted(uppers, reverse=True)


def test_a_cost_is_a_bound_like_any_other():
    world = tiny.slippery(limit=1.0)
    twice = World("twice", world.model, (Cost([0.0, 2.0], 2.0),))
    assert solve(twice, tries=2000).objective == pytest.approx(1.0, abs=1e-6)


def test_the_result_says_what_happened():
    text = str(solve(tiny.fork()))
    assert "The bounds are kept and the certified gap is within the one asked for." in text
    assert "objective -2.2, optimum between -2.2 and -2.2" in text
    assert dcrl.Status.KKT.value in str(Status.KKT)
