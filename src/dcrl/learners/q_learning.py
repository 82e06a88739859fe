"""Tabular Q-learning on replayed transitions (the learner of the paper's express delivery).

Every unique transition is replayed in each sweep, with the bonus of the multipliers added as it
is read, until the values settle:

    Q(s,a) <- Q(s,a) + step_size (r + bonus(s) + gamma V(s') - Q(s,a)),    V(s') = max_a' Q(s',a')

averaged over the successors that were seen. The policy is greedy, or with a temperature the softmax
of `Q / temperature`. The values are those of the greedy policy in both cases: values that counted
the softmax's entropy as a reward would pay for every further step, and nobody would ever arrive.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from dcrl.replay import Replay

SWEEPS_PER_CHECK = 32
CREEP = 0.1  # relative deviation from steady creeping that still counts as such


class QState(NamedTuple):
    """What the next improvement starts from."""

    q: Float[Array, "s a"]
    temperature: float  # of the policy, in units of the reward


class QInfo(NamedTuple):
    """What one improvement reports.

    `value + excess` is above the optimal modified value of the replayed transitions, whether or
    not the sweeps converged: `V + max(T V - V, 0) / (1 - gamma)` bounds it for any `V`.
    """

    value: float  # of the start
    excess: float
    sweeps: int


@dataclass(frozen=True)
class QLearning:
    """Settings of the learner.

    Args:
        temperature: 0 acts greedily; above that, the policy is the softmax of `Q / temperature`.
            In units of the mean size of the rewards.
        step_size: the learning rate; 1 is right for replayed averages.
        tolerance: sweeps end when no value can move by more than this any more, in units of the
            mean size of the rewards.
        max_sweeps: and at the latest after so many.
    """

    temperature: float = 0.0
    step_size: float = 1.0
    tolerance: float = 1e-2
    max_sweeps: int = 20_000

    def __post_init__(self):
        if not 0 <= self.temperature < np.inf:
            raise ValueError(f"temperature must be 0 or positive; got {self.temperature}.")
        if not 0 < self.step_size <= 1:
            raise ValueError(f"step_size must lie in (0, 1]; got {self.step_size}.")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive; got {self.tolerance}.")
        if self.max_sweeps < 1:
            raise ValueError(f"max_sweeps must be at least 1; got {self.max_sweeps}.")

    def init(self, replay: Replay) -> QState:
        """Start from zero values."""
        return QState(np.zeros(replay.reward.shape), self.temperature * replay.reward_scale)

    def improve(
        self, state: QState, replay: Replay, bonus: Float[Array, " s"], *, earning: bool = True
    ) -> tuple[QState, QInfo]:
        """Sweep over the replay with `bonus` added to the reward of each state.

        With `earning=False` the bonus is all there is to earn.
        """
        reward = (replay.reward if earning else 0.0) + bonus[:, None]
        q, residual, sweeps = self._settle(
            state.q,
            replay,
            np.broadcast_to(reward, state.q.shape),
            replay.tried,
            replay.discount,
        )
        value = np.where(replay.tried, q, -np.inf).max(1, initial=-np.inf)
        value = np.where(replay.tried.any(1), value, 0.0)
        excess = np.inf if replay.discount == 1 else residual / (1 - replay.discount)
        return QState(q, state.temperature), QInfo(
            float(replay.initial @ value), 0.0 if residual <= 0 else excess, sweeps
        )

    def policy(self, state: QState, replay: Replay) -> Float[Array, "s a"]:
        """Return the greedy or the softmax policy; uniform where nothing was ever tried."""
        known = np.asarray(replay.tried.any(1))
        legal = np.where(known[:, None], replay.tried, replay.available)
        q = np.where(legal, np.where(known[:, None], state.q, 0.0), -np.inf)
        if state.temperature == 0:
            greedy = np.zeros(q.shape)
            greedy[np.arange(len(q)), q.argmax(1)] = 1.0
            return np.where(known[:, None], greedy, legal / legal.sum(1, keepdims=True))
        weight = np.exp((q - q.max(1, keepdims=True)) / state.temperature)
        return weight / weight.sum(1, keepdims=True)

    def seek(self, replay: Replay, wanted: Bool[Array, "s a"]) -> Float[Array, "s a"]:
        """Values of reaching a `wanted` pair soon; zero where the replay knows no way to one."""
        discount = 0.99
        q, _, _ = self._settle(
            np.zeros(wanted.shape),
            replay,
            np.where(wanted, 1 - discount, 0.0),
            replay.available,
            discount,
        )
        return q

    def _settle(
        self, q: Array, replay: Replay, reward: Array, legal: Array, discount: float
    ) -> tuple[Array, float, int]:
        threshold = self.tolerance * replay.reward_scale
        if discount < 1:  # a sweep that moves values by this may be followed by many more
            threshold *= 1 - discount
        with jax.enable_x64(True):
            swept, residual, sweeps = jax.device_get(
                _sweep(
                    q,
                    np.where(legal, reward, 0.0),
                    replay.probability,
                    replay.successor,
                    legal,
                    np.float64(discount),
                    np.float64(self.step_size),
                    np.float64(threshold),
                    np.int64(self.max_sweeps),
                )
            )
        return swept, float(residual), int(sweeps)


class _Sweep(NamedTuple):
    q: JaxArray
    move: JaxArray  # of q, in the last check
    rise: JaxArray  # greatest change of a value in one sweep
    checks: JaxArray  # so far


@jax.jit
def _sweep(
    q: JaxArray,
    reward: JaxArray,
    probability: JaxArray,
    successor: JaxArray,
    legal: JaxArray,
    discount: JaxArray,
    step_size: JaxArray,
    threshold: JaxArray,
    max_sweeps: JaxArray,
) -> tuple[JaxArray, JaxArray, JaxArray]:
    """Sweep until no state's value rises or falls by more than `threshold` in one sweep."""
    known = jnp.any(legal, axis=1)
    # Terminal transitions lead to the parking behind the last state, which is worth nothing.
    lead_to = jnp.minimum(successor, len(q))

    def value_of(q: JaxArray) -> JaxArray:
        return jnp.where(known, jnp.max(jnp.where(legal, q, -jnp.inf), axis=1), 0.0)

    def target(value: JaxArray) -> JaxArray:
        ahead = jnp.concatenate([value, jnp.zeros(1)])[lead_to]
        return reward + discount * jnp.sum(probability * ahead, axis=2)

    def replay_once(q: JaxArray) -> JaxArray:
        return q + step_size * (target(value_of(q)) - q)

    def again(_: JaxArray, q: JaxArray) -> JaxArray:
        return replay_once(q)

    shrink = discount**SWEEPS_PER_CHECK

    def check(sweep: _Sweep) -> _Sweep:
        begun = sweep.q
        q = jax.lax.fori_loop(0, SWEEPS_PER_CHECK - 1, again, begun)
        value = value_of(q)
        q = replay_once(q)
        rise = jnp.max(jnp.abs(value_of(target(value)) - value))
        # Where vans drive in circles, values creep: every check moves them by `shrink` times the
        # move before. Then all moves to come are known, and are made at once.
        move = q - begun
        creeping = jnp.max(jnp.abs(move - shrink * sweep.move)) < CREEP * jnp.max(jnp.abs(move))
        leap = jnp.where(creeping & (discount < 1), shrink / (1 - shrink), 0.0)
        return _Sweep(q + leap * move, jnp.where(leap > 0, jnp.inf, move), rise, sweep.checks + 1)

    def unsettled(sweep: _Sweep) -> JaxArray:
        return (sweep.rise > threshold) & (sweep.checks * SWEEPS_PER_CHECK < max_sweeps)

    done = jax.lax.while_loop(
        unsettled,
        check,
        _Sweep(q, jnp.full(q.shape, jnp.inf), jnp.array(jnp.inf), jnp.zeros((), jnp.int64)),
    )
    q = done.q
    value = value_of(q)
    return q, jnp.max(value_of(target(value)) - value), done.checks * SWEEPS_PER_CHECK
