"""The table at the end of ``ogc train``, and short names for several runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .drawing import percent

if TYPE_CHECKING:
    from rich.table import Table

BEST = "The best epoch is chosen on the set it is measured on, so its accuracy is too optimistic."


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


def _key(recipe: Mapping[str, Any], fields: Sequence[str]) -> str:
    return json.dumps([recipe.get(field) for field in fields])


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table with one row per run, and one with mean and standard deviation per group of seeds."""
    recipes = [result["recipe"] for result in results]
    common = [field for field in ("name", "network", "noise") if len({recipe[field] for recipe in recipes}) == 1]
    fields = [field for field in distinguishing_fields(recipes) if field not in ("seed", "noise_seed")]
    sets = {result["summary"]["set"] for result in results} - {None}
    held_out = min(sets) if len(sets) == 1 else "held-out"
    epochs = {min(result["recipe"]["report_epochs"], len(result["epochs"])) for result in results}
    over = "mean over the last epochs" if len(epochs) > 1 else f"mean over the last {max(epochs, default=0)} epochs"
    over = "after the last epoch" if epochs == {1} else over
    averaged = any(result["summary"].get("averaged_last") is not None for result in results)
    what = f"Accuracy{' of the weights, and of their running average' if averaged else ''}: {over}. {BEST}"
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        rest = [field for field in result["recipe"] if field not in ("seed", "noise_seed")]
        groups.setdefault(_key(result["recipe"], rest), []).append(result)
    rows = []
    for runs in groups.values():
        name = " ".join(_named(field, runs[0]["recipe"]) for field in fields)
        rows += [([name, str(run["recipe"]["seed"]), *_cells([run])], "") for run in runs]
        if len(runs) > 1:
            rows.append(([name, f"n={len(runs)}", *_cells(runs)], "bold"))
    shown = table_of(
        ("", "seed", f"{held_out}\n%", "averaged\n%", "best\n%", "memorised\n%", "noise, %\nest./true", "time"), rows
    )
    shown.title = ", ".join(_named(field, recipes[0]) for field in common)
    shown.caption = what if sets else "No held-out data: the performance on new data is unknown."
    return shown


def table_of(headings: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> Table:
    """Make a table of cells and the style of each row. Columns with nothing but "-" are left out."""
    from rich import box
    from rich.table import Table

    left: Any = {"title_justify": "left", "caption_justify": "left"}
    shown = Table(**left, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    there = [i for i in range(len(headings)) if any(cells[i] != "-" for cells, _ in rows)]
    for i in there:
        shown.add_column(headings[i], justify="right" if i else "left", no_wrap=i > 0, min_width=6 if i == 0 else None)
    for cells, style in rows:
        shown.add_row(*(cells[i] for i in there), style=style, end_section=bool(style))
    return shown


def _cells(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the numbers of a row in ASCII, "-" for unknown ones."""
    ends = [run["epochs"][-1] for run in runs]
    estimates = (run.get("noise_rate") for run in runs)  # None without surveys, and in results of older versions
    true = ((run["facts"]["noise"] or {}).get("rate_got") for run in runs)
    noise = "/".join(percent(values).split("+")[0] for values in (estimates, true))
    return [
        *(percent(run["summary"].get(name) for run in runs) for name in ("last", "averaged_last", "best")),
        percent(end["memorised"] for end in ends),
        "-" if noise == "-/-" else noise,
        clock(sum(run["seconds"] for run in runs) / len(runs)),
    ]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 run", "2,000 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def clock(seconds: float) -> str:
    """Format seconds as minutes or hours.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
