"""Trust-region policy optimisation (Schulman et al. 2015).

The natural gradient `x = H^-1 g` of the surrogate `E ratio A` is found by conjugate gradients, `H`
being the Hessian of the mean divergence from the old policy. The step `sqrt(2 limit / x H x) x`
would move the policy by just the limit if the divergence were quadratic; a line search shrinks it
until the divergence is within the limit and the surrogate has grown. If no step does, the policy
stays as it was.
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
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Float, PRNGKeyArray

from dcrl.drive import Experience
from dcrl.envs.native import Env
from dcrl.learners.on_policy import Bonus, draw, fit_critic, flatten, observe, prepare
from dcrl.nets import Actor, Critic, learnable
from dcrl.ops import masked_mean
from dcrl.policies import divergence, log_prob


class TRPOState(NamedTuple):
    """What the next improvement starts from."""

    actor: Actor
    critic: Critic
    optimiser: Any  # of the critic
    rounds: JaxArray


class TRPOInfo(NamedTuple):
    """What one improvement reports."""

    divergence: Float[JaxArray, ""]  # mean KL of the policy before to the one after
    gain: Float[JaxArray, ""]  # of the surrogate
    accepted: JaxArray  # whether the line search found a step
    unexplained: Float[JaxArray, ""]  # mean squared error of the values, in units of the returns


@dataclass(frozen=True)
class TRPO:
    """Settings of the learner.

    Args:
        discount: of advantages; the world's by default. A world whose steps all count the same
            needs one below 1 here.
        trace: lambda of the advantage estimates.
        hidden: widths of the actor's layers.
        hidden_critic: widths of the critic's.
        limit: of the mean divergence in one step.
        cool: rounds after which steps have become half as long, the limit a quarter.
        iterations: of conjugate gradients.
        damping: added to the Hessian.
        share: of the experience that the Hessian is taken over.
        shrink: of the step in the line search.
        backtracks: tries of the line search.
        learning_rate: of the critic's Adam.
        epochs: of the critic, passes over the experience of a round.
        minibatches: of the critic, cut by lanes.
        std: first standard deviation of continuous actions, in units of half the range.
        least_std: the standard deviation never falls below this.
    """

    discount: float | None = None
    trace: float = 0.95
    hidden: Sequence[int] = (32, 32)
    hidden_critic: Sequence[int] = (32, 32)
    limit: float = 0.01
    cool: float = math.inf
    iterations: int = 10
    damping: float = 0.1
    share: float = 0.2
    shrink: float = 0.8
    backtracks: int = 15
    learning_rate: float = 1e-3
    epochs: int = 4
    minibatches: int = 8
    std: float = 0.5
    least_std: float = 0.02

    name = "trpo"

    def init(self, key: PRNGKeyArray, env: Env) -> TRPOState:
        """Start from small random weights."""
        key_actor, key_critic = jax.random.split(key)
        inputs = len(env.observation_names)
        actor = Actor(key_actor, inputs, env.actions, self.hidden, self.std)
        critic = Critic(key_critic, inputs, self.hidden_critic)
        optimiser = self._optimiser.init(eqx.filter(critic, learnable(critic)))
        return TRPOState(actor, critic, optimiser, jnp.zeros((), jnp.int32))

    def actor(self, state: TRPOState) -> Actor:
        """Return what acts."""
        return state.actor

    def act(self, actor: Actor, key: PRNGKeyArray, observation: Float[JaxArray, "n o"]) -> Any:
        """Draw an action for every lane."""
        return draw(actor, key, observation)

    def improve(
        self, key: PRNGKeyArray, state: TRPOState, env: Env, seen: Experience, bonus: Bonus
    ) -> tuple[TRPOState, TRPOInfo]:
        """Improve the policy for the reward plus the bonus."""
        discount = env.discount if self.discount is None else self.discount
        batch, critic = prepare(state.actor, state.critic, seen, bonus, discount, self.trace)
        flat = flatten(batch)
        weights, fixed = eqx.partition(state.actor, learnable(state.actor))
        origin, restore = ravel_pytree(weights)
        some = jax.tree.map(lambda x: x[:: max(1, round(1 / self.share))], flat)

        limit = self.limit / (1 + state.rounds / self.cool) ** 2

        def policy(point: JaxArray) -> Actor:
            actor = eqx.combine(restore(point), fixed)
            spread = jnp.clip(actor.log_std, jnp.log(self.least_std), 0.0)
            return eqx.tree_at(lambda net: net.log_std, actor, spread)

        def surrogate(point: JaxArray) -> JaxArray:
            actor = policy(point)
            ratio = jax.vmap(lambda o, a, old: jnp.exp(log_prob(actor(o), a) - old))(
                flat.observation, flat.action, flat.log_prob
            )
            return masked_mean(ratio * flat.advantage, flat.mask)

        def moved(point: JaxArray, over: Any) -> JaxArray:
            actor = policy(point)
            each = jax.vmap(lambda o: divergence(state.actor(o), actor(o)))(over.observation)
            return masked_mean(each, over.mask)

        def hessian(vector: JaxArray) -> JaxArray:
            slope = jax.grad(lambda point: moved(point, some))
            return jax.jvp(slope, (origin,), (vector,))[1] + self.damping * vector

        before, gradient = jax.value_and_grad(surrogate)(origin)
        direction, _ = cg(hessian, gradient, maxiter=self.iterations)
        curvature = direction @ hessian(direction)
        step = jnp.sqrt(2 * limit / jnp.maximum(curvature, 1e-12)) * direction
        found = line_search(
            origin,
            step,
            lambda point: (surrogate(point) - before, moved(point, flat)),
            lambda gain, far: (gain > 0) & (far <= limit),
            self.shrink,
            self.backtracks,
        )
        actor = policy(found.point)
        critic, optimiser, error = fit_critic(
            key, critic, self._optimiser, state.optimiser, batch, self.epochs, self.minibatches
        )
        info = TRPOInfo(found.told[1], found.told[0], found.accepted, error)
        actor, critic = observe(actor, critic, seen)
        return TRPOState(actor, critic, optimiser, state.rounds + 1), info

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(self.learning_rate, eps=1e-5))


class Found(NamedTuple):
    """Where a line search ended."""

    point: JaxArray
    told: tuple[JaxArray, ...]  # of the accepted point; zeros if there is none
    accepted: JaxArray


def line_search(
    origin: JaxArray,
    step: JaxArray,
    measure: Any,
    accept: Any,
    shrink: float,
    backtracks: int,
) -> Found:
    """Try `origin + shrink^k step` for k = 0, 1, ...; where none is acceptable, stay.

    Args:
        origin: where to stay otherwise.
        step: the largest step.
        measure: of a point, a tuple of numbers.
        accept: says of these whether the point will do.
        shrink: of the step from one try to the next.
        backtracks: how many tries.
    """

    def unsettled(carry: tuple[JaxArray, Found]) -> JaxArray:
        tries, found = carry
        return (tries < backtracks) & ~found.accepted

    def again(carry: tuple[JaxArray, Found]) -> tuple[JaxArray, Found]:
        tries, _ = carry
        point = origin + shrink**tries * step
        told = measure(point)
        fine = accept(*told) & jnp.stack([jnp.isfinite(x) for x in told]).all()
        kept = tuple(jnp.where(fine, x, 0.0) for x in told)
        return tries + 1, Found(jnp.where(fine, point, origin), kept, fine)

    nothing = tuple(jnp.zeros(()) for _ in jax.eval_shape(measure, origin))
    begun = Found(origin, nothing, jnp.zeros((), bool))
    return jax.lax.while_loop(unsettled, again, (jnp.zeros((), jnp.int32), begun))[1]
