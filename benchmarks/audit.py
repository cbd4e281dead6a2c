"""How well the audit finds wrong labels, beside cleanlab; docs/audit.md has the tables.

    python benchmarks/audit.py cpu                                    # digits and a table: ten minutes on two cores
    python benchmarks/audit.py same                                   # the same network in five folds: another ten
    python benchmarks/audit.py train --data ~/cifar --out runs/found  # on a GPU: 18 minutes on an H200
    python benchmarks/audit.py score runs/found                       # what the GPU left, measured
    python benchmarks/audit.py --write docs/audit.md                  # the recorded numbers into the document

All but ``train`` need cleanlab (pip install -c constraints.txt cleanlab). ``train`` is cut into pieces, the runs of
each side by side, in ``--out`` a file for each run: what is there is not trained again, what was stopped goes on.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from audit_measures import Facts, by_cleanlab, by_ours, log_probabilities
from audit_tables import CIFAR, CPU, SAME, recorded, with_tables
from ogc._files import write_whole
from ogc.data import Dataset
from ogc.noise import labels_sha256, pair_flip
from ogc.training import RECIPES, Job, Source, load, override, train
from ogc.training.run_folder import METRICS, RESULT, RUN, SAMPLES, read_tensors
from ogc.training.session import pick_device
from provenance import provenance

FOLDS = 5


# --- on the CPU -------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A run of ours, and what scikit-learn's classifiers get of the same samples, prepared as they like it best."""

    job: Job
    features: Any
    prepare: Any


def digits(seed: int, folder: Path) -> Task:
    recipe = override(RECIPES["digits"], {"noise": "pairflip:0.2", "noise_seed": seed, "seed": seed})
    source = Source.parse("digits")
    job = Job(recipe, source, *load(source, recipe), folder / "run")
    data, _ = job.data
    # standardised, most pixels of the rim count too much: cleanlab's best was 0.03 to 0.05 lower (seeds 0, 1)
    return Task(job, data.inputs[torch.arange(len(data))].flatten(1).double().numpy(), "passthrough")


def write_table(seed: int, path: Path) -> None:
    """scikit-learn's made-up classes, with what tables have: categories, missing cells, and labels that are wrong."""
    from sklearn.datasets import make_classification

    X, true = make_classification(
        20_000, n_features=30, n_informative=12, n_classes=5, class_sep=1.0, random_state=seed
    )
    random = np.random.default_rng(seed)
    cells = X.astype(object)
    for column in random.choice(30, 4, replace=False):
        quarter = np.digitize(X[:, column], np.quantile(X[:, column], [0.25, 0.5, 0.75]))
        cells[:, column] = np.array(["low", "middle", "high", "top"], dtype=object)[quarter]
    cells[random.random(cells.shape) < 0.05] = ""
    given = pair_flip(true, 0.2, num_classes=5, seed=seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{i}" for i in range(30)), "label", "truth"])
        writer.writerows([*row, f"c{y}", f"c{t}"] for row, y, t in zip(cells, given, true, strict=True))


def made_table(seed: int, folder: Path) -> Task:
    path = folder / "made.csv"
    write_table(seed, path)
    source = Source.parse(str(path), label="label", true="truth", val=0.0)
    recipe = override(RECIPES["table"], {"seed": seed})
    return Task(Job(recipe, source, *load(source, recipe), folder / "run"), *for_scikit_learn(path))


def for_scikit_learn(path: Path) -> tuple[Any, Any]:
    """Numbers with the mean where one is missing, standardised; categories one-hot.

    On the features that our loader makes, which mark missing numbers, its MLP was worse.
    """
    import pandas
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    cells = pandas.read_csv(path).drop(columns=["label", "truth"])
    numbers = list(cells.select_dtypes("number"))
    names = [column for column in cells if column not in numbers]
    absent = SimpleImputer(strategy="constant", fill_value="missing")
    return cells, make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        (make_pipeline(absent, OneHotEncoder(handle_unknown="ignore")), names),
    )


DATA: dict[str, Callable[[int, Path], Task]] = {"digits": digits, "table": made_table}


def classifiers(seed: int) -> dict[str, Any]:
    """What cleanlab's users take first."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    return {
        "logistic regression": LogisticRegression(max_iter=1000),
        "MLP": MLPClassifier(random_state=seed),
        "MLP, early stopping": MLPClassifier(random_state=seed, early_stopping=True),
    }


def five_fold(model: Any, features: Any, given: np.ndarray, seed: int) -> np.ndarray:
    """Out-of-sample probabilities, (N, C)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the MLP's default is 200 epochs, converged or not
        return cross_val_predict(model, features, given, cv=folds, method="predict_proba")


def trained(job: Job) -> Facts:
    """One run of ours on the CPU, and what cleanlab makes of its mean probabilities."""
    assert job.out is not None
    began = time.process_time()
    train([job], device="cpu")
    seconds = time.process_time() - began
    data, _ = job.data
    samples, _ = read_tensors(job.out / SAMPLES)
    device = torch.device("cpu")
    last = {
        which: log_probabilities(job.out, which, trained_on=data, asked=data, device=device)
        for which in ("last", "averaged")
    }
    given, wrong = data.given.numpy(), (data.given != data.true).numpy()
    theirs = by_cleanlab(given, wrong, samples["survey.train.probabilities"].numpy())
    return {"seconds": seconds, **by_ours(samples, last), "cleanlab_on_mean_p": theirs}


def one_seed(name: str, seed: int) -> Facts:
    """Seconds are of one core's time, so that a busy machine takes no longer."""
    from sklearn.pipeline import make_pipeline

    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        job, features, prepare = DATA[name](seed, Path(folder))
        data, _ = job.data
        given, wrong = data.given.numpy(), (data.given != data.true).numpy()
        ours = trained(job)
        with_ce = trained(job._replace(recipe=override(job.recipe, {"method": "ce"})))
    theirs: dict[str, Facts] = {}
    for kind, classifier in classifiers(seed).items():
        began = time.process_time()
        p = five_fold(make_pipeline(prepare, classifier), features, given, seed)
        seconds = time.process_time() - began
        theirs[kind] = {"seconds": seconds, **by_cleanlab(given, wrong, p)}
    return {
        "data": name,
        "seed": seed,
        "samples": len(data),
        "noise_rate": float(wrong.mean()),
        "labels_sha256": labels_sha256(given),
        "ours": ours,
        "with_ce": with_ce,
        "cleanlab": theirs,
    }


def same_network(name: str, seed: int) -> Facts:
    """Our network and recipe, out-of-sample in five folds, with OGC and without: how much is it that gives the lead?"""
    torch.set_num_threads(1)
    theirs: dict[str, Facts] = {}
    with TemporaryDirectory() as folder:
        job = DATA[name](seed, Path(folder)).job
        data, _ = job.data
        given, wrong = data.given.numpy(), (data.given != data.true).numpy()
        for method, title in METHODS.items():
            began = time.process_time()
            p = np.full((len(data), data.num_classes), np.nan)
            for fold in range(FOLDS):
                part = Part(f"{method}-{fold}", method, fold)
                each = job_of(part, job, Path(folder) / part.name)
                train([each], device="cpu")
                asked, index = held_out(part, job)
                said = log_probabilities(
                    Path(folder) / part.name,
                    "averaged",
                    trained_on=each.data[0],
                    asked=asked,
                    device=torch.device("cpu"),
                )
                p[index] = said.double().exp().numpy()
            seconds = time.process_time() - began
            theirs[f"our network, {title}"] = {"seconds": seconds, **by_cleanlab(given, wrong, p)}
    return {"data": name, "seed": seed, "labels_sha256": labels_sha256(given), "cleanlab": theirs}


def on_cpu(measure: Callable[[str, int], Facts], seeds: int, workers: int) -> Facts:
    asked = [(name, seed) for name in reversed(DATA) for seed in range(seeds)]  # the longest first
    with ProcessPoolExecutor(workers) as pool:
        runs = list(pool.map(measure, *zip(*asked, strict=True)))
    for run in runs:
        told = (score for facts in run["cleanlab"].values() for score in facts["scores"].values())
        best = max(score["precision_at_k"] for score in told)
        print(f"{run['data']} {run['seed']}: cleanlab's best precision at k {best:.4f}", flush=True)
    return {**provenance(), "versions": versions(), "runs": runs}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("cleanlab", "scikit-learn")}


# --- on a GPU ---------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One of the runs: of all samples, or of all but a fold."""

    name: str
    method: str
    fold: int | None = None


METHODS = {"ce+ogc": "CE+OGC", "ce": "CE"}
PARTS = (
    Part("run", "ce+ogc"),
    *(Part(f"{method.replace('+', '_')}-fold{fold}", method, fold) for method in METHODS for fold in range(FOLDS)),
)
PIECES = (PARTS[:4], PARTS[4:6], PARTS[6:])  # side by side; the last, which is CE's, can be left out


def train_piece(piece: Sequence[Part], whole: Job, out: Path, work: Path, device: str) -> None:
    """What is missing of a piece, side by side; a file for each in ``out``, in ``work`` what they go on from."""
    missing = [part for part in piece if not (out / f"{part.name}.npz").exists()]
    if not missing:
        return
    jobs = [job_of(part, whole, work / part.name) for part in missing]
    began = time.perf_counter()
    results = train(jobs, device=device, resume=True)
    seconds = time.perf_counter() - began
    chosen = pick_device(device)
    for part, job, result in zip(missing, jobs, results, strict=True):
        folder = work / part.name
        asked, index = held_out(part, whole)
        facts = {
            **result["facts"],
            "recipe": result["recipe"],
            "images": result["facts"]["steps"] * result["facts"]["batch"] * len(result["epochs"]),
            "side_by_side": len(missing),
            "seconds_side_by_side": seconds,  # since the last stop
            "summary": result["summary"],
        }
        said = {
            which: log_probabilities(folder, which, trained_on=job.data[0], asked=asked, device=chosen).half().numpy()
            for which in ("last", "averaged")
        }
        if part.fold is None:
            (out / part.name).mkdir(parents=True, exist_ok=True)
            for name in (SAMPLES, RESULT, RUN, METRICS):
                shutil.copyfile(folder / name, out / part.name / name)
        # log p in half precision: exact where p is near 0 and where it is near 1
        write_npz(out / f"{part.name}.npz", index=index.numpy().astype(np.int32), facts=json.dumps(facts), **said)
        print(f"{part.name}: {result['summary']}", flush=True)


def job_of(part: Part, whole: Job, folder: Path) -> Job:
    recipe = override(whole.recipe, {"method": part.method} if part.method != whole.recipe.method else {})
    if part.fold is None:
        return whole._replace(recipe=recipe, out=folder)
    data, sets = whole.data
    fold = folds(data.given) != part.fold
    glance = {name: subset(each, torch.arange(min(len(each), 2000))) for name, each in sets.items()}
    recipe = override(recipe, {"noise": None, "surveys": 0})
    return Job(recipe, None, (subset(data, fold.nonzero()[:, 0]), glance), None, folder)


def held_out(part: Part, whole: Job) -> tuple[Dataset, Tensor]:
    """What a part's network is asked about, and where it stands: a fold, or all."""
    data, _ = whole.data
    here = torch.ones(len(data), dtype=torch.bool) if part.fold is None else folds(data.given) == part.fold
    index = here.nonzero()[:, 0]
    return subset(data, index), index


def folds(given: Tensor) -> Tensor:
    """The number of each sample's fold, (N,); classes are in proportion."""
    from sklearn.model_selection import StratifiedKFold

    number = torch.zeros(len(given), dtype=torch.int64)
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(np.zeros(len(given)), given.numpy())
    for fold, (_, held) in enumerate(splits):
        number[torch.from_numpy(held)] = fold
    return number


def subset(data: Dataset, index: Tensor) -> Dataset:
    true = None if data.true is None else data.true[index]
    ids = [data.ids[i] for i in index.tolist()]
    return replace(data, inputs=data.inputs[index], given=data.given[index], ids=ids, true=true)


def write_npz(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_whole(path, content.getvalue())


# --- what the GPU left ------------------------------------------------------------------------------------------------


def scored(folder: Path) -> Facts:
    """AUROC and the rest from the files of ``train``: one run against out-of-sample ones of five."""
    samples, _ = read_tensors(folder / "run" / SAMPLES)
    given, wrong = samples["given"].numpy(), (samples["given"] != samples["true"]).numpy()
    run = read_npz(folder / "run.npz")
    facts = run["facts"]
    kinds = {"last": "last", "averaged": "last, averaged weights"}
    asked: list[tuple[str, int, np.ndarray]] = [  # (N, C) and what they cost in training images
        ("one run's mean over surveys", facts["images"], samples["survey.train.probabilities"].numpy())
    ]
    for kind, title in kinds.items():
        asked.append((f"one run's {title}", facts["images"], np.exp(run[kind].astype(np.float64))))
    parts = [facts]
    for name, method in METHODS.items():
        paths = [folder / f"{part.name}.npz" for part in PARTS if part.method == name and part.fold is not None]
        if not all(path.exists() for path in paths):
            print(f"Not all five folds of {method} are there: left out.")
            continue
        files = [read_npz(path) for path in paths]
        parts += [file["facts"] for file in files]
        for kind, title in kinds.items():
            p = np.full((len(given), run[kind].shape[1]), np.nan)
            for file in files:
                p[file["index"]] = np.exp(file[kind].astype(np.float64))
            assert not np.isnan(p).any(), "the folds do not cover all samples"
            asked.append((f"five-fold {method}, {title}", sum(file["facts"]["images"] for file in files), p))
    last = {kind: torch.from_numpy(run[kind]).double() for kind in kinds}
    there = {name: facts[name] for name in ("device", "commit", "versions", "started", "recipe", "noise")}
    return {
        **provenance(),
        "versions": versions(),
        "trained": {**there, "summary": facts["summary"]},
        "seconds": {
            "pieces": sorted({round(part["seconds_side_by_side"]) for part in parts}),
            "side_by_side": sorted({part["side_by_side"] for part in parts}),
        },
        "samples": len(given),
        "noise_rate": float(wrong.mean()),
        "ours": {"images": facts["images"], **by_ours(samples, last)},
        "cleanlab": {title: {"images": images, **by_cleanlab(given, wrong, p)} for title, images, p in asked},
    }


def read_npz(path: Path) -> Facts:
    with np.load(path, allow_pickle=False) as file:
        return {name: json.loads(str(file[name])) if name == "facts" else file[name] for name in file.files}


# --- what is asked ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="put the recorded numbers into this document")
    tasks = parser.add_subparsers(dest="task")
    on_cpus = {"cpu": (one_seed, CPU, "ours, and scikit-learn's"), "same": (same_network, SAME, "ours in five folds")}
    for name, (_, path, what) in on_cpus.items():
        task = tasks.add_parser(name, help=f"measure on the CPU, {what}, and write {path.name}")
        task.add_argument("--seeds", type=int, default=3)
        task.add_argument("--workers", type=int, default=2)
        task.add_argument("--json", type=Path, default=path)
    gpu = tasks.add_parser("train", help="train on a GPU: one run, and five folds with CE+OGC and with CE")
    gpu.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10 and CIFAR-10_human.pt")
    gpu.add_argument("--out", type=Path, required=True, help="folder for small files, under 15 MB in all")
    gpu.add_argument("--work", type=Path, default=Path("runs/audit"), help="folder for the runs, to go on from")
    gpu.add_argument("--piece", type=int, choices=range(1, len(PIECES) + 1), help="one of them; without it, all")
    gpu.add_argument("--device", default="cuda")
    gpu.add_argument("--first", type=int, help=argparse.SUPPRESS)  # images, to try it out
    gpu.add_argument("--set", action="append", default=[], help=argparse.SUPPRESS)  # the recipe's, likewise
    score = tasks.add_parser("score", help=f"measure what the GPU left, and write {CIFAR.name}")
    score.add_argument("folder", type=Path, help="what was --out")
    score.add_argument("--json", type=Path, default=CIFAR)
    args = parser.parse_args()
    if args.task in on_cpus:
        found = on_cpu(on_cpus[args.task][0], args.seeds, args.workers)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    elif args.task == "train":
        changes = dict(change.split("=", 1) for change in args.set)
        recipe = override(RECIPES["cifar10"], {"noise": "human:worse", "average": 0.999, "seed": 0, **changes})
        source = Source.parse("cifar10", data=args.data)
        data, info = load(source, recipe)
        if args.first:
            data = subset(data[0], torch.arange(args.first)), data[1]
        for number, piece in enumerate(PIECES, 1):
            if args.piece in (None, number):
                train_piece(piece, Job(recipe, source, data, info), args.out, args.work, args.device)
    elif args.task == "score":
        args.json.write_text(json.dumps(scored(args.folder), indent=1) + "\n")
    elif args.write is None:
        parser.error("say cpu, same, train, score or --write")
    if args.write is not None:
        args.write.write_text(with_tables(args.write.read_text(), *recorded()))


if __name__ == "__main__":
    main()
