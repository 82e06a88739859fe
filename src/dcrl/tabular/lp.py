"""The exact answer on a table: a linear program over occupancies.

The state-action density `x(s,a)` of every policy, and of no other thing, satisfies the flow
equations, so the best policy within the bounds is

    maximise    sum r(s,a) x(s,a)
    subject to  sum_a x(s,a) - gamma sum_{s',a'} P(s|s',a') x(s',a') = phi(s)     for every state
                lower <= basis @ rho <= upper,   rho(s) = sum_a x(s,a),   x >= 0

and the multipliers of its bounds are the `sigma` that Algorithm 1 looks for.
"""

import time
from typing import Any, NamedTuple

import clarabel as _untyped_clarabel
import numpy as np
import scipy.sparse
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.optimize import linprog

from dcrl.constraints import Bounds, Multipliers
from dcrl.tabular.mix import fold
from dcrl.tabular.model import Model

clarabel: Any = _untyped_clarabel  # its compiled module tells no types

CLARABEL_FROM = 500
"""States from which the interior point of Clarabel is tried first: random models of this size
take HiGHS seconds to minutes (`benchmarks/lp.py`)."""


class Optimum(NamedTuple):
    """An optimal policy within the bounds, with its multipliers."""

    policy: Float[Array, "s a"]
    pair_density: Float[Array, "s a"]
    density: Float[Array, " s"]
    objective: float
    multipliers: Multipliers
    seconds: float


class Infeasible(ValueError):
    """No policy keeps the bounds; `names` are the bounds that cannot be kept together."""

    def __init__(self, message: str, names: tuple[str, ...]):
        super().__init__(message)
        self.names = names


class LinearProgram(NamedTuple):
    """`minimise cost @ z` with `equal @ z == right`, `within @ z <= limit`, `z >= 0`."""

    cost: Array
    equal: scipy.sparse.csr_array
    right: Array
    within: scipy.sparse.csr_array
    limit: Array


def flow(model: Model) -> scipy.sparse.csr_array:
    """Left side of the flow equations, one column per available pair."""
    states = model.pairs // model.num_actions
    leave = scipy.sparse.csr_array(
        (np.ones(len(states)), (states, np.arange(len(states)))),
        shape=(model.num_states, len(states)),
    )
    return scipy.sparse.csr_array(leave - model.discount * model.transition[model.pairs].T)


def occupancy_lp(model: Model, bounds: Bounds, solver: str = "auto") -> Optimum:
    """Return the best policy within the bounds.

    Args:
        model: what happens.
        bounds: what is promised.
        solver: `highs`, `clarabel`, or `auto`, which chooses by size.

    Raises:
        Infeasible: naming the bounds, where no policy keeps them.

    >>> from dcrl.envs import tiny
    >>> world = tiny.two_rooms()
    >>> optimum = occupancy_lp(world.model, world.bounds)
    >>> round(optimum.objective, 6), optimum.multipliers.upper.round(6).tolist()
    (4.0, [1.0])
    """
    begun = time.perf_counter()
    sides = bounds.sides
    solved = _minimise(
        LinearProgram(
            cost=-model.reward.ravel()[model.pairs],
            equal=flow(model),
            right=model.initial,
            within=_on_pairs(model, sides.rows),
            limit=sides.limit,
        ),
        solver,
        model.num_states,
    )
    if solved is None:
        least = least_violation(model, bounds)
        raise Infeasible(least.sentence(), least.names)
    z, prices = solved
    x = _on_table(model, z)
    return Optimum(
        fold(model, x),
        x,
        x.sum(1),
        float((model.reward * x).sum()),
        bounds.from_sides(prices),
        time.perf_counter() - begun,
    )


class LeastViolation(NamedTuple):
    """How far the bounds are from being kept: the smallest total relative violation."""

    total: float
    names: tuple[str, ...]
    violation: Float[Array, " m"]

    def sentence(self) -> str:
        """Say which bounds cannot be kept."""
        if not self.names:
            return "some policy keeps all bounds."
        shown = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
        return (
            f"no policy keeps all bounds: even the closest one breaks {shown}. "
            "Relax these, or the bounds that compete with them."
        )


def least_violation(model: Model, bounds: Bounds, tolerance: float = 1e-7) -> LeastViolation:
    """Find the policy that breaks the bounds least, and say which bounds it still breaks.

    The violations are measured relative to each bound and added up.
    """
    sides = bounds.sides
    pairs, count = len(model.pairs), len(sides.limit)
    solved = _minimise(
        LinearProgram(
            cost=np.concatenate([np.zeros(pairs), np.ones(count)]),
            equal=_beside(flow(model), scipy.sparse.csr_array((model.num_states, count))),
            right=model.initial,
            within=_beside(
                _on_pairs(model, sides.rows), -scipy.sparse.diags_array(sides.scale).tocsr()
            ),
            limit=sides.limit,
        ),
        "highs",
        model.num_states,
    )
    if solved is None:
        raise ValueError(
            "the flow equations of this model have no solution; with a discount of 1 some state "
            "cannot reach a terminal state."
        )
    by_side = bounds.from_sides(solved[0][pairs:])
    violation = np.maximum(by_side.lower, by_side.upper)
    return LeastViolation(
        float(violation.sum()),
        tuple(n for n, v in zip(bounds.names, violation, strict=True) if v > tolerance),
        violation,
    )


class Roomy(NamedTuple):
    """A policy with as much relative slack at every bound as any policy can have."""

    policy: Float[Array, "s a"]
    pair_density: Float[Array, "s a"]
    slack: float  # the smallest relative slack over all bounds; negative where none is feasible


def most_slack(model: Model, bounds: Bounds, cap: float = 1.0) -> Roomy:
    """Return the policy that keeps the bounds with the most room to spare.

    Maximises the smallest relative slack, `min_j slack_j / |bound_j|`, up to `cap`.
    """
    sides = bounds.sides
    # One more variable, how far the slack falls short of the cap, keeps everything non-negative.
    solved = _minimise(
        LinearProgram(
            cost=np.concatenate([np.zeros(len(model.pairs)), [1.0]]),
            equal=_beside(flow(model), scipy.sparse.csr_array((model.num_states, 1))),
            right=model.initial,
            within=_beside(
                _on_pairs(model, sides.rows), scipy.sparse.csr_array(-sides.scale[:, None])
            ),
            limit=sides.limit - cap * sides.scale,
        ),
        "highs",
        model.num_states,
    )
    if solved is None:
        raise ValueError("the flow equations of this model have no solution.")
    x = _on_table(model, solved[0][:-1])
    return Roomy(fold(model, x), x, cap - float(solved[0][-1]))


def _on_pairs(model: Model, rows: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Turn weights of states into weights of available pairs."""
    return scipy.sparse.csr_array(rows[:, model.pairs // model.num_actions])


def _on_table(model: Model, z: Array) -> Float[Array, "s a"]:
    x = np.zeros(model.reward.size)
    x[model.pairs] = np.maximum(z, 0)
    return x.reshape(model.reward.shape)


def _beside(left: scipy.sparse.csr_array, right: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(scipy.sparse.hstack([left, right]))


def _minimise(program: LinearProgram, solver: str, num_states: int) -> tuple[Array, Array] | None:
    """Return the minimiser and the prices of `within`, or None where nothing is feasible."""
    if solver not in ("auto", "highs", "clarabel"):
        raise ValueError(f"unknown solver '{solver}'; choose auto, highs or clarabel.")
    if solver == "clarabel" or (solver == "auto" and num_states >= CLARABEL_FROM):
        solved = _clarabel(program)
        if solved is not None:
            return solved
        # An interior point may stop short of its tolerance; only the simplex says infeasible.
    return _highs(program)


def _highs(program: LinearProgram) -> tuple[Array, Array] | None:
    options = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}
    result = linprog(
        program.cost,
        A_ub=program.within,
        b_ub=program.limit,
        A_eq=program.equal,
        b_eq=program.right,
        method="highs",
        options=options,
    )
    if result.status == 2:
        return None
    if result.status == 3:
        raise ValueError(
            "the reward is unbounded: with a discount of 1 some policy earns for ever. "
            "Use a discount below 1."
        )
    if result.status != 0:
        raise RuntimeError(f"HiGHS did not solve the occupancy LP: {result.message}")
    return np.asarray(result.x), -np.asarray(result.ineqlin.marginals)


def _clarabel(program: LinearProgram) -> tuple[Array, Array] | None:
    variables = len(program.cost)
    rows = scipy.sparse.csc_array(
        scipy.sparse.vstack([program.equal, program.within, -scipy.sparse.eye_array(variables)])
    )
    right = np.concatenate([program.right, program.limit, np.zeros(variables)])
    cones = [
        clarabel.ZeroConeT(len(program.right)),
        clarabel.NonnegativeConeT(len(program.limit) + variables),
    ]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    settings.max_threads = 1
    quadratic = scipy.sparse.csc_matrix((variables, variables))
    solution = clarabel.DefaultSolver(
        quadratic, program.cost, scipy.sparse.csc_matrix(rows), right, cones, settings
    ).solve()
    if str(solution.status) != "Solved":
        return None
    prices = np.asarray(solution.z)[len(program.right) : len(program.right) + len(program.limit)]
    return np.asarray(solution.x), prices
