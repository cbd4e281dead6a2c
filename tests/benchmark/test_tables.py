import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from made_up_results import MADE, made_up
from ogc.benchmark.plan import TABLES, Cell, Printed, find, tuning
from ogc.benchmark.result import OTHER_DRAWS, read_all, write
from ogc.benchmark.table import Entry, fill, ranks
from ogc.benchmark.table_formats import html, latex, markdown, page, terminal
from ogc.cli.app import build
from ogc.training import allow_loss

ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / "benchmarks" / "results" / "runs"


def runs(table, method, noise, *percents):
    allow_loss(method)
    [cell] = find(table, [method], [noise])
    return [made_up(cell, seed, percent) for seed, percent in enumerate(percents, 1)]


def entry(filled, label, column):
    rows = {row.label: entries for row, entries in filled.rows}
    return rows[label][filled.columns.index(column)]


def everything(seeds=1):
    """Make results for every cell of every table."""
    cells = {cell.key: cell for table in TABLES.values() for cell in table.cells}
    return [made_up(cell, seed, 40.0 + seed) for cell in cells.values() for seed in range(1, seeds + 1)]


@pytest.fixture(scope="module")
def all_results():
    return everything(seeds=3)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_mean_deviation_and_difference():
    filled = fill(TABLES["cifar10"], runs("cifar10", "ce", "symmetric:0.2", 81.0, 82.0, 83.0))
    found = entry(filled, "CE", "Sym-20%")
    assert found.mean == pytest.approx(82)
    assert found.paper == Printed(81.25, 0.35)
    assert found.difference == pytest.approx(0.75)
    assert found.show(found.ours) == "82.00±1.00"
    assert found.show(found.averaged) == "84.00±1.00"
    [nearly] = runs("cifar10", "ce", "symmetric:0.2", 81.249)
    assert "+0.00" in markdown(fill(TABLES["cifar10"], [nearly])), "not -0.00"


def test_one_run_has_no_deviation():
    found = entry(fill(TABLES["cifar10"], runs("cifar10", "ce", "symmetric:0.2", 81.0)), "CE", "Sym-20%")
    assert found.show(found.ours) == "81.00"


@pytest.mark.parametrize(
    ("percent", "paper", "verdict"),
    [
        (82.2, Printed(81.25, 0.35), "agrees"),  # more than two deviations, not more than a point
        (82.3, Printed(81.25, 0.35), "above"),
        (80.2, Printed(81.25, 0.35), "below"),
        (46.8, Printed(35.97, 5.46), "agrees"),  # more than a point, not more than two deviations
        (47.0, Printed(35.97, 5.46), "above"),
        (25.0, Printed(35.97, 5.46), "below"),
        (82.1, Printed(81.01), "above"),  # the paper has no deviation
        (82.0, Printed(81.01), "agrees"),
    ],
)
def test_verdict(percent, paper, verdict):
    assert Entry("key", (percent,), (), paper, paper.std).verdict == verdict


def test_no_verdict_without_a_comparison():
    assert Entry("key", (), (), Printed(80.0)).verdict is None
    assert Entry("key", (80.0,)).verdict is None
    assert Entry("key", (5.0,), (), Printed(70.0), measure="minutes").verdict is None
    assert Entry(None, (60.0,), (), Printed(70.0)).verdict is None, "an average"


def test_the_deviation_comes_from_the_table_that_prints_it():
    fixed = runs("cifar10", "phuber_ce", "instance:0.4", 60.0)
    found = entry(fill(TABLES["adjusting"], fixed), "Fixed", "Dependent")
    assert found.paper == Printed(44.24)
    assert found.verdict == "agrees", "the table cifar10 has 44.24 +- 10.21"
    linear = runs("adjusting", "ce+linear", "instance:0.4", 67.0)
    assert entry(fill(TABLES["adjusting"], linear), "Linear", "Dependent").verdict == "above"


def test_our_results_and_the_papers_are_ranked_separately():
    given = [("ce", 90.0), ("gce", 95.0), ("fl+ogc", 93.0), ("mae", 1.0)]
    results = [run for method, percent in given for run in runs("cifar10", method, "symmetric:0.2", percent)]
    filled = fill(TABLES["cifar10"], results)
    column = filled.columns.index("Sym-20%")
    ours = {row.method: entries[column].rank for row, entries in filled.rows if entries[column].rank}
    papers = {row.method: entries[column].paper_rank for row, entries in filled.rows if entries[column].paper_rank}
    assert ours == {"gce": 1, "fl+ogc": 2}
    assert papers == {"ce+ogc": 1, "lc_ce": 2}


def test_ranks():
    assert ranks([None, 3.0]) == [0, 0], "a single value has no rank"
    assert ranks([2.0, 3.0]) == [0, 1]
    assert ranks([2.001, 3.0, 2.004, 1.0]) == [2, 1, 2, 0]
    assert ranks([]) == []


def test_an_average_needs_every_column():
    noises = TABLES["cifar10"].noises
    results = [run for i, noise in enumerate(noises) for run in runs("cifar10", "js", noise, 70.0 + i, 72.0 + i)]
    found = entry(fill(TABLES["cifar10"], results), "JS", "Average")
    assert found.show(found.ours) == "73.50"
    assert found.paper == Printed(71.40)
    assert found.misprinted == pytest.approx(73.07), "the paper's own numbers"
    assert found.difference == pytest.approx(73.5 - 73.07)
    assert entry(fill(TABLES["cifar10"], results[2:]), "JS", "Average").ours == ()


def test_averages_of_the_paper_that_are_not_the_mean_of_their_row():
    wrong = {
        name: [row.label for row, entries in fill(TABLES[name], []).rows if entries[-1].misprinted]
        for name in ("cifar10", "cifar100", "adjusting", "gce")
    }
    assert wrong == {
        "cifar10": ["JS"],
        "cifar100": [row.label for row in TABLES["cifar100"].rows if row.label not in ("CE", "FL")],
        "adjusting": [],
        "gce": [],
    }


def test_other_measures():
    timed = made_up(find("time", ["ce"])[0])
    assert entry(fill(TABLES["time"], [timed]), "CE", "minutes").ours == pytest.approx((3.0,))
    beside = made_up(find("cifar10", ["ce"], ["symmetric:0.5"])[0])
    assert not fill(TABLES["time"], [beside]).has_runs, "it shared the device, so its time does not count"
    web = fill(TABLES["webvision"], [made_up(find("webvision", ["ce"])[0], percent=70.0)])
    assert entry(web, "CE", "ILSVRC2012 Val").ours == pytest.approx((67.0,))
    assert entry(web, "CE", "WebVision Val").ours == pytest.approx((70.0,))
    queue = fill(TABLES["queue"], [made_up(find("queue")[0])])
    assert entry(queue, "256", "variance of tau").mean == pytest.approx(0.1875, rel=1e-3)


# --- extra rows -------------------------------------------------------------------------------------------------------


@pytest.fixture
def custom_loss(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch.nn as nn\n"
        "class MyLoss(nn.CrossEntropyLoss):\n"
        "    def __init__(self, q: float = 0.5): super().__init__()\n"
    )
    return f"{file}:MyLoss"


def test_custom_loss_gets_a_row(custom_loss):
    results = runs("cifar10", custom_loss, "symmetric:0.5", 88.0, 89.0) + runs(
        "cifar10", custom_loss, "human:worse", 80.0
    )
    filled = fill(TABLES["cifar10"], results)
    assert [row.label for row, _ in filled.rows][13:] == ["MyLoss (q 0.5)"], "its default is unknown"
    assert entry(filled, "MyLoss (q 0.5)", "Sym-50%").show((88.0, 89.0)) == "88.50±0.71"
    assert entry(filled, "MyLoss (q 0.5)", "Sym-20%").ours == ()
    text = markdown(filled)
    assert "| MyLoss (q 0.5) | ours | - | 88.50 ± 0.71 (2) | - | - | - | 80.00 (1) | - |" in text
    assert [line for line, _ in filled.lines(13)] == ["ours"], "no line for the paper"
    for other in ("adjusting", "gce", "cifar100", "time", "queue"):
        assert len(fill(TABLES[other], results).rows) == len(TABLES[other].rows)


def test_versions_of_a_custom_loss_get_separate_rows(custom_loss):
    def labels(results):
        return [re.sub(r"[0-9a-f]{8}", "SHA", row.label) for row, _ in fill(TABLES["cifar10"], results).rows[13:]]

    results = runs("cifar10", custom_loss, "symmetric:0.5", 88.0)
    results += [made_up(Cell("cifar10", custom_loss, "symmetric:0.5", {"q": q})) for q in (0.7, 0.7000001)]
    assert labels(results) == ["MyLoss (q 0.5)", "MyLoss (q 0.7)", "MyLoss (q 0.7000001)"]
    file = Path(custom_loss.rpartition(":")[0])
    file.with_name("copy of it.py").write_bytes(file.read_bytes())
    copied = runs("cifar10", f"{file.parent}/copy of it.py:MyLoss", "symmetric:0.5", 88.0)
    assert labels(results[:1] + copied) == ["MyLoss (copy-of-it.py, q 0.5)", "MyLoss (mine.py, q 0.5)"]
    file.write_text(file.read_text() + "# another")
    assert labels(results[:1] + runs("cifar10", custom_loss, "symmetric:0.5", 88.0)) == ["MyLoss (SHA, q 0.5)"] * 2


def test_label_has_parameters_that_differ_from_the_defaults():
    results = [
        made_up(Cell("cifar10", "sce+ogc", "symmetric:0.5", changes))
        for changes in ({}, {"epsilon0": 7.0}, {"epsilon": 0.5, "every": 8})
    ]
    labels = [row.label for row, _ in fill(TABLES["cifar10"], results).rows][13:]
    assert labels == ["SCE+OGC", "SCE+OGC (epsilon 0.5, every 8)", "SCE+OGC (epsilon0 7)"]


def test_missing_number_is_not_shown_as_not_run():
    results = [made_up(cell) for cell in find("queue")]
    [never] = [result for result in results if result.recipe.parameters["queue_size"] == 256][:1]
    epochs = tuple(replace(epoch, tau=None) for epoch in never.epochs)
    others = [result for result in results if result.key != never.key]
    text = markdown(fill(TABLES["queue"], [*others, never.model_copy(update={"epochs": epochs})]))
    assert "not run" not in text
    assert "| 256 | ours | 50.00 (1) | none |" in text.replace("**", "")
    assert "None: the run did not record this number." in text


def test_results_that_get_no_row():
    results = [
        made_up(tuning("cifar10", "ce+ogc")[0]),  # known, with another parameter
        made_up(Cell("cifar10", "sce+ogc", "symmetric:0.5", {"epochs": 2})),  # cut short
        made_up(Cell("cifar10", "gce+ogc", "symmetric:0.5")),  # of another table
        made_up(Cell("cifar10", "sce+ogc", "symmetric:0.5", alone=True)),
        made_up(Cell("cifar100", "sce+ogc", "symmetric:0.5")),
    ]
    assert len(fill(TABLES["cifar10"], results).rows) == 13
    assert [row.label for row, _ in fill(TABLES["cifar100"], results).rows][13:] == ["SCE+OGC"]


# --- formats ----------------------------------------------------------------------------------------------------------


def on_screen(filled, width=100):
    console = Console(width=width, file=io.StringIO(), highlight=False, color_system=None)
    console.print(terminal(filled, width=width))
    return console.file.getvalue()


@pytest.mark.parametrize("name", TABLES)
def test_tables_fit_a_terminal_of_100_columns(name, all_results):
    text = on_screen(fill(TABLES[name], all_results, averaged=True))
    assert max(map(len, text.splitlines())) <= 100
    text.replace("─", "-").encode("ascii")
    for row in TABLES[name].rows:
        assert re.search(rf"^{re.escape(row.label)} ", text, re.M), row.label
    assert " (3)" in text
    blocks = 2 if name in ("default", "plus") else 1  # too wide with deviations
    assert text.count(f"\n{TABLES[name].heading}") == blocks, "side by side"


@pytest.mark.parametrize("width", [80, 60, 40])
def test_columns_wrap_on_a_narrow_terminal(all_results, width):
    text = on_screen(fill(TABLES["cifar10"], all_results), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    heads = [line for line in text.splitlines() if line.startswith("method")]
    assert len(heads) > 1
    assert "".join(heads).replace("method", "").split() == [
        "Sym-20%",
        "Sym-50%",
        "Sym-80%",
        "Asymmetric",
        "Dependent",
        "Real",
        "Average",
    ]
    assert "44.24+-10.21" in text
    assert text.count("PHuber-CE") == len(heads)


def test_terminal():
    results = runs("cifar10", "ce", "symmetric:0.5", 49.0, 50.0) + runs("cifar10", "gce", "symmetric:0.5", 85.0)
    lines = on_screen(fill(TABLES["cifar10"], results)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("CE "))
    assert [line.split() for line in lines[at : at + 3]] == [
        ["CE", "-", "49.50+-0.71", "-", "-", "-", "-", "-"],
        ["paper", "81.25+-0.35", "51.58+-0.41", "35.97+-5.46", "76.20+-0.38", "60.37+-0.68", "64.43+-0.24", "61.63"],
        ["diff", "-2.08!", "(2)"],
    ]
    text = " ".join(" ".join(lines).split())
    assert "-: not run." in text
    assert "!: differs from the paper by more than 1 point and by more than 2 of its standard deviations" in text
    assert "averages are not marked" in text


def test_terminal_shows_best_bold_and_second_underlined():
    console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(terminal(fill(TABLES["cifar10"], [])))
    text = console.file.getvalue()
    assert "\x1b[1;2m91.80+-0.13\x1b[0m" in text
    assert "\x1b[2;4m91.69+-0.08\x1b[0m" in text


def test_markdown():
    results = runs("cifar10", "ce", "symmetric:0.5", 49.0, 50.0) + runs("cifar10", "gce", "symmetric:0.5", 85.0)
    results += runs("cifar10", "mae", "symmetric:0.5", 75.0)
    text = markdown(fill(TABLES["cifar10"], results, averaged=True))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {10}
    assert "| CE | ours | - | 49.50 ± 0.71 (2) | - | - | - | - | - |" in table
    assert "|  | averaged | - | 51.50 ± 0.71 | - | - | - | - | - |" in table
    assert "|  | difference |  | -2.08 ! |  |  |  |  |  |" in table
    assert "| GCE | ours | - | **85.00** (1) | - | - | - | - | - |" in table
    assert "| MAE | ours | - | <u>75.00</u> (1) | - | - | - | - | - |" in table
    assert "| FL | ours | - | - | - | - | - | - | - |" in table
    assert r"<u>91.69 ± 0.08</u>" in text
    assert r"71.40\*" in text


def test_plus_table_reports_the_averaged_weights():
    papers, ours = (
        [made_up(cell, percent=80.0 + i) for i, cell in enumerate(cells)] for _, cells in TABLES["plus"].by_row
    )
    filled = fill(TABLES["plus"], papers + ours, averaged=True)
    assert [line for line, _ in filled.lines(0)] == ["ours", "averaged"]
    assert [line for line, _ in filled.lines(1)] == ["ours"]
    assert entry(filled, "CE+OGC", "Sym-20%").ours == (80.0,)
    assert entry(filled, "CE+OGC plus", "Sym-20%").ours == (82.0,), "made-up averages are two points above"
    assert entry(filled, "CE+OGC plus", "Random 1").mean == pytest.approx(89.0)
    assert entry(filled, "CE+OGC plus", "Average").mean == pytest.approx(84.5), "over the paper's six noises"
    text = markdown(filled)
    assert "Average: the mean of Sym-20%, Sym-50%, Sym-80%, Asymmetric, Dependent, Real." in text
    assert "Plus does not follow the paper's protocol" in text
    full_page = page(papers + ours, folder=Path("a/results"), beside=Path("a/docs"))
    assert "`cifar10-plus-" not in full_page.split("## Comparison with the paper")[1]


def test_runs_on_another_draw_fill_no_cell():
    [cell] = find("cifar10", ["ce"], ["instance:0.4"])
    other = made_up(cell, percent=61.25, noise_sha256="9c" * 32)
    assert entry(fill(TABLES["cifar10"], [other]), "CE", "Dependent").ours == ()
    text = page([], folder=Path("a/runs"), beside=Path("a/docs"), other_draws=[other])
    assert f"| `{cell.key}` | [1](../other-draws/{cell.key}-1.json) | 61.25 | 63.25 | `9c9c9c9c` |" in text
    assert "## Runs on other labels" not in page([], folder=Path("a/runs"), beside=Path("a/docs"))


def test_legend_explains_only_what_occurs():
    assert "not run" not in markdown(fill(TABLES["gce"], everything()))
    empty = markdown(fill(TABLES["digits"], []))
    assert "paper" not in empty
    assert "old" not in empty
    assert "underlined" not in markdown(fill(TABLES["gce"], [])), "two rows have no second place"


@pytest.mark.parametrize("name", TABLES)
def test_latex_is_well_formed(name, all_results, custom_loss):
    results = all_results + (runs("cifar10", custom_loss, "symmetric:0.5", 88.0) if name == "cifar10" else [])
    filled = fill(TABLES[name], results, averaged=True)
    text = latex(filled)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(filled.columns)}
    assert text.count("{") == text.count("}")
    assert not re.search(r"(?<!\\)[%_#±]", text.partition("\n")[2])
    assert text.count("$") % 2 == 0
    for kind in ("table*", "tabular"):
        assert text.count(rf"\begin{{{kind}}}") == text.count(rf"\end{{{kind}}}") == 1
    assert [text.count(rf"\{rule}rule") for rule in ("top", "bottom")] == [1, 1]
    assert text.count(r"\midrule") == (2 if name == "cifar10" else 1), "a rule above the rows that are not in the paper"


def test_latex_cells():
    text = latex(fill(TABLES["cifar10"], runs("cifar10", "ce", "symmetric:0.5", 49.0, 50.0)))
    assert r"CE & -- & 49.50$\pm$0.71 (2) & -- & -- & -- & -- & -- \\" in text
    assert r"\quad difference &  & $-2.08$\,! &  &  &  &  &  \\" in text
    assert r"\textbf{91.80$\pm$0.13}" in text
    assert r"\underline{91.69$\pm$0.08}" in text
    assert "Sym-20\\%" in text
    assert "--: not run" in text


class Page(HTMLParser):
    """Collect the links and the text of the cells, and check that tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells, self.links = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if {"td", "th"} & set(self.open):
            self.cells[-1] += text


def test_html(custom_loss):
    results = runs("cifar10", "ce", "symmetric:0.5", 49.0, 50.0) + runs("cifar10", custom_loss, "symmetric:0.5", 85.0)
    text = html([fill(TABLES["cifar10"], results), fill(TABLES["gce"], results)])
    page = Page(text)
    assert page.links == ["data:,"], "it needs no other file"
    assert {"49.50±0.71 (2)", "-2.08 !", "91.80±0.13", "85.00 (1)", "71.40 *"} <= set(page.cells)
    assert '<span class="off">-2.08 !</span>' in text
    assert "<b>91.80±0.13</b>" in text
    assert "<u>91.69±0.08</u>" in text
    assert set(re.findall(r"font-weight: \w+", text)) == {"font-weight: 400"}, "only the best numbers are bold"
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert text.count("<table>") == 2
    assert text.count('<tbody class="more"') == 1
    assert "http" not in text


def test_html_escapes_names(custom_loss):
    filled = fill(TABLES["cifar10"], runs("cifar10", custom_loss, "symmetric:0.5", 85.0))
    row, entries = filled.rows[-1]
    evil = "<script>alert(1)</script>"
    changed = type(filled)(filled.table, filled.columns, (*filled.rows[:-1], (row._replace(label=evil), entries)))
    assert evil not in html([changed])


# --- results page and command -----------------------------------------------------------------------------------------


def test_results_page_is_up_to_date():
    """To update it: ``ogc tables --write docs/results.md``."""
    results, complaints = read_all(RUNS)
    assert complaints == []
    path = ROOT / "docs" / "results.md"
    others, complaints = read_all(RUNS.parent / OTHER_DRAWS)
    assert complaints == []
    fresh = page(results, folder=RUNS, beside=path.parent, other_draws=others)
    assert path.read_text() == fresh, "ogc tables --write docs/results.md"


def test_results_page_lists_each_difference_from_the_paper_once():
    results = runs("cifar10", "ce+ogc", "symmetric:0.5", 85.0, 85.2) + runs(
        "cifar10", "gce", "symmetric:0.5", 80.0, 80.2
    )
    results += [*runs("adjusting", "ce+linear", "symmetric:0.5", 85.0), made_up(tuning("cifar10", "ce+ogc")[0])]
    text = page(results, folder=Path("a/results"), beside=Path("a/docs"))
    verdicts = text.split("## Comparison with the paper")[1].split("## ")[0]
    assert "Of 3 numbers, 1 agree with the paper, 1 are above it and 1 are below it." in verdicts
    [above, below] = verdicts.split("| ---: |\n")[1].strip().splitlines()
    assert above.endswith("| 85.00 | 81.01 | +3.99 |"), "runs that agree are only in the tables"
    assert below == (
        "| `cifar10-gce-symmetric-0.5` | [1](../results/cifar10-gce-symmetric-0.5-1.json), "
        "[2](../results/cifar10-gce-symmetric-0.5-2.json) | 80.10 ± 0.14 | 85.36 ± 0.20 | -5.26 |"
    )
    assert "- 6 runs on a device, torch 2.6.0, 2026-01-02\n" in text
    evil = made_up(find("cifar10", ["gce"])[0], provenance=MADE.model_copy(update={"device": "<script>"}))
    assert "<script>" not in page([evil], folder=Path("a/results"), beside=Path("a/docs"))
    assert "## CIFAR-10, test accuracy" in text
    assert "## Ways to adjust tau" in text
    assert "- `cifar100`: CIFAR-100, test accuracy" in text.split("## Not run")[1]


def test_results_page_names_sets_other_than_the_test_set():
    text = page([made_up(find("webvision", ["ce"])[0])], folder=Path("a/results"), beside=Path("a/docs"))
    verdicts = text.split("## Comparison with the paper")[1].split("## ")[0]
    names = re.findall(r"^\| `(.*?)` \|", verdicts, re.MULTILINE)
    assert names
    assert all(name.endswith((", val", ", ilsvrc")) for name in names), names


def ogc(*arguments):
    return CliRunner().invoke(build(), ["tables", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path):
    for result in runs("cifar10", "ce", "symmetric:0.5", 49.0, 50.0):
        write(tmp_path / "results", result)
    return tmp_path / "results"


def test_command_prints_and_writes_every_format(folder, tmp_path):
    shown = ogc("cifar10", "--results", folder)
    assert shown.exit_code == 0
    assert "CIFAR-10, test accuracy" in shown.stdout
    for form, words in (("markdown", "49.50 ± 0.71 (2)"), ("latex", r"49.50$\pm$0.71 (2)"), ("html", "49.50±0.71")):
        out = tmp_path / form
        written = ogc("cifar10", "gce", "--results", folder, "--format", form, "--out", out)
        assert written.stdout.strip() == str(out)
        assert words in out.read_text()
        printed = ogc("cifar10", "gce", "--results", folder, "--format", form)
        assert printed.stdout == out.read_text()
    out = tmp_path / "screen.txt"
    assert ogc("cifar10", "--results", folder, "--averaged", "--out", out).stdout.strip() == str(out)
    assert re.search(r"averaged +- +51.50\+-0.71", out.read_text())


@pytest.mark.parametrize(("suffix", "words"), [("md", "| method |"), ("tex", r"\begin{table"), ("HTML", "<!DOCTYPE")])
def test_file_suffix_selects_the_format(folder, tmp_path, suffix, words):
    out = tmp_path / f"x.{suffix}"
    assert ogc("cifar10", "--results", folder, "--out", out).exit_code == 0
    assert words in out.read_text()


def test_default_is_all_tables_with_runs(folder):
    text = ogc("--results", folder, "--format", "markdown").stdout
    assert text == ogc("cifar10", "--results", folder, "--format", "markdown").stdout


def test_table_without_runs_is_an_error_unless_all_rows_are_requested(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = "benchmarks/results/runs has no runs of gce. To make them: ogc bench run gce. To read another folder: "
    refused = ogc("gce", "--out", "gce.md")
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", f"{missing}--results.\n")
    assert not Path("gce.md").exists()
    some = ogc("gce", "cifar10", "--results", folder)
    assert some.exit_code == 0
    assert f"Note: {folder} has no runs of gce. To make them: ogc bench run gce --out {folder}." in some.stderr
    assert TABLES["gce"].title not in some.stdout
    shown = ogc("gce", "--format", "markdown", "--all")
    assert shown.exit_code == 0
    assert "| GCE | ours | - | - |" in shown.stdout
    assert shown.stderr == f"Note: {missing}--results.\n"


def test_rows_without_runs_are_named_in_the_caption(folder):
    shown = ogc("cifar10", "--results", folder, "--format", "markdown").stdout
    rows = [line.split(" | ")[0] for line in shown.splitlines() if " | ours | " in line]
    assert rows == ["| CE"]
    assert "Not run: FL, MAE, GCE, SCE" in shown
    everything = ogc("cifar10", "--results", folder, "--format", "markdown", "--all").stdout
    assert everything.count(" | ours | ") == len(TABLES["cifar10"].rows)
    assert "Not run" not in everything


def test_extra_rows_stay_below_the_papers_rows(tmp_path):
    cell = find("cifar10", ["ce"], ["symmetric:0.5"])[0]
    write(tmp_path, made_up(cell))
    write(tmp_path, made_up(replace(cell, method="taylor_ce+ogc")))
    filled = fill(TABLES["cifar10"], read_all(tmp_path)[0])
    assert filled.first_extra == len(TABLES["cifar10"].rows)
    assert filled.without_empty_rows().first_extra == 1


def test_no_note_if_there_are_runs(folder):
    assert ogc("cifar10", "--results", folder).stderr == ""


def test_command_writes_the_results_page(folder, tmp_path):
    out = tmp_path / "docs" / "page.md"
    out.parent.mkdir()
    assert ogc("--results", folder, "--write", out).stdout.strip() == f"{out}: 2 runs"
    assert out.read_text() == page(read_all(folder)[0], folder=folder, beside=out.parent)


def test_invalid_files_are_reported(folder):
    (folder / "broken.json").write_text("{")
    write(folder, made_up(find("cifar10", ["gce"], ["symmetric:0.5"])[0], noise_sha256="ab" * 32))
    shown = ogc("cifar10", "--results", folder)
    assert shown.exit_code == 0
    assert re.search(r"Note: .*broken.json cannot be used: ", shown.stderr)
    assert "The tables leave out 1 run on cifar10 with symmetric:0.5: trained on other labels" in shown.stderr


LEFT_OUT = ", except trial runs (other settings, such as --epochs or --set), which tables leave out. To make them:"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("cifar",), 2, "There is no table named 'cifar'. Did you mean cifar10"),
        (("--format", "htm"), 2, "There is no format 'htm'. Did you mean html?"),
        (("cifar10", "--write", "x.md"), 2, "`--write` should be used alone"),
        (("--write", "--averaged"), 2, "`--write` should be a file that ends in .md"),
        (("cifar10", "--results", "nowhere"), 1, "nowhere has no runs of cifar10. To make them: ogc bench run cifar10"),
        ((), 1, "benchmarks/results/runs has no runs of any table. To make them: ogc bench run cifar10. To read"),
        (("--results", "."), 1, ". has no runs of any table."),
        (("--results", ".", "--write", "page.md"), 1, ". has no runs of any table."),
        (("--results", "trials"), 1, f"trials has no runs of any table{LEFT_OUT} ogc bench run cifar10 --out trials."),
        (("digits", "--results", "trials"), 1, f"has no runs of digits{LEFT_OUT} ogc bench run digits --out trials."),
        (("gce", "--results", "trials"), 1, "trials has no runs of gce. To make them: ogc bench run gce --out trials."),
        (("gce", "--all", "--format", "html", "--out", "no/where.html"), 1, "Cannot use no/where.html: No such file"),
        (
            ("gce", "--out", "x.pdf"),
            2,
            "`--out` should be a file that ends in one of .txt, .md, .tex, .html, unless --format",
        ),
        (("gce", "--all", "--out", "no/where.txt"), 1, "Cannot use no/where.txt: No such file"),
    ],
)
def test_error_is_one_line(tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    write(Path("trials"), made_up(replace(find("digits", ["ce"])[0], changes={"epochs": 2})))
    ended = ogc(*arguments)
    assert ended.exit_code == code
    assert not Path("page.md").exists()
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_help_names_every_table():
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", ogc("--help").stdout).split())
    assert f"{', '.join(TABLES)}. [default: (all that have runs)]" in text
