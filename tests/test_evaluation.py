import numpy as np
import pytest
import scipy.stats

from dcrl import Density, World, evaluate, evaluate_exactly
from dcrl.density.intervals import bernstein, clopper_pearson, student
from dcrl.envs import tiny
from problems import random_model, random_policy


def with_upper(factor: float) -> tuple[World, np.ndarray, np.ndarray]:
    model = random_model(9, branches=2)
    policy = random_policy(model, 9)
    rho = evaluate_exactly(World("w", model, (Density(upper=1e6),)), policy).value.estimate
    return World("random", model, (Density(upper=factor * rho),)), policy, rho


def test_exact_verdicts_have_no_doubt():
    world = tiny.two_rooms(upper=4.5)
    uniform = world.model.uniform_policy()  # its density in the rich room is 4.5
    assert evaluate_exactly(world, uniform, tolerance=1e-9).verdict == "kept"
    assert evaluate_exactly(tiny.two_rooms(upper=4.4), uniform).verdict == "broken"
    close = evaluate_exactly(tiny.two_rooms(upper=4.4), uniform)
    assert close.worst_slack == pytest.approx(-0.1 / 4.4)
    assert close.worst_slack_low == close.worst_slack


@pytest.mark.parametrize("guaranteed", [False, True])
def test_fresh_episodes_decide_what_is_clear_and_leave_open_what_is_not(guaranteed):
    for factor, verdict in ((1.3, "kept"), (0.7, "broken"), (1.0, "undecided")):
        world, policy, _ = with_upper(factor)
        vans = 60_000 if guaranteed else 10_000
        seen = evaluate(world, policy, key=1, vans=vans, guaranteed=guaranteed)
        assert seen.verdict == verdict
        assert seen.worst_slack_low < seen.worst_slack


def test_estimates_are_right():
    world, policy, rho = with_upper(1.0)
    seen = evaluate(world, policy, key=3, vans=20_000)
    exact = evaluate_exactly(world, policy)
    assert seen.objective.low[0] < exact.objective.estimate[0] < seen.objective.high[0]
    assert (seen.value.low < rho).all()
    assert (rho < seen.value.high).all()
    assert seen.episodes == 20_000
    assert seen.tail < 1e-4


def test_evaluation_refuses_what_it_cannot_promise():
    world = tiny.fork()
    policy = world.model.uniform_policy()
    with pytest.raises(ValueError, match="discount below 1"):
        evaluate(world, policy, guaranteed=True)
    with pytest.raises(ValueError, match="vans must be at least 2"):
        evaluate(world, policy, vans=1)


def misses(interval, truth) -> float:
    return float(np.mean((truth < interval.low) | (truth > interval.high)))


def test_intervals_cover_as_often_as_they_claim():
    """Each column is a repetition: ten thousand intervals from bursts, rare and large."""
    random = np.random.default_rng(0)
    chance, size, count = 0.2, 3.0, 200
    samples = size * (random.random((count, 10_000)) < chance)
    largest = np.full(10_000, size)
    assert misses(student(samples, 0.9), chance * size) == pytest.approx(0.1, abs=0.02)
    assert misses(bernstein(samples, largest, 0.9), chance * size) <= 0.1
    hits = (samples > 0).sum(0).astype(float)
    assert misses(clopper_pearson(hits, count, 0.9), chance) <= 0.1


def test_clopper_pearson_is_scipys():
    for hits in (0, 3, 10):
        exact = scipy.stats.binomtest(hits, 10).proportion_ci(0.95)
        found = clopper_pearson(np.array([float(hits)]), 10)
        assert (found.low[0], found.high[0]) == pytest.approx((exact.low, exact.high))


def test_an_interval_needs_two_samples():
    with pytest.raises(ValueError, match="at least 2 samples; got 1"):
        student(np.ones((1, 1)))
