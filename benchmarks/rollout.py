"""Van-steps per second of the compiled rollout, against the same loop in plain Python.

The policy chooses uniformly among the roads but never enters the ship centre, so every van drives
to the end and every step counts. Two threads share two cores: compiled code holds no lock.
"""

import concurrent.futures

import jax
import numpy as np

from dcrl.compile_time import CompileClock
from dcrl.envs.express import express
from dcrl.rollout import rollout, simulator
from measure import interleaved, keep, median

PYTHON_STEPS = 200_000


def endless_policy(world) -> np.ndarray:
    """Uniform over the roads that do not lead to the ship centre."""
    arrives = world.model.transition[:, [0]].toarray().reshape(world.model.reward.shape) > 0
    weight = world.model.available & ~arrives
    weight[0] = world.model.available[0]
    return weight / weight.sum(1, keepdims=True)


def plain_python(model, policy, steps: int) -> np.ndarray:
    """One van at a time, the way a simulator loop is usually written."""
    random = np.random.default_rng(0)
    cumulative = np.cumsum(policy, axis=1)
    lead_to = np.full(model.transition.shape[0], -1)
    lead_to[np.diff(model.transition.indptr) > 0] = model.transition.indices
    rho = np.zeros(model.num_states)
    state, weight = int(np.argmax(model.initial)), 1.0
    for _ in range(steps):
        rho[state] += weight
        action = int(np.searchsorted(cumulative[state], random.random(), side="right"))
        state = int(lead_to[state * model.num_actions + action])
        weight *= model.discount
    return rho


def main() -> None:
    rows = []
    for points in (20, 100):
        world = express(points, 0.3)
        sampler, policy = simulator(world.model), endless_policy(world)
        for vans in (1024, 16_384):
            clock = CompileClock()
            steps = rollout(jax.random.key(0), sampler, policy, vans=vans, tail=0.1).steps
            compiling = clock.compiling()

            def one(seed: int, *, sampler=sampler, policy=policy, vans=vans) -> None:
                rollout(jax.random.key(seed), sampler, policy, vans=vans, tail=0.1)

            def two(one=one) -> None:
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    list(pool.map(one, (1, 2)))

            def python(world=world, policy=policy) -> None:
                plain_python(world.model, policy, PYTHON_STEPS)

            seconds = interleaved({"one": lambda one=one: one(1), "two": two, "python": python}, 5)
            row = {
                "points": points,
                "vans": vans,
                "compile_seconds": compiling,
                "steps_per_second_one_thread": steps / median(seconds["one"]),
                "steps_per_second_two_threads": 2 * steps / median(seconds["two"]),
                "steps_per_second_plain_python": PYTHON_STEPS / median(seconds["python"]),
            }
            rows.append(row)
            print(
                f"{points:4} points, {vans:6} vans: "
                f"{row['steps_per_second_one_thread'] / 1e6:6.1f} million van-steps/s, two threads "
                f"{row['steps_per_second_two_threads'] / 1e6:6.1f}, plain Python "
                f"{row['steps_per_second_plain_python'] / 1e6:.2f}; compiled in {compiling:.2f} s",
                flush=True,
            )
    keep("rollout", rows)


if __name__ == "__main__":
    main()
