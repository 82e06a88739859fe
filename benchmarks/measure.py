"""What every benchmark shares: interleaved repeats, and a file that says where they ran."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dcrl.run import commit, write

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "benchmarks"
REFEREES = ROOT / "src" / "dcrl" / "referees.json"


def interleaved(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each side, taken in turns so that a busy moment hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            begun = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begun)
    return seconds


def median(values: list[float]) -> float:
    return statistics.median(values)


def keep(name: str, rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    content = {
        "commit": commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("jax", "numpy", "scipy", "highspy")},
        "rows": rows,
    }
    write(RESULTS / f"{name}.json", (json.dumps(content, indent=2) + "\n").encode())


def keep_table(name: str, header: list[str], rows: list[list[str]]) -> None:
    """Keep a table for the documents; the first column is of words, the others are of numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    text = "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))
    write(RESULTS / f"{name}.md", text.encode())


def register(name: str, entry: dict[str, Any]) -> None:
    """Write a line of the referees, leaving all others as they are."""
    entries = json.loads(REFEREES.read_text())
    entries[name] = entry
    write(REFEREES, (json.dumps(dict(sorted(entries.items())), indent=2) + "\n").encode())
