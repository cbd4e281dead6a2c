"""Runs of a second or less, ways to stop them at a given step, and the comparison of two runs."""

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

from children import fork
from ogc.data.dataset import Dataset
from ogc.training import Interrupted, Job, Recipe, train
from ogc.training.feed import Feed
from ogc.training.history import SilentWatch
from ogc.training.method import METHODS
from ogc.training.run_folder import BEST, LAST, METRICS, SAMPLES, read_tensors

TESTS = Path(__file__).parent
CLASSES = 3
TIMES = ("seconds", "images_per_second", "started")
FILE_FIELDS = ("run", "checksum")


def images(n=80, *, seed=0, flipped=0.3):
    """Random images, slightly brighter in the channel of their class. Some given labels are wrong."""
    draw = torch.Generator().manual_seed(seed)
    true = torch.randint(CLASSES, (n,), generator=draw)
    pixels = torch.randint(140, (n, 3, 8, 8), generator=draw)
    pixels[torch.arange(n), true] += 60
    wrong = torch.rand(n, generator=draw) < flipped
    given = torch.where(wrong, (true + 1) % CLASSES, true)
    ids = [f"image {i}" for i in range(n)]
    return Dataset(pixels.to(torch.uint8), given, tuple("abc"), ids, true)


def features(n=80, *, seed=0, flipped=0.3):
    data = images(n, seed=seed, flipped=flipped)
    return Dataset(data.inputs.flatten(1) / 255, data.given, data.class_names, data.ids, data.true)


def feed(data, **changes):
    return Feed(
        data, **{"batch_size": 16, "augment": "none", "size": None, "seed": 3, "device": torch.device("cpu")} | changes
    )


class OnDisk:
    """Images that are loaded on access, with a count of the images read."""

    def __init__(self, pixels):
        self.pixels, self.reads = pixels, 0

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        self.reads += len(index)
        return self.pixels[index]


def on_disk(data):
    return Dataset(OnDisk(data.inputs), data.given, data.class_names, data.ids, data.true)


def network(*, normed=True, drop=0.2, seed=7):
    """A small convolutional network for ``images``, with optional batch norm and dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        norm = nn.BatchNorm2d(8) if normed else nn.Identity()
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(drop))
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), norm, nn.ReLU(), pooled, nn.Linear(32, CLASSES))


def recipe(method="ce+ogc", **changes):
    parameters = {"queue_size": 48, "every": 2} if method.endswith("+ogc") else {}
    defaults = {
        "name": "small",
        "network": "mlp",
        "hidden": (16,),
        "epochs": 4,
        "batch_size": 16,
        "lr": 0.05,
        "weight_decay": 1e-3,
    }
    defaults |= {"schedule": "cosine", "precision": "float32", "method": method, "parameters": parameters}
    return Recipe(**defaults | changes)


def job(out=None, method="ce+ogc", *, n=80, net=None, **changes):
    """A job on ``images``, or on ``features`` if no network is given."""
    make = features if net is None else images
    sets = {"test": make(30, seed=1, flipped=0), "again": make(16, seed=2)}
    return Job(recipe(method, **changes), None, (make(n), sets), None, out, net)


class StopAt(SilentWatch):
    """Raise a signal after a step of an epoch (both from 1), or at the epoch's end if the step is None."""

    def __init__(self, epoch, step, signal=signal.SIGTERM):
        self.at, self.signal = (epoch, step), signal

    def moved(self, run, *, epoch, step, images_per_second):
        if (epoch + 1, step) == self.at:
            signal.raise_signal(self.signal)

    def ended_epoch(self, run, epoch):
        if (epoch.epoch, None) == self.at:
            signal.raise_signal(self.signal)


def train_with_stops(make_job, stops, **options):
    """Train, stopping and resuming at each of ``stops``. Return the result and the position at each stop."""
    positions = []
    for stop in stops:
        one = make_job()
        try:
            train([one], watch=StopAt(*stop), resume=True, **options)
        except Interrupted:
            facts = read_tensors(one.out / LAST)[1]
            positions.append((facts["epoch"], facts["step"]))
    return train([make_job()], resume=True, **options)[0], positions


def assert_equal_runs(one, other):
    """Compare the tensors of the last, best and samples files bit for bit, and all records except times."""
    for name in (LAST, BEST, SAMPLES):
        tensors, facts = read_tensors(one / name)
        others, other_facts = read_tensors(other / name)
        assert tensors.keys() == others.keys()
        for key, value in tensors.items():
            assert value.dtype == others[key].dtype, (name, key)
            assert value.numpy().tobytes() == others[key].numpy().tobytes(), (str(one), name, key)
        assert without_times(facts) == without_times(other_facts)
    assert metrics(one) == metrics(other)


def metrics(folder):
    lines = (folder / METRICS).read_text().splitlines()
    return [without_times(json.loads(line)) for line in lines]


def without_times(facts):
    facts = {name: value for name, value in facts.items() if name not in (*TIMES, *FILE_FIELDS)}
    if "history" in facts:
        facts["history"] = [without_times(epoch) for epoch in facts["history"]]
    return facts


# --- every method, in one process or in two --------------------------------------------------------------------------

SOME = ("ce", "nce_nnce", "ce+ogc", "fl+ogc", "ce+linear", "gce+ema")
STOPS = ((1, 2), (1, None), (2, 3))  # before the first update, at an epoch's end, after some updates


def variants():
    """Every method in both precisions, cycling through the other options."""
    for number, method in enumerate(METHODS):
        for bits in ("float32", "bf16"):
            odd = (number + (bits == "bf16")) % 2
            optimizer = {"optimizer": "adamw", "lr": 0.01} if odd else {"nesterov": True}
            rest = {"average": (0.99, 0.9, None)[number % 3], "accumulate": 1 + (number // 2) % 2}
            rest |= {"epochs": 3, "clip_norm": (None, 1.0)[odd], "augment": ("none", "cifar")[(number // 2) % 2]}
            yield f"{method}-{bits}", dict(method=method, precision=bits, **optimizer, **rest)


def half_the_variants():
    """Every method once, alternating between float32 and bf16."""
    return [variant for number, variant in enumerate(variants()) if number % 4 in (1, 2)]


def some_variants():
    """Losses without state, and each kind with state (queue, schedule), in the precision not used above."""
    others = [variant for number, variant in enumerate(variants()) if number % 4 in (0, 3)]
    return [(name, options) for name, options in others if options["method"] in SOME]


def resume_matrix(folder, variants=variants):
    """Train each variant in ``folder``, without stops in uninterrupted/NAME and with stops in resumed/NAME."""
    for name, options in variants():
        options = options | {"epochs": 2}
        train([job(folder / "uninterrupted" / name, net=network(), **options)])
        _, positions = train_with_stops(lambda: job(folder / "resumed" / name, net=network(), **options), STOPS)  # noqa: B023
        assert positions == [(0, 2), (1, 0), (1, 3)]


def assert_matrix(folder, variants=variants):
    for name, options in variants():
        assert_equal_runs(folder / "uninterrupted" / name, folder / "resumed" / name)
        if options["method"].endswith("+ogc"):
            assert (
                read_tensors(folder / "uninterrupted" / name / LAST)[0]["criterion.solution"].isfinite().all()
            )  # the mixture was fitted


def python_path():
    """PYTHONPATH with the tests, then the entries of this process."""
    return os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))


def environment():
    """Environment of processes that train."""
    return {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def two_processes(code, folder, *arguments, env=None, fail=False):
    """Run ``code`` in two processes that form a group. Return their outputs. If one fails, the other is killed."""
    preamble = "import os, sys; from pathlib import Path; folder = Path(sys.argv[1])\n"
    if env is None:
        env = {"INIT_METHOD": f"file://{folder}/rendezvous"}
        preamble += (
            "import torch.distributed as dist; dist.init_process_group('gloo', init_method=os.environ['INIT_METHOD'], "
        )
        preamble += "rank=int(os.environ['RANK']), world_size=2)\n"
    script = Path(folder) / "two processes.py"
    script.write_text(preamble + code)
    processes = [
        fork(
            script,
            folder,
            *arguments,
            env={**environment(), **env, "RANK": str(rank), "WORLD_SIZE": "2"},
            merged=True,
            strict=True,
        )
        for rank in range(2)
    ]
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes) and not fail:
            break
        time.sleep(0.05)
    for process in processes:
        process.kill()
    outputs = [process.communicate()[0] for process in processes]
    if not fail:
        assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return outputs


def finish(processes, timeout=900):
    """Wait for processes started with ``stderr=PIPE``. If one fails, kill the others, which may be waiting for it."""
    try:
        for process in processes:
            _, errors = process.communicate(timeout=timeout)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()
