"""A known Markov decision process on a table, and the world that adds bounds and names to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
import scipy.sparse
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from dcrl.constraints import Bounds, Constraint, bind

ROW_SUM_TOLERANCE = 1e-9  # transition rows are sums of decimal fractions: rounding, not mistakes


@dataclass(frozen=True)
class Model:
    """States, actions, and where they lead.

    A terminal state ends the episode after it has been counted once: its only action is 0, which
    leads nowhere and earns nothing. Build a model with `Model.from_arrays`.
    """

    transition: scipy.sparse.csr_array  # (num_states * num_actions, num_states)
    reward: Float[Array, "s a"]
    initial: Float[Array, " s"]
    available: Bool[Array, "s a"]
    terminal: Bool[Array, " s"]
    discount: float

    @classmethod
    def from_arrays(
        cls,
        transition: ArrayLike | scipy.sparse.sparray,
        reward: ArrayLike,
        initial: ArrayLike,
        discount: float,
        *,
        available: ArrayLike | None = None,
        terminal: ArrayLike | None = None,
    ) -> "Model":
        """Build and check a model.

        Args:
            transition: `P[s, a, s']`, or sparse with one row per pair, row `s * num_actions + a`.
            reward: `r[s, a]`, or one reward per state.
            initial: probability of starting in each state.
            discount: in [0, 1]; 1 only where every policy ends in a terminal state.
            available: which actions exist in which state; all by default.
            terminal: where the episode ends; nowhere by default. Rows of these states are ignored.

        >>> stay_or_go = [[[1, 0], [0, 1]], [[0, 1], [0, 1]]]
        >>> model = Model.from_arrays(stay_or_go, [[0, 0], [1, 1]], [1, 0], discount=0.9)
        >>> model.num_states, model.num_actions
        (2, 2)
        """
        initial_array = np.asarray(initial, float)
        num_states = len(initial_array)
        if scipy.sparse.issparse(transition):
            rows = scipy.sparse.csr_array(transition, dtype=float, copy=True)
        else:
            dense = np.asarray(transition, float)
            if dense.ndim != 3 or dense.shape[0] != num_states or dense.shape[2] != num_states:
                raise ValueError(
                    f"transition must have shape (states, actions, states) with {num_states} "
                    f"states, as many as `initial` has; it has shape {dense.shape}."
                )
            rows = scipy.sparse.csr_array(dense.reshape(-1, num_states))
        num_rows, num_columns = cast(tuple[int, int], rows.shape)
        if num_columns != num_states or num_rows % num_states:
            raise ValueError(
                f"a sparse transition must have one row per pair of state and action and one "
                f"column per state ({num_states}); it has shape {rows.shape}."
            )
        num_actions = num_rows // num_states
        terminal_array = (
            np.zeros(num_states, bool) if terminal is None else np.array(terminal, bool)
        )
        _check_shape(terminal_array, (num_states,), "terminal")
        available_array = (
            np.ones((num_states, num_actions), bool)
            if available is None
            else np.array(available, bool)
        )
        _check_shape(available_array, (num_states, num_actions), "available")
        available_array[terminal_array] = np.arange(num_actions) == 0
        reward_array = np.asarray(reward, float)
        if reward_array.shape == (num_states,):
            reward_array = np.repeat(reward_array[:, None], num_actions, axis=1)
        _check_shape(reward_array, (num_states, num_actions), "reward")
        lead = (available_array & ~terminal_array[:, None]).ravel()
        rows = scipy.sparse.csr_array(scipy.sparse.diags_array(lead.astype(float)) @ rows)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        earning = available_array & ~terminal_array[:, None]
        reward_array = np.where(earning, reward_array, 0.0)
        _check_numbers(rows, reward_array, initial_array, discount, lead, available_array)
        return cls(
            rows, reward_array, initial_array, available_array, terminal_array, float(discount)
        )

    @property
    def num_states(self) -> int:
        """Return how many states there are."""
        return len(self.initial)

    @property
    def num_actions(self) -> int:
        """Return how many actions the busiest state has."""
        return self.reward.shape[1]

    @cached_property
    def pairs(self) -> Array:
        """Indices `s * num_actions + a` of the pairs that exist: the columns of the LP."""
        return np.flatnonzero(self.available.ravel())

    @property
    def mass(self) -> float:
        """Return the discounted length of an episode that never ends: `1 / (1 - gamma)`."""
        return np.inf if self.discount == 1 else 1 / (1 - self.discount)

    def uniform_policy(self) -> Float[Array, "s a"]:
        """Return the policy that takes every available action equally often."""
        return self.available / self.available.sum(1, keepdims=True)


def _check_shape(array: Array, shape: tuple[int, ...], what: str) -> None:
    if array.shape != shape:
        raise ValueError(f"{what} must have shape {shape}; it has shape {array.shape}.")


def _check_numbers(
    rows: scipy.sparse.csr_array,
    reward: Array,
    initial: Array,
    discount: float,
    lead: Array,
    available: Array,
) -> None:
    num_actions = reward.shape[1]
    if not 0 <= discount <= 1:
        raise ValueError(f"the discount must lie in [0, 1]; got {discount}.")
    if not np.isfinite(reward).all():
        s, a = np.argwhere(~np.isfinite(reward))[0]
        raise ValueError(f"rewards must be finite; reward[{s}, {a}] is {reward[s, a]}.")
    if not np.isfinite(initial).all() or (initial < 0).any():
        raise ValueError("initial must be probabilities: finite and not negative.")
    if abs(initial.sum() - 1) > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"initial must sum to 1; it sums to {initial.sum():.9g}. "
            "Divide by `initial.sum()` if these are counts."
        )
    if not np.isfinite(rows.data).all() or (rows.data < 0).any():
        raise ValueError("transition must be probabilities: finite and not negative.")
    if not available.any(1).all():
        s = int(np.argmin(available.any(1)))
        raise ValueError(f"state {s} has no available action; mark it terminal if episodes end.")
    totals = np.asarray(rows.sum(axis=1)).ravel()
    wrong = lead & (np.abs(totals - 1) > ROW_SUM_TOLERANCE)
    if wrong.any():
        s, a = divmod(int(np.argmax(wrong)), num_actions)
        raise ValueError(
            f"transition[s, a] must sum to 1 for every available pair; row (s={s}, a={a}) sums to "
            f"{totals[s * num_actions + a]:.9g}. Divide by `transition.sum(-1, keepdims=True)` if "
            "these are counts, or mark the state terminal."
        )


@dataclass(frozen=True)
class World:
    """A model with the bounds that must be kept in it.

    The model is the truth that simulates the world and referees the outcome. Learners never see
    it: they get the transitions that were sampled.

    Args:
        name: how the world is called in reports.
        model: what happens.
        constraints: what is promised.
        state_names: one name per state; `state 0`, `state 1`, ... by default.
        positions: where states lie in the plane, for pictures.
    """

    name: str
    model: Model
    constraints: Sequence[Constraint] = ()
    state_names: Sequence[str] | None = None
    positions: Float[Array, "s 2"] | None = field(default=None, repr=False)

    def __post_init__(self):
        _ = self.bounds  # bad bounds are told where they are written, not where they are used

    @cached_property
    def bounds(self) -> Bounds:
        """All constraints as one vector."""
        return bind(self.constraints, self.model.num_states, self.state_names)
