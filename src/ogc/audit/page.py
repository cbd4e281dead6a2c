"""The page ``audit.html``, on which users review the worst samples and decide about each.

The file is self-contained: columns are JSON, thumbnails are JPEG in base64. Names and cells are untrusted. The script
inserts them into the page only as text.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._require import cut_middle
from ..rival_label import almost_all
from .findings import Findings
from .unusual import unusual_cells

SIDE = 64  # maximum side of a thumbnail, in pixels
JPEG_QUALITY = 85
LISTED = 100_000  # maximum number of samples on the page
THUMBNAILS = 20_000  # maximum number of samples with an image
MATRIX = 20  # maximum number of classes in the matrix
PAIRS = 10  # number of most confused pairs to list
LONGEST_CELL, LONGEST_NAME = 300, 40  # in characters, as shown


def page(findings: Findings) -> str:
    """Render the page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    issues = findings.issues
    worst = issues.worst_first[:LISTED].tolist()
    content = embedded(columns(findings, worst))
    html, css, js = (Path(__file__).with_name(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    confusion = issues.confusion().fill_diagonal_(0)
    return template.from_string(html).render(
        title=findings.title.encode(errors="replace").decode(),
        policy=f"default-src 'none'; img-src data:; script-src {checksum(js)}; "
        f"style-src {checksum(css)}; base-uri 'none'; form-action 'none'",
        style=Markup(css),
        script=Markup(js),
        data=Markup(content),
        numbers=headline(findings),
        notices=[*filter(None, (findings.unreliable, findings.doubtful))],
        left_out=len(issues) - len(worst),
        names=[shortened(name) for name in findings.class_names],
        suspected=confusion.sum(1).tolist(),
        suggested=confusion.sum(0).tolist(),
        confusion=confusion.tolist(),
        pairs=issues.pairs()[:PAIRS],
        with_fields=bool(findings.columns),
        matrix=most_confused(confusion),
        # the browser stores decisions by position
        key=hashlib.sha256(embedded([findings.key or content, worst]).encode()).hexdigest(),
    )


def columns(findings: Findings, worst: list[int]) -> dict[str, Any]:
    """Return the columns for the script, in the order of the page. Shares are in 1/10,000."""
    issues = findings.issues
    at = torch.tensor(worst, dtype=torch.int64)

    def shares(values: Tensor) -> list[int]:
        found: list[int] = (values[at].double() * 10_000).round().long().tolist()
        return found

    cells = {name: [column[i] for i in worst] for name, column in findings.columns.items()}
    given: list[int] = issues.given_label[at].tolist()
    marks = [unusual_cells(column, given) for column in cells.values()]
    return {
        "classes": list(findings.class_names),
        "ids": [findings.ids[i] for i in worst],
        "splits": [findings.splits[i] for i in worst] if len(set(findings.splits)) > 1 else None,
        "issue": issues.is_label_issue[at].long().tolist(),
        "given": given,
        "predicted": issues.predicted_label[at].tolist(),
        "true": None if findings.true is None else findings.true[at].tolist(),
        "score": shares(issues.label_score),
        "wrong": shares(issues.wrong_probability),
        "probability": shares(issues.predicted_probability),
        "fields": [shortened(name) for name in cells],
        "on_card": on_card(findings),
        # by sample: the cells, and the indices of those that are unusual; null without columns
        "cells": [[shortened(cell, LONGEST_CELL) for cell in row] for row in zip(*cells.values(), strict=True)] or None,
        "unusual": [[c for c, marked in enumerate(row) if marked] for row in zip(*marks, strict=True)] or None,
        "thumbnails": [thumbnail(findings.image(i)) for i in worst[:THUMBNAILS]],
    }


def on_card(findings: Findings) -> list[int]:
    """Return the indices of the columns for the cards: all except the id and the labels, which a card shows anyway."""
    source = findings.run.get("source") or {}
    repeated = [source.get(option) for option in ("id", "label", "true")]
    return [c for c, name in enumerate(findings.columns) if name not in repeated]


def thumbnail(pixels: Tensor | None) -> str:
    """Encode an image as JPEG in base64, with at most ``SIDE`` pixels per side. Without an image it is empty."""
    from PIL import Image

    if pixels is None or not pixels.numel():
        return ""
    array = pixels.cpu().permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY, optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def headline(findings: Findings) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page with their names."""
    issues = findings.issues
    suspected = issues.is_label_issue
    classes = findings.unlearned
    numbers = [
        (f"{int(suspected.sum()):,}", f"issues: labels that are probably wrong, of {len(issues):,}"),
        (share(issues.noise_rate), f"of all labels wrong ({'unreliable ' if findings.unreliable else ''}estimate)"),
    ]
    if classes:
        what = f"{'class' if len(classes) == 1 else 'classes'} probably not learned: the issues include"
        numbers.append((f"{len(classes):,}", f"{what} {almost_all(classes)}, and many of these may be right"))
    if findings.true is not None:
        wrong = findings.true != issues.given_label
        both = int((wrong & suspected).sum())
        numbers.append((share(float(wrong.double().mean())), "of all labels are actually wrong"))
        if suspected.any():
            numbers.append((share(both / int(suspected.sum())), "of the issues are actually wrong"))
        if wrong.any():
            numbers.append((share(both / int(wrong.sum())), "of the wrong labels found"))
    return numbers


def share(part: float) -> str:
    return "none" if math.isnan(part) else f"{100 * part:.1f}\u00a0%"  # NaN: the mean over no samples


def most_confused(confusion: Tensor) -> list[int]:
    """Return the classes to show in the matrix, in order: all, or those with the most issues."""
    involved = confusion.sum(0) + confusion.sum(1)
    return sorted(torch.argsort(involved, descending=True, stable=True)[:MATRIX].tolist())


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    return cut_middle(text, longest).encode(errors="replace").decode()


def embedded(data: Any) -> str:
    """Encode data as JSON for a script element, with <, > and & escaped so that it cannot end the element."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII, so without U+2028 and U+2029 too
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def checksum(text: str) -> str:
    """Return the hash source of a script or style for the Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
