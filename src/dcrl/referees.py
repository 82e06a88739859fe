"""What the referees of native worlds reach: figures that scripts under `benchmarks/` measured.

No exact optimum of a continuous world is known. Its referee is the best feasible controller that a
search or a discretised linear program found; each entry says which.
"""

import functools
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from dcrl.run import variant


@functools.cache
def entries() -> dict[str, dict[str, Any]]:
    """Return every entry, by task and variant."""
    return json.loads(files("dcrl").joinpath("referees.json").read_text())


def referee(task: str, parameters: Mapping[str, Any]) -> float | None:
    """Return the referee's objective on a task, or None if it was never asked."""
    entry = entries().get(f"{task} {variant(parameters)}".strip())
    return None if entry is None else float(entry["objective"])
