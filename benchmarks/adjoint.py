"""What goes wrong when a density is measured with kernels but charged for by interpolation.

A problem whose optimum is known by hand: every moment is spent somewhere in [0, 1], all places are
within reach at once, and being at `x` earns `x`. Of ten units of time, at most a density of 20 may
be spent anywhere, so the optimum spends 20 per unit of length on [0.5, 1] and earns 7.5.

The algorithm runs without any noise: the policy is the best answer to the multipliers (a softmax of
little temperature on a fine grid), its density is measured with the basis, the multipliers are
moved by proportional-integral control until they settle. Then the true density of the answer is
compared with the bound: in each tenth of the range, and in the last 2 % of it.

    python benchmarks/adjoint.py
"""

import jax
import jax.numpy as jnp
import numpy as np

from dcrl.density import Hat, Kernels, PaperMixed
from measure import keep, keep_table

TIME, UPPER, OPTIMUM = 10.0, 20.0, 7.5
PLACES = 2001
ROUNDS, TEMPERATURE = 60_000, 0.003
GRID = Hat((0.0,), (1.0,), (21,))
POINTS = tuple(map(tuple, GRID.nodes.tolist()))


def kernels(bandwidth: float, *, mirrored: bool) -> Kernels:
    low, high = ((0.0,), (1.0,)) if mirrored else (None, None)
    return Kernels(POINTS, bandwidth, "epanechnikov", low, high)


BASES = {
    "hats, interpolated multipliers (the default)": GRID,
    "kernels in both, mirrored, bandwidth 0.05": kernels(0.05, mirrored=True),
    "kernels in both, not mirrored, bandwidth 0.05": kernels(0.05, mirrored=False),
    "the paper's mix, bandwidth 0.05": PaperMixed(kernels(0.05, mirrored=False), GRID),
    "the paper's mix, bandwidth 0.1": PaperMixed(kernels(0.1, mirrored=False), GRID),
    "the paper's mix, bandwidth 0.2": PaperMixed(kernels(0.2, mirrored=False), GRID),
}


def settle(basis):
    """Return where time is spent once multipliers have settled, and how much they still move."""
    x = jnp.linspace(0.0, 1.0, PLACES)[:, None]
    weights = jnp.ones(PLACES).at[jnp.array([0, -1])].set(0.5)
    volume = jnp.asarray(basis.volume)

    def respond(sigma):
        price = jax.vmap(basis.evaluate, (None, 0))(sigma, x)
        answer = jax.nn.softmax((x[:, 0] - price) / TEMPERATURE + jnp.log(weights))
        return TIME * answer

    def move(carry, rate):
        integral, mean = carry
        excess = basis.project(x, mean) / (UPPER * volume) - 1
        integral = jnp.maximum(0.0, integral + 0.1 * rate * jnp.clip(excess, -1, 1))
        sigma = jnp.maximum(0.0, integral + 0.1 * excess)
        time = respond(sigma)
        return (integral, mean + rate * (time - mean)), jnp.abs(excess).max()

    rates = 0.05 / jnp.sqrt(1 + jnp.arange(ROUNDS) / 1000)
    begun = (jnp.zeros(len(basis.volume)), respond(jnp.zeros(len(basis.volume))))
    (_, time), _ = jax.lax.scan(move, begun, rates)
    return np.asarray(x[:, 0]), np.asarray(time)


def main() -> None:
    rows = []
    with jax.enable_x64(True):
        for name, basis in BASES.items():
            x, time = settle(basis)
            tenths = np.histogram(x, np.linspace(0, 1, 11), weights=time)[0] / 0.1
            edge = time[x >= 0.98].sum() / 0.02
            rows.append(
                {
                    "basis": name,
                    "objective": float(time @ x),
                    "most_in_a_tenth": float(tenths.max() / UPPER - 1),
                    "in_the_last_fiftieth": float(edge / UPPER - 1),
                    "tenths": tenths.tolist(),
                }
            )
            print(name, {k: v for k, v in rows[-1].items() if k != "basis"})
    keep("adjoint", rows)
    header = ["basis", f"reward (optimum {OPTIMUM})"]
    header += ["most in a tenth, above the bound", "in the last 2 %"]
    keep_table(
        "adjoint",
        header,
        [
            [
                row["basis"],
                f"{row['objective']:.3f}",
                f"{row['most_in_a_tenth']:+.1%}",
                f"{row['in_the_last_fiftieth']:+.1%}",
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
