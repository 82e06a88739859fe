"""The cross-entropy method over multipliers (CERS), as the paper describes its baseline.

Multiplier vectors are drawn from a distribution, each gives a policy by the same learner, and the
distribution is refitted to the elites, those whose policies violate the bounds least in total.
The search ends when a policy keeps all bounds. The paper gives neither the distribution nor its
sizes; here it is an independent normal per bound, truncated at zero. Its spread never falls below a
floor (noise, as Szita and Lorincz 2006 need for reinforcement learning): without it the search
narrows within a few generations and then draws the same policy for ever.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.stats import truncnorm

from dcrl.constraints import Bounds, Multipliers
from dcrl.dual.column import Column

KEPT = 1e-9  # total violation that counts as none


@dataclass(frozen=True)
class CrossEntropyState:
    """The distribution, the vectors drawn from it, and how those tried so far did."""

    multipliers: Multipliers
    answer: Column  # of the policy with the least violation so far
    least: float
    mean: Float[Array, " k"]
    spread: Float[Array, " k"]
    drawn: Float[Array, "n k"]
    violation: tuple[float, ...]  # of the vectors of this generation tried so far
    generation: int
    earning: bool = True
    infeasible: bool = False  # a search cannot tell

    @property
    def settled(self) -> bool:
        """Some policy keeps all bounds."""
        return self.least <= KEPT


@dataclass(frozen=True)
class CrossEntropy:
    """The search.

    Args:
        samples: vectors per generation.
        elites: how many of them the next distribution is fitted to.
        mean: of the first distribution.
        spread: its standard deviation.
        smoothing: share of the new fit in the next distribution.
        noise: least standard deviation of any later distribution.
        seed: of the draws.
    """

    samples: int = 50
    elites: int = 10
    mean: float = 0.5
    spread: float = 0.5
    smoothing: float = 0.7
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self):
        if not 2 <= self.elites <= self.samples:
            raise ValueError(
                f"elites must lie between 2 and samples ({self.samples}); got {self.elites}."
            )
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"smoothing must lie in (0, 1]; got {self.smoothing}.")
        for name in ("mean", "spread", "noise"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be finite and >= 0; got {getattr(self, name)}.")

    @property
    def compiles(self) -> bool:
        """No: generations belong to the host."""
        return False

    def init(
        self, bounds: Bounds, start: Column, reward_scale: float, length: float
    ) -> CrossEntropyState:
        """Draw the first generation."""
        del reward_scale, length
        sides = len(bounds.sides.limit)
        mean, spread = np.full(sides, self.mean), np.full(sides, self.spread)
        drawn = self._draw(mean, spread, 0)
        return CrossEntropyState(
            bounds.from_sides(drawn[0]), start, np.inf, mean, spread, drawn, (), 0
        )

    def update(
        self, state: CrossEntropyState, bounds: Bounds, seen: Column, best_modified: float
    ) -> CrossEntropyState:
        """Note the violation of the policy just seen, and refit after each generation."""
        del best_modified
        total = float(np.maximum(-bounds.slack(seen.value), 0.0).sum())
        if total < state.least:
            state = replace(state, answer=seen, least=total)
        violation = (*state.violation, total)
        if len(violation) < self.samples:
            following = bounds.from_sides(state.drawn[len(violation)])
            return replace(state, violation=violation, multipliers=following)
        elite = state.drawn[np.argsort(violation, kind="stable")[: self.elites]]
        mean = self.smoothing * elite.mean(0) + (1 - self.smoothing) * state.mean
        spread = self.smoothing * elite.std(0) + (1 - self.smoothing) * state.spread
        spread = np.maximum(spread, self.noise)
        generation = state.generation + 1
        drawn = self._draw(mean, spread, generation)
        return replace(
            state,
            multipliers=bounds.from_sides(drawn[0]),
            mean=mean,
            spread=spread,
            drawn=drawn,
            violation=(),
            generation=generation,
        )

    def _draw(self, mean: Array, spread: Array, generation: int) -> Float[Array, "n k"]:
        random = np.random.default_rng([self.seed, generation])
        width = np.maximum(spread, 1e-9)
        size = (self.samples, len(mean))
        return np.asarray(
            truncnorm.rvs(-mean / width, np.inf, mean, width, size, random_state=random)
        )
