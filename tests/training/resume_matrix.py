"""Every method in both precisions, stopped in every way and resumed: ``python resume_matrix.py FOLDER RANK SIZE``.

Trains each run without and with stops, in one process or several. Rank 0 compares the files of the two bit for bit and
prints how many resumed runs were equal.
"""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

from ogc.training import Interrupted, train
from small_runs import StopAt, assert_equal_runs, job, network, variants

STOPS = {  # epoch and step, both from 1; None is an epoch's end
    "start": [(1, 1)],
    "mid-epoch": [(2, 3)],
    "epoch's end": [(2, None)],
    "twice": [(1, 2), (3, 1)],
    "surveys": [(1, None), (2, 3)],
    "kill": [],  # see `kill`
}


def make(folder, options, scenario):
    """The job of a variant. Only one scenario has surveys, so it has its own uninterrupted run."""
    return job(folder, net=network(), **options, surveys=2 if scenario == "surveys" else 0)


class Kill(StopAt):
    def moved(self, run, *, epoch, step, images_per_second):
        if (epoch + 1, step) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def join(folder, rank, size, number):
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{number}", rank=rank, world_size=size)


def kill(folder, rank, size):
    """Train each variant in a separate process and kill it in its second epoch, one step after a save."""
    for number, (name, options) in enumerate(variants()):
        child = os.fork()
        if not child:
            try:
                join(folder, rank, size, number)
                train([make(folder / "kill" / name, options, "kill")], watch=Kill(2, 3), save_every=0)
            finally:
                os._exit(1)  # the other ranks lose their connection
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) if rank == 0 else status != 0, status


def main(folder, rank, size):
    train([job(epochs=1)])  # import everything that training needs before forking
    kill(folder, rank, size)
    join(folder, rank, size, "all")
    equal = 0
    for name, options in variants():
        for kind in ("plain", "surveys"):
            train([make(folder / "uninterrupted" / kind / name, options, kind)])
        for scenario, stops in STOPS.items():
            out, stopped = folder / scenario / name, 0
            for stop in stops:
                try:
                    train([make(out, options, scenario)], watch=StopAt(*stop), resume=True)
                except Interrupted:
                    stopped += 1
            train([make(out, options, scenario)], resume=True)
            assert stopped == len(stops), (scenario, name)
            if rank == 0:
                kind = "surveys" if scenario == "surveys" else "plain"
                assert_equal_runs(folder / "uninterrupted" / kind / name, out)
                equal += 1
    if rank == 0:
        print(equal)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
