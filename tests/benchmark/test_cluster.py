"""Runs over a Ray cluster of several nodes, all on this machine and its loopback."""

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

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of what it likes

DIGITS = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL, "--save-every", 0)
MEMORY = 80 * 2**20  # bytes of a node's object store

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
        if self.steps == 5:  # not when it is tried out
            MEETING.mkdir(exist_ok=True)
            (MEETING / str(os.getpid())).touch()
            while len(list(MEETING.iterdir())) < 2:
                time.sleep(0.01)
        return super().forward(logits, labels)


class Deadly(nn.CrossEntropyLoss):
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
def started(nodes):
    """Start a cluster of a head without a processor and ``nodes`` with one each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    made = Cluster(initialize_head=True, head_node_args=head)
    assert made.address.startswith("127.0.0.1:")
    for _ in range(nodes):
        add_node(made)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def shared_cluster(ray):
    """A cluster with one node, for all tests that take no node away."""
    with started(1) as made:
        yield made


@pytest.fixture
def cluster(request):
    """The shared cluster, or an empty one for a test marked ``kill``."""
    if not request.node.get_closest_marker("kill"):
        yield request.getfixturevalue("shared_cluster")
        return
    request.getfixturevalue("ray")
    with started(0) as made:
        yield made


def add_node(cluster):
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY)


@pytest.fixture
def over(cluster, tmp_path):
    """The options for such runs, results in ``out``."""
    return "--engine", "ray", "--address", cluster.address, "--out", tmp_path / "out"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "losses.py"
    path.write_text(LOSSES)
    return path


def test_nodes_share_the_work_and_their_results_are_the_same(cluster, over, file, tmp_path):
    second = add_node(cluster)
    four = (*DIGITS, "--methods", "ce+ogc", "--method", f"{file}:Meeting", "--seeds", "1,2")
    process = start(*four, *over)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert "4 of 4 runs are done, 4 of them new." in said
    assert len(set(re.findall(r"process (\d+)", said))) >= 2  # Ray may start another one for a run
    cluster.remove_node(second)
    assert "ce+ogc  epoch 6/6" in said  # progress is told
    assert bench(*four, "--out", tmp_path / "here")[0] == 0
    assert results(tmp_path / "out") == results(tmp_path / "here")
    assert only_results(tmp_path / "out")


@pytest.mark.kill  # waits for Ray, which takes its time on a busy machine
def test_a_node_is_killed_and_another_comes(cluster, over, file, tmp_path):
    """Its run resumes from the last checkpoint on the other node; the new node takes part in the rest."""
    nodes, out = [add_node(cluster) for _ in range(2)], tmp_path / "out"
    slow = (*DIGITS, "--method", f"{file}:Slow", "--seeds", "1,2,3,4")
    process = start(*slow, *over)
    wait_for(lambda: len(epochs_done(out)) == 2 and min(epochs_done(out).values()) >= 2, "two runs under way", process)
    cluster.remove_node(nodes[0], allow_graceful=False)
    add_node(cluster)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert re.search(r"6 epochs of 11 steps, [2-5] of them done", said), said
    assert "4 of 4 runs are done, 4 of them new." in said
    assert bench(*slow, "--out", tmp_path / "here")[0] == 0
    assert results(out) == results(tmp_path / "here")


def test_what_ends_its_process_is_tried_three_times(cluster, over, file, tmp_path):
    process = start(*DIGITS, "--methods", "ce", "--method", f"{file}:Deadly", *over)
    said = process.communicate()[0]
    assert process.returncode == 1, said
    assert said.count("losses.py-Deadly") >= 3, said
    assert "Failed 3 times on the cluster: " in said
    assert [result.method for result in read_all(tmp_path / "out")[0]] == ["ce"]


def test_stopped_in_the_middle_workers_save(cluster, over, tmp_path, monkeypatch):
    """The runs can be resumed without Ray, too."""
    out = tmp_path / "out"
    endless = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL, "--methods", "ce", "--epochs", 100_000)
    process = start(*endless, *over)
    wait_for(lambda: sum(epochs_done(out).values()) >= 2, "two epochs", process)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130, said
    assert "1 left: run the same command again." in said
    [epochs] = epochs_done(out).values()
    monkeypatch.setattr(Progress, "moved", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    code, said = bench(*endless, "--out", out)
    assert (code, f"100,000 epochs of 11 steps, {epochs} of them done" in said) == (130, True), said


def test_max_minutes(cluster, over, file, tmp_path):
    slow = (*DIGITS, "--method", f"{file}:Slow", "--seeds", "1,2,3,4")  # which sleep 13 seconds, of 6
    process = start(*slow, *over, "--max-minutes", 0.1)
    said = process.communicate()[0]
    assert process.returncode == 3, said
    assert re.search(r"[1-4] left: run the same command again", said), said


@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        ("127.0.0.1:1", 1, "No Ray cluster answers at 127.0.0.1:1: Connection refused."),
        (
            "somewhere",
            2,
            "Parameter `address` should be HOST:PORT of the cluster's head. Found `address = 'somewhere'`.",
        ),
    ],
)
def test_a_cluster_that_is_not_there(ray, address, code, said, tmp_path):
    found = bench(*DIGITS, "--engine", "ray", "--address", address, "--out", tmp_path / "out")
    assert (found[0], found[1].splitlines()[-1]) == (code, said)


# --- what the driver submits -----------------------------------------------------------------------------------------


class FakeRay:
    """As much of Ray as the driver needs. Training is real, on the CPU, unless ``does(*names)`` has an outcome.

    ``given`` is the names of the runs of each batch, in the order in which they were submitted, and ``busy`` the number
    of batches that were pending then.
    """

    def __init__(self, resources, does=lambda *names: None):
        self.resources, self.does, self.given, self.cancelled = resources, does, [], []
        self.pending, self.busy = 0, []

    def cluster_resources(self):
        return self.resources

    def remote(self, function):
        def call(images, remote_jobs, device, *arguments):
            names = [job.out.name for job in remote_jobs]
            self.given.append(names)
            self.busy.append(self.pending)
            self.pending += 1
            return lambda: self.does(*names) or function(images, remote_jobs, "cpu", *arguments)

        submitted = SimpleNamespace(remote=call)
        return SimpleNamespace(options=lambda **options: submitted)

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

    def work(fake, tasks, stop=None, **options):
        said = io.StringIO()
        monkeypatch.setattr(over_ray, "connected", lambda address: contextlib.nullcontext(fake))
        monkeypatch.setattr(
            over_ray, "stopping", lambda deadline: contextlib.nullcontext(Stop(deadline) if stop is None else stop)
        )
        options = {"data": Data(None), "out": tmp_path, "console": Console(file=said, width=200), **options}
        return over_ray.run(tasks, **options), said.getvalue()

    return work


def small(seeds, *methods, **of_cells):
    """Tasks on the digits that take no time."""
    cells = [replace(cell, **of_cells) for cell in find("digits", methods or ["ce"], ["symmetric:0.5"])]
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
def test_how_many_runs_share_a_device(run, resources, waiting, sizes):
    """GPUs are used if there are any, and none idles while another has several runs."""
    fake = FakeRay(resources)
    queue, _ = run(fake, small(range(waiting)))
    assert [len(names) for names in fake.given] == sizes
    assert len(queue.done) == waiting


def test_a_cluster_without_such_a_device(run):
    with pytest.raises(ConnectionError, match="The cluster has no node with a GPU"):
        run(FakeRay({"CPU": 1.0}), small([1]), device="cuda")


def test_without_an_address_it_is_a_ray_of_our_own(ray, monkeypatch):
    """Not whatever cluster is on this machine, perhaps somebody else's."""
    asked = []
    monkeypatch.setattr(ray, "init", lambda **options: asked.append(options["address"]))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(over_ray, "_check_address", lambda address: None)
    for address in (None, "10.0.0.1:6379"):
        with over_ray.connected(address):
            pass
    assert asked == ["local", "10.0.0.1:6379"]


def test_a_timed_run_has_the_cluster_to_itself(run):
    fake = FakeRay({"GPU": 3.0})
    run(fake, small(range(3)))
    assert fake.busy == [0, 1, 2]
    fake = FakeRay({"GPU": 3.0})
    queue, _ = run(fake, small(range(3), alone=True))
    assert (fake.busy, len(queue.done)) == ([0, 0, 0], 3)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_bad_run_spoils_no_other_run_of_its_batch(run):
    tasks = small(range(3))
    bad = tasks[1].name
    fake = FakeRay({"GPU": 1.0}, lambda *names: ray_error("It died.\nSomewhere.") if bad in names else None)
    queue, said = run(fake, tasks)
    assert [len(names) for names in fake.given] == [3, 1, 1, 1]
    assert len(queue.done) == 2
    assert list(queue.failed) == [bad]
    assert re.search("Failed 3 times on the cluster: .*It died", queue.failed[bad])
    assert said.count("failed 3 times") == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RuntimeError("CUDA error: misaligned address\nCompile with"),
            "RuntimeError on here: CUDA error: misaligned address.",
        ),
        (torch.OutOfMemoryError("No memory."), "OutOfMemoryError on here: No memory."),
        (ValueError("No such thing."), None),
    ],
)
def test_errors_of_a_run_and_of_its_node(ray, error, message, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("ogc.benchmark.batch.train", fail)
    monkeypatch.setattr("platform.node", lambda: "here")
    if message is None:
        assert trained(small([1])[0], tmp_path) == [Outcome(error="No such thing.")]
    else:
        with pytest.raises(RuntimeError, match=re.escape(message)):
            trained(small([1])[0], tmp_path)


def test_a_node_that_cannot_train(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="should be cpu: no GPU found"):
        trained(small([1])[0], tmp_path, device="cuda")
    with pytest.raises(RuntimeError, match=r"`version` should be 0\.0, as on the driver"):
        trained(small([1])[0], tmp_path, version="0.0")


def trained(task, out, device="cpu", version=over_ray.__version__):
    """On a node."""
    job = Data(None).job(task, out)
    return train_remotely(job.data, [RemoteJob.of(job)], device, 0.0, version)


def test_a_node_without_the_folder_leaves_nothing_behind(ray, tmp_path):
    [task] = small([1])
    [alone] = trained(task, tmp_path / "not here")
    assert alone.result is not None
    assert list(tmp_path.iterdir()) == []
    task.work(tmp_path).parent.mkdir()
    [shared] = trained(task, tmp_path)
    assert (task.work(tmp_path) / "last.safetensors").exists()
    assert shared.result["summary"] == alone.result["summary"]


def test_a_task_of_another_driver_is_waited_for(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(over_ray, "TIMEOUT", 0.0)
    [task] = small([1])
    lock = Lock.take(task.work(tmp_path).with_name(f"{task.name}.worker.lock"))
    with pytest.raises(RuntimeError, match="Another driver is training"):
        trained(task, tmp_path)
    lock.release()
    assert trained(task, tmp_path)[0].result is not None


def test_who_does_not_stop_in_time_leaves_its_task_waiting(run, tmp_path, monkeypatch):
    monkeypatch.setattr(over_ray, "TIMEOUT", 0.01)
    stop = Stop()

    class Deaf(FakeRay):
        def wait(self, replies, timeout):
            stop.signal = signal.SIGINT
            return [], replies

    tasks = small([1, 2])
    fake = Deaf({"CPU": 1.0})
    queue, _ = run(fake, tasks, stop)
    assert queue.signal == signal.SIGINT
    assert len(fake.cancelled) == 2
    assert {task.name for task in queue.waiting} == {task.name for task in tasks}
    assert all(Lock.take(task.lock(tmp_path)) for task in tasks)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("why", [signal.SIGINT, signal.SIGALRM])
def test_what_fails_once_the_time_is_over_waits_and_is_not_submitted_again(run, number, why):
    stop, tasks = Stop(), small(range(number))

    def interrupted(*_):
        if why == signal.SIGINT:
            stop.signal = why
        else:
            stop.deadline = 0.0
        return ray_error("It was cancelled.")

    fake = FakeRay({"GPU": 1.0}, interrupted)
    queue, said = run(fake, tasks, stop)
    assert [len(names) for names in fake.given] == [number]
    assert "failed" not in said
    assert (queue.failed, queue.signal) == ({}, why)
    assert {task.name for task in queue.waiting} == {task.name for task in tasks}


def test_what_its_node_was_told_to_stop_is_submitted_again(run):
    """A node that is shut down signals its workers, which save and return without a result."""
    [task] = small([1])
    answers = iter([[Outcome()], None])
    fake = FakeRay({"CPU": 1.0}, lambda *_: next(answers))
    queue, _ = run(fake, [task])
    assert fake.given == [[task.name]] * 2
    assert (queue.done, queue.waiting) == ([task], [])


def test_the_last_node_with_a_device_is_lost(run, tmp_path, monkeypatch):
    monkeypatch.setattr(over_ray, "TIMEOUT", 0.05)

    class Lost(FakeRay):
        def wait(self, replies, *, timeout):
            self.resources = {"CPU": 1.0}
            return [], replies

    [task] = small([1])
    with pytest.raises(ConnectionError, match="The cluster no longer has a node with a GPU"):
        run(Lost({"CPU": 1.0, "GPU": 1.0}), [task])
    assert Lock.take(task.lock(tmp_path))


def test_what_another_process_has_locked_is_left_to_it(run, tmp_path):
    tasks = small([1, 2])
    lock = Lock.take(tasks[0].lock(tmp_path))
    queue, _ = run(FakeRay({"CPU": 1.0}), tasks)
    lock.release()
    assert [task.name for task in queue.done] == [tasks[1].name]
    assert list(queue.elsewhere) == [tasks[0].name]
