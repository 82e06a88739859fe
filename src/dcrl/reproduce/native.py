"""What the tables and figures of native worlds share: trainings, one after the other, and rows.

The trainings themselves lie in a folder of work, each resumed where it was cut short. What figures
and tables need of them is small, and kept beside these as `runs.json`.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array
from rich.console import Console

from dcrl.native_run import NativeConfig, NativeRun, execute_native, load_native
from dcrl.run import write

COLUMNS = (
    "task", "variant", "method", "learner", "dual", "seed", "steps", "rounds", "seconds",
    "compile_seconds", "parameters", "objective", "referee", "optimum_lower", "optimum_upper",
    "worst_slack", "worst_slack_low", "verdict", "violation_in_training", "commit", "status",
    "objective_low", "objective_high", "episodes", "seeds_together",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One line of a table: a training of several seeds."""

    title: str
    config: NativeConfig

    @property
    def slug(self) -> str:
        """Return its name as a folder."""
        chosen = self.config.settings
        parts = [self.config.task, *self.config.parameters.values(), chosen.learner, chosen.dual]
        return "-".join(map(str, parts))


def run_entries(
    entries: Sequence[Entry],
    work: Path,
    console: Console,
    more: Callable[[Entry, NativeRun], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Run what is missing in `work`, and return what tables and figures need of each entry."""
    gathered: list[dict[str, Any]] = []
    for number, entry in enumerate(entries, 1):
        folder = work / entry.slug
        if not (folder / "record.json").exists():
            _train(entry, folder, console, f"[{number}/{len(entries)}] {entry.title}")
        run = load_native(folder)
        if asdict(run.config) != asdict(entry.config):
            raise ValueError(
                f"{folder} holds a training with other settings; move it away to run this one."
            )
        rows = run.records
        kept = sum(row["verdict"] == "kept" for row in rows)
        console.print(
            f"[{number}/{len(entries)}] {entry.title}: objective "
            f"{np.mean([row['objective'] for row in rows]):.4g}, {kept} of {len(rows)} kept",
            highlight=False,
        )
        gathered.append(
            {
                "title": entry.title,
                "rows": rows,
                "settings": asdict(entry.config.settings),
                "parameters": entry.config.parameters,
                "versions": json.loads((folder / "config.json").read_text())["versions"],
                **more(entry, run),
            }
        )
    return gathered


def _train(entry: Entry, folder: Path, console: Console, what: str) -> None:
    """Begin a training, or go on with it."""
    with console.status(what) as status:

        def tell(everyone: Any, seconds: float) -> None:
            done, total = len(everyone[0].rows), entry.config.settings.rounds
            status.update(f"{what}: round {done} of {total}, {seconds:.0f} s")

        execute_native(entry.config, folder, tell, resumed=(folder / "config.json").exists())


def rounded(numbers: Array, digits: int = 5) -> Any:
    """Return plain numbers of a few significant digits, None where they are not finite."""
    return np.vectorize(
        lambda x: float(f"{x:.{digits}g}") if np.isfinite(x) else None, otypes=[object]
    )(np.asarray(numbers, float)).tolist()


def write_runs(path: Path, gathered: Sequence[dict[str, Any]]) -> None:
    """Keep what was gathered."""
    write(path, (json.dumps(list(gathered)) + "\n").encode())


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Read it back."""
    if not path.exists():
        raise ValueError(f"there are no finished runs in {path}.")
    return json.loads(path.read_text())


def to_csv(gathered: Sequence[dict[str, Any]]) -> bytes:
    """Return one line per seed."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    for entry in gathered:
        table.writerows(entry["rows"])
    return text.getvalue().encode()


def to_markdown(gathered: Sequence[dict[str, Any]]) -> bytes:
    """Return a line per entry: medians over seeds, with the worst and the best."""
    lines = [
        "| method | objective | of the referee's | bounds kept | worst slack | broken in training "
        "| steps per seed | seconds, all seeds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for entry in gathered:
        rows = entry["rows"]
        objective = [row["objective"] for row in rows]
        slack = [row["worst_slack"] for row in rows]
        verdicts = [row["verdict"] for row in rows]
        open_ones = verdicts.count("undecided")
        lines.append(
            f"| {entry['title']} | {np.median(objective):.4g} [{min(objective):.4g}, "
            f"{max(objective):.4g}] | {_against(rows)} | {verdicts.count('kept')} of {len(rows)}"
            + (f" ({open_ones} undecided)" if open_ones else "")
            + f" | {np.median(slack):+.1%} [{min(slack):+.1%}, {max(slack):+.1%}] | "
            f"{np.median([row['violation_in_training'] for row in rows]):.0%} of rounds | "
            f"{rows[0]['steps'] / 1e6:.0f} million | {max(row['seconds'] for row in rows):.0f} |"
        )
    commits = sorted({row["commit"] for entry in gathered for row in entry["rows"]})
    seeds = sorted({len(entry["rows"]) for entry in gathered})
    lines += [
        "",
        f"Medians over {' or '.join(map(str, seeds))} seeds [worst, best], each judged on "
        f"{gathered[0]['rows'][0]['episodes']:,} fresh episodes; a bound is kept where the upper "
        "limit of its 95 % interval, for all bounds together, is within it. Seconds without "
        f"compiling. Commits: {', '.join(commits)}.",
        "",
    ]
    return "\n".join(lines).encode()


def _against(rows: Sequence[dict[str, Any]]) -> str:
    """Say how an objective compares with the referee's; both are losses where negative."""
    referee = rows[0]["referee"]
    if referee is None:
        return ""
    mine = float(np.median([row["objective"] for row in rows]))
    return f"{(referee / mine if referee < 0 else mine / referee):.2f}"
