"""What a native world says of itself: frozen parameters and pure functions on one state.

Everything that runs many worlds at once, `vmap`, time limits and discounting, is written once
elsewhere; a world describes one copy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax import Array as JaxArray
from jaxtyping import Bool, Float, PRNGKeyArray

from dcrl.constraints import Constraint
from dcrl.policies import Actions


class Outcome(NamedTuple):
    """What one step leads to."""

    state: Any
    reward: Float[JaxArray, ""]
    terminated: Bool[JaxArray, ""]  # the task is over; a time limit is none of the world's business


@runtime_checkable
class Env(Protocol):
    """A continuous world. A frozen dataclass whose fields are its constants."""

    @property
    def name(self) -> str:
        """How the world is called in reports."""
        ...

    @property
    def observation_names(self) -> tuple[str, ...]:
        """One name per entry of an observation."""
        ...

    @property
    def actions(self) -> Actions:
        """What can be done."""
        ...

    @property
    def discount(self) -> float:
        """Weight of a step relative to the one before, in returns and in densities."""
        ...

    @property
    def horizon(self) -> int:
        """Steps after which an episode is cut off (truncated)."""
        ...

    @property
    def terminates(self) -> bool:
        """Whether an episode can be over before its horizon."""
        ...

    @property
    def constraints(self) -> Sequence[Constraint]:
        """What is promised."""
        ...

    def reset(self, key: PRNGKeyArray) -> Any:
        """Return the state that an episode starts from."""
        ...

    def observe(self, state: Any) -> Float[JaxArray, " o"]:
        """Return what an agent sees of a state."""
        ...

    def step(self, key: PRNGKeyArray, state: Any, action: Any) -> Outcome:
        """Do an action, in the world's units."""
        ...


def mass(env: Env) -> float:
    """Return the total weight of the steps of a whole episode, `sum_t gamma^t`."""
    return float((env.discount ** np.arange(env.horizon)).sum())
