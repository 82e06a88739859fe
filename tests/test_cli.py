"""The command line as a user meets it: processes, exit codes, sentences."""

import json
import subprocess
import sys

import pytest

from dcrl import load

COMMAND = [sys.executable, "-c", "from dcrl.cli import main; main()"]


def run(*words, cwd=None) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, cwd=cwd, timeout=300)


def test_help_does_not_import_jax():
    code = (
        "import sys; from dcrl.cli import main\n"
        "for words in (['--help'], ['tasks'], ['train', '--help']): main(words)\n"
        "try: main(['train', 'express', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'jax' not in sys.modules and 'scipy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "dcrl train TASK" in done.stdout
    assert "proportional-integral control" in done.stdout
    assert "--lower" in done.stdout


def test_training_prints_a_certificate_and_keeps_the_run(tmp_path):
    done = run("train", "express", "--points", "12", "--seed", "7", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["verdict"] == "kept"
    assert record["objective"] == pytest.approx(record["referee"], rel=6e-3)
    for words in ("exact optimum", "certificate", "checked exactly", "rounds"):
        assert words in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert load(folder).record == record
    again = run("evaluate", str(folder), "--vans", "500", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["episodes"] == 500


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train", "expres"], "unknown task 'expres'; choose one of: express, motor, rover. Did"),
        (["train", "express", "--method", "drcl"], "Did you mean 'dcrl'?"),
        (["train", "express", "--dual", "p"], "unknown dual 'p'"),
        (["train", "express", "--lower", "-0.5"], "a density is never negative"),
        (["train", "express", "--lower", "nan"], "is NaN"),
        (["train", "express", "--discount", "2"], "the discount must lie in [0, 1]; got 2.0"),
        (["train", "express", "--points", "1"], "at least 3 service points"),
        (["train", "express", "--out", "."], "exists already"),
        (["evaluate", "nowhere"], "not a finished run"),
        (["reproduce", "expres"], "Did you mean 'express'?"),
        (["reproduce", "express", "--processes", "0"], "processes must be at least 1"),
        (["train"], "needs a name"),
        (["train", "motor", "--learner", "pp"], "unknown learner 'pp'; choose one of: ppo, trpo"),
        (["train", "motor", "--method", "cers"], "unknown method 'cers'"),
        (["train", "motor", "--reference", "saw"], "Did you mean 'sawtooth'?"),
        (["train", "motor", "--lanes", "7"], "must be a multiple of that; got 7"),
        (["train", "motor", "--seeds", "0"], "seeds must be at least 1"),
        (["train", "rover", "--upper", "-1"], "a density is never negative"),
        (["train", "rover", "--out", "."], "exists already"),
        (["resume", "nowhere"], "does not hold a native training to resume"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence, tmp_path):
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_native_world_is_trained_judged_and_read_back(tmp_path):
    small = ("--rounds", "11", "--lanes", "32", "--seeds", "2", "--episodes", "32")
    done = run("train", "rover", *small, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout.splitlines()[-1])
    assert [row["seed"] for row in records] == [0, 1]
    assert all(row["rounds"] == 11 and row["steps"] == 11 * 32 * 300 for row in records)
    assert "tail" in done.stdout  # of what lies beyond the horizon
    (folder,) = (tmp_path / "runs").iterdir()
    assert load(folder).records == records
    again = run("evaluate", str(folder), "--vans", "64", "--guaranteed", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    fresh = json.loads(again.stdout.splitlines()[-1])
    assert [row["episodes"] for row in fresh] == [64, 64]
    assert "betting intervals" in again.stdout
    assert run("resume", str(folder), cwd=tmp_path).returncode == 2  # it is finished


@pytest.mark.parametrize("words", [["--points", "many"], ["--colour", "red"]])
def test_bad_options_exit_with_2_too(words, tmp_path):
    done = run("train", "express", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_version_is_told():
    import dcrl

    assert run("--version").stdout.strip() == dcrl.__version__
