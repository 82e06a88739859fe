import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dcrl.nets import MLP, Actor, Critic, Statistics, count_parameters, learnable
from dcrl.policies import Box, Discrete, Mixed

BOX = Box((0.0, 0.0), (1.0, 1.0))
HIDDEN = (4, 5)
INNER = (3 * 4 + 4) + (4 * 5 + 5)  # weights and biases of both hidden layers behind 3 inputs
ACTORS = {
    "box": (BOX, INNER + (5 * 2 + 2) + 2),  # and two standard deviations
    "discrete": (Discrete(3), INNER + (5 * 3 + 3)),
    "mixed": (Mixed(Discrete(3), BOX), INNER + (5 * 5 + 5) + 2),
}
actors = pytest.mark.parametrize(("actions", "count"), ACTORS.values(), ids=ACTORS.keys())


# Samples far from zero whose mean drifts, with unequal weights, some of them zero.
def batches(seed, sizes):
    random = np.random.default_rng(seed)
    for turn, size in enumerate(sizes):
        samples = random.normal([4.0 + turn, -2.0, 0.0], [1.0, 3.0, 0.1], (size, 3))
        weights = random.exponential(size=size) * (random.random(size) < 0.8)
        yield samples.astype(np.float32), weights.astype(np.float32)


add = jax.jit(Statistics.add)


def add_up(parts):
    seen = Statistics.start(3)
    for samples, weights in parts:
        seen = add(seen, samples, weights)
    return seen


def trained_critic(key):
    key_net, key_weight, key_bias = jax.random.split(key, 3)
    critic = Critic(key_net, 3, HIDDEN)
    last = critic.net.layers[-1]
    moved = last._replace(
        weight=jax.random.normal(key_weight, last.weight.shape),
        bias=jax.random.normal(key_bias, last.bias.shape),
    )
    return eqx.tree_at(
        lambda c: (c.net.layers, c.middle, c.unit, c.seen),
        critic,
        ((*critic.net.layers[:-1], moved), jnp.array(5.0), jnp.array(2.0), add_up(batches(1, [9]))),
    )


def test_a_perceptron_is_matrices_and_activations(key):
    net = MLP(key, (3, 4, 5, 2))
    x = np.array([0.3, -1.0, 2.0])
    first, second, last = ((np.asarray(w, float), np.asarray(b, float)) for w, b in net.layers)
    inner = np.tanh(second[0] @ np.tanh(first[0] @ x + first[1]) + second[1])
    np.testing.assert_allclose(net(jnp.asarray(x)), last[0] @ inner + last[1], rtol=1e-5)


@pytest.mark.parametrize("sizes", [(3, 4, 4, 2), (6, 2, 5)])
def test_weights_are_orthogonal_and_biases_zero(key, sizes):
    layers = eqx.filter_jit(MLP)(key, sizes, last_gain=0.01).layers
    for number, (weight, bias) in enumerate(layers):
        square = 2.0 if number < len(layers) - 1 else 1e-4
        rows, columns = weight.shape
        product = weight @ weight.T if rows <= columns else weight.T @ weight
        np.testing.assert_allclose(product, square * np.eye(min(rows, columns)), atol=1e-5 * square)
        assert (bias == 0).all()


@pytest.mark.parametrize("sizes", [[500], [1, 1, 1, 30], [40, 7, 200, 3]])
def test_merged_statistics_are_those_of_all_data(sizes):
    parts = list(batches(0, sizes))
    samples, weights = (np.concatenate(x).astype(float) for x in zip(*parts, strict=True))
    mean = np.average(samples, axis=0, weights=weights)
    seen = add_up(parts)
    np.testing.assert_allclose(seen.mean, mean, rtol=1e-4, atol=1e-5)
    variance = np.average((samples - mean) ** 2, axis=0, weights=weights)
    np.testing.assert_allclose(seen.variance, variance, rtol=1e-4, atol=1e-6)
    assert seen.weight == pytest.approx(weights.sum(), rel=1e-5)


def test_samples_without_weight_change_nothing():
    seen = add_up(batches(0, [50]))
    after = seen.add(jnp.full((4, 3), 100.0), jnp.zeros(4))
    for new, old in zip(after, seen, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)


def test_samples_without_weight_leave_fresh_statistics_alone():
    after = Statistics.start(3).add(jnp.full((4, 3), 100.0), jnp.zeros(4))
    np.testing.assert_allclose(after.normalise(jnp.array([-2.0, 0.5, 7.0])), [-2.0, 0.5, 7.0])


def test_observations_are_normalised_and_cut_off():
    seen = Statistics(jnp.array([1.0, 2.0, 3.0]), jnp.array([4.0, 0.25, 1.0]), jnp.ones(()))
    np.testing.assert_allclose(seen.normalise(jnp.array([3.0, 1.0, 103.0])), [1, -2, 10], rtol=1e-5)
    fresh = Statistics.start(2)
    np.testing.assert_allclose(fresh.normalise(jnp.array([-3.0, 7.0])), [-3.0, 7.0], rtol=1e-6)


@actors
def test_an_actor_counts_what_it_learns(key, actions, count):
    assert count_parameters(Actor(key, 3, actions, HIDDEN)) == count


def test_a_critic_counts_what_it_learns(key):
    assert count_parameters(Critic(key, 3, HIDDEN)) == INNER + (5 * 1 + 1)


@actors
def test_actors_learn_all_but_statistics(key, actions, count):
    actor = Actor(key, 3, actions, HIDDEN)
    learned, fixed = eqx.partition(actor, learnable(actor))
    assert sum(leaf.size for leaf in jax.tree.leaves(learned)) == count
    np.testing.assert_array_equal(jax.tree.leaves(fixed)[1], np.ones(3))  # the variance
    assert sum(leaf.size for leaf in jax.tree.leaves(fixed)) == 3 + 3 + 1


def test_critics_learn_all_but_statistics_and_units(key):
    critic = trained_critic(key)
    learned, fixed = eqx.partition(critic, learnable(critic))
    assert sum(leaf.size for leaf in jax.tree.leaves(learned)) == INNER + (5 * 1 + 1)
    kept = [*critic.seen, critic.middle, critic.unit]
    for found, want in zip(jax.tree.leaves(fixed), kept, strict=True):
        np.testing.assert_array_equal(found, want)


def test_a_policy_starts_in_the_middle_of_its_range(key):
    actor = Actor(key, 3, BOX, HIDDEN, std=0.5)
    mean, log_std = actor(jnp.array([1.0, -2.0, 0.5]))
    np.testing.assert_allclose(mean, 0.0, atol=0.05)
    np.testing.assert_allclose(jnp.exp(log_std), 0.5, rtol=1e-6)


values = jax.jit(lambda critic, x: jax.vmap(critic)(x))


@pytest.mark.parametrize(("mean", "std"), [(300.0, 40.0), (-2.0, 0.1), (7.0, 0.5)])
@pytest.mark.parametrize(("weight", "share"), [(0.0, 1.0), (50.0, 0.3)])
def test_values_stay_as_they_are_when_the_unit_changes(key, mean, std, weight, share):
    critic = trained_critic(key)
    seen = critic.seen._replace(weight=jnp.array(weight))
    critic = eqx.tree_at(lambda c: c.seen, critic, seen)
    x = jax.random.normal(jax.random.key(1), (20, 3)) * 3
    rescaled = critic.rescaled(jnp.array(mean), jnp.array(std))
    assert rescaled.middle == pytest.approx(5.0 + share * (mean - 5.0), rel=1e-5)
    assert rescaled.unit == pytest.approx(2.0 + share * (std - 2.0), rel=1e-5)
    before, after = values(critic, x), values(rescaled, x)
    assert before.std() > 0.1
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        rescaled.to_normalised(after), jax.vmap(rescaled.normalised)(x), rtol=1e-4, atol=1e-4
    )


def test_units_approach_those_of_the_returns_and_never_vanish(key):
    critic = trained_critic(key)
    for _ in range(60):
        critic = critic.rescaled(jnp.array(-40.0), jnp.array(8.0))
    assert critic.middle == pytest.approx(-40.0, rel=1e-4)
    assert critic.unit == pytest.approx(8.0, rel=1e-4)
    for _ in range(100):
        critic = critic.rescaled(jnp.array(-40.0), jnp.array(0.0))
    assert critic.unit == pytest.approx(0.4, rel=1e-2)  # a hundredth of what they are
