"""``ogc bench run`` on the digits: in this process, or in others that are slowed down, so as to be ended in mid-run."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from typer.testing import CliRunner

from ogc.benchmark import result
from ogc.cli.app import build
from ogc.data import cifar
from small_runs import python_path

TESTS = Path(__file__).parent
SMALL = ("--set", "hidden=16", "--epochs", "6")
DIGITS = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL)
TIMES = ("wall_seconds", "seconds", "images_per_second", "provenance", "memory_gib", "startup_seconds", "checksum")


def bench(*arguments):
    """In this process: the exit code, and what is said."""
    result = CliRunner().invoke(build(), [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def start(*arguments, pause=0.0, hold=None, log=None, **options):
    """In another process; ``pause`` seconds a step, which waits while ``hold`` exists; a line of ``log`` an epoch."""
    env = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    env |= {"PAUSE": str(pause), "HOLD": str(hold or ""), "LOG": str(log or os.devnull)}
    command = [sys.executable, str(Path(__file__)), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=env, **pipes | options)


def wait_for(holds, what, seconds=90):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def epochs_done(out):
    """By the names of runs that are under way."""
    found = {}
    for path in (out / ".work").glob("*/metrics.jsonl"):
        found[path.parent.name] = path.read_bytes().count(b"\n")
    return found


def only_results(out):
    """Whether the folders and locks of all runs are gone."""
    work = out / ".work"
    return not any(work.iterdir()) and {path.suffix for path in out.iterdir() if path != work} == {".json"}


def results(out):
    """By file, without what differs from time to time."""
    found = {}
    for path in sorted(out.glob("*.json")):
        content = json.loads(path.read_text())
        content["epochs"] = [
            {key: value for key, value in epoch.items() if key not in TIMES} for epoch in content["epochs"]
        ]
        found[path.name] = {key: value for key, value in content.items() if key not in TIMES}
    return found


def tiny_cifar(folder, monkeypatch):
    """A folder with CIFAR-10 in its official form, of 40 and 10 images. Their labels are not those of the tables."""
    monkeypatch.setattr(result, "LABELS", {})
    monkeypatch.setattr(cifar, "CIFAR10", dataclasses.replace(cifar.CIFAR10, train_size=40, test_size=10))
    version = cifar.CIFAR10.binary
    inner = folder / version.folder
    inner.mkdir(parents=True)
    (inner / version.names).write_text("\n".join(f"class_{i}" for i in range(10)) + "\n")
    for name in (*version.train, version.test):
        rows = 10 if name == version.test else 40 // len(version.train)
        pixels = torch.randint(256, (rows, 3072), dtype=torch.uint8).numpy()
        (inner / name).write_bytes(b"".join(bytes([i % 10]) + row.tobytes() for i, row in enumerate(pixels)))
    return folder


def slow_down():
    """What ``start`` asks for."""
    from ogc.benchmark.batch import SessionWatch

    pause, hold = float(os.environ.get("PAUSE", 0)), os.environ.get("HOLD", "")
    log = Path(os.environ.get("LOG", os.devnull))
    moved, ended = SessionWatch.moved, SessionWatch.ended_epoch

    def slowly(self, *arguments, **options):
        time.sleep(pause)
        while hold and Path(hold).exists():
            time.sleep(0.01)
        moved(self, *arguments, **options)

    def noted(self, number, epoch):
        with log.open("a") as file:
            file.write(f"{self.jobs[number].out.name} {epoch.epoch}\n")
        ended(self, number, epoch)

    SessionWatch.moved, SessionWatch.ended_epoch = slowly, noted


if __name__ == "__main__":
    slow_down()
    build()(prog_name="ogc")
