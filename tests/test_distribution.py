"""The distribution is named torch-ogc; the package and the command are named ogc."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ogc

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks")
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".html", ".js", ".css", ".cfg", ".sh", ""}
# `ogc` on PyPI is another project. Matches it after "pip install", with options or quotes, or with an extra in quotes.
OLD_NAME = re.compile(r"""pip\s+install\s+(?:-\S+\s+)*["'`]?ogc(?![\w.-])|["'`]ogc\\?\[[a-z{]""")


def test_the_project_is_named_torch_ogc():
    assert PYPROJECT["project"]["name"] == "torch-ogc"
    assert PYPROJECT["project"]["scripts"] == {"ogc": "ogc.cli:main"}


def test_extras_refer_to_the_project_by_its_name():
    extras = PYPROJECT["project"]["optional-dependencies"]
    own = [line for lines in extras.values() for line in map(Requirement, lines) if line.name.endswith("ogc")]
    assert {line.name for line in own} == {"torch-ogc"}
    assert set().union(*(line.extras for line in own)) <= set(extras)


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("pip install {}", True),
        ("pip install -U {}", True),
        ("pip install '{}[cli]'", True),
        ("pip install {}[ray]", True),
        ('"{}[cli]",', True),
        (r'"{}\[timm\]"', True),
        ("pip uninstall {}", False),
        ('pip install "torch-{}[cli]"', False),
        ('{}["last"]', False),
    ],
)
def test_the_old_name_is_recognised(text, old):
    assert bool(OLD_NAME.search(text.format("ogc"))) == old


def test_no_file_installs_the_old_name():
    paths = [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    paths = [path for path in paths if path.is_file() and path.suffix in TEXT and ".egg-info" not in str(path)]
    assert {"README.md", "Makefile", "errors.py", "own_loss.py", "integrations.md"} <= {path.name for path in paths}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if OLD_NAME.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_the_wheel_is_torch_ogc_and_runs_outside_the_clone(tmp_path):
    (needed,) = map(Requirement, PYPROJECT["build-system"]["requires"])
    for name, versions in (("pip", None), (needed.name, needed.specifier)):
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"NO WHEEL WAS BUILT: {name} is not installed")
        if versions is not None and installed not in versions:
            pytest.skip(f"NO WHEEL WAS BUILT: it needs {needed}, and {name} {installed} is installed")
    tree = tmp_path / "tree"  # a build leaves files beside its sources
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "made"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "."]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tree / "made").iterdir()
    assert wheel.name == f"torch_ogc-{ogc.__version__}-py3-none-any.whl"
    info = f"torch_ogc-{ogc.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = ConfigParser()
        scripts.read_string(archive.read(f"{info}/entry_points.txt").decode())
    assert {name.partition("/")[0] for name in names} == {"ogc", info}
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/ogc").rglob("*.py")}
    assert modules | {"ogc/py.typed"} <= names
    assert dict(scripts["console_scripts"]) == {"ogc": "ogc.cli:main"}

    # Install it and train outside the clone, which needs the command and its package data.
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    env = {**os.environ, "PYTHONPATH": str(installed)}
    code = "import ogc; print(ogc.__file__); import ogc.__main__"
    train = [sys.executable, "-c", code, "train", "digits", "--epochs", "1", "--out", "run"]
    done = subprocess.run(train, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(installed), done.stdout
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
