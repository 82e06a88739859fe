"""The equations of learning: returns, advantages, averages. One equation, one function."""

import jax
import jax.numpy as jnp
from jax import Array as JaxArray
from jaxtyping import Bool, Float


def advantages(
    reward: Float[JaxArray, " t"],
    value: Float[JaxArray, " t"],
    value_next: Float[JaxArray, " t"],
    terminated: Bool[JaxArray, " t"],
    alive: Bool[JaxArray, " t"],
    discount: float,
    trace: float,
) -> Float[JaxArray, " t"]:
    """Return generalised advantage estimates of one segment (Schulman et al. 2016, eq. 16).

    delta_t = r_t + gamma V(s_t+1) - V(s_t),    A_t = delta_t + gamma lambda A_t+1

    A terminated step is followed by nothing; a truncated one by the value of where it was cut.
    """
    following = discount * jnp.where(terminated, 0.0, 1.0)
    delta = jnp.where(alive, reward + following * value_next - value, 0.0)

    def back(later: JaxArray, step: tuple[JaxArray, JaxArray]) -> tuple[JaxArray, JaxArray]:
        delta_t, following_t = step
        advantage = delta_t + trace * following_t * later
        return advantage, advantage

    _, result = jax.lax.scan(back, jnp.zeros(()), (delta, following), reverse=True)
    return result


def masked_mean(x: Float[JaxArray, "..."], mask: Float[JaxArray, "..."]) -> Float[JaxArray, ""]:
    """Return the mean of `x`, weighted by a mask."""
    return jnp.sum(x * mask) / jnp.maximum(jnp.sum(mask), 1e-8)


def masked_std(x: Float[JaxArray, "..."], mask: Float[JaxArray, "..."]) -> Float[JaxArray, ""]:
    """Return the standard deviation of `x`, weighted by a mask."""
    return jnp.sqrt(masked_mean((x - masked_mean(x, mask)) ** 2, mask))
