"""How far the motor is from a trusted integrator over one episode.

SciPy's `solve_ivp` follows the same duty cycles step by step at a relative tolerance of 1e-9. The
duty cycles are random, each held for 25 steps, so that speed and current cover their ranges.
Deviations are in units of the limits that normalise observations.

    python benchmarks/motor_accuracy.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from dcrl.envs.motor import CURRENT, OMEGA, VOLTAGE, Motor
from measure import keep, keep_table

HELD = 25  # steps
SUBSTEPS = (1, 2, 4, 10)


def duties() -> np.ndarray:
    random = np.random.default_rng(0)
    return np.repeat(random.choice([0.0, 0.2, 0.5, 0.8, 1.0], Motor.horizon // HELD), HELD)


def trusted() -> np.ndarray:
    """Return speed and current after each step, from the equations written anew."""

    def slope(_, y, voltage):
        omega, current = y
        torque = 9.2e-3 * current**2
        return [
            (torque - 0.01 * omega * abs(omega)) / 2e-3,
            (voltage - (2.5 + 4.5) * current - 9.2e-3 * omega * current) / (9.7e-3 + 9.2e-3),
        ]

    y, seen = np.zeros(2), []
    for duty in duties():
        span, force = (0, Motor.step_seconds), (VOLTAGE * duty,)
        y = solve_ivp(slope, span, y, args=force, rtol=1e-9, atol=1e-12).y[:, -1]
        seen.append(y)
    return np.array(seen)


def ours(substeps: int, *, double: bool) -> np.ndarray:
    env = Motor("sawtooth", substeps=substeps)

    def step(state, duty):
        state = env.step(jax.random.key(0), state, duty[None]).state
        return state, jnp.stack([state.omega, state.current])

    with jax.enable_x64(double):
        start = env.reset(jax.random.key(0))
        return np.asarray(jax.jit(lambda d: jax.lax.scan(step, start, d)[1])(jnp.asarray(duties())))


def main() -> None:
    want = trusted()
    rows = []
    for substeps in SUBSTEPS:
        row = {"substeps": substeps}
        for precision in ("single", "double"):
            far = np.abs(ours(substeps, double=precision == "double") - want).max(axis=0)
            row |= {f"speed_{precision}": far[0] / OMEGA, f"current_{precision}": far[1] / CURRENT}
        rows.append(row)
        print(row, flush=True)
    keep("motor_accuracy", rows)
    sides = ("speed_single", "current_single", "speed_double", "current_double")
    keep_table(
        "motor_accuracy",
        ["substeps", *(f"{side.replace('_', ', ')} precision" for side in sides)],
        [[str(row["substeps"]), *(f"{row[side]:.1e}" for side in sides)] for row in rows],
    )


if __name__ == "__main__":
    main()
