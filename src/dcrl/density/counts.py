"""The paper's count of discounted visits, from rollouts of the policy."""

from dataclasses import dataclass

import numpy as np
from jax import Array as JaxArray
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.rollout import Experience, Simulator, rollout


@dataclass(frozen=True)
class Counts:
    """Estimate densities by driving: `rho(s_ij) += gamma^j / N` over `N` vans.

    Args:
        vans: episodes per estimate. With at least one per starting state the start is exact, and
            where neither policy nor world is random the estimate is too.
        tail: vans that never arrive are stopped when `gamma^t` falls to this.
    """

    vans: int = 64
    tail: float = 1e-6

    def __post_init__(self):
        if self.vans < 1:
            raise ValueError(f"vans must be at least 1; got {self.vans}.")
        if not 0 < self.tail < 1:
            raise ValueError(f"tail must lie in (0, 1); got {self.tail}.")

    def __call__(self, key: JaxArray, world: Simulator, policy: Float[Array, "s a"]) -> Experience:
        """Drive the policy; the experience carries the estimate."""
        return rollout(key, world, policy, vans=self.vans, tail=self.tail)


def count_density(states: list[list[int]], num_states: int, discount: float) -> Float[Array, " s"]:
    """Return the paper's estimate from recorded episodes, the plain way.

    The compiled rollouts give the same numbers; this is for episodes from elsewhere.

    >>> count_density([[0, 1], [0, 0, 1]], num_states=2, discount=0.5).tolist()
    [1.25, 0.375]
    """
    density = np.zeros(num_states)
    for episode in states:
        for time, state in enumerate(episode):
            density[state] += discount**time / len(states)
    return density
