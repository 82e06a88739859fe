"""Deep deterministic policy gradients (Lillicrap et al. 2016), the paper's learner.

    critic:  Q(s, a)  ->  r + bonus(s) + gamma Q'(s', pi'(s')),    actor:  maximise Q(s, pi(s))

on transitions drawn from a replay, with slow copies `Q'` and `pi'`. Explorers of its own drive the
world with noise; the policy that is judged and kept acts without. The replay holds raw rewards:
the bonus of the present multipliers is added as they are read. A deterministic policy cannot hold
an optimum that randomises; a mixture of several can.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray

from dcrl.drive import Experience
from dcrl.envs.native import Env
from dcrl.learners.on_policy import Bonus
from dcrl.nets import MLP, Statistics
from dcrl.policies import Box


class Steering(eqx.Module):
    """A deterministic policy."""

    net: MLP
    seen: Statistics  # of observations; not learned

    def __call__(self, observation: Float[JaxArray, " o"]) -> Float[JaxArray, " a"]:
        """Return the action, in units of its range."""
        return jnp.tanh(self.net(self.seen.normalise(observation)))


class Transitions(NamedTuple):
    """What the explorers saw."""

    observation: Float[JaxArray, "n o"]
    action: Float[JaxArray, "n a"]
    reward: Float[JaxArray, "n 1"]  # raw
    bonus: Float[JaxArray, "n 1"]  # of the multipliers at that time
    following: Float[JaxArray, "n o"]
    terminated: Float[JaxArray, "n 1"]

    def packed(self) -> Float[JaxArray, "n w"]:
        """Return one row each: a ring of one array is written and read in place."""
        return jnp.concatenate(self, axis=1)

    @classmethod
    def unpacked(
        cls, rows: Float[JaxArray, "n w"], observations: int, actions: int
    ) -> "Transitions":
        """Return what rows hold."""
        sizes = np.cumsum([observations, actions, 1, 1, observations])
        return cls(*jnp.split(rows, sizes.tolist(), axis=1))


class Chances(NamedTuple):
    """What is left to chance in one step of the explorers, drawn ahead for a whole round."""

    noise: Float[JaxArray, "e a"]
    step: PRNGKeyArray  # (e,)
    reset: PRNGKeyArray  # (e,)
    batch: Float[JaxArray, "e b"]  # which transitions are read, as shares of all that are stored


class Nets(NamedTuple):
    """The two networks."""

    actor: MLP
    critic: MLP


class DDPGState(NamedTuple):
    """What the next improvement starts from."""

    nets: Nets
    slow: Nets
    optimisers: tuple[Any, Any]
    replay: Float[JaxArray, "c w"]  # a ring of packed transitions
    stored: JaxArray  # steps stored so far
    world: Any  # states of the explorers
    time: JaxArray  # their steps since the episode began
    noise: Float[JaxArray, "e a"]
    seen: Statistics
    size: Float[JaxArray, ""]  # running mean size of the modified rewards


class DDPGInfo(NamedTuple):
    """What one improvement reports."""

    critic_loss: Float[JaxArray, ""]  # mean squared error, in units of the modified rewards
    value: Float[JaxArray, ""]  # mean of Q(s, pi(s)), in the same units


@dataclass(frozen=True)
class DDPG:
    """Settings of the learner. `DDPG.published()` returns those of the published code.

    Args:
        discount: of targets; the world's by default. A world whose steps all count the same needs
            one below 1 here.
        hidden: widths of the actor's layers.
        hidden_critic: widths of the critic's.
        learning_rate: of Adam, for both.
        cool: rounds after which the learning rate has halved, falling as `1 / (1 + rounds / cool)`.
        batch: transitions per update.
        capacity: of the replay.
        warm_up: steps stored before the first update.
        explorers: lanes that explore.
        updates: steps of each explorer per round, with one update for every step of any.
        smoothing: share of the present networks in the slow ones, after every update; 0 copies.
        copy_every: updates after which the slow networks become copies, if not smoothed.
        noise: standard deviation of the exploring noise, in units of half the range.
        memory: of the noise, from one step to the next (0 is white).
        relabel: add the bonus when a transition is read; otherwise it keeps the one of its time.
        clip: greatest norm of a gradient.
    """

    discount: float | None = None
    hidden: Sequence[int] = (32, 32)
    hidden_critic: Sequence[int] = (32, 32, 32)
    learning_rate: float = 1e-3
    cool: float = math.inf
    batch: int = 128
    capacity: int = 100_000
    warm_up: int = 1024
    explorers: int = 8
    updates: int = 250
    smoothing: float = 0.005
    copy_every: int = 1000
    noise: float = 0.3
    memory: float = 0.0
    relabel: bool = True
    clip: float = 1.0

    name = "ddpg"

    @classmethod
    def published(cls, **changes: Any) -> "DDPG":
        """Return the settings of the published code for its motor.

        Hard copies every 1000 updates, stored bonuses, one explorer with Ornstein-Uhlenbeck noise
        (theta 0.5, dt 0.01, sigma 0.2 per square root of time), a replay of 8000.
        """
        settings: dict[str, Any] = {
            "discount": 0.95,
            "hidden": (16, 16),
            "capacity": 8000,
            "warm_up": 2048,
            "explorers": 1,
            "updates": 8000,
            "smoothing": 0.0,
            "noise": 2 * 0.02,  # per step, and a duty cycle's half range is 0.5
            "memory": 0.995,
            "relabel": False,
        }
        return cls(**{**settings, **changes})

    def __post_init__(self):
        if not 0 <= self.smoothing <= 1 or not 0 <= self.memory < 1:
            raise ValueError(
                f"smoothing must lie in [0, 1] and memory in [0, 1); got {self.smoothing} and "
                f"{self.memory}."
            )
        if self.capacity < max(self.warm_up, self.batch):
            raise ValueError(
                f"the replay's capacity ({self.capacity}) must hold the warm-up ({self.warm_up}) "
                f"and a batch ({self.batch})."
            )

    def init(self, key: PRNGKeyArray, env: Env) -> DDPGState:
        """Start from small random weights and an empty replay."""
        if not isinstance(env.actions, Box):
            raise ValueError(
                f"DDPG needs continuous actions; those of {env.name} are not. Use PPO or TRPO."
            )
        key_actor, key_critic, key_world = jax.random.split(key, 3)
        inputs, outputs = len(env.observation_names), env.actions.outputs
        nets = Nets(
            MLP(key_actor, (inputs, *self.hidden, outputs), last_gain=0.01, activation=jax.nn.relu),
            # First values that are large beside advantages would send the actor to an end.
            MLP(
                key_critic,
                (outputs + inputs, *self.hidden_critic, 1),
                last_gain=0.01,
                activation=jax.nn.relu,
            ),
        )
        optimisers = tuple(
            self._optimiser.init(eqx.filter(net, eqx.is_inexact_array)) for net in nets
        )
        replay = jnp.zeros((self.capacity, 2 * inputs + outputs + 3))
        return DDPGState(
            nets,
            nets,
            (optimisers[0], optimisers[1]),
            replay,
            jnp.zeros((), jnp.int32),
            jax.vmap(env.reset)(jax.random.split(key_world, self.explorers)),
            jnp.zeros(self.explorers, jnp.int32),
            jnp.zeros((self.explorers, outputs)),
            Statistics.start(inputs),
            jnp.ones(()),
        )

    def actor(self, state: DDPGState) -> Steering:
        """Return what acts, without noise: where the slow network is a mean, it is steadier."""
        nets = state.slow if self.smoothing > 0 else state.nets
        return Steering(nets.actor, state.seen)

    def act(
        self, actor: Steering, key: PRNGKeyArray, observation: Float[JaxArray, "n o"]
    ) -> Float[JaxArray, "n a"]:
        """Return the action for every lane."""
        del key
        return jax.vmap(actor)(observation)

    def improve(
        self, key: PRNGKeyArray, state: DDPGState, env: Env, seen: Experience, bonus: Bonus
    ) -> tuple[DDPGState, DDPGInfo]:
        """Explore and learn, for the reward plus the bonus."""
        inputs = seen.observation.shape[-1]
        state = state._replace(
            seen=state.seen.add(
                seen.observation.reshape(-1, inputs), seen.alive.reshape(-1).astype(jnp.float32)
            )
        )

        def turn(now: DDPGState, chances: Chances) -> tuple[DDPGState, tuple[JaxArray, JaxArray]]:
            now = self._explore(now, env, bonus, chances)

            def learn(now: DDPGState, places: JaxArray) -> tuple[DDPGState, Any]:
                return self._learn(now, env, bonus, places)

            return jax.lax.scan(learn, now, chances.batch)

        state, told = jax.lax.scan(turn, state, self._chances(key, state.noise.shape[1]))
        return state, DDPGInfo(told[0].mean(), told[1].mean())

    def _chances(self, key: PRNGKeyArray, actions: int) -> Chances:
        key_noise, key_step, key_reset, key_batch = jax.random.split(key, 4)
        shape = (self.updates, self.explorers)
        return Chances(
            self.noise * jax.random.normal(key_noise, (*shape, actions)),
            jax.random.split(key_step, shape),
            jax.random.split(key_reset, shape),
            jax.random.uniform(key_batch, (*shape, self.batch)),
        )

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        def rate(step: Any) -> Any:
            rounds = step / (self.updates * self.explorers)
            return self.learning_rate / (1 + rounds / self.cool)

        return optax.flatten(optax.chain(optax.clip_by_global_norm(self.clip), optax.adam(rate)))

    def _explore(self, state: DDPGState, env: Env, bonus: Bonus, chances: Chances) -> DDPGState:
        """Let every explorer do one noisy step, and store it."""
        observation = jax.vmap(env.observe)(state.world)
        noise = self.memory * state.noise + chances.noise
        here = jax.vmap(state.seen.normalise)(observation)
        action = jnp.clip(_steer(state.nets.actor, here) + noise, -1.0, 1.0)
        outcome = jax.vmap(env.step)(
            chances.step, state.world, jax.vmap(env.actions.to_world)(action)
        )
        fresh = Transitions(
            observation,
            action,
            outcome.reward[:, None],
            jax.vmap(bonus)(observation)[:, None],
            jax.vmap(env.observe)(outcome.state),
            outcome.terminated.astype(jnp.float32)[:, None],
        )
        places = (state.stored + jnp.arange(self.explorers)) % self.capacity
        time = state.time + 1
        over = outcome.terminated | (time >= env.horizon)
        anew = jax.vmap(env.reset)(chances.reset)
        world = jax.tree.map(
            lambda new, old: jnp.where(over.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            anew,
            outcome.state,
        )
        return state._replace(
            replay=state.replay.at[places].set(fresh.packed()),
            stored=state.stored + self.explorers,
            world=world,
            time=jnp.where(over, 0, time),
            noise=noise,
        )

    def _learn(
        self, state: DDPGState, env: Env, bonus: Bonus, places: Float[JaxArray, " b"]
    ) -> tuple[DDPGState, tuple[JaxArray, JaxArray]]:
        """Do one update of both networks, once the replay is warm."""
        filled = jnp.minimum(state.stored, self.capacity)
        rows = state.replay[(places * filled).astype(jnp.int32)]
        # Ring and world are left out of what is chosen between: they are the same, and large.
        learning = state._replace(replay=None, world=None)
        kept, told = jax.lax.cond(
            state.stored >= self.warm_up,
            lambda: self._update(learning, env, bonus, rows),
            lambda: (learning, (jnp.zeros(()), jnp.zeros(()))),
        )
        return kept._replace(replay=state.replay, world=state.world), told

    def _update(
        self, state: DDPGState, env: Env, bonus: Bonus, rows: Float[JaxArray, "b w"]
    ) -> tuple[DDPGState, tuple[JaxArray, JaxArray]]:
        discount = env.discount if self.discount is None else self.discount
        part = Transitions.unpacked(rows, len(env.observation_names), state.noise.shape[1])
        extra = jax.vmap(bonus)(part.observation) if self.relabel else part.bonus[:, 0]
        reward = part.reward[:, 0] + extra
        size = state.size + 1e-3 * (jnp.mean(jnp.abs(reward)) - state.size)
        normalise = jax.vmap(state.seen.normalise)
        here, there = normalise(part.observation), normalise(part.following)
        ahead = _value(state.slow.critic, there, _steer(state.slow.actor, there))
        # In units of (1 - gamma) / size, values stay near one whatever the multipliers.
        scale = (1 - discount) / jnp.maximum(size, 1e-8)
        target = scale * reward + discount * (1 - part.terminated[:, 0]) * ahead

        def critic_loss(critic: MLP) -> JaxArray:
            return jnp.mean((_value(critic, here, part.action) - target) ** 2)

        loss, slope = jax.value_and_grad(critic_loss)(state.nets.critic)
        critic, of_critic = self._descend(state.nets.critic, slope, state.optimisers[1])

        def actor_loss(actor: MLP) -> JaxArray:
            return -jnp.mean(_value(critic, here, _steer(actor, here)))

        value, slope = jax.value_and_grad(actor_loss)(state.nets.actor)
        actor, of_actor = self._descend(state.nets.actor, slope, state.optimisers[0])
        nets = Nets(actor, critic)
        if self.smoothing > 0:
            share = jnp.asarray(self.smoothing)
        else:
            share = jnp.where(state.stored % self.copy_every < self.explorers, 1.0, 0.0)
        slow = jax.tree.map(lambda old, new: old + share * (new - old), state.slow, nets)
        learned = state._replace(nets=nets, slow=slow, optimisers=(of_actor, of_critic), size=size)
        return learned, (loss, -value)

    def _descend(self, net: Any, slope: Any, optimiser: Any) -> tuple[Any, Any]:
        step, optimiser = self._optimiser.update(slope, optimiser, net)
        return optax.apply_updates(net, step), optimiser


def _steer(actor: MLP, here: Float[JaxArray, "b o"]) -> Float[JaxArray, "b a"]:
    return jnp.tanh(actor.many(here))


def _value(
    critic: MLP, here: Float[JaxArray, "b o"], action: Float[JaxArray, "b a"]
) -> Float[JaxArray, " b"]:
    return critic.many(jnp.concatenate([action, here], axis=1))[:, 0]
