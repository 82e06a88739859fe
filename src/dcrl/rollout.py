"""Sampling a tabular world: many vans drive at once, in one compiled loop.

Learners see a world only through this file: where a van was, what it did, what it earned and
where it came next.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from dcrl.tabular.model import Model

CHUNK = 64  # steps between two looks at whether any van still drives
MAX_STEPS = 10_000_000  # with a discount of 1 only arriving ends an episode


class Simulator(NamedTuple):
    """A table to sample from.

    A slot is one possible outcome `(state, action, branch)`; `successor` says where it leads. From
    a terminal state it leads to `num_states`, where ended episodes are parked.
    """

    successor: Int[Array, "s a k"]
    cumulative: Float[Array, "s a k"]  # of the probabilities of the branches
    reward: Float[Array, "s a"]
    available: Bool[Array, "s a"]
    terminal: Bool[Array, " s"]
    initial: Float[Array, " s"]
    discount: float

    @property
    def num_branches(self) -> int:
        """Return how many successors the most random pair has."""
        return self.successor.shape[2]


def simulator(model: Model) -> Simulator:
    """Return the sampling form of a model."""
    num_states, num_actions = model.reward.shape
    counts = np.diff(model.transition.indptr)
    width = max(1, int(counts.max(initial=1)))
    parked = num_states
    successor = np.full((num_states * num_actions, width), parked, np.int32)
    probability = np.zeros((num_states * num_actions, width))
    row = np.repeat(np.arange(len(counts)), counts)
    column = np.arange(len(row)) - np.repeat(model.transition.indptr[:-1], counts)
    successor[row, column] = model.transition.indices
    probability[row, column] = model.transition.data
    cumulative = np.cumsum(probability, axis=1)
    # The last branch takes what rounding leaves over; a terminal state leads to the parking.
    cumulative[np.arange(len(counts)), np.maximum(counts - 1, 0)] = 1.0
    cumulative[:, -1] = 1.0
    shape = (num_states, num_actions, width)
    return Simulator(
        successor.reshape(shape),
        cumulative.reshape(shape),
        model.reward,
        model.available,
        model.terminal,
        model.initial,
        model.discount,
    )


class Experience(NamedTuple):
    """What the vans of one rollout did."""

    pair_density: Float[Array, "s a"]  # the paper's count, rho(s_ij, a_ij) += gamma^j / N
    visits: Int[Array, "s a k"]  # how often each outcome was seen
    tail: float  # discounted mass after the last step, which the rollout left out
    steps: int  # van-steps driven


def place(
    key: JaxArray, initial: Float[Array, " s"], vans: int
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """Put vans on their starting states, and say how much of the start each one stands for.

    Vans are spread evenly (systematic sampling). Where there are enough of them for every
    starting state, each state gets its share and the weights make the start exact; otherwise the
    states are drawn and the weights are equal.
    """
    support = np.flatnonzero(initial > 0)
    ticks = (np.arange(vans) + float(jax.random.uniform(key))) / vans
    drawn = np.searchsorted(np.cumsum(initial[support]), ticks)
    start = support[np.minimum(drawn, len(support) - 1)].astype(np.int32)
    if len(support) > vans:
        return start, np.full(vans, 1 / vans)
    counts = np.bincount(start, minlength=len(initial))
    for state in np.setdiff1d(support, start):  # a rare start takes a van from a crowded one
        crowded = int(counts.argmax())
        start[np.flatnonzero(start == crowded)[-1]] = state
        counts[[crowded, state]] += [-1, 1]
    return start, initial[start] / counts[start]


def rollout(
    key: JaxArray,
    world: Simulator,
    policy: Float[Array, "s a"],
    *,
    vans: int = 64,
    tail: float = 1e-6,
) -> Experience:
    """Drive `vans` episodes of a policy until they end, or until only `tail` of the mass is left.

    Args:
        key: randomness.
        world: what to sample.
        policy: `pi(a|s)`.
        vans: how many episodes, all driven at once.
        tail: episodes that do not end are cut when `gamma^t` falls to this.

    >>> from dcrl.envs import tiny
    >>> model = tiny.two_rooms().model
    >>> change = np.array([[0.0, 1.0], [1.0, 0.0]])  # go to the rich room and stay there
    >>> seen = rollout(jax.random.key(0), simulator(model), change, vans=1)
    >>> seen.pair_density.sum(1).round(4).tolist()
    [1.0, 9.0]
    """
    key_start, key_drive = jax.random.split(key)
    fixed = world.num_branches == 1 and bool((policy.max(1) == 1.0).all())
    if fixed:  # where nothing is random, one van per start says it all
        vans = min(vans, int(np.count_nonzero(world.initial)))
    start, weight = place(key_start, world.initial, vans)
    drive = _drive_on_host(key_drive, world, policy, start, weight, tail, fixed=fixed)
    shape = world.successor.shape
    left = float(weight @ (drive.state < shape[0])) * float(drive.weight_t)
    return Experience(
        drive.density[:-1].reshape(shape).sum(2),
        drive.visits[:-1].reshape(shape),
        0.0 if left == 0 else left / (1 - world.discount),
        int(drive.visits[:-1].reshape(shape)[~world.terminal].sum()),
    )


class Episodes(NamedTuple):
    """What each van did by itself, for intervals."""

    density: Float[Array, "n s"]
    earned: Float[Array, " n"]  # discounted reward
    tail: Float[Array, " n"]  # discounted mass after the last step, which was left out


def episodes(
    key: JaxArray,
    world: Simulator,
    policy: Float[Array, "s a"],
    *,
    vans: int = 1000,
    tail: float = 1e-6,
) -> Episodes:
    """Drive independent episodes from independent starts, and keep them apart.

    >>> from dcrl.envs import tiny
    >>> model = tiny.detour().model
    >>> seen = episodes(jax.random.key(0), simulator(model), model.uniform_policy(), vans=8)
    >>> (seen.earned == np.where(seen.density[:, 1] == 1, -4, -1)).all()
    np.True_
    """
    key_start, key_drive = jax.random.split(key)
    draws = np.asarray(jax.random.uniform(key_start, (vans,)))
    support = np.flatnonzero(world.initial > 0)
    drawn = np.searchsorted(np.cumsum(world.initial[support]), draws)
    start = support[np.minimum(drawn, len(support) - 1)].astype(np.int32)
    drive = _drive_on_host(
        key_drive, world, policy, start, np.ones(vans), tail, fixed=False, apart=True
    )
    left = np.where(drive.state < len(policy), float(drive.weight_t), 0.0)
    if world.discount < 1:
        left = left / (1 - world.discount)
    return Episodes(drive.density[:, :-1], drive.earned, left)


def _drive_on_host(
    key: JaxArray,
    world: Simulator,
    policy: Array,
    start: Array,
    weight: Array,
    tail: float,
    *,
    fixed: bool,
    apart: bool = False,
) -> "_Drive":
    with jax.enable_x64(True):
        drive = jax.device_get(
            _drive(
                key,
                world.successor,
                world.cumulative.astype(np.float32),
                _cumulative(policy),
                world.reward,
                np.float64(world.discount),
                start,
                weight,
                np.float64(tail),
                fixed=fixed,
                apart=apart,
            )
        )
    if world.discount == 1 and (drive.state < len(policy)).any():
        raise ValueError(
            f"an episode did not end within {MAX_STEPS:,} steps, and the discount is 1. "
            "Use a discount below 1, or a policy that reaches a terminal state."
        )
    return drive


def _cumulative(policy: Float[Array, "s a"]) -> Float[Array, "s a"]:
    """Cumulative action probabilities, ending in ones so that rounding draws no absent action."""
    cumulative = np.cumsum(policy, axis=1)
    last = policy.shape[1] - 1 - np.argmax(policy[:, ::-1] > 0, axis=1)
    ended = np.arange(policy.shape[1]) >= last[:, None]
    return np.where(ended, 1.0, cumulative).astype(np.float32)


class _Drive(NamedTuple):  # of JAX arrays while driving, of NumPy arrays on the host
    key: Any
    state: Any  # (n,)
    density: Any  # per slot; or per van and state, where vans are kept apart
    earned: Any  # per van, where they are kept apart
    visits: Any  # per slot
    weight_t: Any  # gamma^t
    time: Any


@functools.partial(jax.jit, static_argnames=("fixed", "apart"))
def _drive(
    key: JaxArray,
    successor: JaxArray,
    cumulative: JaxArray,
    policy: JaxArray,
    reward: JaxArray,
    discount: JaxArray,
    start: JaxArray,
    weight: JaxArray,
    tail: JaxArray,
    *,
    fixed: bool,
    apart: bool,
) -> _Drive:
    """Drive chunk by chunk; `fixed` says that neither policy nor world rolls any dice."""
    num_states, num_actions, width = successor.shape
    slots = num_states * num_actions * width
    vans = len(start)
    parked = num_states
    # Parked vans stay parked, in a slot of their own behind all others.
    lead_to = jnp.concatenate([successor.reshape(-1), jnp.array([parked], jnp.int32)])
    earn = jnp.concatenate([jnp.repeat(reward.reshape(-1), width), jnp.zeros(1)])
    policy = jnp.concatenate([policy, jnp.ones_like(policy[:1])])
    branches = cumulative.reshape(-1, width)

    def choose(state: JaxArray, draw: JaxArray) -> JaxArray:
        action = jnp.sum(draw[0][:, None] >= policy[state], axis=1)
        pair = jnp.minimum(state * num_actions + action, slots // width - 1)
        branch = 0 if width == 1 else jnp.sum(draw[1][:, None] >= branches[pair], axis=1)
        return jnp.where(state == parked, slots, pair * width + branch)

    # Where nothing is random, what happens in a state is looked up instead of computed.
    slot_of = choose(jnp.arange(num_states + 1), jnp.zeros((2, num_states + 1)))
    next_of = lead_to[slot_of]

    def advance(state: JaxArray, draw: JaxArray) -> tuple[JaxArray, JaxArray]:
        if fixed:
            return next_of[state], slot_of[state]
        slot = choose(state, draw)
        return lead_to[slot], slot

    def chunk(drive: _Drive) -> _Drive:
        key, key_chunk = jax.random.split(drive.key)
        dice = 0 if fixed else 1 if width == 1 else 2
        draws = jax.random.uniform(key_chunk, (CHUNK, dice, vans), jnp.float32)
        state, slot = jax.lax.scan(advance, drive.state, draws)
        weight_t = jnp.outer(drive.weight_t * discount ** jnp.arange(CHUNK), weight)
        if apart:
            here = slot // (num_actions * width)
            density = drive.density.at[jnp.arange(vans)[None, :], here].add(weight_t)
            earned = drive.earned + jnp.sum(weight_t * earn[slot], axis=0)
            visits = drive.visits
        else:
            density, earned = drive.density.at[slot].add(weight_t), drive.earned
            visits = drive.visits.at[slot].add(1)
        weight_next = drive.weight_t * discount**CHUNK
        return _Drive(key, state, density, earned, visits, weight_next, drive.time + CHUNK)

    def unfinished(drive: _Drive) -> JaxArray:
        driving = jnp.any(drive.state != parked)
        return driving & (drive.weight_t > tail) & (drive.time < MAX_STEPS)

    return jax.lax.while_loop(
        unfinished,
        chunk,
        _Drive(
            key,
            start,
            jnp.zeros((vans, num_states + 1) if apart else slots + 1),
            jnp.zeros(vans if apart else 0),
            jnp.zeros(0 if apart else slots + 1, jnp.int64),
            jnp.ones(()),
            jnp.zeros((), jnp.int64),
        ),
    )
