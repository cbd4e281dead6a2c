"""The paper's tables filled with our runs: both numbers, and how they stand to each other."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..training import method as methods
from ..training.recipe import RECIPES, Recipe
from .plan import BESIDES, TABLES, Printed, Row, Table, key_of, name_of
from .result import Result

POINTS, DEVIATIONS = 1.0, 2.0  # off: further from the paper than both
AVERAGE = "Average"
NOT_ACCURACY = {"minutes": ".1f", "tau_variance": ".3g"}


@dataclass(frozen=True)
class Entry:
    """A number of ours beside the paper's."""

    key: str | None = None  # of the runs; None: the average of the row
    ours: tuple[float, ...] = ()  # a run each
    averaged: tuple[float, ...] = ()  # the same runs by their averaged weights
    paper: Printed | None = None
    std: float | None = None  # of the paper, from whichever of its tables has it
    measure: str = "test"
    blank: bool = False  # there are runs, and they have no such number
    misprinted: float | None = None  # what the paper's average is by its row, where that is not what it prints
    rank: int = 0  # 1: best of the column, 2: second, among ours
    paper_rank: int = 0
    earlier: bool = False  # some run had labels of our earlier generator

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.ours) if self.ours else None

    @property
    def difference(self) -> float | None:
        if self.mean is None or self.paper is None:
            return None
        return self.mean - (self.paper.mean if self.misprinted is None else self.misprinted)

    @property
    def standing(self) -> str | None:
        """``agrees``, ``above`` or ``below``; nothing where there is nothing to compare."""
        if self.difference is None or self.measure in NOT_ACCURACY or self.key is None:
            return None
        if abs(self.difference) <= max(POINTS, DEVIATIONS * (self.std or 0.0)):
            return "agrees"
        return "above" if self.difference > 0 else "below"

    def show(self, values: Sequence[float]) -> str:
        """Mean, and the standard deviation of several."""
        style = NOT_ACCURACY.get(self.measure, ".2f")
        several = len(values) > 1 and self.key is not None
        return f"{statistics.fmean(values):{style}}" + (f"±{statistics.stdev(values):{style}}" if several else "")


class Shown(NamedTuple):
    """What is written in a cell on one of its lines."""

    text: str
    rank: int = 0
    runs: int = 0  # behind the number
    off: bool = False
    misprinted: bool = False
    earlier: bool = False


@dataclass(frozen=True)
class Filled:
    table: Table
    columns: tuple[str, ...]
    rows: tuple[tuple[Row, tuple[Entry, ...]], ...]
    left_out: tuple[str, ...] = ()  # labels of rows without runs

    def without_empty_rows(self) -> Filled:
        """Leave out the rows without runs, unless that leaves nothing. The legend names them."""
        if not self.has_runs:
            return self
        rows = tuple(row for row in self.rows if any(entry.ours for entry in row[1]))
        left_out = tuple(row.label for row, entries in self.rows if not any(entry.ours for entry in entries))
        return replace(self, rows=rows, left_out=left_out)

    @property
    def first_extra(self) -> int | None:
        """The first row that is not in the paper's table, or ``None``."""
        own = (number for number, (row, _) in enumerate(self.rows) if row not in self.table.rows)
        return next(own, None)

    @property
    def entries(self) -> list[Entry]:
        return [entry for _, entries in self.rows for entry in entries]

    @property
    def has_runs(self) -> bool:
        return any(entry.ours for entry in self.entries)

    def lines(self, row: int, *, averaged: bool = False) -> list[tuple[str, list[Shown]]]:
        """A row's lines, each with its name: ours, by averaged weights if wanted, the paper's, the difference."""
        _, entries = self.rows[row]
        lines = [("ours", [_ours(entry) for entry in entries])]
        if averaged and any(entry.averaged for entry in entries):
            lines.append(("averaged", [Shown(e.show(e.averaged) if e.averaged else "-") for e in entries]))
        if any(entry.paper for entry in entries):
            lines.append(("paper", [paper(entry) for entry in entries]))
        if any(entry.difference is not None for entry in entries):
            lines.append(("difference", [difference(entry) for entry in entries]))
        return lines

    def legend(self, *, averaged: bool = False) -> list[str]:
        """What the lines and marks say, a sentence each; only of what is there."""
        there = self.entries
        last = RECIPES[self.table.dataset].report_epochs
        epochs = f"mean of the last {last} epochs" if last > 1 else "of the last epoch"
        accuracy = f"accuracy in %, {epochs}" if any(e.measure not in NOT_ACCURACY for e in there) else ""
        others = [column.label for column in self.table.columns if column.measure in NOT_ACCURACY]
        parts = ["; ".join(filter(None, [accuracy, ", ".join(others)]))]
        if self.has_runs:
            parts[0] += "; mean ± standard deviation (number of runs)"
        if any(entry.mean is None and not entry.blank for entry in there):
            parts.append("-: not run")
        if self.left_out:
            parts.append(f"not run: {', '.join(self.left_out)}")
        if any(entry.blank for entry in there):
            parts.append("none: run, and without such a number")
        if averaged:
            parts.append("averaged: by the running average of the weights")
        if any(entry.paper for entry in there):
            parts.append("paper: as printed there")
        if any(entry.standing in ("above", "below") for entry in there):
            far = f"more than {POINTS:g} point from the paper, and more than {DEVIATIONS:g} of its standard deviations"
            parts.append(f"!: {far}, where it has them in any table; averages are not marked")
        if any(entry.rank or entry.paper_rank for entry in there):
            second = ", underlined: the second" if any(2 in (e.rank, e.paper_rank) for e in there) else ""
            apart = ", ours and the paper's each by themselves" if any(e.paper_rank for e in there) else ""
            parts.append(f"bold: the best of a column{second}{apart}")
        if any(entry.misprinted for entry in there):
            parts.append("*: not the mean of its row, from which the difference is taken")
        if any(entry.earlier for entry in there):
            parts.append(
                "~: trained on labels of our earlier generator, with the authors' counts but other samples flipped"
            )
        if self.table.average_over is not None:
            over = ", ".join(column.label for column in self.table.columns[: self.table.average_over])
            parts.append(f"{AVERAGE}: over {over}")
        return [*parts, self.table.note] if self.table.note else parts


def fill(table: Table, results: Iterable[Result]) -> Filled:
    """Fill the table with what was run. Methods that no table has follow as rows in the data set's first table.

    Runs on labels that are another draw are left out.
    """
    by_key: dict[str, list[Result]] = {}
    for result in results:
        if result.labels != "other":
            by_key.setdefault(result.key, []).append(result)
    deviations = {
        (cell.key, cell.measure): cell.paper.std
        for other in TABLES.values()
        if other.dataset == table.dataset
        for cell in other.cells
        if cell.paper is not None and cell.paper.std is not None
    }
    rows = []
    for row, cells in table.by_row:
        entries = [
            entry_of(
                cell.key, by_key.get(cell.key, []), cell.measure, cell.paper, deviations.get((cell.key, cell.measure))
            )
            for cell in cells
        ]
        rows.append((row, entries))
    for row, runs in more_rows(table, by_key):
        entries = []
        for column in table.columns:
            own = [run for run in runs if run.noise == column.noise]
            entries.append(entry_of(own[0].key if own else "", own, column.measure))
        rows.append((row, entries))
    columns = tuple(column.label for column in table.columns)
    if len(columns) > 2:
        columns += (AVERAGE,)
        for row, entries in rows:
            entries.append(_average(row, entries[: table.average_over]))
    return Filled(table, columns, _ranked(rows))


def entry_of(
    key: str, runs: Sequence[Result], measure: str, paper: Printed | None = None, std: float | None = None
) -> Entry:
    runs = sorted(runs, key=lambda run: run.seed)
    ours = [run.measured(measure) for run in runs]
    beside = [run for run in runs if measure not in NOT_ACCURACY and not run.reports_average]
    averaged = [run.measured(measure, averaged=True) for run in beside]
    known = tuple(value for value in ours if value is not None)
    return Entry(
        key,
        known,
        tuple(value for value in averaged if value is not None),
        paper,
        std,
        measure,
        blank=bool(runs) and not known,
        earlier=any(run.labels == "earlier" for run in runs),
    )


def _average(row: Row, entries: Sequence[Entry]) -> Entry:
    """Over the columns, where all are there."""

    def mean(values: Sequence[float | None]) -> tuple[float, ...]:
        known = [value for value in values if value is not None]
        return (statistics.fmean(known),) if len(known) == len(entries) else ()

    printed = mean([None if entry.paper is None else entry.paper.mean for entry in entries])
    wrong = row.average is not None and abs(printed[0] - row.average) > 0.01  # the last digit may be cut, not rounded
    return Entry(
        None,
        mean([entry.mean for entry in entries]),
        mean([statistics.fmean(entry.averaged) if entry.averaged else None for entry in entries]),
        None if row.average is None else Printed(row.average),
        misprinted=printed[0] if wrong else None,
        earlier=any(entry.earlier for entry in entries),
    )


def is_shown(recipe: Recipe, *, alone: bool = False) -> bool:
    """Whether a table has such a run, or a row for it."""
    key = key_of(recipe, alone=alone)
    return _has_row(recipe, alone) or any(cell.key == key for table in TABLES.values() for cell in table.cells)


def _has_row(recipe: Recipe, alone: bool) -> bool:
    """Whether a method is in no table, and nothing but its parameters differs from the data set's recipe."""
    known = {row.method for table in TABLES.values() if table.dataset == recipe.name for row in table.rows}
    usual = RECIPES[recipe.name]
    same = all(getattr(recipe, name) == value for name, value in usual if name not in BESIDES)
    return same and not alone and recipe.method not in known


def more_rows(table: Table, by_key: dict[str, list[Result]]) -> list[tuple[Row, list[Result]]]:
    """Methods that are in no table, each with its parameters; what else tells two of one name apart, if need be."""
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

    return [(table.row_of(runs[0].method, label(*group)), runs) for group, runs in sorted(groups.items())]


def _unusual(recipe: Recipe) -> str:
    """The parameters that are not the defaults; of a loss of one's own nobody knows these, and all are told."""
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
    """1 for the best, 2 for the second, else 0, by what is seen: two decimals. Of two numbers there is no second.

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
    return Shown(entry.show(entry.ours), entry.rank, len(entry.ours) if entry.key else 0, earlier=entry.earlier)


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
    return Shown(f"{entry.difference:+{style}}", off=entry.standing in ("above", "below"))
