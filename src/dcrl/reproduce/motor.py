"""The motor: reward and temperature density per method, behaviour, and how multipliers settle."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from dcrl.envs.motor import GRID, HIGHEST, Motor, bound
from dcrl.native_run import NativeConfig, NativeRun
from dcrl.presets import native_settings
from dcrl.reproduce.native import (
    Entry,
    read_runs,
    rounded,
    run_entries,
    to_csv,
    to_markdown,
    write_runs,
)
from dcrl.run import write

SEEDS, QUICK_SEEDS = 10, 2
EVERY = 8  # steps of the behaviour that are kept
LINES = {
    # title: method, learner, dual
    "DCRL, PPO, PI control": ("dcrl", "ppo", "pi"),
    "DCRL, TRPO, PI control": ("dcrl", "trpo", "pi"),
    "DCRL, DDPG, PI control": ("dcrl", "ddpg", "pi"),
    "DCRL, PPO, ascent as published": ("dcrl", "ppo", "ascent"),
    "PPO, unconstrained": ("unconstrained", "ppo", "pi"),
}
COLOURS = ("#1f6fb4", "#3a9a5b", "#8a5bb0", "#d98b1f", "#c33")


def plan(reference: str, quick: bool) -> list[Entry]:
    """Return every training of the table."""
    entries: list[Entry] = []
    for title, names in LINES.items():
        chosen = native_settings("motor", *names)
        if quick:
            chosen = dataclasses.replace(chosen, rounds=40, lanes=320, episodes=256)
        seeds = tuple(range(QUICK_SEEDS if quick else SEEDS))
        entries.append(Entry(title, NativeConfig("motor", {"reference": reference}, chosen, seeds)))
    return entries


def reproduce(*, quick: bool = False, out: Path | None = None, only_report: bool = False) -> None:
    """Run what is missing, then write tables and figures for both references."""
    folder = out or Path("results") / ("motor-quick" if quick else "motor")
    work = Path("runs") / ("reproduce-quick" if quick else "reproduce")
    console = Console(stderr=True)
    folder.mkdir(parents=True, exist_ok=True)
    for reference in ("random", "sawtooth"):
        path = folder / f"{reference}.json"
        if not only_report:
            write_runs(path, run_entries(plan(reference, quick), work, console, gather))
        gathered = read_runs(path)
        write(folder / f"{reference}.csv", to_csv(gathered))
        write(folder / f"{reference}.md", to_markdown(gathered))
        draw_density(gathered, folder / f"{reference}-density.png")
        draw_training(gathered, folder / f"{reference}-training.png")
        if reference == "sawtooth":
            draw_behaviour(gathered, folder / "behaviour.png")
    console.print(f"written: tables and figures in {folder}")


def gather(entry: Entry, run: NativeRun) -> dict[str, Any]:
    """Return what the figures need of a training."""
    volume, finite = GRID.volume, np.isfinite(GRID.integrate(bound))
    upper = GRID.integrate(bound)
    paths: dict[str, list[Any]] = {"objective": [], "slack": [], "multiplier": []}
    judged: dict[str, list[Any]] = {"low": [], "estimate": [], "high": []}
    for answer in run.answers:
        value = answer.history["value"].astype(float)
        paths["objective"].append(rounded(answer.history["objective"]))
        paths["slack"].append(rounded((1 - value[:, finite] / upper[finite]).min(axis=1), 4))
        paths["multiplier"].append(rounded(np.abs(answer.history["net"]).max(axis=1), 4))
        for side, kept in judged.items():
            kept.append(rounded(answer.history[f"judged.{side}"] / volume))
    behaviour = {}
    if entry.config.parameters["reference"] == "sawtooth":
        behaviour = {"behaviour": drive_once(run)}
    return {"paths": paths, "density": judged, **behaviour}


def drive_once(run: NativeRun) -> dict[str, Any]:
    """Drive one episode of the first seed's likeliest actions' policy, as it acts."""
    env = Motor("sawtooth")
    answer = run.answers[0]
    policy = answer.policies[int(np.argmax(answer.weights))]

    def step(carry: Any, key: Any) -> tuple[Any, Any]:
        key_act, key_step = jax.random.split(key)
        seen = env.observe(carry)
        action = run.learner.act(policy, key_act, seen[None])[0]
        duty = env.actions.to_world(action)
        return env.step(key_step, carry, duty).state, (seen, duty[0])

    keys = jax.random.split(jax.random.key(0), env.horizon)
    _, (seen, duty) = jax.lax.scan(step, env.reset(jax.random.key(1)), keys)
    shown = np.asarray(seen, float)[::EVERY]
    smooth = np.convolve(np.asarray(duty, float), np.ones(40) / 40, "same")[::EVERY]
    return {
        "speed": rounded(shown[:, 0], 4),
        "temperature": rounded(shown[:, 3], 4),
        "reference": rounded(shown[:, 5], 4),
        "duty": rounded(smooth, 4),
    }


def _axes(rows: int, columns: int, size: tuple[float, float], **more: Any) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", **more)
    for panel in np.ravel(axes):
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def draw_density(gathered: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the density of temperatures per method under the bound, and the rewards."""
    figure, (left, right) = _axes(1, 2, (11, 4.2), width_ratios=[3, 2])
    fine = np.linspace(0.15, 0.5, 400)
    left.fill_between(fine, bound(fine[:, None]), 1e7, color="0.92", lw=0)
    left.plot(fine, bound(fine[:, None]), color="black", lw=1.5, label="bound")
    at = GRID.nodes[:, 0]
    for entry, colour in zip(gathered, COLOURS, strict=True):
        density = np.array(entry["density"]["estimate"], float)
        left.plot(at, density.mean(0), color=colour, lw=1.6, label=entry["title"])
        left.fill_between(at, density.min(0), density.max(0), color=colour, alpha=0.18, lw=0)
    left.set(
        yscale="log", xlim=(0.1, 0.45), ylim=(100, 2e5), xlabel="temperature",
        ylabel="density (steps of an episode\nper unit of temperature)",
    )  # fmt: skip
    left.legend(frameon=False, fontsize=8)
    for place, (entry, colour) in enumerate(zip(gathered, COLOURS, strict=True)):
        objective = [row["objective"] for row in entry["rows"]]
        right.scatter(objective, np.full(len(objective), -place), s=16, color=colour, zorder=3)
    referee = gathered[0]["rows"][0]["referee"]
    if referee is not None:
        right.axvline(referee, color="black", lw=1, ls="--")
        right.annotate("referee", (referee, 0.6), ha="center", fontsize=8, annotation_clip=False)
    right.set(
        yticks=-np.arange(len(gathered)), yticklabels=[entry["title"] for entry in gathered],
        xlabel="reward of an episode, a dot per seed", ylim=(-len(gathered) + 0.5, 0.5),
    )  # fmt: skip
    _save(figure, path)


def draw_training(gathered: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw how the worst slack and the largest multiplier move, controlled and as published."""
    names = ("DCRL, PPO, PI control", "DCRL, PPO, ascent as published")
    shown = [entry for entry in gathered if entry["title"] in names]
    figure, panels = _axes(2, len(shown), (11, 5), sharex=True, sharey="row", squeeze=False)
    for column, entry in enumerate(shown):
        above, below = panels[:, column]
        for slack, price in zip(entry["paths"]["slack"], entry["paths"]["multiplier"], strict=True):
            rounds = np.arange(1, len(slack) + 1)
            above.plot(rounds, np.array(slack, float), lw=0.8, color="#1f6fb4", alpha=0.6)
            below.plot(rounds, np.array(price, float), lw=0.8, color="#d98b1f", alpha=0.6)
        above.axhline(0, color="black", lw=1)
        above.set(title=entry["title"], ylim=(-2, 1))
        below.set(xlabel="round", yscale="log")
    panels[0, 0].set_ylabel("worst slack, of its bound\n(measured in training)")
    panels[1, 0].set_ylabel("largest multiplier")
    _save(figure, path)


def draw_behaviour(gathered: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the second ramp of an episode: duty up, down when hot, and up again."""
    names = ("DCRL, PPO, PI control", "PPO, unconstrained")
    shown = [entry for entry in gathered if entry["title"] in names]
    figure, panels = _axes(3, len(shown), (11, 6.5), sharex=True, sharey="row", squeeze=False)
    for column, entry in enumerate(shown):
        traces = {name: np.array(x, float) for name, x in entry["behaviour"].items()}
        time = np.arange(len(traces["speed"])) * EVERY * Motor.step_seconds
        speed, duty, heat = panels[:, column]
        speed.plot(time, traces["reference"], color="black", lw=1, ls="--", label="reference")
        speed.plot(time, traces["speed"], color="#1f6fb4", lw=1.2, label="speed")
        duty.plot(time, traces["duty"], color="#3a9a5b", lw=1.2)
        heat.plot(time, traces["temperature"], color="#c33", lw=1.2)
        heat.axhline(0.25, color="0.5", lw=0.8, ls=":")
        speed.set(title=entry["title"], ylim=(0, HIGHEST * 1.08))
        heat.set(xlabel="seconds")
    panels[0, 0].set_ylabel("speed")
    panels[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
    panels[1, 0].set_ylabel("duty cycle,\nmean of 4 ms")
    panels[2, 0].set_ylabel("temperature")
    _save(figure, path)
