"""Resumed runs equal uninterrupted ones bit for bit: every method, any step, float32 and bf16, one or two processes."""

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
    half_the_variants,
    job,
    network,
    resume_matrix,
    some_variants,
    train_with_stops,
    two_processes,
)


@pytest.mark.slow
def test_every_method_in_one_process(tmp_path):
    """In one precision each. ``test_every_way_to_stop`` uses both, with two processes as well."""
    resume_matrix(tmp_path, half_the_variants)
    assert_matrix(tmp_path, half_the_variants)


@pytest.mark.slow
def test_every_kind_of_method_in_two_processes(tmp_path):
    code = "from small_runs import resume_matrix, some_variants; resume_matrix(folder, some_variants)"
    two_processes(code, tmp_path)
    assert_matrix(tmp_path, some_variants)


@pytest.mark.parametrize("stops", [[(1, step) for step in (1, 2, 3, 4, None)], [(4, 4)], [(3, None), (4, 1)]])
def test_resume_at_any_step(tmp_path, stops):
    train([job(tmp_path / "uninterrupted", net=network())])
    _, positions = train_with_stops(lambda: job(tmp_path / "resumed", net=network()), stops)
    assert len(positions) == len(stops)
    assert_equal_runs(tmp_path / "uninterrupted", tmp_path / "resumed")


def test_signal_after_the_last_epoch_does_not_interrupt(tmp_path):
    train([job(tmp_path / "uninterrupted")])
    result, positions = train_with_stops(lambda: job(tmp_path / "resumed"), [(4, None), (4, 5)])
    assert positions == []
    assert len(result["epochs"]) == 4
    assert_equal_runs(tmp_path / "uninterrupted", tmp_path / "resumed")


def test_resumed_results_equal_uninterrupted_ones(tmp_path):
    [uninterrupted] = train([job(tmp_path / "uninterrupted")])
    resumed, _ = train_with_stops(lambda: job(tmp_path / "resumed"), [(2, 3)])
    assert resumed["summary"] == uninterrupted["summary"]
    assert resumed["recipe"] == uninterrupted["recipe"]
    assert len(resumed["epochs"]) == 4


@pytest.mark.kill
@pytest.mark.parametrize("size", [1, 2])
def test_every_way_to_stop(tmp_path, capsys, size):
    """Every method in both precisions, at the start, in mid-epoch, at an epoch's end, twice, killed, with surveys."""
    script = Path(__file__).with_name("resume_matrix.py")
    command = [sys.executable, "-W", "error", str(script), str(tmp_path)]
    pipes = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(rank), str(size)], **pipes) for rank in range(size)]
    try:
        outputs = [process.communicate(timeout=3600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * size, outputs
    with capsys.disabled():
        print(f"\n{outputs[0][0].strip()} resumed runs equal the uninterrupted ones, with {size} process(es)")
    assert int(outputs[0][0]) == len(METHODS) * 2 * 6
