"""Algorithm 1 in native worlds: any learner, any basis, any dual rule, compiled together.

Every round drives one segment of the present policy, estimates its density from it, moves the
multipliers, and improves the policy on the same experience with rewards relabelled. A chunk of
rounds is one program; between chunks the host tells how far it is and keeps what can be resumed.
Rules that need the host in every round (the master, averages) run the same two halves of a round
with the rule in between.
"""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray
from numpy import ndarray as Array

from dcrl.compile_time import CompileClock
from dcrl.drive import Experience, Lanes, drive, open_lanes, refuse_segments
from dcrl.dual.column import Column, Dual
from dcrl.dual.pi import Pi
from dcrl.envs.native import Env
from dcrl.gauge import Gauge, bind_features
from dcrl.learners.on_policy import Bonus
from dcrl.nets import count_parameters
from dcrl.ops import masked_mean

CHUNK = 10  # rounds per program


@runtime_checkable
class DeepLearner(Protocol):
    """Any method that improves a policy in a native world; the contract is the one of tables."""

    @property
    def name(self) -> str:
        """How the method is called in reports."""
        ...

    def init(self, key: PRNGKeyArray, env: Env) -> Any:
        """Start."""
        ...

    def actor(self, state: Any) -> Any:
        """Return what is needed to act: the policy that is driven, judged and kept."""
        ...

    def act(self, actor: Any, key: PRNGKeyArray, observation: Float[JaxArray, "n o"]) -> Any:
        """Return an action for every lane, in units of its range."""
        ...

    def improve(
        self, key: PRNGKeyArray, state: Any, env: Env, seen: Experience, bonus: Bonus
    ) -> tuple[Any, Any]:
        """Improve for the reward plus the bonus, given what the policy just saw."""
        ...


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that decides a training, besides the seed."""

    env: Env
    gauge: Gauge
    learner: DeepLearner
    dual: Dual[Any]
    lanes: int
    steps: int
    rounds: int
    margin: float


class Carry(NamedTuple):
    """What one round hands to the next."""

    key: PRNGKeyArray
    lanes: Lanes
    learner: Any
    dual: Any  # state of a rule that compiles; None for the others


class Row(NamedTuple):
    """What one round reports."""

    objective: Any  # of the policy that drove
    value: Any  # (m,) what was measured of its density
    error: Any  # (m,) the standard error of that
    net: Any  # (m,) the multipliers that the improvement used
    uncovered: Any  # (p,) share of visits that a basis says nothing about
    broken: Any  # first step and lane where something was not finite, or -1
    sound: Any  # whether the improved policy is finite
    info: Any  # what the learner says


class Look(NamedTuple):
    """The first half of a round: what the present policy does."""

    seen: Experience
    column: Column
    error: JaxArray
    uncovered: JaxArray
    broken: JaxArray


def look(setup: Setup, key: PRNGKeyArray, lanes: Lanes, learner: Any) -> tuple[Lanes, Look]:
    """Drive the present policy and measure its density (lines 6 and 7)."""
    gauge, actor = setup.gauge, setup.learner.actor(learner)
    act = functools.partial(setup.learner.act, actor)
    seen, lanes = drive(key, setup.env, act, lanes, setup.steps)
    weights = seen.weights(setup.env)
    count = weights.shape[1]
    each = jax.vmap(gauge.measure, in_axes=1)(seen.observation, weights * count)
    error = jnp.std(each, axis=0) / count**0.5
    outside = gauge.uncovered(
        seen.observation.reshape(-1, seen.observation.shape[-1]), weights.reshape(-1)
    )
    fine = jnp.isfinite(seen.reward) & jnp.isfinite(seen.observation).all(axis=-1)
    column = Column(
        jnp.mean(each, axis=0), jnp.sum(weights * seen.reward), jnp.zeros(0), setup.margin * error
    )
    return lanes, Look(
        seen,
        column,
        error,
        outside / jnp.sum(weights),
        jnp.where(fine.all(), -1, jnp.argmin(fine)),
    )


def improve(
    setup: Setup,
    key: PRNGKeyArray,
    learner: Any,
    seen: Look,
    net: Float[JaxArray, " m"],
    earning: JaxArray | float = 1.0,
) -> tuple[Any, Row]:
    """Improve the policy for the reward plus the bonus of the multipliers (lines 4 and 5).

    A rule that looks for feasibility first has nothing earned meanwhile (`earning` zero).
    """
    bonus = functools.partial(setup.gauge.bonus, net)
    earned = seen.seen._replace(reward=earning * seen.seen.reward)
    learner, info = setup.learner.improve(key, learner, setup.env, earned, bonus)
    numbers = [x for x in jax.tree.leaves(setup.learner.actor(learner)) if eqx.is_inexact_array(x)]
    sound = jnp.stack([jnp.isfinite(x).all() for x in numbers]).all()
    column = seen.column
    return learner, Row(
        column.objective, column.value, seen.error, net, seen.uncovered, seen.broken, sound, info
    )


def one_round(setup: Setup, carry: Carry) -> tuple[Carry, Row]:
    """Turn Algorithm 1 once."""
    key, key_look, key_improve = jax.random.split(carry.key, 3)
    lanes, seen = look(setup, key_look, carry.lanes, carry.learner)
    # Lines 8 to 10: move the multipliers.
    dual = setup.dual.update(carry.dual, setup.gauge.bounds, seen.column, jnp.inf)
    learner, row = improve(setup, key_improve, carry.learner, seen, dual.multipliers.net)
    return Carry(key, lanes, learner, dual), row


class Start(NamedTuple):
    """What a training begins with."""

    carry: Carry
    column: Column  # of the first policy
    reward_scale: JaxArray  # mean size of rewards


def start(setup: Setup, seed: JaxArray) -> Start:
    """Open the lanes, and look at the first policy."""
    key, key_learner, key_lanes, key_look = jax.random.split(jax.random.key(seed), 4)
    learner = setup.learner.init(key_learner, setup.env)
    act = functools.partial(setup.learner.act, setup.learner.actor(learner))
    lanes = open_lanes(key_lanes, setup.env, act, setup.lanes, setup.steps)
    lanes, seen = look(setup, key_look, lanes, learner)
    size = masked_mean(jnp.abs(seen.seen.reward), seen.seen.alive.astype(jnp.float32))
    return Start(Carry(key, lanes, learner, None), seen.column, size)


class Programs:
    """The compiled parts of a training; every seed runs the same ones."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.start = jax.jit(functools.partial(start, setup))
        self.look = jax.jit(functools.partial(look, setup))
        self.improve = jax.jit(functools.partial(improve, setup))
        self.rounds = jax.jit(self._rounds, static_argnums=1)

    def _rounds(self, carry: Carry, count: int) -> tuple[Carry, Row]:
        def turn(now: Carry, _: None) -> tuple[Carry, Row]:
            return one_round(self.setup, now)

        return jax.lax.scan(turn, carry, None, length=count)


@dataclass
class Progress:
    """How far one seed is. The only thing here that changes in place."""

    seed: int
    carry: Carry
    dual: Any  # state of a rule on the host; None for rules that compile
    rows: list[Row] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)  # arrays of the policies that an answer may mix
    diverged: bool = False


def begin(programs: Programs, seed: int) -> Progress:
    """Return a seed that has done no round yet."""
    setup = programs.setup
    started = jax.block_until_ready(programs.start(jnp.asarray(seed, jnp.uint32)))
    scale = float(started.reward_scale)
    bounds = setup.gauge.bounds
    if setup.dual.compiles:
        dual = setup.dual.init(bounds, started.column, scale)
        return Progress(seed, started.carry._replace(dual=jax.tree.map(jnp.asarray, dual)), None)
    # The first policy is a column too: nothing of the mixture is ever lost.
    first = _host_column(started.column, 0, setup.rounds)
    progress = Progress(seed, started.carry, setup.dual.init(bounds, first, scale))
    progress.kept.append(_arrays(setup.learner.actor(started.carry.learner)))
    return progress


def advance(programs: Programs, progress: Progress, count: int) -> None:
    """Run a chunk of rounds of one seed."""
    if programs.setup.dual.compiles:
        carry, stacked = programs.rounds(progress.carry, count)
        host = jax.device_get(stacked)
        rows = [jax.tree.map(lambda column, k=k: column[k], host) for k in range(count)]
    else:
        carry, rows = progress.carry, []
        for _ in range(count):
            carry, row = _round_on_host(programs, progress, carry)
            rows.append(row)
    _refuse_broken(programs.setup, progress, rows)
    progress.rows += rows
    if not all(bool(row.sound) for row in rows):
        progress.diverged = True
        return
    progress.carry = carry
    if programs.setup.dual.compiles:
        progress.kept.append(_arrays(programs.setup.learner.actor(carry.learner)))


def _round_on_host(programs: Programs, progress: Progress, carry: Carry) -> tuple[Carry, Row]:
    """Turn Algorithm 1 once, with a dual rule that needs the host."""
    setup = programs.setup
    key, key_look, key_improve = jax.random.split(carry.key, 3)
    actor = setup.learner.actor(carry.learner)
    lanes, seen = programs.look(key_look, carry.lanes, carry.learner)
    column = _host_column(seen.column, len(progress.kept), setup.rounds)
    progress.kept.append(_arrays(actor))
    progress.dual = setup.dual.update(progress.dual, setup.gauge.bounds, column, np.inf)
    net = jnp.asarray(progress.dual.multipliers.net, jnp.float32)
    earning = jnp.asarray(progress.dual.earning, jnp.float32)
    learner, row = programs.improve(key_improve, carry.learner, seen, net, earning)
    return Carry(key, lanes, learner, None), jax.device_get(row)


def _host_column(column: Column, index: int, rounds: int) -> Column:
    """Return a column whose makeup says which of the kept policies it is."""
    makeup = np.zeros(rounds + 1)
    makeup[index] = 1.0
    assert column.error is not None
    return Column(
        np.asarray(column.value, float),
        float(column.objective),
        makeup,
        np.asarray(column.error, float),
    )


def _arrays(actor: Any) -> list[Array]:
    """Return the numbers of a policy."""
    return [np.asarray(x) for x in jax.tree.leaves(actor)]


def _refuse_broken(setup: Setup, progress: Progress, rows: Sequence[Row]) -> None:
    """A number that is not finite is the world's fault unless the policy was broken before."""
    for index, row in enumerate(rows):
        if int(row.broken) >= 0:
            step, lane = divmod(int(row.broken), setup.lanes)
            raise ValueError(
                f"{setup.env.name} gave an observation or a reward that is not finite: seed "
                f"{progress.seed}, round {len(progress.rows) + index + 1}, lane {lane}, step "
                f"{step} of the segment. Mend its `step`, `observe` or `reset`."
            )
        if not bool(row.sound):
            return
        if float(np.max(row.uncovered, initial=0.0)) > 0:
            part = int(np.argmax(row.uncovered))
            raise ValueError(
                f"constraint {part} of {setup.env.name}: {float(row.uncovered[part]):.2%} of the "
                f"visits of round {len(progress.rows) + index + 1} lie outside its basis, where "
                "nothing would be bounded. Widen the basis."
            )


@dataclass(frozen=True)
class Trained:
    """The outcome of one seed: a mixture of policies, and how it came about."""

    seed: int
    setup: Setup = field(repr=False)
    policies: tuple[Any, ...] = field(repr=False)  # what acts, each drawn with its weight
    weights: Float[Array, " k"]  # once per episode
    net: Float[Array, " m"] = field(repr=False)  # the multipliers at the end
    rows: tuple[Row, ...] = field(repr=False)
    status: str
    parameters: int
    steps: int  # of the world
    seconds: float  # without compiling, of all seeds together
    compile_seconds: float


def train(
    env: Env,
    *,
    learner: DeepLearner,
    dual: Dual[Any] | None = None,
    seeds: Sequence[int] = (0,),
    rounds: int = 300,
    lanes: int = 1024,
    steps: int | None = None,
    margin: float = 1.0,
    average: int = 1,
    threads: int | None = None,
    on_chunk: Callable[[Sequence[Progress], float], None] | None = None,
    resumed: Sequence[Progress] | None = None,
) -> list[Trained]:
    """Find policies that keep the bounds of a native world and earn as much as possible.

    Args:
        env: the world, with its constraints.
        learner: improves the policy.
        dual: moves the multipliers; proportional-integral control of the last policy by default.
        seeds: one training each; they share the compiled program, and the cores.
        rounds: turns of Algorithm 1.
        lanes: episodes side by side.
        steps: of one segment; the whole episode by default.
        margin: standard errors of the density estimate that the bounds are tightened by.
        average: how many policies, from the ends of the last chunks, the answer mixes evenly; a
            rule with an answer of its own (master, averages) decides by itself.
        threads: seeds that run at the same time; as many as there are cores by default.
        on_chunk: called after every chunk of rounds with the progress of all seeds, and the
            seconds so far, compiling apart.
        resumed: the progress of an earlier call that was cut short.
    """
    steps = env.horizon if steps is None else steps
    refuse_segments(env, lanes, steps)
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}.")
    dual = Pi(averaging=False) if dual is None else dual
    gauge = bind_features(env.constraints, env)
    setup = Setup(env, gauge, learner, dual, lanes, steps, rounds, margin)
    programs, clock = Programs(setup), CompileClock()
    everyone = list(resumed) if resumed else [begin(programs, seed) for seed in seeds]
    workers = min(threads or os.cpu_count() or 1, len(everyone))
    first = True
    with ThreadPoolExecutor(workers) as pool:
        while going := [p for p in everyone if not p.diverged and len(p.rows) < rounds]:
            done = len(going[0].rows)
            count = min(CHUNK, rounds - done)
            if first:  # compiled once, by one of them
                advance(programs, going[0], count)
                going, first = going[1:], False
            list(pool.map(lambda p, n=count: advance(programs, p, n), going))
            if on_chunk is not None:
                on_chunk(everyone, clock.running())
    return [conclude(setup, progress, average, clock) for progress in everyone]


def conclude(setup: Setup, progress: Progress, average: int, clock: CompileClock) -> Trained:
    """Return the mixture that a training ends with."""
    if setup.dual.compiles:
        used = max(1, min(average, len(progress.kept)))
        weights = np.full(used, 1 / used)
        arrays = progress.kept[-used:]
    else:
        makeup = progress.dual.answer.makeup
        chosen = np.flatnonzero(makeup > 0)
        weights = makeup[chosen] / makeup[chosen].sum()
        arrays = [progress.kept[k] for k in chosen]
    template = setup.learner.actor(progress.carry.learner)
    structure = jax.tree.structure(template)
    rounds = len(progress.rows)
    return Trained(
        progress.seed,
        setup,
        tuple(jax.tree.unflatten(structure, list(map(jnp.asarray, each))) for each in arrays),
        weights,
        np.asarray(progress.rows[-1].net, float),
        tuple(progress.rows),
        f"diverged in round {rounds}; the policy of the chunk before is the answer"
        if progress.diverged
        else "all rounds were done",
        count_parameters(progress.carry.learner),
        rounds * setup.lanes * setup.steps,
        clock.running(),
        clock.compiling(),
    )
