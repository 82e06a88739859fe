import numpy as np
import pytest
import scipy.stats

from dcrl.density.intervals import bernstein, betting, clopper_pearson, student

REPEATS, ALPHA = 1000, 0.1
ALLOWED = ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / REPEATS)
LARGEST = np.full(REPEATS, 40.0)
GUARANTEED = {"bernstein": bernstein, "betting": betting}
guaranteed = pytest.mark.parametrize("interval", GUARANTEED.values(), ids=GUARANTEED.keys())


# One repeat per column: mostly nothing, now and then something large; 1.5 on average.
def bursty(count, seed=0):
    random = np.random.default_rng(seed)
    size = random.uniform(20, 40, (count, REPEATS))
    return np.where(random.random(size.shape) < 0.05, size, 0.0), 0.05 * 30


def uniform(count, seed=0):
    return np.random.default_rng(seed).uniform(0, 40, (count, REPEATS)), 20.0


def missed(interval, truth):
    return ((truth < interval.low) | (interval.high < truth)).mean()


@guaranteed
@pytest.mark.parametrize("draw", [bursty, uniform])
@pytest.mark.parametrize("count", [5, 30, 200])
def test_guaranteed_intervals_miss_no_more_often_than_they_say(interval, draw, count):
    samples, truth = draw(count)
    found = interval(samples, LARGEST, 1 - ALPHA)
    assert missed(found, truth) <= ALLOWED
    assert (found.low >= 0).all()
    assert (found.high <= LARGEST).all()


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.95])
@pytest.mark.parametrize("trials", [10, 200])
def test_exact_intervals_miss_no_more_often_than_they_say(chance, trials):
    hits = np.random.default_rng(0).binomial(trials, chance, REPEATS).astype(float)
    assert missed(clopper_pearson(hits, trials, 1 - ALPHA), chance) <= ALLOWED


@pytest.mark.parametrize("count", [5, 30, 200])
def test_students_interval_misses_as_often_as_it_says(count):
    samples, truth = uniform(count)
    assert abs(missed(student(samples, 1 - ALPHA), truth) - ALPHA) <= ALLOWED - ALPHA


def test_students_interval_is_overconfident_about_few_bursts_and_betting_is_not():
    samples, truth = bursty(30)
    assert missed(student(samples, 1 - ALPHA), truth) > 1.5 * ALPHA
    assert missed(betting(samples, LARGEST, 1 - ALPHA), truth) <= ALPHA


@pytest.mark.parametrize("count", [30, 200])
def test_betting_is_narrower_than_bernstein_on_bursts(count):
    samples, _ = bursty(count)
    wide, narrow = (f(samples, LARGEST, 1 - ALPHA) for f in (bernstein, betting))
    assert ((narrow.high - narrow.low) < (wide.high - wide.low)).all()
    assert (narrow.high - narrow.low).mean() < 0.6 * (wide.high - wide.low).mean()


def test_students_interval_is_scipys():
    samples = np.random.default_rng(1).exponential(size=(12, 3))
    found = student(samples, 0.9)
    exact = scipy.stats.ttest_1samp(samples, 0.0).confidence_interval(0.9)
    np.testing.assert_allclose(found.low, exact.low)
    np.testing.assert_allclose(found.high, exact.high)


def test_bernsteins_interval_by_hand():
    samples = np.tile([[0.0], [2.0]], (500, 1))
    variance = 1000 / 999  # around 1; and ln(4 / 0.1) = 3.688879
    width = np.sqrt(2 * variance * 3.688879 / 1000) + 7 * 2 * 3.688879 / (3 * 999)
    found = bernstein(samples, np.array([2.0]), 0.9)
    assert found.low[0] == pytest.approx(1 - width, rel=1e-6)
    assert found.high[0] == pytest.approx(1 + width, rel=1e-6)
    few = bernstein(samples[:4], np.array([2.0]), 0.9)
    assert (few.low[0], few.high[0]) == (0.0, 2.0)  # no wider than what is possible


def plain_betting(samples, tail, grid):
    count = len(samples)
    total, square = 0.5, 0.25
    spread = 0.25
    up, down = np.zeros(len(grid)), np.zeros(len(grid))
    for number, x in enumerate(samples, start=1):
        stake = np.sqrt(2 * np.log(1 / tail) / (count * spread))
        up += np.log(1 + np.minimum(stake, 0.5 / grid) * (x - grid))
        down += np.log(1 - np.minimum(stake, 0.5 / (1 - grid)) * (x - grid))
        total += x
        square += (x - total / (number + 1)) ** 2
        spread = square / (number + 1)
    kept = grid[np.maximum(up, down) < np.log(1 / tail)]
    return kept.min(), kept.max()


@pytest.mark.parametrize("draw", [bursty, uniform])
@pytest.mark.parametrize("count", [4, 60])
def test_betting_keeps_the_means_against_which_nobody_grows_rich(draw, count):
    samples = draw(count, seed=2)[0][:, :5]
    found = betting(samples, np.full(5, 40.0), 0.9)
    grid = np.linspace(0, 1, 4001)[1:-1]
    for column in range(5):
        low, high = plain_betting(samples[:, column] / 40, 0.05, grid)
        assert found.low[column] == pytest.approx(40 * low, abs=0.011)
        assert found.high[column] == pytest.approx(40 * high, abs=0.011)


def test_betting_is_the_same_in_any_unit_and_upside_down():
    samples = bursty(50, seed=3)[0][:, :20] / 40
    one = np.ones(20)
    found, large = betting(samples, one), betting(1e6 * samples, 1e6 * one)
    mirrored = betting(1 - samples, one)
    np.testing.assert_allclose(large.high, 1e6 * found.high, rtol=1e-9)
    np.testing.assert_allclose(large.low, 1e6 * found.low, rtol=1e-9)
    np.testing.assert_allclose(mirrored.low, 1 - found.high, atol=1e-9)
    np.testing.assert_allclose(mirrored.high, 1 - found.low, atol=1e-9)


@guaranteed
def test_an_interval_of_one_sample_is_refused(interval):
    with pytest.raises(ValueError, match="at least 2 samples; got 1"):
        interval(np.ones((1, 1)), np.ones(1))
