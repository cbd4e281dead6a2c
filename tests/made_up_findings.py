"""Synthetic findings with awkward ids and class names."""

import torch

from ogc.audit.findings import Findings
from ogc.audit.suspicion import from_surveys

NAMES = ("plain", 'a "b", c', "=cmd|' /C calc'!A0", "two\r\nlines", "<script>alert(1)</script>")
IDS = ("=1+1", "-5", "a,b", 'q"q', "x\ny", "x\ry", " blank ", "ü\u2028", "", "@me", "y" * 200_000, "</script>")


def make_findings(*, seed=0, true=True, ids=IDS):
    draw = torch.Generator().manual_seed(seed)
    N, C = len(ids), len(NAMES)
    given = torch.randint(C, (N,), generator=draw)
    probabilities = torch.rand(N, C, generator=draw).pow(3).softmax(1)
    probabilities[::2] = torch.eye(C)[(given[::2] + 1) % C] * 0.9 + 0.02
    margin = probabilities.gather(1, given[:, None])[:, 0].log() - probabilities.amax(1).log()
    return Findings(
        title="made up",
        ids=ids,
        class_names=NAMES,
        issues=from_surveys(given, margin=margin, probabilities=probabilities),
        splits=["val" if i % 3 == 0 else "train" for i in range(N)],
        true=torch.where(torch.arange(N) % 4 == 0, (given + 1) % C, given) if true else None,
        key="k",
        run={"id": "x", "folder": "runs/x", "recipe": {"noise": None}, "source": None, "sha256": {}},
    )
