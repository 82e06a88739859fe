"""What has been seen: every distinct transition once, with how often it came up.

Raw rewards are stored, never penalised ones: the multipliers are added when a learner reads a
transition, so none is ever stale.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from dcrl.rollout import Experience, Simulator
from dcrl.tabular.model import Model


@dataclass(frozen=True)
class Replay:
    """Unique transitions `(s, a, s')` with their rewards and counts."""

    successor: Int[Array, "s a k"]  # read only where `visits` is positive
    reward: Float[Array, "s a"]  # read only where `tried`
    terminal: Bool[Array, " s"]
    initial: Float[Array, " s"]
    available: Bool[Array, "s a"]
    visits: Int[Array, "s a k"]
    discount: float

    @classmethod
    def empty(cls, world: Simulator) -> "Replay":
        """Return a replay that has seen nothing."""
        return cls(
            world.successor,
            world.reward,
            world.terminal,
            world.initial,
            world.available,
            np.zeros(world.successor.shape, np.int64),
            world.discount,
        )

    def add(self, experience: Experience) -> "Replay":
        """Return the replay with what the vans saw."""
        return replace(self, visits=self.visits + experience.visits)

    @cached_property
    def tried(self) -> Bool[Array, "s a"]:
        """Pairs that were seen at least once."""
        return self.visits.sum(2) > 0

    @cached_property
    def reached(self) -> Bool[Array, " s"]:
        """States that some van has been in."""
        seen = self.initial > 0
        led_to = self.successor[(self.visits > 0) & ~self.terminal[:, None, None]]
        seen[led_to] = True
        return seen

    @cached_property
    def probability(self) -> Float[Array, "s a k"]:
        """Observed frequency of each outcome of a pair; zero where it was never tried."""
        return self.visits / np.maximum(self.visits.sum(2, keepdims=True), 1)

    @cached_property
    def reward_scale(self) -> float:
        """Mean size of the rewards that were seen and are not zero: the unit of prices."""
        size = np.abs(self.reward[self.tried])
        return float(size[size > 0].mean()) if (size > 0).any() else 1.0

    def model(self) -> Model:
        """Return the model that the transitions suggest, over the pairs that were tried.

        States that were never reached end the episode: nothing is known of them.
        """
        num_states, num_actions, _ = self.visits.shape
        slot = np.flatnonzero((self.visits > 0) & ~self.terminal[:, None, None])
        pair = slot // self.visits.shape[2]
        transition = scipy.sparse.csr_array(
            (self.probability.ravel()[slot], (pair, self.successor.ravel()[slot])),
            shape=(num_states * num_actions, num_states),
        )
        return Model.from_arrays(
            transition,
            np.where(self.tried, self.reward, 0.0),
            self.initial,
            self.discount,
            available=self.tried,
            terminal=self.terminal | ~self.tried.any(1),
        )
