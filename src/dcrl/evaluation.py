"""What a fixed policy does: exactly where the model is known, and on fresh episodes anywhere."""

from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.constraints import Bounds
from dcrl.density.intervals import Interval, bernstein, student
from dcrl.rollout import episodes, simulator
from dcrl.tabular import dp
from dcrl.tabular.model import World

Verdict = Literal["kept", "broken", "undecided"]

BATCH = 4096  # vans that drive at once


@dataclass(frozen=True)
class Evaluation:
    """What a policy earns and how it keeps its bounds; limits coincide where it is exact."""

    objective: Interval  # one entry
    value: Interval  # one entry per bound
    bounds: Bounds
    tolerance: float  # absolute violation that counts as none
    episodes: int  # 0 where it is exact
    tail: float  # mean discounted mass beyond the last step driven

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Say of each bound whether it is kept, broken, or not decided by these episodes."""
        inside = (self.value.low >= self.bounds.lower - self.tolerance) & (
            self.value.high <= self.bounds.upper + self.tolerance
        )
        outside = (self.value.high < self.bounds.lower - self.tolerance) | (
            self.value.low > self.bounds.upper + self.tolerance
        )
        return tuple(
            "kept" if is_in else "broken" if is_out else "undecided"
            for is_in, is_out in zip(inside, outside, strict=True)
        )

    @property
    def verdict(self) -> Verdict:
        """Say it of all bounds together."""
        each = self.verdicts
        if "broken" in each:
            return "broken"
        return "undecided" if "undecided" in each else "kept"

    @property
    def worst_slack(self) -> float:
        """Smallest relative slack of the estimates."""
        return self.bounds.worst_slack(self.value.estimate)

    @property
    def worst_slack_low(self) -> float:
        """Lower limit of it, the smallest relative slack of anything in the intervals."""
        low, _, high = self.value
        return min(self.bounds.worst_slack(low), self.bounds.worst_slack(high))


def evaluate_exactly(
    world: World, policy: Float[Array, "s a"], tolerance: float = 0.0
) -> Evaluation:
    """Return what a policy does by solving the flow equations of the known model.

    >>> from dcrl.envs import tiny
    >>> world = tiny.two_rooms(upper=4.0)
    >>> evaluate_exactly(world, world.model.uniform_policy()).verdict
    'broken'
    """
    rho = dp.density(world.model, policy)
    earned = np.array([float(rho @ (policy * world.model.reward).sum(1))])
    value = world.bounds.measure(rho)
    return Evaluation(
        Interval(earned, earned, earned),
        Interval(value, value, value),
        world.bounds,
        tolerance,
        0,
        0.0,
    )


def evaluate(
    world: World,
    policy: Float[Array, "s a"],
    *,
    key: JaxArray | int = 0,
    vans: int = 10_000,
    tail: float = 1e-6,
    confidence: float = 0.95,
    guaranteed: bool = False,
    tolerance: float = 0.0,
) -> Evaluation:
    """Return what a policy does on fresh episodes.

    Args:
        world: where to drive.
        policy: what to drive; exactly this, without exploration.
        key: randomness, or a seed; not one that was trained with.
        vans: episodes.
        tail: episodes that do not end are cut when `gamma^t` falls to this.
        confidence: probability that all intervals of the bounds hold together; it is shared out
            evenly among them (Bonferroni).
        guaranteed: intervals that hold for every number of episodes (empirical Bernstein), for
            weights that are not negative; otherwise Student's, right for many episodes.
        tolerance: absolute violation that counts as none.
    """
    if vans < 2:
        raise ValueError(f"vans must be at least 2 for an interval; got {vans}.")
    if guaranteed and (world.model.discount == 1 or (world.bounds.basis.data < 0).any()):
        raise ValueError(
            "guaranteed intervals need a discount below 1 and weights that are not negative."
        )
    key = jax.random.key(key) if isinstance(key, int) else key
    sampler, bounds = simulator(world.model), world.bounds
    values: list[Array] = []
    earned: list[Array] = []
    left = 0.0
    while vans > 0:
        key, key_batch = jax.random.split(key)
        seen = episodes(key_batch, sampler, policy, vans=min(vans, BATCH), tail=tail)
        values.append((bounds.basis @ seen.density.T).T)
        earned.append(seen.earned)
        left += float(seen.tail.sum())
        vans -= len(seen.earned)
    value, objective = np.concatenate(values), np.concatenate(earned)[:, None]
    each = 1 - (1 - confidence) / max(len(bounds), 1)
    largest = np.asarray(bounds.basis.max(axis=1).toarray()).ravel() * world.model.mass
    return Evaluation(
        student(objective, confidence),
        bernstein(value, largest, each) if guaranteed else student(value, each),
        bounds,
        tolerance,
        len(value),
        left / len(value),
    )
