"""The documentation site builds without warnings, works offline and fits a phone, and its code runs."""

import html
import importlib
import inspect
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.main import get_command

from children import fork
from shown import ASIDE, WITH_ASIDE, build, missing

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RUN = [*sorted(DOCS.glob("guide/*.md")), DOCS / "integrations.md"]  # test_docs.py tests method.md and others


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. Zensical writes beside its configuration, so it gets a copy of both."""
    pytest.importorskip("zensical", reason="the site is built by Zensical: pip install 'torch-ogc[docs]'")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for name in ("docs_extensions.py", "src"):
        (folder / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return folder / "site"


def _is_module(name):
    return (ROOT / "src" / f"{name.replace('.', '/')}.py").exists()


def pages(site):
    return {str(path.relative_to(site)): path.read_text() for path in site.glob("**/*.html")}


@pytest.mark.slow
def test_every_document_is_a_page(site):
    written = {str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.glob("**/*.md")}
    assert pages(site).keys() == written | {"404.html"}
    home = pages(site)["index.html"]
    for name in written - {"index.html"}:
        assert re.search(rf'href="(\./)?{name}"', home), "in the navigation"


@pytest.mark.slow
def test_pages_load_no_external_resources(site):
    for name, text in pages(site).items():
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", text):
            if 'rel="canonical"' not in tag:
                assert not re.search(r"(?:src|href)=\"?(?:https?:)?//", tag), (name, tag)
    for path in site.glob("**/*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", path.read_text()), path.name


@pytest.mark.slow
def test_links_out_of_the_docs_are_text(site):
    text = pages(site)["training.html"]
    assert "loop.py" in text
    assert "../src" not in text
    assert "../benchmarks" not in re.sub(r">[^<]*<", "><", pages(site)["results.html"]), "in a link"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["losses", "clipping", "noise", "data", "training", "audit", "plot"])
def test_every_public_class_and_function_is_in_the_reference(module, site):
    text = "".join(text for name, text in pages(site).items() if name.startswith("api/"))
    of = importlib.import_module(f"ogc.{module}")
    names = getattr(of, "__all__", None) or [
        name for name, value in vars(of).items() if getattr(value, "__module__", "") == of.__name__ and name[0] != "_"
    ]
    public = [name for name in names if inspect.isclass(getattr(of, name)) or inspect.isfunction(getattr(of, name))]
    assert public
    for name in set(public) - {"OGC"}:
        where = {
            f"ogc.{module}.{name}",
            f"{getattr(of, name).__module__}.{name}",
        }  # in the package or in its module
        shown = set(re.findall(rf'id="(ogc\.[\w.]*\b{name})" class="doc', text))
        assert where & shown - {value for value in where if _is_module(value)}, name
    assert 'id="ogc.OGC"' in text


@pytest.mark.slow
def test_adapters_are_in_the_reference(site):
    text = pages(site)["api/integrations.html"]
    for path in (ROOT / "src" / "ogc" / "integrations").glob("[!_]*.py"):
        assert f'id="ogc.integrations.{path.stem}.' in text, path.stem


@pytest.mark.slow
def test_cli_page_has_every_command_and_option(site):
    text = html.unescape(pages(site)["cli.html"])
    sections = dict(re.findall(r'<h[23] id="([\w-]+)">(.*?)(?=<h[23] id=|</article>)', text, re.S))

    def check(command, path):
        subcommands = getattr(command, "commands", {})
        for name, subcommand in subcommands.items():
            check(subcommand, path if name == path[-1] else [*path, name])
        if not subcommands:
            section = sections["-".join(path)]
            for parameter in command.params:
                options = [option for option in parameter.opts if option.startswith("--")]
                assert all(f"<code>{option}" in section for option in options), (path, options)
                assert " ".join((parameter.help or "").split()) in section, (path, parameter.name)

    check(get_command(build()), ["ogc"])
    assert {"ogc-demo", "ogc-train", "ogc-audit", "ogc-audit-apply", "ogc-bench-run"} <= sections.keys()
    assert "ogc train digits --noise symmetric:0.5" in re.sub(r"<[^>]+>", "", sections["ogc-train"]), "an example"


@pytest.mark.slow
def test_docstring_markup_is_rendered(site):
    for name, text in pages(site).items():
        if name.startswith("api/"):
            assert not re.search(r":(?:class|func|meth|mod|param|returns|raises)[: ]", text), name
            assert "<blockquote>" not in text, "a doctest rendered as a quotation"
    assert "&gt;&gt;&gt; " in pages(site)["api/clipping.html"]


# --- content of the pages --------------------------------------------------------------------------------------------


def blocks_of(path):
    """Return the Python blocks of a page, each with the number of lines before it."""
    text = path.read_text()
    return [(text[: found.start(1)].count("\n"), found[1]) for found in re.finditer(r"```python\n(.*?)```", text, re.S)]


SHORTER = {  # replacements for slow code
    "OGCClassifier(random_state=0)": "OGCClassifier(max_iter=5, random_state=0)",
    "for epoch in range(50):": "for epoch in range(5):",
}


def run(script, text, folder):
    (folder / script).write_text(text)
    process = fork(folder / script, cwd=folder, env={"HF_HUB_OFFLINE": "1"})
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in RUN if blocks_of(path)], ids=lambda path: path.stem)
def test_the_code_on_a_page_runs(path, tmp_path):
    """Run all blocks in one process, with the page's line numbers. Code for timm runs by itself, from ``ASIDE``."""
    lines, skipped = [], []
    for start, block in blocks_of(path):
        absent = missing(block)
        if absent == ["timm"] and ASIDE.is_dir():
            run("aside.py", WITH_ASIDE + block, tmp_path)
        elif absent:
            skipped.append(f"line {start + 1} needs {', '.join(absent)}, which is not installed")
        else:
            for long, short in SHORTER.items():
                block = block.replace(long, short)
            lines += [""] * (start - len(lines)) + block.splitlines()
    run(f"{path.stem}.py", "\n".join(lines), tmp_path)
    if skipped:
        pytest.skip("; ".join(skipped))


def test_numbers_in_the_choosing_guide_match_the_recorded_ones():
    text = " ".join((DOCS / "guide" / "choosing.md").read_text().split())
    results = (DOCS / "results.md").read_text()
    readme, accuracy = (ROOT / "README.md").read_text(), {}
    for name in ("CE", "GCE", "NCE+NNCE", "SCE", "PHuber-CE", "CE+OGC", "FL+OGC"):
        [ours] = re.findall(rf"^\| {re.escape(name)} \| ours \| (.*) \|$", results.split("\n## ")[1], re.M)
        found, _, mean = re.sub(r"\*|</?u>| \(1\)", "", ours).rpartition(" | ")
        assert f"| {name} | {found} |" in text, name
        assert (f"\n| {name} | {found} | {mean} |\n" in readme) is (name in ("CE", "SCE", "CE+OGC", "FL+OGC")), name
        accuracy[name] = [math.nan if cell == "-" else float(cell) for cell in found.split(" | ")]
    [beyond] = [part for part in results.split("\n## ") if part.startswith("Beyond the paper: CIFAR-10,")]
    [cells] = re.findall(r"^\| CE\+OGC plus \| ours \| (.*) \|$", beyond, re.M)
    *plus, _, _, mean = re.sub(r"\*|</?u>| \(1\)", "", cells).split(" | ")
    assert f"\n| CE+OGC plus | {' | '.join(plus)} | {mean} |\n" in readme
    sym20, sym50, sym80, asymmetric, _, human = range(6)
    _, gce, *_, ce_ogc, fl_ogc = accuracy.values()
    ahead_by = [fl_ogc[noise] - ce_ogc[noise] for noise in (human, asymmetric)]
    assert "under human noise by {:.1f} points and under asymmetric noise by {:.1f}, on one".format(*ahead_by) in text
    assert f"Under symmetric 20 % noise, FL+OGC is {ce_ogc[sym20] - fl_ogc[sym20]:.1f} points behind CE+OGC" in text
    assert max(abs(gce[noise] - ce_ogc[noise]) for noise in (sym20, sym50, human)) < 1
    behind = f"is {ce_ogc[asymmetric] - gce[asymmetric]:.1f} points behind"
    assert f"it {behind}" in text
    assert f"On CIFAR-10 with asymmetric noise, GCE {behind} CE+OGC." in text
    runs = ROOT / "benchmarks" / "results" / "runs"
    files = [json.loads((runs / f"cifar10-{name}-asymmetric-0.4-1.json").read_text()) for name in ("gce", "ce_ogc")]
    kept = [file["epochs"][-1]["memorised"] for file in files]
    shares = "agrees with {:.0%} of the wrong labels at the end of training ({:.0%} with CE+OGC)".format(*kept)
    assert shares.replace("%", " %") in text
    ahead = {}
    for noise in ("symmetric-0.5", "asymmetric-0.4", "human-worse", "instance-0.4", "symmetric-0.8"):
        ahead[noise] = last(f"runs/cifar10-ce_ema-{noise}") - last(f"runs/cifar10-ce_ogc-{noise}")
    *near, instance, slow = ahead.values()
    assert max(map(abs, near)) < 1
    behind = f"{-instance:.1f} points behind under instance-dependent noise, and {-slow:.1f} under symmetric 80 %"
    assert f"It is {behind}" in text
    under_80 = [method[sym80] for method in accuracy.values()]
    assert f"the methods in the table reach {min(under_80):.0f} to {max(under_80):.0f} %" in text
    draws = (
        last(f"{folder}/cifar10-{name}-symmetric-0.8")
        for name in ("ce", "gce", "phuber_ce", "ce_ogc", "fl_ogc")
        for folder in ("runs", "other-draws")
    )
    both = "{:.0f} and {:.0f} %"
    reached = f"CE reached {both}, GCE {both}, PHuber-CE {both}, CE+OGC {both}, and FL+OGC {both}"
    assert reached.format(*draws) in text


def test_numbers_for_cifar100_match_the_recorded_ones():
    readme, text = ((ROOT / name).read_text() for name in ("README.md", "docs/guide/choosing.md"))
    columns = "symmetric-0.5", "blocks-0.4", "human-noisy"
    rows = {"CE": "ce", "GCE": "gce", "CE+OGC": "ce_ogc", "CE+OGC plus": "plus-ce_ogc"}
    found = {
        shown: [last(f"runs/cifar100-{name}-{noise}", "plus" in name) for noise in columns]
        for shown, name in rows.items()
    }
    for shown, values in found.items():
        cells = " | ".join(f"{value:.2f}" for value in (*values, sum(values) / len(values)))
        assert f"\n| {shown} | {cells} |\n" in readme
    ce, _, ogc, plus = (values[1] for values in found.values())
    assert f"{ce - ogc:.1f} points behind it here" in readme
    assert f"is {ce - ogc:.1f} points behind CE. `cifar100-plus` is {plus - ogc:.1f} points ahead of CE+OGC" in text
    file = ROOT / "benchmarks/results/runs/cifar100-ce_ogc-blocks-0.4-1.json"
    assert f"memorises {json.loads(file.read_text())['epochs'][-1]['memorised']:.0%}".replace("%", " %") in text


def last(run: str, averaged: bool = False) -> float:
    """Return the accuracy of a recorded run in percent."""
    summary = json.loads((ROOT / "benchmarks" / "results" / f"{run}-1.json").read_text())["summary"]
    return 100 * summary["averaged_last" if averaged else "last"]


def test_numbers_for_gce_match_the_recorded_ones():
    import tables

    text = " ".join((DOCS / "guide" / "choosing.md").read_text().split())
    result = json.loads(tables.RESULTS.read_text())["rows"]
    noisy = [row for row in result if not row["noise"].endswith(" 0%")]
    clean = [row for row in result if row["noise"].endswith(" 0%")]
    shown = "CE", "GCE 0.7", "GCE 0.9", "OGC, default"
    settings = sorted({(row["optimizer"], row["passes"]) for row in noisy})
    assert len(settings) == 6
    for optimizer, passes in settings:
        means = [f"{tables.mean(noisy, method, optimizer=optimizer, passes=passes):.1f}" for method in shown]
        assert f"| {optimizer}, {passes} passes | {' | '.join(means)} |" in text.replace("**", ""), (optimizer, passes)

    def ahead(rows, method, other, **where):
        return tables.mean(rows, method, **where) - tables.mean(rows, other, **where)

    by_adamw, by_sgd = (
        ahead(noisy, "GCE 0.9", "OGC, default", optimizer=optimizer, passes=100)
        for optimizer in ("AdamW 1e-3", "SGD 0.1")
    )
    assert f"of AdamW at 1e-3, GCE with q = 0.9 is {by_adamw:.1f} points ahead of OGC. With 100 passes of SGD" in text
    assert f"at 0.1, it is {by_sgd:.1f} points ahead." in text
    by_set = {name: ahead(noisy, "GCE 0.9", "OGC, default", set=name, passes=100) for name in tables.SETS}
    [first, second] = sorted(((by, name) for name, by in by_set.items() if by > -0.05), reverse=True)
    assert f"GCE is {first[0]:.1f} points ahead on {first[1]} and {second[0]:.1f} on {second[1]}." in text
    assert len(tables.SETS) - 2 == 11
    assert "OGC is ahead on the other eleven sets." in text
    short = ahead(noisy, "CE", "GCE 0.9", optimizer="SGD 0.1", passes=10)
    slow = ahead(noisy, "CE", "GCE 0.9", optimizer="AdamW 1e-4", passes=100)
    assert f"it is {short:.1f} points behind CE, and with 100 passes of AdamW at 1e-4 it is {slow:.1f}" in text
    behind = [ahead(clean, "CE", method) for method in ("GCE 0.9", "OGC, default")]
    assert "GCE is {:.1f} points behind CE on average, while OGC is {:.1f} points behind".format(*behind) in text


def test_numbers_for_rare_classes_match_the_recorded_ones():
    import rare_classes as benchmark

    rows = json.loads(benchmark.RESULTS.read_text())["rows"]

    def lead(noise, **where):
        """Return by how many points the default is ahead of CE."""
        ours, ce = (
            benchmark.mean(rows, "balanced", noise=noise, method=method, **where) for method in ("OGC, default", "CE")
        )
        return ours - ce

    def sets_ahead(noise):
        return sum(lead(noise, set=f"imbalanced {name}") >= 0.05 for name in benchmark.SETS)

    clean, low, middle, high = (f"symmetric {rate}%" for rate in (0, 5, 10, 20))
    text = " ".join((DOCS / "tables.md").read_text().split())
    assert f"the default is ahead of CE by {lead(middle):.1f} and {lead(high):.1f} points on average" in text
    assert f"It is ahead on {sets_ahead(middle)} and {sets_ahead(high)} of the 14 data sets." in text
    assert f"the default is {lead(low):.1f} points ahead on average, and ahead on {sets_ahead(low)} data sets." in text
    by_set = {name: lead(clean, set=f"imbalanced {name}") for name in benchmark.SETS}
    worst = min(by_set, key=by_set.get)
    assert max(by_set.values()) < 0.05
    assert f"it is {-lead(clean):.1f} points behind CE, and level at best. It is furthest behind on `{worst}`" in text
    assert f"`{worst}` ({-by_set[worst]:.1f} points)" in text
    guide = " ".join((DOCS / "guide" / "choosing.md").read_text().split())
    assert f"CE+OGC is ahead of CE by {lead(middle):.1f} and {lead(high):.1f} points with 10 and 20 % wrong" in guide
    assert guide.count(f"{-lead(clean):.1f} points ") == 2


def test_versions_on_the_integrations_page_are_the_tested_ones():
    rows = re.findall(r"^\| \[([^\]]+)\]\(#[^)]*\) \| ([\d.]+) \|", (DOCS / "integrations.md").read_text(), re.M)
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    name_of = {"Hugging Face": "transformers", "DDP and FSDP": "torch"}
    assert len(rows) >= 7
    for library, version in rows:
        assert pinned[name_of.get(library, library.lower())] == version, library


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["disk", "server"])
def address(request, site):
    if request.param == "disk":
        yield site.as_uri()
        return

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_pages_fit_the_screen_and_request_no_external_resources(chromium, site, scheme, width):
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab, requested, complaints = context.new_page(), set(), []
    tab.on("request", lambda request: requested.add(request.url))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    everything = pages(site).keys() - {"404.html"}  # servers show it under any address
    for name in everything if width == 390 else ("index.html", "cli.html", "results.html", "api/clipping.html"):
        tab.goto(f"{site.as_uri()}/{name}")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than the screen"
        dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark == (scheme == "dark")
    context.close()
    assert complaints == []
    assert all(url.startswith((site.as_uri(), "blob:", "data:")) for url in requested), requested


@pytest.mark.slow
def test_search_finds_a_method(chromium, address):
    """Also when opened from disk, where browsers start no worker."""
    tab = chromium.new_page()
    complaints = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(f"{address}/guide/quick_start.html")
    tab.locator(".md-search__button").click()
    field = tab.get_by_role("combobox")
    field.press_sequentially("noise_probability", delay=20)
    found = tab.locator("li a", has_text="noise_probability").first
    found.wait_for(timeout=120_000)
    assert field.input_value() == "noise_probability"
    assert found.get_attribute("href") == f"{address}/api/clipping.html#ogc.OGC.noise_probability"
    tab.close()
    assert complaints == []


def test_methods_at_the_epochs_of_plus_match_the_recorded_ones():
    """Averaged weights over epochs 91 to 100 of the paper's protocol, and the epoch with the highest mean."""
    section = (DOCS / "log.md").read_text().split("### What OGC adds to `cifar10-plus`")[1].split("\n### ")[0]
    noises = ("symmetric-0.2", "symmetric-0.5", "symmetric-0.8", "asymmetric-0.4", "instance-0.4", "human-worse")
    runs, means = ROOT / "benchmarks" / "results" / "runs", {}
    for line in re.findall(r"^\| ([^|]+) \| (\d.*) \|$", section, re.M):
        name, shown = line[0].strip("`"), [float(cell) for cell in line[1].split(" | ")]
        key = "plus-ce_ogc" if name == "cifar10-plus" else name.lower().replace("+", "_").replace("-", "_")
        curves = []
        for noise in noises:
            changed = "-q-0.7" if (key, noise) == ("gce", "instance-0.4") else ""
            epochs = json.loads((runs / f"cifar10-{key}-{noise}{changed}-1.json").read_text())["epochs"]
            curves.append([100 * epoch["averaged"]["test"] for epoch in epochs])
        late = [statistics.fmean(curve[90:100]) for curve in curves]
        means[name], by_epoch = statistics.fmean(late), [statistics.fmean(each) for each in zip(*curves, strict=True)]
        best = max(range(len(by_epoch)), key=by_epoch.__getitem__)
        assert shown == pytest.approx([*late, means[name], by_epoch[best], best + 1], abs=0.00501), name
    assert len(means) == 10
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "is {CE:.2f} with CE, {JS:.2f} with JS and {CE+OGC:.2f} with CE+OGC".format(**means) in readme
