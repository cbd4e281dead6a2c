"""The preprocessing of a run's inputs, stored as JSON, so that new inputs are prepared in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from .._files import checked_fields
from ..data.augment import Statistics
from ..data.encoder import Encoder
from .run_folder import PREPROCESSING, CheckpointError, read_part, write_part

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True)
class Preprocessing:
    """Everything fitted on the training inputs, and the names of the classes."""

    kind: Literal["table", "images", "features"]
    shape: tuple[int, ...]  # of one sample, before it is normalised
    class_names: tuple[str, ...]
    encoder: Encoder | None = None  # of a table
    statistics: Statistics | None = None  # of images: mean and standard deviation of each channel

    @classmethod
    def of(cls, run: Run) -> Self:
        encoder, statistics = run.train_set.encoder, run.feed.statistics
        return cls(
            "table" if encoder is not None else "features" if statistics is None else "images",
            run.feed.origin_shape,
            run.train_set.class_names,
            encoder,
            statistics,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the preprocessing from a run's folder."""
        path = folder / PREPROCESSING
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} has no {PREPROCESSING}, which describes the preprocessing of the run. Restore it from a "
                "backup, or train again."
            )
        stored = read_part(path)
        with checked_fields(path, error=CheckpointError, again="train again"):
            return cls(
                stored["kind"],
                tuple(stored["shape"]),
                tuple(stored["class_names"]),
                stored["encoder"] and Encoder.from_json(stored["encoder"]),
                stored["statistics"] and Statistics(*map(tuple, stored["statistics"])),
            )

    def to_json(self) -> dict[str, Any]:
        encoder = None if self.encoder is None else self.encoder.to_json()
        return {**vars(self), "encoder": encoder}

    def write(self, folder: Path, run: str) -> None:
        """Write the preprocessing to the folder of the run with this identifier."""
        write_part(folder / PREPROCESSING, run, self.to_json())

    def check(self, folder: Path) -> None:
        """Raise ``CheckpointError`` if the rows of a table would not be encoded as before."""
        if self.encoder is not None and Preprocessing.read(folder).encoder != self.encoder:
            raise CheckpointError(
                f"{folder / PREPROCESSING} encodes the columns in another way, so training cannot be resumed: the "
                "version of ogc or scikit-learn has changed. Use the version that wrote it, or train again."
            )
