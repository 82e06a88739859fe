"""A learner to copy: REINFORCE with a value baseline, in as few lines as the contract allows.

    raise log pi(a|s) in proportion to  R_t - V(s_t),    R_t = sum_k gamma^k (r + bonus)_{t+k}

To write a learner of your own, copy this file and keep its order: what is carried, what is
reported, the settings, and then `init`, `actor`, `act` and `improve` as they are called. Nothing
else is asked for; `train(env, learner=Reinforce())` does the rest.

- The state holds what the next improvement needs, no settings and no counters for people.
- `improve` gets raw rewards and adds the bonus of the present multipliers itself, as it reads them.
- A step that terminated is followed by nothing; one that was cut off by what its value says.
- Observations are normalised by the learner, and what acts carries what that needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import optax
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray

from dcrl.drive import Experience
from dcrl.envs.native import Env
from dcrl.learners.on_policy import Batch, Bonus, draw, flatten, observe, prepare, value_error
from dcrl.nets import Actor, Critic, learnable
from dcrl.ops import masked_mean
from dcrl.policies import log_prob


class ReinforceState(NamedTuple):
    """What the next improvement starts from."""

    actor: Actor
    critic: Critic
    optimiser: Any


class ReinforceInfo(NamedTuple):
    """What one improvement reports."""

    unexplained: Float[JaxArray, ""]  # mean squared error of the values, in units of the returns


@dataclass(frozen=True)
class Reinforce:
    """Settings of the learner.

    Args:
        discount: of returns; the world's by default.
        hidden: widths of the layers of both networks.
        learning_rate: of Adam.
        std: first standard deviation of continuous actions, in units of half the range.
    """

    discount: float | None = None
    hidden: Sequence[int] = (32, 32)
    learning_rate: float = 3e-3
    std: float = 0.5

    name = "reinforce"

    def init(self, key: PRNGKeyArray, env: Env) -> ReinforceState:
        """Start from small random weights."""
        key_actor, key_critic = jax.random.split(key)
        inputs = len(env.observation_names)
        actor = Actor(key_actor, inputs, env.actions, self.hidden, self.std)
        critic = Critic(key_critic, inputs, self.hidden)
        weights = eqx.filter((actor, critic), (learnable(actor), learnable(critic)))
        return ReinforceState(actor, critic, self._optimiser.init(weights))

    def actor(self, state: ReinforceState) -> Actor:
        """Return what acts."""
        return state.actor

    def act(self, actor: Actor, key: PRNGKeyArray, observation: Float[JaxArray, "n o"]) -> Any:
        """Draw an action for every lane."""
        return draw(actor, key, observation)

    def improve(
        self, key: PRNGKeyArray, state: ReinforceState, env: Env, seen: Experience, bonus: Bonus
    ) -> tuple[ReinforceState, ReinforceInfo]:
        """Take one step up the gradient, for the reward plus the bonus."""
        del key
        discount = env.discount if self.discount is None else self.discount
        # A trace of one makes advantages out of whole returns.
        batch, critic = prepare(state.actor, state.critic, seen, bonus, discount, trace=1.0)
        nets = (state.actor, critic)
        weights, fixed = eqx.partition(nets, (learnable(state.actor), learnable(critic)))

        def loss(weights: Any, batch: Batch) -> tuple[JaxArray, JaxArray]:
            actor, critic = eqx.combine(weights, fixed)
            taken = jax.vmap(lambda o, a: log_prob(actor(o), a))(batch.observation, batch.action)
            error = value_error(critic, batch)
            return error - masked_mean(taken * batch.advantage, batch.mask), error

        slope, error = jax.grad(loss, has_aux=True)(weights, flatten(batch))
        step, optimiser = self._optimiser.update(slope, state.optimiser, weights)
        learned: Any = optax.apply_updates(weights, step)
        actor, critic = eqx.combine(learned, fixed)
        actor, critic = observe(actor, critic, seen)
        return ReinforceState(actor, critic, optimiser), ReinforceInfo(error)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(self.learning_rate))
