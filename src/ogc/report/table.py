"""The table at the end of ``ogc train``, and short names for several runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from .drawing import percent

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

BEST = "is chosen on the same set, so its accuracy is too optimistic."


def distinguishing_fields(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields in which recipes differ, the method first. Fields that add no distinction are left out."""
    usual = ("method", "noise", "seed", "name", "network", "noise_seed")
    chosen = ["method"]
    for field in (*usual, *(recipes[0] if recipes else ())):
        with_it = [*chosen, field]
        if len({_key(recipe, with_it) for recipe in recipes}) > len({_key(recipe, chosen) for recipe in recipes}):
            chosen = with_it
    return chosen


def short_names(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a short name for each run: "ce+ogc seed 1", or "seed 1" if the method is the same."""
    fields = distinguishing_fields(recipes)
    if len(fields) > 1 and len({recipe["method"] for recipe in recipes}) == 1:
        fields = fields[1:]
    return [" ".join(_named(field, recipe) for field in fields) for recipe in recipes]


def _named(field: str, recipe: Mapping[str, Any]) -> str:
    value = recipe[field]
    if field == "method":
        return str(value).rpartition("/")[2]  # a custom loss, by its file
    if field in ("name", "network", "noise"):
        return str(value) if value is not None else f"no {field} added"
    if isinstance(value, Mapping):
        return " ".join(f"{name} {number:g}" for name, number in value.items())
    return f"{field} {value}"


def _with_label_file(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the recipe of a run. If its labels are from a label file, its noise names this file."""
    recipe, path = result["recipe"], (result["source"] or {}).get("labels")
    added = recipe["noise"] is not None or result["facts"]["noise"] is None
    return recipe if added or path is None else {**recipe, "noise": f"labels from {PurePath(path).name}"}


def _key(recipe: Mapping[str, Any], fields: Sequence[str]) -> str:
    return json.dumps([recipe.get(field) for field in fields])


def table(results: Sequence[Mapping[str, Any]]) -> Group:
    """Make a table with one row per run, and one with mean and standard deviation per group of seeds.

    Title and caption are separate paragraphs, because those of a table are wrapped to its width.
    """
    from rich.console import Group
    from rich.text import Text

    results = [{**result, "recipe": _with_label_file(result)} for result in results]
    recipes = [result["recipe"] for result in results]
    common = [field for field in ("name", "network", "noise") if len({recipe[field] for recipe in recipes}) == 1]
    fields = [field for field in distinguishing_fields(recipes) if field not in ("seed", "noise_seed")]
    summaries = [summary for result in results for summary in result["summaries"]]
    sets = list(dict.fromkeys(summary["set"] for summary in summaries))
    epochs = {min(result["recipe"]["report_epochs"], len(result["epochs"])) for result in results}
    over = "mean over the last epochs" if len(epochs) > 1 else f"mean over the last {max(epochs, default=0)} epochs"
    over = "after the last epoch" if epochs == {1} else over
    averaged = any("averaged_last" in summary for summary in summaries)
    of, either = (" of the raw and of the averaged weights", " of either") if averaged else ("", "")
    what = f"Accuracy{of}: {over}. The best epoch{either} {BEST}"
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        rest = [field for field in result["recipe"] if field not in ("seed", "noise_seed")]
        groups.setdefault(_key(result["recipe"], rest), []).append(result)
    rows = []
    for runs in groups.values():
        name = " ".join(_named(field, runs[0]["recipe"]) for field in fields)
        for run in runs:
            rows += [(cells, "") for cells in _rows([name, str(run["recipe"]["seed"])], [run], sets)]
        if len(runs) > 1:
            rows += [(cells, "bold") for cells in _rows([name, f"n={len(runs)}"], runs, sets)]
    accuracy = sets[0] if len(sets) == 1 else "accuracy"
    shown = table_of(
        ("", "seed", "on", f"{accuracy}\n%", "averaged\n%", "best\n%", "memorised\n%", "noise, %\nest./true", "time"),
        rows,
    )
    title = ", ".join(_named(field, recipes[0]) for field in common)
    caption = what if sets else "No held-out data: the performance on new data is unknown."
    return Group(Text(title), shown, Text(caption))


def table_of(headings: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> Table:
    """Make a table of cells and the style of each row. Columns with nothing but "-" and "" are left out."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    there = [i for i in range(len(headings)) if any(cells[i] not in ("-", "") for cells, _ in rows)]
    for i in there:
        shown.add_column(headings[i], justify="right" if i else "left", no_wrap=i > 0, min_width=6 if i == 0 else None)
    next_styles = [*(style for _, style in rows[1:]), ""]
    for (cells, style), next_style in zip(rows, next_styles, strict=True):
        shown.add_row(*(cells[i] for i in there), style=style, end_section=bool(style) and not next_style)
    return shown


def _rows(named: Sequence[str], runs: Sequence[Mapping[str, Any]], sets: Sequence[str]) -> list[list[str]]:
    """Format the numbers in ASCII, "-" for unknown ones: a row per evaluation set, the other columns in the first."""
    ends = [run["epochs"][-1] for run in runs]
    estimates = (run["noise_rate"] for run in runs)  # None without surveys
    true = (run["true_noise_rate"] for run in runs)
    noise = "/".join(percent(values).split("+")[0] for values in (estimates, true))
    others = [
        percent(end["memorised"] for end in ends),
        "-" if noise == "-/-" else noise,
        clock(sum(run["seconds"] for run in runs) / len(runs)),
    ]
    of_runs = [{summary["set"]: summary for summary in run["summaries"]} for run in runs]
    rows: list[list[str]] = []
    for name in [name for name in sets if any(name in each for each in of_runs)] or [""]:
        found = [each.get(name, {}) for each in of_runs]
        on = name if len(sets) > 1 else "-"
        accuracy = [on, *(percent(each.get(key) for each in found) for key in ("last", "averaged_last"))]
        accuracy.append(percent(each.get(f"{better_best(each)}best") for each in found))
        rows.append(["", "", *accuracy, "", "", ""] if rows else [*named, *accuracy, *others])
    return rows


def better_best(summary: Mapping[str, Any]) -> str:
    """Return the prefix of the weights whose best epoch is better: "averaged_", or "" for the weights themselves."""
    return "averaged_" if summary.get("averaged_best", -1.0) >= summary.get("best", 0.0) else ""


def clock(seconds: float) -> str:
    """Format seconds as minutes or hours.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
