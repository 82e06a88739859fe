"""The motor: reward and temperature density per method, behaviour, and how multipliers settle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dcrl.envs.motor import GRID, HIGHEST, Motor, bound
from dcrl.native_run import NativeRun
from dcrl.reproduce.native import (
    COLOURS,
    QUICK,
    draw_rewards,
    draw_training,
    judged_of,
    panels,
    plan,
    read_runs,
    rounded,
    run_entries,
    save,
    to_csv,
    to_markdown,
    whole_episodes,
    work_folder,
    write_runs,
)
from dcrl.run import write

EVERY = 8  # steps of the behaviour that are kept


def reproduce(*, quick: bool = False, out: Path | None = None, only_report: bool = False) -> None:
    """Run what is missing, then write tables and figures for both references."""
    folder = out or Path("results") / ("motor-quick" if quick else "motor")
    console = Console(stderr=True)
    folder.mkdir(parents=True, exist_ok=True)
    for reference in ("random", "sawtooth"):
        path = folder / f"{reference}.json"
        if not only_report:
            entries = plan("motor", {"reference": reference}, QUICK if quick else None)
            write_runs(path, run_entries(entries, work_folder(quick), console, gather))
        gathered = read_runs(path)
        write(folder / f"{reference}.csv", to_csv(gathered))
        write(folder / f"{reference}.md", to_markdown(gathered))
        draw_density(gathered, folder / f"{reference}-density.png")
        draw_training(gathered, folder / f"{reference}-training.png")
        if reference == "sawtooth":
            draw_behaviour(gathered, folder / "behaviour.png")
    console.print(f"written: tables and figures in {folder}")


def gather(run: NativeRun) -> dict[str, Any]:
    """Return the density of temperatures of each seed, and one episode where all are alike."""
    judged: dict[str, list[Any]] = {"low": [], "estimate": [], "high": []}
    for answer in run.answers:
        for side, value in judged_of(answer).items():
            judged[side].append(rounded(value / GRID.volume))
    sawtooth = run.config.parameters["reference"] == "sawtooth"
    return {"density": judged, **({"behaviour": drive_once(run)} if sawtooth else {})}


def drive_once(run: NativeRun) -> dict[str, Any]:
    """Drive one episode of the first seed as it acts."""
    env = Motor("sawtooth")
    seen = whole_episodes(run, env, 0, 1, seed=0)
    shown = np.asarray(seen.observation[::EVERY, 0], float)
    duty = np.asarray(env.actions.to_world(seen.action)[:, 0, 0], float)
    smooth = np.convolve(duty, np.ones(40) / 40, "same")[::EVERY]
    return {
        "speed": rounded(shown[:, 0], 4),
        "temperature": rounded(shown[:, 3], 4),
        "reference": rounded(shown[:, 5], 4),
        "duty": rounded(smooth, 4),
    }


def draw_density(gathered: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the density of temperatures per method under the bound, and the rewards."""
    figure, (left, right) = panels(1, 2, (11, 4.2), width_ratios=[3, 2])
    fine = np.linspace(0.15, 0.5, 400)
    left.fill_between(fine, bound(fine[:, None]), 1e7, color="0.92", lw=0)
    left.plot(fine, bound(fine[:, None]), color="black", lw=1.5, label="bound")
    at = GRID.nodes[:, 0]
    for entry in gathered:
        colour = COLOURS[entry["title"]]
        density = np.array(entry["density"]["estimate"], float)
        left.plot(at, density.mean(0), color=colour, lw=1.6, label=entry["title"])
        left.fill_between(at, density.min(0), density.max(0), color=colour, alpha=0.18, lw=0)
    left.set(
        yscale="log", xlim=(0.1, 0.45), ylim=(100, 2e5), xlabel="temperature",
        ylabel="density (steps of an episode\nper unit of temperature)",
    )  # fmt: skip
    left.legend(frameon=False, fontsize=8)
    draw_rewards(right, gathered, "reward of an episode")
    save(figure, path)


def draw_behaviour(gathered: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw an episode of two ramps: duty up, down when hot, and up again."""
    names = ("DCRL, PPO, PI control", "PPO, unconstrained")
    shown = [entry for entry in gathered if entry["title"] in names]
    figure, axes = panels(3, len(shown), (11, 6.5), sharex=True, sharey="row", squeeze=False)
    for column, entry in enumerate(shown):
        traces = {name: np.array(x, float) for name, x in entry["behaviour"].items()}
        time = np.arange(len(traces["speed"])) * EVERY * Motor.step_seconds
        speed, duty, heat = axes[:, column]
        speed.plot(time, traces["reference"], color="black", lw=1, ls="--", label="reference")
        speed.plot(time, traces["speed"], color="#1f6fb4", lw=1.2, label="speed")
        duty.plot(time, traces["duty"], color="#3a9a5b", lw=1.2)
        heat.plot(time, traces["temperature"], color="#c33", lw=1.2)
        heat.axhline(0.25, color="0.5", lw=0.8, ls=":")
        speed.set(title=entry["title"], ylim=(0, HIGHEST * 1.08))
        heat.set(xlabel="seconds")
    axes[0, 0].set_ylabel("speed")
    axes[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
    axes[1, 0].set_ylabel("duty cycle,\nmean of 4 ms")
    axes[2, 0].set_ylabel("temperature")
    save(figure, path)
