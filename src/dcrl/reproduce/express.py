"""The express-delivery table and the picture of densities on the road network.

The paper's table gives, per size and bound, whether a method found a policy that keeps the bounds
within 600 seconds, how long that took and what it costs. This one has ten networks per cell
instead of one, every outcome checked exactly, and the optimum of each network beside the cost.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dcrl.presets import choose, settings
from dcrl.reproduce.runs import finished_rows, run_all
from dcrl.run import Config, execute, write

SIZES = (10, 20, 100)
LOWER = (0.1, 0.3, 0.5)
NETWORKS = 10
LONG_NETWORKS = 3  # of each cell, these get as long as in the paper
LONG_SECONDS, SHORT_SECONDS, QUICK_SECONDS = 600.0, 60.0, 5.0
CHEAP = 2.0  # times the optimal cost
PICTURE: dict[str, Any] = {"points": 29, "lower": 0.3, "seed": 0, "discount": 0.999}

ROWS = {
    "master": ("dcrl", "master"),
    "pi": ("dcrl", "pi"),
    "ascent": ("dcrl", "ascent"),
    "cers": ("cers", "master"),
    "unconstrained": ("unconstrained", "master"),
}

TITLES = {
    "master": "DCRL, density master",
    "pi": "DCRL, PI control",
    "ascent": "DCRL, ascent as published",
    "cers": "CERS",
    "unconstrained": "Q-learning, unconstrained",
}

PAPER = {
    # (points, lower): seconds and cost of DCRL, then of CERS; None where it ran out of time
    (10, 0.1): ((1.35, 2.91), (163.69, 3.85)),
    (10, 0.3): ((2.05, 2.66), (183.81, 5.36)),
    (10, 0.5): ((4.31, 4.28), (466.32, 5.12)),
    (20, 0.1): ((3.41, 5.58), (227.15, 5.80)),
    (20, 0.3): ((3.99, 6.16), (527.26, 6.00)),
    (20, 0.5): ((5.28, 6.27), None),
    (100, 0.1): ((3.53, 10.23), (161.62, 10.26)),
    (100, 0.3): ((116.24, 12.13), None),
    (100, 0.5): ((153.86, 14.06), None),
}
"""Table 3 of the paper, on networks and a machine that it does not describe."""


def plan(quick: bool, methods: Sequence[str]) -> list[Config]:
    """Return every run of the table, short ones first, the methods of a network together."""
    rows = [choose("method", name, ROWS) for name in methods] or list(ROWS)
    configs: list[Config] = []
    seeds = range(2) if quick else [*range(LONG_NETWORKS, NETWORKS), *range(LONG_NETWORKS)]
    for seed in seeds:
        for points in SIZES[:2] if quick else SIZES:
            for lower in LOWER:
                for name in rows:
                    if name == "cers" and seed >= LONG_NETWORKS:
                        continue
                    limit = LONG_SECONDS if seed < LONG_NETWORKS else SHORT_SECONDS
                    chosen = dataclasses.replace(
                        settings(*ROWS[name]), seconds=QUICK_SECONDS if quick else limit
                    )
                    parameters = {"points": points, "lower": lower, "seed": seed, "discount": 0.999}
                    configs.append(Config("express", parameters, chosen, seed))
    return configs


def reproduce(
    *,
    quick: bool = False,
    out: Path | None = None,
    processes: int = 2,
    methods: Sequence[str] = (),
    only_report: bool = False,
) -> None:
    """Run what is missing, then write `table.csv`, `table.md`, `summary.md`, `network.png`."""
    if processes < 1:
        raise ValueError(f"processes must be at least 1; got {processes}.")
    folder = out or Path("results") / ("express-quick" if quick else "express")
    console = Console(stderr=True)
    configs = plan(quick, methods)
    finished = 0

    def tell(row: dict[str, Any], before: int, total: int) -> None:
        nonlocal finished
        finished += 1
        parameters = row["parameters"]
        console.print(
            f"[{before + finished}/{total}] {parameters['points']} points, lower "
            f"{parameters['lower']}, network {parameters['seed']}, {row_name(row)}: "
            f"{row['verdict']} in {row['seconds']:.2f} s, cost {-row['objective']:.4g} "
            f"({row['objective'] / row['referee']:.3f} of the optimum)",
            highlight=False,
        )

    path = folder / "runs.jsonl"
    if not only_report:
        run_all(configs, path, processes, tell)
    rows = finished_rows(plan(quick, ()), path)
    if not rows:
        raise ValueError(f"there are no finished runs in {path}.")
    write(folder / "table.csv", to_csv(rows).encode())
    write(folder / "table.md", to_markdown(rows).encode())
    write(folder / "summary.md", to_summary(rows).encode())
    draw_network(folder / "network.png")
    console.print(f"written: {folder}/table.csv, table.md, summary.md, network.png")


def row_name(row: dict[str, Any]) -> str:
    """Return which row of the table a run belongs to."""
    return row["dual"] if row["method"] == "dcrl" else row["method"]


COLUMNS = (
    "task", "variant", "method", "learner", "dual", "seed", "steps", "rounds", "seconds",
    "compile_seconds", "parameters", "objective", "referee", "optimum_lower", "optimum_upper",
    "worst_slack", "worst_slack_low", "verdict", "violation_in_training", "commit", "status",
    "repaired",
)  # fmt: skip


def to_csv(rows: Iterable[dict[str, Any]]) -> str:
    """Return one line per run."""
    text = io.StringIO()
    names: list[str] = [*COLUMNS, "limit"]
    table = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    for row in rows:
        table.writerow({**row, "limit": row["settings"]["seconds"]})
    return text.getvalue()


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table: a block per size, a line per bound and method."""
    lines = [
        "| points | lower | method | solved | seconds | cost | cost / optimum | worst | gap | "
        "rounds | transitions |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    cells = sorted({(r["parameters"]["points"], r["parameters"]["lower"]) for r in rows})
    for points, lower in cells:
        here = [
            r
            for r in rows
            if (r["parameters"]["points"], r["parameters"]["lower"]) == (points, lower)
        ]
        for name, title in TITLES.items():
            mine = [r for r in here if row_name(r) == name]
            if mine:
                lines.append(f"| {points} | {lower} | {title} | {' | '.join(_cell(mine))} |")
        if (points, lower) in PAPER:
            for title, known in zip(("DCRL", "CERS"), PAPER[points, lower], strict=True):
                figures = "1/1 in 600 s | {} | {}".format(*known) if known else "0/1 in 600 s | | "
                lines.append(
                    f"| {points} | {lower} | *the paper's {title}* | {figures} | | | | | |"
                )
    return "\n".join([*lines, "", *_notes(rows), ""])


def to_summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line per method over all sizes and bounds."""
    sizes = sorted({row["parameters"]["points"] for row in rows})
    seconds = " | ".join(f"seconds, {points} points" for points in sizes)
    lines = [
        f"| method | solved | cost / optimum | worst | certified gap | {seconds} |",
        "| --- | ---: | ---: | ---: | ---: |" + " ---: |" * len(sizes),
    ]
    for name, title in TITLES.items():
        mine = [row for row in rows if row_name(row) == name]
        solved = [row for row in mine if row["verdict"] == "kept"]
        if not mine:
            continue
        ratio, gap = [row["objective"] / row["referee"] for row in solved], _gaps(solved)
        cells = [
            f"{len(solved)} of {len(mine)}",
            f"{np.median(ratio):.3f}" if solved else "-",
            f"{max(ratio):.3f}" if solved else "-",
            f"≤ {max(gap):.2%}" if gap else "-",
        ]
        for points in sizes:
            here = [row["seconds"] for row in solved if row["parameters"]["points"] == points]
            cells.append(f"{np.median(here):.2g}" if here else "-")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    ratios = speed_ratios(rows)
    note = _speed_note(rows, ratios) if ratios else "CERS solved no network."
    return "\n".join([*lines, "", note, ""])


def _speed_note(rows: Sequence[dict[str, Any]], ratios: Sequence[float]) -> str:
    cost = [
        row["objective"] / row["referee"]
        for row in rows
        if row_name(row) == "cers" and row["verdict"] == "kept"
    ]
    return (
        f"On the {len(ratios)} networks that CERS solved, it took {min(ratios):.2g} to "
        f"{max(ratios):.2g} times as long as the density master (median "
        f"{np.median(ratios):.2g}), for {min(cost):.2g} to {max(cost):.2g} times the optimal cost "
        f"({sum(ratio <= CHEAP for ratio in cost)} of them for at most {CHEAP:g} times)."
    )


def _gaps(rows: Sequence[dict[str, Any]]) -> list[float]:
    return [
        (row["optimum_upper"] - row["optimum_lower"]) / abs(row["optimum_lower"])
        for row in rows
        if row["optimum_lower"] is not None and row["optimum_upper"] is not None
    ]


def _cell(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Solved of all; then medians over the solved runs, or over all where none was solved."""
    solved = [row for row in rows if row["verdict"] == "kept"]
    shown = solved or rows
    ratio = [row["objective"] / row["referee"] for row in shown]
    gaps = _gaps(shown)
    mark = "" if solved else "\\*"
    limits = sorted({row["settings"]["seconds"] for row in rows})
    counts = [
        f"{sum(row['settings']['seconds'] == limit for row in solved)}"
        f"/{sum(row['settings']['seconds'] == limit for row in rows)} in {limit:g} s"
        for limit in limits
    ]
    return [
        ", ".join(counts),
        f"{np.median([row['seconds'] for row in shown]):.3g}{mark}",
        f"{np.median([-row['objective'] for row in shown]):.3g}{mark}",
        f"{np.median(ratio):.3f}{mark}",
        f"{max(ratio):.3f}{mark}",
        f"{max(gaps):.2%}" if gaps and solved else "-",
        f"{np.median([row['rounds'] for row in shown]):,.0f}",
        f"{np.median([row['steps'] for row in shown]):.2g}",
    ]


def _notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    limits = sorted({row["settings"]["seconds"] for row in rows}, reverse=True)
    longest = [row for row in rows if row["settings"]["seconds"] == limits[0]]
    networks = sorted({row["parameters"]["seed"] for row in longest})
    commits = sorted({row["commit"] for row in rows})
    ratios = speed_ratios(rows)
    return [
        "Solved: the returned policy misses no bound by more than 0.001, checked exactly. Seconds "
        "without compiling, cost, ratio, rounds and transitions are medians over the solved "
        "networks; worst and gap are the largest ratio and the largest certified gap among them. "
        "\\* nothing was solved: medians over all networks, which break the bounds.",
        "",
        f"Limit per run: {limits[0]:g} s on networks {', '.join(map(str, networks))}"
        + (f", {limits[-1]:g} s on the others" if len(limits) > 1 else "")
        + f". Runs: {len(rows)}. Commits: {', '.join(commits)}.",
        *(["", _speed_note(rows, ratios)] if ratios else []),
    ]


def speed_ratios(rows: Sequence[dict[str, Any]]) -> list[float]:
    """How many times longer CERS took than the master, wherever it solved the same network."""
    seconds = {
        (row_name(row), json.dumps(row["parameters"], sort_keys=True)): row["seconds"]
        for row in rows
        if row["verdict"] == "kept"
    }
    return [
        seconds[name, network] / seconds["master", network]
        for name, network in seconds
        if name == "cers" and ("master", network) in seconds
    ]


def draw_network(path: Path) -> None:
    """Draw a network of 29 points: what density does to where the vans drive."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    from dcrl.envs.express import network

    roads = network(PICTURE["points"], PICTURE["seed"])
    lower = PICTURE["lower"]
    figure, panels = plt.subplots(
        2, 2, figsize=(10, 7), height_ratios=[3, 1], layout="constrained", sharey="row"
    )
    for column, (name, title) in enumerate(
        (
            ("unconstrained", "Q-learning, no bounds"),
            ("master", f"DCRL, density ≥ {lower} everywhere"),
        )
    ):
        config = Config("express", PICTURE, settings(*ROWS[name]), 0)
        world, result, row = execute(config, None)
        rho, policy = result.density, result.policy
        axes = panels[0, column]
        here, there = np.nonzero(roads.roads & (np.arange(30)[:, None] < np.arange(30)))
        axes.plot(
            roads.positions[[here, there], 0], roads.positions[[here, there], 1],
            color="0.85", lw=1, zorder=0,
        )  # fmt: skip
        _draw_flow(axes, world, rho, policy, roads.positions)
        x, y = roads.positions[1:].T
        edge = np.where(roads.starts[1:], "black", "#b8860b")
        axes.scatter(x, y, 25 + 320 * rho[1:], color="gold", edgecolor=edge, lw=1.2, zorder=3)
        starved = rho[1:] < lower - 1e-3
        axes.scatter(x[starved], y[starved], 30, color="#c33", marker="x", lw=1.2, zorder=4)
        axes.scatter(*roads.positions[0], 160, color="#d33", marker="s", zorder=4)
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.set_title(f"{title}\nexpected distance {-row['objective']:.2f}")
        for side in axes.spines.values():
            side.set_visible(False)
        bars = panels[1, column]
        ordered = np.sort(rho[1:])
        colour = np.where(ordered < lower - 1e-3, "#c33", "gold")
        bars.bar(np.arange(len(ordered)), ordered, color=colour, edgecolor="#b8860b", lw=0.5)
        bars.axhline(lower, color="black", lw=1, ls="--")
        bars.set(xticks=[], xlabel="service points, by density")
    panels[1, 0].set_ylabel("density")
    figure.legend(
        handles=[
            Line2D([], [], color="#d33", marker="s", ls="", ms=9, label="ship centre"),
            Line2D([], [], color="gold", marker="o", ls="", ms=9, mec="black", label="start"),
            Line2D([], [], color="gold", marker="o", ls="", ms=9, mec="#b8860b", label="point"),
            Line2D([], [], color="#c33", marker="x", ls="", ms=6, label="below the bound"),
        ],
        loc="outside lower center", ncols=4, frameon=False,
    )  # fmt: skip
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _draw_flow(axes: Any, world: Any, rho: Any, policy: Any, positions: Any) -> None:
    """Draw arrows along the roads, as wide as the vans that use them are many."""
    transition = world.model.transition
    for pair in world.model.pairs:
        state, action = divmod(int(pair), world.model.num_actions)
        flow = rho[state] * policy[state, action]
        begin, end = transition.indptr[[pair, pair + 1]]
        if flow < 0.005 or begin == end:
            continue
        towards = int(transition.indices[begin])
        axes.annotate(
            "",
            positions[towards],
            positions[state],
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#36c",
                "alpha": 0.75,
                "lw": 0.4 + 3.5 * min(flow, 1.5),
                "shrinkA": 4,
                "shrinkB": 6,
                "connectionstyle": "arc3,rad=0.08",
            },
            zorder=1,
        )
