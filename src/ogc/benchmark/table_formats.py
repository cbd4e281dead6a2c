"""Filled tables as terminal output, Markdown, LaTeX and HTML, and the page ``docs/results.md``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from .._require import counted
from .plan import TABLES
from .result import OTHER_DRAWS, Result, path_of
from .table import DEVIATIONS, POINTS, Entry, Filled, Shown, difference, entry_of, fill, paper

if TYPE_CHECKING:
    from rich.console import Group

RANKS = {0: "", 1: "bold", 2: "underline"}
COLUMNS = (
    "The columns are named as in the paper. *Sym* is symmetric noise. *Asymmetric* and *Dependent* are asymmetric and "
    "instance-dependent noise at a rate of 40 %. *Real* stands for human labels: the *worse* labels of CIFAR-10N, or "
    "the *noisy* labels of CIFAR-100N."
)


def terminal(filled: Filled, *, width: int = 100) -> Group:
    """Render a table in ASCII. Columns that do not fit go below it. The last line of a row has the number of runs."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows: list[tuple[str, str, list[Text]]] = []
    for number, (named, _) in enumerate(filled.rows):
        lines = filled.lines(number)
        runs = [cell.runs for cell in lines[0][1]]
        if len(lines) == 1 and any(runs):
            lines.append(("", [Shown("")] * len(runs)))
        for line, cells in lines:
            texts = []
            for cell, count in zip(cells, runs, strict=True):
                text = Text().append(cell.text.replace("±", "+-"), RANKS[cell.rank])
                text.append("*" if cell.misprinted else "")
                text.append("!" if cell.off else "", "bold red")
                text.append(f" ({count})" if line == lines[-1][0] != "ours" and count else "", "dim")
                texts.append(text)
            rows.append((named.label if line == "ours" else f"  {line.removesuffix('erence')}", line, texts))
        if number + 1 == filled.first_extra:
            rows.append(("", "", [Text()] * len(filled.columns)))

    label = max(len(name) for name in (filled.table.heading, *(name for name, _, _ in rows)))
    widths = [max(len(column), *(len(texts[i]) for *_, texts in rows)) for i, column in enumerate(filled.columns)]
    tables: list[Text | Table] = []
    for chosen in _blocks(widths, width - label):
        shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        shown.add_column(filled.table.heading, no_wrap=True, overflow="fold")
        for i in chosen:
            shown.add_column(filled.columns[i], justify="right", no_wrap=True)
        for name, line, texts in rows:
            shown.add_row(Text(name), *(texts[i] for i in chosen), style="dim" if line == "paper" else "")
        tables += [Text(), shown]
    caption = " ".join(filled.legend()).replace("±", "+-")
    return Group(Text(filled.table.title, "bold"), *tables, Text(), Text(caption, "dim"), Text())


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Split columns into blocks that fit into ``room``.

    >>> _blocks([8, 8, 8], 20)
    [[0, 1], [2]]
    """
    blocks: list[list[int]] = [[]]
    for i, width in enumerate(widths):
        if blocks[-1] and sum(widths[j] + 2 for j in blocks[-1]) + width + 2 > room:
            blocks.append([])
        blocks[-1].append(i)
    return blocks


def markdown(filled: Filled) -> str:
    def written(cell: Shown) -> str:
        text = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}[cell.rank].format(cell.text.replace("±", " ± "))
        text += r"\*" if cell.misprinted else ""
        return text + (" !" if cell.off else "") + _runs(cell)

    head = [filled.table.heading, "", *filled.columns]
    rows = [head, ["---", "---", *["---:"] * len(filled.columns)]]
    for row, (named, _) in enumerate(filled.rows):
        for line, cells in filled.lines(row):
            rows.append([named.label if line == "ours" else "", line, *map(written, cells)])
    legend = ["- " + sentence.replace("*", r"\*") for sentence in filled.legend()]
    return "\n".join([*_lines(rows), "", *legend, ""])


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in rows]


def _runs(cell: Shown) -> str:
    return f" ({cell.runs})" if cell.runs else ""


def latex(filled: Filled) -> str:
    """Render a table for a document that uses ``booktabs``."""

    def written(cell: Shown) -> str:
        text = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}[cell.rank].format(_tex(cell.text))
        text += "$^*$" if cell.misprinted else ""
        return text + (r"\,!" if cell.off else "") + _runs(cell)

    lines = []
    for row, (named, _) in enumerate(filled.rows):
        if row:
            rule = row == filled.first_extra
            lines.append(r"    \midrule" if rule else r"    \addlinespace")
        for line, cells in filled.lines(row):
            label = named.label if line == "ours" else rf"\quad {line}"
            lines.append("    " + " & ".join([_tex(label), *map(written, cells)]) + r" \\")
    head = " & ".join(map(_tex, [filled.table.heading, *filled.columns]))
    caption = _tex(f"{filled.table.title}. {' '.join(filled.legend())}").replace("-: ", "--: ")
    return "\n".join(
        [
            r"% \usepackage{booktabs}; a table with six noise types is about 17 cm wide",
            r"\begin{table*}[t]",
            r"\centering",
            r"\footnotesize",
            r"\setlength{\tabcolsep}{3pt}",
            rf"\begin{{tabular}}{{@{{}}l{'r' * len(filled.columns)}@{{}}}}",
            r"    \toprule",
            rf"    {head} \\",
            r"    \midrule",
            *lines,
            r"    \bottomrule",
            r"\end{tabular}",
            rf"\caption{{{caption}}}",
            rf"\label{{table: {filled.table.name}}}",
            r"\end{table*}",
            "",
        ]
    )


def _tex(text: str) -> str:
    for plain, command in (("~", r"$\sim$"), ("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$"), ("&", r"\&"), ("#", r"\#")):
        text = text.replace(plain, command)
    return text if not text.startswith("-") else f"${text}$" if text[1:] else "--"


def html(tables: Sequence[Filled]) -> str:
    """Render a self-contained page. On a phone each row is a card."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = Path(__file__).with_name("tables.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(tables=tables)


def page(results: Sequence[Result], *, folder: Path, beside: Path, other_draws: Sequence[Result] = ()) -> str:
    """Render ``docs/results.md``: all tables with runs, a comparison with the paper, and links to the results.

    :param folder: folder of the results.
    :param beside: folder of the page; links are relative to it.
    :param other_draws: runs on other labels than the authors', from the folder of that name beside ``folder``.
    """
    tables = [fill(table, results, averaged=True) for table in TABLES.values()]
    with_runs = [filled for filled in tables if filled.has_runs]
    place = Path(os.path.relpath(folder, beside)).as_posix()
    parts = [
        "# Results",
        f"This page is generated by `ogc tables --write` from {counted(len(results), 'run')} in [{place}]({place}). "
        "Each run has one JSON file, which also names the commit. The runs by device:",
        "\n".join(_machines(results)),
        COLUMNS,
        *(f"## {filled.table.title}\n\n{markdown(filled)}" for filled in with_runs),
        f"## Comparison with the paper\n\n{_comparison(with_runs, results, place)}",
        *([f"## Runs on other labels\n\n{_other_draws(other_draws, place)}"] if other_draws else []),
        "## Not run\n\n" + "\n".join(f"- `{f.table.name}`: {f.table.title}" for f in tables if not f.has_runs),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _machines(results: Sequence[Result]) -> list[str]:
    """List the devices, with versions and dates of their runs."""
    groups: dict[str, list[str]] = {}
    for result in results:
        made = result.provenance
        groups.setdefault(escape(f"{made.device}, torch {made.torch}", quote=False), []).append(made.date[:10])
    return [
        f"- {counted(len(dates), 'run')} on {machine}, {' to '.join(sorted({min(dates), max(dates)}))}"
        for machine, dates in sorted(groups.items())
    ]


def _comparison(tables: Sequence[Filled], results: Sequence[Result], place: str) -> str:
    """Count the numbers that agree with the paper, and list the others. A number in two tables counts once."""
    entries: dict[tuple[str, str], Entry] = {}
    for entry in (entry for filled in tables for entry in filled.entries):
        if entry.key and entry.verdict:
            entries.setdefault((entry.key, entry.measure), entry)
    rows = [["run", "seeds", "ours", "paper", "difference"], ["---"] * 2 + ["---:"] * 3]
    for (key, measure), entry in sorted(entries.items()):
        if entry.verdict != "agrees":
            seeds = sorted(result.seed for result in results if result.key == key)
            links = ", ".join(f"[{seed}]({path_of(Path(place), key, seed).as_posix()})" for seed in seeds)
            numbers = [entry.show(entry.ours), paper(entry).text, difference(entry).text]
            name = key if measure == "test" else f"{key}, {measure}"
            rows.append([f"`{name}`", links, *(number.replace("±", " ± ") for number in numbers)])
    verdicts = Counter(entry.verdict for entry in entries.values())
    text = (
        f"Of {counted(verdicts.total(), 'number')}, {verdicts['agrees']} agree with the paper, {verdicts['above']} are "
        f"above it and {verdicts['below']} are below it. A number agrees if it is within {POINTS:g} point of the "
        f"paper's, or within {DEVIATIONS:g} of the paper's standard deviations. [The log](log.md) discusses the others:"
    )
    return "\n".join([text, "", *_lines(rows)])


def _other_draws(results: Sequence[Result], place: str) -> str:
    """List the runs on other labels than the authors'."""
    folder = Path(place).parent / OTHER_DRAWS
    rows = [["run", "seed", "ours", "averaged weights", "labels"], ["---"] * 2 + ["---:"] * 2 + ["---"]]
    for result in results:
        link = f"[{result.seed}]({path_of(folder, result.key, result.seed).as_posix()})"
        entry = entry_of(result.key, [result], str(result.summary["set"]))
        numbers = [entry.show(values) if values else "" for values in (entry.ours, entry.averaged)]
        rows.append([f"`{result.key}`", link, *numbers, f"`{(result.noise_sha256 or '')[:8]}`"])
    text = (
        f"{counted(len(results), 'run')} in [{folder.as_posix()}]({folder.as_posix()}) used other labels than the "
        "authors'. They have been replaced by runs on the authors' labels, or used another seed for the noise. These "
        "runs are valid, but no table or count above includes them. The last column is the beginning of the labels' "
        "checksum."
    )
    return "\n".join([text, "", *_lines(rows)])
