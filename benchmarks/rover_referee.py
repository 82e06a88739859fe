"""The referee of the rover: the occupancy linear program on a grid, solved through its dual.

The program has one bound, so its dual has one multiplier. For a given multiplier, value iteration
finds the policy that earns most when every discounted step in the dangerous area costs that much.
The return and the time in danger of that policy make one line under the convex dual function.
Where the lines on the two sides of the bound cross is the next multiplier. The crossing is also
the value of a mixture of two policies that spends exactly the bound, a lower bound of the program,
and the dual function is an upper bound. Both belong to the grid, not to the world.

A node of the grid is a place in the lower half of the world, which stands for both, and one of a
finite set of velocities. The rover chooses the next velocity of the set and holds the action that
leads there for several steps of the true dynamics. Rewards, time in danger and arrival are those
of the true steps. Only the place at the end of a hold is spread over the corners of its cell. That
is a Markov decision process, but a blurred one, hence several grids. Walls must not be touched,
and actions stronger than 0.7 are left out: no optimal policy chose one on its way.

The second part drives in the true world. A controller looks one hold ahead, by true dynamics and
the grid's values, and looks anew at every step. Of the mixtures of two such controllers, one per
multiplier met on the way, the best that keeps the bound on a lattice of starts is judged on fresh
episodes. It is a feasible controller: the optimum of the true world is not below it.

The third part says how much both leave. From each start of a lattice, the paths of three of the
controllers (free, never in danger, between) are improved by sequential quadratic programming in
the true dynamics: least energy for a given step of arrival, outside of the dangerous area wherever
the controller was. The same program, over these paths alone, is again a lower bound of the true
world's optimum, for the lattice instead of all starts.

    python benchmarks/rover_referee.py                # every grid, then the paths
    python benchmarks/rover_referee.py fine paths     # these, and the kept rows of the others
"""

import functools
import itertools
import json
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from dcrl.envs.rover import (
    DAMPING,
    DANGER,
    ENERGY_WEIGHT,
    FASTEST,
    GAIN,
    GOAL,
    SIZE,
    START,
    STEP_SECONDS,
    Rover,
    RoverState,
    energy,
    move,
)
from measure import RESULTS, keep, register

NAME = "rover_referee"
STRONGEST = 0.7  # action, along either axis
WALL = -10.0  # value of leaving the world: worse than anything inside
HIGHEST = 1.0  # a multiplier at which nobody enters the dangerous area
CHANGE, GAP = 2e-5, 1e-4  # where value iteration and the search for the multiplier stop
LATTICE = (20, 60)  # starts that choose the mixture, in the lower half of area 1
FEWER = (8, 24)  # starts whose paths are improved
LONGEST, BLOCK = 132, 4  # steps of a path, and steps with the same action
SKIPPED, EARLIEST = 2, 24  # arrivals tried are this far apart, and at most that much earlier
INSIDE = 1e-4  # of squared distances: room between the rules of a path and the world's
MARGIN = 0.01  # of the bound, kept free when the mixture is chosen
EPISODES, BATCH, SEED = 4096, 256, 1


class Grid(NamedTuple):
    """A discretisation of the lower half of the world."""

    per_unit: int  # cells per unit of length
    speeds: int  # above zero
    headings: int  # at the highest speed; proportionally fewer at lower ones
    hold: int  # steps that an action is held

    @property
    def places(self) -> tuple[int, int]:
        return round(SIZE * self.per_unit) + 1, round(SIZE / 2 * self.per_unit) + 1

    @property
    def reach(self) -> float:
        return self.hold * STEP_SECONDS * FASTEST

    @property
    def margin(self) -> int:
        """Cells that a hold may lead beyond the edge, and two for rounding and corners."""
        return int(np.ceil(self.reach * self.per_unit)) + 2

    def window(self, disc) -> tuple[slice, slice]:
        """Nodes from which a hold can meet a disc."""
        low, high = (
            [(c + sign * (disc.radius + self.reach)) * self.per_unit for c in disc.center]
            for sign in (-1, 1)
        )
        ends = zip(low, high, strict=True)
        return tuple(slice(max(0, int(a) - 1), int(b) + 2) for a, b in ends)


GRIDS = {
    "coarse": Grid(8, 6, 32, 8),
    "middle": Grid(12, 8, 48, 8),
    "short": Grid(12, 8, 48, 5),
    "long": Grid(12, 8, 48, 11),
    "fine": Grid(16, 10, 64, 8),
}
FINEST, CONTROLLERS, PATHS = "fine", "coarse", "paths"


class Moves(NamedTuple):
    """What holds do from a velocity (first axis) to another (second), wherever the rover is."""

    target: Any  # index of the velocity at the end
    legal: Any  # whether an action leads there; the others fill up the rows
    path: Any  # (..., hold + 1, 2) from the node to the place at each step and at the end
    cost: Any  # (..., hold) discounted energy cost up to and with each step
    shift: Any  # (..., 2) cells to the lower corner of the last place
    part: Any  # (..., 2) how far in its cell that place is


class Solution(NamedTuple):
    """The best policy at one multiplier, and what it does on the grid."""

    multiplier: float
    value: Any  # (velocity, x, y)
    optimum: float  # expected value at the start
    reward: float
    danger: float
    late: float  # episodes that have not arrived at the horizon


class Line(NamedTuple):
    """What is best at one multiplier, where a list of paths is the choice."""

    multiplier: float
    optimum: float
    reward: float
    danger: float


@functools.cache
def velocities(grid):
    """Return rings of velocities, the first of which is rest, and each one's mirror image."""
    found, mirror = [np.zeros((1, 2))], [0]
    for ring in range(1, grid.speeds + 1):
        count = 4 * max(1, round(grid.headings * ring / grid.speeds / 4))
        angle = np.arange(count) * (2 * np.pi / count)
        mirror.extend(len(mirror) + (-np.arange(count)) % count)
        found.append(FASTEST * ring / grid.speeds * np.stack([np.cos(angle), np.sin(angle)], 1))
    return np.concatenate(found).astype(np.float32), np.array(mirror)


def leading(grid, velocity, target):
    """Return the action that leads from one velocity to another when it is held."""
    decay = 1 - DAMPING * STEP_SECONDS
    gain = STEP_SECONDS * sum(decay**k for k in range(grid.hold))
    return (target - decay**grid.hold * velocity) / gain


def hold_action(env, steps, state, action):
    """Return the state after holding an action, and what each step saw."""

    def step(state, _):
        outcome = env.step(None, state, action)
        return outcome.state, (state.position, outcome.reward, outcome.terminated)

    return jax.lax.scan(step, state, length=steps)


def cell_of(x):
    """Return the lower corner of a cell and how far in it `x` is."""
    return jnp.floor(x).astype(jnp.int32), x - jnp.floor(x)


def moves_of(env, grid) -> Moves:
    """Hold every action that leads to a velocity of the grid, far from walls and goal."""
    nodes, _ = velocities(grid)
    action = leading(grid, nodes[:, None], nodes[None])
    legal = np.abs(action).max(-1) <= STRONGEST
    target = np.argsort(~legal, axis=1, kind="stable")[:, : legal.sum(1).max()]
    middle = jnp.full(2, SIZE / 2)

    def one(velocity, target):
        state = RoverState(middle, velocity)
        action = leading(grid, velocity, target)
        last, (position, reward, _) = hold_action(env, grid.hold, state, action)
        path = jnp.concatenate([position, last.position[None]]) - middle
        cost = -jnp.cumsum(reward * env.discount ** jnp.arange(grid.hold))
        return (path, cost, *cell_of(path[-1] * grid.per_unit))

    each = jax.vmap(jax.vmap(one, (None, 0)))(jnp.asarray(nodes), jnp.asarray(nodes[target]))
    return Moves(jnp.asarray(target), jnp.asarray(np.take_along_axis(legal, target, 1)), *each)


def within(disc, x, y):
    return (x - disc.center[0]) ** 2 + (y - disc.center[1]) ** 2 <= disc.radius**2


def hold_outcome(env, x, y, path, cost):
    """Return reward, discounted time in danger and whether it still drives, of holds from nodes."""
    reward, danger, driving = (jnp.full(jnp.shape(x + y), value) for value in (0.0, 0.0, 1.0))
    paid = 0.0
    for k in range(len(cost)):
        here, there = ((x + path[i, 0], y + path[i, 1]) for i in (k, k + 1))
        danger = danger + jnp.where(within(DANGER, *here), driving * env.discount**k, 0.0)
        arrived = jnp.where(within(GOAL, *there), driving, 0.0)
        reward = reward - driving * (cost[k] - paid) + arrived * (GAIN * env.discount**k)
        driving, paid = driving - arrived, cost[k]
    return reward, danger, driving


def hold_outcome_everywhere(env, grid, path, cost):
    """Return the same of a hold from all nodes, looking only where there is something to meet."""
    x = jnp.arange(grid.places[0])[:, None] / grid.per_unit
    y = jnp.arange(grid.places[1])[None, :] / grid.per_unit
    dangerous, goal = grid.window(DANGER), grid.window(GOAL)
    near = x[dangerous[0]], y[:, dangerous[1]]
    time_in = sum(
        jnp.where(within(DANGER, near[0] + path[k, 0], near[1] + path[k, 1]), env.discount**k, 0.0)
        for k in range(len(cost))
    )
    reward, danger, driving = hold_outcome(env, x[goal[0]], y[:, goal[1]], path, cost)
    return (
        jnp.full(grid.places, -cost[-1]).at[goal].set(reward),
        jnp.zeros(grid.places).at[dangerous].set(time_in).at[goal].set(danger),
        jnp.ones(grid.places).at[goal].set(driving),
    )


def extend(grid, value):
    """Add the walls on three sides and, on the fourth, the mirror image."""
    margin = grid.margin
    mirrored = value[velocities(grid)[1], :, -margin - 1 : -1][..., ::-1]
    value = jnp.concatenate([value, mirrored], axis=-1)
    return jnp.pad(value, ((0, 0), (margin, margin), (margin, 0)), constant_values=WALL)


@functools.partial(jax.jit, static_argnames=("env", "grid"))
def improve(env, grid, moves, value, multiplier):
    """Sweep once over all nodes; return the values, the best moves and the greatest change."""
    extended, margin, places = extend(grid, value), grid.margin, grid.places

    def following(move):
        total = jnp.zeros(places)
        for i, j in itertools.product((0, 1), (0, 1)):
            weight = abs(1 - i - move.part[0]) * abs(1 - j - move.part[1])
            begin = (move.target, margin + move.shift[0] + i, margin + move.shift[1] + j)
            total = total + weight * jax.lax.dynamic_slice(extended, begin, (1, *places))[0]
        return total

    def compare(carry, move):
        best, choice, index = carry
        reward, danger, driving = hold_outcome_everywhere(env, grid, move.path, move.cost)
        after = env.discount**grid.hold * driving * following(move)
        mine = jnp.where(move.legal, reward - multiplier * danger + after, -jnp.inf)
        return (jnp.maximum(best, mine), jnp.where(mine > best, index, choice), index + 1), None

    def at_velocity(_, moves):
        none = (jnp.full(places, -jnp.inf), jnp.zeros(places, jnp.int32), jnp.zeros((), jnp.int32))
        (best, choice, _), _ = jax.lax.scan(compare, none, moves)
        return None, (best, choice.astype(jnp.int16))

    best, choice = jax.lax.scan(at_velocity, None, moves)[1]
    return best, choice, jnp.max(jnp.abs(best - value))


def start_of(grid):
    """Spread the uniform start over the nodes of its cells, as all places are spread."""
    weights = []
    for axis, nodes in enumerate(grid.places):
        low, high = START[0][axis], min(START[1][axis], (SIZE, SIZE / 2)[axis])
        at = (low + (np.arange(2000) + 0.5) / 2000 * (high - low)) * grid.per_unit
        weights.append(np.maximum(0.0, 1 - np.abs(at[:, None] - np.arange(nodes))).mean(0))
    return np.outer(*weights)


def follow(env, grid, moves, choice):
    """Push the start through the chosen moves; return reward, danger and who is late."""
    moves, choice = jax.tree.map(np.asarray, (moves, choice))
    outcome = jax.jit(jax.vmap(functools.partial(hold_outcome, env)))
    mass = np.zeros(choice.shape)
    mass[0] = start_of(grid)
    reward = danger = late = 0.0
    for now in range(0, 3 * env.horizon, grid.hold):
        late = mass.sum() if now < env.horizon + grid.hold else late
        velocity, x, y = np.nonzero(mass > 1e-12)
        if len(x) == 0:
            break
        here = mass[velocity, x, y]
        move = Moves(*(leaf[velocity, choice[velocity, x, y]] for leaf in moves))
        size = 1 << int(np.ceil(np.log2(len(x))))  # few shapes, so that little is compiled
        given = (x / grid.per_unit, y / grid.per_unit, move.path, move.cost)
        filled = (np.resize(a, (size, *a.shape[1:])).astype(np.float32) for a in given)
        earned, time_in, driving = (np.asarray(a, float)[: len(x)] for a in outcome(*filled))
        weight = here * env.discount**now
        reward, danger = reward + weight @ earned, danger + weight @ time_in
        mass = spread(grid, choice.shape, move, x, y, here * driving)
    return float(reward), float(danger), float(late)


def spread(grid, shape, move, x, y, mass):
    """Return the mass of each node after holds from these places."""
    total, mirror = np.zeros(np.prod(shape)), velocities(grid)[1]
    for i, j in itertools.product((0, 1), (0, 1)):
        weight = abs(1 - i - move.part[:, 0]) * abs(1 - j - move.part[:, 1])
        to_x, to_y = x + move.shift[:, 0] + i, y + move.shift[:, 1] + j
        above = to_y >= shape[2]
        velocity = np.where(above, mirror[move.target], move.target)
        to_y = np.where(above, 2 * (shape[2] - 1) - to_y, to_y)
        node = np.ravel_multi_index((velocity, to_x, to_y), shape, mode="clip")
        total += np.bincount(node, weight * mass, len(total))
    return total.reshape(shape)


def solve(env, grid, moves, value, multiplier) -> Solution:
    """Iterate values until they stay, and follow the policy that is best in them."""
    change = np.inf
    while change > CHANGE:
        value, choice, change = improve(env, grid, moves, value, multiplier)
    optimum = float((np.asarray(value[0], float) * start_of(grid)).sum())
    solution = Solution(multiplier, value, optimum, *follow(env, grid, moves, choice))
    print(*(f"{x:.5f}" for x in (multiplier, *solution[2:])), flush=True)
    return solution


def crossing(above, below, upper):
    """Return where two lines under the dual function cross, and how high."""
    multiplier = (above.reward - below.reward) / (above.danger - below.danger)
    return multiplier, below.reward + multiplier * (upper - below.danger)


def search(answer, upper):
    """Minimise the dual function.

    Args:
        answer: from a multiplier to what is best there.
        upper: the bound.

    Returns:
        all answers, the free one first; the two around the bound; the least dual value, and the
        value of the mixture of the two.
    """
    above, below = (answer(multiplier) for multiplier in (0.0, HIGHEST))
    answers = [above, below]
    while True:
        multiplier, primal = crossing(above, below, upper)
        dual = min(a.optimum + a.multiplier * upper for a in answers)
        if dual - primal < GAP or len(answers) > 20:
            return answers, above, below, dual, primal
        answers.append(answer(multiplier))
        if answers[-1].danger > upper:
            above = answers[-1]
        else:
            below = answers[-1]


def on_grid(env, grid, moves):
    """Return the function that `search` asks, each time from the values before."""
    value = jnp.zeros((len(velocities(grid)[0]), *grid.places))

    def answer(multiplier):
        nonlocal value
        solution = solve(env, grid, moves, value, multiplier)
        value = solution.value
        return solution

    return answer


def interpolate(grid, value, velocity, position):
    """Return the value of any place with a velocity of the grid, from the corners of its cell."""
    flipped = position[1] > SIZE / 2
    velocity = jnp.where(flipped, jnp.asarray(velocities(grid)[1])[velocity], velocity)
    y = jnp.where(flipped, SIZE - position[1], position[1])
    limit = jnp.array(grid.places) - 1.001
    shift, part = cell_of(jnp.clip(jnp.stack([position[0], y]) * grid.per_unit, 0.0, limit))
    total = jnp.zeros(())
    for i, j in itertools.product((0, 1), (0, 1)):
        weight = abs(1 - i - part[0]) * abs(1 - j - part[1])
        total = total + weight * value[velocity, shift[0] + i, shift[1] + j]
    return total


def best_action(env, grid, width, value, multiplier, state):
    """Look one hold ahead, by true dynamics and the values of places interpolated."""
    weight = env.discount ** jnp.arange(grid.hold)
    actions = leading(grid, state.velocity, jnp.asarray(velocities(grid)[0]))
    strength, index = jax.lax.top_k(-jnp.max(jnp.abs(actions), -1), width)

    def worth(index):
        last, (position, reward, over) = hold_action(env, grid.hold, state, actions[index])
        driving = 1.0 - (jnp.cumsum(over) > 0)
        before = jnp.concatenate([jnp.ones(1), driving[:-1]])
        earned = jnp.sum(weight * before * (reward - multiplier * DANGER.contains(position)))
        after = interpolate(grid, value, index, last.position)
        return earned + env.discount**grid.hold * driving[-1] * after

    worths = jnp.where(-strength <= STRONGEST + 1e-4, jax.vmap(worth)(index), -jnp.inf)
    return actions[index[jnp.argmax(worths)]]


@functools.partial(jax.jit, static_argnames=("env", "grid", "width"))
def drive(env, grid, width, value, multiplier, states):
    """Return the return, the discounted time in danger and whether it is late, of episodes."""

    def step(carry):
        state, time, _, earned, danger = carry
        outcome = env.step(None, state, best_action(env, grid, width, value, multiplier, state))
        weight = env.discount**time
        danger = danger + weight * DANGER.contains(state.position)
        earned = earned + weight * outcome.reward
        return outcome.state, time + 1, ~outcome.terminated, earned, danger

    def one(state):
        begun = (state, jnp.zeros((), jnp.int32), jnp.ones((), bool), jnp.zeros(()), jnp.zeros(()))
        last = jax.lax.while_loop(lambda c: c[2] & (c[1] < env.horizon), step, begun)
        return jnp.stack([last[3], last[4], last[2]])

    return jax.vmap(one)(states)


def width_of(grid, moves):
    """Return how many moves a controller compares: off the grid's velocities there are more."""
    return min(2 * moves.target.shape[1], len(velocities(grid)[0]))


def judge(env, grid, moves, solution, states):
    """Return, per episode, the return, the discounted time in danger and whether it is late."""
    width = width_of(grid, moves)
    count = len(states.position)
    batches = (
        jax.tree.map(lambda a, i=i: a[i : i + BATCH], states) for i in range(0, count, BATCH)
    )
    driven = [
        drive(env, grid, width, solution.value, solution.multiplier, batch) for batch in batches
    ]
    return np.concatenate([np.asarray(part, float) for part in driven])


def lattice(counts):
    """Return starts that fill the lower half of area 1 evenly."""
    high = (START[1][0], SIZE / 2)
    axes = [
        low + (np.arange(count) + 0.5) / count * (end - low)
        for low, end, count in zip(START[0], high, counts, strict=True)
    ]
    position = jnp.asarray(np.stack(np.meshgrid(*axes), -1).reshape(-1, 2), jnp.float32)
    return RoverState(position, jnp.zeros_like(position))


def best_mixture(reward, danger, upper):
    """Return two controllers and the share of the first: the best mixture that keeps the bound."""
    options = []
    for i, j in itertools.permutations(range(len(reward)), 2):
        if danger[j] <= upper:
            share = 1.0 if danger[i] <= upper else (upper - danger[j]) / (danger[i] - danger[j])
            options.append((share * reward[i] + (1 - share) * reward[j], i, j, share))
    return max(options)[1:]


def true_world(env, grid, moves, solutions):
    """Choose a mixture of controllers on a lattice of starts, and judge it on fresh episodes."""
    on_lattice = [judge(env, grid, moves, s, lattice(LATTICE)).mean(0) for s in solutions]
    reward, danger, _ = np.transpose(on_lattice)
    first, second, share = best_mixture(reward, danger, (1 - MARGIN) * env.upper)
    fresh = jax.vmap(env.reset)(jax.random.split(jax.random.key(SEED), EPISODES))
    pair = [judge(env, grid, moves, solutions[i], fresh) for i in (first, second)]
    mixed = share * pair[0] + (1 - share) * pair[1]  # the coin is integrated out
    free = judge(env, grid, moves, solutions[0], fresh)
    return {
        "true_controllers": [
            {"multiplier": s.multiplier, "reward": row[0], "danger": row[1], "late": row[2]}
            for s, row in zip(solutions, np.array(on_lattice).tolist(), strict=True)
        ],
        "true_mixture": [
            {"multiplier": solutions[first].multiplier, "share": float(share)},
            {"multiplier": solutions[second].multiplier, "share": float(1 - share)},
        ],
        "true_lattice_reward": float(share * reward[first] + (1 - share) * reward[second]),
        "true_lattice_danger": float(share * danger[first] + (1 - share) * danger[second]),
        **summary("true", mixed),
        **summary("true_free", free),
        "true_episodes": EPISODES,
    }


def summary(name, episodes):
    mean, error = episodes.mean(0), episodes.std(0) / len(episodes) ** 0.5
    return {
        f"{name}_reward": float(mean[0]),
        f"{name}_reward_error": float(error[0]),
        f"{name}_danger": float(mean[1]),
        f"{name}_danger_error": float(error[1]),
        f"{name}_late": float(mean[2]),
    }


@functools.partial(jax.jit, static_argnames=("env", "grid", "width"))
def record(env, grid, width, value, multiplier, states):
    """Return the actions of a controller, whether it has arrived, and whether it is in danger."""

    def step(state, _):
        action = best_action(env, grid, width, value, multiplier, state)
        outcome = env.step(None, state, action)
        return outcome.state, (action, outcome.terminated, DANGER.contains(state.position))

    return jax.vmap(lambda state: jax.lax.scan(step, state, length=LONGEST)[1])(states)


def steer(start, knots):
    """Return places before and after each step, and its energy cost; `knots` is flat."""

    def step(state, action):
        after = move(state, action)
        cost = ENERGY_WEIGHT * energy(state.velocity, action)
        return after, (state.position, after.position, cost)

    actions = jnp.repeat(knots.reshape(-1, 2), BLOCK, axis=0)
    return jax.lax.scan(step, RoverState(start, jnp.zeros_like(start)), actions)[1]


def spent(knots, start, arrival):
    """Return the discounted energy cost until a given arrival."""
    time, discount = jnp.arange(LONGEST), Rover.discount
    return jnp.sum(jnp.where(time < arrival, discount**time * steer(start, knots)[2], 0.0))


def rules(knots, start, arrival, enter, leave):
    """Return what must not be negative: outside of danger but for a while, then at the goal."""
    here, there, _ = steer(start, knots)
    time = jnp.arange(LONGEST)
    exempt = (time >= arrival) | ((time >= enter) & (time < leave))
    room = jnp.sum((here - jnp.array(DANGER.center)) ** 2, -1) - DANGER.radius**2
    goal = GOAL.radius**2 - jnp.sum((there[arrival - 1] - jnp.array(GOAL.center)) ** 2)
    return jnp.append(jnp.where(exempt, 1.0, room), goal) - INSIDE


SPENT, RULES, SLOPES = (
    jax.jit(jax.value_and_grad(spent)),
    jax.jit(rules),
    jax.jit(jax.jacfwd(rules)),
)


def least_energy(start, knots, *terms):
    """Return the knots of a path that spends least, near the given ones."""
    rule = {
        "type": "ineq",
        "fun": lambda z: np.asarray(RULES(z, start, *terms)),
        "jac": lambda z: np.asarray(SLOPES(z, start, *terms)),
    }
    return minimize(
        lambda z: tuple(np.asarray(a) for a in SPENT(z, start, terms[0])),
        knots,
        jac=True,
        method="SLSQP",
        bounds=[(-1.0, 1.0)] * len(knots),
        constraints=[rule],
        options={"maxiter": 150, "ftol": 1e-6},
    ).x


@functools.partial(jax.jit, static_argnames="env")
def follow_path(env, start, knots):
    """Return the return, the discounted time in danger and whether it is late, in the world."""

    def step(carry, action):
        state, weight, earned, danger = carry
        outcome = env.step(None, state, jnp.clip(action, -1.0, 1.0))
        earned = earned + weight * outcome.reward
        danger = danger + weight * DANGER.contains(state.position)
        weight = weight * jnp.where(outcome.terminated, 0.0, env.discount)
        return (outcome.state, weight, earned, danger), None

    actions = jnp.repeat(knots.reshape(-1, 2), BLOCK, axis=0)
    begun = (RoverState(start, jnp.zeros_like(start)), *(jnp.full((), x) for x in (1.0, 0.0, 0.0)))
    (_, weight, earned, danger), _ = jax.lax.scan(step, begun, actions)
    return jnp.stack([earned, danger, weight > 0])


def hurry(knots, ratio):
    """Drive about the same way in less time."""
    knots = knots.reshape(-1, 2)
    at = np.arange(len(knots))
    return ratio * np.stack([np.interp(ratio * at, at, side) for side in knots.T], 1).ravel()


def improve_path(env, start, actions, arrived, inside):
    """Return reward and danger of the best path near a controller's, over the step of arrival."""
    steps = int(arrived.argmax()) + 1
    within_steps = np.nonzero(inside[:steps])[0]
    enter, leave = (within_steps[0], within_steps[-1] + 1) if len(within_steps) else (0, 0)
    known = np.arange(LONGEST)[:, None] < steps
    knots = np.where(known, actions, 0.0).reshape(-1, BLOCK, 2).mean(1).ravel()
    best, worse = (-np.inf, 0.0), 0
    for arrival in range(steps - 1, steps - EARLIEST, -SKIPPED):
        sooner = (steps - arrival) // 2
        knots = least_energy(start, knots, arrival, max(0, enter - sooner), max(0, leave - sooner))
        reward, danger, late = (float(x) for x in follow_path(env, start, knots))
        if not late and reward > best[0]:
            best, worse = (reward, danger), 0
        else:
            worse += 1
        if worse == 2:
            break
        knots = hurry(knots, arrival / (arrival - SKIPPED))
    return best


def paths_of(env, grid, moves, solutions):
    """Return reward and danger of improved paths, an array (start, controller, 2)."""
    states = lattice(FEWER)
    starts = np.asarray(states.position, float)
    found = np.empty((len(starts), len(solutions), 2))
    for i, solution in enumerate(solutions):
        seen = record(env, grid, width_of(grid, moves), solution.value, solution.multiplier, states)
        actions, arrived, inside = (np.asarray(a) for a in seen)
        if solution.multiplier == 0:
            inside = np.ones_like(inside)
        with jax.enable_x64(True):
            for n, start in enumerate(starts):
                found[n, i] = improve_path(
                    env, start, actions[n].astype(float), arrived[n], inside[n]
                )
    return found


def among_paths(paths):
    """Return the function that `search` asks where paths are the choice."""

    def answer(multiplier):
        worth = paths[..., 0] - multiplier * paths[..., 1]
        mine = np.take_along_axis(paths, worth.argmax(1)[:, None, None], 1)[:, 0]
        return Line(multiplier, worth.max(1).mean(), *mine.mean(0))

    return answer


def row_of_paths(env):
    """Improve the paths of the first controllers of a search, and solve the program over them."""
    grid, begun = GRIDS[CONTROLLERS], time.perf_counter()
    moves = moves_of(env, grid)
    solutions = search(on_grid(env, grid, moves), env.upper)[0][:3]
    paths = paths_of(env, grid, moves, solutions)
    _, above, below, dual, primal = search(among_paths(paths), env.upper)
    free, detour = paths[:, 0].mean(0), paths[:, 1].mean(0)
    return {
        "grid": PATHS,
        "controllers": CONTROLLERS,
        "controllers_multipliers": [s.multiplier for s in solutions],
        "starts": len(paths),
        "upper": env.upper,
        "multiplier": float(crossing(above, below, env.upper)[0]),
        "dual": float(dual),
        "primal": float(primal),
        "free_reward": float(free[0]),
        "free_danger": float(free[1]),
        "detour_reward": float(detour[0]),
        "detour_danger": float(detour[1]),
        "seconds": time.perf_counter() - begun,
    }


def row_of(env, name):
    """Solve the program on one grid, drive its controllers, and say what came out."""
    grid, begun = GRIDS[name], time.perf_counter()
    moves = moves_of(env, grid)
    solutions, above, below, dual, primal = search(on_grid(env, grid, moves), env.upper)
    share = (env.upper - below.danger) / (above.danger - below.danger)
    solved = time.perf_counter()
    told = {"free": solutions[0], "detour": solutions[1], "above": above, "below": below}
    driven = true_world(env, grid, moves, solutions)
    return {
        "grid": name,
        **grid._asdict(),
        "nodes": int(solutions[0].value.size),
        "moves": int(moves.legal.sum()),
        "upper": env.upper,
        "multiplier": crossing(above, below, env.upper)[0],
        "dual": dual,
        "primal": primal,
        "share_above": share,
        **{
            f"{which}_{what}": getattr(solution, what)
            for which, solution in told.items()
            for what in ("multiplier", "reward", "danger", "late")
        },
        **driven,
        "seconds_program": solved - begun,
        "seconds_true_world": time.perf_counter() - solved,
    }


def entry_of(row, paths) -> dict[str, Any]:
    """Return what the library says of the rover's referee."""
    return {
        "objective": row["primal"],
        "how": "Optimum of the occupancy linear program on a grid, a mixture of two policies; the "
        "grid is blurred, and controllers and paths in the true world earn more.",
        "by": f"benchmarks/{NAME}.py",
        "upper": row["upper"],
        "objective_dual": row["dual"],
        "unconstrained_objective": row["free_reward"],
        "unconstrained_danger": row["free_danger"],
        "true_world_objective": row["true_reward"],
        "true_world_error": row["true_reward_error"],
        "true_world_danger": row["true_danger"],
        "true_world_danger_error": row["true_danger_error"],
        "true_world_unconstrained_objective": row["true_free_reward"],
        "true_world_unconstrained_danger": row["true_free_danger"],
        "paths_objective": paths["primal"],
        "paths_unconstrained_objective": paths["free_reward"],
        "paths_unconstrained_danger": paths["free_danger"],
    }


def main(names: list[str]) -> None:
    env = Rover()
    path = RESULTS / f"{NAME}.json"
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {row["grid"]: row for row in kept if row["upper"] == env.upper}
    for name in names:
        rows[name] = row_of_paths(env) if name == PATHS else row_of(env, name)
        print(json.dumps(rows[name], indent=2), flush=True)
        keep(NAME, [rows[each] for each in (*GRIDS, PATHS) if each in rows])
    if FINEST in rows and PATHS in rows:
        register("rover", entry_of(rows[FINEST], rows[PATHS]))


if __name__ == "__main__":
    main(sys.argv[1:] or [*GRIDS, PATHS])
