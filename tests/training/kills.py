"""Interrupt a run repeatedly at random moments and resume it: ``python kills.py FOLDER SIGNAL TIMES SEED``.

Every attempt is a fork, so that it starts quickly. Fails unless all files are always readable and the result equals
that of an uninterrupted run bit for bit. Prints how often the run was interrupted, and how often it saved before it
exited.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from ogc.training import Interrupted, train
from ogc.training.history import SilentWatch
from ogc.training.run_folder import read_tensors
from small_runs import assert_equal_runs, job, network

STOPPED = 3


class NotifyStart(SilentWatch):
    """Write to a pipe when training has started and the signal handlers are installed."""

    def __init__(self, pipe):
        self.pipe = pipe

    def began(self, run, **_):
        os.write(self.pipe, b"!")


def attempt(folder):
    """Train in a fork. Return its process id and a pipe that is readable once training has started or failed."""
    readable, writable = os.pipe()
    child = os.fork()
    if child:
        os.close(writable)
        return child, readable
    code, watch = 1, NotifyStart(writable)
    try:
        train([job(folder, net=network(), average=0.99, epochs=3)], resume=True, save_every=0, watch=watch)
        code = 0
    except Interrupted:
        code = STOPPED
    except KeyboardInterrupt:  # received before training started
        code = -signal.SIGINT % 256
    finally:
        os._exit(code)


def check_readable(folder):
    for path in folder.iterdir() if folder.exists() else ():
        if path.name.startswith("."):
            continue  # left by a killed process
        if path.suffix == ".safetensors":
            read_tensors(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            [json.loads(line) for line in path.read_text().splitlines()]


def main(folder, number, times, seed):
    rng = random.Random(seed)
    start = time.monotonic()
    child, pipe = attempt(folder / "uninterrupted")
    assert os.waitpid(child, 0)[1] == 0
    os.close(pipe)
    duration = time.monotonic() - start
    interrupted, saved, rounds = 0, 0, 0
    while interrupted < times:
        rounds += 1
        out, status = folder / f"round {rounds}", None
        while status != 0:
            child, pipe = attempt(out)
            if number != signal.SIGKILL:
                os.read(pipe, 1)  # before that, the signal would end the process without a save
            if interrupted < times:
                time.sleep(rng.uniform(0, duration / 2))
                os.kill(child, number)
            status = os.waitpid(child, 0)[1]
            os.close(pipe)
            stopped = os.WIFEXITED(status) and os.WEXITSTATUS(status) == STOPPED
            by_signal = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == -number % 256
            assert status == 0 or stopped or by_signal, status
            interrupted, saved = interrupted + (status != 0), saved + stopped
            check_readable(out)
        assert_equal_runs(folder / "uninterrupted", out)
        assert not list(out.glob(".*")), "leftovers of killed processes remain"
    print(interrupted, saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
