"""Kernel densities: exact and on a grid, against scikit-learn, SciPy and KDEpy.

All get the same weighted samples of a Gaussian mixture, the same queries from it, and the same
kernel: isotropic, of Scott's bandwidth. What is timed leads from arrays to values, trees included.
Errors are the greatest relative ones against the plain sum, at some of the queries or grid points.

    pip install scikit-learn KDEpy
"""

from functools import partial
from importlib.metadata import version

import numpy as np
import scipy.stats
from KDEpy import FFTKDE
from sklearn import neighbors

from dcrl.compile_time import CompileClock
from dcrl.density.kde import KernelDensity
from measure import interleaved, keep, keep_table, median

EXACT_SAMPLES, QUERIES, GRID_SAMPLES = 100_000, 10_000, 1_000_000
EXACT_CHECKED, GRID_CHECKED = 1000, 200
GRIDS = {1: (1024, 16384), 2: (256, 512), 3: (64, 128)}  # points per dimension
TOLERANCE = 1e-5


class Isotropic(scipy.stats.gaussian_kde):
    """SciPy's estimate with one bandwidth for all directions, not the shape of the covariance."""

    def _compute_covariance(self):
        width = self.covariance_factor()
        self.covariance, self.cho_cov = np.eye(self.d) * width**2, np.eye(self.d) * width


def mixture(random: np.random.Generator, count: int, dimension: int):
    """Three Gaussians of different widths, along a line that no axis follows."""
    part = random.integers(0, 3, count)
    middle = np.array([-2.0, 0.0, 1.5])[part, None] * np.cos(np.arange(dimension))
    return middle + np.array([0.5, 1.0, 0.7])[part, None] * random.normal(size=(count, dimension))


def problem(count: int, dimension: int):
    random = np.random.default_rng(dimension)
    samples = mixture(random, count, dimension)
    weights = random.exponential(size=count)
    weights /= weights.sum()
    width = samples.std(axis=0).mean() * (weights**2).sum() ** (1 / (dimension + 4))
    return random, samples, weights, float(width)


def plain(kernel: str, samples, weights, width: float, queries):
    """The definition, one query after the other."""
    dimension = samples.shape[1]
    if kernel == "gaussian":
        peak = (2 * np.pi) ** (-dimension / 2)
    else:
        peak = [3 / 4, 2 / np.pi, 15 / (8 * np.pi)][dimension - 1]
    values = []
    for query in queries:
        square = (((query - samples) / width) ** 2).sum(axis=1)
        kernels = np.exp(-square / 2) if kernel == "gaussian" else np.maximum(1 - square, 0)
        values.append(kernels @ weights)
    return np.array(values) * peak / width**dimension


def exact_dcrl(kernel, samples, weights, width, queries):
    kde = KernelDensity.fit(samples, weights, kernel=kernel, bandwidth=width)
    return kde(queries, rtol=TOLERANCE)


def exact_sklearn(kernel, samples, weights, width, queries):
    rtol = TOLERANCE if kernel == "gaussian" else 0
    kde = neighbors.KernelDensity(bandwidth=width, kernel=kernel, algorithm="kd_tree", rtol=rtol)
    return np.exp(kde.fit(samples, sample_weight=weights).score_samples(queries))


def exact_scipy(kernel, samples, weights, width, queries):
    del kernel
    return Isotropic(samples.T, bw_method=width, weights=weights)(queries.T)


def grid_dcrl(kernel, samples, weights, width, axes):
    kde = KernelDensity.fit(samples, weights, kernel=kernel, bandwidth=width)
    ends = [[axis[side] for axis in axes] for side in (0, -1)]
    return kde.on_grid(*ends, len(axes[0])).values


def grid_kdepy(kernel, samples, weights, width, axes, points):
    # Its bandwidth is the kernel's standard deviation in one dimension, its radius sqrt(5) of it.
    name, width = ("gaussian", width) if kernel == "gaussian" else ("epa", width / np.sqrt(5))
    values = FFTKDE(kernel=name, bw=width).fit(samples, weights).evaluate(points)
    return values.reshape([len(axis) for axis in axes])


def measure(sides, repeats, checked, want, about):
    """Time the sides in turns, and compare what they found with what is true."""
    found = {}

    def run(name, side):
        found[name] = side()

    clock = CompileClock()
    seconds = interleaved({name: partial(run, name, side) for name, side in sides.items()}, repeats)
    row = {**about, "seconds_compiling": clock.compiling()}
    for name, values in seconds.items():
        row[f"seconds_{name}"] = median(values)
        error = np.abs(checked(found[name])[want > 0] / want[want > 0] - 1)
        row[f"error_{name}"] = float(error.max())
    row |= {
        f"times_{name}": row[f"seconds_{name}"] / row["seconds_dcrl"]
        for name in sides
        if name != "dcrl"
    }
    label = f"{about['what']:5} {about['dimension']}-D {about['kernel']:12}"
    if "points" in about:
        label += f" {about['points']:5} points"
    for name in sides:
        label += f" | {name} {row[f'seconds_{name}']:8.4f} s"
        label += f" (x {row[f'times_{name}']:.1f})" if name != "dcrl" else ""
        label += f", error {row[f'error_{name}']:.0e}"
    print(label, flush=True)
    return row


def exact(kernel: str, dimension: int) -> dict:
    random, samples, weights, width = problem(EXACT_SAMPLES, dimension)
    queries = mixture(random, QUERIES, dimension)
    names = ["dcrl", "sklearn", *(["scipy"] if kernel == "gaussian" else [])]
    calls = {"dcrl": exact_dcrl, "sklearn": exact_sklearn, "scipy": exact_scipy}
    return measure(
        {name: partial(calls[name], kernel, samples, weights, width, queries) for name in names},
        3,
        lambda values: values[:EXACT_CHECKED],
        plain(kernel, samples, weights, width, queries[:EXACT_CHECKED]),
        {
            "what": "exact",
            "dimension": dimension,
            "kernel": kernel,
            "samples": EXACT_SAMPLES,
            "queries": QUERIES,
            "bandwidth": width,
        },
    )


def grid(kernel: str, dimension: int, points: int) -> dict:
    random, samples, weights, width = problem(GRID_SAMPLES, dimension)
    if kernel == "epanechnikov":
        width *= np.sqrt(dimension + 4)  # about as smooth as the Gaussian
    axes = [np.linspace(x.min() - width, x.max() + width, points) for x in samples.T]
    nodes = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dimension)
    nodes = nodes if dimension > 1 else axes[0]
    # Grid points next to samples: where there is something to see.
    near = samples[random.integers(0, GRID_SAMPLES, GRID_CHECKED)]
    at = [np.abs(axis - x[:, None]).argmin(axis=1) for axis, x in zip(axes, near.T, strict=True)]
    where = np.stack([axis[i] for axis, i in zip(axes, at, strict=True)], axis=1)
    problem_ = (kernel, samples, weights, width, axes)
    return measure(
        {"dcrl": partial(grid_dcrl, *problem_), "kdepy": partial(grid_kdepy, *problem_, nodes)},
        9 if dimension < 3 else 3,
        lambda values: values[tuple(at)],
        plain(kernel, samples, weights, width, where),
        {
            "what": "grid",
            "dimension": dimension,
            "kernel": kernel,
            "samples": GRID_SAMPLES,
            "points": points,
            "bandwidth": width,
        },
    )


def keep_tables(rows: list[dict]) -> None:
    """Keep one table for the documents, of seconds, ratios and errors."""
    lines = []
    for row in rows:
        exactly = row["what"] == "exact"
        what = "100,000 at 10,000 points" if exactly else f"grid of {row['points']} per dimension"
        peers = []
        for peer in ("sklearn", "scipy", "kdepy"):
            if f"seconds_{peer}" in row:
                seconds, times = row[f"seconds_{peer}"], row[f"times_{peer}"]
                peers.append(f"{seconds:.3g} s (x {times:.1f}; {row[f'error_{peer}']:.0e})")
            else:
                peers.append("")
        ours = f"{row['seconds_dcrl']:.3g} s ({row['error_dcrl']:.0e})"
        lines.append([f"{row['dimension']}-D {row['kernel']}, {what}", ours, *peers])
    keep_table("kde", ["", "dcrl (error)", "scikit-learn", "SciPy", "KDEpy"], lines)


def main() -> None:
    rows = [{"what": "versions", **{name: version(name) for name in ("scikit-learn", "KDEpy")}}]
    for dimension, sizes in GRIDS.items():
        for kernel in ("gaussian", "epanechnikov"):
            rows.append(exact(kernel, dimension))
            rows += [grid(kernel, dimension, points) for points in sizes]
    keep("kde", rows)
    keep_tables(rows[1:])


if __name__ == "__main__":
    main()
