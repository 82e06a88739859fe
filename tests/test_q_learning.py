import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcrl import QLearning
from dcrl.envs import express
from dcrl.replay import Replay
from dcrl.rollout import simulator
from dcrl.tabular import best_response, occupancy_lp
from dcrl.tabular.dp import action_values
from problems import random_model

seeds = st.integers(0, 10_000)


def full_replay(model) -> Replay:
    """A replay in which every outcome came up as often as it should."""
    world = simulator(model)
    share = np.diff(world.cumulative, axis=2, prepend=0)
    seen = np.where(world.available[..., None], np.round(share * 1e12), 0).astype(np.int64)
    return dataclasses.replace(Replay.empty(world), visits=seen)


@given(seeds)
def test_greedy_values_are_those_of_dynamic_programming(seed):
    model = random_model(seed, terminal=seed % 2 == 0)
    bonus = np.random.default_rng(seed).normal(size=5)
    replay = full_replay(model)
    learner = QLearning(tolerance=1e-9, max_sweeps=100_000)
    state, info = learner.improve(learner.init(replay), replay, bonus)
    exact = best_response(model, bonus)
    np.testing.assert_allclose(
        np.where(model.available, state.q, -np.inf).max(1), exact.value, atol=1e-7
    )
    assert info.value == pytest.approx(model.initial @ exact.value, abs=1e-7)
    assert learner.policy(state, replay).max(1).min() == 1.0


@given(seeds)
def test_the_soft_policy_weighs_the_values_of_dynamic_programming(seed):
    model = random_model(seed)
    replay = full_replay(model)
    learner = QLearning(temperature=0.5, tolerance=1e-9, max_sweeps=100_000)
    state, _ = learner.improve(learner.init(replay), replay, np.zeros(5))
    q = action_values(model, best_response(model).value)
    weight = np.exp((q - q.max(1, keepdims=True)) / (0.5 * replay.reward_scale))
    expected = weight / weight.sum(1, keepdims=True)
    np.testing.assert_allclose(learner.policy(state, replay), expected, atol=1e-6)


@given(seeds, st.sampled_from([32, 64, 128]), st.floats(0.0, 1.0))
def test_the_upper_value_holds_however_early_the_sweeps_stop(seed, sweeps, temperature):
    model = random_model(seed)
    replay = full_replay(model)
    learner = QLearning(temperature=temperature, max_sweeps=sweeps)
    bonus = np.random.default_rng(seed).normal(size=5) * 3
    _, info = learner.improve(learner.init(replay), replay, bonus)
    assert model.initial @ best_response(model, bonus).value <= info.value + info.excess + 1e-9


def test_circling_vans_are_leapt_over():
    """Where prices make circling worth while, values creep for ten thousand sweeps."""
    world = express(points=20, lower=0.5, seed=0)
    bonus = 1.05 * world.bounds.bonus(occupancy_lp(world.model, world.bounds).multipliers)
    replay = full_replay(world.model)
    learner = QLearning(tolerance=1e-3)
    _, info = learner.improve(learner.init(replay), replay, bonus)
    exact = world.model.initial @ best_response(world.model, bonus).value
    assert exact > 20
    assert exact <= info.value + info.excess + 1e-9
    assert info.value == pytest.approx(exact, abs=1e-2)
    assert info.sweeps < 2000


def test_without_earning_only_the_bonus_counts():
    model = random_model(2)
    replay = full_replay(model)
    learner = QLearning(tolerance=1e-9, max_sweeps=100_000)
    _, info = learner.improve(learner.init(replay), replay, np.ones(5), earning=False)
    assert info.value == pytest.approx(10.0, abs=1e-6)


def test_untried_actions_are_never_taken():
    model = random_model(4, terminal=False)
    replay = full_replay(model)
    visits = replay.visits.copy()
    visits[:, 1:] = 0
    some = dataclasses.replace(replay, visits=visits)
    for temperature in (0.0, 1.0):
        learner = QLearning(temperature=temperature)
        state, _ = learner.improve(learner.init(some), some, np.zeros(5))
        assert learner.policy(state, some)[:, 0].tolist() == [1.0] * 5


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"step_size": 0.0}, {"step_size": 2.0}, {"tolerance": 0.0},
     {"max_sweeps": 0}],
)  # fmt: skip
def test_bad_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        QLearning(**wrong)
