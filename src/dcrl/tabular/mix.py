"""From several policies to one: folding a mixture, and mixing in a strictly feasible policy.

A mixture draws one of its policies per episode. Its state-action density is the average of
theirs, and the Markov policy `x(s,a) / rho(s)` has exactly that density again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.constraints import Bounds
from dcrl.tabular import dp
from dcrl.tabular.model import Model


def fold(model: Model, pair_density: Float[Array, "s a"]) -> Float[Array, "s a"]:
    """Return the Markov policy with this state-action density, `pi(a|s) = x(s,a) / rho(s)`.

    States that are never visited get the uniform policy: what happens there has no weight.
    """
    x = np.where(model.available, np.maximum(pair_density, 0.0), 0.0)
    rho = x.sum(1, keepdims=True)
    visited = rho[:, 0] > 1e-14 * max(1.0, float(rho.max(initial=0.0)))
    policy = np.where(
        visited[:, None], x / np.where(visited[:, None], rho, 1.0), model.uniform_policy()
    )
    return policy / policy.sum(1, keepdims=True)


def pair_density(model: Model, policy: Float[Array, "s a"]) -> Float[Array, "s a"]:
    """State-action density of a policy, `x(s,a) = rho(s) pi(a|s)`."""
    return dp.density(model, policy)[:, None] * policy


def fold_mixture(
    model: Model, policies: Sequence[Float[Array, "s a"]], weights: Float[Array, " k"]
) -> Float[Array, "s a"]:
    """Return one Markov policy with the density of a mixture that draws policy `k` per episode."""
    total = np.zeros(model.reward.shape)
    for policy, weight in zip(policies, weights, strict=True):
        if weight > 0:
            total += weight * pair_density(model, policy)
    return fold(model, total)


class Repaired(NamedTuple):
    """A mixture moved just far enough towards a strictly feasible one to keep every bound."""

    pair_density: Float[Array, "s a"]
    theta: float  # the share of the strictly feasible policy


def repair(
    bounds: Bounds,
    pair_density: Float[Array, "s a"],
    feasible: Float[Array, "s a"],
    margin: float = 0.0,
) -> Repaired:
    """Mix in the least share `theta` of a strictly feasible density that restores every bound.

    `theta = max_j violation_j / (violation_j + slack_j of the feasible one)`; `margin` asks for
    that much absolute slack at every bound, to cover rounding.
    """
    sides = bounds.sides
    gap = sides.rows @ pair_density.sum(1) - sides.limit + margin
    room = sides.limit - margin - sides.rows @ feasible.sum(1)
    broken = gap > 0
    if (room[broken] <= 0).any():
        raise ValueError(
            "the policy to mix in must keep every broken bound with room to spare, and this one "
            "does not. `most_slack` finds the roomiest policy."
        )
    theta = float((gap[broken] / (gap[broken] + room[broken])).max(initial=0.0))
    return Repaired((1 - theta) * pair_density + theta * feasible, theta)
