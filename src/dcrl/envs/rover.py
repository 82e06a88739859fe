"""A Mars rover that drives to its goal with little energy, and little time in a dangerous area.

| constant | value | source |
| --- | --- | --- |
| area 1, the start | uniformly in [0.5, 1.5] x [2, 8] | paper's text; our numbers |
| area 2, dangerous | disc of radius 2.5 around (5, 5) | paper's text; our numbers |
| area 3, the goal, terminal | disc of radius 1 around (9, 5) | paper's text; our numbers |
| world | [0, 10] x [0, 10], with walls | our choice |
| motion | `v <- v + 0.1 (a - 0.1 v)`, not faster than 1; `x <- x + 0.1 v` | our choice |
| energy of a step | `0.1 + 0.5 abs(a)^2 + 0.5 abs(v)^2` | our choice |
| reward | -0.1 energy, and +10 at the goal | paper; weight of the energy our choice |
| bound | discounted time in area 2, a tenth of what the free optimum spends there | our choice |
| discount, horizon | 0.99, 300 steps | our choice |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray

from dcrl.constraints import Constraint, Density
from dcrl.density.regions import Ball, Regions
from dcrl.envs.native import Outcome
from dcrl.policies import Box

START = ((0.5, 2.0), (1.5, 8.0))
DANGER = Ball((5.0, 5.0), 2.5)
GOAL = Ball((9.0, 5.0), 1.0)
SIZE = 10.0
STEP_SECONDS, DAMPING, FASTEST = 0.1, 0.1, 1.0
GAIN, ENERGY_WEIGHT = 10.0, 0.1


class RoverState(NamedTuple):
    """Where it is, and how fast it moves."""

    position: Float[JaxArray, " 2"]
    velocity: Float[JaxArray, " 2"]


def move(state: RoverState, action: Float[JaxArray, " 2"]) -> RoverState:
    """Accelerate, then move; walls stop the rover."""
    velocity = state.velocity + STEP_SECONDS * (action - DAMPING * state.velocity)
    speed = jnp.sqrt(jnp.sum(velocity**2) + 1e-12)
    velocity = velocity * jnp.minimum(1.0, FASTEST / speed)
    position = state.position + STEP_SECONDS * velocity
    inside = jnp.clip(position, 0.0, SIZE)
    return RoverState(inside, jnp.where(inside == position, velocity, 0.0))


def energy(velocity: Float[JaxArray, " 2"], action: Float[JaxArray, " 2"]) -> JaxArray:
    """Return the energy of a step."""
    return 0.1 + 0.5 * jnp.sum(action**2) + 0.5 * jnp.sum(velocity**2)


def position_of(observation: Float[JaxArray, " 4"]) -> Float[JaxArray, " 2"]:
    """Return the feature that is bounded."""
    return (observation[:2] + 1) * SIZE / 2


@dataclass(frozen=True)
class Rover:
    """The rover.

    Args:
        upper: greatest expected discounted number of steps in area 2.
    """

    upper: float = 2.7

    name = "rover"
    observation_names = ("x", "y", "velocity x", "velocity y")
    actions = Box((-1.0, -1.0), (1.0, 1.0))
    discount = 0.99
    horizon = 300
    terminates = True

    @property
    def constraints(self) -> Sequence[Constraint]:
        """Bound the time in area 2."""
        return (Density(of=position_of, basis=Regions((DANGER,)), upper=self.upper, name="danger"),)

    def reset(self, key: PRNGKeyArray) -> RoverState:
        """Start at rest, somewhere in area 1."""
        low, high = (jnp.asarray(corner) for corner in START)
        return RoverState(jax.random.uniform(key, (2,), minval=low, maxval=high), jnp.zeros(2))

    def observe(self, state: RoverState) -> Float[JaxArray, " 4"]:
        """Return position and velocity, both from -1 to 1."""
        return jnp.concatenate([state.position * (2 / SIZE) - 1, state.velocity])

    def step(self, key: PRNGKeyArray, state: RoverState, action: Float[JaxArray, " 2"]) -> Outcome:
        """Drive for one step."""
        del key
        following = move(state, action)
        arrived = GOAL.contains(following.position)
        cost = ENERGY_WEIGHT * energy(state.velocity, action)
        return Outcome(following, jnp.where(arrived, GAIN, 0.0) - cost, arrived)
