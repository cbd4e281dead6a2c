"""Predictions of a trained run for new rows, images or arrays, prepared like its training data.

predictor = Predictor.load("runs/customers-ce+ogc-0")
predictions = predictor.predict("new.csv")
predictions.write("predictions.csv")
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ._csv import csv_bytes
from ._files import write_whole
from ._require import counted, few, require
from .data.arrays import FEATURE_NAMES, read_array, to_inputs
from .data.augment import normalise
from .data.dataset import Inputs
from .data.folder import images_in
from .data.images import IMAGE_SUFFIXES, ImageFiles, report_unreadable
from .data.rows import TableRows
from .training.evaluate import batch_for
from .training.preprocessing import Preprocessing
from .training.run_folder import LAST, how_to_resume, is_finished, is_saved, read_tensors
from .training.session import load_network, pick_device
from .training.source import ARRAYS, TABLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

ACCEPTED = {
    "table": f"a table ({', '.join(TABLES)})",
    "images": f"a folder of images, an image, or a file of uint8 images ({', '.join(ARRAYS)})",
    "features": f"a file of features ({', '.join(ARRAYS)})",
}
Progress = Callable[[int, int], object]  # receives how many samples are done, and how many there are


@dataclass(frozen=True)
class Predictions:
    """A probability for each sample and class."""

    id_name: str  # what the ids are: row, path, sample, or a table's column
    ids: Sequence[str]
    class_names: tuple[str, ...]
    probabilities: Tensor  # (N, C) float32, on the CPU

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def predicted(self) -> list[str]:
        """The most probable class of each sample."""
        return [self.class_names[index] for index in self.probabilities.argmax(1).tolist()]

    @property
    def header(self) -> list[str]:
        return [self.id_name, "predicted", "probability", *(f"p({name})" for name in self.class_names)]

    def rows(self) -> list[list[str]]:
        """One row per sample: its id, the predicted class and its probability, and the probability of each class."""
        return [
            [id, name, f"{max(row):.6f}", *(f"{probability:.6f}" for probability in row)]
            for id, name, row in zip(self.ids, self.predicted, self.probabilities.tolist(), strict=True)
        ]

    def write(self, path: str | Path) -> None:
        """Write a CSV file atomically."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(Path(path), csv_bytes(self.header, self.rows()))


class Samples(NamedTuple):
    """Inputs in the format of the run's training set, and their ids."""

    inputs: Inputs
    id_name: str
    ids: Sequence[str]


class Predictor:
    """A run's network and the preprocessing of its inputs.

    :param network: moved to ``device`` and set to evaluation mode.
    """

    def __init__(self, network: nn.Module, preprocessing: Preprocessing, device: str = "cpu") -> None:
        self.device = pick_device(device)
        self.network = network.to(self.device).eval()
        self.preprocessing = preprocessing

    @classmethod
    def load(
        cls, run: str | Path, *, which: str = "averaged", device: str = "cpu", network: nn.Module | None = None
    ) -> Predictor:
        """Load a run from its folder.

        :param which: the weights: ``averaged`` (those of the last epoch if the run has no averaged ones), ``last`` or
            ``best``.
        :param network: network to load the weights into, if the run's was defined in Python.
        """
        folder = Path(run).expanduser()
        epochs, used = None, "its best epoch so far"
        if not is_finished(folder) and is_saved(folder):
            epochs = int(read_tensors(folder / LAST)[1]["epoch"])
        if epochs == 0:
            raise ValueError(f"The run in {folder} has not finished an epoch. Resume it first: {how_to_resume(folder)}")
        if which != "best":
            used = "its last checkpoint" if epochs is None else f"its last checkpoint, after {counted(epochs, 'epoch')}"
        predictor = cls(load_network(folder, which, network), Preprocessing.read(folder), device)
        if not is_finished(folder):
            warnings.warn(f"The run in {folder} is not finished: using {used}.", stacklevel=2)
        return predictor

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.preprocessing.class_names

    def predict(
        self,
        data: str | Path | Tensor | NDArray[Any] | Mapping[str, Sequence[object]],
        *,
        id: str | None = None,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Predictions:
        """Predict the class of each sample.

        :param data: a file or a folder of the kind that the run was trained on, an array, or columns of cells by name
            (of a pandas frame: ``dict(frame)``).
        :param id: column that identifies the rows of a table. By default the one used in training.
        :param skip_bad: skip images that cannot be read.
        """
        samples = self.samples(data, id=id, skip_bad=skip_bad)
        probabilities = self.probabilities(samples.inputs, progress)
        return Predictions(samples.id_name, samples.ids, self.class_names, probabilities)

    @torch.no_grad()
    def probabilities(self, inputs: Inputs, progress: Progress | None = None) -> Tensor:
        """Evaluate the network on inputs that are prepared like those of the training set: -> (N, C) on the CPU."""
        size = batch_for(self.preprocessing.shape)
        found = [torch.empty(0, len(self.class_names))]
        for start in range(0, len(inputs), size):
            end = min(start + size, len(inputs))
            batch = inputs[torch.arange(start, end)].to(self.device)
            found.append(self.network(normalised(batch, self.preprocessing)).float().softmax(1).cpu())
            if progress is not None:
                progress(end, len(inputs))
        return torch.cat(found)

    def samples(
        self,
        data: str | Path | Tensor | NDArray[Any] | Mapping[str, Sequence[object]],
        *,
        id: str | None = None,
        skip_bad: bool = False,
    ) -> Samples:
        """Read new data and prepare it like the run's training data."""
        trained_on_table = self.preprocessing.kind == "table"
        require(id is None or trained_on_table, "id", "left out: the run was not trained on a table", id)
        if isinstance(data, Mapping):
            self._require_kind("table", "columns of a table")
            return self._rows(TableRows.of(data, "the table", text=self._text_columns(id)), id)
        if not isinstance(data, str | Path):
            values = data.detach().cpu().numpy() if isinstance(data, Tensor) else data
            return self._array(values, "the array")
        self.check_path(data)
        path = Path(data).expanduser()
        if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
            return self._images(path, skip_bad)
        if trained_on_table:
            return self._rows(TableRows.read(path, text=self._text_columns(id)), id)
        return self._array(read_array(path, None, FEATURE_NAMES), f"`{data}`")

    def check_path(self, data: str | Path) -> None:
        """Raise an error if a file or a folder is missing, or is not of the kind that the run was trained on."""
        kind, path = self.preprocessing.kind, Path(data).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"There is no `{data}`. Expected {ACCEPTED[kind]}, like the run's training data.")
        suffix = path.suffix.lower()
        if path.is_dir() or suffix in IMAGE_SUFFIXES:
            self._require_kind("images", f"`{data}`")
        elif suffix in TABLES:
            self._require_kind("table", f"`{data}`")
        elif suffix in ARRAYS:
            require(kind != "table", "data", f"{ACCEPTED[kind]}, like the run's training data", str(data))
        else:
            raise ValueError(f"`{data}` cannot be read. Expected {ACCEPTED[kind]}, like the run's training data.")

    def _require_kind(self, kind: str, what: str) -> None:
        own = self.preprocessing.kind
        if own != kind:
            raise ValueError(
                f"{what} cannot be predicted by this run. Expected {ACCEPTED[own]}, like its training data."
            )

    def _array(self, values: NDArray[Any], where: str) -> Samples:
        inputs, shape = to_inputs(values, where.strip("`")), self.preprocessing.shape
        images = self.preprocessing.kind == "images"
        if tuple(inputs.shape[1:]) != shape or (inputs.dtype == torch.uint8) != images:
            found = f"{'uint8' if inputs.dtype == torch.uint8 else 'numbers'}, {tuple(inputs.shape)}"
            wanted = f"{'uint8 images' if images else 'numbers'}, (N, {', '.join(map(str, shape))})"
            raise ValueError(f"{where} should have {wanted}, like the run's training data. Found {found}.")
        return Samples(inputs, "sample", [str(i) for i in range(len(inputs))])

    def _images(self, path: Path, skip_bad: bool) -> Samples:
        channels, height, width = self.preprocessing.shape
        if channels != 3 or height != width:
            raise ValueError(
                f"`{path}` cannot be predicted by this run, whose images are {self.preprocessing.shape}. "
                f"Expected a file of uint8 images of that shape ({', '.join(ARRAYS)})."
            )
        root = path if path.is_dir() else path.parent
        paths = list(images_in(path)) if path.is_dir() else [path]
        if not paths:
            raise ValueError(f"`{path}` has no images. Expected files like .jpg or .png in it or its sub-folders.")
        files = ImageFiles(paths, height)
        bad = files.unreadable()
        report_unreadable(bad, len(paths), skip_bad=skip_bad)
        files.paths = [each for each in files.paths if str(each) not in bad]
        return Samples(files, "path", [each.relative_to(root).as_posix() for each in files.paths])

    def _text_columns(self, id: str | None) -> set[str]:
        encoder = self.preprocessing.encoder
        assert encoder is not None
        return {*encoder.text_columns, *(() if id is None else (id,))}

    def _rows(self, rows: TableRows, id: str | None) -> Samples:
        encoder = self.preprocessing.encoder
        assert encoder is not None
        encoder.check(rows)
        known = {*encoder.columns, *encoder.dropped, *encoder.labels, encoder.id, id}
        if extra := [name for name in rows.columns if name not in known]:
            warnings.warn(f"Ignored columns that the run was not trained on: {few(extra)}.", stacklevel=4)
        id = id if id is not None or encoder.id not in rows.columns else encoder.id
        return Samples(encoder.features(rows), id or "row", rows.ids(id))


def normalised(inputs: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalise images by the training set's mean and standard deviation; features stay as they are."""
    statistics = preprocessing.statistics
    return inputs if statistics is None else normalise(inputs, *statistics)
