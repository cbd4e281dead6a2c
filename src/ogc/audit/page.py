"""The page ``audit.html``, on which a person reviews the worst samples and decides about each.

The file is self-contained: columns are JSON, thumbnails are sheets of JPEG in base64, decoded when they come into view.
Names and cells are untrusted. The script inserts them into the page only as text.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..training.survey import unsettled
from .findings import Findings, Shown
from .unusual import unusual_cells

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 64  # of a thumbnail, at most
ACROSS = 16  # thumbnails in a row of a sheet, and rows in it
QUALITY = 85  # of JPEG
LISTED = 100_000  # samples on the page, at most
THUMBNAILS = 20_000  # of these, samples with an image, at most
MATRIX = 20  # classes in the matrix, at most
PAIRS = 10  # most confused pairs
LONGEST_CELL, LONGEST_NAME = 300, 40  # in characters, as shown


def page(findings: Findings) -> str:
    """Render the page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    issues = findings.issues
    worst = issues.worst_first[:LISTED].tolist()
    found = columns(findings, worst)
    drawn, found["thumbnails"] = sheets(findings.shown, worst[:THUMBNAILS])
    content = embedded(found)
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
        sheets=[Markup(sheet) for sheet in drawn],
        numbers=headline(findings),
        left_out=len(issues) - len(worst),
        names=[shortened(name) for name in findings.class_names],
        suspected=confusion.sum(1).tolist(),
        suggested=confusion.sum(0).tolist(),
        confusion=confusion.tolist(),
        pairs=issues.pairs()[:PAIRS],
        with_fields=found["cells"] is not None,
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

    names, cells, unusual = rows(findings, worst)
    return {
        "classes": list(findings.class_names),
        "ids": [findings.ids[i] for i in worst],
        "splits": [findings.splits[i] for i in worst] if len(set(findings.splits)) > 1 else None,
        "issue": issues.is_label_issue[at].long().tolist(),
        "given": issues.given_label[at].tolist(),
        "predicted": issues.predicted_label[at].tolist(),
        "true": None if findings.true is None else findings.true[at].tolist(),
        "score": shares(issues.label_score),
        "wrong": shares(issues.wrong_probability),
        "probability": shares(issues.predicted_probability),
        "fields": names,
        "cells": cells,
        "unusual": unusual,
    }


def rows(findings: Findings, worst: list[int]) -> tuple[list[str], list[list[str]] | None, list[list[int]] | None]:
    """Return the names of all columns, the shortened cells of each sample, and the indices of its unusual cells.

    The latter two are ``None`` if no sample has cells.
    """
    found = [findings.shown.fields(i) or {} for i in worst]
    names = list(dict.fromkeys(name for fields in found for name in fields))
    if not names:
        return [], None, None
    labels = findings.issues.given_label[torch.tensor(worst)].tolist()
    unusual: list[list[int]] = [[] for _ in worst]
    for number, name in enumerate(names):
        for at, marked in enumerate(unusual_cells([fields.get(name, "") for fields in found], labels)):
            if marked:
                unusual[at].append(number)
    cells = [[shortened(fields.get(name, ""), LONGEST_CELL) for name in names] for fields in found]
    return [shortened(name) for name in names], cells, unusual


def sheets(shown: Shown, worst: list[int]) -> tuple[list[str], dict[str, Any]]:
    """Return thumbnails on sheets, ``ACROSS`` per row, and their sizes for the script. Missing images leave gaps."""
    drawn: list[str] = []
    columns: dict[str, Any] = {"across": ACROSS, "cell": [], "width": [], "height": []}
    for first in range(0, len(worst), ACROSS**2):
        images = [thumbnail(shown.image(i)) for i in worst[first : first + ACROSS**2]]
        sizes = [(0, 0) if image is None else image.size for image in images]
        # JPEG compresses blocks of 8 x 8 pixels. Whole blocks per thumbnail keep them from bleeding into each other.
        cell = -(-max(max(size) for size in sizes) // 8) * 8
        columns["cell"].append(cell)
        columns["width"] += [width for width, _ in sizes]
        columns["height"] += [height for _, height in sizes]
        drawn.append(_sheet(images, cell) if cell else "")
    return drawn, columns


def _sheet(images: Sequence[Image | None], cell: int) -> str:
    """Draw a sheet and encode it as JPEG in base64."""
    import numpy as np
    from PIL import Image

    grey = all(image is None or image.mode == "L" for image in images)
    sheet = Image.new("L" if grey else "RGB", (ACROSS * cell, -(-len(images) // ACROSS) * cell))
    for place, image in enumerate(images):
        if image is not None:
            pixels = np.asarray(image.convert(sheet.mode))
            whole = [(0, -image.height % 8), (0, -image.width % 8), (0, 0)][: pixels.ndim]
            tile = Image.fromarray(np.pad(pixels, whole, mode="edge"))
            sheet.paste(tile, (place % ACROSS * cell, place // ACROSS * cell))
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=QUALITY, subsampling=0, optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def thumbnail(pixels: Tensor | None) -> Image | None:
    """Shrink an image to at most ``SIDE`` pixels per side. Smaller images stay as they are."""
    from PIL import Image

    if pixels is None or not pixels.numel():
        return None
    array = pixels.cpu().permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return image


def headline(findings: Findings) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page with their names."""
    issues = findings.issues
    suspected = issues.is_label_issue
    note = " (probably too high, because training was too short)" if unsettled(findings.surveys) else ""
    numbers = [
        (f"{int(suspected.sum()):,}", f"issues: labels that are probably wrong, of {len(issues):,}"),
        (share(issues.noise_rate), f"of all labels wrong (estimate){note}"),
    ]
    if findings.true is not None:
        wrong = findings.true != issues.given_label
        both = int((wrong & suspected).sum())
        numbers.append((share(float(wrong.double().mean())), "of all labels are really wrong"))
        if suspected.any():
            numbers.append((share(both / int(suspected.sum())), "of the issues are really wrong"))
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
    text = text[: longest + 1].encode(errors="replace").decode()
    return text if len(text) <= longest else f"{text[: longest - 1]}\u2026"


def embedded(data: Any) -> str:
    """Encode data as JSON for a script element, with <, > and & escaped so that it cannot end the element."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII, so without U+2028 and U+2029 too
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def checksum(text: str) -> str:
    """Return the hash source of a script or style for the Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
