import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_code_of_the_readme_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 12
    exec(compile(code, "README.md", "exec"), {})
    told = capsys.readouterr().out
    assert "certified gap is within" in told
    # The rich room of the reader's own world is used exactly up to its bound.
    assert "[6. 4.]" in told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("learners.md", "All 20 rounds were done."),
        # Half of a visit at each of the two corners of its cell.
        ("densities.md", "[0.5 0.  0.  0.  0.  0.  0.  0.5]"),
    ],
)
def test_the_code_of_the_documents_runs(name, told, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL)
    exec(compile(code, name, "exec"), {})
    assert capsys.readouterr().out.strip() == told


def test_documents_hold_the_results_that_are_there():
    fill = runpy.run_path(str(ROOT / "docs" / "fill.py"))
    texts = {name: (ROOT / name).read_text() for name in fill["DOCUMENTS"]}
    assert sum("<!-- from results/" in text for text in texts.values()) >= 2
    for name, text in texts.items():
        assert fill["filled"](text) == text, name


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        assert "://" in target or (path.parent / target).exists(), target


def test_ci_runs_the_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"sed -n '(.*?)' README", script)[1]
    found = subprocess.run(
        ["sed", "-n", pattern, "README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == 'pip install -e ".[dev]" && pytest'
