"""The exact density where the model is known: no rollout, no noise."""

from dataclasses import dataclass

import numpy as np
from jax import Array as JaxArray
from jaxtyping import Float
from numpy import ndarray as Array

from dcrl.rollout import Experience, Simulator
from dcrl.tabular.mix import pair_density
from dcrl.tabular.model import Model


@dataclass(frozen=True)
class Exact:
    """Solve the flow equations, `rho = (I - gamma P_pi^T)^-1 phi`.

    Args:
        model: the known model of the world.
    """

    model: Model

    def __call__(self, key: JaxArray, world: Simulator, policy: Float[Array, "s a"]) -> Experience:
        """Return the density of the policy; nothing is driven, so nothing is seen."""
        del key
        return Experience(
            pair_density(self.model, policy), np.zeros(world.successor.shape, np.int64), 0.0, 0
        )
