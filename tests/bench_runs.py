"""Helpers to run ``ogc bench run`` on the digits, in this process or in one that pauses at a given step."""

import dataclasses
import json
import os
from pathlib import Path

import torch
from typer.testing import CliRunner

from children import fork, hold_training
from ogc.benchmark import result
from ogc.cli.app import build
from ogc.data import cifar
from small_runs import python_path

TESTS = Path(__file__).parent
SMALL = ("--set", "hidden=16", "--epochs", "6")
DIGITS = ("bench", "run", "digits", "--noises", "symmetric:0.5", *SMALL)
TIMES = ("wall_seconds", "seconds", "images_per_second", "provenance", "memory_gib", "startup_seconds", "checksum")


def bench(*arguments):
    """Run the command in this process. Return the exit code and the output."""
    result = CliRunner().invoke(build(), [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def start(*arguments, hold=None, log=None):
    """Run the command in another process, paused as set by ``hold``. It appends one line per epoch to ``log``."""
    env = {"PYTHONPATH": python_path(), "COLUMNS": "200", "LOG": str(log or os.devnull), **(hold or {})}
    return fork(__file__, *arguments, env=env, merged=True)


def epochs_done(out):
    """Return the number of completed epochs by name, for runs in progress."""
    found = {}
    for path in (out / ".work").glob("*/metrics.jsonl"):
        found[path.parent.name] = path.read_bytes().count(b"\n")
    return found


def only_results(out):
    """Return True if no working folders or locks are left."""
    work = out / ".work"
    return not any(work.iterdir()) and {path.suffix for path in out.iterdir() if path != work} == {".json"}


def results(out):
    """Return the results by file name, without times and other values that differ between runs."""
    found = {}
    for path in sorted(out.glob("*.json")):
        content = json.loads(path.read_text())
        content["epochs"] = [
            {key: value for key, value in epoch.items() if key not in TIMES} for epoch in content["epochs"]
        ]
        found[path.name] = {key: value for key, value in content.items() if key not in TIMES}
    return found


def tiny_cifar(folder, monkeypatch):
    """Write CIFAR-10 in its official format with 40 and 10 images. The labels differ from those of the tables."""
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


def log_epochs():
    """Write the log requested by ``start``."""
    from ogc.benchmark.batch import SessionWatch

    log, ended = Path(os.environ.get("LOG", os.devnull)), SessionWatch.ended_epoch

    def log_epoch(self, number, epoch):
        with log.open("a") as file:
            file.write(f"{self.jobs[number].out.name} {epoch.epoch}\n")
        ended(self, number, epoch)

    SessionWatch.ended_epoch = log_epoch


if __name__ == "__main__":
    hold_training()
    log_epochs()
    build()(prog_name="ogc")
