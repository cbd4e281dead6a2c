import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ogc import __version__, cli, demo
from ogc._provenance import device_name
from ogc.cli.app import build


def ogc(*arguments):
    return CliRunner().invoke(build(), arguments)


def test_help_lists_the_commands():
    result = ogc("--help")
    assert result.exit_code == 0
    for command in ("demo", "train", "noise"):
        assert command in result.output


def test_help_of_a_command_has_examples():
    result = ogc("demo", "--help")
    assert result.exit_code == 0
    assert "ogc demo --seeds 0,1,2 --out runs/three\n" in "".join(
        line.rstrip() + "\n" for line in result.output.split("\n")
    )
    assert "--epochs" in result.output


def test_version():
    result = ogc("--version")
    assert result.exit_code == 0
    assert result.output == f"ogc {__version__}\n"


def test_the_verbose_version_names_libraries_and_device():
    result = ogc("--version", "--verbose")
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert result.exit_code == 0
    assert (lines["ogc"], lines["torch"]) == (__version__, torch.__version__)
    assert lines["device"].startswith(device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    assert ogc("--verbose", "demo").exit_code == 2


@pytest.mark.parametrize(
    ("option", "value"), [("seeds", "4294967296"), ("epochs", "0"), ("seeds", "-1"), ("seeds", "1,1")]
)
def test_invalid_value_is_a_one_line_error(option, value):
    result = ogc("demo", f"--{option}", value)
    assert result.exit_code == 2
    assert re.search(f"Parameter `(--)?(noise_)?{option}?` should be", result.stderr)
    assert value in result.stderr
    assert result.stderr.count("\n") == 1


def test_unusable_output_folder_is_a_one_line_error(tmp_path):
    (tmp_path / "file").touch()
    result = ogc("demo", "--out", str(tmp_path / "file"))
    assert result.exit_code == 1
    fix = "A folder is needed there. Choose another, or move the file away."
    assert result.stderr == f"Cannot use {tmp_path / 'file'}: File exists. {fix}\n"


def test_options_reach_the_demo(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(demo, "demo", lambda out, console, **options: calls.append((out, options)))
    assert ogc("demo", "--out", str(tmp_path), "--seeds", "7,3", "--epochs", "5").exit_code == 0
    assert calls == [(tmp_path, {"seeds": [7, 3], "epochs": 5})]


def test_ctrl_c_prints_one_line_and_exits_with_130(tmp_path, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ogc.demo.train", stop)
    result = ogc("demo", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert result.stderr == f"Stopped before the end: nothing was written to {tmp_path}.\n"


def test_needed_packages_match_the_cli_extra():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", requirement)[0] for requirement in project["optional-dependencies"]["cli"]]
    modules = {"scikit-learn": "sklearn", "pillow": "PIL"}
    assert tuple(modules.get(name, name) for name in names) == cli.NEEDED


def test_error_names_missing_extra():
    """Run in a separate process, in which typer and rich cannot be found."""
    hide = (
        "import sys, importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name in ('typer', 'rich') else found(name, *a)\n"
        "from ogc.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == 'The command line needs typer, rich. To fix this: pip install "torch-ogc[cli]"\n'


def test_python_m_ogc():
    result = subprocess.run([sys.executable, "-m", "ogc", "--version"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, f"ogc {__version__}\n")
