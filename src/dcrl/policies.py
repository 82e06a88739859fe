"""How actions are drawn: distributions for continuous, discrete and mixed action spaces.

A continuous action is drawn in units of its range: its mean lies between -1, the low end, and 1,
the high end; what is drawn beyond is cut off by the world, not by the policy (`to_world`).
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray


@dataclass(frozen=True)
class Box:
    """Continuous actions between limits.

    Args:
        low: the least value of each entry.
        high: the greatest.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self):
        finite = bool(np.isfinite([*self.low, *self.high]).all())
        same = 0 < len(self.low) == len(self.high)
        if not (finite and same and all(np.less(self.low, self.high))):
            raise ValueError(
                f"a box needs low < high; got {self.low} and {self.high}. Both must be finite, and "
                "of the same length."
            )

    @property
    def outputs(self) -> int:
        """Return how many numbers a network gives for the distribution."""
        return len(self.low)

    def to_world(self, action: Any) -> Any:
        """Return the action in the world's units, cut off at its limits."""
        low, high = jnp.asarray(self.low), jnp.asarray(self.high)
        return low + (high - low) * (jnp.clip(action, -1.0, 1.0) + 1.0) / 2.0


@dataclass(frozen=True)
class Discrete:
    """One of `count` actions."""

    count: int

    def __post_init__(self):
        if self.count < 2:
            raise ValueError(f"a choice needs at least 2 actions; got {self.count}.")

    @property
    def outputs(self) -> int:
        """Return how many numbers a network gives for the distribution."""
        return self.count

    def to_world(self, action: Any) -> Any:
        """Return the action as it is."""
        return action


@dataclass(frozen=True)
class Mixed:
    """A choice and a continuous action together, as a pair."""

    choice: Discrete
    box: Box

    @property
    def outputs(self) -> int:
        """Return how many numbers a network gives for the distribution."""
        return self.choice.outputs + self.box.outputs

    def to_world(self, action: Any) -> Any:
        """Return both in the world's units."""
        return action[0], self.box.to_world(action[1])


Actions = Box | Discrete | Mixed


class Gaussian(NamedTuple):
    """Independent normals."""

    mean: Float[JaxArray, " n"]
    log_std: Float[JaxArray, " n"]


class Categorical(NamedTuple):
    """One of several, by unnormalised log-probabilities."""

    logits: Float[JaxArray, " n"]


class Joint(NamedTuple):
    """A choice and a continuous action, independent of each other."""

    choice: Categorical
    box: Gaussian


Distribution = Gaussian | Categorical | Joint


def spread_size(actions: Actions) -> int:
    """Return how many standard deviations a policy learns, whatever it observes."""
    match actions:
        case Box():
            return actions.outputs
        case Discrete():
            return 0
        case Mixed():
            return actions.box.outputs


def distribution(
    actions: Actions, output: Float[JaxArray, " n"], log_std: Float[JaxArray, " k"]
) -> Distribution:
    """Return the distribution that a network's output means."""
    match actions:
        case Box():
            return Gaussian(jnp.tanh(output), log_std)
        case Discrete():
            return Categorical(output)
        case Mixed():
            split = actions.choice.outputs
            return Joint(Categorical(output[:split]), Gaussian(jnp.tanh(output[split:]), log_std))


@functools.singledispatch
def sample(drawn_from: Any, key: PRNGKeyArray) -> Any:
    """Draw an action."""
    raise TypeError(f"no way to draw from {type(drawn_from).__name__}")


@sample.register
def _(drawn_from: Gaussian, key: PRNGKeyArray) -> JaxArray:
    noise = jax.random.normal(key, drawn_from.mean.shape)
    return drawn_from.mean + jnp.exp(drawn_from.log_std) * noise


@sample.register
def _(drawn_from: Categorical, key: PRNGKeyArray) -> JaxArray:
    return jax.random.categorical(key, drawn_from.logits)


@sample.register
def _(drawn_from: Joint, key: PRNGKeyArray) -> tuple[JaxArray, JaxArray]:
    key_choice, key_box = jax.random.split(key)
    return sample(drawn_from.choice, key_choice), sample(drawn_from.box, key_box)


@functools.singledispatch
def mode(drawn_from: Any) -> Any:
    """Return the likeliest action."""
    raise TypeError(f"no likeliest action of {type(drawn_from).__name__}")


@mode.register
def _(drawn_from: Gaussian) -> JaxArray:
    return drawn_from.mean


@mode.register
def _(drawn_from: Categorical) -> JaxArray:
    return jnp.argmax(drawn_from.logits)


@mode.register
def _(drawn_from: Joint) -> tuple[JaxArray, JaxArray]:
    return mode(drawn_from.choice), mode(drawn_from.box)


@functools.singledispatch
def log_prob(drawn_from: Any, action: Any) -> JaxArray:
    """Return the logarithm of the density, or of the probability, of an action."""
    raise TypeError(f"no probabilities of {type(drawn_from).__name__}")


@log_prob.register
def _(drawn_from: Gaussian, action: JaxArray) -> JaxArray:
    score = (action - drawn_from.mean) * jnp.exp(-drawn_from.log_std)
    return jnp.sum(-0.5 * score**2 - drawn_from.log_std - 0.5 * jnp.log(2 * jnp.pi))


@log_prob.register
def _(drawn_from: Categorical, action: JaxArray) -> JaxArray:
    return jax.nn.log_softmax(drawn_from.logits)[action]


@log_prob.register
def _(drawn_from: Joint, action: tuple[JaxArray, JaxArray]) -> JaxArray:
    return log_prob(drawn_from.choice, action[0]) + log_prob(drawn_from.box, action[1])


@functools.singledispatch
def divergence(old: Any, new: Any) -> JaxArray:
    """Return the Kullback-Leibler divergence `KL(old || new)`."""
    raise TypeError(f"no divergence of {type(old).__name__}")


@divergence.register
def _(old: Gaussian, new: Gaussian) -> JaxArray:
    ratio = jnp.exp(2 * (old.log_std - new.log_std))
    shift = (old.mean - new.mean) ** 2 * jnp.exp(-2 * new.log_std)
    return jnp.sum(new.log_std - old.log_std + 0.5 * (ratio + shift - 1))


@divergence.register
def _(old: Categorical, new: Categorical) -> JaxArray:
    log_old, log_new = jax.nn.log_softmax(old.logits), jax.nn.log_softmax(new.logits)
    return jnp.sum(jnp.exp(log_old) * (log_old - log_new))


@divergence.register
def _(old: Joint, new: Joint) -> JaxArray:
    return divergence(old.choice, new.choice) + divergence(old.box, new.box)


@functools.singledispatch
def entropy(drawn_from: Any) -> JaxArray:
    """Return the entropy, the differential one where actions are continuous."""
    raise TypeError(f"no entropy of {type(drawn_from).__name__}")


@entropy.register
def _(drawn_from: Gaussian) -> JaxArray:
    return jnp.sum(drawn_from.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))


@entropy.register
def _(drawn_from: Categorical) -> JaxArray:
    log = jax.nn.log_softmax(drawn_from.logits)
    return -jnp.sum(jnp.exp(log) * log)


@entropy.register
def _(drawn_from: Joint) -> JaxArray:
    return entropy(drawn_from.choice) + entropy(drawn_from.box)
