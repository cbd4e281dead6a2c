"""End a run at random moments, again and again, and go on with it: ``python kills.py FOLDER SIGNAL TIMES SEED``.

Every attempt is a fork, so that it begins at once. Ends with an error unless all files could be read at all times, and
the bits are those of a run that nobody disturbed. Prints how often the run was ended, and how often by itself in order.
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


class Began(SilentWatch):
    """Writes to a pipe when training has begun, with the signals' handlers in place."""

    def __init__(self, pipe):
        self.pipe = pipe

    def began(self, run, **_):
        os.write(self.pipe, b"!")


def attempt(folder):
    """Train in a process of its own; its id, and a pipe that can be read when training has begun or has failed."""
    readable, writable = os.pipe()
    child = os.fork()
    if child:
        os.close(writable)
        return child, readable
    code, watch = 1, Began(writable)
    try:
        train([job(folder, net=network(), average=0.99, epochs=3)], resume=True, save_every=0, watch=watch)
        code = 0
    except Interrupted:
        code = STOPPED
    except KeyboardInterrupt:  # came before training had begun
        code = -signal.SIGINT % 256
    finally:
        os._exit(code)


def require_whole(folder):
    for path in folder.iterdir() if folder.exists() else ():
        if path.name.startswith("."):
            continue  # begun by a process that was killed
        if path.suffix == ".safetensors":
            read_tensors(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            [json.loads(line) for line in path.read_text().splitlines()]


def main(folder, number, times, seed):
    draw = random.Random(seed)
    began = time.monotonic()
    child, pipe = attempt(folder / "whole")
    assert os.waitpid(child, 0)[1] == 0
    os.close(pipe)
    longest = time.monotonic() - began
    ended, in_order, rounds = 0, 0, 0
    while ended < times:
        rounds += 1
        out, status = folder / f"round {rounds}", None
        while status != 0:
            child, pipe = attempt(out)
            if number != signal.SIGKILL:
                os.read(pipe, 1)  # a signal of before would end the process as any other
            if ended < times:
                time.sleep(draw.uniform(0, longest / 2))
                os.kill(child, number)
            status = os.waitpid(child, 0)[1]
            os.close(pipe)
            stopped = os.WIFEXITED(status) and os.WEXITSTATUS(status) == STOPPED
            by_signal = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == -number % 256
            assert status == 0 or stopped or by_signal, status
            ended, in_order = ended + (status != 0), in_order + stopped
            require_whole(out)
        assert_equal_runs(folder / "whole", out)
        assert not list(out.glob(".*")), "what killed processes had begun is still there"
    print(ended, in_order)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
