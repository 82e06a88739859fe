"""The referee of the motor: the best controller found by a search that uses nothing of the library.

A controller is a weighted sum of a few hand-picked terms of the observation, cut off at the limits
of the duty cycle: speed error, feed-forward, and brakes that set in when it runs hot. The
cross-entropy method searches the weights on a fixed set of episodes, for reward less a penalty on
the bound, tightened by a margin so that the outcome keeps it. The verdict is given on fresh ones.

    python benchmarks/motor_referee.py random
    python benchmarks/motor_referee.py sawtooth
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from dcrl.envs.motor import Motor
from dcrl.gauge import bind_features
from measure import keep, register

POPULATION, ELITES, GENERATIONS = 64, 12, 200
EPISODES = {"random": 192, "sawtooth": 1}  # the second is the same in every episode
FRESH, BATCH = 4096, 256
PENALTY = 3000.0  # of a violation of 100 %
MARGIN = {"random": 0.04, "sawtooth": 0.001}
TERMS = (
    "1", "reference", "error", "error above 0", "speed", "current", "voltage", "temperature",
    "above .15", "above .2", "above .225", "above .25", "reference above .45", "error when hot",
)  # fmt: skip
START = np.array([-1.0, 2.0, 20.0, 0.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, -20.0, 0.0, 0.0])
SPREAD = np.array([0.3, 1.0, 8.0, 5.0, 1.0, 1.0, 0.5, 1.0, 3.0, 5.0, 8.0, 10.0, 3.0, 10.0])


def terms(observation):
    speed, _, current, temperature, voltage, reference = observation
    error = reference - speed
    hot = [jnp.maximum(temperature - knot, 0.0) for knot in (0.15, 0.2, 0.225, 0.25)]
    return jnp.stack(
        [
            1.0 + 0.0 * speed, reference, error, jnp.maximum(error, 0.0), speed, current, voltage,
            temperature, *hot, jnp.maximum(reference - 0.45, 0.0), error * (temperature > 0.2),
        ]
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("env", "episodes"))
def judge(env, weights, key, episodes: int):
    """Drive a controller; all controllers of a generation meet the same references."""
    basis = env.basis

    def one(key):
        key_reset, key_drive = jax.random.split(key)

        def step(carry, key):
            state, total, hot = carry
            seen = env.observe(state)
            action = jnp.clip(weights @ terms(seen), -1.0, 1.0)[None]
            outcome = env.step(key, state, env.actions.to_world(action))
            hot = hot + basis.project(seen[3:4][None], jnp.ones(1))
            return (outcome.state, total + outcome.reward, hot), None

        begun = (env.reset(key_reset), jnp.zeros(()), jnp.zeros(len(basis.volume)))
        keys = jax.random.split(key_drive, env.horizon)
        return jax.lax.scan(step, begun, keys)[0][1:]

    return jax.vmap(one)(jax.random.split(key, episodes))


def main(reference: str) -> None:
    env = Motor(reference)
    bounds = bind_features(env.constraints, env).bounds
    finite = np.isfinite(bounds.upper)
    random = np.random.default_rng(0)
    mean, spread = START.copy(), SPREAD.copy()
    many = jax.jit(
        jax.vmap(functools.partial(judge, env, episodes=EPISODES[reference]), in_axes=(0, None))
    )
    begun = time.perf_counter()
    for generation in range(GENERATIONS):
        drawn = mean + spread * random.normal(size=(POPULATION, len(mean)))
        drawn[0] = mean
        reward, hot = many(jnp.asarray(drawn, jnp.float32), jax.random.key(0))
        value = np.asarray(hot, float).mean(1)[:, finite]
        excess = np.maximum(value / bounds.upper[finite] - (1 - MARGIN[reference]), 0.0).sum(1)
        score = np.asarray(reward, float).mean(1) - PENALTY * excess
        elite = drawn[np.argsort(-score)[:ELITES]]
        mean = 0.3 * mean + 0.7 * elite.mean(0)
        spread = 0.3 * spread + 0.7 * elite.std(0) + 0.002 * SPREAD
        if generation % 10 == 9:
            print(generation + 1, round(score.max(), 1), round(score[0], 1), flush=True)
    rows = []
    for batch in range(FRESH // BATCH):
        rows.append(judge(env, jnp.asarray(mean, jnp.float32), jax.random.key(1 + batch), BATCH))
    reward = np.concatenate([np.asarray(r, float) for r, _ in rows])
    hot = np.concatenate([np.asarray(h, float) for _, h in rows])
    value, error = hot.mean(0), hot.std(0) / len(hot) ** 0.5
    slack = 1 - value[finite] / bounds.upper[finite]
    low = 1 - (value + 3 * error)[finite] / bounds.upper[finite]
    keep(
        f"motor_referee_{reference}",
        [
            {
                "reference": reference,
                "objective": float(reward.mean()),
                "objective_error": float(reward.std() / len(reward) ** 0.5),
                "worst_slack": float(slack.min()),
                "worst_slack_less_three_errors": float(low.min()),
                "episodes": len(reward),
                "weights": dict(zip(TERMS, mean.tolist(), strict=True)),
                "seconds": time.perf_counter() - begun,
            }
        ],
    )
    register(
        f"motor reference={reference}",
        {
            "objective": float(reward.mean()),
            "how": "The best controller that a cross-entropy search found among weighted sums of "
            "hand-picked terms of the observation, with the bound kept.",
            "by": "benchmarks/motor_referee.py",
            "worst_slack": float(slack.min()),
        },
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "random")
