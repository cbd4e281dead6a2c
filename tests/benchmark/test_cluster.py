"""Runs over a Ray cluster of several nodes, all on this machine and its loopback."""

import io
import re
import signal

import pytest

from bench_runs import SMALL, TESTS, bench, epochs_done, results, start, wait_for
from ogc.benchmark.result import read_all

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
        patch.setenv("PYTHONPATH", str(TESTS))
        yield pytest.importorskip("ray", reason="Ray cannot be imported: pip install ogc[ray]", exc_type=ImportError)


@pytest.fixture
def cluster(ray):
    """A head without a processor; nodes are to be added."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    made = Cluster(initialize_head=True, head_node_args=head)
    assert made.address.startswith("127.0.0.1:")
    yield made
    made.shutdown()


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
    for _ in range(2):
        add_node(cluster)
    four = (*DIGITS, "--methods", "ce,ce+ogc", "--seeds", "1,2")
    process = start(*four, *over)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert "4 of 4 runs are there, 4 of them new." in said
    assert len(set(re.findall(r"process (\d+)", said))) == 2
    assert "ce+ogc  epoch 6/6" in said  # progress is told
    assert bench(*four, "--out", tmp_path / "here")[0] == 0
    assert results(tmp_path / "out") == results(tmp_path / "here")
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json"}


@pytest.mark.kill  # waits for Ray, which takes its time on a busy machine
def test_a_node_is_killed_and_another_comes(cluster, over, file, tmp_path):
    """Its run goes on at the last checkpoint, on the node that is left; the one that comes has a share in the rest."""
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
    assert "4 of 4 runs are there, 4 of them new." in said
    assert bench(*slow, "--out", tmp_path / "here")[0] == 0
    assert results(out) == results(tmp_path / "here")


def test_what_ends_its_worker_is_tried_three_times(cluster, over, file, tmp_path):
    add_node(cluster)
    process = start(*DIGITS, "--methods", "ce", "--method", f"{file}:Deadly", *over)
    said = process.communicate()[0]
    assert process.returncode == 1, said
    assert said.count("is lost: ") == 3
    assert "Lost 3 times with its worker" in said
    assert [result.method for result in read_all(tmp_path / "out")[0]] == ["ce"]


def test_stopped_in_the_middle_workers_save(cluster, over, file, tmp_path):
    """And the runs go on without Ray, too. It takes a second or two until a worker is told."""
    add_node(cluster)
    out = tmp_path / "out"
    slow = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL, "--method", f"{file}:Slow", "--epochs", 40)
    process = start(*slow, *over)
    wait_for(lambda: sum(epochs_done(out).values()) >= 2, "two epochs")
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130, said
    assert "1 are left: the same command goes on with them." in said
    [epochs] = epochs_done(out).values()
    code, said = bench(*slow, "--out", out, "--max-minutes", 0.1)
    assert (code, f"40 epochs of 11 steps, {epochs} of them done" in said) == (0, True), said


def test_max_minutes(cluster, over, file, tmp_path):
    add_node(cluster)
    slow = (*DIGITS, "--method", f"{file}:Slow", "--seeds", "1,2,3,4")  # which sleep 13 seconds, of 12
    process = start(*slow, *over, "--max-minutes", 0.2)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert re.search(r"[1-4] are left: the same command goes on", said), said


@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        ("127.0.0.1:1", 1, "No Ray cluster answers at 127.0.0.1:1: Connection refused.\n"),
        (
            "somewhere",
            2,
            "Parameter `address` should be HOST:PORT of the cluster's head. Found `address = 'somewhere'`.\n",
        ),
    ],
)
def test_a_cluster_that_is_not_there(ray, address, code, said, tmp_path):
    assert bench(*DIGITS, "--engine", "ray", "--address", address, "--out", tmp_path / "out") == (code, said)


# --- who is hired -----------------------------------------------------------------------------------------------------


class Pretended:
    """As much of Ray as hiring needs; actors never answer."""

    def __init__(self, *resources):
        self.resources, self.hired = resources, []

    def nodes(self):
        numbered = enumerate(self.resources, 1)
        return [
            {"NodeID": f"{i:056x}", "NodeManagerHostname": f"node{i}", "Alive": bool(has), "Resources": has}
            for i, has in numbered
        ]

    def get_runtime_context(self):
        return self

    def get_node_id(self):
        return f"{1:056x}"

    def remote(self, made):
        return Remote(self, made)


class Remote:
    def __init__(self, ray, made):
        self.ray, self.made = ray, made

    def options(self, **options):
        self.options = options
        return self

    def remote(self):
        if self.made.__name__ == "Worker":
            node = int(self.options["scheduling_strategy"].node_id, 16)
            self.ray.hired.append((node, self.options.get("num_gpus", 0), self.options["num_cpus"]))
        return self

    @property
    def hello(self):
        return Answer()


class Answer:
    def remote(self):
        return object()


class Barren(Pretended):
    """Nobody can be hired."""

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
    ("device", "waiting", "hired"),
    [
        ("auto", 9, [(1, 1, 0)] * 2 + [(2, 0, 1)] * 3 + [(4, 0, 1)]),
        ("auto", 3, [(1, 1, 0)] * 2 + [(2, 0, 1)]),
        ("cuda", 9, [(1, 1, 0)] * 2),
        ("cpu", 6, [(1, 0, 1)] * 6),
    ],
)
def test_a_worker_a_gpu_or_a_processor_where_there_is_none(ray, device, waiting, hired, tmp_path):
    from rich.console import Console

    from ogc.benchmark.cluster import Crew
    from ogc.benchmark.plan import find
    from ogc.benchmark.run import Books, Data, tasks_of

    tasks = tasks_of(find("digits"), [1])[:waiting]
    pretended = Pretended(*NODES)
    crew = Crew(pretended, Books(tmp_path, Console(quiet=True), tasks), Data(None), device, None, None, 0.0)
    crew.hire()
    assert pretended.hired == hired
    crew.hire()
    assert pretended.hired == hired  # no more than there is room for
    assert crew.most == {"cuda": 4, "cpu": 1}


def test_nodes_where_no_worker_can_be_made_are_left_out(ray, tmp_path, monkeypatch):
    """For want of ogc, say: a sentence each, and an end."""
    from rich.console import Console

    from ogc.benchmark import cluster
    from ogc.benchmark.plan import find
    from ogc.benchmark.run import Books, Data, tasks_of
    from ogc.training.stopping import Stop

    for name in ("PATIENCE", "POLL"):
        monkeypatch.setattr(cluster, name, 0.01)
    pretended, said = Barren({"CPU": 1.0}, {"CPU": 1.0}), io.StringIO()
    books = Books(tmp_path, Console(file=said, width=200), tasks_of(find("digits"), [1]))
    crew = cluster.Crew(pretended, books, Data(None), "cpu", None, None, 0.0)
    with pytest.raises(ConnectionError, match="The cluster has no node with a free CPU"):
        crew.work(Stop())
    assert len(pretended.hired) == 2 * cluster.TRIES
    for node in ("node1", "node2"):
        assert said.getvalue().count(f"{node}: no worker could be started: ModuleNotFoundError: No module named") == 1
        assert said.getvalue().count(f"{node} is left out: no worker could be started there 3 times.") == 1


def test_without_an_address_it_is_a_ray_of_our_own(ray, monkeypatch):
    """Not whatever cluster is on this machine, perhaps somebody else's."""
    from ogc.benchmark import cluster

    asked = []
    monkeypatch.setattr(ray, "init", lambda **options: asked.append(options["address"]))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(cluster, "_reach", lambda address: None)
    for address in (None, "10.0.0.1:6379"):
        with cluster._connected(address):
            pass
    assert asked == ["local", "10.0.0.1:6379"]


def test_how_many_tasks_a_worker_gets(ray, tmp_path, monkeypatch):
    """Nobody idles while another has several; and what a worker was lost with takes nobody else with it again."""
    from rich.console import Console

    from ogc.benchmark import cluster
    from ogc.benchmark.plan import find
    from ogc.benchmark.run import Books, Data, tasks_of

    tasks = tasks_of(find("digits", ["ce"]), [1, 2])
    assert len(tasks) == 8
    books = Books(tmp_path, Console(quiet=True), tasks)
    crew = cluster.Crew(Pretended({"GPU": 8.0}), books, Data(None), "auto", None, None, 0.0)
    crew.hire()
    answers = list(crew.coming)
    assert len(answers) == 8
    crew.idle.append(crew.coming.pop(answers[0]))
    assert crew.share("cuda") == 1
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "PATIENCE", 0.0)
        assert crew.share("cuda") == 4, "those that do not come are not waited for"
    for answer in answers[2:]:
        del crew.coming[answer]
    assert (crew.share("cuda"), crew.share("cpu")) == (4, 1)
    held = books.take(4)
    crew.drop(crew.idle[0], held, ["it died"])
    lost = {one.task.name for one in held}
    for _ in range(4):
        assert crew.share("cuda") == 1
        [one] = books.take(crew.share("cuda"))
        lost.remove(one.task.name)
    assert crew.share("cuda") == 2
