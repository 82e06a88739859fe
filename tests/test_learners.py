import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dcrl.dual import Fixed, Pi
from dcrl.evaluation import evaluate_mixture
from dcrl.gauge import bind_features
from dcrl.learners.ddpg import DDPG
from dcrl.learners.ppo import PPO
from dcrl.learners.skeleton import Reinforce
from dcrl.learners.trpo import TRPO, line_search
from dcrl.policies import Box
from dcrl.training import Programs, Setup, advance, begin, train
from ladder import Aim, Both, Pick, Stay, Sun, Walk

LEARNERS = {
    "ppo": (PPO(), 60),
    "trpo": (TRPO(), 60),
    "ddpg": (DDPG(updates=100), 20),
    "reinforce": (Reinforce(learning_rate=1e-2), 200),
}
RUNGS = [
    (Aim(), 0.0, 0.02),
    (Pick(), 1.0, 0.05),
    (Both(), 1.0, 0.1),
    (Walk(), Walk.optimum, 0.06),
]


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung[0].name)
@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_climbs_the_ladder(name, rung):
    env, optimum, tolerance = rung
    learner, rounds = LEARNERS[name]
    if name == "ddpg" and not isinstance(env.actions, Box):
        with pytest.raises(ValueError, match="DDPG needs continuous actions"):
            train(env, learner=learner, rounds=1, lanes=8)
        return
    found = train(env, learner=learner, dual=Fixed(), rounds=rounds, lanes=256)[0]
    fresh = evaluate_mixture(env, learner, found.policies, found.weights, key=7, vans=1024)
    assert fresh.objective.estimate[0] == pytest.approx(optimum, abs=tolerance)


def trained_state(env, learner, rounds):
    gauge = bind_features(env.constraints, env)
    setup = Setup(env, gauge, learner, Fixed(), 64, env.horizon, rounds, 0.0, 1)
    programs = Programs(setup)
    progress = begin(programs, [0])
    advance(programs, progress, rounds)
    return jax.tree.map(lambda x: x[0], progress.carry.learner)


@pytest.mark.parametrize(
    "learner", [PPO(learning_rate=1e-2), TRPO(learning_rate=1e-2)], ids=["ppo", "trpo"]
)
def test_a_step_that_terminates_is_followed_by_nothing(learner):
    critic = trained_state(Stay(ends=True), learner, 150).critic
    left = np.array([1.0, 0.5, 0.1])
    values = [float(critic(jnp.array([x], jnp.float32))) for x in left]
    np.testing.assert_allclose(values, (1 - 0.9 ** (10 * left)) / 0.1, atol=0.3)


@pytest.mark.parametrize(
    "learner", [PPO(learning_rate=1e-2), TRPO(learning_rate=1e-2)], ids=["ppo", "trpo"]
)
def test_a_step_that_is_cut_off_is_worth_what_would_follow(learner):
    critic = trained_state(Stay(), learner, 150).critic
    assert float(critic(jnp.zeros(1))) == pytest.approx(10.0, abs=0.3)


def test_targets_of_ddpg_know_termination_from_truncation():
    def value(env):
        state = trained_state(env, DDPG(updates=200), 20)
        here = state.seen.normalise(jnp.ones(1) if env.ends else jnp.zeros(1))
        critic = state.nets.critic(jnp.concatenate([jnp.zeros(1), here]))[0]
        return float(critic * state.size / (1 - env.discount))

    assert value(Stay()) == pytest.approx(10.0, abs=0.5)
    assert value(Stay(ends=True)) == pytest.approx((1 - 0.9**10) / 0.1, abs=0.5)


@pytest.mark.parametrize("name", ["ppo", "trpo"])
def test_a_bound_is_kept_at_the_right_price(name):
    learner = {"ppo": PPO(cool=20.0), "trpo": TRPO(cool=20.0)}[name]
    dual = Pi(proportional=1.0, integral=0.1, averaging=False)
    found = train(Sun(4.0), learner=learner, dual=dual, rounds=200, lanes=256, average=5)[0]
    fresh = evaluate_mixture(Sun(4.0), learner, found.policies, found.weights, key=7, vans=4096)
    assert fresh.value.estimate[0] == pytest.approx(4.0, rel=0.1)
    assert fresh.objective.estimate[0] == pytest.approx(4.0, rel=0.1)
    late = np.mean([row.net for row in found.rows[-100:]])
    assert late == pytest.approx(-1.0, rel=0.25)


@dataclasses.dataclass(frozen=True)
class Loud(Aim):
    scale: float = 1.0

    def step(self, key, state, action):
        outcome = super().step(key, state, action)
        return outcome._replace(reward=self.scale * outcome.reward)


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_one_learner_serves_rewards_of_any_size(scale):
    found = train(Loud(scale), learner=PPO(), dual=Fixed(), rounds=60, lanes=256)[0]
    assert float(found.rows[-1].objective) / scale == pytest.approx(0.0, abs=0.02)


def test_the_line_search_stays_where_nothing_is_acceptable():
    origin, step = jnp.array([1.0, 2.0]), jnp.array([4.0, 0.0])

    def search(accept):
        return line_search(origin, step, lambda x: (x[0], x[1]), accept, 0.5, 6)

    nothing = search(lambda first, second: first < 0)
    np.testing.assert_array_equal(nothing.point, origin)
    assert not nothing.accepted
    third = search(lambda first, second: first <= 2.0)
    np.testing.assert_array_equal(third.point, [2.0, 2.0])  # 1 + 4 / 4
    assert third.accepted


def test_trpo_moves_by_no_more_than_its_limit():
    found = train(Aim(), learner=TRPO(limit=0.003), dual=Fixed(), rounds=30, lanes=64)[0]
    moved = np.array([row.info.divergence for row in found.rows])
    assert moved.max() <= 0.003 * 1.01
    assert moved.max() >= 0.001  # and the limit is what stops it


def test_a_magnet_slows_a_policy_down():
    def first_rounds(magnet):
        learner = PPO(minibatches=8, magnet=magnet, recentre=1000)
        found = train(Aim(), learner=learner, dual=Fixed(), rounds=20, lanes=64)[0]
        observation = jnp.array([[0.8]])
        return float(found.policies[0](observation[0]).mean[0])

    free, held, fixed = (first_rounds(magnet) for magnet in (0.0, 3.0, 300.0))
    assert free > held > fixed
    assert abs(fixed) < 0.1
