"""Certificates: how good a policy is and how good any policy can be, checked from scratch.

Nothing here trusts an optimiser. Any multipliers and any value function give an upper bound on
the optimum (weak duality); any policy gives a lower bound once its own density is shown to keep
the bounds. The residual of every equation that was solved in floating point is measured and paid
for. The code shares no line with the solvers it checks.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.sparse.linalg import MatrixRankWarning, spsolve

from dcrl.constraints import Bounds, Multipliers
from dcrl.tabular.model import Model


@dataclass(frozen=True)
class Certificate:
    """What was shown about a policy on a model; `gap = upper - lower` is how far it may be off."""

    feasible: bool  # every bound is kept, by a margin above the error of the arithmetic
    worst_slack: float  # smallest relative slack, after the error was subtracted
    lower: float  # the objective of the policy, less its error
    upper: float  # no policy within the bounds earns more
    error: float  # largest possible error of any density sum, `|| rho - rho_true ||_1`

    @property
    def gap(self) -> float:
        """Return how much a better policy could still gain."""
        return self.upper - self.lower

    @property
    def relative_gap(self) -> float:
        """Return the gap as a share of the objective."""
        return self.gap / max(abs(self.lower), abs(self.upper), 1e-300)


def upper_bound(
    model: Model,
    bounds: Bounds,
    multipliers: Multipliers,
    value: Float[Array, " s"] | None = None,
) -> float:
    """Return a number that no policy within the bounds can exceed, for any multipliers >= 0.

    With `T` the Bellman operator of the reward `r + sigma_lower - sigma_upper` and
    `delta = max(T V - V, 0)`, the function `V + delta / (1 - gamma)` is above the optimal value,
    whatever `V` is, so

        sigma_upper @ upper - sigma_lower @ lower + phi @ V + delta / (1 - gamma)

    bounds the optimum. A good `V` makes it tight; by default it is found by policy iteration.
    """
    lower_price = np.where(np.isfinite(bounds.lower), np.maximum(multipliers.lower, 0), 0.0)
    upper_price = np.where(np.isfinite(bounds.upper), np.maximum(multipliers.upper, 0), 0.0)
    bonus = bounds.basis.T @ (lower_price - upper_price)
    if value is None:
        value = _policy_iteration(model, bonus)
    residual = (_bellman(model, bonus, value) - value).max(initial=0.0)
    excess = max(float(residual), 0.0)
    if model.discount == 1:
        # Without discounting a value that any backup improves proves nothing.
        tail = 0.0 if excess == 0.0 else np.inf
    else:
        tail = excess / (1 - model.discount)
    constant = upper_price @ np.where(upper_price > 0, bounds.upper, 0.0)
    constant -= lower_price @ np.where(lower_price > 0, bounds.lower, 0.0)
    return float(constant + model.initial @ value + tail)


def _lookahead(model: Model, bonus: Array, value: Array) -> Array:
    future = np.asarray(model.transition @ value).reshape(model.reward.shape)
    return np.where(
        model.available, model.reward + bonus[:, None] + model.discount * future, -np.inf
    )


def _bellman(model: Model, bonus: Array, value: Array) -> Array:
    return _lookahead(model, bonus, value).max(axis=1)


def _policy_iteration(model: Model, bonus: Array) -> Array:
    """Return a nearly optimal value; what it misses is paid for by the residual."""
    size, actions = model.reward.shape
    value = np.zeros(size)
    for _ in range(50):
        for _ in range(10):
            value = _bellman(model, bonus, value)
        greedy = _lookahead(model, bonus, value).argmax(axis=1)
        rows = np.arange(size) * actions + greedy
        step = model.transition[rows]
        system = scipy.sparse.csc_array(scipy.sparse.eye_array(size) - model.discount * step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MatrixRankWarning)
            solved = np.asarray(spsolve(system, model.reward.ravel()[rows] + bonus))
        if not np.isfinite(solved).all():
            return value
        improved = float((_bellman(model, bonus, solved) - solved).max())
        value = solved
        if improved <= 1e-12 * (1 + float(np.abs(value).max())):
            return value
    return value


def certify(
    model: Model,
    bounds: Bounds,
    policy: Float[Array, "s a"],
    multipliers: Multipliers,
    value: Float[Array, " s"] | None = None,
) -> Certificate:
    """Check a policy against the bounds, and against everything else that keeps them.

    >>> from dcrl.envs import tiny
    >>> from dcrl.tabular import occupancy_lp
    >>> world = tiny.two_rooms()
    >>> optimum = occupancy_lp(world.model, world.bounds)
    >>> checked = certify(world.model, world.bounds, optimum.policy, optimum.multipliers)
    >>> round(checked.lower, 6), round(checked.upper, 6)
    (4.0, 4.0)
    """
    size, actions = model.reward.shape
    step = scipy.sparse.csr_array((size, size))
    for action in range(actions):
        rows = model.transition[np.arange(size) * actions + action]
        step = step + scipy.sparse.diags_array(policy[:, action]) @ rows
    system = scipy.sparse.csc_array(scipy.sparse.eye_array(size) - model.discount * step)
    rho = np.maximum(np.asarray(spsolve(system.T.tocsc(), model.initial)), 0.0)
    missing = np.abs(model.initial - system.T @ rho)
    # A missing unit of mass at `s` would have been counted for as long as an episode from there.
    if model.discount < 1:
        length = np.full(size, 1 / (1 - model.discount))
    else:
        length = np.asarray(spsolve(system, np.ones(size)))
    error = float(missing @ length)
    earned = (policy * model.reward).sum(axis=1)
    measured = np.asarray(bounds.basis @ rho)
    largest = abs(bounds.basis).max(axis=1).toarray().ravel() if len(bounds) else np.zeros(0)
    doubt = largest * error
    worst = min(bounds.worst_slack(measured - doubt), bounds.worst_slack(measured + doubt))
    return Certificate(
        feasible=bool(worst >= 0),
        worst_slack=worst,
        lower=float(rho @ earned - error * np.abs(model.reward).max()),
        upper=upper_bound(model, bounds, multipliers, value),
        error=error,
    )
