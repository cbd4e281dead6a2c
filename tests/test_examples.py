"""Every example runs in a separate process, is mentioned in the documentation and prints valid commands."""

import ast
import re
from pathlib import Path

import pytest

from children import fork, ogc
from shown import missing, parse

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = "\n".join(path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    absent = missing(path.read_text())
    if absent == ["timm"]:
        pytest.skip("timm is in a separate folder: test_timm.py runs its example")
    if absent:
        pytest.skip(f"{', '.join(absent)}: not installed")
    process = fork(path, "--smoke", cwd=tmp_path, env={"HF_HUB_OFFLINE": "1"})
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert re.search(r"\d\.\d", stdout), "it prints numbers"
    for line in re.findall(r"^\s*(ogc .*)", stdout, re.M):
        parse(line)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_mentioned_in_the_documentation(path):
    assert f"examples/{path.name}" in PAGES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_docstring_says_how_to_run_it(path):
    assert f"python examples/{path.name}" in ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.slow
def test_ogc_trains_with_the_loss_of_the_example(tmp_path):
    method = f"{ROOT / 'examples' / 'own_loss.py'}:Insistent+ogc"
    command = ["train", "digits", "--noise", "symmetric:0.5", "--method", method, "--epochs", "1", "--out", "run"]
    process = ogc(*command, cwd=tmp_path)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert (tmp_path / "run" / "report.html").exists()
