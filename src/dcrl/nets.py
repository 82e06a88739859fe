"""Networks: multilayer perceptrons, actors and critics, and statistics of what goes into them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray

from dcrl.policies import Actions, Distribution, distribution, spread_size


class Layer(NamedTuple):
    """`x -> weight @ x + bias`."""

    weight: Float[JaxArray, "out in"]
    bias: Float[JaxArray, " out"]


class MLP(eqx.Module):
    """A multilayer perceptron; unbatched, so the caller writes `vmap`.

    Weights are orthogonal, with gain `sqrt(2)` inside and `last_gain` at the end: a small one makes
    a policy start in the middle of its range.
    """

    layers: tuple[Layer, ...]
    activation: Callable[[JaxArray], JaxArray] = eqx.field(static=True)

    def __init__(
        self,
        key: PRNGKeyArray,
        sizes: Sequence[int],
        *,
        last_gain: float = 1.0,
        activation: Callable[[JaxArray], JaxArray] = jnp.tanh,
    ):
        keys = jax.random.split(key, len(sizes) - 1)
        gains = [2.0**0.5] * (len(sizes) - 2) + [last_gain]
        self.layers = tuple(
            Layer(jax.nn.initializers.orthogonal(gain)(key, (wide, narrow)), jnp.zeros(wide))
            for key, gain, narrow, wide in zip(keys, gains, sizes[:-1], sizes[1:], strict=True)
        )
        self.activation = activation

    def __call__(self, x: Float[JaxArray, " in"]) -> Float[JaxArray, " out"]:
        """Return the last layer's output, without activation."""
        *inner, last = self.layers
        for layer in inner:
            x = self.activation(layer.weight @ x + layer.bias)
        return last.weight @ x + last.bias

    def many(self, x: Float[JaxArray, "n in"]) -> Float[JaxArray, "n out"]:
        """Do the same for a batch, features first: faster for small ones than `vmap`."""
        *inner, last = self.layers
        x = x.T
        for layer in inner:
            x = self.activation(layer.weight @ x + layer.bias[:, None])
        return (last.weight @ x + last.bias[:, None]).T


class Statistics(NamedTuple):
    """Mean and variance of everything seen so far, per entry."""

    mean: Float[JaxArray, " n"]
    variance: Float[JaxArray, " n"]
    weight: Float[JaxArray, ""]  # how much that was

    @classmethod
    def start(cls, size: int) -> "Statistics":
        """Return those of nothing yet, which normalise by leaving things alone."""
        return cls(jnp.zeros(size), jnp.ones(size), jnp.zeros(()))

    def add(self, samples: Float[JaxArray, "b n"], weights: Float[JaxArray, " b"]) -> "Statistics":
        """Merge weighted samples (Chan, Golub and LeVeque 1979)."""
        fresh = jnp.sum(weights)
        mean = weights @ samples / jnp.maximum(fresh, 1e-8)
        variance = weights @ (samples - mean[None]) ** 2 / jnp.maximum(fresh, 1e-8)
        # What was there before the first sample weighs nothing.
        total = self.weight + fresh
        share = fresh / jnp.maximum(total, 1e-8)
        shift = mean - self.mean
        merged = (1 - share) * self.variance + share * variance + share * (1 - share) * shift**2
        return Statistics(self.mean + share * shift, merged, total)

    def normalise(self, x: Float[JaxArray, " n"]) -> Float[JaxArray, " n"]:
        """Return `x` with mean zero and variance one, cut off at ten standard deviations."""
        return jnp.clip((x - self.mean) / jnp.sqrt(self.variance + 1e-8), -10.0, 10.0)


class Actor(eqx.Module):
    """A stochastic policy: a network for the distribution of actions, and its spread."""

    net: MLP
    log_std: Float[JaxArray, " k"]
    seen: Statistics  # of observations; not learned
    actions: Actions = eqx.field(static=True)

    def __init__(
        self,
        key: PRNGKeyArray,
        inputs: int,
        actions: Actions,
        hidden: Sequence[int],
        std: float = 0.5,
    ):
        self.net = MLP(key, (inputs, *hidden, actions.outputs), last_gain=0.01)
        self.log_std = jnp.full(spread_size(actions), math.log(std), jnp.float32)
        self.seen = Statistics.start(inputs)
        self.actions = actions

    def __call__(self, observation: Float[JaxArray, " o"]) -> Distribution:
        """Return the distribution of actions."""
        output = self.net(self.seen.normalise(observation))
        return distribution(self.actions, output, self.log_std)


class Critic(eqx.Module):
    """A value function whose network works in units of the returns it has been shown.

    Multipliers change the size of the modified reward by orders of magnitude. When the unit
    changes, the last layer is changed with it, so that no value does (van Hasselt et al. 2016).
    """

    net: MLP
    seen: Statistics  # of observations
    middle: Float[JaxArray, ""]  # mean of the returns
    unit: Float[JaxArray, ""]  # their standard deviation

    def __init__(self, key: PRNGKeyArray, inputs: int, hidden: Sequence[int]):
        # Nothing is worth anything at first, whatever the unit will be.
        self.net = MLP(key, (inputs, *hidden, 1), last_gain=0.0)
        self.seen = Statistics.start(inputs)
        self.middle, self.unit = jnp.zeros(()), jnp.ones(())

    def __call__(self, observation: Float[JaxArray, " o"]) -> Float[JaxArray, ""]:
        """Return the value, in units of the reward."""
        return self.middle + self.unit * self.normalised(observation)

    def normalised(self, observation: Float[JaxArray, " o"]) -> Float[JaxArray, ""]:
        """Return what the network says."""
        return self.net(self.seen.normalise(observation))[0]

    def to_normalised(self, value: Float[JaxArray, "..."]) -> Float[JaxArray, "..."]:
        """Return what the network should say for a value."""
        return (value - self.middle) / self.unit

    def rescaled(self, mean: Float[JaxArray, ""], std: Float[JaxArray, ""]) -> "Critic":
        """Move the unit towards that of new returns, at first all the way; values stay."""
        share = jnp.where(self.seen.weight > 0, 0.3, 1.0)
        middle = (1 - share) * self.middle + share * mean
        # Returns that are all alike have no spread, but still a size.
        size = jnp.maximum(std, 0.01 * jnp.abs(mean) + 1e-8)
        unit = (1 - share) * self.unit + share * size
        *inner, last = self.net.layers
        weight = last.weight * self.unit / unit
        bias = (self.unit * last.bias + self.middle - middle) / unit
        return eqx.tree_at(
            lambda critic: (critic.net.layers, critic.middle, critic.unit),
            self,
            ((*inner, Layer(weight, bias)), middle, unit),
        )


def learnable(net: eqx.Module) -> eqx.Module:
    """Return a filter that is true where a network learns: not in statistics and units."""
    mask = jax.tree.map(eqx.is_inexact_array, net)
    parts = ("seen", "middle", "unit")
    for name in (name for name in parts if hasattr(net, name)):
        mask = eqx.tree_at(
            lambda tree, name=name: getattr(tree, name),
            mask,
            jax.tree.map(lambda _: False, getattr(mask, name)),
        )
    return mask


def count_parameters(net: eqx.Module) -> int:
    """Return how many numbers a network learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(net, learnable(net))))
