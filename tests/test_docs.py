"""The documents say what is so: the map, the examples, the generated tables, the names they mention."""

import importlib
import json
import re
from pathlib import Path

import pytest

import ogc

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_map_has_a_line_for_every_file():
    lines = README.split("<!-- map -->")[1].split("```")[1].strip().splitlines()
    mapped, folders = set(), {}
    for line in lines:
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth] = name
        if not name.endswith("/"):
            mapped.add("".join(folders[d] for d in range(depth + 1)))
        assert name.endswith("/") or len(line.split()) > 1, f"{name} is not explained"
    there = {
        str(path.relative_to(ROOT))
        for folder, pattern in (("src/ogc", "**/*.py"), ("benchmarks", "*.py"), ("docs", "*.md"))
        for path in (ROOT / folder).glob(pattern)
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert mapped == there


def test_the_examples_in_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["suspicion"].shape == (128,)
    assert isinstance(names["criterion"], ogc.OGC)


def test_the_names_in_the_docs_exist():
    text = (ROOT / "docs" / "method.md").read_text() + (ROOT / "docs" / "deviations.md").read_text()
    dotted = set(re.findall(r"`((?:given_label|losses|clipping|theory)(?:\.\w+)+)`", text))
    assert len(dotted) >= 12
    for name in dotted:
        module, *attributes = name.split(".")
        value = importlib.import_module(f"ogc.{module}")
        for attribute in attributes:
            value = getattr(value, attribute)


def test_the_table_of_optimizers_is_fresh():
    import optimizers

    text = (ROOT / "docs" / "method.md").read_text()
    assert optimizers.with_table(text, json.loads(optimizers.RESULTS.read_text())) == text


def test_the_table_of_throughput_is_fresh():
    import throughput

    text = (ROOT / "docs" / "training.md").read_text()
    assert throughput.with_table(text, json.loads(throughput.RESULTS.read_text())) == text


def test_the_example_of_training_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.S)
    names = {}
    exec(compile(block.replace('"epochs": 30', '"epochs": 2'), "training.md", "exec"), names)
    assert names["network"](names["digits"].inputs).shape == (len(names["digits"]), 10)


def test_the_costs_in_the_readme_are_the_recorded_ones():
    import overhead

    assert overhead.with_summary(README) == README


def test_the_default_is_never_behind_ce_by_more_than_a_point():
    """Of the recorded runs; see benchmarks/optimizers.py."""
    result = json.loads((ROOT / "benchmarks" / "results" / "optimizers.json").read_text())
    mean = {
        (row["optimizer"], row["schedule"], row["method"]): sum(row["test_accuracy"]) / len(row["test_accuracy"])
        for row in result["rows"]
    }
    settings = {key[:2] for key in mean}
    assert len(settings) == 8
    for setting in settings:
        assert mean[*setting, "CE+OGC"] > mean[*setting, "CE"] - 1, setting


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path):
    for target in re.findall(r"\]\((?!http)([^)#]+)", re.sub(r"`[^`]*`", "", path.read_text())):
        assert (path.parent / target).exists(), target
