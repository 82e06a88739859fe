"""The rover: return and time in danger per method, the ways it takes, and how it learns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dcrl.envs.rover import DANGER, GOAL, SIZE, START
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

WAYS, EVERY = 24, 3  # episodes drawn, and steps of them that are kept


def reproduce(*, quick: bool = False, out: Path | None = None, only_report: bool = False) -> None:
    """Run what is missing, then write the table and the figures."""
    folder = out or Path("results") / ("rover-quick" if quick else "rover")
    console = Console(stderr=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "runs.json"
    if not only_report:
        entries = plan("rover", {}, QUICK if quick else None)
        write_runs(path, run_entries(entries, work_folder(quick), console, gather))
    gathered = read_runs(path)
    write(folder / "table.csv", to_csv(gathered))
    write(folder / "table.md", to_markdown(gathered))
    draw_ways(gathered, folder / "ways.png")
    draw_training(gathered, folder / "training.png")
    console.print(f"written: table and figures in {folder}")


def gather(run: NativeRun) -> dict[str, Any]:
    """Return each seed's time in danger, and where the first seed drives."""
    env = run.config.env()
    seen = whole_episodes(run, env, 0, WAYS, seed=0)
    place = (np.asarray(seen.observation[::EVERY, :, :2], float) + 1) * SIZE / 2
    place[~np.asarray(seen.alive[::EVERY])] = np.nan
    danger = [rounded(judged_of(answer)["estimate"])[0] for answer in run.answers]
    return {"danger": danger, "ways": rounded(place.transpose(1, 2, 0), 4)}


def draw_ways(gathered: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw where each method drives, and what it earns."""
    from matplotlib.patches import Circle, Rectangle

    figure, axes = panels(2, 3, (11, 7.4))
    (low_x, low_y), (high_x, high_y) = START
    for panel, entry in zip(np.ravel(axes), gathered, strict=False):
        panel.add_patch(
            Rectangle((low_x, low_y), high_x - low_x, high_y - low_y, color="0.85", lw=0)
        )
        for disc, colour in ((DANGER, "#f3c9c4"), (GOAL, "#bfe0c3")):
            x, y = disc.center
            panel.add_patch(Circle((x, y), disc.radius, color=colour, lw=0))
        for x, y in np.array(entry["ways"], float):
            panel.plot(x, y, color=COLOURS[entry["title"]], lw=0.8)
        panel.set(xlim=(0, SIZE), ylim=(0, SIZE), aspect="equal", xticks=[], yticks=[])
        reward = np.median([row["objective"] for row in entry["rows"]])
        panel.set_title(
            f"{entry['title']}\nreward {reward:.3g}, {np.median(entry['danger']):.3g} steps in "
            "danger",
            fontsize=9,
        )
    draw_rewards(axes[1, 2], gathered, "discounted reward")
    save(figure, path)
