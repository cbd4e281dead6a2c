"""SIGKILL, SIGTERM and Ctrl-C at random moments: files stay intact, and resuming gives the same bits."""

import signal
from pathlib import Path

import pytest

from children import fork
from ogc.training import Interrupted, train
from ogc.training.run_folder import LAST, read_tensors
from small_runs import StopAt, assert_equal_runs, environment, job


def interrupt_repeatedly(folder, number, times, seed=0):
    """Return how often a run was interrupted, and how often it saved before it exited."""
    script = Path(__file__).with_name("kills.py")
    process = fork(script, folder, int(number), times, seed, env=environment(), strict=True)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return [int(count) for count in stdout.split()]


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    assert interrupt_repeatedly(tmp_path, signal.SIGKILL, 5) == [5, 0]


@pytest.mark.kill
def test_killed_100_times(tmp_path):
    assert interrupt_repeatedly(tmp_path, signal.SIGKILL, 100, seed=1) == [100, 0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_random_moments(tmp_path, number):
    interrupted, saved = interrupt_repeatedly(tmp_path, number, 5)
    assert interrupted == 5
    assert saved >= 3  # the others had not started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_exception_says_how_to_resume(tmp_path, number):
    out = tmp_path / "my run"
    call = r"ogc\.training\.train\(jobs, resume=True\)"  # there is no command, because the data came from Python
    with pytest.raises(Interrupted, match=f"Stopped by {number.name}. Resume with: {call}$") as info:
        train([job(out)], watch=StopAt(2, 3, number))
    assert info.value.folders == [out]
    assert info.value.signal == number
    facts = read_tensors(out / LAST)[1]
    assert (facts["epoch"], facts["step"]) == (1, 3)


def test_exception_without_a_folder_says_nothing_was_saved():
    with pytest.raises(Interrupted, match="Nothing was saved"):
        train([job()], watch=StopAt(1, 1))


def test_second_signal_stops_at_once(tmp_path):
    class SignalTwice(StopAt):
        def moved(self, run, *, epoch, step, images_per_second):
            if step == 2:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as info:
        train([job(tmp_path)], watch=SignalTwice(0, 0))
    assert info.type is KeyboardInterrupt
    assert not (tmp_path / LAST).exists()


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train([job(epochs=1)])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_jobs_that_had_not_started_resume_too(tmp_path):
    def jobs(name):
        return [job(tmp_path / name / str(seed), seed=seed) for seed in range(3)]

    class StopSecondRun(StopAt):
        def moved(self, run, *, epoch, step, images_per_second):
            if run == 1:
                super().moved(run, epoch=epoch, step=step, images_per_second=images_per_second)

    uninterrupted = train(jobs("uninterrupted"))
    with pytest.raises(Interrupted) as info:
        train(jobs("resumed"), watch=StopSecondRun(2, 1))
    assert info.value.folders == [tmp_path / "resumed" / "1", tmp_path / "resumed" / "2"]
    assert all((folder / "run.json").exists() for folder in info.value.folders)
    results = train(jobs("resumed"), resume=True)
    assert [result["summary"] for result in results] == [result["summary"] for result in uninterrupted]
    for seed in range(3):
        assert_equal_runs(tmp_path / "uninterrupted" / str(seed), tmp_path / "resumed" / str(seed))
