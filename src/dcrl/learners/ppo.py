"""Proximal policy optimisation (Schulman et al. 2017), with a magnet towards a slow reference.

A policy step maximises the clipped surrogate

    E min(ratio A, clip(ratio, 1 - clip, 1 + clip) A)  -  magnet E KL(policy || reference)

where `ratio` compares the new policy with the one that drove. The reference is the policy of some
rounds ago; with a magnet, policies move slowly even while multipliers swing. The surrogate's
advantages have mean zero and unit spread, so the size of multipliers does not matter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray

from dcrl.drive import Experience
from dcrl.envs.native import Env
from dcrl.learners.on_policy import (
    Batch,
    Bonus,
    draw,
    flatten,
    minibatches,
    observe,
    prepare,
    value_error,
)
from dcrl.nets import Actor, Critic, learnable
from dcrl.ops import masked_mean
from dcrl.policies import divergence, entropy, log_prob


class PPOState(NamedTuple):
    """What the next improvement starts from."""

    actor: Actor
    critic: Critic
    reference: Actor
    optimiser: Any
    rounds: JaxArray


class PPOInfo(NamedTuple):
    """What one improvement reports."""

    divergence: Float[JaxArray, ""]  # mean KL of the policy before to the one after
    entropy: Float[JaxArray, ""]
    unexplained: Float[JaxArray, ""]  # mean squared error of the values, in units of the returns


@dataclass(frozen=True)
class PPO:
    """Settings of the learner.

    Args:
        discount: of advantages; the world's by default. A world whose steps all count the same
            needs one below 1 here.
        trace: lambda of the advantage estimates.
        hidden: widths of the actor's layers.
        hidden_critic: widths of the critic's.
        learning_rate: of Adam.
        cool: rounds after which the learning rate has halved, falling as `1 / (1 + rounds / cool)`.
        epochs: passes over the experience of a round.
        minibatches: parts of it, cut by lanes.
        clip: how far a ratio may move to its advantage.
        magnet: weight of the divergence from the reference.
        recentre: rounds after which the reference becomes the present policy.
        std: first standard deviation of continuous actions, in units of half the range.
        least_std: the standard deviation never falls below this.
        entropy_bonus: weight of the entropy in the surrogate.
    """

    discount: float | None = None
    trace: float = 0.95
    hidden: Sequence[int] = (32, 32)
    hidden_critic: Sequence[int] = (32, 32)
    learning_rate: float = 1e-3
    cool: float = math.inf
    epochs: int = 4
    minibatches: int = 32
    clip: float = 0.2
    magnet: float = 0.0
    recentre: int = 20
    std: float = 0.5
    least_std: float = 0.02
    entropy_bonus: float = 0.0

    name = "ppo"

    def init(self, key: PRNGKeyArray, env: Env) -> PPOState:
        """Start from small random weights."""
        key_actor, key_critic = jax.random.split(key)
        inputs = len(env.observation_names)
        actor = Actor(key_actor, inputs, env.actions, self.hidden, self.std)
        critic = Critic(key_critic, inputs, self.hidden_critic)
        weights = eqx.filter((actor, critic), (learnable(actor), learnable(critic)))
        return PPOState(actor, critic, actor, self._optimiser.init(weights), jnp.zeros((), int))

    def actor(self, state: PPOState) -> Actor:
        """Return what acts."""
        return state.actor

    def act(self, actor: Actor, key: PRNGKeyArray, observation: Float[JaxArray, "n o"]) -> Any:
        """Draw an action for every lane."""
        return draw(actor, key, observation)

    def improve(
        self, key: PRNGKeyArray, state: PPOState, env: Env, seen: Experience, bonus: Bonus
    ) -> tuple[PPOState, PPOInfo]:
        """Improve the policy for the reward plus the bonus."""
        discount = env.discount if self.discount is None else self.discount
        batch, critic = prepare(state.actor, state.critic, seen, bonus, discount, self.trace)
        nets = (state.actor, critic)
        mask = (learnable(state.actor), learnable(critic))
        weights, fixed = eqx.partition(nets, mask)

        def descend(
            carry: tuple[Any, Any], chosen: JaxArray
        ) -> tuple[tuple[Any, Any], tuple[JaxArray, ...]]:
            weights, optimiser = carry
            part = flatten(jax.tree.map(lambda x: x[:, chosen], batch))
            slope, told = jax.grad(self._loss, has_aux=True)(weights, fixed, state.reference, part)
            step, optimiser = self._optimiser.update(slope, optimiser, weights)
            return (self._bounded(optax.apply_updates(weights, step)), optimiser), told

        parts = minibatches(key, batch.mask.shape[1], self.epochs, self.minibatches)
        (weights, optimiser), told = jax.lax.scan(descend, (weights, state.optimiser), parts)
        actor, critic = eqx.combine(weights, fixed)
        rounds = state.rounds + 1
        again = rounds % self.recentre == 0
        reference = jax.tree.map(
            lambda new, old: jnp.where(again, new, old) if eqx.is_array(new) else old,
            actor,
            state.reference,
        )
        info = PPOInfo(*(column[-self.minibatches :].mean() for column in told))
        actor, critic = observe(actor, critic, seen)
        return PPOState(actor, critic, reference, optimiser, rounds), info

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        def rate(step: Any) -> Any:
            rounds = step // (self.epochs * self.minibatches)
            return self.learning_rate / (1 + rounds / self.cool)

        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, eps=1e-5))

    def _bounded(self, weights: Any) -> Any:
        """Keep the spread of actions within its limits."""
        spread = jnp.clip(weights[0].log_std, jnp.log(self.least_std), 0.0)
        return eqx.tree_at(lambda nets: nets[0].log_std, weights, spread)

    def _loss(
        self, weights: Any, fixed: Any, reference: Actor, part: Batch
    ) -> tuple[JaxArray, tuple[JaxArray, ...]]:
        actor, critic = eqx.combine(weights, fixed)

        def one(batch: Batch) -> tuple[JaxArray, ...]:
            now = actor(batch.observation)
            gain = log_prob(now, batch.action) - batch.log_prob
            ratio = jnp.exp(gain)
            clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
            surrogate = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
            # A mean of (ratio - 1) - log ratio estimates the divergence without bias.
            moved = ratio - 1 - gain
            pulled = divergence(now, reference(batch.observation)) if self.magnet else 0.0 * moved
            return surrogate, moved, entropy(now), pulled

        surrogate, moved, spread, pulled = (
            masked_mean(column, part.mask) for column in jax.vmap(one)(part)
        )
        error = value_error(critic, part)
        loss = 0.5 * error - surrogate + self.magnet * pulled - self.entropy_bonus * spread
        return loss, (moved, spread, error)
