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

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"


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
