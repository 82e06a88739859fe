"""A ladder of worlds whose answers are known; every learner must climb it."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dcrl.constraints import Density
from dcrl.density import Ball, Regions
from dcrl.envs.native import Outcome
from dcrl.policies import Box, Discrete, Mixed


class Place(NamedTuple):
    x: jax.Array
    time: jax.Array


@dataclass(frozen=True)
class Aim:
    """Say where the target is: pays `-(a - x / 2)^2` for one step. The best action is half of x."""

    name = "aim"
    observation_names = ("x",)
    actions = Box((-1.0,), (1.0,))
    discount = 0.9
    horizon = 1
    terminates = False
    constraints = ()

    def reset(self, key):
        return Place(jax.random.uniform(key, minval=-1.0, maxval=1.0), jnp.zeros(()))

    def observe(self, state):
        return state.x[None]

    def step(self, key, state, action):
        return Outcome(state, -((action[0] - state.x / 2) ** 2), jnp.zeros((), bool))


@dataclass(frozen=True)
class Pick:
    """Choose the one of three that the sign of `x` names: pays one for it. The best earns one."""

    name = "pick"
    observation_names = ("x",)
    actions = Discrete(3)
    discount = 0.9
    horizon = 1
    terminates = False
    constraints = ()

    def reset(self, key):
        return Place(jax.random.randint(key, (), -1, 2).astype(jnp.float32), jnp.zeros(()))

    def observe(self, state):
        return state.x[None]

    def step(self, key, state, action):
        right = action == state.x.astype(jnp.int32) + 1
        return Outcome(state, right.astype(jnp.float32), jnp.zeros((), bool))


@dataclass(frozen=True)
class Both:
    """Choose the sign of `x` and its size at once: pays `1[right] - (a - |x|)^2`; at most one."""

    name = "both"
    observation_names = ("x",)
    actions = Mixed(Discrete(2), Box((0.0,), (1.0,)))
    discount = 0.9
    horizon = 1
    terminates = False
    constraints = ()

    def reset(self, key):
        return Place(jax.random.uniform(key, minval=-1.0, maxval=1.0), jnp.zeros(()))

    def observe(self, state):
        return state.x[None]

    def step(self, key, state, action):
        choice, size = action
        right = (choice == 1) == (state.x > 0)
        reward = right.astype(jnp.float32) - (size[0] - jnp.abs(state.x)) ** 2
        return Outcome(state, reward, jnp.zeros((), bool))


@dataclass(frozen=True)
class Walk:
    """Walk along a line to the goal at 0.9: steps of at most 0.25, a cost of 0.1 each.

    From zero it takes four steps: `-0.1 (1 + 0.9 + 0.81 + 0.729) = -0.3439`, plus the gain of 1 on
    arrival, `0.729`. It terminates there.
    """

    name = "walk"
    observation_names = ("x",)
    actions = Box((-0.25,), (0.25,))
    discount = 0.9
    horizon = 20
    terminates = True
    constraints = ()
    optimum = -0.1 * (1 - 0.9**4) / 0.1 + 0.9**3

    def reset(self, key):
        return Place(jnp.zeros(()), jnp.zeros(()))

    def observe(self, state):
        return state.x[None]

    def step(self, key, state, action):
        x = jnp.clip(state.x + action[0], -1.0, 1.0)
        arrived = x >= 0.9
        reward = jnp.where(arrived, 1.0, 0.0) - 0.1
        return Outcome(Place(x, state.time), reward, arrived)


@dataclass(frozen=True)
class Stay:
    """Pays one in every step, whatever is done; it is cut off after ten, or it terminates there.

    Cut off, a value is `1 / (1 - 0.9) = 10` at any time; terminated, it is
    `(1 - 0.9^(10 - t)) / 0.1` with `t` steps done.
    """

    ends: bool = False

    name = "stay"
    observation_names = ("time left",)
    actions = Box((-1.0,), (1.0,))
    discount = 0.9
    horizon = 10
    terminates = True
    constraints = ()

    def reset(self, key):
        return Place(jnp.zeros(()), jnp.zeros(()))

    def observe(self, state):
        # Without an end of its own, the world looks the same at all times.
        return jnp.where(self.ends, 1 - state.time / 10, 0.0)[None]

    def step(self, key, state, action):
        time = state.time + 1
        return Outcome(Place(state.x, time), jnp.ones(()), self.ends & (time >= 10))


@dataclass(frozen=True)
class Sun:
    """Lie in the sun (x = 1) or in the shade (x = -1), going from one to the other at will.

    The action is where to be in the next step; being in the sun pays one. Of the ten undiscounted
    steps of an episode, the first is in the shade, and at most `upper` may be spent in the sun: the
    best earns `upper`. One more step there is worth one, so the multiplier is one.
    """

    upper: float = 4.0

    name = "sun"
    observation_names = ("x",)
    actions = Discrete(2)
    discount = 1.0
    horizon = 10
    terminates = False

    @property
    def constraints(self):
        return (Density(basis=Regions((Ball((1.0,), 0.5),)), upper=self.upper, name="sun"),)

    def reset(self, key):
        return Place(-jnp.ones(()), jnp.zeros(()))

    def observe(self, state):
        return state.x[None]

    def step(self, key, state, action):
        reward = (state.x > 0).astype(jnp.float32)
        following = Place(2.0 * action - 1.0, state.time + 1)
        return Outcome(following, reward, jnp.zeros((), bool))


@dataclass(frozen=True)
class Broken:
    """Gives a reward that is no number in step three of the episode."""

    where: str = "reward"

    name = "broken"
    observation_names = ("x",)
    actions = Box((-1.0,), (1.0,))
    discount = 0.9
    horizon = 5
    terminates = False
    constraints = ()

    def reset(self, key):
        return Place(jnp.zeros(()), jnp.zeros(()))

    def observe(self, state):
        bad = (state.time == 3) & (self.where == "observation")
        return jnp.where(bad, jnp.inf, state.time)[None]

    def step(self, key, state, action):
        bad = (state.time == 3) & (self.where == "reward")
        following = Place(state.x, state.time + 1)
        return Outcome(following, jnp.where(bad, jnp.nan, 0.0), jnp.zeros((), bool))
