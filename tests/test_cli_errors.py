"""Errors of the command line: the message, the process that prints it, and the exit code."""

import signal

import pytest
import torch
import typer

from ogc.cli.errors import reported
from ogc.noise import LabelFileError
from ogc.training.run import NonFinite
from ogc.training.stopping import Interrupted


def exit_code_of(error, **options):
    with pytest.raises(typer.Exit) as info, reported(**options):
        raise error
    return info.value.exit_code


FOLDER = "A folder is needed there. Choose another, or move the file away."
CASES = [
    (ValueError("a bad value"), 2, "a bad value", True),
    (NonFinite("The loss is nan."), 1, "The loss is nan.", True),
    (LabelFileError("a broken file"), 1, "a broken file", True),
    (Interrupted(signal.SIGTERM, {}), 143, "Stopped by SIGTERM. Nothing was saved: there is no run folder.", True),
    (KeyboardInterrupt(), 130, "stopped", True),
    (ImportError("timm is missing"), 1, "timm is missing", False),
    (OSError("There is no folder a."), 1, "There is no folder a.", False),
    (OSError(28, "No space left on device", "a/b"), 1, "Cannot use a/b: No space left on device.", False),
    (FileExistsError(17, "File exists", "a"), 1, f"Cannot use a: File exists. {FOLDER}", False),
    (NotADirectoryError(20, "Not a directory", "a/b"), 1, f"Cannot use a/b: Not a directory. {FOLDER}", False),
    (
        PermissionError(13, "Permission denied", "a"),
        1,
        "Cannot use a: Permission denied. Change its permissions, or choose another path.",
        False,
    ),
    (FileNotFoundError(2, "No such file", "a"), 1, "Cannot use a: No such file. Check the path.", False),
    (torch.OutOfMemoryError("CUDA"), 1, "Out of GPU memory. To fix this: use less.", False),
]


@pytest.mark.parametrize(("error", "code", "message", "on_all_ranks"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("rank", [None, "0", "1"])
def test_error_prints_one_message_and_sets_the_exit_code(capsys, monkeypatch, rank, error, code, message, on_all_ranks):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert exit_code_of(error, stopped="stopped", out_of_memory="use less") == code
    on_rank_1 = "" if on_all_ranks else f"Process 1: {message}\n"
    assert capsys.readouterr() == ("", on_rank_1 if rank == "1" else f"{message}\n")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), typer.Exit(143)])
def test_other_errors_propagate(capsys, error):
    with pytest.raises(type(error)) as info, reported():
        raise error
    assert info.value is error
    assert capsys.readouterr() == ("", "")
