"""``ogc predict``: write a run's predictions for new rows, images or arrays to a CSV file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..report.console import make_console, progress_bar, say, warnings_as_notes
from . import options as shared
from .command import command
from .errors import data_errors

if TYPE_CHECKING:
    from ..predict import Predictions

MOST_CLASSES = 10  # whose predictions are counted in the summary


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    run: shared.Run
    data: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="New data, of the kind the run was trained on: a table, image folder, .npz or .npy.",
        ),
    ]
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("predictions.csv")
    weights: shared.Weights = "averaged"
    id: shared.Id = None
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be read.")] = False
    device: shared.Device = "auto"


@command(stopped="Stopped. Nothing was written.")
def predict(options: PredictOptions) -> None:
    """Predict the classes of new data with a trained run, and write them to a CSV file with their probabilities.

    \b
    Examples:
      ogc predict runs/customers-ce+ogc-0 new.csv
      ogc predict runs/customers-ce+ogc-0 new.csv --id customer --out monday.csv
      ogc predict runs/photos-ce+ogc-0 inbox/ --skip-bad
      ogc predict runs/embeddings-fl+ogc-0 new.npz --weights best

    New data is preprocessed in the same way as the training data. Columns may be in any order.
    """
    from rich.progress import MofNCompleteColumn

    from ..predict import Predictor

    shared.check_weights(options.weights)
    console = make_console()
    with warnings_as_notes(console):
        predictor = Predictor.load(options.run, which=options.weights, device=options.device)
        with data_errors():
            predictor.check_path(options.data)
        shared.check_new_file("out", options.out, ".csv")
        with data_errors(), progress_bar(MofNCompleteColumn()) as progress:
            found = predictor.predict(options.data, id=options.id, skip_bad=options.skip_bad, progress=progress)
    new = "" if options.out.parent.exists() else " (in a new folder)"
    found.write(options.out)
    say(console, _summary(found))
    say(console, f"Predictions: {options.out}{new}")


def _summary(found: Predictions) -> str:
    """Count the predictions of each class.

    "3 rows: yes (2), no (1)."
    """
    what = {"path": "image", "sample": "sample"}.get(found.id_name, "row") + ("" if len(found) == 1 else "s")
    common = Counter(found.predicted).most_common()
    counts = ", ".join(f"{name} ({count:,})" for name, count in common[:MOST_CLASSES])
    rest = sum(count for _, count in common[MOST_CLASSES:])
    return f"{len(found):,} {what}{': ' if counts else ''}{counts}{f', other classes ({rest:,})' if rest else ''}."
