"""Dynamic programming on a known model: densities, values and best responses, exact.

Everything is solved by sparse LU in double precision. With a discount of 1 the equations need
episodes that end; where one never does, the sentence says so.
"""

import warnings
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import logsumexp

from dcrl.tabular.model import Model


class Response(NamedTuple):
    """A policy that is optimal for some reward, and its optimal value in every state."""

    policy: Float[Array, "s a"]
    value: Float[Array, " s"]


def chain(model: Model, policy: Float[Array, "s a"]) -> scipy.sparse.csr_array:
    """Transition matrix of the states under a policy, `P_pi(s, s') = sum_a pi(a|s) P(s'|s,a)`."""
    num_states, num_actions = policy.shape
    choose = scipy.sparse.csr_array(
        (
            policy.ravel(),
            np.arange(num_states * num_actions),
            np.arange(num_states + 1) * num_actions,
        ),
        shape=(num_states, num_states * num_actions),
    )
    return scipy.sparse.csr_array(choose @ model.transition)


def _solve(model: Model, policy: Array, right: Array, *, transpose: bool) -> Array:
    """Solve with `I - gamma P_pi` or its transpose."""
    flow = scipy.sparse.csc_array(
        scipy.sparse.eye_array(model.num_states) - model.discount * chain(model, policy)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", scipy.sparse.linalg.MatrixRankWarning)
        try:
            solution = scipy.sparse.linalg.splu(flow).solve(right, trans="T" if transpose else "N")
        except (RuntimeError, scipy.sparse.linalg.MatrixRankWarning):
            solution = np.full_like(right, np.nan)
    if not np.isfinite(solution).all():
        raise ValueError(
            "this policy never ends from some state, so with a discount of 1 its density is "
            "infinite there. Use a discount below 1, or a policy that reaches a terminal state."
        )
    return solution


def density(model: Model, policy: Float[Array, "s a"]) -> Float[Array, " s"]:
    """State density of a policy, `rho = (I - gamma P_pi^T)^-1 phi` (Section 2 of the paper).

    >>> from dcrl.envs import tiny
    >>> model = tiny.two_rooms().model
    >>> density(model, model.uniform_policy()).round(6).tolist()
    [5.5, 4.5]
    """
    return _solve(model, policy, model.initial, transpose=True)


def value(
    model: Model, policy: Float[Array, "s a"], reward: Float[Array, "s a"] | None = None
) -> Float[Array, " s"]:
    """Expected discounted reward of a policy from every state, `V = (I - gamma P_pi)^-1 r_pi`."""
    reward_of_policy = (policy * (model.reward if reward is None else reward)).sum(1)
    return _solve(model, policy, reward_of_policy, transpose=False)


def objective(model: Model, policy: Float[Array, "s a"]) -> float:
    """Expected discounted reward of a policy from the initial states."""
    return float(density(model, policy) @ (policy * model.reward).sum(1))


def action_values(
    model: Model, value_of_state: Float[Array, " s"], bonus: Float[Array, " s"] | None = None
) -> Float[Array, "s a"]:
    """`Q = r + bonus + gamma P V`; minus infinity where an action is not available."""
    ahead = (model.transition @ value_of_state).reshape(model.reward.shape)
    total = model.reward + model.discount * ahead
    if bonus is not None:
        total = total + bonus[:, None]
    return np.where(model.available, total, -np.inf)


def best_response(model: Model, bonus: Float[Array, " s"] | None = None) -> Response:
    """Return a deterministic optimal policy for `reward + bonus`, by policy iteration.

    An action is changed only for a real gain, so rounding cannot make the iteration cycle.

    >>> from dcrl.envs import tiny
    >>> response = best_response(tiny.two_rooms().model)
    >>> response.value.round(6).tolist()
    [9.0, 10.0]
    """
    reward = model.reward if bonus is None else model.reward + bonus[:, None]
    states = np.arange(model.num_states)
    if model.discount == 1:  # what improves on a policy that ends, ends
        optimal = value(model, model.uniform_policy(), reward)
    else:  # a few sweeps of value iteration find a sensible start
        optimal = np.zeros(model.num_states)
        for _ in range(20):
            optimal = action_values(model, optimal, bonus).max(1)
    choice = action_values(model, optimal, bonus).argmax(1)
    while True:
        policy = np.zeros(model.reward.shape)
        policy[states, choice] = 1.0
        optimal = value(model, policy, reward)
        q = action_values(model, optimal, bonus)
        gain = q.max(1) - q[states, choice]
        better = gain > 1e-11 * (1 + np.abs(optimal).max())
        if not better.any():
            return Response(policy, optimal)
        choice = np.where(better, q.argmax(1), choice)


def soft_best_response(
    model: Model,
    temperature: float,
    bonus: Float[Array, " s"] | None = None,
    tolerance: float = 1e-10,
) -> Response:
    """Return the optimal policy for `reward + bonus + temperature * entropy`.

    `V(s) = temperature * log sum_a exp(Q(s,a) / temperature)` and the policy is its softmax.
    Solved by soft policy iteration, which is Newton's method on this equation.
    """
    if not temperature > 0:
        raise ValueError(
            f"the temperature must be positive; got {temperature}. Use `best_response` for 0."
        )
    reward = model.reward if bonus is None else model.reward + bonus[:, None]
    policy = model.uniform_policy()
    while True:
        log_policy = np.log(np.where(policy > 0, policy, 1.0))
        optimal = value(model, policy, reward - temperature * log_policy)
        q = action_values(model, optimal, bonus)
        soft = temperature * np.asarray(logsumexp(q / temperature, axis=1))
        policy = np.exp((q - soft[:, None]) / temperature)
        policy /= policy.sum(1, keepdims=True)
        if np.abs(soft - optimal).max() <= tolerance * (1 + np.abs(optimal).max()):
            return Response(policy, soft)
