"""Endings by error: what is said, by which process, and the exit code."""

import signal

import pytest
import torch
import typer

from ogc._ending import one_sentence
from ogc.training.stopping import Interrupted


def ending(error, **options):
    with pytest.raises(typer.Exit) as info, one_sentence(**options):
        raise error
    return info.value.exit_code


CASES = [
    (ValueError("a bad value"), 2, "a bad value", True),
    (ArithmeticError("failed"), 1, "failed", True),
    (Interrupted(signal.SIGTERM, []), 143, "Stopped by SIGTERM. Nothing was saved: there is no run folder.", True),
    (KeyboardInterrupt(), 130, "stopped", True),
    (ImportError("timm is missing"), 1, "timm is missing", False),
    (OSError("There is no folder a."), 1, "There is no folder a.", False),
    (OSError(28, "No space left on device", "a/b"), 1, "Cannot use a/b: No space left on device.", False),
    (torch.OutOfMemoryError("CUDA"), 1, "The GPU's memory is not enough: try less.", False),
]


@pytest.mark.parametrize(("error", "code", "sentence", "alike"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("rank", [None, "0", "1"])
def test_one_sentence_and_a_code(capsys, monkeypatch, rank, error, code, sentence, alike):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert ending(error, stopped="stopped", way_out="try less", failures=(ArithmeticError,)) == code
    of_another = "" if alike else f"Process 1: {sentence}\n"
    assert capsys.readouterr() == ("", of_another if rank == "1" else f"{sentence}\n")


def test_a_failure_that_is_a_kind_of_bad_value_is_a_failure():
    assert ending(UnicodeError("a broken file"), failures=(UnicodeError,)) == 1


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt(), typer.Exit(143)])
def test_what_there_is_no_sentence_for_passes(capsys, error):
    with pytest.raises(type(error)) as info, one_sentence():
        raise error
    assert info.value is error
    assert capsys.readouterr() == ("", "")
