"""What a fixed policy does: exactly where the model is known, and on fresh episodes anywhere."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray
from numpy import ndarray as Array

from dcrl.constraints import Bounds
from dcrl.density.intervals import (
    Interval,
    bernstein,
    betting,
    bootstrap,
    clopper_pearson,
    student,
)
from dcrl.drive import Lanes, drive
from dcrl.envs.native import Env, mass
from dcrl.gauge import Gauge, bind_features
from dcrl.presets import choose
from dcrl.rollout import episodes, simulator
from dcrl.tabular import dp
from dcrl.tabular.model import World

Verdict = Literal["kept", "broken", "undecided"]

BATCH = 4096  # vans that drive at once


@dataclass(frozen=True)
class Evaluation:
    """What a policy earns and how it keeps its bounds; limits coincide where it is exact."""

    objective: Interval  # one entry
    value: Interval  # one entry per bound
    bounds: Bounds
    tolerance: float  # absolute violation that counts as none
    episodes: int  # 0 where it is exact
    tail: float  # mean discounted mass beyond the last step driven

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Say of each bound whether it is kept, broken, or not decided by these episodes."""
        inside = (self.value.low >= self.bounds.lower - self.tolerance) & (
            self.value.high <= self.bounds.upper + self.tolerance
        )
        outside = (self.value.high < self.bounds.lower - self.tolerance) | (
            self.value.low > self.bounds.upper + self.tolerance
        )
        return tuple(
            "kept" if is_in else "broken" if is_out else "undecided"
            for is_in, is_out in zip(inside, outside, strict=True)
        )

    @property
    def verdict(self) -> Verdict:
        """Say it of all bounds together."""
        each = self.verdicts
        if "broken" in each:
            return "broken"
        return "undecided" if "undecided" in each else "kept"

    @property
    def worst_slack(self) -> float:
        """Smallest relative slack of the estimates."""
        return self.bounds.worst_slack(self.value.estimate)

    @property
    def worst_slack_low(self) -> float:
        """Lower limit of it, the smallest relative slack of anything in the intervals."""
        low, _, high = self.value
        return min(self.bounds.worst_slack(low), self.bounds.worst_slack(high))


def evaluate_exactly(
    world: World, policy: Float[Array, "s a"], tolerance: float = 0.0
) -> Evaluation:
    """Return what a policy does by solving the flow equations of the known model.

    >>> from dcrl.envs import tiny
    >>> world = tiny.two_rooms(upper=4.0)
    >>> evaluate_exactly(world, world.model.uniform_policy()).verdict
    'broken'
    """
    rho = dp.density(world.model, policy)
    earned = np.array([float(rho @ (policy * world.model.reward).sum(1))])
    value = world.bounds.measure(rho)
    return Evaluation(
        Interval(earned, earned, earned),
        Interval(value, value, value),
        world.bounds,
        tolerance,
        0,
        0.0,
    )


def evaluate(
    world: World,
    policy: Float[Array, "s a"],
    *,
    key: JaxArray | int = 0,
    vans: int = 10_000,
    tail: float = 1e-6,
    confidence: float = 0.95,
    guaranteed: bool = False,
    tolerance: float = 0.0,
) -> Evaluation:
    """Return what a policy does on fresh episodes.

    Args:
        world: where to drive.
        policy: what to drive; exactly this, without exploration.
        key: randomness, or a seed; not one that was trained with.
        vans: episodes.
        tail: episodes that do not end are cut when `gamma^t` falls to this.
        confidence: probability that all intervals of the bounds hold together; it is shared out
            evenly among them (Bonferroni).
        guaranteed: intervals that hold for every number of episodes (empirical Bernstein), for
            weights that are not negative; otherwise Student's, right for many episodes.
        tolerance: absolute violation that counts as none.
    """
    if vans < 2:
        raise ValueError(f"vans must be at least 2 for an interval; got {vans}.")
    if guaranteed and (world.model.discount == 1 or (world.bounds.basis.data < 0).any()):
        raise ValueError(
            "guaranteed intervals need a discount below 1 and weights that are not negative."
        )
    key = jax.random.key(key) if isinstance(key, int) else key
    sampler, bounds = simulator(world.model), world.bounds
    values: list[Array] = []
    earned: list[Array] = []
    left = 0.0
    while vans > 0:
        key, key_batch = jax.random.split(key)
        seen = episodes(key_batch, sampler, policy, vans=min(vans, BATCH), tail=tail)
        values.append((bounds.basis @ seen.density.T).T)
        earned.append(seen.earned)
        left += float(seen.tail.sum())
        vans -= len(seen.earned)
    value, objective = np.concatenate(values), np.concatenate(earned)[:, None]
    each = 1 - (1 - confidence) / max(len(bounds), 1)
    largest = np.asarray(bounds.basis.max(axis=1).toarray()).ravel() * world.model.mass
    return Evaluation(
        student(objective, confidence),
        bernstein(value, largest, each) if guaranteed else student(value, each),
        bounds,
        tolerance,
        len(value),
        left / len(value),
    )


INTERVALS = ("student", "bootstrap", "betting", "bernstein", "clopper-pearson")
SEGMENT = 500  # steps of one compiled piece of an episode


def evaluate_mixture(
    env: Env,
    learner: Any,
    policies: Sequence[Any],
    weights: Float[Array, " k"],
    *,
    key: JaxArray | int = 0,
    vans: int = 1024,
    confidence: float = 0.95,
    interval: str = "student",
    tolerance: float = 0.0,
    lanes: int = 256,
) -> Evaluation:
    """Return what a mixture of policies does on fresh episodes of a native world.

    Args:
        env: where to drive.
        learner: acts.
        policies: what it acts by; one is drawn per episode.
        weights: with these probabilities.
        key: randomness, or a seed; not one that was trained with.
        vans: episodes.
        confidence: probability that all intervals of the bounds hold together; it is shared out
            evenly among the sides that are bounded (Bonferroni).
        interval: `student`, right for many episodes; `bootstrap`, for pictures; `betting`,
            `bernstein` or `clopper-pearson` (of the state at a time drawn by the discount), which
            hold for every number of them.
        tolerance: absolute violation that counts as none.
        lanes: episodes side by side.
    """
    choose("interval", interval, INTERVALS)
    if vans < 2:
        raise ValueError(f"vans must be at least 2 for an interval; got {vans}.")
    key = jax.random.key(key) if isinstance(key, int) else key
    key, key_draw = jax.random.split(key)
    gauge = bind_features(env.constraints, env)
    bounds = gauge.bounds
    drawn = np.asarray(
        jax.random.choice(key_draw, len(policies), (vans,), p=jnp.asarray(weights, jnp.float32))
    )
    whole = jax.jit(functools.partial(_whole_episodes, env, gauge, learner, lanes))
    seen: list[_Episodes] = []
    for index, policy in enumerate(policies):
        wanted = int((drawn == index).sum())
        for begun in range(0, wanted, lanes):
            key, key_batch = jax.random.split(key)
            batch = jax.device_get(whole(policy, key_batch))
            seen.append(jax.tree.map(lambda x, n=wanted - begun: np.asarray(x[:n], float), batch))
    # Intervals that depend on the order of samples must not see one policy after the other.
    order = np.random.default_rng(0).permutation(vans)
    together = jax.tree.map(lambda *parts: np.concatenate(parts)[order], *seen)
    bounded = int(np.isfinite(bounds.lower).sum() + np.isfinite(bounds.upper).sum())
    each = 1 - (1 - confidence) / max(bounded, 1)
    return Evaluation(
        student(together.earned[:, None], confidence),
        _interval(interval, env, gauge, together, each),
        bounds,
        tolerance,
        vans,
        float(together.left.mean()),
    )


@dataclass(frozen=True)
class _Episodes:
    """What each lane did by itself."""

    value: Any  # (n, m)
    stopped: Any  # (n, m) the functions of the basis at a time drawn by the discount
    earned: Any  # (n,)
    left: Any  # (n,) discounted mass after the last step, which was left out


jax.tree_util.register_dataclass(_Episodes, ["value", "stopped", "earned", "left"], [])


def _whole_episodes(
    env: Env, gauge: Gauge, learner: Any, lanes: int, policy: Any, key: PRNGKeyArray
) -> _Episodes:
    """Drive whole episodes in segments, and add up what each of them does."""
    steps = max(n for n in range(1, min(SEGMENT, env.horizon) + 1) if env.horizon % n == 0)
    key_reset, key_stop, key_drive = jax.random.split(key, 3)
    state = jax.vmap(env.reset)(jax.random.split(key_reset, lanes))
    total_weight = mass(env)
    ticks = jnp.asarray(np.cumsum(env.discount ** np.arange(env.horizon)) / total_weight)
    stop = jnp.searchsorted(ticks, jax.random.uniform(key_stop, (lanes,)))

    def onwards(
        carry: tuple[Any, ...], turn: tuple[JaxArray, PRNGKeyArray]
    ) -> tuple[tuple[Any, ...], None]:
        state, alive, total = carry
        segment, key = turn
        before = Lanes(state, jnp.full(lanes, segment * steps), jnp.zeros(lanes, bool))
        seen, after = drive(key, env, functools.partial(learner.act, policy), before, steps)
        time = segment * steps + jnp.arange(steps)
        mask = seen.alive & alive[None, :]
        weight = env.discount ** time[:, None] * mask
        at_stop = (time[:, None] == stop[None, :]) & mask
        by_lane = jax.vmap(gauge.measure, in_axes=1)
        total = _Episodes(
            total.value + by_lane(seen.observation, weight),
            total.stopped + by_lane(seen.observation, at_stop.astype(jnp.float32)),
            total.earned + (weight * seen.reward).sum(axis=0),
            total.left,
        )
        return (after.state, alive & ~after.over, total), None

    size = len(gauge.bounds)
    zeros = _Episodes(
        jnp.zeros((lanes, size)), jnp.zeros((lanes, size)), jnp.zeros(lanes), jnp.zeros(lanes)
    )
    segments = env.horizon // steps
    (_, alive, total), _ = jax.lax.scan(
        onwards,
        (state, jnp.ones(lanes, bool), zeros),
        (jnp.arange(segments), jax.random.split(key_drive, segments)),
    )
    tail = env.discount**env.horizon / (1 - env.discount) if env.discount < 1 else 0.0
    return _Episodes(total.value, total.stopped, total.earned, jnp.where(alive, tail, 0.0))


def _interval(name: str, env: Env, gauge: Gauge, seen: _Episodes, confidence: float) -> Interval:
    if name in ("student", "bootstrap"):
        return (student if name == "student" else bootstrap)(seen.value, confidence)
    peak = np.concatenate([np.zeros(0), *(part.basis.peak for part in gauge.parts)])
    if not np.isfinite(peak).all():
        raise ValueError(
            f"a {name} interval needs quantities with a known limit, and nothing is known of a "
            "cost. Use `student`."
        )
    largest = peak * mass(env)
    if name == "clopper-pearson":
        chance = np.random.default_rng(1).random(seen.stopped.shape)
        hits = (chance < seen.stopped / peak).sum(axis=0)
        share = clopper_pearson(hits.astype(float), len(chance), confidence)
        return Interval(*(limit * largest for limit in share))
    return (betting if name == "betting" else bernstein)(seen.value, largest, confidence)
