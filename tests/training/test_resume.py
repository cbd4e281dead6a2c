"""Resumed equals uninterrupted, bit for bit: every method, any position, float32 and bf16, one process and two."""

import subprocess
import sys
from pathlib import Path

import pytest

from ogc.training import train
from ogc.training.method import METHODS
from small_runs import (
    assert_equal_runs,
    assert_matrix,
    environment,
    half_of_the_variants,
    job,
    network,
    resume_matrix,
    some_of_the_variants,
    train_in_pieces,
    two_processes,
)


@pytest.mark.slow
def test_every_method_in_one_process(tmp_path):
    """In one precision each; ``test_every_way_to_stop`` has both, in two processes as well."""
    resume_matrix(tmp_path, half_of_the_variants)
    assert_matrix(tmp_path, half_of_the_variants)


@pytest.mark.slow
def test_every_kind_of_method_in_two_processes(tmp_path):
    code = "from small_runs import resume_matrix, some_of_the_variants; resume_matrix(folder, some_of_the_variants)"
    two_processes(code, tmp_path)
    assert_matrix(tmp_path, some_of_the_variants)


@pytest.mark.parametrize("stops", [[(1, step) for step in (1, 2, 3, 4, None)], [(4, 4)], [(3, None), (4, 1)]])
def test_any_position(tmp_path, stops):
    train([job(tmp_path / "whole", net=network())])
    _, stood = train_in_pieces(lambda: job(tmp_path / "pieces", net=network()), stops)
    assert len(stood) == len(stops)
    assert_equal_runs(tmp_path / "whole", tmp_path / "pieces")


def test_stopped_after_the_last_epoch_is_done(tmp_path):
    train([job(tmp_path / "whole")])
    result, stood = train_in_pieces(lambda: job(tmp_path / "pieces"), [(4, None), (4, 5)])
    assert stood == []
    assert len(result["epochs"]) == 4
    assert_equal_runs(tmp_path / "whole", tmp_path / "pieces")


def test_results_are_those_of_one_run(tmp_path):
    [whole] = train([job(tmp_path / "whole")])
    pieces, _ = train_in_pieces(lambda: job(tmp_path / "pieces"), [(2, 3)])
    assert pieces["summary"] == whole["summary"]
    assert pieces["recipe"] == whole["recipe"]
    assert len(pieces["epochs"]) == 4


@pytest.mark.kill
@pytest.mark.parametrize("size", [1, 2])
def test_every_way_to_stop(tmp_path, capsys, size):
    """Every method in both precisions, at the start, in mid-epoch, at an epoch's end, twice, killed, with surveys."""
    script = Path(__file__).with_name("resume_matrix.py")
    command = [sys.executable, "-W", "error", str(script), str(tmp_path)]
    pipes = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(rank), str(size)], **pipes) for rank in range(size)]
    try:
        said = [process.communicate(timeout=3600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * size, said
    with capsys.disabled():
        print(f"\n{said[0][0].strip()} resumed runs equal the uninterrupted ones, with {size} process(es)")
    assert int(said[0][0]) == len(METHODS) * 2 * 6
