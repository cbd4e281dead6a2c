"""A table, CSV or Parquet: one column is the label, the others become features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from .._require import counted, few, require
from .._warn import warn
from .cells import is_missing, to_number
from .dataset import Dataset, Loaded, index_labels, warn_of_spellings
from .encoder import Encoder
from .leak import warn_of_leaks
from .rows import TableRows
from .split import stratified_split, warn_of_same_rows

FEW_CLASSES = 20  # even in a very small table


def read_table(
    path: str | Path,
    label: str,
    *,
    true: str | None = None,
    id: str | None = None,
    val: float | str | Path = 0.2,
    seed: int = 0,
    test: str | Path | None = None,
    skip_bad: bool = False,
    encoder: Encoder | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Loaded:
    """Load the training set, ``val`` (a stratified share of the rows, or a file) and ``test``.

    CSV files may be separated by commas, semicolons, tabs or bars. Numbers are standardised, dates become year, month
    and weekday, free text becomes TF-IDF, and other strings become one-hot. Constant columns and identifiers are
    dropped. The encoding is fitted on the training rows only and stored in the ``encoder`` of the training set;
    ``encoder.use`` describes each column. A few other values among numbers count as missing, with a warning.

    :param label: column of labels. Its sorted values are the class names.
    :param true: column of true labels, for evaluation only.
    :param id: column that identifies rows. By default the row number, starting at 1 below the header.
    :param skip_bad: skip rows without a label.
    :param encoder: the encoding of an earlier run, to use instead of fitting one.
    :param progress: receives how many rows of a set are encoded, and how many it has.
    """
    for name, column in (("id", id), ("true", true)):
        require(column != label, name, f"a different column from the labels, `{label}`", column)
    labels = (label,) if true is None else (label, true)
    not_features = {*labels, *(() if id is None else (id,))}
    rows = _read_labelled(
        Path(path), not_features if encoder is None else not_features | encoder.text_columns, label, skip_bad
    )
    for column in not_features:
        rows.texts(column)  # raises an error if it is missing
    if id is not None:
        _check_ids(rows, id)
    class_names = _class_names(rows, label)

    def dataset(part: TableRows, encoder: Encoder) -> Dataset:
        given = _indices(part, label, class_names)
        truth = _indices(part, true, class_names) if true is not None and true in part.columns else None
        ids = part.ids(id if id in part.columns else None)
        return Dataset(encoder.features(part, progress), given, class_names, ids, truth)

    given, share = _indices(rows, label, class_names), val if isinstance(val, float | int) else 0.0
    keep, held_out = stratified_split(given, class_names, val=share, seed=seed)
    training, validation = rows[keep.numpy()], rows[held_out.numpy()]
    if encoder is None:
        encoder = Encoder.fit(training, labels=labels, id=id)
        warn_of_leaks(training, encoder, given[keep].numpy())
    if not encoder.columns:
        found = encoder.use or "no other column"
        raise ValueError(f"{rows.where} has no column to learn from besides `{label}`. Found {found}.")
    encoder.check(rows, categories=False)
    del rows  # to save memory
    sets = {"val": dataset(validation, encoder)} if share else {}
    train = replace(dataset(training, encoder), encoder=encoder)
    here = [train, *sets.values()]
    for name, file in (("val", val), ("test", test)):
        if isinstance(file, str | Path):
            part = _read_labelled(Path(file), not_features | encoder.text_columns, label, skip_bad)
            encoder.check(part, categories=False)
            sets[name] = dataset(part, encoder)
            warn_of_same_rows(sets[name], Path(file), here, Path(path))
    return train, sets


def _read_labelled(path: Path, text: set[str], label: str, skip: bool) -> TableRows:
    """Read the rows with a label. Unless ``skip``, other rows raise ``ValueError``."""
    rows = TableRows.read(path, text=text)
    unlabelled = rows.texts(label).codes < 0
    if missing := int(unlabelled.sum()):
        share = f"{missing:,} of {len(rows):,} rows of {rows.where}"
        if not skip:
            first = f"the first is row {1 + unlabelled.argmax()}"
            fix = "Fill it in, or skip such rows with --skip-bad (skip_bad=True in Python)."
            raise ValueError(f"{share} have no label in the column `{label}`; {first}. {fix}")
        warn(f"Skipped {share} without a label.")
    return rows[~unlabelled]


def _class_names(rows: TableRows, label: str) -> tuple[str, ...]:
    """Return the class names, sorted as numbers if all are numbers, otherwise as text."""
    names, column = sorted(rows.texts(label).values), f"The column `{label}` of {rows.where}"
    if len(names) < 2:
        raise ValueError(f"{column} should have two classes or more. Found {len(names)}.")
    if len(names) > max(FEW_CLASSES, len(rows) / 2):
        found = f"{len(names):,} different values in {len(rows):,} rows"
        fix = "Choose another column with --label (label=... in Python)."
        raise ValueError(f"{column} should have labels that repeat. Found {found}. {fix}")
    warn_of_spellings(names, f"in the column `{label}`", "give all their rows the same spelling")
    if words := [name for name in names if is_missing(name)]:
        fix = "To skip such rows, empty their labels and use --skip-bad (skip_bad=True in Python)."
        warn(f"{column} has the {'class' if len(words) == 1 else 'classes'} {few(words)}. {fix}")
    numbers = {name: to_number(name) for name in names}
    return tuple(names if any(map(math.isnan, numbers.values())) else sorted(names, key=numbers.__getitem__))


def _indices(rows: TableRows, column: str, class_names: tuple[str, ...]) -> Tensor:
    return index_labels(rows.texts(column).tolist(), class_names, f"{rows.where}, column `{column}`,", rows.numbers)


def _check_ids(rows: TableRows, id: str) -> None:
    different = len(set(rows.ids(id)))
    if 2 * different < len(rows):
        only = f"only {counted(different, 'different value')} in {len(rows):,} rows"
        warn(f"The column `{id}` has {only}, so it does not identify rows. As the id, it is not used as a feature.")
