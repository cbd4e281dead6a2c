"""``ogc export``: write a run's network to a file for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..report.console import make_console, say
from . import options as shared
from .command import command


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    run: shared.Run
    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="ONNX file to write.", show_default=False)] = None
    weights: shared.Weights = "averaged"


@command(stopped="Stopped. Nothing was written.")
def export(options: ExportOptions) -> None:
    """Export a trained network to an ONNX file, which maps inputs to probabilities.

    \b
    Examples:
      ogc export runs/photos-ce+ogc-0 --onnx photos.onnx
      ogc export runs/digits-ce+ogc-0 --onnx digits.onnx --weights best

    Images are normalised inside the file. Rows of a table must be encoded first; see ogc.predict.Predictor.
    """
    from ..export import require_packages, to_onnx
    from ..predict import Predictor

    console, path = make_console(), options.onnx
    shared.check_weights(options.weights)
    if path is None:
        raise ValueError("The option `--onnx` is missing. Give the file to write, as in --onnx classifier.onnx.")
    predictor = Predictor.load(options.run, which=options.weights)
    shared.check_new_file("onnx", path, ".onnx")
    require_packages()
    own = predictor.preprocessing
    say(console, "Exporting. This takes a few seconds.")
    to_onnx(predictor, path)
    kind = "uint8" if own.kind == "images" else "float32"
    shape = ", ".join(map(str, own.shape))
    say(console, f"{path}: inputs {kind} (N, {shape}) -> probabilities float32 (N, {len(own.class_names)})")
    if own.encoder is not None:
        say(console, "Encode the rows of a table first, with ogc.predict.Predictor.samples.")
