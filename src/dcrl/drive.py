"""Driving native worlds: many episodes side by side, compiled.

An episode is driven in one segment, or, where it is long and cannot end early, in several. Lanes
of the second kind are staggered, so that every moment of an episode is equally present in each
segment, and stay on the road from one call to the next.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array as JaxArray
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from dcrl.envs.native import Env

Policy = Callable[[PRNGKeyArray, Float[JaxArray, "n o"]], Any]
"""A key and the observations of all lanes in, their actions in units of the range out."""


class Lanes(NamedTuple):
    """Copies of a world side by side, each in an episode of its own."""

    state: Any
    time: Int[JaxArray, " n"]  # steps since the episode began
    over: Bool[JaxArray, " n"]  # it has terminated


class Experience(NamedTuple):
    """What one segment saw, time first. Rewards are raw: multipliers are added when read."""

    observation: Float[JaxArray, "t n o"]
    action: Any  # (t, n, ...), in units of its range
    reward: Float[JaxArray, "t n"]
    terminated: Bool[JaxArray, "t n"]
    alive: Bool[JaxArray, "t n"]  # the episode had not ended before this step
    final: Float[JaxArray, "n o"]  # observation after the last step
    begun: Int[JaxArray, " n"]  # time of the first step within its episode

    def weights(self, env: Env) -> Float[JaxArray, "t n"]:
        """Return what each visit counts in the paper's density: `gamma^t / N`."""
        steps, lanes = self.reward.shape
        time = self.begun[None, :] + jnp.arange(steps)[:, None]
        return env.discount**time * self.alive * (env.horizon / (steps * lanes))


def refuse_segments(env: Env, lanes: int, steps: int) -> None:
    """Say what is wrong with a number of lanes and steps per segment, if anything is."""
    if lanes < 1 or not 1 <= steps <= env.horizon or env.horizon % steps:
        raise ValueError(
            f"an episode of {env.name} has {env.horizon} steps, which `steps` must divide, and "
            f"`lanes` must be positive; got steps={steps} and lanes={lanes}."
        )
    if steps < env.horizon and env.terminates:
        raise ValueError(
            f"episodes of {env.name} may end early, so they are driven whole: `steps` must be "
            f"{env.horizon}; got {steps}."
        )
    if lanes % (env.horizon // steps):
        raise ValueError(
            f"an episode of {env.name} takes {env.horizon // steps} segments of {steps} steps; "
            f"`lanes` must be a multiple of that; got {lanes}."
        )


def open_lanes(key: PRNGKeyArray, env: Env, policy: Policy, lanes: int, steps: int) -> Lanes:
    """Return lanes whose episodes are staggered over their segments, driven there by a policy."""
    segments = env.horizon // steps
    key_reset, key_drive = jax.random.split(key)
    state = jax.vmap(env.reset)(jax.random.split(key_reset, lanes))
    # Over at first, so that a lane begins its episode with the next segment.
    opened = Lanes(state, jnp.full(lanes, env.horizon, jnp.int32), jnp.zeros(lanes, bool))
    entry = jnp.arange(lanes) % segments

    def drive_on(now: Lanes, turn: tuple[JaxArray, PRNGKeyArray]) -> tuple[Lanes, None]:
        segment, key = turn
        late = now._replace(over=now.over | (entry == segment))
        return drive(key, env, policy, late, steps)[1], None

    if segments == 1:
        return opened
    turns = (jnp.arange(segments), jax.random.split(key_drive, segments))
    return jax.lax.scan(drive_on, opened, turns)[0]


def drive(
    key: PRNGKeyArray, env: Env, policy: Policy, lanes: Lanes, steps: int
) -> tuple[Experience, Lanes]:
    """Drive one segment; lanes whose episode is over begin a new one first.

    A lane that terminates waits, uncounted, for the next segment.
    """
    count = len(lanes.time)
    key_reset, key_drive = jax.random.split(key)
    del key
    anew = lanes.over | (lanes.time >= env.horizon)
    fresh = jax.vmap(env.reset)(jax.random.split(key_reset, count))
    state = jax.tree.map(
        lambda new, old: jnp.where(anew.reshape(-1, *[1] * (new.ndim - 1)), new, old),
        fresh,
        lanes.state,
    )
    begun = jnp.where(anew, 0, lanes.time)

    def advance(
        carry: tuple[Any, JaxArray], key: PRNGKeyArray
    ) -> tuple[tuple[Any, JaxArray], tuple[Any, ...]]:
        state, alive = carry
        key_act, key_step = jax.random.split(key)
        observation = jax.vmap(env.observe)(state)
        action = policy(key_act, observation)
        outcome = jax.vmap(env.step)(
            jax.random.split(key_step, count), state, jax.vmap(env.actions.to_world)(action)
        )
        ended = alive & outcome.terminated
        reward = jnp.where(alive, outcome.reward, 0.0)
        return (outcome.state, alive & ~ended), (observation, action, reward, ended, alive)

    (state, alive), (observation, action, reward, terminated, before) = jax.lax.scan(
        advance, (state, jnp.ones(count, bool)), jax.random.split(key_drive, steps)
    )
    seen = Experience(
        observation, action, reward, terminated, before, jax.vmap(env.observe)(state), begun
    )
    return seen, Lanes(state, begun + steps, ~alive)
