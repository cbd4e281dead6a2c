"""Runs on a Ray cluster with several nodes, all on this machine."""

import contextlib
import io
import re
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench_runs import SMALL, bench, epochs_done, only_results, results, start
from children import wait_for
from ogc.benchmark import cluster as over_ray
from ogc.benchmark.batch import Outcome
from ogc.benchmark.cluster import RemoteJob, train_remotely
from ogc.benchmark.data import Data
from ogc.benchmark.lock import Lock
from ogc.benchmark.plan import find
from ogc.benchmark.result import read_all
from ogc.benchmark.task import tasks_of
from ogc.report.progress import Progress
from ogc.training.stopping import Stop
from small_runs import python_path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray emits many warnings

DIGITS = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL, "--save-every", 0)
MEMORY = 80 * 2**20  # size of a node's object store, in bytes

LOSSES = """
import os
import time
from pathlib import Path

from torch import nn

MEETING = Path(__file__).with_name("meeting")


class Slow(nn.CrossEntropyLoss):
    def forward(self, logits, labels):
        time.sleep(0.05)
        return super().forward(logits, labels)


class Meeting(nn.CrossEntropyLoss):  # waits until two processes train with it
    steps = 0

    def forward(self, logits, labels):
        self.steps += 1
        if self.steps == 5:  # not during the check before training
            MEETING.mkdir(exist_ok=True)
            (MEETING / str(os.getpid())).touch()
            while len(list(MEETING.iterdir())) < 2:
                time.sleep(0.01)
        return super().forward(logits, labels)


class ExitsProcess(nn.CrossEntropyLoss):
    steps = 0

    def forward(self, logits, labels):
        self.steps += 1
        if self.steps > 5:
            os._exit(1)
        return super().forward(logits, labels)
"""


@pytest.fixture(scope="module")
def ray():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path())
        yield pytest.importorskip(
            "ray", reason="Ray cannot be imported: pip install 'torch-ogc[ray]'", exc_type=ImportError
        )


@contextlib.contextmanager
def running_cluster(nodes):
    """Start a cluster: a head without CPUs, and ``nodes`` workers with one CPU each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    assert cluster.address.startswith("127.0.0.1:")
    for _ in range(nodes):
        add_node(cluster)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def shared_cluster(ray):
    """A cluster with one node, for all tests that remove no node."""
    with running_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def cluster(request):
    """The shared cluster, or an empty one for a test marked ``kill``."""
    if not request.node.get_closest_marker("kill"):
        yield request.getfixturevalue("shared_cluster")
        return
    request.getfixturevalue("ray")
    with running_cluster(0) as cluster:
        yield cluster


def add_node(cluster):
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY)


@pytest.fixture
def ray_options(cluster, tmp_path):
    """Options that run on the cluster, with results in ``out``."""
    return "--engine", "ray", "--address", cluster.address, "--out", tmp_path / "out"


@pytest.fixture
def loss_file(tmp_path):
    path = tmp_path / "losses.py"
    path.write_text(LOSSES)
    return path


def test_results_on_two_nodes_equal_local_results(cluster, ray_options, loss_file, tmp_path):
    second = add_node(cluster)
    four = (*DIGITS, "--methods", "ce+ogc", "--method", f"{loss_file}:Meeting", "--seeds", "1,2")
    process = start(*four, *ray_options)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "4 of 4 runs are done, 4 of them new." in output
    assert len(set(re.findall(r"process (\d+)", output))) >= 2  # Ray may start another one for a run
    cluster.remove_node(second)
    assert "ce+ogc  epoch 6/6" in output  # progress is reported
    assert bench(*four, "--out", tmp_path / "local")[0] == 0
    assert results(tmp_path / "out") == results(tmp_path / "local")
    assert only_results(tmp_path / "out")


@pytest.mark.kill  # Ray is slow on a busy machine
def test_run_of_killed_node_resumes_on_another(cluster, ray_options, loss_file, tmp_path):
    """Its run resumes from the last checkpoint on the other node. A node added later joins in."""
    nodes, out = [add_node(cluster) for _ in range(2)], tmp_path / "out"
    slow = (*DIGITS, "--method", f"{loss_file}:Slow", "--seeds", "1,2,3,4")
    process = start(*slow, *ray_options)
    wait_for(lambda: len(epochs_done(out)) == 2 and min(epochs_done(out).values()) >= 2, "two runs under way", process)
    cluster.remove_node(nodes[0], allow_graceful=False)
    add_node(cluster)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert re.search(r"6 epochs of 11 steps, [2-5] of them done", output), output
    assert "4 of 4 runs are done, 4 of them new." in output
    assert bench(*slow, "--out", tmp_path / "local")[0] == 0
    assert results(out) == results(tmp_path / "local")


def test_run_that_exits_its_process_is_tried_three_times(cluster, ray_options, loss_file, tmp_path):
    process = start(*DIGITS, "--methods", "ce", "--method", f"{loss_file}:ExitsProcess", *ray_options)
    output = process.communicate()[0]
    assert process.returncode == 1, output
    assert output.count("losses.py-ExitsProcess") >= 3, output
    assert "Failed 3 times on the cluster: " in output
    assert [result.method for result in read_all(tmp_path / "out")[0]] == ["ce"]


def test_workers_save_on_sigint(cluster, ray_options, tmp_path, monkeypatch):
    """The runs can also be resumed without Ray."""
    out = tmp_path / "out"
    endless = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL, "--methods", "ce", "--epochs", 100_000)
    process = start(*endless, *ray_options)
    wait_for(lambda: sum(epochs_done(out).values()) >= 2, "two epochs", process)
    process.send_signal(signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "1 left: run the same command again." in output
    [epochs] = epochs_done(out).values()
    monkeypatch.setattr(Progress, "moved", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    code, output = bench(*endless, "--out", out)
    assert (code, f"100,000 epochs of 11 steps, {epochs} of them done" in output) == (130, True), output


def test_max_minutes(cluster, ray_options, loss_file, tmp_path):
    slow = (*DIGITS, "--method", f"{loss_file}:Slow", "--seeds", "1,2,3,4")  # at least 13 s of sleep, limited to 6 s
    process = start(*slow, *ray_options, "--max-minutes", 0.1)
    output = process.communicate()[0]
    assert process.returncode == 3, output
    assert re.search(r"[1-4] left: run the same command again", output), output


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("127.0.0.1:1", 1, "No Ray cluster answers at 127.0.0.1:1: Connection refused."),
        (
            "somewhere",
            2,
            "Parameter `--address` should be HOST:PORT of the cluster's head. Found `--address 'somewhere'`.",
        ),
    ],
)
def test_unreachable_cluster(ray, address, code, message, tmp_path):
    found = bench(*DIGITS, "--engine", "ray", "--address", address, "--out", tmp_path / "out")
    assert (found[0], found[1].splitlines()[-1]) == (code, message)


# --- batches submitted by the driver ---------------------------------------------------------------------------------


class FakeRay:
    """The part of Ray that the driver needs. Trains on the CPU, unless ``reply(*names)`` returns a reply.

    ``submitted`` has the names of the runs in each batch, in order of submission. ``busy`` has the number of batches
    that were pending at each submission.
    """

    def __init__(self, resources, reply=lambda *names: None):
        self.resources, self.reply, self.submitted, self.cancelled = resources, reply, [], []
        self.pending, self.busy = 0, []

    def cluster_resources(self):
        return self.resources

    def remote(self, function):
        def call(images, remote_jobs, device, *arguments):
            names = [job.out.name for job in remote_jobs]
            self.submitted.append(names)
            self.busy.append(self.pending)
            self.pending += 1
            return lambda: self.reply(*names) or function(images, remote_jobs, "cpu", *arguments)

        task = SimpleNamespace(remote=call)
        return SimpleNamespace(options=lambda **options: task)

    def put(self, images):
        return images

    def wait(self, replies, timeout):
        return replies[-1:], replies[:-1]

    def get(self, reply):
        self.pending -= 1
        answer = reply()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, reply):
        self.cancelled.append(reply)


@pytest.fixture
def run(ray, tmp_path, monkeypatch):
    """Run tasks on a fake Ray. Return the queue and the output."""
    from rich.console import Console

    monkeypatch.setattr(over_ray, "POLL", 0.01)

    def run_tasks(fake, tasks, stop=None, **options):
        output = io.StringIO()
        monkeypatch.setattr(over_ray, "connected", lambda address: contextlib.nullcontext(fake))
        monkeypatch.setattr(
            over_ray, "stopping", lambda deadline: contextlib.nullcontext(Stop(deadline) if stop is None else stop)
        )
        options = {"data": Data(None), "out": tmp_path, "console": Console(file=output, width=200), **options}
        return over_ray.run(tasks, **options), output.getvalue()

    return run_tasks


def small(seeds, *methods, **changes):
    """Make tasks on the digits that take almost no time."""
    cells = [replace(cell, **changes) for cell in find("digits", methods or ["ce"], ["symmetric:0.5"])]
    return tasks_of(cells, seeds, {"epochs": 1, "hidden": (16,)})


def ray_error(reason):
    from ray.exceptions import RaySystemError

    return RaySystemError(reason)


@pytest.mark.parametrize(
    ("resources", "waiting", "sizes"),
    [
        ({"GPU": 2.0, "CPU": 16.0}, 9, [3, 3, 3]),
        ({"GPU": 2.0}, 3, [2, 1]),
        ({"GPU": 8.0}, 3, [1, 1, 1]),
        ({"GPU": 1.0}, 5, [3, 2]),
        ({"CPU": 2.0}, 3, [1, 1, 1]),
    ],
)
def test_batch_sizes_by_devices_and_waiting_runs(run, resources, waiting, sizes):
    """GPUs are used if there are any, and none is idle while another has several runs."""
    fake = FakeRay(resources)
    queue, _ = run(fake, small(range(waiting)))
    assert [len(names) for names in fake.submitted] == sizes
    assert len(queue.done) == waiting


def test_cluster_without_requested_device(run):
    with pytest.raises(ConnectionError, match="The cluster has no node with a GPU"):
        run(FakeRay({"CPU": 1.0}), small([1]), device="cuda")


def test_starts_local_ray_without_address(ray, monkeypatch):
    """A cluster already running on this machine may belong to someone else."""
    addresses = []
    monkeypatch.setattr(ray, "init", lambda **options: addresses.append(options["address"]))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(over_ray, "_check_address", lambda address: None)
    for address in (None, "10.0.0.1:6379"):
        with over_ray.connected(address):
            pass
    assert addresses == ["local", "10.0.0.1:6379"]


def test_timed_runs_do_not_share_the_cluster(run):
    fake = FakeRay({"GPU": 3.0})
    run(fake, small(range(3)))
    assert fake.busy == [0, 1, 2]
    fake = FakeRay({"GPU": 3.0})
    queue, _ = run(fake, small(range(3), alone=True))
    assert (fake.busy, len(queue.done)) == ([0, 0, 0], 3)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_failed_run_does_not_affect_its_batch(run):
    tasks = small(range(3))
    bad = tasks[1].name
    fake = FakeRay({"GPU": 1.0}, lambda *names: ray_error("It died.\nSomewhere.") if bad in names else None)
    queue, output = run(fake, tasks)
    assert [len(names) for names in fake.submitted] == [3, 1, 1, 1]
    assert len(queue.done) == 2
    assert list(queue.failed) == [bad]
    assert re.search("Failed 3 times on the cluster: .*It died", queue.failed[bad])
    assert output.count("failed 3 times") == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RuntimeError("CUDA error: misaligned address\nCompile with"),
            "RuntimeError on node1: CUDA error: misaligned address.",
        ),
        (torch.OutOfMemoryError("No memory."), "OutOfMemoryError on node1: No memory."),
        (ValueError("No such thing."), None),
    ],
)
def test_errors_of_runs_and_of_nodes_are_distinguished(ray, error, message, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("ogc.benchmark.batch.train", fail)
    monkeypatch.setattr("platform.node", lambda: "node1")
    if message is None:
        assert train_on_node(small([1])[0], tmp_path) == [Outcome(error="No such thing.")]
    else:
        with pytest.raises(RuntimeError, match=re.escape(message)):
            train_on_node(small([1])[0], tmp_path)


def test_node_without_gpu_or_with_another_version(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="should be cpu: no GPU found"):
        train_on_node(small([1])[0], tmp_path, device="cuda")
    with pytest.raises(RuntimeError, match=r"`version` should be 0\.0, as on the driver"):
        train_on_node(small([1])[0], tmp_path, version="0.0")


def train_on_node(task, out, device="cpu", version=over_ray.__version__):
    """Train a task as a node does."""
    job = Data(None).job(task, out)
    return train_remotely(job.data, [RemoteJob.of(job)], device, 0.0, version)


def test_node_without_shared_folder_leaves_no_files(ray, tmp_path):
    [task] = small([1])
    [alone] = train_on_node(task, tmp_path / "missing")
    assert alone.result is not None
    assert list(tmp_path.iterdir()) == []
    task.work(tmp_path).parent.mkdir()
    [shared] = train_on_node(task, tmp_path)
    assert (task.work(tmp_path) / "last.safetensors").exists()
    assert shared.result["summary"] == alone.result["summary"]


def test_node_waits_for_task_of_another_driver(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(over_ray, "TIMEOUT", 0.0)
    [task] = small([1])
    lock = Lock.take(task.work(tmp_path).with_name(f"{task.name}.worker.lock"))
    with pytest.raises(RuntimeError, match="Another driver is training"):
        train_on_node(task, tmp_path)
    lock.release()
    assert train_on_node(task, tmp_path)[0].result is not None


def test_tasks_that_do_not_stop_in_time_stay_waiting(run, tmp_path, monkeypatch):
    monkeypatch.setattr(over_ray, "TIMEOUT", 0.01)
    stop = Stop()

    class NeverReplies(FakeRay):
        def wait(self, replies, timeout):
            stop.signal = signal.SIGINT
            return [], replies

    tasks = small([1, 2])
    fake = NeverReplies({"CPU": 1.0})
    queue, _ = run(fake, tasks, stop)
    assert queue.signal == signal.SIGINT
    assert len(fake.cancelled) == 2
    assert {task.name for task in queue.waiting} == {task.name for task in tasks}
    assert all(Lock.take(task.lock(tmp_path)) for task in tasks)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("reason", [signal.SIGINT, signal.SIGALRM])
def test_failure_after_stop_is_not_resubmitted(run, number, reason):
    stop, tasks = Stop(), small(range(number))

    def interrupted(*_):
        if reason == signal.SIGINT:
            stop.signal = reason
        else:
            stop.deadline = 0.0
        return ray_error("It was cancelled.")

    fake = FakeRay({"GPU": 1.0}, interrupted)
    queue, output = run(fake, tasks, stop)
    assert [len(names) for names in fake.submitted] == [number]
    assert "failed" not in output
    assert (queue.failed, queue.signal) == ({}, reason)
    assert {task.name for task in queue.waiting} == {task.name for task in tasks}


def test_run_stopped_by_its_node_is_resubmitted(run):
    """A node that shuts down signals its workers, which save and return without a result."""
    [task] = small([1])
    replies = iter([[Outcome()], None])
    fake = FakeRay({"CPU": 1.0}, lambda *_: next(replies))
    queue, _ = run(fake, [task])
    assert fake.submitted == [[task.name]] * 2
    assert (queue.done, queue.waiting) == ([task], [])


def test_losing_the_last_node_with_a_gpu_is_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setattr(over_ray, "TIMEOUT", 0.05)

    class LosesGPU(FakeRay):
        def wait(self, replies, *, timeout):
            self.resources = {"CPU": 1.0}
            return [], replies

    [task] = small([1])
    with pytest.raises(ConnectionError, match="The cluster no longer has a node with a GPU"):
        run(LosesGPU({"CPU": 1.0, "GPU": 1.0}), [task])
    assert Lock.take(task.lock(tmp_path))


def test_skips_tasks_locked_by_another_process(run, tmp_path):
    tasks = small([1, 2])
    lock = Lock.take(tasks[0].lock(tmp_path))
    queue, _ = run(FakeRay({"CPU": 1.0}), tasks)
    lock.release()
    assert [task.name for task in queue.done] == [tasks[1].name]
    assert list(queue.elsewhere) == [tasks[0].name]
