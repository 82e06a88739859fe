import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dcrl.policies import (
    Box,
    Categorical,
    Discrete,
    Gaussian,
    Joint,
    Mixed,
    distribution,
    divergence,
    entropy,
    log_prob,
    mode,
    sample,
)

DRAWS = 20_000
MEAN, STD = np.array([0.3, -0.8]), np.array([0.5, 0.1])
OTHER_MEAN, OTHER_STD = np.array([0.1, -0.5]), np.array([0.4, 0.3])
CHANCE, OTHER_CHANCE = np.array([0.2, 0.7, 0.1]), np.array([0.3, 0.3, 0.4])


def gaussian(mean, std):
    return Gaussian(jnp.asarray(mean, jnp.float32), jnp.log(jnp.asarray(std, jnp.float32)))


def categorical(chance):
    return Categorical(jnp.log(jnp.asarray(chance, jnp.float32)) + 7.0)  # moved by any number


OLD = {
    "gaussian": gaussian(MEAN, STD),
    "categorical": categorical(CHANCE),
    "joint": Joint(categorical(CHANCE), gaussian(MEAN, STD)),
}
NEW = {
    "gaussian": gaussian(OTHER_MEAN, OTHER_STD),
    "categorical": categorical(OTHER_CHANCE),
    "joint": Joint(categorical(OTHER_CHANCE), gaussian(OTHER_MEAN, OTHER_STD)),
}
kinds = pytest.mark.parametrize("kind", OLD)


def scipys(kind, action, mean, std, chance):
    choice, place = {
        "gaussian": (None, action),
        "categorical": (action, None),
        "joint": action,
    }[kind]
    total = 0.0
    if place is not None:
        total = total + scipy.stats.norm.logpdf(place, mean, std).sum(-1)
    if choice is not None:
        total = total + scipy.stats.multinomial.logpmf(np.eye(3)[choice], 1, chance)
    return total


def draws(kind, key):
    return jax.vmap(lambda k: sample(OLD[kind], k))(jax.random.split(key, DRAWS))


@kinds
def test_log_probabilities_are_scipys(kind, key):
    some = jax.tree.map(lambda x: x[:50], draws(kind, key))
    found = jax.vmap(lambda action: log_prob(OLD[kind], action))(some)
    want = scipys(kind, jax.tree.map(np.asarray, some), MEAN, STD, CHANCE)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_entropies_are_scipys():
    of_box = scipy.stats.norm.entropy(MEAN, STD).sum()
    of_choice = scipy.stats.entropy(CHANCE)
    assert entropy(OLD["gaussian"]) == pytest.approx(of_box, rel=1e-5)
    assert entropy(OLD["categorical"]) == pytest.approx(of_choice, rel=1e-5)
    assert entropy(OLD["joint"]) == pytest.approx(of_box + of_choice, rel=1e-5)


@kinds
def test_entropies_and_divergences_are_averages_over_draws(kind, key):
    drawn = jax.tree.map(np.asarray, draws(kind, key))
    old = scipys(kind, drawn, MEAN, STD, CHANCE)
    new = scipys(kind, drawn, OTHER_MEAN, OTHER_STD, OTHER_CHANCE)
    error = 4.5 / np.sqrt(DRAWS)
    assert abs(entropy(OLD[kind]) + old.mean()) < error * old.std()
    ratio = old - new
    assert abs(divergence(OLD[kind], NEW[kind]) - ratio.mean()) < error * ratio.std()


def test_divergences_of_choices_are_scipys():
    found = divergence(OLD["categorical"], NEW["categorical"])
    assert found == pytest.approx(scipy.stats.entropy(CHANCE, OTHER_CHANCE), rel=1e-5)


def test_divergences_of_normals_by_hand():
    unit = gaussian([0.0], [1.0])
    assert divergence(unit, gaussian([2.0], [1.0])) == pytest.approx(2.0, rel=1e-6)
    assert divergence(unit, gaussian([0.0], [2.0])) == pytest.approx(np.log(2) - 3 / 8, rel=1e-5)
    assert divergence(gaussian([0.0], [2.0]), unit) == pytest.approx(1.5 - np.log(2), rel=1e-5)
    both = divergence(gaussian([0.0, 0.0], [1.0, 2.0]), gaussian([2.0, 0.0], [1.0, 1.0]))
    assert both == pytest.approx(3.5 - np.log(2), rel=1e-5)


@kinds
def test_nothing_diverges_from_itself(kind):
    assert divergence(OLD[kind], OLD[kind]) == pytest.approx(0.0, abs=1e-6)


def test_normal_draws_have_the_right_distribution(key):
    drawn = np.asarray(draws("gaussian", key))
    for entry in range(2):
        standard = (drawn[:, entry] - MEAN[entry]) / STD[entry]
        assert scipy.stats.kstest(standard, "norm").pvalue > 0.01
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 4.5 / np.sqrt(DRAWS)


def test_choices_have_the_right_frequencies(key):
    counts = np.bincount(draws("categorical", key), minlength=3)
    assert scipy.stats.chisquare(counts, DRAWS * CHANCE).pvalue > 0.01


def test_a_choice_and_its_continuous_action_are_independent(key):
    choice, place = map(np.asarray, draws("joint", key))
    assert scipy.stats.chisquare(np.bincount(choice), DRAWS * CHANCE).pvalue > 0.01
    for value in range(3):
        for entry in range(2):
            standard = (place[choice == value, entry] - MEAN[entry]) / STD[entry]
            assert scipy.stats.kstest(standard, "norm").pvalue > 0.01


@kinds
def test_no_draw_is_likelier_than_the_mode(kind, key):
    some = jax.tree.map(lambda x: x[:500], draws(kind, key))
    found = jax.vmap(lambda action: log_prob(OLD[kind], action))(some)
    assert log_prob(OLD[kind], mode(OLD[kind])) >= found.max()


def test_ends_of_the_range_are_ends_of_the_box():
    box = Box((0.0, -3.0), (1.0, 5.0))
    for action, want in ((-1.0, (0.0, -3.0)), (0.0, (0.5, 1.0)), (1.0, (1.0, 5.0))):
        np.testing.assert_allclose(box.to_world(jnp.full(2, action)), want, rtol=1e-6)
    np.testing.assert_allclose(box.to_world(jnp.array([0.5, -0.5])), (0.75, -1.0), rtol=1e-6)


def test_what_lies_beyond_the_range_is_cut_off():
    box = Box((0.0, -3.0), (1.0, 5.0))
    np.testing.assert_allclose(box.to_world(jnp.array([-1.5, 40.0])), (0.0, 5.0), rtol=1e-6)
    choice, place = Mixed(Discrete(3), box).to_world((jnp.array(2), jnp.array([9.0, -9.0])))
    assert choice == 2
    np.testing.assert_allclose(place, (1.0, -3.0), rtol=1e-6)


def test_the_mean_of_a_box_stays_within_its_range():
    box = Box((0.0,) * 5, (1.0,) * 5)
    output = jnp.array([-1e6, np.arctanh(-0.5), 0.0, np.arctanh(0.25), 1e6])
    mean, log_std = distribution(box, output, jnp.full(5, -1.0))
    np.testing.assert_allclose(mean, [-1.0, -0.5, 0.0, 0.25, 1.0], atol=1e-6)
    assert (jnp.abs(mean) <= 1).all()
    assert (log_std == -1.0).all()  # whatever is observed


def test_a_mixed_output_is_choice_first_and_box_after():
    mixed = Mixed(Discrete(3), Box((0.0, 0.0), (1.0, 1.0)))
    output = jnp.array([1.0, 2.0, 3.0, np.arctanh(0.5), np.arctanh(-0.5)])
    choice, box = distribution(mixed, output, jnp.zeros(2))
    assert mixed.outputs == 5
    np.testing.assert_allclose(choice.logits, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(box.mean, [0.5, -0.5], rtol=1e-5)


@pytest.mark.parametrize(
    ("low", "high"),
    [((1.0,), (0.0,)), ((0.0, 1.0), (1.0, 1.0)), ((0.0, 0.0), (1.0,)), ((np.nan,), (1.0,))],
    ids=["swapped", "no-width", "lengths", "nan"],
)
def test_bad_boxes_are_refused_with_a_sentence(low, high):
    with pytest.raises(ValueError, match="a box needs low < high; got"):
        Box(low, high)


def test_a_choice_of_one_is_refused():
    with pytest.raises(ValueError, match="at least 2 actions; got 1"):
        Discrete(1)
