import csv
import io
import os
import subprocess
import sys
import time

import pytest

from dcrl.reproduce import express
from dcrl.reproduce.runs import finished_rows, identity, run_all


def row(points, lower, seed, name, *, seconds, cost, verdict="kept", limit=600.0):
    method, dual = express.ROWS[name]
    return {
        "parameters": {"points": points, "lower": lower, "seed": seed, "discount": 0.999},
        "settings": {"seconds": limit},
        "method": method,
        "dual": dual,
        "verdict": verdict,
        "seconds": seconds,
        "objective": -cost,
        "referee": -10.0,
        "optimum_lower": -cost if verdict == "kept" else None,
        "optimum_upper": -9.9,
        "rounds": 5,
        "steps": 100,
        "commit": "abc",
        "seed": seed,
    }


ROWS = [
    row(10, 0.1, 0, "master", seconds=1.0, cost=10.1),
    row(10, 0.1, 1, "master", seconds=3.0, cost=10.3),
    row(10, 0.1, 0, "cers", seconds=200.0, cost=30.0),
    row(10, 0.1, 1, "cers", seconds=600.0, cost=900.0, verdict="broken"),
]


def test_the_table_counts_solved_networks_and_takes_medians():
    text = express.to_markdown(ROWS)
    assert (
        "| 10 | 0.1 | DCRL, density master | 2/2 in 600 s | 2 | 10.2 | 1.020 | 1.030 | 3.88% |"
        in text
    )
    assert "| 10 | 0.1 | CERS | 1/2 in 600 s | 200 | 30 | 3.000 | 3.000 |" in text
    assert "| 10 | 0.1 | *the paper's DCRL* | 1/1 in 600 s | 1.35 | 2.91 |" in text


def test_speed_is_compared_where_both_solved():
    assert express.speed_ratios(ROWS) == [200.0]
    told = express.to_markdown(ROWS)
    assert "it took 2e+02 to 2e+02 times as long as the density master (median 2e+02)" in told
    assert "for 3 to 3 times the optimal cost (0 of them for at most 2 times)" in told


def test_the_limit_of_each_run_is_said():
    short = row(10, 0.1, 5, "cers", seconds=60.0, cost=900.0, verdict="broken", limit=60.0)
    assert "| CERS | 0/1 in 60 s, 1/2 in 600 s |" in express.to_markdown([*ROWS, short])


def test_what_was_never_solved_is_marked():
    text = express.to_markdown([ROWS[3]])
    assert "| 0/1 in 600 s | 600\\* | 900\\* | 90.000\\* | 90.000\\* | - |" in text


def test_the_raw_table_has_a_line_per_run():
    read = list(csv.DictReader(io.StringIO(express.to_csv(ROWS))))
    assert len(read) == 4
    assert read[3]["verdict"] == "broken"
    assert read[0]["limit"] == "600.0"


def test_the_plan_is_the_one_that_is_published():
    plan = express.plan(quick=False, methods=())
    assert len(plan) == 9 * 10 * 4 + 9 * 3
    longest = [c for c in plan if c.settings.seconds == 600]
    assert len(longest) == 9 * 3 * 5
    assert {c.parameters["seed"] for c in longest} == {0, 1, 2}
    assert {c.settings.seconds for c in plan} == {600.0, 60.0}
    assert len({str(c) for c in plan}) == len(plan)
    assert len(express.plan(quick=True, methods=["master"])) == 2 * 2 * 3


def test_unknown_rows_are_refused():
    with pytest.raises(ValueError, match="Did you mean 'master'"):
        express.plan(quick=True, methods=["mastr"])


def test_a_kill_loses_only_the_run_in_progress(tmp_path):
    """Killed without warning, with a line half written: workers end too, finished runs are kept."""
    path = tmp_path / "runs.jsonl"
    code = (
        "from pathlib import Path\n"
        "from dcrl.reproduce.express import plan\n"
        "from dcrl.reproduce.runs import run_all\n"
        "if __name__ == '__main__':\n"
        "    quick = plan(True, ['unconstrained'])[:1]\n"
        "    slow = [c for c in plan(False, ['ascent']) if c.parameters['points'] == 100][:1]\n"
        f"    run_all(quick + slow, Path({str(path)!r}), 1, lambda *a: None)\n"
    )
    script = tmp_path / "go.py"
    script.write_text(code)
    running = subprocess.Popen([sys.executable, script], start_new_session=True)
    try:
        wait_until(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
    finally:
        running.kill()
        running.wait()
    wait_until(lambda: not group_lives(running.pid))
    with path.open("ab") as file:
        file.write(b'{"identity": "half a li')
    told = []
    configs = express.plan(True, ["unconstrained"])[:2]
    run_all(configs, path, 1, lambda row, before, total: told.append((row["seed"], before, total)))
    assert told == [(0, 1, 2)]  # the first of them was finished before the kill
    assert [r["identity"] for r in finished_rows(configs, path)] == [identity(c) for c in configs]


def wait_until(happened, seconds=60):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.1)


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
