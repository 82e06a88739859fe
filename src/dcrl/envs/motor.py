"""A direct-current series motor that follows a reference speed and should rarely run hot.

| constant | value | source |
| --- | --- | --- |
| resistances `r_a`, `r_e` | 2.5, 4.5 ohm | published code |
| inductances `l_a`, `l_e`, `l_e'` | 9.7e-3, 9.2e-3, 9.2e-3 H | published code |
| inertia of rotor and load | 1e-3 + 1e-3 kg m^2 | published code |
| torque of the load | 0.01 omega^2 | published code |
| supply | 420 V, times the duty cycle in [0, 1] | published code |
| control step | 1e-4 s | published code |
| limits that normalise | 100 rad/s, 100 A, 420 V | published code |
| temperature | `T <- 0.9 T + 0.1 (i / 100 A)^2`, from 0 | published code; there it is not reset |
| reference, `sawtooth` | `0.56 frac(2.5 t)` | published code |
| reference, `random` | reflected random walk in [0, 0.56], spread per step drawn | paper's text; |
| | log-uniformly from 0.005 to 0.01 per episode, uniform start | spread from the published code |
| episode | 8,000 steps | published code |
| reward | `-abs(omega - reference)`, of the speed after the step | paper |
| density bound | published curve over temperature, none below 0.15 | published code |
| discount | 1: every step of an episode counts the same | our choice |
| integrator | Runge-Kutta of order 4, ten substeps | our choice |

What is bounded is the expected number of steps, of the 8,000 of an episode, that are spent at each
temperature. The published thresholds belong to a density whose total is `sum_{j<100} 0.95^j`;
ours are the same curve for a total of 8,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray
from numpy import ndarray as Array

from dcrl.constraints import Constraint, Density
from dcrl.density.bases import Basis
from dcrl.density.hat import Hat
from dcrl.envs.native import Outcome
from dcrl.policies import Box
from dcrl.presets import choose

OMEGA, CURRENT, VOLTAGE = 100.0, 100.0, 420.0  # limits: what is observed is divided by them
HIGHEST = 0.56  # reference, in units of the limit
PERIOD = 0.4  # s, of the sawtooth
SPREAD = (5e-3, 1e-2)  # of the random walk, per step
TEMPERATURE = 3  # its place in an observation
KNOTS = ((0.15, 120.0), (0.2, 80.0), (0.25, 10.0), (0.3, 10.0), (1.0, 10.0))
PUBLISHED_MASS = (1 - 0.95**100) / (1 - 0.95)  # total density that the knots belong to
REFERENCES = ("random", "sawtooth")
GRID = Hat((0.0,), (1.0,), (21,))  # its spacing is that of the knots


class MotorState(NamedTuple):
    """Speed and current in SI units, the rest normalised."""

    omega: JaxArray  # rad/s
    current: JaxArray  # A
    voltage: JaxArray  # of the last step, in units of the supply
    temperature: JaxArray
    reference: JaxArray
    spread: JaxArray  # of the random reference, per step
    time: JaxArray  # steps


def slope(omega: JaxArray, current: JaxArray, voltage: JaxArray) -> tuple[JaxArray, JaxArray]:
    """Return the time derivatives of speed and current for a voltage in V.

    (l_a + l_e) di/dt = u - (r_a + r_e) i - l_e' omega i
    j domega/dt = l_e' i^2 - c omega |omega|
    """
    resistance, inductance, mutual = 2.5 + 4.5, 9.7e-3 + 9.2e-3, 9.2e-3
    inertia, load = 1e-3 + 1e-3, 0.01
    of_omega = (mutual * current**2 - load * omega * jnp.abs(omega)) / inertia
    of_current = (voltage - resistance * current - mutual * omega * current) / inductance
    return of_omega, of_current


def bound(temperature: Float[Array, "q 1"]) -> Float[Array, " q"]:
    """Return the published curve, as steps of an episode per unit of temperature."""
    at, density = np.array(KNOTS).T
    curve = np.interp(temperature[:, 0], at, density) * Motor.horizon / PUBLISHED_MASS
    return np.where(temperature[:, 0] < at[0], np.inf, curve)


def temperature_of(observation: Float[JaxArray, " 6"]) -> Float[JaxArray, " 1"]:
    """Return the feature that is bounded."""
    return observation[TEMPERATURE : TEMPERATURE + 1]


@dataclass(frozen=True)
class Motor:
    """The motor.

    Args:
        reference: `random` or `sawtooth`.
        basis: functions of temperature that the bound is measured with.
        substeps: of the integrator, per control step.
    """

    reference: str = "random"
    basis: Basis = GRID
    substeps: int = 10

    name = "motor"
    observation_names = ("speed", "torque", "current", "temperature", "voltage", "reference")
    actions = Box((0.0,), (1.0,))
    discount = 1.0
    horizon = 8000
    terminates = False
    step_seconds = 1e-4

    def __post_init__(self):
        choose("reference", self.reference, REFERENCES)
        if self.substeps < 1:
            raise ValueError(f"substeps must be at least 1; got {self.substeps}.")

    @property
    def constraints(self) -> Sequence[Constraint]:
        """Bound the density of temperatures."""
        return (Density(of=temperature_of, basis=self.basis, upper=bound, name="temperature"),)

    def reset(self, key: PRNGKeyArray) -> MotorState:
        """Start at rest, with a reference anywhere (random) or at zero (sawtooth)."""
        key_start, key_spread = jax.random.split(key)
        zero = jnp.zeros(())
        start = jax.random.uniform(key_start, maxval=HIGHEST)
        low, high = np.log(SPREAD)
        spread = jnp.exp(jax.random.uniform(key_spread, minval=low, maxval=high))
        walks = self.reference == "random"
        return MotorState(
            zero, zero, zero, zero, start if walks else zero, spread, jnp.zeros((), jnp.int32)
        )

    def observe(self, state: MotorState) -> Float[JaxArray, " 6"]:
        """Return speed, torque, current, temperature, voltage and reference, normalised."""
        current = state.current / CURRENT
        return jnp.stack(
            [
                state.omega / OMEGA,
                current**2,
                current,
                state.temperature,
                state.voltage,
                state.reference,
            ]
        )

    def step(self, key: PRNGKeyArray, state: MotorState, action: Float[JaxArray, " 1"]) -> Outcome:
        """Apply a duty cycle for one control step."""
        duty = action[0]
        omega, current = self._integrate(state.omega, state.current, VOLTAGE * duty)
        temperature = 0.9 * state.temperature + 0.1 * (current / CURRENT) ** 2
        time = state.time + 1
        following = MotorState(
            omega, current, duty, temperature, self._next(key, state, time), state.spread, time
        )
        return Outcome(following, -jnp.abs(omega / OMEGA - state.reference), jnp.zeros((), bool))

    def _next(self, key: PRNGKeyArray, state: MotorState, time: JaxArray) -> JaxArray:
        """Return the reference of the next step."""
        if self.reference == "sawtooth":
            turns = time * (self.step_seconds / PERIOD)
            return HIGHEST * (turns - jnp.floor(turns))
        moved = state.reference + state.spread * jax.random.normal(key)
        return HIGHEST - jnp.abs(HIGHEST - jnp.abs(moved))  # reflected at both ends

    def _integrate(
        self, omega: JaxArray, current: JaxArray, voltage: JaxArray
    ) -> tuple[JaxArray, JaxArray]:
        """Integrate over one control step (classical Runge-Kutta)."""
        width = self.step_seconds / self.substeps
        for _ in range(self.substeps):
            a, b = slope(omega, current, voltage)
            c, d = slope(omega + width / 2 * a, current + width / 2 * b, voltage)
            e, f = slope(omega + width / 2 * c, current + width / 2 * d, voltage)
            g, h = slope(omega + width * e, current + width * f, voltage)
            omega = omega + width / 6 * (a + 2 * c + 2 * e + g)
            current = current + width / 6 * (b + 2 * d + 2 * f + h)
        return omega, current
