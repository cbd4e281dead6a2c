"""Quality of label rankings: ours from one run, and cleanlab's from any probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ogc.audit.suspicion import Issues, from_surveys
from ogc.clipping import fit_mixture
from ogc.data import Dataset
from ogc.training import load_network
from ogc.training.evaluate import EvaluationSet
from ogc.training.feed import Feed
from ogc.training.run_folder import RUN

Facts = dict[str, Any]

# Scores of a label from one run of ours, with their names in the document. The first is ``label_score``.
CHOICES = {
    "label_score": "**mean log margin** (`label_score`)",
    "mean_p": "mean probability of the given label",
    "mean_H": "mean cross entropy H",
    "two_normals": "probability of being noisy, from two normals fitted to the mean H",
    "margin_in_class": "mean log margin, standardised within each class",
    "last_averaged": "probability that the final network assigns to the given label, with averaged weights",
    "last": "probability that the final network assigns to the given label",
    "training_H": "H at the last training step on this sample",
}
SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")  # cleanlab's


def measured(wrong: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """Measure how well a score (lower is worse) finds wrong labels: (N,) bool, (N,) -> three numbers."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    worst = np.argsort(score, kind="stable")[: wrong.sum()]
    return {
        "precision_at_k": float(wrong[worst].mean()),  # k is the number of wrong labels
        "auroc": float(roc_auc_score(wrong, -score)),
        "average_precision": float(average_precision_score(wrong, -score)),
    }


def found(wrong: np.ndarray, issue: np.ndarray, noise_rate: float) -> Facts:
    """Measure the labels flagged as wrong, with the estimated noise rate."""
    return {
        "noise_rate": noise_rate,
        "found": int(issue.sum()),
        "precision": float(wrong[issue].mean()) if issue.any() else None,
        "recall": float(issue[wrong].mean()),
    }


def by_ours(samples: dict[str, Tensor], last: dict[str, Tensor]) -> Facts:
    """Measure one run.

    :param samples: its ``samples.safetensors``.
    :param last: log p of its final network, (N, C), by the kind of weights.
    """
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
    """Standardise a score within each class of the given label."""
    out = torch.zeros_like(score)
    for label in given.unique():
        here = given == label
        out[here] = (score[here] - score[here].mean()) / score[here].std(correction=0).clamp(min=1e-9)
    return out


def calibration(issues: Issues, wrong: Tensor, bins: int = 5) -> list[dict[str, float]]:
    """Count samples and wrong labels in equal intervals of P(wrong)."""
    step = (issues.wrong_probability * bins).long().clamp(max=bins - 1)
    return [
        {"samples": int((step == i).sum()), "wrong": int((wrong & (step == i)).sum()), "to": (i + 1) / bins}
        for i in range(bins)
    ]


def by_cleanlab(given: np.ndarray, wrong: np.ndarray, p: np.ndarray) -> Facts:
    """Measure cleanlab's three scores and confident learning: (N,), (N,), (N, C)."""
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


def log_probabilities(
    folder: Path, which: str, *, trained_on: Dataset, evaluated: Dataset, device: torch.device
) -> Tensor:
    """Return log p of a run's final network without augmentation, in its training precision: (N, C) float32."""
    bits = json.loads((folder / RUN).read_bytes())["recipe"]["precision"]
    feed = Feed(trained_on, batch_size=2, augment="none", size=None, seed=0, device=device)
    network = load_network(folder, which).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    parts = [logits.float() for _, logits in EvaluationSet(evaluated, feed).logits(network, {}, bits)]
    return torch.cat(parts).log_softmax(1).cpu()
