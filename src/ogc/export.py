"""Export of a trained run to ONNX: from inputs like those of the training set to probabilities."""

from __future__ import annotations

import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ._files import write_whole
from .predict import Predictor, normalised
from .training.preprocessing import Preprocessing

NEEDED = ("onnx", "onnxscript")


class Classifier(nn.Module):
    """Network, normalisation of images and softmax in one module: (N, ...) -> probabilities (N, C)."""

    def __init__(self, network: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network, self.preprocessing = network, preprocessing

    def forward(self, inputs: Tensor) -> Tensor:
        probabilities: Tensor = self.network(normalised(inputs, self.preprocessing)).float().softmax(1)
        return probabilities


def require_packages() -> None:
    """Raise ``ImportError`` if a package that ``to_onnx`` needs is missing."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ImportError(f'Exporting to ONNX needs {" and ".join(missing)}: pip install "torch-ogc[onnx]"')


def to_onnx(predictor: Predictor, path: str | Path) -> None:
    """Write ``predictor`` to an ONNX file with one input, ``inputs``, and one output, ``probabilities``.

    Images are uint8, (N, channels, height, width), and are normalised inside. Features are float32, (N, F). The rows of
    a table have to be encoded first, with ``Predictor.samples``. The class names and the
    preprocessing are in the file's metadata, as JSON under ``ogc``.
    """
    require_packages()
    own = predictor.preprocessing
    kind = torch.uint8 if own.kind == "images" else torch.float32
    example = torch.zeros(2, *own.shape, dtype=kind)  # 2: a dimension of 1 would be taken for a constant
    network = Classifier(predictor.network, own).to("cpu").eval()
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it lists the operators of packages that are not installed
    try:
        with warnings.catch_warnings(action="ignore"):  # torch's warnings about its own code
            program: Any = torch.onnx.export(
                network,
                (example,),
                input_names=["inputs"],
                output_names=["probabilities"],
                dynamic_shapes={"inputs": {0: torch.export.Dim("samples")}},
                dynamo=True,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
        predictor.network.to(predictor.device)
    model = program.model_proto
    model.metadata_props.add(key="ogc", value=json.dumps(own.to_json()))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(Path(path), model.SerializeToString())
