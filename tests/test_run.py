import json
import os
import subprocess

import numpy as np
import pytest

from dcrl import load
from dcrl.presets import choose, settings
from dcrl.reproduce.runs import finished_rows, identity, run_all
from dcrl.run import Config, commit, execute, lines, write

PARAMETERS = {"points": 10, "lower": 0.1, "seed": 1, "discount": 0.999}


def config(method="dcrl", dual="master", seed=1) -> Config:
    return Config("express", {**PARAMETERS, "seed": seed}, settings(method, dual), seed)


def test_a_run_reads_back_what_it_wrote(tmp_path):
    folder = tmp_path / "run"
    world, result, record = execute(config(), folder)
    run = load(folder)
    assert run.config == config()
    assert run.record == record
    np.testing.assert_array_equal(run.policy, result.policy)
    np.testing.assert_array_equal(run.density, result.density)
    np.testing.assert_array_equal(run.multipliers_lower, result.multipliers.lower)
    assert [row["round"] for row in lines(folder / "metrics.jsonl")] == [
        row.round for row in result.history
    ]
    assert run.config.world().name == world.name


def test_the_record_has_the_same_columns_for_every_method():
    records = [execute(config(*names), None)[2] for names in (("dcrl",), ("unconstrained",))]
    assert list(records[0]) == list(records[1])
    kept, broken = records
    assert (kept["verdict"], broken["verdict"]) == ("kept", "broken")
    assert kept["referee"] == broken["referee"]
    assert kept["optimum_lower"] <= kept["referee"] + 1e-9 <= kept["optimum_upper"] + 2e-9
    assert broken["optimum_lower"] is None
    assert broken["worst_slack"] == pytest.approx(-1)
    json.dumps(records, allow_nan=False)


def test_a_folder_that_exists_is_not_touched(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ValueError, match="exists already"):
        execute(config(), tmp_path)
    with pytest.raises(ValueError, match="exists already"):
        execute(config(), tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "precious"


def test_what_is_not_a_run_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"not a finished run: it has no config\.json"):
        load(tmp_path)
    execute(config(), tmp_path / "run")
    (tmp_path / "run" / "policy.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="does not hold a readable run"):
        load(tmp_path / "run")


def test_files_appear_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match="No space left on device"):
        write(path, b"after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_finished_runs_are_kept_and_the_rest_is_run(tmp_path):
    path = tmp_path / "runs.jsonl"
    configs = [config("unconstrained", seed=seed) for seed in (1, 2, 3)]
    told = []
    run_all(configs[:2], path, 1, lambda row, *_: told.append(row["identity"]))
    assert told == [identity(c) for c in configs[:2]]
    # A kill in the middle of writing leaves half a line: that run is lost, and only that one.
    whole = path.read_text()
    path.write_text(whole[: len(whole) - 40])
    assert len(finished_rows(configs, path)) == 1
    told.clear()
    run_all(configs, path, 2, lambda row, *_: told.append(row["identity"]))
    assert sorted(told) == sorted(identity(c) for c in configs[1:])
    rows = finished_rows(configs, path)
    assert [row["identity"] for row in rows] == [identity(c) for c in configs]
    assert [row["seed"] for row in rows] == [1, 2, 3]


def test_the_nearest_name_is_offered():
    with pytest.raises(ValueError, match=r"unknown dual 'mastr'.*Did you mean 'master'"):
        choose("dual", "mastr", ("master", "pi"))
    with pytest.raises(ValueError, match=r"choose one of: master, pi\.$"):
        choose("dual", "zzz", ("master", "pi"))


def test_settings_do_not_depend_on_the_network():
    with pytest.raises(ValueError, match="unknown method"):
        settings("sac")
    assert settings("unconstrained").rounds == 1
    assert settings("cers").dual == "cross_entropy"


def test_a_commit_is_dirty_only_where_the_code_differs(tmp_path, monkeypatch):
    package, results = tmp_path / "dcrl", tmp_path / "results.csv"
    package.mkdir()
    code = package / "run.py"
    code.write_text("")
    results.write_text("1")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr("dcrl.run.__file__", str(code))
    results.write_text("2")
    assert len(commit.__wrapped__()) == 10
    code.write_text("changed")
    assert commit.__wrapped__().endswith("-dirty")
