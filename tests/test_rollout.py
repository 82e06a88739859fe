import jax
import numpy as np
import pytest

from dcrl.density import Counts, Exact
from dcrl.density.counts import count_density
from dcrl.envs import express, tiny
from dcrl.explore import explore
from dcrl.replay import Replay
from dcrl.rollout import episodes, place, rollout, simulator
from dcrl.tabular import Model, density
from dcrl.tabular.mix import pair_density
from problems import random_model, random_policy


def test_counts_are_exact_where_nothing_is_random(key):
    world = express(points=20, lower=0.3, seed=1)
    random = np.random.default_rng(0)
    greedy = np.zeros(world.model.reward.shape)
    for state in range(21):
        greedy[state, random.choice(np.flatnonzero(world.model.available[state]))] = 1.0
    seen = rollout(key, simulator(world.model), greedy, vans=3, tail=1e-9)
    np.testing.assert_allclose(seen.pair_density, pair_density(world.model, greedy), atol=2e-6)


@pytest.mark.parametrize("terminal", [False, True])
def test_counts_agree_with_the_exact_density_up_to_noise(key, terminal):
    model = random_model(7, terminal=terminal, branches=3)
    policy = random_policy(model, 7)
    seen = rollout(key, simulator(model), policy, vans=40_000, tail=1e-6)
    np.testing.assert_allclose(seen.pair_density, pair_density(model, policy), atol=0.03)
    apart = episodes(key, simulator(model), policy, vans=40_000)
    error = apart.density.std(0) / 200
    assert (np.abs(apart.density.mean(0) - density(model, policy)) < 4.5 * error + 1e-5).all()
    earned = float(density(model, policy) @ (policy * model.reward).sum(1))
    assert abs(apart.earned.mean() - earned) < 4.5 * apart.earned.std() / 200


def test_the_plain_count_is_the_papers(key):
    """`rho(s_ij) += gamma^j / N`, once by hand and once by driving the same two trips."""
    assert count_density([[0, 1, 2], [0, 2]], 3, 0.5).tolist() == [1.0, 0.25, 0.375]
    model = Model.from_arrays(
        [[[0, 1, 0]], [[0, 0, 1]], [[0, 0, 0]]],
        np.zeros((3, 1)), [0.5, 0.5, 0], 0.5, terminal=[False, False, True],
    )  # fmt: skip
    seen = rollout(key, simulator(model), np.ones((3, 1)), vans=2)
    np.testing.assert_allclose(
        seen.pair_density.sum(1), count_density([[0, 1, 2], [1, 2]], 3, 0.5), atol=1e-12
    )


def test_every_step_is_counted_once_and_ended_vans_not_at_all(key):
    model = tiny.fork().model
    seen = rollout(key, simulator(model), model.uniform_policy(), vans=100)
    assert seen.steps == 200  # two steps per trip
    assert seen.visits.sum() == 300  # and the arrival
    assert seen.tail == 0


def test_the_mass_that_was_cut_off_is_said(key):
    model = tiny.two_rooms(discount=0.9).model
    seen = rollout(key, simulator(model), model.uniform_policy(), vans=50, tail=0.01)
    assert seen.pair_density.sum() + seen.tail == pytest.approx(10.0, abs=1e-9)
    assert 0 < seen.tail <= 0.1


def test_vans_are_placed_so_that_the_start_is_exact(key):
    initial = np.array([0.5, 0.0, 0.29, 0.2, 0.01])
    for vans in (4, 7, 64):
        start, weight = place(key, initial, vans)
        stood_for = np.bincount(start, weight, minlength=5)
        np.testing.assert_allclose(stood_for, initial, atol=1e-12)
    start, weight = place(key, initial, 2)  # too few vans: drawn, equally weighted
    assert weight.tolist() == [0.5, 0.5]


def test_an_episode_without_an_end_is_refused(key, monkeypatch):
    monkeypatch.setattr("dcrl.rollout.MAX_STEPS", 1000)
    jax.clear_caches()
    model = Model.from_arrays(
        [[[1, 0], [0, 1]], [[0, 0], [0, 0]]], np.zeros((2, 2)), [1, 0], 1.0, terminal=[False, True]
    )
    stay = np.array([[1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match="did not end within 1,000 steps"):
        rollout(key, simulator(model), stay)
    jax.clear_caches()


def test_rollouts_repeat_bitwise(key):
    model = random_model(1)
    first, second = (
        rollout(key, simulator(model), model.uniform_policy(), vans=10) for _ in range(2)
    )
    np.testing.assert_array_equal(first.pair_density, second.pair_density)
    np.testing.assert_array_equal(first.visits, second.visits)


def test_exploring_tries_everything_within_reach(key):
    """A corridor of 30 states that random walks hardly ever cross."""
    length = 30
    transition = np.zeros((length, 2, length))
    for state in range(length):
        transition[state, 0, 0] = transition[state, 1, min(state + 1, length - 1)] = 1.0
    model = Model.from_arrays(
        transition, np.zeros((length, 2)), np.eye(length)[0], 0.9,
    )  # fmt: skip
    found = explore(key, simulator(model), vans=4)
    assert found.untried == 0
    assert found.replay.tried.all()


def test_exploring_says_what_is_out_of_reach(key):
    island = Model.from_arrays(np.eye(3)[:, None], np.zeros((3, 1)), [0.5, 0.5, 0], 0.5)
    found = explore(key, simulator(island))
    assert found.untried == 1
    assert found.replay.reached.tolist() == [True, True, False]


def test_the_replay_suggests_the_true_model_where_nothing_is_random(key):
    model = express(points=10, lower=0.1).model
    suggested = explore(key, simulator(model)).replay.model()
    np.testing.assert_array_equal(suggested.transition.toarray(), model.transition.toarray())
    np.testing.assert_array_equal(suggested.reward, model.reward)
    np.testing.assert_array_equal(suggested.available, model.available)


def test_the_replay_counts_frequencies(key):
    model = random_model(3, branches=2)
    sampler = simulator(model)
    seen = rollout(key, sampler, model.uniform_policy(), vans=20_000)
    suggested = Replay.empty(sampler).add(seen).model()
    np.testing.assert_allclose(
        suggested.transition.toarray(), model.transition.toarray(), atol=0.02
    )


def test_the_exact_density_drives_nothing(key):
    world = tiny.slippery()
    policy = world.model.uniform_policy()
    exact = Exact(world.model)(key, simulator(world.model), policy)
    np.testing.assert_array_equal(exact.pair_density, pair_density(world.model, policy))
    assert exact.steps == 0


@pytest.mark.parametrize("wrong", [{"vans": 0}, {"tail": 0.0}, {"tail": 1.0}])
def test_bad_counts_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        Counts(**wrong)
