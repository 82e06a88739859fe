"""How the settings of ascent and CERS were chosen: a grid each, on networks that no table uses.

Both methods drive a softmax policy; how hot it is decides what they can do. The score is the
geometric mean of cost / optimum, where a run that keeps its bounds too late or never counts as
1000: about what a van costs that circles for as long as the discount lets it. The density master
runs on the same networks, to compare times with.
"""

import dataclasses
import json
import sys
from itertools import product

import numpy as np

from dcrl.presets import Settings, settings
from dcrl.reproduce.runs import finished_rows, run_all
from dcrl.run import Config, write
from measure import RESULTS, keep

CELLS = ((10, 0.1, 10), (10, 0.5, 10), (20, 0.3, 30), (20, 0.5, 30), (100, 0.1, 60), (100, 0.5, 60))
NETWORK = 100
UNSOLVED = 1000.0
RUNS = RESULTS / "tuning.jsonl"


def candidates() -> list[Settings]:
    ascent = [
        dataclasses.replace(settings("dcrl", "ascent"), temperature=temperature, step_size=alpha)
        for temperature, alpha in product((0.5, 1.0, 2.0, 4.0), (0.05, 0.02, 0.005))
    ]
    search = [
        dataclasses.replace(
            settings("cers"), temperature=temperature, search_mean=mean, search_noise=noise
        )
        for temperature, mean, noise in product((1.0, 4.0), (0.02, 0.1, 0.5), (0.0, 0.05))
    ]
    return [settings(), *ascent, *search]


def described(chosen: Settings) -> str:
    if chosen.method == "cers":
        return (
            f"temperature {chosen.temperature:g}, mean {chosen.search_mean:g}, "
            f"noise {chosen.search_noise:g}"
        )
    if chosen.dual == "ascent":
        return f"temperature {chosen.temperature:g}, alpha {chosen.step_size:g}"
    return "as everywhere"


def config(chosen: Settings, points: int, lower: float, seconds: float) -> Config:
    parameters = {"points": points, "lower": lower, "seed": NETWORK, "discount": 0.999}
    return Config(
        "express", parameters, dataclasses.replace(chosen, seconds=float(seconds)), NETWORK
    )


def main() -> None:
    everything = [config(chosen, *cell) for chosen in candidates() for cell in CELLS]
    run_all(everything, RUNS, 2, lambda row, before, total: print(".", end="", flush=True))
    table = []
    for chosen in candidates():
        rows = finished_rows([config(chosen, *cell) for cell in CELLS], RUNS)
        ratios = [
            row["objective"] / row["referee"] if row["verdict"] == "kept" else UNSOLVED
            for row in rows
        ]
        table.append(
            {
                "method": chosen.method if chosen.method != "dcrl" else chosen.dual,
                "settings": described(chosen),
                "score": float(np.exp(np.mean(np.log(ratios)))),
                "solved": sum(row["verdict"] == "kept" for row in rows),
                "ratios": ratios,
                "seconds": [row["seconds"] for row in rows],
            }
        )
    table.sort(key=lambda row: (row["method"], row["score"]))
    keep("tuning", table)


def report() -> None:
    """Write the table for the documents."""
    rows = json.loads((RESULTS / "tuning.json").read_text())["rows"]
    cells = " | ".join(f"{points} points, {lower}" for points, lower, _ in CELLS)
    text = [
        f"| method | settings | score | {cells} |",
        "| --- | --- | ---: |" + " ---: |" * len(CELLS),
    ]
    for row in rows:
        outcomes = [
            f"{ratio:.3g} ({seconds:.2g} s)" if ratio < UNSOLVED else "-"
            for ratio, seconds in zip(row["ratios"], row["seconds"], strict=True)
        ]
        score = f"{row['score']:.3g}"
        text.append(f"| {row['method']} | {row['settings']} | {score} | {' | '.join(outcomes)} |")
    write(RESULTS / "tuning.md", ("\n".join(text) + "\n").encode())


if __name__ == "__main__":
    if "--report" not in sys.argv:
        main()
    report()
