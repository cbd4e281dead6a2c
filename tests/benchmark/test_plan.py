import itertools
import re

import pytest

from ogc.benchmark.plan import TABLES, TUNING, Cell, Printed, find, key_of, name_of, tuning
from ogc.training import RECIPES, override
from ogc.training.method import PAPER

THIRTEEN = ["ce", "fl", "mae", "gce", "sce", "phuber_ce", "taylor_ce", "nce_rce", "js", "lc_ce", "nce_nnce"]
THIRTEEN += ["ce+ogc", "fl+ogc"]
SIX = ["symmetric:0.2", "symmetric:0.5", "symmetric:0.8", "asymmetric:0.4", "instance:0.4"]
CELLS = [cell for table in TABLES.values() for cell in table.cells]
TUNED = [cell for dataset, grids in TUNING.items() for method in grids for cell in tuning(dataset, method)]

# Rows, columns, and what the paper's numbers add up to: means, deviations, averages. Taken from its source by a script.
PRINTED = {
    "cifar10": (13, 6, 5397.36, 81.81, 897.88),
    "cifar100": (13, 6, 3494.11, 36.51, 598.74),
    "adjusting": (4, 5, 1357.08, 0, 271.40),
    "gce": (2, 5, 692.80, 0, 138.56),
    "webvision": (8, 2, 1050.97, 0, 0),
    "time": (3, 1, 217, 0, 0),
}


@pytest.mark.parametrize("name", PRINTED)
def test_every_number_of_the_paper_is_there(name):
    table = TABLES[name]
    rows, columns, means, deviations, averages = PRINTED[name]
    assert (len(table.rows), len(table.columns)) == (rows, columns)
    printed = [cell.paper for cell in table.cells]
    assert all(isinstance(number, Printed) for number in printed)
    assert sum(number.mean for number in printed) == pytest.approx(means)
    assert sum(number.std or 0 for number in printed) == pytest.approx(deviations)
    assert sum(row.average or 0 for row in table.rows) == pytest.approx(averages)
    assert all((number.std is not None) == (deviations > 0) for number in printed)


@pytest.mark.parametrize(("name", "real"), [("cifar10", "human:worse"), ("cifar100", "human:noisy")])
def test_thirteen_methods_under_six_noises(name, real):
    cells = TABLES[name].cells
    assert [(cell.method, cell.noise) for cell in cells] == list(itertools.product(THIRTEEN, [*SIX, real]))
    assert {(cell.dataset, cell.measure) for cell in cells} == {(name, "test")}


def test_the_best_and_the_second_are_those_that_the_paper_marks():
    def first_two(name):
        columns = zip(*(row.printed for row in TABLES[name].rows), strict=True)
        order = [sorted(THIRTEEN, key=dict(zip(THIRTEEN, column, strict=True)).get)[-2:] for column in columns]
        return [f"{best} {second}" for second, best in order]

    assert first_two("cifar10") == [
        "ce+ogc lc_ce",
        "fl+ogc gce",
        "ce+ogc taylor_ce",
        "fl+ogc ce+ogc",
        "nce_nnce nce_rce",
        "fl+ogc nce_nnce",
    ]
    assert first_two("cifar100") == [
        "ce+ogc lc_ce",
        "ce+ogc fl+ogc",
        "fl+ogc ce+ogc",
        "nce_nnce fl+ogc",
        "fl+ogc ce+ogc",
        "fl+ogc ce+ogc",
    ]


def test_a_number_that_is_in_two_tables_is_the_same():
    means = {}
    for cell in CELLS:
        if cell.paper is not None:
            means.setdefault((cell.key, cell.measure), set()).add(cell.paper.mean)
    assert all(len(different) == 1 for different in means.values())
    cifar10 = {cell.key for cell in TABLES["cifar10"].cells}
    twice = [cell.key in cifar10 for name in ("adjusting", "gce") for cell in TABLES[name].cells]
    assert sum(twice) == 15  # Fixed is PHuber-CE; GCE and CE+OGC are themselves


def test_the_sweeps():
    def swept(name, parameter):
        return [(row.method, row.changes[parameter]) for row in TABLES[name].rows]

    assert swept("epsilon", "epsilon") == [("ce+ogc", value) for value in (5, 1, 0.5, 0.1, 0.05, 0.01)]
    assert swept("queue", "queue_size") == [("ce+ogc", 2**i) for i in (8, 9, 10, 11, 12, 13)]
    assert swept("every", "every") == [("ce+ogc", 2**i) for i in (3, 5, 7, 9, 11, 13)]
    assert TABLES["epsilon"].noises == ("symmetric:0.5", "symmetric:0.8")
    for name in ("queue", "every"):
        assert TABLES[name].noises == ("symmetric:0.8",)
        assert [column.measure for column in TABLES[name].columns] == ["test", "tau_variance"]
    for cell in (cell for name in ("epsilon", "queue", "every") for cell in TABLES[name].cells):
        parameters = cell.recipe(0).parameters
        assert not parameters["follow_lr"]
        assert "epsilon0" not in parameters
        assert cell.table == "epsilon" or parameters["epsilon"] == 0.05
        assert cell.paper is None


@pytest.mark.parametrize("cell", [*CELLS, *TUNED], ids=lambda cell: f"{cell.table}-{cell.key}-{cell.measure}")
def test_every_cell_is_a_run(cell):
    recipe = cell.recipe(7)
    assert (recipe.name, recipe.method, recipe.noise, recipe.seed) == (cell.dataset, cell.method, cell.noise, 7)
    assert recipe.average == 0.999
    usual = override(RECIPES[cell.dataset], {"method": cell.method, **cell.changes})
    same = {"noise": recipe.noise, "seed": 7, "average": 0.999, "surveys": 0}
    assert recipe == usual.model_copy(update=same)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", cell.key)
    for name, value in PAPER.get(cell.dataset, {}).get(cell.method, {}).items():
        if name not in cell.changes and "epsilon" not in cell.changes:
            assert recipe.parameters[name] == value


def test_a_key_stands_for_one_run_and_a_run_for_one_key():
    numbers = [{**cell.recipe(0).parameters} for cell in [*CELLS, *TUNED]]  # 2 and 2.0 are the same
    rests = [cell.recipe(0).model_dump_json(exclude={"parameters"}) for cell in [*CELLS, *TUNED]]
    runs = {
        (cell.key, (rest, tuple(sorted(parameters.items())), cell.alone))
        for cell, rest, parameters in zip([*CELLS, *TUNED], rests, numbers, strict=True)
    }
    assert len(runs) == len({key for key, _ in runs}) == len({run for _, run in runs})


def test_runs_that_sweeps_share():
    at = {name: {cell.key for cell in TABLES[name].cells} for name in ("epsilon", "queue", "every")}
    shared = "cifar10-ce_ogc-symmetric-0.8-epsilon-0.05-follow_lr-false"
    assert at["epsilon"] & at["queue"] & at["every"] == {shared}


def test_timing_is_a_run_of_its_own():
    timed = {cell.key for cell in TABLES["time"].cells}
    assert timed == {f"cifar10-{method}-symmetric-0.5-alone" for method in ("ce", "phuber_ce", "ce_ogc")}


def test_what_a_key_tells_apart():
    usual = override(RECIPES["cifar10"], {"method": "gce", "noise": "symmetric:0.5"})

    def key(**changes):
        return key_of(override(usual, changes))

    plain = "cifar10-gce-symmetric-0.5"
    assert key() == key(seed=3) == key(average=0.9) == key(precision="float32") == key(q=0.9) == plain
    assert key(noise=None) == "cifar10-gce"
    assert key(noise_seed=2) == f"{plain}-noise_seed-2"
    assert key(q=0.123456789) == f"{plain}-q-0.123456789"
    assert key(epochs=3) == f"{plain}-epochs-3"
    assert key(epochs=3, milestones=(1,)) == f"{plain}-epochs-3-milestones-1"
    assert key(milestones=(10, 20), lr=0.05) == f"{plain}-lr-0.05-milestones-10-20"
    assert key(network="resnet34-cifar") == f"{plain}-network-resnet34-cifar"
    assert key(lr=1e16) != key(lr=1e-16) == f"{plain}-lr-1e-16"


def test_a_loss_of_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    text = "import torch.nn as nn\nclass MyLoss(nn.CrossEntropyLoss):\n    def __init__(self, q: float = 0.5):\n"
    file.write_text(f"{text}        super().__init__()\n")
    method = f"{file}:MyLoss"
    cells = find("cifar10", [method], ["symmetric:0.5"])
    assert [cell.paper for cell in cells] == [None]
    key = cells[0].key
    assert re.fullmatch(r"cifar10-mine.py-MyLoss-[0-9a-f]{8}-symmetric-0.5-q-0.5", key)
    file.write_text(f"{text}        super().__init__(label_smoothing=0.1)\n")
    assert find("cifar10", [method], ["symmetric:0.5"])[0].key != key
    assert name_of(method) == "MyLoss"
    values = (1, -1, 1e16, 1e-16, -1e16, -1e-16)
    keys = [key_of(override(cells[0].recipe(0), {"q": value})) for value in values]
    assert len(set(keys)) == len(values)
    assert keys[1].endswith("-q-minus-1")


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
        (("cifar100", None, ["human:worse"]), "among those of the table cifar100: symmetric:0.2,"),
    ],
)
def test_what_is_not_there_is_refused(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        find(*arguments)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_the_grids_of_the_appendix(dataset):
    sizes = {method: len(tuning(dataset, method)) for method in TUNING[dataset]}
    more = {"gce+ogc": 4, "ce+linear": 4, "ce+ema": 4} if dataset == "cifar10" else {}
    assert sizes == {
        "gce": 6,
        "sce": 25,
        "phuber_ce": 9,
        "taylor_ce": 9,
        "nce_rce": 20,
        "js": 9,
        "lc_ce": 9,
        "nce_nnce": 20,
        "ce+ogc": 6,
        "fl+ogc": 6,
        **more,
    }
    for method in sizes:
        cells = tuning(dataset, method)
        assert {cell.noise for cell in cells} == {"symmetric:0.5"}
        chosen = Cell("any", dataset, method, "symmetric:0.5")
        assert [cell.key for cell in cells].count(chosen.key) == 1, "the paper's choice is a point of its grid, once"


def test_webvision_is_tuned_as_it_is():
    for method, chosen in (("ce+ogc", 250.0), ("fl+ogc", 350.0)):
        cells = tuning("webvision", method)
        assert [cell.changes["epsilon0"] for cell in cells] == [400, 350, 300, 250, 200, 150, 100]
        assert {(cell.noise, cell.measure) for cell in cells} == {(None, "val")}
        assert PAPER["webvision"][method]["epsilon0"] == chosen


def test_what_the_paper_does_not_tune():
    with pytest.raises(ValueError, match="The paper tunes no 'ce' on cifar10"):
        tuning("cifar10", "ce")
    with pytest.raises(ValueError, match="one of cifar10, cifar100, webvision"):
        tuning("digits", "gce")
