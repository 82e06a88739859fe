"""Confidence intervals for a mean: how sure an estimated density is.

`student` is the usual one, right for large samples; `bootstrap` is for pictures, whose bands should
follow skewed samples. `bernstein`, `betting` and `clopper_pearson` hold for every sample size, as a
promise about safety needs, at the price of width; of these, `betting` is the narrowest where
samples are numbers and not just hits.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float
from numpy import ndarray as Array


class Interval(NamedTuple):
    """An estimate with its limits; one entry per quantity."""

    low: Float[Array, " m"]
    estimate: Float[Array, " m"]
    high: Float[Array, " m"]


def student(samples: Float[Array, "n m"], confidence: float = 0.95) -> Interval:
    """Return Student's interval: mean and `t` standard errors to both sides.

    >>> student(np.array([[1.0], [2.0], [3.0]])).high.round(3).tolist()
    [4.484]
    """
    count = _count(samples)
    mean = samples.mean(0)
    error = samples.std(0, ddof=1) / np.sqrt(count)
    width = scipy.stats.t.ppf(0.5 + confidence / 2, count - 1) * error
    return Interval(mean - width, mean, mean + width)


def bootstrap(
    samples: Float[Array, "n m"],
    confidence: float = 0.95,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return the percentile interval of the means of resampled episodes.

    >>> low, _, high = bootstrap(np.array([[0.0], [1.0]] * 50))
    >>> bool(0.39 < low[0] < 0.41 and 0.59 < high[0] < 0.61)
    True
    """
    _count(samples)
    limits = scipy.stats.bootstrap(
        (samples,),
        np.mean,
        axis=0,
        n_resamples=resamples,
        batch=20,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(np.asarray(limits.low), samples.mean(0), np.asarray(limits.high))


def bernstein(
    samples: Float[Array, "n m"], largest: Float[Array, " m"], confidence: float = 0.95
) -> Interval:
    """Return the empirical Bernstein interval for samples in `[0, largest]`, valid for every `n`.

    `mean +- sqrt(2 v ln(4/d) / n) + 7 largest ln(4/d) / (3 (n - 1))` with `d = 1 - confidence`
    (Maurer and Pontil 2009, both sides together).
    """
    count = _count(samples)
    log = np.log(4 / (1 - confidence))
    mean = samples.mean(0)
    width = np.sqrt(2 * samples.var(0, ddof=1) * log / count)
    width = width + 7 * largest * log / (3 * (count - 1))
    return Interval(np.maximum(mean - width, 0.0), mean, np.minimum(mean + width, largest))


def clopper_pearson(hits: Float[Array, " m"], trials: int, confidence: float = 0.95) -> Interval:
    """Return the exact interval of a probability from `hits` in `trials`.

    The state in which an episode stands after a geometric time, `P(T = t) = (1-gamma) gamma^t`, is
    a draw from the normalised density: no episode needs to be cut, so nothing is biased.

    >>> clopper_pearson(np.array([0.0]), 10).high.round(4).tolist()
    [0.3085]
    """
    tail = (1 - confidence) / 2
    low = scipy.stats.beta.ppf(tail, np.maximum(hits, 1e-12), trials - hits + 1)
    high = scipy.stats.beta.ppf(1 - tail, hits + 1, np.maximum(trials - hits, 1e-12))
    return Interval(np.where(hits > 0, low, 0.0), hits / trials, np.where(hits < trials, high, 1.0))


def betting(
    samples: Float[Array, "n m"], largest: Float[Array, " m"], confidence: float = 0.95
) -> Interval:
    """Return the betting interval for samples in `[0, largest]`, valid for every `n`.

    Whoever bets against a wrong mean grows rich: a mean stays in the interval as long as neither of
    two gamblers, who stake predictable shares on the samples lying above and below it, has made
    `2 / d` of 1, `d = 1 - confidence` (Waudby-Smith and Ramdas 2024, Theorem 3, with the stakes of
    their equation 26). The order of samples matters a little, so leave it as it was drawn.

    >>> few = betting(np.tile([[0.1], [0.3]], (50, 1)), np.ones(1))
    >>> bool(0.17 < few.low[0] < 0.2 < few.high[0] < 0.26)
    True
    """
    count = _count(samples)
    share = samples / largest
    tail = (1 - confidence) / 2
    order = np.arange(1, count + 1)[:, None]
    mean = (0.5 + np.cumsum(share, axis=0)) / (order + 1)
    spread = (0.25 + np.cumsum((share - mean) ** 2, axis=0)) / (order + 1)
    before = np.concatenate([np.full((1, share.shape[1]), 0.25), spread[:-1]])
    stake = np.sqrt(2 * np.log(1 / tail) / (before * count))

    def rich(mean: Array, sign: float) -> Array:
        """Say whether the gambler on samples above (1) or below (-1) of `mean` has made enough."""
        room = np.maximum(mean if sign > 0 else 1 - mean, 1e-12)
        capped = np.minimum(stake, 0.5 / room)
        return np.log1p(sign * capped * (share - mean)).sum(axis=0) >= np.log(1 / tail)

    estimate = share.mean(axis=0)
    # A mean further off makes a gambler richer, so the ends are found by halving.
    low, high = (
        _edge(rich, 0.0 * estimate, estimate, 1.0),
        _edge(rich, 1 + 0 * estimate, estimate, -1.0),
    )
    return Interval(low * largest, estimate * largest, high * largest)


def _edge(
    rich: Callable[[Array, float], Array], far: Array, near: Array, sign: float
) -> Float[Array, " m"]:
    """Return the furthest mean from `near` towards `far` at which a gambler is not rich yet."""
    reached = ~rich(far, sign)
    out, into = far, near
    for _ in range(50):
        middle = (out + into) / 2
        gone = rich(middle, sign)
        out, into = np.where(gone, middle, out), np.where(gone, into, middle)
    return np.where(reached, far, out)


def _count(samples: Array) -> int:
    if len(samples) < 2:
        raise ValueError(f"an interval needs at least 2 samples; got {len(samples)}.")
    return len(samples)
