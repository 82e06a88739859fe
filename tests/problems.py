"""Random problems that tests share."""

import numpy as np

from dcrl import Bounds, Cost, Density, Model, bind
from dcrl.tabular import density


def random_model(
    seed: int,
    *,
    num_states: int = 5,
    num_actions: int = 3,
    discount: float = 0.9,
    branches: int | None = None,
    terminal: bool = False,
) -> Model:
    """A random model; with `branches=1` a deterministic one; with `terminal` episodes end."""
    random = np.random.default_rng(seed)
    transition = random.dirichlet(np.ones(num_states), (num_states, num_actions))
    if branches is not None:
        weight = random.random(transition.shape)
        kept = weight >= np.sort(weight, axis=2)[..., -branches, None]
        transition = np.where(kept, transition, 0)
        transition /= transition.sum(2, keepdims=True)
    available = random.random((num_states, num_actions)) < 0.8
    available[:, 0] = True
    return Model.from_arrays(
        transition,
        random.normal(size=(num_states, num_actions)),
        random.dirichlet(np.ones(num_states)),
        discount,
        available=available,
        terminal=(np.arange(num_states) == 0) if terminal else None,
    )


def random_policy(model: Model, seed: int) -> np.ndarray:
    random = np.random.default_rng([seed, 1])
    weight = random.exponential(size=model.reward.shape) * model.available
    return weight / weight.sum(1, keepdims=True)


def bounded(seed: int, **kwargs) -> tuple[Model, Bounds]:
    """A random model with bounds that some random policy keeps with room to spare."""
    model = random_model(seed, **kwargs)
    random = np.random.default_rng([seed, 2])
    rho = density(model, random_policy(model, seed))
    size = model.num_states
    lower = np.where(random.random(size) < 0.5, 0.9 * rho, 0.0)
    upper = np.where(random.random(size) < 0.5, 1.1 * rho, np.inf)
    cost = random.random(size)
    bounds = bind([Density(lower=lower, upper=upper), Cost(cost, 1.05 * rho @ cost)], size)
    return model, bounds
