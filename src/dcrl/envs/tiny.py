"""Problems small enough to solve by hand: for tests, tutorials and first tries.

Each function's docstring derives its answer.
"""

import numpy as np

from dcrl.constraints import Cost, Density
from dcrl.tabular.model import Model, World


def two_rooms(upper: float = 4.0, discount: float = 0.9) -> World:
    """A poor room and a rich one, with a bound on the time in the rich one.

    Start in the poor room, which pays 0; the rich one pays 1. Every step one may stay or change
    rooms. Unbounded, one changes at once: `V = gamma / (1 - gamma) = 9`, all of it in the rich
    room. With `rho(rich) <= upper` the best is to spend exactly `upper` there, so the optimum is
    `upper`, for any `upper <= gamma / (1 - gamma)`. One more unit of time there is worth 1, so
    the multiplier is 1.
    """
    stay, change = np.eye(2), np.eye(2)[::-1]
    model = Model.from_arrays(
        np.stack([stay, change], axis=1), np.array([0.0, 1.0]), np.array([1.0, 0.0]), discount
    )
    return World(
        "two-rooms", model, (Density(upper=[np.inf, upper]),), state_names=("poor", "rich")
    )


def fork(upper: float = 0.4) -> World:
    """Two ways to the goal: a short one whose middle may be crossed only so often, a long one.

    From the start, the short way costs 1 and passes `bridge`, the long way costs 3 and passes
    `ring`; each middle leads to the terminal goal at no cost. The discount is 1. With
    `rho(bridge) <= upper` the optimum takes the bridge with probability `upper`:
    `-(upper + 3 (1 - upper)) = -3 + 2 upper`, with multiplier 2. No deterministic policy keeps the
    bound and earns this, so it shows why an optimum must randomise.
    """
    start, bridge, ring, goal = range(4)
    transition = np.zeros((4, 2, 4))
    transition[start, 0, bridge] = transition[start, 1, ring] = 1.0
    transition[[bridge, ring], :, goal] = 1.0
    reward = np.zeros((4, 2))
    reward[start] = [-1.0, -3.0]
    model = Model.from_arrays(
        transition, reward, np.eye(4)[start], 1.0, terminal=np.arange(4) == goal
    )
    return World(
        "fork",
        model,
        (Density(upper=upper, states=[bridge]),),
        state_names=("start", "bridge", "ring", "goal"),
    )


def detour(lower: float = 0.25) -> World:
    """A shop beside the way that must be visited often enough.

    From the start one may go to the terminal goal for 1 or to the shop for 2, and from the shop
    to the goal for 2. The discount is 1. With `rho(shop) >= lower` the optimum visits the shop
    with probability `lower`: `-(1 (1 - lower) + 4 lower) = -1 - 3 lower`, with multiplier 3.
    """
    start, shop, goal = range(3)
    transition = np.zeros((3, 2, 3))
    transition[start, 0, goal] = transition[start, 1, shop] = transition[shop, 0, goal] = 1.0
    reward = np.array([[-1.0, -2.0], [-2.0, 0.0], [0.0, 0.0]])
    model = Model.from_arrays(
        transition,
        reward,
        np.eye(3)[start],
        1.0,
        available=[[True, True], [True, False], [True, False]],
        terminal=np.arange(3) == goal,
    )
    return World(
        "detour",
        model,
        (Density(lower=lower, states=[shop]),),
        state_names=("start", "shop", "goal"),
    )


def slippery(limit: float = 1.0, slip: float = 0.2, discount: float = 0.9) -> World:
    """A walk on ice, where chance decides and an expected cost is limited.

    On land one may wait for nothing or step onto the ice. On the ice, which pays 1, one stays
    with probability `1 - slip` and slides back to land otherwise. Each step on ice costs 1, so the
    limit on cost is a limit on the reward too and the optimum is `limit`, for any limit up to
    the unbounded optimum `gamma / ((1 - gamma) (1 + gamma slip))`, which is 7.627 at first.
    """
    land, ice = range(2)
    transition = np.zeros((2, 2, 2))
    transition[land, 0, land] = transition[land, 1, ice] = 1.0
    transition[ice, :, ice], transition[ice, :, land] = 1 - slip, slip
    model = Model.from_arrays(transition, np.array([0.0, 1.0]), np.array([1.0, 0.0]), discount)
    return World("slippery", model, (Cost([0.0, 1.0], limit, "ice"),), state_names=("land", "ice"))
