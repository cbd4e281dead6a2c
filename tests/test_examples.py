"""Every example runs, in a process of its own, and is mentioned where people read; ogc takes what it says to type."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shown import ASIDE, WITH_ASIDE, missing, parse

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = "\n".join(path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    absent, command = missing(path.read_text()), [sys.executable, str(path), "--smoke"]
    if absent == ["timm"] and ASIDE.is_dir():
        command[1:2] = ["-c", f"{WITH_ASIDE}\nimport runpy; runpy.run_path({str(path)!r}, run_name='__main__')"]
    elif absent:
        pytest.skip(f"{', '.join(absent)}: not installed")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d\.\d", done.stdout), "it prints numbers"
    for line in re.findall(r"^\s*(ogc .*)", done.stdout, re.M):
        parse(line)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_mentioned(path):
    assert f"examples/{path.name}" in PAGES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_how_to_run_it(path):
    assert f"python examples/{path.name}" in ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.slow
def test_the_own_loss_is_one_that_ogc_takes(tmp_path):
    method = f"{ROOT / 'examples' / 'own_loss.py'}:Insistent+ogc"
    command = ["train", "digits", "--noise", "symmetric:0.5", "--method", method, "--epochs", "1", "--out", "run"]
    done = subprocess.run([sys.executable, "-m", "ogc", *command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()
