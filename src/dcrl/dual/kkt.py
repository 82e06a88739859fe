"""How far multipliers and a policy are from the optimality conditions.

A policy that is optimal for the modified reward is optimal within the bounds if they hold and if
no price is paid where there is slack (Theorem 1 of the paper). The residuals are relative, so
that the same tolerances serve all problems.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.constraints import Bounds, Multipliers


class Residuals(NamedTuple):
    """Zero at an optimum."""

    violation: float  # largest relative violation of a bound
    complementarity: float  # sum of |sigma * slack|, relative to the objective


def residuals(
    bounds: Bounds, multipliers: Multipliers, value: Float[Array, " m"], objective: float
) -> Residuals:
    """Measure `rho` against its bounds, and `sigma * slack` against zero."""
    with np.errstate(invalid="ignore"):  # zero times the infinite slack of a side without a bound
        slack = (
            np.nan_to_num(multipliers.lower * (value - bounds.lower), nan=0.0),
            np.nan_to_num(multipliers.upper * (bounds.upper - value), nan=0.0),
        )
    paid = float(np.abs(slack[0]).sum() + np.abs(slack[1]).sum())
    return Residuals(max(0.0, -bounds.worst_slack(value)), paid / max(abs(objective), 1e-12))
