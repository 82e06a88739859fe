"""What learners share that improve a policy on its own fresh experience."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray

from dcrl.drive import Experience
from dcrl.nets import Actor, Critic, learnable
from dcrl.ops import advantages, masked_mean, masked_std
from dcrl.policies import log_prob, sample

Bonus = Callable[[Float[JaxArray, " o"]], Float[JaxArray, ""]]
"""What the multipliers add to the reward: `sigma_lower - sigma_upper` of an observation."""


class Batch(NamedTuple):
    """Experience as learning reads it, time first."""

    observation: Float[JaxArray, "t n o"]
    action: Any
    log_prob: Float[JaxArray, "t n"]  # of the action, under the policy that took it
    advantage: Float[JaxArray, "t n"]  # mean zero, standard deviation one
    target: Float[JaxArray, "t n"]  # of the value
    mask: Float[JaxArray, "t n"]  # one where the episode was still going


def over_time(function: Callable[..., Any], *arrays: Any) -> Any:
    """Apply a function of one step of one lane to all of them."""
    return jax.vmap(jax.vmap(function))(*arrays)


def prepare(
    actor: Actor,
    critic: Critic,
    seen: Experience,
    bonus: Bonus,
    discount: float,
    trace: float,
) -> tuple[Batch, Critic]:
    """Relabel rewards with the present multipliers (line 4), and estimate advantages.

    Returns the batch, and the critic in the unit of its targets.
    """
    mask = seen.alive.astype(seen.reward.dtype)
    reward = seen.reward + mask * over_time(bonus, seen.observation)
    value = over_time(critic, seen.observation)
    value_next = jnp.concatenate([value[1:], jax.vmap(critic)(seen.final)[None]])

    columns = (reward, value, value_next, seen.terminated, seen.alive)
    estimate = functools.partial(advantages, discount=discount, trace=trace)
    advantage = jax.vmap(estimate, in_axes=1, out_axes=1)(*columns)
    target = advantage + value
    rescaled = critic.rescaled(masked_mean(target, mask), masked_std(target, mask))
    scaled = (advantage - masked_mean(advantage, mask)) / (masked_std(advantage, mask) + 1e-8)
    taken = over_time(lambda o, a: log_prob(actor(o), a), seen.observation, seen.action)
    return Batch(seen.observation, seen.action, taken, scaled, target, mask), rescaled


def observe(actor: Actor, critic: Critic, seen: Experience) -> tuple[Actor, Critic]:
    """Let both networks' statistics see what was observed; they are the same."""
    size = seen.observation.shape[-1]
    updated = actor.seen.add(
        seen.observation.reshape(-1, size), seen.alive.reshape(-1).astype(jnp.float32)
    )
    return (
        eqx.tree_at(lambda net: net.seen, actor, updated),
        eqx.tree_at(lambda net: net.seen, critic, updated),
    )


def draw(actor: Actor, key: PRNGKeyArray, observation: Float[JaxArray, "n o"]) -> Any:
    """Draw an action for every lane."""
    keys = jax.random.split(key, len(observation))
    return jax.vmap(lambda k, o: sample(actor(o), k))(keys, observation)


def flatten(batch: Batch) -> Batch:
    """Forget which step of which lane is which."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def minibatches(key: PRNGKeyArray, lanes: int, epochs: int, parts: int) -> Any:
    """Return the lanes of every minibatch of all epochs, in an order of each epoch's own.

    There are no more parts than lanes.
    """
    parts = min(parts, lanes)
    size = lanes // parts
    orders = jax.vmap(lambda k: jax.random.permutation(k, lanes))(jax.random.split(key, epochs))
    return orders[:, : size * parts].reshape(-1, size)


def value_error(critic: Critic, batch: Batch) -> Float[JaxArray, ""]:
    """Return the mean squared error of the values, in units of the returns."""
    return masked_mean(
        jax.vmap(lambda o, target: (critic.normalised(o) - critic.to_normalised(target)) ** 2)(
            batch.observation, batch.target
        ),
        batch.mask,
    )


def fit_critic(
    key: PRNGKeyArray,
    critic: Critic,
    optimiser: optax.GradientTransformation,
    state: Any,
    batch: Batch,
    epochs: int,
    parts: int,
) -> tuple[Critic, Any, Float[JaxArray, ""]]:
    """Fit values to their targets; also say how far off they were in the last epoch."""
    weights, fixed = eqx.partition(critic, learnable(critic))

    def descend(carry: tuple[Any, Any], chosen: JaxArray) -> tuple[tuple[Any, Any], JaxArray]:
        weights, state = carry
        part = flatten(jax.tree.map(lambda x: x[:, chosen], batch))
        error, slope = jax.value_and_grad(lambda w: value_error(eqx.combine(w, fixed), part))(
            weights
        )
        step, state = optimiser.update(slope, state, weights)
        return (optax.apply_updates(weights, step), state), error

    chosen = minibatches(key, batch.mask.shape[1], epochs, parts)
    (weights, state), errors = jax.lax.scan(descend, (weights, state), chosen)
    return eqx.combine(weights, fixed), state, errors[-parts:].mean()
