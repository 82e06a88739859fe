import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dcrl.drive import Lanes, drive, open_lanes, refuse_segments
from dcrl.envs.native import Outcome
from dcrl.policies import Box

AGES = 6  # greatest age at which an episode of a mortal counter may end
SEGMENTS = pytest.mark.parametrize(("lanes", "steps"), [(8, 3), (12, 1), (2, 12)])
run = jax.jit(drive, static_argnums=(1, 2, 4))
stagger = jax.jit(open_lanes, static_argnums=(1, 2, 3, 4))


class Count(NamedTuple):
    time: jax.Array
    end: jax.Array  # time at which the episode terminates


@dataclass(frozen=True)
class Counter:
    horizon: int = 12
    discount: float = 1.0
    terminates: bool = False

    name = "counter"
    observation_names = ("time", "end")
    actions = Box((0.0,), (2.0,))
    constraints = ()

    def reset(self, key):
        end = jax.random.randint(key, (), 1, AGES + 1) if self.terminates else jnp.array(99)
        return Count(jnp.zeros((), jnp.int32), end.astype(jnp.int32))

    def observe(self, state):
        return jnp.stack([state.time, state.end]).astype(jnp.float32)

    def step(self, key, state, action):
        del key
        time = state.time + 1
        reward = time.astype(jnp.float32) * action[0]
        # Whether it terminates again behind its end is nobody's business.
        terminated = (time >= state.end) & ((time - state.end) % 2 == 0)
        return Outcome(Count(time, state.end), reward, terminated)


MORTAL = Counter(horizon=AGES, discount=0.9, terminates=True)


def idle(key, observation):
    del key
    return jnp.zeros((len(observation), 1))  # the middle of the range, 1 in the world's units


@functools.partial(jax.jit, static_argnums=(1, 2))
def all_fresh(key, env, count):
    state = jax.vmap(env.reset)(jax.random.split(key, count))
    return Lanes(state, jnp.full(count, env.horizon, jnp.int32), jnp.zeros(count, bool))


def times(seen):
    return np.asarray(seen.observation[..., 0]).astype(int)


def calls(key, env, lanes, steps, number):
    for k in jax.random.split(key, number):
        seen, lanes = run(k, env, idle, lanes, steps)
        yield seen


@SEGMENTS
def test_staggered_lanes_show_every_moment_equally_often(key, lanes, steps):
    env = Counter()
    opened = stagger(key, env, idle, lanes, steps)
    for seen in calls(key, env, opened, steps, 5):
        shown = times(seen)
        assert np.bincount(shown.ravel(), minlength=12).tolist() == [lanes * steps // 12] * 12
        np.testing.assert_array_equal(shown, seen.begun[None] + np.arange(steps)[:, None])


@SEGMENTS
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_weights_add_up_to_those_of_one_episode(key, discount, lanes, steps):
    env = Counter(discount=discount)
    whole = 12 if discount == 1 else (1 - 0.9**12) / (1 - 0.9)
    opened = stagger(key, env, idle, lanes, steps)
    for seen in calls(key, env, opened, steps, 3):
        weights = seen.weights(env)
        assert weights.sum() == pytest.approx(whole, rel=1e-5)
        segments = 12 // steps
        want = discount ** times(seen) * (segments / lanes)
        np.testing.assert_allclose(weights, want, rtol=1e-5)


@SEGMENTS
def test_a_density_from_staggered_segments_is_that_of_whole_episodes(key, lanes, steps):
    env = Counter(discount=0.9)
    seen = next(calls(key, env, stagger(key, env, idle, lanes, steps), steps, 1))
    density = np.bincount(times(seen).ravel(), np.asarray(seen.weights(env)).ravel())
    np.testing.assert_allclose(density, 0.9 ** np.arange(12), rtol=1e-5)


def test_a_terminated_lane_waits_uncounted_and_starts_anew(key):
    lanes, ends = all_fresh(key, MORTAL, 40), []
    for seen in calls(key, MORTAL, lanes, AGES, 3):
        end = np.asarray(seen.observation[0, :, 1]).astype(int)
        step = np.arange(AGES)[:, None]
        assert (times(seen)[0] == 0).all()
        np.testing.assert_array_equal(seen.alive, step < end)
        np.testing.assert_array_equal(seen.terminated, step == end - 1)
        np.testing.assert_array_equal(seen.reward, np.where(step < end, step + 1, 0))
        want = ((1 - 0.9**end) / (1 - 0.9)).mean()
        assert seen.weights(MORTAL).sum() == pytest.approx(want, rel=1e-5)
        ends.append(end)
    assert len(np.unique(ends)) == AGES  # every age has been met
    assert (ends[0] != ends[1]).any()  # another episode, not the same one again


def test_an_episode_that_ends_with_its_last_step_terminates(key):
    seen, after = run(key, MORTAL, idle, all_fresh(key, MORTAL, 40), AGES)
    last = np.asarray(seen.observation[0, :, 1]) == AGES
    assert last.any()
    np.testing.assert_array_equal(seen.alive[-1], last)
    np.testing.assert_array_equal(seen.terminated[-1], last)
    assert after.over.all()


def test_a_truncated_lane_is_seen_where_it_was_cut_and_starts_anew(key):
    env = Counter(horizon=4)
    first, second = calls(key, env, all_fresh(key, env, 3), 4, 2)
    assert first.final[:, 0].tolist() == [4.0] * 3
    assert not first.terminated.any()
    assert first.alive.all()
    assert times(second)[0].tolist() == [0] * 3


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_lanes_go_on_from_one_call_to_the_next(key, steps):
    env = Counter()
    long, end = run(key, env, idle, all_fresh(key, env, 2), 12)
    parts, lanes = [], all_fresh(key, env, 2)
    for k in jax.random.split(key, 12 // steps):
        seen, lanes = run(k, env, idle, lanes, steps)
        parts.append(seen)
    for name in ("observation", "action", "reward", "alive"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(long, name))
    for before, after in itertools.pairwise(parts):
        np.testing.assert_array_equal(before.final, after.observation[0])
    np.testing.assert_array_equal(parts[-1].final, long.final)
    np.testing.assert_array_equal(lanes.time, end.time)
    np.testing.assert_array_equal(lanes.state.time, end.state.time)


def test_the_world_gets_actions_in_its_own_units(key):
    def high(key, observation):
        del key
        return jnp.full((len(observation), 1), 5.0)  # far beyond the range

    env = Counter(horizon=3)
    seen, _ = run(key, env, high, all_fresh(key, env, 2), 3)
    assert seen.reward[:, 0].tolist() == [2.0, 4.0, 6.0]
    assert (seen.action == 5.0).all()


def test_driving_repeats_bitwise_and_draws_anew_with_another_key(key):
    lanes = all_fresh(key, MORTAL, 40)
    first, again = (run(key, MORTAL, idle, lanes, AGES)[0] for _ in range(2))
    other = run(jax.random.key(1), MORTAL, idle, lanes, AGES)[0]
    np.testing.assert_array_equal(first.observation, again.observation)
    assert (first.observation != other.observation).any()


@pytest.mark.parametrize(
    ("env", "lanes", "steps", "sentence"),
    [
        (Counter(), 8, 5, "has 12 steps, which `steps` must divide.*got steps=5 and lanes=8"),
        (Counter(), 8, 24, "`steps` must divide"),
        (Counter(), 8, 0, "`steps` must divide"),
        (Counter(), 0, 3, "`lanes` must be positive.*lanes=0"),
        (Counter(terminates=True), 8, 3, "may end early.*`steps` must be 12; got 3"),
        (Counter(), 6, 3, "takes 4 segments of 3 steps; `lanes` must be a multiple.*got 6"),
    ],
)
def test_bad_segments_are_refused_with_a_sentence(env, lanes, steps, sentence):
    with pytest.raises(ValueError, match=sentence):
        refuse_segments(env, lanes, steps)


@pytest.mark.parametrize(
    ("terminates", "lanes", "steps"), [(False, 8, 3), (False, 1, 12), (True, 5, 12)]
)
def test_good_segments_are_accepted(terminates, lanes, steps):
    refuse_segments(Counter(terminates=terminates), lanes, steps)
