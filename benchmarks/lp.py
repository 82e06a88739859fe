"""The occupancy LP on random sparse models: HiGHS against Clarabel, and HiGHS on road networks.

Random graphs are the worst case of a simplex or of a sparse factorisation; roads are easy.
"""

import numpy as np
import scipy.sparse

from dcrl import Density, Model, bind
from dcrl.envs.express import express
from dcrl.tabular import density, occupancy_lp
from measure import interleaved, keep, median

SIZES = (100, 300, 500, 1000)


def random_problem(size: int, actions: int = 4, successors: int = 8, discount: float = 0.99):
    """Upper bounds on half of the states, a little above the density of the uniform policy."""
    random = np.random.default_rng(size)
    columns = np.concatenate(
        [random.choice(size, successors, replace=False) for _ in range(size * actions)]
    )
    weights = random.dirichlet(np.ones(successors), size * actions).ravel()
    rows = np.repeat(np.arange(size * actions), successors)
    model = Model.from_arrays(
        scipy.sparse.csr_array((weights, (rows, columns)), shape=(size * actions, size)),
        random.random((size, actions)),
        np.full(size, 1 / size),
        discount,
    )
    rho = density(model, model.uniform_policy())
    upper = np.where(random.random(size) < 0.5, rho * (1 + random.uniform(0.02, 0.5, size)), np.inf)
    return model, bind([Density(upper=upper)], size)


def main() -> None:
    rows = []
    problems = [("random", size, *random_problem(size)) for size in SIZES]
    for points in (100, 500):
        world = express(points, 0.3)
        problems.append(("roads", points + 1, world.model, world.bounds))
    for kind, size, model, bounds in problems:
        optima = {}

        def solve(name: str, *, model=model, bounds=bounds, optima=optima) -> None:
            optima[name] = occupancy_lp(model, bounds, name).objective

        sides = {name: lambda name=name, solve=solve: solve(name) for name in ("highs", "clarabel")}
        seconds = interleaved(sides, 1 if size == 1000 else 3)
        rows.append(
            {
                "kind": kind,
                "states": size,
                "bounds": len(bounds),
                **{f"seconds_{name}": median(values) for name, values in seconds.items()},
                "relative_difference": abs(optima["highs"] / optima["clarabel"] - 1),
            }
        )
        print(
            f"{kind:7} {size:5} states: HiGHS {rows[-1]['seconds_highs']:7.3f} s, Clarabel "
            f"{rows[-1]['seconds_clarabel']:6.3f} s, objectives differ by "
            f"{rows[-1]['relative_difference']:.1e}",
            flush=True,
        )
    keep("lp", rows)


if __name__ == "__main__":
    main()
