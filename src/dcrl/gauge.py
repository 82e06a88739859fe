"""What the constraints of a native world measure, and what multipliers charge for it.

The native counterpart of `constraints.bind`: a list of constraints becomes one vector of bounded
quantities, each an expected discounted sum over an episode of a function of the observation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array as JaxArray
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from dcrl.constraints import Bound, Bounds, Constraint, Cost, Density
from dcrl.density.bases import Basis, BoundFunction
from dcrl.envs.native import Env


class Part(NamedTuple):
    """One constraint: a feature, and the functions on it."""

    of: Callable[[JaxArray], JaxArray]
    basis: Basis


@dataclass(frozen=True)
class Total:
    """The basis of an expected cost (Remark 3): one function, the feature itself."""

    nodes = np.zeros((1, 1))
    volume = np.ones(1)
    peak = np.full(1, np.inf)  # nothing is known of a cost

    def evaluate(
        self, coefficients: Float[JaxArray, " m"], x: Float[JaxArray, " k"]
    ) -> Float[JaxArray, ""]:
        """Return the cost times its price."""
        return coefficients[0] * x[0]

    def project(
        self, x: Float[JaxArray, "n k"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Return the weighted sum."""
        return (weights @ x[:, 0])[None]

    def integrate(self, bound: BoundFunction) -> Float[Array, " m"]:
        """A cost has a limit, not a bound per point."""
        del bound
        raise ValueError("the limit of a cost must be a number.")

    def covers(self, x: Float[JaxArray, " k"]) -> Bool[JaxArray, ""]:
        """Say yes."""
        del x
        return jnp.ones((), bool)


@dataclass(frozen=True, eq=False)
class Gauge:
    """All constraints of a native world as one vector."""

    parts: tuple[Part, ...]
    bounds: Bounds

    @cached_property
    def splits(self) -> tuple[int, ...]:
        """Return where one part of the vector ends and the next begins."""
        return tuple(np.cumsum([len(part.basis.volume) for part in self.parts])[:-1].tolist())

    def measure(
        self, observation: Float[JaxArray, "n o"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " m"]:
        """Return the bounded quantities of weighted visits."""
        values = [
            part.basis.project(jax.vmap(part.of)(observation), weights) for part in self.parts
        ]
        return jnp.concatenate(values) if values else jnp.zeros(0)

    def bonus(
        self, net: Float[JaxArray, " m"], observation: Float[JaxArray, " o"]
    ) -> Float[JaxArray, ""]:
        """What Algorithm 1 (line 4) adds to the reward: `sigma_lower(s) - sigma_upper(s)`."""
        total = jnp.zeros((), observation.dtype)
        for part, mine in zip(self.parts, jnp.split(net, self.splits), strict=False):
            total = total + part.basis.evaluate(mine, part.of(observation))
        return total

    def uncovered(
        self, observation: Float[JaxArray, "n o"], weights: Float[JaxArray, " n"]
    ) -> Float[JaxArray, " p"]:
        """Return per constraint the weight of visits that its basis says nothing about."""
        outside = [
            weights @ ~jax.vmap(lambda o, part=part: part.basis.covers(part.of(o)))(observation)
            for part in self.parts
        ]
        return jnp.stack(outside) if outside else jnp.zeros(0)


def bind_features(constraints: Sequence[Constraint], env: Env) -> Gauge:
    """Return every constraint of a native world as one vector, after checking it."""
    parts, pieces = [], []
    for constraint in constraints:
        part, bounds = (
            _bind_density(constraint, env)
            if isinstance(constraint, Density)
            else _bind_cost(constraint, env)
        )
        parts.append(part)
        pieces.append(bounds)
    empty = np.zeros(0)
    lower, upper, volume = (
        np.concatenate([empty, *(getattr(piece, name) for piece in pieces)])
        for name in ("lower", "upper", "volume")
    )
    names = tuple(name for piece in pieces for name in piece.names)
    return Gauge(tuple(parts), _without_table(lower, upper, names, volume))


def _without_table(lower: Array, upper: Array, names: tuple[str, ...], volume: Array) -> Bounds:
    return Bounds(scipy.sparse.csr_array((len(lower), 0)), lower, upper, names, volume)


def _bind_density(constraint: Density, env: Env) -> tuple[Part, Bounds]:
    what = f"`{constraint.name}`"
    basis = constraint.basis
    if basis is None:
        raise ValueError(
            f"{what}: {env.name} has continuous states, so its density is measured with a basis "
            "on a feature: give one, for example `basis=Hat(low, high, counts)`."
        )
    if constraint.states is not None:
        raise ValueError(f"{what}: `states` belongs to tables; bound regions with `Regions`.")
    if not (constraint.of is None or callable(constraint.of)):
        raise ValueError(f"{what}: `of` must be a function from an observation to the feature.")
    of = cast(Callable[[JaxArray], JaxArray], constraint.of or _itself)
    size = basis.nodes.shape[1]
    shape = _shape(of, env, what)
    if shape != (size,):
        raise ValueError(
            f"{what}: the basis is of {size} dimension(s), so `of` must give an array of shape "
            f"({size},); for an observation of {env.name} it gives shape {shape}."
        )
    names = tuple(f"{constraint.name} {place}" for place in _places(basis))
    lower, upper = (
        _bound_of(side, basis, f"{what}: {name}")
        for side, name in ((constraint.lower, "lower"), (constraint.upper, "upper"))
    )
    for name, values in (("lower", lower), ("upper", upper)):
        if (values < 0).any():
            at = int(np.argmax(values < 0))
            raise ValueError(
                f"{what}: a density is never negative, but the {name} bound of {names[at]} is "
                f"{values[at]:g}. Use 0 for no lower bound."
            )
    lower = np.where(lower == 0, -np.inf, lower)
    if (lower > upper).any():
        at = int(np.argmax(lower > upper))
        raise ValueError(
            f"{what}: no density keeps both bounds of {names[at]}: lower {lower[at]:g} is above "
            f"upper {upper[at]:g}. Exchange them or relax one."
        )
    return Part(of, basis), _without_table(lower, upper, names, np.asarray(basis.volume))


def _bind_cost(constraint: Cost, env: Env) -> tuple[Part, Bounds]:
    what = f"`{constraint.name}`"
    cost = constraint.cost
    if not callable(cost):
        raise ValueError(
            f"{what}: {env.name} has continuous states, so its cost must be a function of an "
            "observation."
        )
    shape = _shape(cost, env, what)
    if shape != ():
        raise ValueError(f"{what}: a cost must be one number; it has shape {shape}.")
    if np.isnan(constraint.limit):
        raise ValueError(f"{what}: the limit must be a number; it is NaN.")
    bounds = _without_table(
        np.array([-np.inf]), np.array([float(constraint.limit)]), (constraint.name,), np.ones(1)
    )
    return Part(lambda observation: jnp.asarray(cost(observation))[None], Total()), bounds


def _itself(observation: JaxArray) -> JaxArray:
    return observation


def _shape(of: Callable[[Any], Any], env: Env, what: str) -> tuple[int, ...]:
    """Return the shape of a feature, without computing anything."""
    size = len(env.observation_names)
    try:
        return jax.eval_shape(of, jax.ShapeDtypeStruct((size,), jnp.float32)).shape
    except Exception as error:
        raise ValueError(
            f"{what}: the function of an observation failed on an array of shape ({size},), "
            f"{', '.join(env.observation_names)}: {error}"
        ) from error


def _places(basis: Basis) -> list[str]:
    return [f"at {', '.join(f'{x:g}' for x in node)}" for node in basis.nodes]


def _bound_of(bound: Bound, basis: Basis, what: str) -> Float[Array, " m"]:
    """Return what a bound on the density allows each function of the basis to measure."""
    volume = np.asarray(basis.volume)
    if callable(bound):
        return basis.integrate(bound)
    values = np.asarray(bound, float)
    if values.shape not in ((), volume.shape):
        raise ValueError(
            f"{what} must be one number, a function, or {len(volume)} numbers, one per function "
            f"of the basis; it has shape {values.shape}."
        )
    if np.isnan(values).any():
        raise ValueError(f"{what} must be numbers; NaN is none.")
    with np.errstate(invalid="ignore"):
        return np.broadcast_to(values * volume, volume.shape).copy()
