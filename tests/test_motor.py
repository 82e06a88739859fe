import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.integrate import solve_ivp

from dcrl.envs.motor import Motor, bound
from dcrl.gauge import bind_features


@functools.partial(jax.jit, static_argnums=0)
def drive(motor, duty, key):
    key_reset, key_drive = jax.random.split(key)

    def advance(state, step):
        outcome = motor.step(step[0], state, step[1][None])
        return outcome.state, (outcome.state, outcome.reward, motor.observe(outcome.state))

    start = motor.reset(key_reset)
    steps = jax.random.split(key_drive, len(duty)), duty
    return start, *jax.lax.scan(advance, start, steps)[1]


def pattern(steps):
    random = np.random.default_rng(0)
    return np.repeat(random.choice([0.0, 0.2, 0.5, 0.8, 1.0], steps // 25), 25)


@functools.cache
def solved():
    def slope(_, y, voltage):
        omega, current = y
        torque = 9.2e-3 * current**2
        return [
            (torque - 0.01 * omega * abs(omega)) / 2e-3,
            (voltage - (2.5 + 4.5) * current - 9.2e-3 * omega * current) / (9.7e-3 + 9.2e-3),
        ]

    y, seen = np.zeros(2), []
    for each in pattern(1500):
        y = solve_ivp(slope, (0, 1e-4), y, args=(420 * each,), rtol=1e-9, atol=1e-12).y[:, -1]
        seen.append(y)
    return np.array(seen).T


@pytest.mark.parametrize(
    ("double", "of_omega", "of_current"), [(True, 5e-11, 2e-11), (False, 2e-6, 2e-6)]
)
def test_the_motor_turns_as_scipy_integrates(key, double, of_omega, of_current):
    omega, current = solved()
    assert omega.max() > 40
    assert current.max() > 50
    with jax.enable_x64(double):
        _, state, _, _ = drive(Motor(), jnp.asarray(pattern(1500)), key)
    assert np.abs(np.asarray(state.omega) - omega).max() / 100 < of_omega
    assert np.abs(np.asarray(state.current) - current).max() / 100 < of_current


def test_at_full_duty_it_settles_at_known_values(key):
    _, state, _, _ = drive(Motor(), jnp.ones(1500), key)
    # There l_e' i^2 = c omega^2, and u = (r_a + r_e) i + l_e' omega i.
    ratio = np.sqrt(0.01 / 9.2e-3)  # of current to speed
    omega = max(np.roots([9.2e-3 * ratio, 7 * ratio, -420]))
    assert state.omega[-1] == pytest.approx(omega, rel=1e-4)
    assert state.omega[-1] == pytest.approx(53.75, abs=0.01)
    assert state.current[-1] == pytest.approx(56.0, abs=0.1)
    assert state.temperature[-1] == pytest.approx(0.314, abs=5e-4)


def test_temperature_is_a_moving_average_of_the_squared_current(key):
    duty = pattern(1500)
    _, state, _, _ = drive(Motor(), jnp.asarray(duty), key)
    square = (np.asarray(state.current, float) / 100) ** 2
    for step in (0, 1, 99, 1499):
        age = step - np.arange(step + 1)
        want = (0.1 * 0.9**age) @ square[: step + 1]
        assert state.temperature[step] == pytest.approx(want, rel=1e-4)


def test_what_is_seen_is_normalised_and_what_is_earned_is_closeness(key):
    duty = pattern(1500)
    start, state, reward, seen = drive(Motor(), jnp.asarray(duty), key)
    columns = [state.omega / 100, (state.current / 100) ** 2, state.current / 100,
               state.temperature, duty, state.reference]  # fmt: skip
    np.testing.assert_allclose(seen, np.stack(columns, 1), rtol=1e-5, atol=1e-6)
    before = np.append(np.asarray(start.reference), state.reference[:-1])
    np.testing.assert_allclose(reward, -np.abs(state.omega / 100 - before), rtol=1e-5, atol=1e-6)


def test_the_sawtooth_has_its_values_at_known_times(key):
    start, state, _, _ = drive(Motor("sawtooth", substeps=1), jnp.zeros(8000), key)
    assert start.reference == 0
    for seconds, want in (
        (0.1, 0.14), (0.2, 0.28), (0.3, 0.42), (0.3999, 0.55986), (0.4, 0.0), (0.4001, 0.00014),
        (0.6, 0.28), (0.8, 0.0),
    ):  # fmt: skip
        step = round(seconds / 1e-4)
        assert state.reference[step - 1] == pytest.approx(want, abs=2e-6)


def test_random_references_stay_within_their_range_and_evenly_spread(key):
    keys = jax.random.split(key, 1000)
    walk = jax.vmap(lambda k: drive(Motor(substeps=1), jnp.zeros(400), k)[1].reference)(keys)
    assert walk.min() >= 0
    assert walk.max() <= np.float32(0.56)
    assert walk.min() < 1e-4
    assert walk.max() > 0.5599
    # Reflection keeps an even distribution even.
    assert scipy.stats.kstest(np.asarray(walk[:, -1]) / 0.56, "uniform").pvalue > 0.01


@pytest.mark.parametrize("end", [0.0, 0.56])
def test_random_references_are_reflected_at_both_ends(key, end):
    motor = Motor(substeps=1)
    start = motor.reset(key)._replace(reference=jnp.array(end), spread=jnp.array(0.01))
    move = jax.jit(jax.vmap(lambda k: motor.step(k, start, jnp.zeros(1)).state.reference))
    away = np.abs(np.asarray(move(jax.random.split(key, 2000))) - end)
    assert scipy.stats.kstest(away / 0.01, "halfnorm").pvalue > 0.01


def test_random_references_are_walks_of_the_stated_spread(key):
    _, state, _, _ = drive(Motor(substeps=1), jnp.zeros(8000), key)
    reference, spread = np.asarray(state.reference, float), float(state.spread[0])
    steps = np.diff(reference)[(reference[:-1] > 0.06) & (reference[:-1] < 0.5)]
    assert (state.spread == state.spread[0]).all()
    assert scipy.stats.kstest(steps / spread, "norm").pvalue > 0.01


def test_references_start_anywhere_and_spread_log_uniformly(key):
    start = jax.jit(jax.vmap(Motor().reset))(jax.random.split(key, 2000))
    uniform = np.asarray(start.reference) / 0.56
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 0.01
    assert scipy.stats.kstest(np.log2(start.spread / 0.005), "uniform").pvalue > 0.01
    assert not any(np.any(x) for x in (start.omega, start.current, start.temperature, start.time))


def test_the_bound_is_the_published_curve_in_steps_of_an_episode():
    unit = 8000 / 19.88158  # sum of 0.95^j over 100 steps
    at = np.array([0.15, 0.175, 0.2, 0.25, 0.3, 0.9, 1.0])
    want = unit * np.array([120, 100, 80, 10, 10, 10, 10])
    np.testing.assert_allclose(bound(at[:, None]), want, rtol=1e-6)
    assert np.isinf(bound(np.array([[0.0], [0.1499]]))).all()


def test_bounds_per_grid_point_are_integrals_of_the_curve():
    motor = Motor()
    bounds = bind_features(motor.constraints, motor).bounds
    unit = 8000 / 19.88158
    assert np.isinf(bounds.upper[:4]).all()  # hats that reach below 0.15
    width, slope = 0.05, (10 - 80) / 0.05
    # A kink of slopes s and t at a node adds (t - s) h^2 / 6 to the width times its value.
    kink = (slope - (80 - 120) / 0.05) * width**2 / 6
    np.testing.assert_allclose(bounds.upper[4], unit * (80 * width + kink), rtol=1e-5)
    np.testing.assert_allclose(bounds.upper[6:-1], unit * 10 * width, rtol=1e-6)
    np.testing.assert_allclose(bounds.upper[-1], unit * 10 * width / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"reference": "sawtoth"}, "Did you mean 'sawtooth'"), ({"substeps": 0}, "at least 1; got 0")],
)
def test_bad_motors_are_refused_with_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(Motor(), **wrong)
