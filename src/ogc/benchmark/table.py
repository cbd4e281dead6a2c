"""The paper's tables filled with our runs: both numbers and their difference."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..training import method as methods
from ..training.recipe import RECIPES, Recipe
from .key import NOT_IN_KEY, key_of
from .plan import TABLES, Printed, Row, Table, name_of
from .result import Result

POINTS, DEVIATIONS = 1.0, 2.0  # a difference larger than both is marked
AVERAGE = "Average"
NOT_ACCURACY = {"minutes": ".1f", "tau_variance": ".3g"}


@dataclass(frozen=True)
class Entry:
    """Our number and the paper's."""

    key: str | None = None  # of the runs; None: the average of a row
    ours: tuple[float, ...] = ()  # one number per run
    averaged: tuple[float, ...] = ()  # of the same runs, with averaged weights
    paper: Printed | None = None
    std: float | None = None  # the paper's, from any of its tables
    measure: str = "test"
    blank: bool = False  # runs exist but do not have this number
    misprinted: float | None = None  # the mean of the paper's row, if the printed average differs from it
    rank: int = 0  # among our numbers of the column: 1 for the best, 2 for the second
    paper_rank: int = 0

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.ours) if self.ours else None

    @property
    def difference(self) -> float | None:
        if self.mean is None or self.paper is None:
            return None
        return self.mean - (self.paper.mean if self.misprinted is None else self.misprinted)

    @property
    def verdict(self) -> str | None:
        """``agrees``, ``above`` or ``below`` the paper; ``None`` if there is nothing to compare."""
        if self.difference is None or self.measure in NOT_ACCURACY or self.key is None:
            return None
        if abs(self.difference) <= max(POINTS, DEVIATIONS * (self.std or 0.0)):
            return "agrees"
        return "above" if self.difference > 0 else "below"

    def show(self, values: Sequence[float]) -> str:
        """Format the mean, and the standard deviation of several runs."""
        style = NOT_ACCURACY.get(self.measure, ".2f")
        several = len(values) > 1 and self.key is not None
        return f"{statistics.fmean(values):{style}}" + (f"±{statistics.stdev(values):{style}}" if several else "")


class Shown(NamedTuple):
    """The text of a cell on one line, and its marks."""

    text: str
    rank: int = 0
    runs: int = 0  # behind the number
    off: bool = False
    misprinted: bool = False


@dataclass(frozen=True)
class Filled:
    table: Table
    columns: tuple[str, ...]
    rows: tuple[tuple[Row, tuple[Entry, ...]], ...]
    averaged: bool = False  # also show the accuracy of the averaged weights
    left_out: tuple[str, ...] = ()  # labels of rows without runs

    def without_empty_rows(self) -> Filled:
        """Drop the rows without runs, which the legend then names."""
        rows = tuple(row for row in self.rows if any(entry.ours for entry in row[1]))
        left_out = tuple(row.label for row, entries in self.rows if not any(entry.ours for entry in entries))
        return replace(self, rows=rows, left_out=left_out)

    @property
    def first_extra(self) -> int | None:
        """Index of the first row that is not in the paper's table, or ``None``."""
        own = (number for number, (row, _) in enumerate(self.rows) if row not in self.table.rows)
        return next(own, None)

    @property
    def entries(self) -> list[Entry]:
        return [entry for _, entries in self.rows for entry in entries]

    @property
    def has_runs(self) -> bool:
        return any(entry.ours for entry in self.entries)

    def lines(self, row: int) -> list[tuple[str, list[Shown]]]:
        """Return a row's lines with their names: ours, averaged (if wanted), paper, difference."""
        _, entries = self.rows[row]
        lines = [("ours", [_ours(entry) for entry in entries])]
        if self.averaged and any(entry.averaged for entry in entries):
            lines.append(("averaged", [Shown(e.show(e.averaged) if e.averaged else "-") for e in entries]))
        if any(entry.paper for entry in entries):
            lines.append(("paper", [paper(entry) for entry in entries]))
        if any(entry.difference is not None for entry in entries):
            lines.append(("difference", [difference(entry) for entry in entries]))
        return lines

    def legend(self) -> list[str]:
        """Explain the lines and marks that occur in the table, one sentence each."""
        table, entries = self.table, self.entries
        last = RECIPES[table.dataset].report_epochs
        epochs = f", averaged over the last {last} epochs" if last > 1 else " after the last epoch"
        accuracy = f"accuracy in %{epochs}" if any(e.measure not in NOT_ACCURACY for e in entries) else ""
        others = ", ".join(column.label for column in table.columns if column.measure in NOT_ACCURACY)
        far = f"{POINTS:g} point and by more than {DEVIATIONS:g} of its standard deviations (where printed)"
        misprinted = any(entry.misprinted for entry in entries)
        marked = any(entry.verdict in ("above", "below") for entry in entries)
        second = "; underlined: second best" if any(2 in (e.rank, e.paper_rank) for e in entries) else ""
        apart = "; our numbers and the paper's are ranked separately" if any(e.paper_rank for e in entries) else ""
        over = ", ".join(column.label for column in table.columns[: table.average_over])
        sentences = {
            "; ".join(filter(None, [accuracy, others])): True,
            "mean ± standard deviation over runs, with the number of runs in brackets": self.has_runs,
            "-: not run": any(entry.mean is None and not entry.blank for entry in entries),
            f"not run: {', '.join(self.left_out)}": self.left_out,
            "none: the run did not record this number": any(entry.blank for entry in entries),
            "averaged: the same runs, evaluated with averaged weights": self.averaged,
            "paper: the number printed in the paper": any(entry.paper for entry in entries),
            f"!: differs from the paper by more than {far}; averages are not marked": marked,
            f"bold: best in its column{second}{apart}": any(entry.rank or entry.paper_rank for entry in entries),
            "*: the paper's average is not the mean of its row; our difference is relative to that mean": misprinted,
            f"{AVERAGE}: the mean of {over}": table.average_over is not None,
            table.note: table.note,
        }
        return [f"{sentence[:1].upper()}{sentence[1:]}." for sentence, applies in sentences.items() if applies]


def fill(table: Table, results: Iterable[Result], *, averaged: bool = False) -> Filled:
    """Fill a table with results. Methods that no table has are added as rows to the data set's first table.

    Runs on other labels than the table's are left out.
    """
    deviations = {
        (cell.key, cell.measure): cell.paper.std
        for other in TABLES.values()
        if other.dataset == table.dataset
        for cell in other.cells
        if cell.paper is not None and cell.paper.std is not None
    }
    rows = []
    for row, by_column in runs_by_row(table, results):
        entries = []
        for column, printed, runs in zip(table.columns, row.printed, by_column, strict=True):
            key = runs[0].key if runs else ""
            entries.append(entry_of(key, runs, column.measure, printed, deviations.get((key, column.measure))))
        rows.append((row, entries))
    columns = tuple(column.label for column in table.columns)
    if len(columns) > 2:
        columns += (AVERAGE,)
        for row, entries in rows:
            entries.append(_average(row, entries[: table.average_over]))
    return Filled(table, columns, _ranked(rows), averaged)


def entry_of(
    key: str, runs: Sequence[Result], measure: str, paper: Printed | None = None, std: float | None = None
) -> Entry:
    runs = sorted(runs, key=lambda run: run.seed)
    beside = [run for run in runs if measure not in NOT_ACCURACY and not run.reports_average]
    ours = _known(run.measured(measure) for run in runs)
    averaged = _known(run.measured(measure, averaged=True) for run in beside)
    return Entry(key, ours, averaged, paper, std, measure, blank=bool(runs) and not ours)


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def _average(row: Row, entries: Sequence[Entry]) -> Entry:
    """Average a row over its columns, if none is missing."""

    def mean(values: Sequence[float | None]) -> tuple[float, ...]:
        known = _known(values)
        return (statistics.fmean(known),) if len(known) == len(entries) else ()

    printed = mean([None if entry.paper is None else entry.paper.mean for entry in entries])
    wrong = row.average is not None and abs(printed[0] - row.average) > 0.01  # its last digit may be truncated
    return Entry(
        None,
        mean([entry.mean for entry in entries]),
        mean([statistics.fmean(entry.averaged) if entry.averaged else None for entry in entries]),
        None if row.average is None else Printed(row.average),
        misprinted=printed[0] if wrong else None,
    )


def is_shown(recipe: Recipe, *, alone: bool = False) -> bool:
    """Return True if some table shows a run with this recipe."""
    key = key_of(recipe, alone=alone)
    return _has_row(recipe, alone) or any(cell.key == key for table in TABLES.values() for cell in table.cells)


def _has_row(recipe: Recipe, alone: bool) -> bool:
    """Return True if no table has the method and only its parameters differ from the data set's recipe."""
    known = {row.method for table in TABLES.values() if table.dataset == recipe.name for row in table.rows}
    usual = RECIPES[recipe.name]
    same = all(getattr(recipe, name) == value for name, value in usual if name not in NOT_IN_KEY)
    return same and not alone and recipe.method not in known


def runs_by_row(table: Table, results: Iterable[Result]) -> list[tuple[Row, list[list[Result]]]]:
    """Return the rows of a table, and rows for methods that no table has, with the runs of each column."""
    by_key: dict[str, list[Result]] = {}
    for result in results:
        if not result.other_draw:
            by_key.setdefault(result.key, []).append(result)
    rows = [(row, [by_key.get(cell.key, []) for cell in cells]) for row, cells in table.by_row]
    for row, runs in _more_rows(table, by_key):
        rows.append((row, [[run for run in runs if run.noise == column.noise] for column in table.columns]))
    return rows


def _more_rows(table: Table, by_key: dict[str, list[Result]]) -> list[tuple[Row, list[Result]]]:
    """Return rows for methods that no table has. Their labels include what distinguishes them."""
    if table is not next(other for other in TABLES.values() if other.dataset == table.dataset):
        return []
    groups: dict[tuple[str, str, str, str], list[Result]] = {}
    for runs in by_key.values():
        recipe = runs[0].recipe
        if recipe.name == table.dataset and _has_row(recipe, runs[0].alone):
            own = methods.own_loss(recipe.method)
            file = "" if own is None else re.sub(r"[^A-Za-z0-9._-]+", "-", own.path.name)
            name = name_of(recipe.method)
            groups.setdefault((name, file, (recipe.method_sha256 or "")[:8], _unusual(recipe)), []).extend(runs)

    def label(name: str, file: str, version: str, numbers: str) -> str:
        alike = [group for group in groups if group[0] == name]
        several = [len({group[part] for group in alike}) > 1 for part in (1, 2)]
        details = [file if several[0] else "", version if several[1] else "", numbers]
        shown = ", ".join(filter(None, details))
        return f"{name} ({shown})" if shown else name

    blank = (None,) * len(table.columns)
    return [(Row(label(*group), runs[0].method, {}, blank), runs) for group, runs in sorted(groups.items())]


def _unusual(recipe: Recipe) -> str:
    """List the parameters that are not defaults. A custom loss has no known defaults, so all of its are listed."""
    _, plus, rule = methods.split(recipe.method)
    own = methods.own_loss(recipe.method) is not None
    usual = methods.complete(f"ce{plus}{rule}", {}, "") if own else methods.complete(recipe.method, {}, recipe.name)
    return ", ".join(f"{name} {value:.12g}" for name, value in recipe.parameters.items() if value != usual.get(name))


def _ranked(rows: Sequence[tuple[Row, Sequence[Entry]]]) -> tuple[tuple[Row, tuple[Entry, ...]], ...]:
    columns = []
    for column in zip(*(entries for _, entries in rows), strict=True):
        accuracies = column[0].measure not in NOT_ACCURACY
        ours = ranks([entry.mean if accuracies else None for entry in column])
        papers = ranks([entry.paper.mean if accuracies and entry.paper else None for entry in column])
        columns.append([replace(entry, rank=a, paper_rank=b) for entry, a, b in zip(column, ours, papers, strict=True)])
    return tuple((row, entries) for (row, _), entries in zip(rows, zip(*columns, strict=True), strict=True))


def ranks(values: Sequence[float | None]) -> list[int]:
    """Rank numbers as shown, with two decimals: 1 for the best, 2 for the second of three or more, otherwise 0.

    >>> ranks([80.0, None, 91.234, 90.0, 91.231])
    [0, 0, 1, 2, 1]
    """
    seen = [None if value is None else round(value, 2) for value in values]
    order = sorted({value for value in seen if value is not None}, reverse=True)
    places = {} if len(order) < 2 else dict(zip(order[: 2 if len(order) > 2 else 1], (1, 2), strict=False))
    return [0 if value is None else places.get(value, 0) for value in seen]


def _ours(entry: Entry) -> Shown:
    if not entry.ours:
        return Shown("none" if entry.blank else "-")
    return Shown(entry.show(entry.ours), entry.rank, len(entry.ours) if entry.key else 0)


def paper(entry: Entry) -> Shown:
    if entry.paper is None:
        return Shown("")
    style = ".0f" if entry.measure == "minutes" else ".2f"
    std = "" if entry.paper.std is None else f"±{entry.paper.std:{style}}"
    return Shown(f"{entry.paper.mean:{style}}{std}", entry.paper_rank, misprinted=entry.misprinted is not None)


def difference(entry: Entry) -> Shown:
    if entry.difference is None:
        return Shown("")
    style = NOT_ACCURACY.get(entry.measure, ".2f")
    return Shown(f"{entry.difference:+z{style}}", off=entry.verdict in ("above", "below"))
