"""Algorithm 1 in native worlds: any learner, any basis, any dual rule, compiled together.

Every round drives one segment of the present policy, estimates its density from it, moves the
multipliers, and improves the policy on the same experience with rewards relabelled. A chunk of
rounds is one program, for several seeds side by side; between chunks the host tells how far it is
and keeps what can be resumed. Rules that need the host in every round (the master, averages) run
the same two halves of a round with the rule in between.
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
from jaxtyping import Bool, Float, PRNGKeyArray
from numpy import ndarray as Array

from dcrl.compile_time import CompileClock
from dcrl.drive import Experience, Lanes, drive, open_lanes, refuse_segments
from dcrl.dual.column import Column, Dual
from dcrl.dual.pi import Pi
from dcrl.envs.native import Env, mass
from dcrl.gauge import Gauge, bind_features
from dcrl.learners.on_policy import Bonus
from dcrl.learners.ppo import PPO
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
    """Everything that decides a training, besides its seeds."""

    env: Env
    gauge: Gauge
    learner: DeepLearner
    dual: Dual[Any]
    lanes: int
    steps: int
    rounds: int
    margin: float
    average: int


class Carry(NamedTuple):
    """What one round hands to the next; with a leading axis for seeds outside of it."""

    key: PRNGKeyArray
    lanes: Lanes
    learner: Any
    dual: Any  # state of a rule that compiles; None for the others


class Row(NamedTuple):
    """What one round reports; with a leading axis for seeds outside of it."""

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
    """The compiled parts of a training, each for several seeds side by side."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.start = jax.jit(jax.vmap(functools.partial(start, setup)))
        self.look = jax.jit(jax.vmap(functools.partial(look, setup)))
        self.improve = jax.jit(jax.vmap(functools.partial(improve, setup)))
        self.rounds = jax.jit(self._rounds, static_argnums=1)

    def _rounds(self, carry: Carry, count: int) -> tuple[Carry, Row]:
        def turn(now: Carry, _: None) -> tuple[Carry, Row]:
            return jax.vmap(functools.partial(one_round, self.setup))(now)

        return jax.lax.scan(turn, carry, None, length=count)


@dataclass
class Progress:
    """How far a few seeds are that share a program. The only thing here that changes in place."""

    seeds: tuple[int, ...]
    carry: Carry
    duals: list[Any]  # per seed, the state of a rule on the host; empty for rules that compile
    first: Column  # of the first policies, and what the rules on the host began with
    reward_scale: Float[Array, " g"]
    rows: list[Row] = field(default_factory=list)
    kept: list[list[Array]] = field(default_factory=list)  # policies that an answer may mix
    ended: list[int] = field(default_factory=list)  # per seed, the round it diverged in, or 0

    @property
    def going(self) -> bool:
        """Whether any seed is still sound."""
        return not all(self.ended)


def begin(programs: Programs, seeds: Sequence[int]) -> Progress:
    """Return seeds that have done no round yet."""
    setup = programs.setup
    started = jax.block_until_ready(programs.start(jnp.asarray(seeds, jnp.uint32)))
    first, scale = jax.device_get((started.column, started.reward_scale))
    progress = Progress(tuple(seeds), started.carry, [], first, scale, ended=[0] * len(seeds))
    if setup.dual.compiles:
        progress.carry = started.carry._replace(dual=start_duals(setup, first, scale))
    else:
        # The first policy is a column too: nothing of the mixture is ever lost.
        progress.duals = duals_on_host(setup, progress)
        progress.kept.append(_arrays(setup.learner.actor(started.carry.learner)))
    return progress


def start_duals(setup: Setup, first: Column, reward_scale: Float[Array, " g"]) -> Any:
    """Return the states of a rule that compiles, before the first round."""
    duals = [
        setup.dual.init(setup.gauge.bounds, _pick(first, k), float(scale), mass(setup.env))
        for k, scale in enumerate(reward_scale)
    ]
    return jax.tree.map(lambda *each: jnp.stack(list(map(jnp.asarray, each))), *duals)


def duals_on_host(setup: Setup, progress: Progress) -> list[Any]:
    """Return the states of a rule on the host after the rounds done: what it saw decides them."""
    bounds = setup.gauge.bounds
    duals: list[Any] = []
    for k in range(len(progress.seeds)):
        column = _host_column(_pick(progress.first, k), 0, setup.rounds)
        dual = setup.dual.init(bounds, column, float(progress.reward_scale[k]), mass(setup.env))
        for index, row in enumerate(progress.rows[: progress.ended[k] or None]):
            dual = setup.dual.update(dual, bounds, _seen(setup, row, k, index + 1), np.inf)
        duals.append(dual)
    return duals


def _seen(setup: Setup, row: Row, seed: int, index: int) -> Column:
    """Return what a rule on the host saw of one seed in one round."""
    error = setup.margin * row.error[seed]
    return _host_column(
        Column(row.value[seed], row.objective[seed], None, error), index, setup.rounds
    )


def advance(programs: Programs, progress: Progress, count: int) -> None:
    """Run a chunk of rounds of a few seeds."""
    setup, before = programs.setup, progress.carry
    if setup.dual.compiles:
        carry, stacked = programs.rounds(before, count)
        host = jax.device_get(stacked)
        for index in range(count):
            _note(setup, progress, _pick(host, index))
    else:
        carry = before
        for _ in range(count):
            carry, row = _round_on_host(programs, progress, carry)
            _note(setup, progress, row)
    # A seed that diverged stays where the last chunk left it, while the others go on.
    progress.carry = where_seeds(np.array(progress.ended) == 0, carry, before)
    if setup.dual.compiles:
        fresh = _arrays(setup.learner.actor(progress.carry.learner))
        progress.kept = [*progress.kept, fresh][-setup.average :]


def _note(setup: Setup, progress: Progress, row: Row) -> None:
    """Keep what a round reports, and note which seeds it was the end of."""
    _refuse_broken(setup, progress, row)
    progress.rows.append(row)
    for k, ended in enumerate(progress.ended):
        if not ended and not row.sound[k]:
            progress.ended[k] = len(progress.rows)


def _round_on_host(programs: Programs, progress: Progress, carry: Carry) -> tuple[Carry, Row]:
    """Turn Algorithm 1 once, with a dual rule that needs the host."""
    setup = programs.setup
    keys = jax.vmap(lambda key: jax.random.split(key, 3))(carry.key)
    progress.kept.append(_arrays(setup.learner.actor(carry.learner)))
    lanes, seen = programs.look(keys[:, 1], carry.lanes, carry.learner)
    told = jax.device_get((seen.column, seen.error))
    net, earning = [], []
    for k, dual in enumerate(progress.duals):
        if not progress.ended[k]:
            row = Row(told[0].objective, told[0].value, told[1], *[None] * 5)
            column = _seen(setup, row, k, len(progress.kept) - 1)
            dual = setup.dual.update(dual, setup.gauge.bounds, column, np.inf)
            progress.duals[k] = dual
        net.append(dual.multipliers.net)
        earning.append(float(dual.earning))
    learner, row = programs.improve(
        keys[:, 2], carry.learner, seen, jnp.asarray(net, jnp.float32), jnp.asarray(earning)
    )
    return Carry(keys[:, 0], lanes, learner, None), jax.device_get(row)


def _host_column(column: Column, index: int, rounds: int) -> Column:
    """Return a column whose makeup says which of the kept policies it is."""
    makeup = np.zeros(rounds + 1)
    makeup[index] = 1.0
    return Column(
        np.asarray(column.value, float),
        float(column.objective),
        makeup,
        np.asarray(column.error, float),
    )


def where_seeds(chosen: Bool[Array, " g"], one: Carry, other: Carry) -> Carry:
    """Return `one` for the chosen seeds and `other` for the rest."""
    return jax.tree.map(
        lambda x, y: jnp.where(chosen.reshape(-1, *[1] * (x.ndim - 1)), x, y), one, other
    )


def _pick(tree: Any, index: int) -> Any:
    """Return one entry of everything that has a leading axis."""
    return jax.tree.map(lambda x: x[index], tree)


def _arrays(actor: Any) -> list[Array]:
    """Return the numbers of a policy."""
    return [np.asarray(x) for x in jax.tree.leaves(actor)]


def _refuse_broken(setup: Setup, progress: Progress, row: Row) -> None:
    """A number that is not finite is the world's fault unless the policy was broken before."""
    for k, seed in enumerate(progress.seeds):
        if progress.ended[k]:
            continue
        where = f"seed {seed}, round {len(progress.rows) + 1}"
        if int(row.broken[k]) >= 0:
            step, lane = divmod(int(row.broken[k]), setup.lanes)
            raise ValueError(
                f"{setup.env.name} gave an observation or a reward that is not finite: {where}, "
                f"lane {lane}, step {step} of the segment. Mend its `step`, `observe` or `reset`."
            )
        if row.sound[k] and float(np.max(row.uncovered[k], initial=0.0)) > 0:
            part = int(np.argmax(row.uncovered[k]))
            raise ValueError(
                f"constraint {part} of {setup.env.name}: {float(row.uncovered[k][part]):.2%} of "
                f"the visits ({where}) lie outside its basis, where nothing would be bounded. "
                "Widen the basis."
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
    ended: int  # the round it diverged in, or 0
    parameters: int
    steps: int  # of the world
    seconds: float  # without compiling, of all seeds together
    compile_seconds: float

    @property
    def message(self) -> str:
        """Say how it ended."""
        if not self.ended:
            return f"All {len(self.rows)} rounds were done."
        good = (self.ended - 1) // CHUNK * CHUNK
        return (
            f"Seed {self.seed} diverged in round {self.ended}: its policy is not finite any more. "
            f"The answer is the last good one, of round {good}; try a smaller learning rate."
        )

    def multiplier(
        self, feature: Float[JaxArray, "q k"], constraint: int = 0
    ) -> Float[JaxArray, " q"]:
        """Return `sigma_lower - sigma_upper` of a constraint at points of its feature."""
        part = self.setup.gauge.parts[constraint]
        mine = jnp.split(jnp.asarray(self.net), self.setup.gauge.splits)[constraint]
        return jax.vmap(part.basis.evaluate, (None, 0))(mine, feature)


def train(
    env: Env,
    *,
    learner: DeepLearner | None = None,
    dual: Dual[Any] | None = None,
    seeds: Sequence[int] = (0,),
    rounds: int = 300,
    lanes: int = 1024,
    steps: int | None = None,
    margin: float = 1.0,
    average: int = 1,
    together: int = 1,
    threads: int | None = None,
    on_chunk: Callable[[Sequence[Progress], float], None] | None = None,
    resume: Callable[[Programs], Sequence[Progress] | None] | None = None,
) -> list[Trained]:
    """Find policies that keep the bounds of a native world and earn as much as possible.

    Args:
        env: the world, with its constraints.
        learner: improves the policy; PPO by default.
        dual: moves the multipliers; proportional-integral control of the last policy by default.
        seeds: one training each.
        rounds: turns of Algorithm 1.
        lanes: episodes side by side.
        steps: of one segment; the whole episode by default.
        margin: standard errors of the density estimate that the bounds are tightened by.
        average: how many policies, from the ends of the last chunks, the answer mixes evenly; a
            rule with an answer of its own (master, averages) decides by itself.
        together: seeds that run side by side in one program. Learners of small batches gain by it.
        threads: programs that run at the same time; as many as there are cores by default.
        on_chunk: called after every chunk of rounds with the progress of all seeds, and the
            seconds so far, compiling apart.
        resume: gives the progress of an earlier call that was cut short, or None.
    """
    steps = env.horizon if steps is None else steps
    refuse_segments(env, lanes, steps)
    if rounds < 1 or together < 1 or average < 1 or not seeds:
        raise ValueError(
            "rounds, together and average must be at least 1, and there must be a seed; got "
            f"{rounds}, {together}, {average} and seeds {tuple(seeds)}."
        )
    learner = PPO() if learner is None else learner
    dual = Pi(averaging=False) if dual is None else dual
    gauge = bind_features(env.constraints, env)
    setup = Setup(env, gauge, learner, dual, lanes, steps, rounds, margin, average)
    programs, clock = Programs(setup), CompileClock()
    everyone = resume(programs) if resume else None
    if everyone is None:
        groups = [seeds[k : k + together] for k in range(0, len(seeds), together)]
        everyone = [begin(programs, group) for group in groups]
    workers = min(threads or os.cpu_count() or 1, len(everyone))
    compiled: set[tuple[int, int]] = set()
    with ThreadPoolExecutor(workers) as pool:
        while going := [p for p in everyone if p.going and len(p.rows) < rounds]:
            count = min(CHUNK, rounds - len(going[0].rows))
            for progress in list(going):  # what is new is compiled once, by one of them
                if (shape := (len(progress.seeds), count)) not in compiled:
                    compiled.add(shape)
                    advance(programs, progress, count)
                    going.remove(progress)
            list(pool.map(lambda p, n=count: advance(programs, p, n), going))
            if on_chunk is not None:
                on_chunk(everyone, clock.running())
    return [
        conclude(setup, progress, k, clock)
        for progress in everyone
        for k in range(len(progress.seeds))
    ]


def conclude(setup: Setup, progress: Progress, index: int, clock: CompileClock) -> Trained:
    """Return the mixture that the training of one seed ends with."""
    if setup.dual.compiles:
        weights = np.full(len(progress.kept), 1 / len(progress.kept))
        arrays = progress.kept
    else:
        makeup = progress.duals[index].answer.makeup
        chosen = np.flatnonzero(makeup > 0)
        weights = makeup[chosen] / makeup[chosen].sum()
        arrays = [progress.kept[k] for k in chosen]
    actor = setup.learner.actor(_pick(progress.carry.learner, index))
    structure = jax.tree.structure(actor)
    rows = progress.rows[: progress.ended[index] or None]
    return Trained(
        progress.seeds[index],
        setup,
        tuple(
            jax.tree.unflatten(structure, [jnp.asarray(x[index]) for x in each]) for each in arrays
        ),
        weights,
        np.asarray(rows[-1].net[index], float),
        tuple(_pick(row, index) for row in rows),
        progress.ended[index],
        count_parameters(actor),
        len(rows) * setup.lanes * setup.steps,
        clock.running(),
        clock.compiling(),
    )
