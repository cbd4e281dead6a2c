"""Two processes give the results of one, stop and fail together, and only rank 0 reports."""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import children
from children import fork, held, ogc, wait_for
from ogc.training import Interrupted, NonFinite, train
from ogc.training.history import SilentWatch
from ogc.training.run_folder import LAST, METRICS, NONFINITE, SAMPLES, read_tensors
from small_runs import StopAt, environment, finish, job, metrics, network, two_processes

pytestmark = pytest.mark.slow

VARIANTS = {
    "ce+ogc": {"average": 0.9, "nesterov": True, "clip_norm": 1.0, "augment": "cifar"},
    "fl+ogc": {"accumulate": 2, "optimizer": "adamw", "lr": 0.003},
    "gce": {"accumulate": 2},
    "nce_rce": {},
    "ce+ema": {"average": 0.9},
}


def scenarios(folder):
    """Run in each of the two processes. Each writes its observations to a separate file."""
    rank, observed = os.environ["RANK"], {}
    for method, options in VARIANTS.items():
        [result] = train([job(folder / method, method, net=network(normed=False, drop=0), **options)])
        observed[method] = [len(result["epochs"]), result["summary"]]

    train([job(folder / "dropout", net=network())])

    broken = job(folder / "broken")
    broken.data[0].inputs[33, 5] = float("nan")
    observed["broken"] = error_message(broken)

    endless = job(folder / "stopped", epochs=100_000)
    if rank == "1":
        threading.Thread(target=terminate_after_an_epoch, args=[folder / "stopped"]).start()
    observed["stopped"] = error_message(endless)
    observed["one process"] = error_message(job(folder / "one process"), resume=True)
    observed["odd batch"] = error_message(job(folder / "odd", batch_size=15))

    counter = CountEpochs()
    train([job(epochs=2)], watch=counter)
    observed["reported epochs"] = counter.epochs
    (folder / f"observed by {rank}").write_text(json.dumps(observed))


def terminate_after_an_epoch(folder):
    path = folder / METRICS
    while not (path.exists() and path.stat().st_size):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def error_message(one, **options):
    try:
        train([one], **options)
    except (NonFinite, Interrupted, ValueError) as error:
        return f"{type(error).__name__}: {error}"


class CountEpochs(SilentWatch):
    epochs = 0

    def ended_epoch(self, run, epoch):
        self.epochs += 1


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of the scenarios, and the observations of each process."""
    folder = tmp_path_factory.mktemp("pair")
    with pytest.raises(Interrupted):
        train([job(folder / "one process")], watch=StopAt(2, 1))
    here = str(Path(__file__).parent)
    two_processes(f"sys.path.append({here!r}); from test_processes import scenarios; scenarios(folder)", folder)
    return folder, [json.loads((folder / f"observed by {rank}").read_text()) for rank in range(2)]


def close(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    return one == other or (isinstance(one, float) and abs(one - other) <= 1e-6 * max(1, abs(one)))


@pytest.mark.parametrize("method", VARIANTS)
def test_same_results_as_one_process(pair, tmp_path, method):
    folder, observed = pair
    train([job(tmp_path, method, net=network(normed=False, drop=0), **VARIANTS[method])])
    for name in (LAST, SAMPLES):
        tensors, others = read_tensors(tmp_path / name)[0], read_tensors(folder / method / name)[0]
        for key, value in tensors.items():
            if not key.startswith("rng"):
                assert torch.allclose(value, others[key], rtol=1e-6, atol=1e-6, equal_nan=True), key
    assert all(map(close, metrics(tmp_path), metrics(folder / method)))
    assert len(metrics(tmp_path)) == 4
    assert observed[0][method] == observed[1][method]
    assert observed[0][method][0] == 4


def test_dropout_draws_different_numbers_on_each_rank(pair):
    tensors = read_tensors(pair[0] / "dropout" / LAST)[0]
    assert not torch.equal(tensors["rng.0"], tensors["rng.1"])


def test_error_on_one_rank_is_raised_on_all(pair):
    first, second = (observed["broken"] for observed in pair[1])
    assert first == second
    assert first.startswith("NonFinite: The loss is nan at step")
    assert "image 33" in json.loads((pair[0] / "broken" / NONFINITE).read_text())["samples"]


def test_signal_to_one_rank_stops_all_at_the_same_step(pair):
    first, second = (observed["stopped"] for observed in pair[1])
    assert first == second
    assert first.startswith("Interrupted: Stopped by SIGTERM. Resume with: ogc.training.train(jobs, resume=True)")
    assert read_tensors(pair[0] / "stopped" / LAST)[1]["epoch"] > 0


def test_number_of_processes_must_match_checkpoint_and_batch(pair):
    for observed in pair[1]:
        assert observed["one process"].startswith("CheckpointError")
        assert "number of processes is 1 there and 2 here" in observed["one process"]
        assert "`batch_size` should be a multiple of 2" in observed["odd batch"]


def test_only_rank_0_reports_epochs(pair):
    assert [observed["reported epochs"] for observed in pair[1]] == [2, 0]


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def torchrun(folder, *arguments, **env):
    script = folder / "torchrun.py"
    script.write_text("from torch.distributed.run import main; main()")
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", free_port()]
    return fork(script, *options, children.__file__, "train", *arguments, env={**environment(), **env})


def test_torchrun(tmp_path):
    """Run the command line, stop it by a signal to torchrun, and resume."""
    out, draw = tmp_path / "run", np.random.default_rng(0)
    y = np.arange(200) % 2
    np.savez(tmp_path / "rows.npz", X=draw.normal(size=(200, 3)) + 3 * y[:, None], y=y)
    hold = held(tmp_path / "hold", after=15)  # 10 steps per epoch
    options = ["--noise", "symmetric:0.3", "--epochs", "10", "--set", "batch_size=16", "--out", str(out)]
    started = torchrun(tmp_path, str(tmp_path / "rows.npz"), *options, **hold)
    wait_for((tmp_path / "hold").exists, "the second epoch", started)
    started.send_signal(signal.SIGTERM)
    _, stderr = started.communicate()
    assert f"Resume with: ogc train --resume {out}" in stderr
    assert read_tensors(out / LAST)[1]["epoch"] == 1
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}  # as torchrun sets it
    resumed = [ogc("train", "--resume", out, env={**environment(), **world, "RANK": str(rank)}) for rank in range(2)]
    finish(resumed)
    assert "".join(process.communicate()[0] for process in resumed).count("report.html") == 1
    assert len(metrics(out)) == 10
    assert json.loads((out / "result.json").read_text())["summary"]["last"] > 0.5
