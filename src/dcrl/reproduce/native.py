"""What the tables and figures of native worlds share: trainings, one after the other, and rows.

The trainings themselves lie in a folder of work, each resumed where it was cut short. What figures
and tables need of them is small, and kept beside these as JSON.
"""

import csv
import dataclasses
import functools
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy import ndarray as Array
from rich.console import Console

from dcrl.drive import Experience, drive, open_lanes
from dcrl.gauge import bind_features
from dcrl.native_run import Answer, NativeConfig, NativeRun, execute_native, load_native
from dcrl.presets import native_settings
from dcrl.run import write

if TYPE_CHECKING:
    from dcrl.envs.native import Env

SEEDS, QUICK_SEEDS = 10, 2
QUICK = {"rounds": 40, "episodes": 256}

COLUMNS = (
    "task", "variant", "method", "learner", "dual", "seed", "steps", "rounds", "seconds",
    "compile_seconds", "parameters", "objective", "referee", "optimum_lower", "optimum_upper",
    "worst_slack", "worst_slack_low", "verdict", "violation_in_training", "commit", "status",
    "objective_low", "objective_high", "episodes", "seeds_together",
)  # fmt: skip

LINES = {
    # title: method, learner, dual
    "DCRL, PPO, PI control": ("dcrl", "ppo", "pi"),
    "DCRL, TRPO, PI control": ("dcrl", "trpo", "pi"),
    "DCRL, DDPG, PI control": ("dcrl", "ddpg", "pi"),
    "DCRL, PPO, ascent as published": ("dcrl", "ppo", "ascent"),
    "PPO, unconstrained": ("unconstrained", "ppo", "pi"),
}
COLOURS = dict(zip(LINES, ("#1f6fb4", "#3a9a5b", "#8a5bb0", "#d98b1f", "#c33"), strict=True))


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


def plan(task: str, parameters: dict[str, Any], quick: dict[str, Any] | None) -> list[Entry]:
    """Return every training of a table; `quick` changes their settings and takes fewer seeds."""
    entries: list[Entry] = []
    seeds = tuple(range(SEEDS if quick is None else QUICK_SEEDS))
    for title, names in LINES.items():
        chosen = dataclasses.replace(native_settings(task, *names), **(quick or {}))
        entries.append(Entry(title, NativeConfig(task, parameters, chosen, seeds)))
    return entries


def run_entries(
    entries: Sequence[Entry],
    work: Path,
    console: Console,
    more: Callable[[NativeRun], dict[str, Any]],
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
                "paths": paths_of(run),
                **more(run),
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


def paths_of(run: NativeRun) -> dict[str, list[Any]]:
    """Return how objective, worst slack and largest multiplier moved in training, per seed."""
    env = run.config.env()
    bounds = bind_features(env.constraints, env).bounds
    paths: dict[str, list[Any]] = {"objective": [], "slack": [], "multiplier": []}
    for answer in run.answers:
        value = answer.history["value"].astype(float)
        paths["objective"].append(rounded(answer.history["objective"]))
        paths["slack"].append(rounded(np.array([bounds.worst_slack(v) for v in value]), 4))
        paths["multiplier"].append(rounded(np.abs(answer.history["net"]).max(axis=1), 4))
    return paths


def judged_of(answer: Answer) -> dict[str, Array]:
    """Return what the fresh episodes said of each bounded quantity: low, estimate, high."""
    return {side: answer.history[f"judged.{side}"] for side in ("low", "estimate", "high")}


def whole_episodes(run: NativeRun, env: "Env", index: int, count: int, seed: int) -> Experience:
    """Drive whole episodes of one seed's answer, by the policy of the greatest weight."""
    answer = run.answers[index]
    act = functools.partial(run.learner.act, answer.policies[int(np.argmax(answer.weights))])
    key_open, key_drive = jax.random.split(jax.random.key(seed))
    lanes = open_lanes(key_open, env, act, count, env.horizon)
    return jax.device_get(drive(key_drive, env, act, lanes, env.horizon)[0])


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
            f"{rows[0]['steps'] / 1e6:.3g} million | {max(row['seconds'] for row in rows):.0f} |"
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


def panels(rows: int, columns: int, size: tuple[float, float], **more: Any) -> Any:
    """Return an empty figure, and its panels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", **more)
    for panel in np.ravel(axes):
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """Write a figure, the same bytes for the same picture."""
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def draw_rewards(axes: Any, gathered: Sequence[dict[str, Any]], xlabel: str) -> None:
    """Draw a dot per seed and the referee; hollow where a bound is not shown to be kept."""
    for place, entry in enumerate(gathered):
        colour = COLOURS[entry["title"]]
        for row in entry["rows"]:
            fill = colour if row["verdict"] == "kept" else "none"
            axes.scatter(row["objective"], -place, s=22, color=fill, edgecolor=colour, zorder=3)
    referee = gathered[0]["rows"][0]["referee"]
    if referee is not None:
        axes.axvline(referee, color="black", lw=1, ls="--")
        axes.annotate("referee", (referee, 0.6), ha="center", fontsize=8, annotation_clip=False)
    axes.set(
        yticks=-np.arange(len(gathered)), yticklabels=[entry["title"] for entry in gathered],
        xlabel=f"{xlabel}, a dot per seed\n(hollow: a bound is broken or undecided)",
        ylim=(-len(gathered) + 0.5, 0.5),
    )  # fmt: skip


def draw_training(gathered: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw how the worst slack and the largest multiplier move, controlled and as published."""
    names = ("DCRL, PPO, PI control", "DCRL, PPO, ascent as published")
    shown = [entry for entry in gathered if entry["title"] in names]
    figure, axes = panels(2, len(shown), (11, 5), sharex=True, sharey="row", squeeze=False)
    for column, entry in enumerate(shown):
        above, below = axes[:, column]
        for slack, price in zip(entry["paths"]["slack"], entry["paths"]["multiplier"], strict=True):
            rounds = np.arange(1, len(slack) + 1)
            above.plot(rounds, np.array(slack, float), lw=0.8, color="#1f6fb4", alpha=0.6)
            below.plot(rounds, np.array(price, float), lw=0.8, color="#d98b1f", alpha=0.6)
        above.axhline(0, color="black", lw=1)
        above.set(title=entry["title"], ylim=(-2, 1))
        below.set(xlabel="round", yscale="log")
    axes[0, 0].set_ylabel("worst slack, of its bound\n(measured in training)")
    axes[1, 0].set_ylabel("largest multiplier")
    save(figure, path)


def work_folder(quick: bool) -> Path:
    """Return where trainings of tables lie, finished or not."""
    return Path("runs") / ("reproduce-quick" if quick else "reproduce")
