import jax.numpy as jnp
import numpy as np
import pytest

from dcrl.ops import advantages, masked_mean, masked_std

NONE, LAST = [False, False, False], [False, False, True]
ALL = [True, True, True]


def estimate(reward, value, value_next, terminated, alive, discount, trace):
    numbers = (jnp.asarray(x, jnp.float32) for x in (reward, value, value_next))
    flags = (jnp.asarray(x, bool) for x in (terminated, alive))
    return np.asarray(advantages(*numbers, *flags, discount, trace))


def random_segment(seed, length=40):
    random = np.random.default_rng(seed)
    reward, value, value_next = random.normal(size=(3, length))
    terminated = random.random(length) < 0.1
    return reward, value, value_next, terminated


@pytest.mark.parametrize(
    ("terminated", "alive", "want"),
    [
        # delta = -0.5, 2.5, 4 - 3 = 1; each adds a quarter of the next
        pytest.param(LAST, ALL, [0.1875, 2.75, 1.0], id="terminated"),
        # delta = -0.5, 2.5, 4 + 9 / 2 - 3 = 5.5
        pytest.param(NONE, ALL, [0.46875, 3.875, 5.5], id="truncated"),
        # delta = -0.5, 2 - 1 = 1, and nothing after that
        pytest.param([False, True, False], [True, True, False], [-0.25, 1.0, 0.0], id="over"),
        # a new episode behind the end of another adds nothing to it
        pytest.param([True, False, True], ALL, [-1.0, 2.75, 1.0], id="two-episodes"),
    ],
)
def test_advantages_by_hand(terminated, alive, want):
    reward, value, value_next = [1.0, 2.0, 4.0], [2.0, 1.0, 3.0], [1.0, 3.0, 9.0]
    found = estimate(reward, value, value_next, terminated, alive, 0.5, 0.5)
    np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("discount", "trace"), [(0.99, 0.95), (0.9, 0.0), (1.0, 0.5)])
def test_advantages_are_discounted_sums_of_surprises(seed, discount, trace):
    reward, value, value_next, terminated = random_segment(seed)
    alive = np.arange(40) < 33
    surprise = alive * (reward + discount * np.where(terminated, 0, value_next) - value)
    want = np.zeros(40)
    for t in range(40):
        for k in range(t, 40):
            want[t] += (discount * trace) ** (k - t) * surprise[k]
            if terminated[k]:
                break
    found = estimate(reward, value, value_next, terminated, alive, discount, trace)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ends", [False, True])
def test_a_full_trace_gives_the_return_minus_the_value(ends):
    reward, value, value_next, _ = random_segment(3)
    value_next[:-1] = value[1:]
    terminated = np.arange(40) == (39 if ends else -1)
    following = 0.0 if ends else value_next[-1]
    returns = np.zeros(40)
    for t in reversed(range(40)):
        following = returns[t] = reward[t] + 0.97 * following
    found = estimate(reward, value, value_next, terminated, np.ones(40), 0.97, 1.0)
    np.testing.assert_allclose(found, returns - value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(50,), (5, 10)])
def test_masked_mean_and_std_leave_out_what_is_masked(shape):
    random = np.random.default_rng(0)
    x, kept = random.normal(3.0, 2.0, shape), random.random(shape) < 0.6
    numbers = jnp.asarray(x, jnp.float32), jnp.asarray(kept, jnp.float32)
    assert masked_mean(*numbers) == pytest.approx(x[kept].mean(), rel=1e-5)
    assert masked_std(*numbers) == pytest.approx(x[kept].std(), rel=1e-5)


def test_the_mean_and_std_of_nothing_are_zero():
    nothing = jnp.zeros(3)
    assert masked_mean(jnp.arange(3.0), nothing) == 0
    assert masked_std(jnp.arange(3.0), nothing) == 0
