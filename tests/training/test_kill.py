"""SIGKILL, SIGTERM and Ctrl-C at random moments: what is on the disk is whole, and going on gives the same bits."""

import signal
from pathlib import Path

import pytest

from children import fork
from ogc.training import Interrupted, train
from ogc.training.run_folder import LAST, read_tensors
from small_runs import StopAt, assert_equal_runs, environment, job


def disturb(folder, number, times, seed=0):
    """How often a run was ended, and how often it saved and ended by itself."""
    script = Path(__file__).with_name("kills.py")
    process = fork(script, folder, int(number), times, seed, env=environment(), strict=True)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return [int(count) for count in stdout.split()]


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    assert disturb(tmp_path, signal.SIGKILL, 5) == [5, 0]


@pytest.mark.kill
def test_killed_a_hundred_times(tmp_path):
    assert disturb(tmp_path, signal.SIGKILL, 100, seed=1) == [100, 0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_random_moments(tmp_path, number):
    ended, in_order = disturb(tmp_path, number, 5)
    assert ended == 5
    assert in_order >= 3  # the others had not begun


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_exception_says_how_to_go_on(tmp_path, number):
    out = tmp_path / "my run"
    again = r"ogc\.training\.train\(jobs, resume=True\)"  # no command could: the data came from Python
    with pytest.raises(Interrupted, match=f"Stopped by {number.name}. Resume with: {again}$") as info:
        train([job(out)], watch=StopAt(2, 3, number))
    assert info.value.folders == [out]
    assert info.value.signal == number
    facts = read_tensors(out / LAST)[1]
    assert (facts["epoch"], facts["step"]) == (1, 3)


def test_without_a_folder_nothing_is_promised():
    with pytest.raises(Interrupted, match="Nothing was saved"):
        train([job()], watch=StopAt(1, 1))


def test_a_second_signal_is_obeyed_at_once(tmp_path):
    class Impatient(StopAt):
        def moved(self, run, *, epoch, step, images_per_second):
            if step == 2:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as info:
        train([job(tmp_path)], watch=Impatient(0, 0))
    assert info.type is KeyboardInterrupt
    assert not (tmp_path / LAST).exists()


def test_handlers_are_as_before():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train([job(epochs=1)])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_jobs_whose_turn_had_not_come_go_on_too(tmp_path):
    def jobs(name):
        return [job(tmp_path / name / str(seed), seed=seed) for seed in range(3)]

    class Second(StopAt):
        def moved(self, run, *, epoch, step, images_per_second):
            if run == 1:
                super().moved(run, epoch=epoch, step=step, images_per_second=images_per_second)

    whole = train(jobs("whole"))
    with pytest.raises(Interrupted) as info:
        train(jobs("pieces"), watch=Second(2, 1))
    assert info.value.folders == [tmp_path / "pieces" / "1", tmp_path / "pieces" / "2"]
    assert all((folder / "run.json").exists() for folder in info.value.folders)
    results = train(jobs("pieces"), resume=True)
    assert [result["summary"] for result in results] == [result["summary"] for result in whole]
    for seed in range(3):
        assert_equal_runs(tmp_path / "whole" / str(seed), tmp_path / "pieces" / str(seed))
