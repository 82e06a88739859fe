"""The density master: the next multipliers are the prices of a small linear program.

All policies seen so far are columns. The master finds the mixture of them that earns most within
the bounds; the prices of its bounds are the next multipliers, the best policy for these is the
next column, and so on (Dantzig-Wolfe column generation on the occupancy LP). The value of the
mixture is a lower bound on the optimum; by weak duality every round also gives an upper bound.

Three things make it work from a cold start and without wandering:

- *Slack variables* give up bounds at a price, so the master is always feasible. First they alone
  are minimised, relative to each bound: either a mixture keeps all bounds, or the prices prove
  that none does. Then reward is maximised, with the slack priced out.
- *Smoothing*: the master's prices jump about. The multipliers used are a mean of these and of the
  ones with the best upper bound so far (Wentges smoothing); or, where the learner knows of no upper
  bound, of these and the ones before (Neame smoothing).
- *Clean-up*: columns that have not been used for long leave the pool.

Densities are estimates, so the last bit of violation, or of the gap, may be more than the columns
can close. When none has brought anything for many rounds, the master makes do: it turns to reward
with the violation that is left, and later it stops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import highspy
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.constraints import Bounds, Multipliers
from dcrl.dual.column import Column, mix

NEGLIGIBLE = 1e-12  # entries below this are rounding, and would only slow the simplex down
FEASIBLE = 1e-9  # total relative violation that counts as none
CLOSED = 1e-3  # relative gap at which violation that is left shows that slack is too cheap
PATIENCE = 200  # rounds in a row that may bring the master nothing
PROGRESS = 1e-9  # relative change of its cost that is something


class Program:
    """The master LP, kept warm in HiGHS. The only object of the library that changes in place.

    Rows: the weights sum to one; each bound. Columns: two slacks per bound; then one per policy.
    """

    def __init__(self, bounds: Bounds):
        self.num_bounds = len(bounds)
        self._highs = highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("threads", 1)
        highs.setOptionValue("presolve", "off")  # it would throw the warm start away
        highs.addRow(1.0, 1.0, 0, [], [])
        for lower, upper in zip(bounds.lower, bounds.upper, strict=True):
            highs.addRow(_finite(lower), _finite(upper), 0, [], [])
        for row, (below, above) in enumerate(zip(*bounds.scales, strict=True), start=1):
            for entry in (below, -above):
                highs.addCol(1.0, 0.0, highspy.kHighsInf, 1, [row], [entry])
        self.num_columns = 0

    def add(self, column: Column, cost: float) -> None:
        """Add a policy."""
        entries = np.concatenate([[1.0], column.value])
        used = np.flatnonzero(np.abs(entries) > NEGLIGIBLE).astype(np.int32)
        self._highs.addCol(cost, 0.0, highspy.kHighsInf, len(used), used, entries[used])
        self.num_columns += 1

    def remove(self, indices: Sequence[int]) -> None:
        """Remove policies by their position."""
        first = 2 * self.num_bounds
        self._highs.deleteCols(len(indices), np.asarray(indices, np.int32) + first)
        self.num_columns -= len(indices)

    def set_costs(self, slack_cost: float, column_costs: Float[Array, " k"]) -> None:
        """Change what the slack and the policies cost."""
        costs = np.concatenate([np.full(2 * self.num_bounds, slack_cost), column_costs])
        self._highs.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)

    def solve(self) -> "Solved":
        """Minimise."""
        self._highs.run()
        status = self._highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            # A warm start may have gone stale numerically; from scratch the program is solvable.
            self._highs.clearSolver()
            self._highs.run()
            status = self._highs.getModelStatus()
            if status != highspy.HighsModelStatus.kOptimal:
                raise RuntimeError(
                    f"HiGHS did not solve the master: {self._highs.modelStatusToString(status)}"
                )
        solution = self._highs.getSolution()
        values = np.asarray(solution.col_value)
        first = 2 * self.num_bounds
        weights = np.maximum(values[first:], 0.0)
        return Solved(
            weights / weights.sum(),
            float(values[:first].sum()),
            np.asarray(solution.row_dual)[1:],
            float(self._highs.getInfo().objective_function_value),
        )


def _finite(bound: float) -> float:
    return float(np.clip(bound, -highspy.kHighsInf, highspy.kHighsInf))


@dataclass(frozen=True)
class Solved:
    """A solution of the master: the best mixture of what was seen, and the price of each bound."""

    weights: Float[Array, " k"]
    violation: float  # total relative violation that is left
    prices: Float[Array, " m"]  # positive: the lower bound is active; negative: the upper one
    cost: float


@dataclass(frozen=True)
class MasterState:
    """The pool of policies, and the best multipliers so far."""

    program: Program = field(repr=False)
    columns: tuple[Column, ...] = field(repr=False)
    idle: tuple[int, ...]  # rounds since each column was last used
    solved: Solved
    multipliers: Multipliers  # smoothed: what the next policy answers
    center: Float[Array, " m"]  # net multipliers with the best bound so far
    best_bound: float  # of the present phase: the least upper bound so far
    earning: bool  # second phase: the bounds can be kept, now reward counts
    slack_price: float
    infeasible: bool
    blind: bool = False  # the learner knows no upper bound
    stale: int = 0  # rounds in a row that brought nothing
    unavoidable: float = 0.0  # violation that was left when reward began to count
    settled: bool = False  # no more comes of it; whether the gap is small `solve` measures

    @property
    def answer(self) -> Column:
        """The best mixture."""
        return mix(self.columns, self.solved.weights)


@dataclass(frozen=True)
class Master:
    """The certified dual rule.

    Args:
        smoothing: share of the best multipliers so far in the next ones, or of the last where no
            bound tells which are best; 0 is plain column generation.
        slack_price: first price of a relative violation of one, in units of what an episode can
            earn; raised when it proves too low.
        pool: columns per bound that are kept before unused ones are removed.
    """

    smoothing: float = 0.8
    slack_price: float = 10.0
    pool: int = 5

    def __post_init__(self):
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1); got {self.smoothing}.")
        if not self.slack_price > 0:
            raise ValueError(f"slack_price must be positive; got {self.slack_price}.")
        if self.pool < 2:
            raise ValueError(f"pool must be at least 2; got {self.pool}.")

    @property
    def compiles(self) -> bool:
        """No: a linear program belongs to the host."""
        return False

    def init(
        self, bounds: Bounds, start: Column, reward_scale: float, length: float
    ) -> MasterState:
        """Start with one column, the policy that explored, and look for feasibility."""
        program = Program(bounds)
        program.add(start, 0.0)
        solved = program.solve()
        state = MasterState(
            program,
            (start,),
            (0,),
            solved,
            Multipliers.from_net(solved.prices),
            np.zeros(len(bounds)),
            np.inf,
            False,
            self.slack_price * reward_scale * max(1.0, length),
            False,
        )
        return self._earn(state) if solved.violation <= FEASIBLE else state

    def update(
        self, state: MasterState, bounds: Bounds, seen: Column, best_modified: float
    ) -> MasterState:
        """Add the policy, solve, and smooth."""
        used = state.multipliers.net
        bound = bounds.worth(state.multipliers) + best_modified
        if bound < state.best_bound:
            state = replace(state, best_bound=bound, center=used)
        state.program.add(seen, -seen.objective if state.earning else 0.0)
        solved = state.program.solve()
        idle = tuple(
            0 if weight > 0 else rounds + 1
            for weight, rounds in zip(solved.weights, (*state.idle, 0), strict=True)
        )
        gained = state.solved.cost - solved.cost > PROGRESS * (1 + abs(solved.cost))
        stale = 0 if gained else state.stale + 1
        state = replace(
            state,
            columns=(*state.columns, seen),
            idle=idle,
            solved=solved,
            stale=stale,
            blind=not np.isfinite(best_modified),
        )
        if not state.earning:
            # Weak duality without rewards: every mixture violates by at least `-best_bound`.
            state = replace(state, infeasible=state.best_bound < -FEASIBLE)
            if solved.violation <= FEASIBLE or (stale >= PATIENCE and not state.infeasible):
                return self._earn(state)
        elif stale >= PATIENCE:
            state = replace(state, settled=True)
        elif solved.violation > state.unavoidable + FEASIBLE:
            closed = state.best_bound + solved.cost <= CLOSED * abs(solved.cost)
            state = self._raise_price(state) if closed else state
        return self._smooth(self._clean_up(state, len(bounds)))

    def _earn(self, state: MasterState) -> MasterState:
        """Begin the second phase."""
        left = state.solved.violation
        state = replace(state, earning=True, best_bound=np.inf, stale=0, unavoidable=left)
        return self._smooth(self._solve_again(state))

    def _raise_price(self, state: MasterState) -> MasterState:
        return self._solve_again(replace(state, slack_price=10 * state.slack_price))

    def _solve_again(self, state: MasterState) -> MasterState:
        state.program.set_costs(
            state.slack_price, np.array([-column.objective for column in state.columns])
        )
        return replace(state, solved=state.program.solve())

    def _smooth(self, state: MasterState) -> MasterState:
        known = np.isfinite(state.best_bound)
        center = state.center if known else state.multipliers.net
        share = self.smoothing if known or state.blind else 0.0
        net = share * center + (1 - share) * state.solved.prices
        return replace(state, multipliers=Multipliers.from_net(net))

    def _clean_up(self, state: MasterState, num_bounds: int) -> MasterState:
        limit = self.pool * (num_bounds + 1)
        if len(state.columns) <= limit:
            return state
        # Keep the half that was used most recently; the basis is always among it.
        order = np.argsort(state.idle, kind="stable")
        kept = np.sort(order[: max(limit // 2, int(np.sum(np.asarray(state.idle) == 0)))])
        gone = np.setdiff1d(np.arange(len(state.columns)), kept)
        state.program.remove(gone.tolist())
        solved = state.program.solve()
        return replace(
            state,
            columns=tuple(state.columns[k] for k in kept),
            idle=tuple(state.idle[k] for k in kept),
            solved=solved,
        )
