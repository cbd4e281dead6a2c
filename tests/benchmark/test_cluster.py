"""Runs over a Ray cluster of several nodes, all on this machine and its loopback."""

import contextlib
import io
import json
import re
import signal
from dataclasses import replace

import pytest
import torch

from bench_runs import SMALL, bench, epochs_done, results, start, wait_for
from ogc.benchmark import cluster as over_ray
from ogc.benchmark import cluster_worker
from ogc.benchmark.batch import BatchOutcome, Outcome
from ogc.benchmark.cluster import WorkerHandle
from ogc.benchmark.cluster_worker import RemoteJob, Worker
from ogc.benchmark.data import Data
from ogc.benchmark.lock import Lock
from ogc.benchmark.plan import find
from ogc.benchmark.result import read_all
from ogc.benchmark.run import RunQueue
from ogc.benchmark.task import tasks_of
from ogc.training.stopping import Stop
from small_runs import python_path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of what it likes

DIGITS = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL, "--save-every", 0)
MEMORY = 80 * 2**20  # bytes of a node's object store

LOSSES = """
import os
import time
from torch import nn


class Slow(nn.CrossEntropyLoss):
    def forward(self, logits, labels):
        time.sleep(0.05)
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
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # which means: no other address than the loopback's
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


def test_nodes_share_the_work_and_their_results_are_the_same(cluster, over, tmp_path):
    second = add_node(cluster)
    four = (*DIGITS, "--methods", "ce,ce+ogc", "--seeds", "1,2")
    process = start(*four, *over)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert "4 of 4 runs are done, 4 of them new." in said
    assert len(set(re.findall(r"process (\d+)", said))) == 2
    cluster.remove_node(second)
    assert "ce+ogc  epoch 6/6" in said  # progress is told
    assert bench(*four, "--out", tmp_path / "here")[0] == 0
    assert results(tmp_path / "out") == results(tmp_path / "here")
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json"}


@pytest.mark.kill  # waits for Ray, which takes its time on a busy machine
def test_a_node_is_killed_and_another_comes(cluster, over, file, tmp_path):
    """Its run resumes from the last checkpoint on the other node; the new node takes part in the rest."""
    nodes, out = [add_node(cluster) for _ in range(2)], tmp_path / "out"
    slow = (*DIGITS, "--method", f"{file}:Slow", "--seeds", "1,2,3,4")
    process = start(*slow, *over)
    wait_for(lambda: len(epochs_done(out)) == 2 and min(epochs_done(out).values()) >= 2, "two runs under way")
    cluster.remove_node(nodes[0], allow_graceful=False)
    add_node(cluster)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert said.count("is lost: ") == 1
    assert re.search(r"6 epochs of 11 steps, [2-5] of them done", said), said
    assert len(set(re.findall(r"to \S+, process (\d+)", said))) == 3
    assert "4 of 4 runs are done, 4 of them new." in said
    assert bench(*slow, "--out", tmp_path / "here")[0] == 0
    assert results(out) == results(tmp_path / "here")


def test_what_ends_its_worker_is_tried_three_times(cluster, over, file, tmp_path):
    process = start(*DIGITS, "--methods", "ce", "--method", f"{file}:Deadly", *over)
    said = process.communicate()[0]
    assert process.returncode == 1, said
    assert said.count("is lost: ") == 3
    assert "Lost 3 workers" in said
    assert [result.method for result in read_all(tmp_path / "out")[0]] == ["ce"]


def test_stopped_in_the_middle_workers_save(cluster, over, file, tmp_path):
    """And the runs go on without Ray, too. It takes a second or two until a worker is told."""
    out = tmp_path / "out"
    slow = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL, "--method", f"{file}:Slow", "--epochs", 40)
    process = start(*slow, *over)
    wait_for(lambda: sum(epochs_done(out).values()) >= 2, "two epochs")
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130, said
    assert "1 left: run the same command again." in said
    [epochs] = epochs_done(out).values()
    code, said = bench(*slow, "--out", out, "--max-minutes", 0.1)
    assert (code, f"40 epochs of 11 steps, {epochs} of them done" in said) == (0 if read_all(out)[0] else 3, True), said


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


# --- which workers are started ---------------------------------------------------------------------------------------


class FakeRay:
    """As much of Ray as starting workers needs; actors never reply."""

    def __init__(self, *resources):
        self.resources, self.started = resources, []

    def nodes(self):
        numbered = enumerate(self.resources, 1)
        return [
            {"NodeID": f"{i:056x}", "NodeManagerHostname": f"node{i}", "Alive": bool(has), "Resources": has}
            for i, has in numbered
        ]

    def remote(self, made):
        return Remote(self, made)


class Remote:
    """What is asked of it is a function, to be called for the answer."""

    def __init__(self, ray, made):
        self.ray, self.made = ray, made

    def options(self, **options):
        self.options = options
        self.node = int(options["scheduling_strategy"].node_id, 16)
        return self

    def remote(self, *_):
        if self.made is Worker:
            self.ray.started.append((self.node, self.options.get("num_gpus", 0), self.options["num_cpus"]))
            self.number = len(self.ray.started)
        return self

    def __getattr__(self, what):
        return Call(self, what)


class Call:
    def __init__(self, actor, what):
        self.actor, self.what = actor, what

    def remote(self, *arguments, **options):
        return lambda: self.actor.ray.answer(self.actor, self.what, arguments, options)


class TrainingRay(FakeRay):
    """Workers answer. Training is real, on the CPU, unless ``does(actor, name)`` says what it comes to.

    ``given`` is who was asked to train what; who is killed trains nothing more.
    """

    def __init__(self, does, *resources):
        super().__init__(*resources)
        self.does, self.given, self.killed = does, [], []

    def put(self, images):
        return images

    def wait(self, answers, timeout):
        return answers, []

    def get(self, answer, timeout=None):
        return answer()

    def kill(self, actor):
        self.killed.append(actor)

    def answer(self, actor, what, arguments, options):
        if what == "describe":
            return actor.number, f"node{actor.node}", over_ray.__version__
        if what == "train":
            assert actor not in self.killed
            names = [job.out.name for job in arguments[1]]
            self.given.append((actor.node, *names))
            return self.does(actor, *names) or Worker().train(*arguments, **options | {"device": "cpu"})
        return []


@pytest.fixture
def driver(ray, tmp_path, monkeypatch):
    """Make a driver from a fake Ray and tasks; its output is in ``driver.said``."""
    from rich.console import Console

    monkeypatch.setattr(over_ray, "POLL", 0.01)

    def make(fake, tasks, device="auto"):
        said = io.StringIO()
        queue = RunQueue(tmp_path, Console(file=said, width=200), tasks)
        made = over_ray.Driver(fake, queue, Data(None), device, None, None, 0.0)
        made.said = said.getvalue
        return made

    return make


def small(seeds, *methods, **of_cells):
    """Tasks on the digits that take no time."""
    cells = [replace(cell, **of_cells) for cell in find("digits", methods or ["ce"], ["symmetric:0.5"])]
    return tasks_of(cells, seeds, {"epochs": 1, "hidden": (16,)})


def come(driver):
    """Start all workers and receive their replies."""
    driver.start_workers()
    for answer in list(driver.starting):
        driver.receive(answer)


class Barren(FakeRay):
    """A fake Ray in which no worker can start."""

    def get(self, answer, timeout=None):
        from ray.exceptions import RaySystemError

        raise RaySystemError("It died while it was made.\n  Traceback:\nModuleNotFoundError: No module named 'ogc'")

    def kill(self, actor):
        from ray.exceptions import RaySystemError

        raise RaySystemError("Actor creation cancelled.")

    def wait(self, answers, timeout):
        return answers, []


NODES = ({"GPU": 2.0, "CPU": 16.0}, {"CPU": 3.0}, {}, {"CPU": 1.0})


@pytest.mark.parametrize(
    ("device", "waiting", "started"),
    [
        ("auto", 9, [(1, 1, 0)] * 2 + [(2, 0, 1)] * 3 + [(4, 0, 1)]),
        ("auto", 3, [(1, 1, 0)] * 2 + [(2, 0, 1)]),
        ("cuda", 9, [(1, 1, 0)] * 2),
        ("cpu", 6, [(1, 0, 1)] * 6),
    ],
)
def test_a_worker_a_gpu_or_a_processor_where_there_is_none(driver, device, waiting, started):
    fake = FakeRay(*NODES)
    made = driver(fake, tasks_of(find("digits"), [1])[:waiting], device)
    made.start_workers()
    assert fake.started == started
    made.start_workers()
    assert fake.started == started  # no more than there is room for
    assert made.most == {"cuda": 4, "cpu": 1}


def test_nodes_where_no_worker_can_be_made_are_left_out(driver, monkeypatch):
    """For want of ogc, say: a sentence each, and an end."""
    monkeypatch.setattr(over_ray, "TIMEOUT", 0.01)
    fake = Barren({"CPU": 1.0}, {"CPU": 1.0})
    made = driver(fake, tasks_of(find("digits"), [1]), "cpu")
    with pytest.raises(ConnectionError, match="The cluster has no node with a free CPU"):
        made.work(Stop())
    assert len(fake.started) == 2 * over_ray.TRIES
    for node in ("node1", "node2"):
        assert made.said().count(f"{node}: no worker could be started: ModuleNotFoundError: No module named") == 1
        assert made.said().count(f"{node} is excluded after 3 failures.") == 1


def test_a_node_with_another_version_is_left_out(driver):
    class Old(TrainingRay):
        def answer(self, actor, what, *rest):
            old = what == "describe" and actor.node == 1
            return (1, "node1", "0.0") if old else super().answer(actor, what, *rest)

    fake = Old(lambda *_: None, {"CPU": 1.0}, {"CPU": 1.0})
    made = driver(fake, small([1, 2, 3]))
    made.work(Stop())
    assert [node for node, *_ in fake.given] == [2, 2, 2]
    assert made.said().count("node1 is excluded: it has ogc 0.0, not") == 1


def test_without_an_address_it_is_a_ray_of_our_own(ray, monkeypatch):
    """Not whatever cluster is on this machine, perhaps somebody else's."""
    asked = []
    monkeypatch.setattr(ray, "init", lambda **options: asked.append(options["address"]))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(over_ray, "_check_address", lambda address: None)
    for address in (None, "10.0.0.1:6379"):
        with over_ray._connected(address):
            pass
    assert asked == ["local", "10.0.0.1:6379"]


def test_how_many_tasks_a_worker_gets(driver, monkeypatch):
    """No worker idles while another has several tasks. Tasks that a worker was lost with are run apart from others."""
    fake = TrainingRay(None, {"GPU": 8.0})
    made = driver(fake, small(range(8)))

    def assigned(*workers):
        """How many tasks they get."""
        made.idle = list(workers)
        made.assign()
        got = [(answer, claims) for answer, (worker, claims) in made.busy.items() if worker in workers]
        return sum(len(claims) for _, claims in got)

    def back():
        for answer in list(made.busy):
            for claim in made.busy.pop(answer)[1]:
                made.queue.finish(claim, Outcome())

    made.start_workers()
    workers = list(made.starting.values())
    assert len(workers) == 8
    del made.starting[next(iter(made.starting))]
    assert assigned(workers[0]) == 1
    back()
    with monkeypatch.context() as patch:
        patch.setattr(over_ray, "TIMEOUT", 0.0)
        assert assigned(workers[0]) == 4, "those that do not come are not waited for"
    back()
    made.starting.clear()
    assert assigned(replace(workers[0], kind="cpu")) == 1
    back()
    assert assigned(workers[0]) == 4
    [(worker, claims)] = made.busy.values()
    made.busy.clear()
    made.fail(worker, claims, "it died")
    assert assigned(workers[1]) == 4, "the others come first"
    assert [assigned(worker) for worker in workers[2:]] == [1, 1, 1, 1, 0, 0]


# --- what goes wrong --------------------------------------------------------------------------------------------------

FULL = "OSError on node1: No space left on device."


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ValueError("No such thing."), BatchOutcome([Outcome(error="No such thing.")])),
        (
            RuntimeError("CUDA error: misaligned address\nCompile with"),
            "RuntimeError on here: CUDA error: misaligned address.",
        ),
        (torch.OutOfMemoryError("No memory."), "OutOfMemoryError on here: No memory."),
    ],
)
def test_what_is_wrong_with_a_run_and_what_with_its_node(ray, error, answer, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("ogc.benchmark.batch.train", fail)
    monkeypatch.setattr("platform.node", lambda: "here")
    assert trained(small([1])[0], tmp_path) == answer


def test_a_node_that_cannot_train_is_told_from_the_run(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "should be cpu: no GPU found" in trained(small([1])[0], tmp_path, device="cuda")
    (tmp_path / "file").touch()
    assert trained(small([1])[0], tmp_path / "file").startswith("NotADirectoryError on ")


def trained(task, out, device="cpu"):
    """By a worker."""
    data = Data(None)
    job = RemoteJob.of(data.job(task, out))
    return Worker().train(data.loaded["digits"], [job], device=device, seconds=None, save_every=0.0)


def test_a_worker_of_another_driver_is_waited_for(ray, tmp_path, monkeypatch):
    """Its runs wait and do not fail."""
    monkeypatch.setattr(cluster_worker, "TIMEOUT", 0.0)
    [task] = small([1])
    lock = Lock.take(task.work(tmp_path).with_name(f"{task.name}.worker.lock"))
    assert trained(task, tmp_path) == BatchOutcome([Outcome()])
    lock.release()
    assert trained(task, tmp_path).outcomes[0].result is not None


def test_a_bad_node_spoils_no_run(driver):
    """Others do its tasks, those that it has failed alone, and it gets no more."""
    fake = TrainingRay(lambda actor, *_: FULL if actor.node == 1 else None, {"CPU": 2.0}, {"CPU": 1.0})
    made = driver(fake, small(range(6)))
    made.work(Stop())
    assert (len(made.queue.done), made.queue.failed, made.queue.waiting) == (6, {}, [])
    assert [actor.node for actor in fake.killed] == [1] * 3
    assert made.said().count(FULL) == 3
    assert made.said().count("node1 is excluded after 3 failures.") == 1


def test_bad_tasks_spoil_no_node(driver):
    """They are tried three times each, and the others are done; in the end the error is told."""
    tasks = small(range(4))
    bad = [task.name for task in tasks[:2]]
    fake = TrainingRay(lambda _, name: FULL if name in bad else None, {"CPU": 1.0})
    made = driver(fake, tasks)
    made.work(Stop())
    assert len(made.queue.done) == 2
    assert made.queue.failed == dict.fromkeys(bad, f"Lost 3 workers: {FULL}")
    assert len(fake.killed) == 6
    assert "excluded" not in made.said()


def test_what_a_node_has_failed_is_tried_elsewhere(driver):
    """Even if that node has room, and the other has no worker yet, or is busy."""
    fake = TrainingRay(lambda actor, _: FULL if actor.node == 1 else None, {"CPU": 2.0}, {"CPU": 1.0})
    made = driver(fake, small([1]))
    made.work(Stop())
    assert [node for node, *_ in fake.given] == [1, 2]
    made = driver(fake, small([2, 3]))
    come(made)
    assert [worker.node for worker in made.idle] == [f"{1:056x}"] * 2
    [here, _], busy = made.idle, WorkerHandle(None, "elsewhere", "cpu")
    made.assign()
    made.fail(here, made.busy.pop(next(iter(made.busy)))[1], FULL)
    made.busy["something"] = busy, []
    assert not made.suits(made.queue.waiting[0], here)
    del made.busy["something"]
    assert made.suits(made.queue.waiting[0], here)


def test_a_worker_whose_run_broke_gets_no_other(driver):
    """A loss may have left its GPU in an error that stays."""
    trouble = BatchOutcome([Outcome(error="No such thing.")])
    fake = TrainingRay(lambda actor, _: trouble if actor.number == 1 else None, {"CPU": 1.0})
    made = driver(fake, small([1, 2]))
    made.work(Stop())
    assert (len(made.queue.failed), len(made.queue.done), len(fake.started)) == (1, 1, 2)


def test_a_run_of_another_precision_begins_anew_beside_it(ray, tmp_path):
    """A GPU's checkpoint cannot be gone on with on a CPU: it is no fault of the run, and is kept for a GPU."""
    [task] = small([1])
    long = replace(task, cell=replace(task.cell, changes={**task.cell.changes, "precision": "bf16"}))
    assert trained(long, tmp_path).outcomes[0].result is not None
    work = task.work(tmp_path)
    (work / "result.json").unlink()
    begun = (work / "last.safetensors").read_bytes()
    found = trained(task, tmp_path).outcomes[0]
    assert (found.error, found.result["recipe"]["precision"]) == (None, "float32")
    assert (work / "last.safetensors").read_bytes() == begun
    assert json.loads((work / "float32" / "run.json").read_bytes())["recipe"]["precision"] == "float32"
    Worker().remove_finished([work])
    assert not work.exists()


def test_what_was_begun_on_a_gpu_goes_on_on_one(driver):
    """While there is one, and even if processors are idle."""
    fails = iter([FULL])
    fake = TrainingRay(lambda actor, _: next(fails, None) if actor.node == 2 else None, {"CPU": 2.0}, {"GPU": 1.0})
    made = driver(fake, small([1]))
    made.idle = [WorkerHandle(Remote(fake, None), f"{1:056x}", "cpu")]
    made.start_workers()
    gpu = next(iter(made.starting))
    made.idle.clear()
    made.receive(gpu)
    made.assign()
    made.idle = [WorkerHandle(Remote(fake, None), f"{1:056x}", "cpu")]
    made.work(Stop())
    assert [node for node, *_ in fake.given] == [2, 2]
    assert len(made.queue.done) == 1


@pytest.mark.parametrize("first", ["alone", "others"])
def test_what_counts_by_its_time_has_a_node_to_itself(driver, first, monkeypatch):
    class Slowly(TrainingRay):
        def wait(self, answers, timeout):
            return answers[-1:], answers[:-1]

    tasks = small(range(3), alone=True) + small(range(5))
    made = driver(Slowly(lambda *_: None, {"CPU": 3.0}, {"CPU": 1.0}), tasks[:: 1 if first == "alone" else -1])
    assign, seen = made.assign, set()

    def watched():
        assign()
        for node in {worker.node for worker, _ in made.busy.values()}:
            beside = [
                claim.task.cell.alone
                for worker, claims in made.busy.values()
                if worker.node == node
                for claim in claims
            ]
            seen.add((len(beside), any(beside)))

    monkeypatch.setattr(made, "assign", watched)
    made.work(Stop())
    assert seen >= {(1, True), (2, False)}
    assert {many for many, is_alone in seen if is_alone} == {1}
    assert len(made.queue.done) == 8


def test_who_does_not_stop_in_time_leaves_its_task_waiting(driver, monkeypatch):
    monkeypatch.setattr(over_ray, "TIMEOUT", 0.01)
    stop = Stop()

    class Deaf(TrainingRay):
        def wait(self, answers, timeout):
            if made.busy:
                stop.signal = signal.SIGINT
                return [], answers
            return super().wait(answers, timeout)

    tasks = small([1, 2])
    made = driver(Deaf(None, {"CPU": 1.0}), tasks)
    made.work(stop)
    assert made.queue.signal == signal.SIGINT
    assert {task.name for task in made.queue.waiting} == {task.name for task in tasks}
    assert all(Lock.take(task.lock(made.queue.out)) for task in tasks)


def test_what_another_process_lets_go_of_is_done_even_if_nobody_is_idle(driver, tmp_path):
    tasks = small([1, 2])
    lock = Lock.take(tasks[0].lock(tmp_path))

    def does(_, name):
        if name == tasks[1].name:
            lock.release()
            return BatchOutcome([Outcome(error="No such thing.")])
        return None

    made = driver(TrainingRay(does, {"CPU": 1.0}), tasks)
    made.work(Stop())
    assert [task.name for task in made.queue.done] == [tasks[0].name]
    assert (list(made.queue.failed), made.queue.elsewhere) == ([tasks[1].name], {})
