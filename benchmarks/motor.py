"""Steps per second of training on the motor, against the loop that a Gymnasium user writes.

Ours is a chunk of rounds as `train` runs it: PPO with the settings that `dcrl train motor` has,
ten substeps of the integrator, and PI control of the bound. Every step driven counts once, and the
time is that of everything: driving, the density, the multipliers, learning. One seed has the
machine to itself; two share it, each in a thread of its own. The bound is measured once with hats,
once with kernels at the same points; a kernel is as wide as the points are apart.

The plain loop does the same round in the usual way. One object with `reset` and `step` holds the
motor in Python floats: the same integrator and substeps, temperature, reference and reward, checked
here step by step. Each step calls a compiled policy on one observation. When as many steps are
collected as a round of ours has, one compiled update follows on a batch of the same shape: the
density, the multipliers, and the epochs of the same PPO. It would take minutes to collect them all,
so a few thousand steps are timed, scaled to the round, and the time of an update is added:

    steps per second = steps of a round / (steps of a round / rate of collecting + update)

The loop is spared what would make it slow for no good reason: no wrappers around the object, no
copies of what is collected, networks and keys handed over as bare arrays.

    python benchmarks/motor.py

Memory is the most that the process has held until then, so it only grows from row to row.
"""

import concurrent.futures
import functools
import math
import resource
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dcrl import training
from dcrl.compile_time import CompileClock
from dcrl.density import Kernels
from dcrl.drive import Experience
from dcrl.dual.column import Column
from dcrl.envs.motor import GRID, Motor
from dcrl.gauge import bind_features
from dcrl.presets import build_native, native_settings
from measure import interleaved, keep, keep_table, median

PYTHON_STEPS = 2000
CHECKED_STEPS = 200
ALLOWED = 1e-12  # between the two motors in double precision


class PlainMotor:
    """One motor in Python floats, the way a Gymnasium environment is usually written."""

    def __init__(self, reference: str, substeps: int):
        self.walks, self.substeps = reference == "random", substeps

    def reset(self, seed: int) -> tuple[np.ndarray, dict]:
        self.random = np.random.default_rng(seed)
        self.omega = self.current = self.voltage = self.temperature = self.reference = 0.0
        self.time = 0
        if self.walks:
            self.reference = self.random.uniform(0.0, 0.56)
            self.spread = math.exp(self.random.uniform(math.log(5e-3), math.log(1e-2)))
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        current = self.current / 100.0
        return np.array(
            [
                self.omega / 100.0,
                current * current,
                current,
                self.temperature,
                self.voltage,
                self.reference,
            ],
            np.float32,
        )

    def step(self, duty: float) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.integrate(420.0 * duty)
        self.voltage = duty
        self.temperature = 0.9 * self.temperature + 0.1 * (self.current / 100.0) ** 2
        reward = -abs(self.omega / 100.0 - self.reference)
        self.time += 1
        if self.walks:
            moved = self.reference + self.spread * self.random.standard_normal()
            self.reference = 0.56 - abs(0.56 - abs(moved))
        else:
            turns = self.time * 1e-4 / 0.4
            self.reference = 0.56 * (turns - math.floor(turns))
        return self.observe(), reward, False, self.time >= 8000, {}

    def integrate(self, voltage: float) -> None:
        omega, current, width = self.omega, self.current, 1e-4 / self.substeps
        half, sixth = width / 2, width / 6
        for _ in range(self.substeps):
            a, b = plain_slope(omega, current, voltage)
            c, d = plain_slope(omega + half * a, current + half * b, voltage)
            e, f = plain_slope(omega + half * c, current + half * d, voltage)
            g, h = plain_slope(omega + width * e, current + width * f, voltage)
            omega += sixth * (a + 2 * c + 2 * e + g)
            current += sixth * (b + 2 * d + 2 * f + h)
        self.omega, self.current = omega, current


def plain_slope(omega: float, current: float, voltage: float) -> tuple[float, float]:
    return (
        (9.2e-3 * current * current - 0.01 * omega * abs(omega)) / 2e-3,
        (voltage - 7.0 * current - 9.2e-3 * omega * current) / 18.9e-3,
    )


def difference(*, double: bool) -> float:
    """Return the largest difference of the two motors, driven by the same actions."""
    env = Motor(reference="sawtooth")
    duties = np.random.default_rng(0).random(CHECKED_STEPS)
    plain, want = PlainMotor(env.reference, env.substeps), []
    plain.reset(0)
    for duty in duties:
        reward = plain.step(float(duty))[1]
        state = (plain.omega, plain.current, plain.temperature, plain.reference)
        want.append((*state, reward))

    def step(state: Any, duty: jax.Array) -> tuple[Any, jax.Array]:
        state, reward, _ = env.step(jax.random.key(0), state, duty[None])
        told = (state.omega, state.current, state.temperature, state.reference, reward)
        return state, jnp.stack(told)

    with jax.enable_x64(double):
        told = jax.jit(lambda each: jax.lax.scan(step, env.reset(jax.random.key(0)), each)[1])(
            jnp.asarray(duties)
        )
    unit = np.array([100.0, 100.0, 1.0, 1.0, 1.0])  # as they are observed
    return float(np.abs((np.asarray(told, float) - np.array(want)) / unit).max())


def setup_of(env: Motor) -> training.Setup:
    """Return the default training of the motor."""
    chosen = build_native(native_settings("motor"))
    gauge = bind_features(env.constraints, env)
    parts = ("learner", "dual", "lanes", "steps", "rounds", "margin", "average")
    return training.Setup(env, gauge, *(chosen[name] for name in parts))


def ours(env: Motor, rounds: int) -> tuple[dict[str, Callable[[], None]], list, dict[str, Any]]:
    """Compile, and return how to run a chunk with one seed and with two."""
    clock = CompileClock()
    programs = training.Programs(setup_of(env))
    progress = [training.begin(programs, [seed]) for seed in (0, 1)]

    def one() -> None:
        training.advance(programs, progress[0], rounds)

    def two() -> None:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda each: training.advance(programs, each, rounds), progress))

    one()
    one()  # what the first chunk returns may have other types than what it was given
    two()
    told = {"compile_seconds": clock.compiling(), "memory_mark_megabytes": memory_mark()}
    return {"one": one, "two": two}, progress, told


def memory_mark() -> float:
    """Return the most memory that the process has held so far, in MB."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held / (1e6 if sys.platform == "darwin" else 1e3)


def python(setup: training.Setup, carry: training.Carry) -> dict[str, Callable[[], None]]:
    """Compile, and return how to collect with the plain motor, and how to learn from a round."""
    env, learner = setup.env, setup.learner
    plain = PlainMotor(env.reference, env.substeps)
    bare, structure = jax.tree.flatten(learner.actor(carry.learner))

    @jax.jit
    def choose(bare: list, key: jax.Array, observation: np.ndarray) -> tuple[jax.Array, ...]:
        key, key_act = jax.random.split(key)
        actor = jax.tree.unflatten(structure, bare)
        action = learner.act(actor, key_act, observation[None])[0]
        return key, action, env.actions.to_world(action)

    def collect() -> None:
        key, kept = jax.random.PRNGKey(0), []
        observation, _ = plain.reset(0)
        for _ in range(PYTHON_STEPS):
            key, action, duty = choose(bare, key, observation)
            following, reward, _, truncated, _ = plain.step(duty.item())
            kept.append((observation, action, reward))
            observation = plain.reset(0)[0] if truncated else following

    def world() -> None:
        plain.reset(0)
        for _ in range(PYTHON_STEPS):
            plain.step(0.5)

    @jax.jit
    def improve(key: jax.Array, learner_state: Any, dual: Any, seen: Experience) -> Any:
        weights = seen.weights(env)
        observation = seen.observation.reshape(-1, seen.observation.shape[-1])
        value = setup.gauge.measure(observation, weights.reshape(-1))
        column = Column(value, jnp.sum(weights * seen.reward), jnp.zeros(0), 0.0 * value)
        dual = setup.dual.update(dual, setup.gauge.bounds, column, jnp.inf)
        bonus = functools.partial(setup.gauge.bonus, dual.multipliers.net)
        return learner.improve(key, learner_state, env, seen, bonus), dual

    look = jax.jit(functools.partial(training.look, setup))
    seen = jax.device_get(look(carry.key, carry.lanes, carry.learner)[1].seen)

    def update() -> None:
        jax.block_until_ready(improve(carry.key, carry.learner, carry.dual, seen))

    collect()
    update()
    return {"collect": collect, "world": world, "update": update}


def main(rounds: int = training.CHUNK, repeats: int = 5) -> None:
    apart = {"single": difference(double=False), "double": difference(double=True)}
    print(
        f"largest difference of the two motors over {CHECKED_STEPS} steps: {apart['single']:.1e} "
        f"in single precision, {apart['double']:.1e} in double",
        flush=True,
    )
    if apart["double"] > ALLOWED:
        raise ValueError(f"the two motors differ by {apart['double']:.1e}: the ratio means nothing")
    kernels = Kernels(
        tuple(map(tuple, GRID.nodes.tolist())), float(GRID.spacing[0]), low=(0.0,), high=(1.0,)
    )
    setup, sides, told = setup_of(Motor()), {}, {}
    for name, basis in (("hats", GRID), ("kernels", kernels)):
        run, progress, told[name] = ours(Motor(basis=basis), rounds)
        sides |= {f"{name}_{seeds}": side for seeds, side in run.items()}
        if name == "hats":
            carry = jax.tree.map(lambda x: x[0], progress[0].carry)
    clock = CompileClock()
    sides |= python(setup, carry)
    told["python"] = {"compile_seconds": clock.compiling(), "memory_mark_megabytes": memory_mark()}

    seconds = interleaved(sides, repeats)
    each = {name: median(values) for name, values in seconds.items()}
    steps = setup.lanes * setup.steps
    collected = steps * each["collect"] / PYTHON_STEPS
    rate = steps / (collected + each["update"])
    row = {
        "side": "python",
        "steps_per_second": rate,
        "steps_per_second_collecting": PYTHON_STEPS / each["collect"],
        "steps_per_second_world_alone": PYTHON_STEPS / each["world"],
        "seconds_update": each["update"],
        **told["python"],
    }
    rows = [
        {"what": "difference", "steps": CHECKED_STEPS, **apart},
        {"what": "speed", "steps_of_a_round": steps, "rounds_timed": rounds, **row},
    ]
    print(
        f"plain loop: {rate:8.0f} steps/s (collecting {row['steps_per_second_collecting']:.0f}, "
        f"the motor alone {row['steps_per_second_world_alone']:.0f}, an update "
        f"{each['update']:.2f} s); compiled in {told['python']['compile_seconds']:.1f} s",
        flush=True,
    )
    for name in ("hats", "kernels"):
        one, two = (
            count * rounds * steps / each[f"{name}_{seeds}"]
            for seeds, count in (("one", 1), ("two", 2))
        )
        row = {
            "side": name,
            "steps_per_second_one_seed": one,
            "steps_per_second_two_seeds": two,
            "times_python_one_seed": one / rate,
            "times_python_two_seeds": two / rate,
            **told[name],
        }
        rows.append({"what": "speed", "steps_of_a_round": steps, "rounds_timed": rounds, **row})
        print(
            f"{name:>10}: {one:8.0f} steps/s with one seed (x {one / rate:.0f}), {two:8.0f} with "
            f"two (x {two / rate:.0f}); compiled in {row['compile_seconds']:.1f} s, memory "
            f"{row['memory_mark_megabytes']:.0f} MB",
            flush=True,
        )
    rows.append({"what": "seconds", **seconds})
    keep("motor_speed", rows)
    table(rows)


def table(rows: list[dict[str, Any]]) -> None:
    """Keep what the documents show."""
    sides = {row["side"]: row for row in rows if row["what"] == "speed"}
    lines = [["plain loop", f"{sides['python']['steps_per_second']:,.0f}", "1", "", "", ""]]
    for name in ("hats", "kernels"):
        row = sides[name]
        lines.append(
            [
                f"dcrl, density by {name}",
                f"{row['steps_per_second_one_seed']:,.0f}",
                f"{row['times_python_one_seed']:.0f}",
                f"{row['steps_per_second_two_seeds']:,.0f}",
                f"{row['times_python_two_seeds']:.0f}",
                f"{row['compile_seconds']:.1f}",
            ]
        )
    head = ["", "steps/s, one seed", "times", "two seeds", "times", "seconds to compile"]
    keep_table("motor_speed", head, lines)


if __name__ == "__main__":
    main()
