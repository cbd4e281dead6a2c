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
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ogc._files import write_whole
from ogc.audit.suspicion import Issues, from_surveys
from ogc.clipping import fit_mixture
from ogc.data import Dataset
from ogc.noise import labels_sha256, pair_flip
from ogc.training import RECIPES, Job, Source, load, load_network, override, train
from ogc.training.checkpoint import METRICS, RESULT, RUN, SAMPLES
from ogc.training.checkpoint import read as read_tensors
from ogc.training.evaluate import EvaluationSet
from ogc.training.feed import Feed
from ogc.training.session import pick_device
from provenance import provenance

RESULTS = Path(__file__).parent / "results"
CPU, SAME, CIFAR = (RESULTS / f"audit-{name}.json" for name in ("cpu", "same-network", "cifar10n"))
FOLDS = 5
Facts = dict[str, Any]

# What a label can be judged by in one run of ours, and how the document calls it. The first is ``label_score``.
CHOICES = {
    "label_score": "**mean log margin** (`label_score`)",
    "mean_p": "mean p of the given label",
    "mean_H": "mean H",
    "two_normals": "two normals on the mean H, posterior",
    "margin_in_class": "mean log margin, standardised in each class",
    "last_averaged": "p by the last network, averaged weights",
    "last": "p by the last network",
    "training_H": "H as last seen in training",
}
SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")  # cleanlab's


# --- measuring -------------------------------------------------------------------------------------------------------


def measured(wrong: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """How well a score, lower is worse, finds the wrong labels: (N,) bool, (N,) -> three numbers, higher is better."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    worst = np.argsort(score, kind="stable")[: wrong.sum()]
    return {
        "precision_at_k": float(wrong[worst].mean()),  # of the worst as many as there are wrong ones
        "auroc": float(roc_auc_score(wrong, -score)),
        "average_precision": float(average_precision_score(wrong, -score)),
    }


def found(wrong: np.ndarray, issue: np.ndarray, noise_rate: float) -> Facts:
    """What is called wrong, and the share of wrong labels that is estimated beside it."""
    return {
        "noise_rate": noise_rate,
        "found": int(issue.sum()),
        "precision": float(wrong[issue].mean()) if issue.any() else None,
        "recall": float(issue[wrong].mean()),
    }


def by_ours(samples: dict[str, Tensor], last: dict[str, Tensor]) -> Facts:
    """Of one run: its ``samples.safetensors``, and what its last network says, log p, (N, C) by the kind of weights."""
    given, true = samples["given"], samples["true"]
    margin, H = samples["survey.train.margin"].double(), samples["survey.train.H"].double()
    issues = from_surveys(given, margin=margin, probabilities=samples["survey.train.probabilities"])
    normals = fit_mixture(H).noise_probability(H)
    of_given = {name: log_p.gather(1, given[:, None])[:, 0] for name, log_p in last.items()}
    scores = {
        "label_score": issues.label_score,
        "mean_p": 1 - issues.wrong_probability,
        "mean_H": -H,
        "two_normals": -normals,
        "margin_in_class": in_class(margin, given),
        "last_averaged": of_given["averaged"],
        "last": of_given["last"],
        "training_H": -samples["H"].nan_to_num(0.0),
    }
    wrong = (given != true).numpy()
    repaired = issues.is_label_issue & (given != true)
    return {
        **found(wrong, issues.is_label_issue.numpy(), issues.noise_rate),
        "suggestions_right": float((issues.predicted_label == true)[repaired].double().mean()),
        "two_normals_noise_rate": float(normals.mean()),
        "two_normals_brier": float(((normals - (given != true).double()) ** 2).mean()),
        "brier": float(((issues.wrong_probability.double() - (given != true).double()) ** 2).mean()),
        "calibration": calibration(issues, given != true),
        "scores": {name: measured(wrong, score.double().numpy()) for name, score in scores.items()},
    }


def in_class(score: Tensor, given: Tensor) -> Tensor:
    """Less its mean in the class of the given label, over its standard deviation there."""
    out = torch.zeros_like(score)
    for label in given.unique():
        here = given == label
        out[here] = (score[here] - score[here].mean()) / score[here].std(correction=0).clamp(min=1e-9)
    return out


def calibration(issues: Issues, wrong: Tensor, bins: int = 5) -> list[dict[str, float]]:
    """Of equal steps of P(wrong): how many samples, and which share of them is wrong."""
    step = (issues.wrong_probability * bins).long().clamp(max=bins - 1)
    return [
        {"samples": int((step == i).sum()), "wrong": int((wrong & (step == i)).sum()), "to": (i + 1) / bins}
        for i in range(bins)
    ]


def by_cleanlab(given: np.ndarray, wrong: np.ndarray, p: np.ndarray) -> Facts:
    """cleanlab's three scores, and confident learning: (N,), (N,), (N, C)."""
    try:
        from cleanlab.count import estimate_joint
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        raise SystemExit("cleanlab is missing: pip install -c constraints.txt cleanlab") from None
    p = p.astype(np.float64)
    p /= p.sum(1, keepdims=True)
    issue = find_label_issues(given, p, n_jobs=1)
    scores = {name: get_label_quality_scores(given, p, method=name) for name in SCORES}
    return {
        **found(wrong, issue, 1 - float(np.trace(estimate_joint(given, p)))),
        "scores": {name: measured(wrong, score) for name, score in scores.items()},
    }


def log_probabilities(folder: Path, which: str, *, trained_on: Dataset, asked: Dataset, device: torch.device) -> Tensor:
    """What a run's last network says without augmentation, (N, C) float32, in the arithmetic that it was trained in."""
    bits = json.loads((folder / RUN).read_bytes())["recipe"]["precision"]
    feed = Feed(trained_on, batch_size=2, augment="none", size=None, seed=0, device=device)
    network = load_network(folder, which).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    parts = [logits.float() for _, logits in EvaluationSet(asked, feed).logits(network, {}, bits)]
    return torch.cat(parts).log_softmax(1).cpu()


# --- on the CPU ------------------------------------------------------------------------------------------------------


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


DATA: dict[str, tuple[str, Callable[[int, Path], Task]]] = {
    "digits": ("scikit-learn's digits, 20 % pair flip", digits),
    "table": ("a made-up table of 20,000 rows, 20 % to the next class", made_table),
}


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
        job, features, prepare = DATA[name][1](seed, Path(folder))
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
        job = DATA[name][1](seed, Path(folder)).job
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


# --- on a GPU --------------------------------------------------------------------------------------------------------


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


# --- what the GPU left -----------------------------------------------------------------------------------------------


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


# --- the document ----------------------------------------------------------------------------------------------------


def with_tables(text: str, cpu: Facts, same: Facts, cifar: Facts | None) -> str:
    """The document, with what is between its marks renewed."""
    made = {"cpu": "\n".join(cpu_tables(cpu, same)), "CIFAR-10N": "\n".join(cifar_tables(cifar))}
    for name, lines in made.items():
        begin, end = f"<!-- made by benchmarks/audit.py: {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}\n{lines}\n{end}{after}"
    return text


MEASURES = {"precision_at_k": "precision at k", "auroc": "AUROC", "average_precision": "average precision"}


def over(values: Sequence[float], digits: int = 3) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def row(title: str, scores: Sequence[Facts]) -> str:
    cells = [over([score[name] for score in scores]) for name in MEASURES]
    return f"| {title} | {' | '.join(cells)} |"


def head(*titles: str) -> list[str]:
    return ["", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]


def cpu_tables(result: Facts, same: Facts) -> Iterator[str]:
    seeds = sorted({run["seed"] for run in result["runs"]})
    used = {"torch": result["torch"], **result["versions"]}
    yield (
        f"{result['device']}, one thread, {', '.join(f'{name} {number}' for name, number in used.items())}, "
        f"{result['date'][:10]}, commit {result['commit']}; mean ± standard deviation over seeds "
        f"{', '.join(map(str, seeds))}. Our network in five folds: {same['date'][:10]}, commit {same['commit']}."
    )
    for name, (title, _) in DATA.items():
        runs = [both(run, same) for run in result["runs"] if run["data"] == name]
        yield f"\n### {title[0].upper()}{title[1:]}"
        yield from head("", *MEASURES.values())
        yield row("**ours**, one run", [run["ours"]["scores"]["label_score"] for run in runs])
        for kind in runs[0]["cleanlab"]:
            for score in SCORES:
                told = [run["cleanlab"][kind]["scores"][score] for run in runs]
                yield row(f"cleanlab, five-fold {kind}, `{score}`", told)
        for score in SCORES:
            told = [run["ours"]["cleanlab_on_mean_p"]["scores"][score] for run in runs]
            yield row(f"cleanlab on our run's mean probabilities, `{score}`", told)
        yield "\nWhat is called wrong, and what it takes:"
        yield from head("", *FOUND)
        yield found_row("truth", [{"noise_rate": run["noise_rate"]} for run in runs])
        yield found_row("**ours**, one run", [run["ours"] for run in runs])
        for kind in runs[0]["cleanlab"]:
            yield found_row(f"cleanlab, five-fold {kind}", [run["cleanlab"][kind] for run in runs])
        right = over([run["ours"]["suggestions_right"] for run in runs], 2)
        yield f"\nOf the wrong labels among ours, the suggested one is right in a share of {right}."
        yield "\nOther choices on the same run:"
        yield from head("score", *MEASURES.values())
        for choice, what in CHOICES.items():
            yield row(what, [run["ours"]["scores"][choice] for run in runs])
        yield row(
            f"{CHOICES['label_score']}, trained with CE",
            [run["with_ce"]["scores"]["label_score"] for run in runs],
        )
        yield from calibration_rows([run["ours"] for run in runs])


def both(run: Facts, same: Facts) -> Facts:
    """With what cleanlab found by our network in five folds, on the same labels."""
    [other] = [each for each in same["runs"] if each["labels_sha256"] == run["labels_sha256"]]
    return {**run, "cleanlab": {**run["cleanlab"], **other["cleanlab"]}}


FOUND = {
    "estimated noise rate": ("noise_rate", 3),
    "called wrong": ("found", 0),
    "precision": ("precision", 2),
    "recall": ("recall", 2),
    "seconds of one core": ("seconds", 0),
}


def found_row(title: str, runs: Sequence[Facts], columns: Sequence[str] = tuple(FOUND)) -> str:
    asked = [FOUND[column] for column in columns]
    cells = [over([run[name] for run in runs], digits) if name in runs[0] else "" for name, digits in asked]
    return f"| {title} | {' | '.join(cells)} |"


def calibration_rows(runs: Sequence[Facts]) -> Iterator[str]:
    """All runs together."""
    normals = over([run["two_normals_noise_rate"] for run in runs])
    brier, other = (over([run[name] for run in runs]) for name in ("brier", "two_normals_brier"))
    yield (
        f"\nP(wrong), and how many of those are wrong (Brier score {brier}; of the two normals {other}, whose noise "
        f"rate is {normals}):"
    )
    steps = list(zip(*(run["calibration"] for run in runs), strict=True))
    yield from head("P(wrong)", *(f"{(i / len(steps)):.1f} to {step[0]['to']:.1f}" for i, step in enumerate(steps)))
    samples, wrong = ([sum(each[name] for each in step) for step in steps] for name in ("samples", "wrong"))
    yield f"| samples | {' | '.join(f'{count:,}' for count in samples)} |"
    shares = [f"{bad / count:.2f}" if count else "" for bad, count in zip(wrong, samples, strict=True)]
    yield f"| of them wrong | {' | '.join(shares)} |"


def cifar_tables(result: Facts | None) -> Iterator[str]:
    if result is None:
        yield (
            "Not measured yet: `python benchmarks/audit.py train` has to run on a GPU first. No number stands here "
            "until then."
        )
        return
    trained, ours = result["trained"], result["ours"]
    yield (
        f"One seed. {trained['device']}, torch {trained['versions']['torch']}, {trained['started'][:10]}, commit "
        f"{trained['commit']}; cleanlab {result['versions']['cleanlab']}. {result['samples']:,} images, a share of "
        f"{result['noise_rate']:.3f} labelled wrong; {trained['recipe']['epochs']} epochs."
    )
    yield from head("", "training images", *MEASURES.values())

    def line(title: str, images: int, score: Facts) -> str:
        return row(title, [score]).replace(f"| {title} |", f"| {title} | {images / 1e6:.1f} M |", 1)

    yield line(f"**ours**, one run of CE+OGC: {CHOICES['label_score']}", ours["images"], ours["scores"]["label_score"])
    for title, told in result["cleanlab"].items():
        for score in SCORES:
            yield line(f"cleanlab, {title}, `{score}`", told["images"], told["scores"][score])
    yield "\nWhat is called wrong:"
    columns = list(FOUND)[:-1]
    yield from head("", *columns)
    yield found_row("truth", [{"noise_rate": result["noise_rate"]}], columns)
    yield found_row("**ours**", [ours], columns)
    for title, told in result["cleanlab"].items():
        yield found_row(f"cleanlab, {title}", [told], columns)
    yield f"\nOf the wrong labels among ours, the suggested one is right in a share of {ours['suggestions_right']:.2f}."
    yield "\nOther choices on the same run:"
    yield from head("score", *MEASURES.values())
    for choice, what in CHOICES.items():
        yield row(what, [ours["scores"][choice]])
    yield from calibration_rows([ours])


def recorded() -> tuple[Facts, Facts, Facts | None]:
    cifar = json.loads(CIFAR.read_text()) if CIFAR.exists() else None
    return json.loads(CPU.read_text()), json.loads(SAME.read_text()), cifar


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
