"""Damage files of a run, a benchmark and an audit, and check that the damage is noticed.

A case is a folder and a function that uses it. On a copy of the folder with one damaged file, the function must return
the same outcome or fail with a one-line message that names the file. Anything else counts as silent.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from bench_runs import results
from ogc.audit.apply import apply
from ogc.audit.run import audit_run, findings_of
from ogc.benchmark.batch import train_batch
from ogc.benchmark.data import Data
from ogc.benchmark.plan import find
from ogc.benchmark.result import read_all
from ogc.benchmark.run import run as run_tasks
from ogc.benchmark.status import status_of
from ogc.benchmark.task import tasks_of
from ogc.report.report import class_rows, headline, recipe_rows, sentences
from ogc.training import RECIPES, Interrupted, Job, NonFinite, Source, jobs_of, load, load_network, override, train
from ogc.training.run_folder import BEST, LAST, RESULT, SAMPLES, read, read_part, read_tensors
from small_runs import StopAt, without_times

PAGE = 4096
TRIAL = {"hidden": "8", "epochs": 3, "method": "ce+ogc"}
CONSOLE = {"file": StringIO(), "width": 500}


class Case(NamedTuple):
    name: str
    folder: Path
    files: tuple[str, ...]
    use: Callable[[Path], object]


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(content, draw):
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


def truncate(content, draw):
    return content[: draw.randrange(len(content))]


def zero_page(content, draw):
    at = draw.randrange(0, len(content), PAGE)
    return content[:at] + bytes(len(content[at : at + PAGE])) + content[at + PAGE :]


def empty(content, draw):
    return b""


DAMAGE = {"flip": flip, "truncate": truncate, "zero a page": zero_page, "empty": empty}


# --- folders ---------------------------------------------------------------------------------------------------------


def job(out, **changes):
    """Make a job on the digits with 20 % wrong labels, loaded as the command line loads them."""
    recipe = override(RECIPES["digits"], TRIAL | {"noise": "symmetric:0.2"} | changes)
    source = Source.parse("digits")
    data, info = load(source, recipe)
    return Job(recipe, source, data, info, out)


def stop(folder, **changes):
    try:
        train([job(folder, **changes)], watch=StopAt(3, 2))
    except Interrupted:
        return folder


def stop_at_nan(folder, **changes):
    """Stop at a non-finite loss, before anything is saved."""
    one = job(folder, **changes)

    class FillsWithNan(StopAt):
        def ended_epoch(self, run, epoch):
            one.data[0].inputs.fill_(float("nan"))

    try:
        train([one], watch=FillsWithNan(0, 0))
    except NonFinite:
        return folder


def finish(folder, **changes):
    train([job(folder, **changes)])
    return folder


def audit(folder, **changes):
    audit_run(finish(folder, **changes))
    return folder


def tasks(seed):
    return tasks_of(find("digits", ["ce+ogc"], ["symmetric:0.5"]), [seed], {"hidden": "8", "epochs": 3})


def bench(folder, *, seed=1):
    run_tasks(tasks(seed), data=Data(None), out=folder, console=Console(**CONSOLE))
    return folder


def bench_stopped(folder, *, seed=1):
    [task] = tasks(seed)
    try:
        train([Data(None).job(task, folder)], watch=StopAt(3, 2))
    except Interrupted:
        return folder


def bench_without_result(folder, *, seed=1):
    """Train without writing the result, as if killed in between."""
    [task] = tasks(seed)
    train_batch([Data(None).job(task, folder)], device="cpu", console=Console(**CONSOLE))
    return folder


# --- uses of the folders ---------------------------------------------------------------------------------------------


def tensors(path):
    found, facts = read_tensors(path)
    return {name: value.numpy().tobytes() for name, value in found.items()}, without_times(facts)


def resumed(folder):
    """Resume and return everything the run writes, without times."""
    train(jobs_of([folder]), resume=True)
    kept = {name: tensors(folder / name) for name in (LAST, BEST, SAMPLES)}
    result = read_part(folder / RESULT)
    return kept, [without_times(epoch) for epoch in result["epochs"]], result["recipe"], result["summary"]


def networks(folder):
    return [
        {name: value.numpy().tobytes() for name, value in load_network(folder, which).state_dict().items()}
        for which in ("last", "averaged", "best")
    ]


def reported(folder):
    """Return the content of the report, without pictures."""
    run = read(folder)
    rows = list(class_rows(run)) if run.finished else []
    return sentences(run), headline(run), rows, recipe_rows(run.recipe), [asdict(epoch) for epoch in run.epochs]


def audited(folder):
    found = findings_of(folder)
    issues = [bytes(value.numpy()) for value in vars(found.issues).values() if isinstance(value, torch.Tensor)]
    return found.title, list(found.ids), found.class_names, issues, list(found.splits), found.key


def applied(folder):
    out = folder.parent / "fixed.npy"
    apply(folder, out)
    return out.read_bytes()


def read_results(folder):
    """Return the results that tables are made of. Raise an error if a file is left out."""
    _, complaints = read_all(folder)
    if complaints:
        raise ValueError(" ".join(complaints))
    return results(folder)


def rerun_benchmark(folder):
    done = tasks(1)
    notes = [status_of(task, folder).note for task in done]
    runs = run_tasks(done, data=Data(None), out=folder, console=Console(**CONSOLE))
    if runs.failed:
        raise ValueError(" ".join([*notes, *runs.failed.values()]))
    return results(folder)


# --- the attack ------------------------------------------------------------------------------------------------------


@dataclass
class Count:
    """Number of damaged files by outcome."""

    noticed: int = 0
    harmless: int = 0
    silent: int = 0

    @property
    def total(self):
        return self.noticed + self.harmless + self.silent


def cases(folder):
    """Yield each case with two folders to swap files with: a run with another seed, and the same run repeated."""
    everything = ("run.json", "metrics.jsonl", LAST, BEST, SAMPLES, "result.json")
    [task] = tasks(1)
    work = f".work/{task.name}"
    of_work = tuple(f"{work}/{name}" for name in ("run.json", "metrics.jsonl", LAST, BEST))
    specs = [
        ("resume", stop, everything[:4], resumed),
        ("load_network", finish, everything[:4], networks),
        ("report", finish, everything, reported),
        ("report of a stopped run", stop, everything[:4], reported),
        ("report of a failed run", stop_at_nan, ("run.json", "metrics.jsonl", "nonfinite.json"), reported),
        ("audit", finish, everything, audited),
        ("audit apply", audit, ("run.json", "audit/audit.json", "audit/labels_fixed.csv"), applied),
        ("tables", bench, (f"{task.name}.json",), read_results),
        ("bench run", bench_stopped, of_work, rerun_benchmark),
        (
            "bench run after a kill",
            bench_without_result,
            (*of_work, f"{work}/result.json", f"{work}/bench.json"),
            rerun_benchmark,
        ),
    ]
    ready = {}
    for name, make, files, use in specs:
        if make not in ready:
            parent = folder / make.__name__
            ready[make] = make(parent / "one"), [make(parent / "seed", seed=2), make(parent / "again")]
        yield Case(name, ready[make][0], files, use), ready[make][1]


def outcome_of(case, folder):
    """Return the outcome of a case and None, or None and the error message."""
    try:
        return case.use(folder), None
    except (ValueError, OSError) as error:
        return None, str(error)


def attack(folder, *, rounds, seed=0, ways=None):
    """Damage each file of each case. Return the counts by case, and the silent ones.

    :param rounds: how often to flip a byte, zero a page and truncate the file, each time at a random position.
    :param ways: number of kinds of damage per file, drawn at random. Default: all of them.
    """
    draw, counts, silent = random.Random(seed), {}, []
    for case, others in cases(folder / "folders"):
        count = counts[case.name] = Count()
        target = folder / "damaged" / "run"
        undamaged = copied(case.folder, target)
        expected, error = outcome_of(case, undamaged)
        assert error is None, (case.name, error)
        for name in case.files:
            content = (case.folder / name).read_bytes()
            kinds = [*((kind, None) for kind in DAMAGE), *(("swap", other) for other in others)]
            for kind, other in draw.sample(kinds, ways or len(kinds)):
                for _ in range(rounds if kind in ("flip", "truncate", "zero a page") else 1):
                    swapped = other and sorted(other.glob(renamed(name)))[0].read_bytes()
                    damaged = swapped if other else DAMAGE[kind](content, draw)
                    copied(case.folder, target)
                    (target / name).write_bytes(damaged)
                    found, message = outcome_of(case, target)
                    if message is not None and Path(name).name in message and "\n" not in message:
                        count.noticed += 1
                    elif message is None and found == expected:
                        count.harmless += 1
                    else:
                        count.silent += 1
                        silent.append((case.name, name, kind, message or "different outcome"))
    return counts, silent


def renamed(name):
    """Return a glob that matches the file for any seed. In a benchmark, file names contain the seed."""
    return name.replace(f"{tasks(1)[0].name}", "*")


def copied(folder, target):
    shutil.rmtree(target.parent, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


def table(counts):
    rows = [(name, each.noticed, each.harmless, each.silent) for name, each in counts.items()]
    rows.append(("all", *map(sum, zip(*(row[1:] for row in rows), strict=True))))
    rows = [("", "noticed", "harmless", "silent"), *rows]
    return "\n".join(f"{name:26}{noticed:>9}{harmless:>9}{silent:>9}" for name, noticed, harmless, silent in rows)


if __name__ == "__main__":  # python attack.py FOLDER ROUNDS
    import sys

    found, unnoticed = attack(Path(sys.argv[1]), rounds=int(sys.argv[2]))
    print(table(found))
    for each in unnoticed:
        print("SILENT", each)
