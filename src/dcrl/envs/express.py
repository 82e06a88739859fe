"""Express delivery: vans that should pass every service point often enough.

A road network has one ship centre and `points` service points. Vans start at some of the points
and drive from crossing to crossing until they reach the ship centre; each road costs its length.
The density of vans must be at least `lower` at every service point, so that goods are picked up
everywhere, and the expected distance should be small.

| constant | value | source |
| --- | --- | --- |
| service points | 10, 20, 100; 29 in the picture | paper |
| lower bound of the density | 0.1, 0.3, 0.5, at every service point | paper |
| start | some service points, all equally often | paper |
| cost | expected driven distance | paper |
| positions | uniform in a square of side 4 | our choice: costs of the paper's size |
| roads | both ways, to the 4 nearest neighbours, plus the shortest bridges | our choice |
| starting points | the 15 % farthest from the ship centre, at least 2 | our choice |
| discount | 0.999 | our choice: within 1 % of undiscounted visits and distances |

The roads connect the service points even without the ship centre, since a van that reaches the
centre has ended its trip: otherwise some points could not be visited at all. A visit is counted
at the start too. Networks are generated from a seed, the same on every machine.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.sparse.csgraph import connected_components

from dcrl.constraints import Density
from dcrl.tabular.model import Model, World

SIDE = 4.0
NEIGHBOURS = 4
SHARE_OF_STARTS = 0.15
DISCOUNT = 0.999


class Network(NamedTuple):
    """Roads between the ship centre, index 0, and the service points."""

    positions: Float[Array, "s 2"]
    roads: Bool[Array, "s s"]
    length: Float[Array, "s s"]
    starts: Bool[Array, " s"]


def network(points: int = 20, seed: int = 0) -> Network:
    """Return the road network of a seed.

    >>> network(points=20, seed=0).roads.sum() // 2
    np.int64(52)
    """
    if points < 3:
        raise ValueError(f"a network needs at least 3 service points; got {points}.")
    if seed < 0:
        raise ValueError(f"the seed of a network must not be negative; got {seed}.")
    random = np.random.default_rng([points, seed])
    positions = random.uniform(0.0, SIDE, (points + 1, 2))
    length = np.linalg.norm(positions[:, None] - positions, axis=-1)
    apart = np.where(np.eye(points + 1, dtype=bool), np.inf, length)
    nearest = np.argsort(apart, axis=1, kind="stable")[:, :NEIGHBOURS]
    roads = np.zeros(apart.shape, bool)
    roads[np.arange(points + 1)[:, None], nearest] = True
    roads |= roads.T
    _bridge(roads[1:, 1:], apart[1:, 1:])
    farthest = 1 + np.argsort(-length[0, 1:], kind="stable")
    starts = np.zeros(points + 1, bool)
    starts[farthest[: max(2, int(np.ceil(SHARE_OF_STARTS * points)))]] = True
    return Network(positions, roads, length, starts)


def _bridge(roads: Bool[Array, "n n"], apart: Float[Array, "n n"]) -> None:
    """Add the shortest roads that connect everything, in place."""
    while True:
        count, part = connected_components(scipy.sparse.csr_array(roads), directed=False)
        if count == 1:
            return
        between = np.where(part[:, None] != part, apart, np.inf)
        here, there = np.unravel_index(int(np.argmin(between)), between.shape)
        roads[here, there] = roads[there, here] = True


def express(
    points: int = 20, lower: float = 0.3, seed: int = 0, discount: float = DISCOUNT
) -> World:
    """Return the world of one network: states are the crossings, actions the roads from them.

    >>> world = express(points=10, lower=0.1)
    >>> world.model.num_states, len(world.bounds)
    (11, 10)
    """
    roads = network(points, seed)
    num_states = points + 1
    here, there = np.nonzero(roads.roads)
    road = np.concatenate([np.arange(count) for count in roads.roads.sum(1)])
    num_actions = int(roads.roads.sum(1).max())
    transition = scipy.sparse.csr_array(
        (np.ones(len(here)), (here * num_actions + road, there)),
        shape=(num_states * num_actions, num_states),
    )
    reward, available = np.zeros((2, num_states, num_actions))
    reward[here, road] = -roads.length[here, there]
    available[here, road] = True
    model = Model.from_arrays(
        transition,
        reward,
        roads.starts / roads.starts.sum(),
        discount,
        available=available,
        terminal=np.arange(num_states) == 0,
    )
    return World(
        name=f"express-{points}",
        model=model,
        constraints=(Density(lower=lower, states=range(1, num_states)),),
        state_names=("ship centre", *(f"point {index}" for index in range(1, num_states))),
        positions=roads.positions,
    )
