import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dcrl.envs.rover import Rover, RoverState, energy, move, position_of
from dcrl.gauge import bind_features


def at(position, velocity=(0.0, 0.0)):
    return RoverState(jnp.asarray(position, jnp.float32), jnp.asarray(velocity, jnp.float32))


@jax.jit
def step(state, action):
    return Rover().step(jax.random.key(0), state, jnp.asarray(action, jnp.float32))


steps = jax.jit(jax.vmap(step))
moves = jax.jit(jax.vmap(move))


def random_states(seed, count):
    random = np.random.default_rng(seed)
    position = random.uniform(0, 10, (count, 2))
    angle, speed = random.uniform(0, 2 * np.pi, count), np.sqrt(random.uniform(size=count))
    velocity = speed[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    action = random.uniform(-1, 1, (count, 2))
    return at(position, velocity), jnp.asarray(action, jnp.float32)


def test_steps_by_hand():
    first = move(at((1.0, 5.0)), jnp.array([1.0, -0.5]))
    np.testing.assert_allclose(first.velocity, [0.1, -0.05], rtol=1e-6)
    np.testing.assert_allclose(first.position, [1.01, 4.995], rtol=1e-6)
    # v <- 0.99 v + 0.1 a
    second = move(first, jnp.array([1.0, 1.0]))
    np.testing.assert_allclose(second.velocity, [0.199, 0.0505], rtol=1e-5)
    np.testing.assert_allclose(second.position, [1.0299, 5.00005], rtol=1e-6)


def test_a_rover_that_rolls_slows_down_geometrically():
    state = at((1.0, 5.0), (0.8, 0.0))
    for _ in range(20):
        state = move(state, jnp.zeros(2))
    assert state.velocity[0] == pytest.approx(0.8 * 0.99**20, rel=1e-5)
    # 1 + 0.1 0.8 (0.99 + ... + 0.99^20)
    assert state.position[0] == pytest.approx(1 + 0.08 * 99 * (1 - 0.99**20), rel=1e-5)


def test_what_would_be_too_fast_keeps_its_direction():
    fast = move(at((5.0, 5.0), (0.6, 0.8)), jnp.array([0.6, 0.8]))
    np.testing.assert_allclose(fast.velocity, [0.6, 0.8], rtol=1e-6)
    turned = move(at((5.0, 5.0), (1.0, 0.0)), jnp.array([1.0, 1.0]))
    want = np.array([1.09, 0.1]) / np.hypot(1.09, 0.1)
    np.testing.assert_allclose(turned.velocity, want, rtol=1e-5)


def test_speed_is_never_above_one_and_nothing_leaves_the_world():
    states, actions = random_states(0, 2000)
    for _ in range(30):
        states = moves(states, jnp.sign(actions))
        speed = np.linalg.norm(states.velocity, axis=1)
        assert speed.max() <= 1 + 1e-6
        assert states.position.min() >= 0
        assert states.position.max() <= 10
    assert speed.max() > 0.999


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("wall", "towards"), [(0.0, -1.0), (10.0, 1.0)])
def test_walls_stop_what_runs_into_them_and_nothing_else(axis, wall, towards):
    position, velocity = np.full(2, 4.0), np.full(2, 0.5)
    position[axis], velocity[axis] = wall - towards * 0.01, towards * 0.5
    stopped = move(at(position, velocity), jnp.zeros(2))
    assert stopped.position[axis] == wall
    assert stopped.velocity[axis] == 0
    assert stopped.velocity[1 - axis] == pytest.approx(0.495, rel=1e-5)
    assert stopped.position[1 - axis] == pytest.approx(4.0495, rel=1e-5)


def test_energy_by_hand():
    found = energy(jnp.array([0.6, -0.2]), jnp.array([1.0, -0.5]))
    assert found == pytest.approx(0.1 + 0.5 * 1.25 + 0.5 * 0.4, rel=1e-6)
    assert energy(jnp.zeros(2), jnp.zeros(2)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("x", "arrived"), [(5.0, False), (7.94, False), (7.96, True), (9.0, True), (9.9, True)]
)
def test_only_the_goal_pays_and_ends_the_episode(x, arrived):
    # It rolls 0.0495 to the right, and the goal reaches from 8 to 10.
    outcome = step(at((x, 5.0), (0.5, 0.0)), (0.0, 0.0))
    cost = 0.1 * (0.1 + 0.5 * 0.25)
    assert bool(outcome.terminated) == arrived
    assert outcome.reward == pytest.approx(10.0 * arrived - cost, rel=1e-5)


@pytest.mark.parametrize("angle", [0.5, 1.5, 3.0, 4.0, 5.5])
@pytest.mark.parametrize(("radius", "inside"), [(0.99, True), (1.01, False)])
def test_the_goal_is_a_disc(angle, radius, inside):
    place = (9.0 + radius * np.cos(angle), 5.0 + radius * np.sin(angle))
    assert bool(step(at(place), (0.0, 0.0)).terminated) == inside


def test_rewards_are_costs_of_energy_along_the_way():
    states, actions = random_states(1, 200)
    outcome = steps(states, actions)
    velocity, action = np.asarray(states.velocity, float), np.asarray(actions, float)
    cost = 0.1 * (0.1 + 0.5 * (action**2).sum(1) + 0.5 * (velocity**2).sum(1))
    want = np.where(outcome.terminated, 10.0, 0.0) - cost
    np.testing.assert_allclose(outcome.reward, want, rtol=1e-5)


def test_the_world_is_symmetric_about_the_line_through_its_areas():
    states, actions = random_states(2, 500)
    flip = jnp.array([[1.0, -1.0]])
    mirrored = RoverState(states.position * flip + jnp.array([[0.0, 10.0]]), states.velocity * flip)
    there, here = (steps(s, a) for s, a in ((mirrored, actions * flip), (states, actions)))
    np.testing.assert_allclose(there.reward, here.reward, rtol=1e-5)
    np.testing.assert_allclose(there.state.velocity, here.state.velocity * flip, atol=1e-6)
    want = here.state.position * flip + jnp.array([[0.0, 10.0]])
    np.testing.assert_allclose(there.state.position, want, atol=2e-6)


def test_episodes_start_at_rest_anywhere_in_the_first_area(key):
    start = jax.jit(jax.vmap(Rover().reset))(jax.random.split(key, 2000))
    x, y = np.asarray(start.position).T
    assert scipy.stats.kstest(x - 0.5, "uniform").pvalue > 0.01
    assert scipy.stats.kstest((y - 2) / 6, "uniform").pvalue > 0.01
    assert (start.velocity == 0).all()


def test_what_is_seen_is_scaled_to_one():
    seen = Rover().observe(at((10.0, 2.5), (0.3, -1.0)))
    np.testing.assert_allclose(seen, [1.0, -0.5, 0.3, -1.0], rtol=1e-6)
    np.testing.assert_allclose(position_of(seen), [10.0, 2.5], rtol=1e-6)


def test_time_in_the_dangerous_disc_is_what_is_bounded():
    rover = Rover(upper=1.5)
    gauge = bind_features(rover.constraints, rover)
    places = [(5.0, 5.0), (5.0, 7.49), (5.0, 7.51), (2.51, 5.0), (1.0, 5.0), (6.8, 6.8)]
    seen = jnp.stack([rover.observe(at(place)) for place in places])
    weights = 0.99 ** jnp.arange(6)
    np.testing.assert_allclose(
        gauge.measure(seen, weights), [1 + 0.99 + 0.99**3], rtol=1e-5
    )  # 1.8^2 + 1.8^2 > 2.5^2
    assert gauge.bounds.upper.tolist() == [1.5]
    assert gauge.bounds.lower.tolist() == [-np.inf]
