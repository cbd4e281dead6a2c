import itertools
import json
import re
from pathlib import Path

import pytest

from ogc.benchmark.paper import TUNING
from ogc.benchmark.plan import TABLES, Cell, Printed, find, tuning
from ogc.training import RECIPES

PAPER = json.loads((Path(__file__).parent.parent / "paper.json").read_text("utf-8"))
CELLS = [cell for table in TABLES.values() for cell in table.cells]
TUNED = [cell for dataset, grids in TUNING.items() for method in grids for cell in tuning(dataset, method)]
NOISES = {
    None: None,
    "Sym-20%": "symmetric:0.2",
    "Sym-50%": "symmetric:0.5",
    "Sym-80%": "symmetric:0.8",
    "Asymmetric": "asymmetric:0.4",
    "Dependent": "instance:0.4",
    "Real": "human:worse",
}
PLUS = ("cifar10-plus", "cifar100-plus")
OTHERS = {  # columns that are not noises
    "ILSVRC2012 Val": ("ILSVRC2012 Val", None, "ilsvrc"),
    "WebVision Val": ("WebVision Val", None, "val"),
    "Time consumption (min)": ("minutes", "symmetric:0.5", "minutes"),
}


@pytest.mark.parametrize("name", PAPER["tables"])
def test_tables_have_every_number_of_the_paper(name):
    table, printed = TABLES[name], PAPER["tables"][name]
    labels = [label for label in printed["columns"] if label != "Average"]
    noises = NOISES | ({"Real": "human:noisy", "Asymmetric": "blocks:0.4"} if name == "cifar100" else {})
    columns = [OTHERS[label] if label in OTHERS else (label, noises[label], "test") for label in labels]
    assert list(table.columns) == columns
    assert {(cell.dataset, cell.alone) for cell in table.cells} == {
        (name if name in PAPER["parameters"] else "cifar10", name == "time")
    }
    found = {}
    for row, cells in table.by_row:
        numbers = [*(cell.paper for cell in cells), *([] if row.average is None else [Printed(row.average)])]
        found[row.label] = (row.method, numbers)
        assert [(cell.method, cell.noise, cell.measure) for cell in cells] == [(row.method, *c[1:]) for c in columns]
    assert list(found.items()) == [
        (label, (PAPER["methods"][label], [Printed(*map(float, number.split("±"))) for number in numbers]))
        for label, numbers in printed["rows"].items()
    ]


def test_numbers_in_two_tables_are_equal():
    means = {}
    for cell in CELLS:
        if cell.paper is not None:
            means.setdefault((cell.key, cell.measure), set()).add(cell.paper.mean)
    assert all(len(different) == 1 for different in means.values())
    cifar10 = {cell.key for cell in TABLES["cifar10"].cells}
    twice = [cell.key in cifar10 for name in ("adjusting", "gce") for cell in TABLES[name].cells]
    assert sum(twice) == 15  # Fixed is PHuber-CE; GCE and CE+OGC keep their names


def test_gce_has_the_q_that_reproduces_the_papers_number():
    """The run with q = 0.9 is in a separate table, without a number from the paper."""
    for table in ("cifar10", "gce"):
        for cell in find(table, ["gce"]):
            assert cell.recipe(0).parameters["q"] == (0.7 if cell.noise == "instance:0.4" else 0.9)
        assert "q = 0.7" in TABLES[table].note
    [fitted] = find("cifar10", ["gce"], ["instance:0.4"])
    assert (fitted.key, fitted.paper) == ("cifar10-gce-instance-0.4-q-0.7", Printed(66.76, 0.38))
    [printed, same] = find("instance", ["gce"])
    assert (printed.key, printed.paper) == ("cifar10-gce-instance-0.4", None)
    assert same.key == fitted.key
    [cifar100] = find("cifar100", ["gce"], ["instance:0.4"])
    assert cifar100.recipe(0).parameters["q"] == 0.6


@pytest.mark.parametrize(("name", "dataset"), [("plus", "cifar10"), ("plus100", "cifar100")])
def test_plus_tables(name, dataset):
    """They compare the paper's recipe with ours under the same noises, and share runs with the paper's tables."""
    table = TABLES[name]
    known = {cell.key for cell in TABLES[dataset].cells}
    (_, papers), (_, ours) = table.by_row
    assert [cell.noise for cell in papers] == [cell.noise for cell in ours] == list(table.noises)
    assert all(cell.paper is None for cell in table.cells)
    new = {"pairflip:0.4", "human:random1"}
    assert {cell.noise for cell in papers if cell.key not in known} == set(table.noises) & new
    for paper, our in zip(papers, ours, strict=True):
        before, after = paper.recipe(3), our.recipe(3)
        assert (before.name, after.name, after.data) == (dataset, f"{dataset}-plus", dataset)
        changed = {field for field, value in after if value != getattr(before, field)}
        assert changed == {"name", "epochs", "milestones", "report"}
        assert (after.epochs, after.milestones, after.report, after.average) == (100, (50,), "averaged", 0.999)
        assert our.key == f"{dataset}-plus-ce_ogc-{our.noise.replace(':', '-')}"
    words = ("100 epochs", "one drop in the learning rate halfway", "averaged weights")
    assert all(word in table.note for word in words)


def test_sweeps():
    def swept(name, parameter):
        return [(row.method, row.changes[parameter]) for row in TABLES[name].rows]

    assert swept("epsilon", "epsilon") == [("ce+ogc", value) for value in (5, 1, 0.5, 0.1, 0.05, 0.01)]
    assert swept("queue", "queue_size") == [("ce+ogc", 2**i) for i in (8, 9, 10, 11, 12, 13)]
    assert swept("every", "every") == [("ce+ogc", 2**i) for i in (3, 5, 7, 9, 11, 13)]
    assert TABLES["epsilon"].noises == ("symmetric:0.5", "symmetric:0.8")
    for name in ("queue", "every"):
        assert TABLES[name].noises == ("symmetric:0.8",)
        assert [column.measure for column in TABLES[name].columns] == ["test", "tau_variance"]
    for name in ("epsilon", "queue", "every"):
        for cell in TABLES[name].cells:
            parameters = cell.recipe(0).parameters
            assert not parameters["follow_lr"]
            assert "epsilon0" not in parameters
            assert name == "epsilon" or parameters["epsilon"] == 0.05
            assert cell.paper is None


def test_every_cell_uses_the_papers_settings():
    varying = {"method", "parameters", "noise", "seed", "average", "surveys"}
    assert {cell.dataset for cell in CELLS} == {"cifar10", "cifar10-default", "cifar100", "webvision", "digits", *PLUS}
    methods = PAPER["methods"]
    settings = {data: {methods[name]: row for name, row in rows.items()} for data, rows in PAPER["parameters"].items()}
    for cell in [*CELLS, *TUNED]:
        recipe, usual = cell.recipe(7), RECIPES[cell.dataset]
        assert (recipe.name, recipe.method, recipe.noise, recipe.seed) == (cell.dataset, cell.method, cell.noise, 7)
        assert (recipe.average, recipe.surveys) == (0.999, 0)
        assert recipe.model_dump(exclude=varying) == usual.model_dump(exclude=varying)
        assert re.fullmatch(r"[A-Za-z0-9._-]+", cell.key)
        if cell.dataset in settings:
            ogc = {"follow_lr": True, "every": 32, "queue_size": 4096} if cell.method.endswith("+ogc") else {}
            expected = {**ogc, **settings[cell.dataset][cell.method], **cell.changes}
            if "epsilon" in cell.changes:
                del expected["epsilon0"]
            assert recipe.parameters == expected, cell.key


def test_keys_and_runs_match_one_to_one():
    numbers = [{**cell.recipe(0).parameters} for cell in [*CELLS, *TUNED]]  # 2 and 2.0 are the same
    rests = [cell.recipe(0).model_dump_json(exclude={"parameters"}) for cell in [*CELLS, *TUNED]]
    runs = {
        (cell.key, (rest, tuple(sorted(parameters.items())), cell.alone))
        for cell, rest, parameters in zip([*CELLS, *TUNED], rests, numbers, strict=True)
    }
    assert len(runs) == len({key for key, _ in runs}) == len({run for _, run in runs})


def test_sweeps_share_one_run():
    at = {name: {cell.key for cell in TABLES[name].cells} for name in ("epsilon", "queue", "every")}
    shared = "cifar10-ce_ogc-symmetric-0.8-epsilon-0.05-follow_lr-false"
    assert at["epsilon"] & at["queue"] & at["every"] == {shared}


def test_timed_runs_have_separate_keys():
    timed = {cell.key for cell in TABLES["time"].cells}
    assert timed == {f"cifar10-{method}-symmetric-0.5-alone" for method in ("ce", "phuber_ce", "ce_ogc")}


def test_finding_cells():
    found = find("cifar10", ["fl+ogc", "ce"], ["human:worse", "symmetric:0.2"])
    names = [(cell.method, cell.noise) for cell in found]
    assert names == list(itertools.product(["fl+ogc", "ce"], ["symmetric:0.2", "human:worse"]))
    assert found[1].paper == Printed(82.69, 0.30)
    assert len(find("cifar100")) == 78
    assert [cell.paper for cell in find("cifar10", ["sce+ogc"])] == [None] * 6
    assert find("webvision", ["ce"]) == list(TABLES["webvision"].cells[:2])


def test_another_method_in_a_sweep_gets_every_value():
    cells = find("queue", ["fl+ogc"])
    assert len(cells) == 12
    assert {cell.recipe(0).parameters["queue_size"] for cell in cells} == {2**i for i in range(8, 14)}
    assert len(find("adjusting", ["gce"])) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cifar",), "There is no table named 'cifar'. Did you mean cifar10"),
        (("cifar10", ["ce+ocg"]), "There is no method named 'ce+ocg'. Did you mean ce+ogc"),
        (("queue", ["gce"]), "The method gce has no parameter 'epsilon'."),
        (("cifar10", None, ["symetric:0.5"]), "Did you mean symmetric:0.5"),
        (("cifar10", None, ["human:worst"]), "Did you mean human:worse"),
        (("webvision", None, ["symmetric:0.5"]), "should be omitted, because the table webvision adds no noise"),
        (("cifar100", None, ["human:worse"]), "among those of the table cifar100: symmetric:0.2,"),
    ],
)
def test_unknown_names_are_rejected(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        find(*arguments)


def test_similar_spelling_of_another_noise_is_not_suggested():
    with pytest.raises(ValueError, match=r"blocks:0\.4, .* Found `noises = 'asymmetric:0\.4'`\.$"):
        find("cifar100", noises=["asymmetric:0.4"])


def test_grids_match_the_appendix():
    """Linear and EMA are tuned under every noise of their table, because they were chosen by the average."""
    expected = {}
    for part in PAPER["tuning"]:
        for dataset, (name, grid) in itertools.product(part["data"], part["grids"].items()):
            expected[dataset, PAPER["methods"][name]] = [
                (dict(zip(grid, point, strict=True)), NOISES[noise], "val" if dataset == "webvision" else "test")
                for point in itertools.product(*grid.values())
                for noise in part["noises"]
            ]
    assert {(dataset, method) for dataset, grids in TUNING.items() for method in grids} == expected.keys()
    for (dataset, method), runs in expected.items():
        cells = tuning(dataset, method)
        assert [(cell.changes, cell.noise, cell.measure) for cell in cells] == runs
        assert {(cell.dataset, cell.method) for cell in cells} == {(dataset, method)}
        for noise in {cell.noise for cell in cells}:
            chosen = Cell(dataset, method, noise).key
            assert [cell.key for cell in cells].count(chosen) == 1, "the grid has the paper's choice exactly once"


def test_rejects_methods_that_the_paper_does_not_tune():
    with pytest.raises(ValueError, match="The paper does not tune 'ce' on cifar10"):
        tuning("cifar10", "ce")
    with pytest.raises(ValueError, match="one of cifar10, cifar100, webvision"):
        tuning("digits", "gce")
