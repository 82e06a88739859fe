"""A run on disk: `config.json`, `metrics.jsonl`, `policy.safetensors`, `record.json`.

Plain files only, and loading one never executes anything. Metrics are written as they come; the
policy and the record appear whole or not at all.
"""

import contextlib
import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from safetensors.numpy import load_file, save

from dcrl.presets import Settings, build, make_world

if TYPE_CHECKING:
    from collections.abc import Callable

    from dcrl.native_run import NativeRun
    from dcrl.result import Result, Round
    from dcrl.tabular.model import World

TOLERANCE = 1e-3
"""Density by which a bound may be missed in the exact check that calls a run solved."""

LIBRARIES = ("jax", "numpy", "scipy", "highspy")


@dataclass(frozen=True)
class Config:
    """What a run did: enough to do it again."""

    task: str
    parameters: dict[str, Any]  # of the world
    settings: Settings
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the versions that ran it."""
        return {**asdict(self), "versions": {name: version(name) for name in LIBRARIES}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Config":
        """Read it back."""
        return cls(data["task"], data["parameters"], Settings(**data["settings"]), data["seed"])

    def world(self) -> "World":
        """Build the world."""
        return make_world(self.task, **self.parameters)


def record(config: Config, world: "World", result: "Result") -> dict[str, Any]:
    """Return the row of a finished run, with the same columns for every method and task.

    The referee is the occupancy LP on the true model, and the verdict is exact: neither is known
    to the method. `optimum_lower` and `optimum_upper` come from sampled transitions alone.
    """
    from dcrl.evaluation import evaluate_exactly
    from dcrl.tabular.lp import Infeasible, occupancy_lp

    exact = evaluate_exactly(world, result.policy, TOLERANCE)
    try:
        referee = occupancy_lp(world.model, world.bounds).objective
    except Infeasible:
        referee = None
    outside = [row.worst_slack < 0 for row in result.history]
    return {
        "task": config.task,
        "variant": variant(config.parameters),
        "method": config.settings.method,
        "learner": "q_learning",
        "dual": config.settings.dual,
        "seed": config.seed,
        "steps": result.steps,
        "rounds": len(result.history),
        "seconds": round(result.seconds, 4),
        "compile_seconds": round(result.compile_seconds, 4),
        "parameters": int(world.model.available.sum()),
        "objective": float(exact.objective.estimate[0]),
        "referee": referee,
        "optimum_lower": result.optimum_lower,
        "optimum_upper": result.optimum_upper if np.isfinite(result.optimum_upper) else None,
        "worst_slack": exact.worst_slack,
        "worst_slack_low": exact.worst_slack_low,
        "verdict": exact.verdict,
        "violation_in_training": float(np.mean(outside)) if outside else None,
        "commit": commit(),
        "status": result.status.name,
        "repaired": result.repaired,
    }


def variant(parameters: Mapping[str, Any]) -> str:
    """Return the parameters of a world in one line."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


@functools.cache
def commit() -> str:
    """Return the commit the code was run from, or the version of an installed package.

    It is marked dirty where the code differs from that commit; results that differ do not count.
    """
    package = str(Path(__file__).parent)

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["git", "-C", package, *words], check=False, capture_output=True, text=True
        )

    with contextlib.suppress(OSError):
        if git("ls-files", "--error-unmatch", Path(__file__).name).returncode == 0:
            dirty = git("diff", "--quiet", "HEAD", "--", package).returncode != 0
            return git("rev-parse", "--short=10", "HEAD").stdout.strip() + "-dirty" * dirty
    return version("dcrl")


@dataclass(frozen=True)
class Run:
    """A finished run, read back."""

    config: Config
    record: dict[str, Any]
    policy: Float[Array, "s a"]
    density: Float[Array, " s"]
    multipliers_lower: Float[Array, " m"]
    multipliers_upper: Float[Array, " m"]


def execute(
    config: Config,
    folder: Path | None,
    on_round: "Callable[[Round], None] | None" = None,
) -> tuple["World", "Result", dict[str, Any]]:
    """Run a configuration, and keep it in `folder` if one is given."""
    from dcrl.algorithm import solve

    world = config.world()
    with contextlib.ExitStack() as stack:
        watchers = [] if on_round is None else [on_round]
        if folder is not None:
            create(folder)
            write(folder / "config.json", json.dumps(config.to_json(), indent=2).encode())
            metrics = stack.enter_context((folder / "metrics.jsonl").open("w", buffering=1))
            watchers.append(lambda row: _log(metrics, row))

        def tell(row: "Round") -> None:
            for watch in watchers:
                watch(row)

        result = solve(
            world,
            key=config.seed,
            on_round=tell,
            **build(config.settings),
        )
    row = record(config, world, result)
    if folder is not None:
        arrays = {
            "policy": result.policy,
            "density": result.density,
            "multipliers_lower": result.multipliers.lower,
            "multipliers_upper": result.multipliers.upper,
        }
        write(folder / "policy.safetensors", save(arrays))
        write(folder / "record.json", json.dumps(row, indent=2).encode())
    return world, result, row


def _log(file: Any, row: "Round") -> None:
    if row.round <= 1000 or row.round % 100 == 0:  # long runs of a small table go on for ever
        file.write(json.dumps(finite(row._asdict())) + "\n")


def finite(data: dict[str, Any]) -> dict[str, Any]:
    """JSON knows neither infinity nor NaN."""
    return {
        key: None if isinstance(value, float) and not np.isfinite(value) else value
        for key, value in data.items()
    }


def create(folder: Path) -> None:
    """Create the folder of a run; one that exists is somebody's work."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ValueError(
            f"the folder {folder} exists already, and nothing in it is overwritten. Name another "
            "one with --out, or move it away."
        ) from None
    except OSError as error:
        raise ValueError(f"the folder {folder} cannot be made: {error.strerror}.") from None


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ValueError(f"{path} cannot be written: {error.strerror}.") from None


def load(folder: str | Path) -> "Run | NativeRun":
    """Read a finished run back."""
    folder = Path(folder)
    missing = [name for name in ("config.json", "record.json") if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not a finished run: it has no {', '.join(missing)}.")
    try:
        data = json.loads((folder / "config.json").read_text())
        if "seeds" in data:
            from dcrl.native_run import load_native

            return load_native(folder)
        config = Config.from_json(data)
        row = json.loads((folder / "record.json").read_text())
        arrays = load_file(folder / "policy.safetensors")
        return Run(
            config,
            row,
            arrays["policy"],
            arrays["density"],
            arrays["multipliers_lower"],
            arrays["multipliers_upper"],
        )
    except Exception as error:
        raise ValueError(f"{folder} does not hold a readable run: {error}") from error


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read a file of JSON lines; a last line that a kill cut short is left out."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)
