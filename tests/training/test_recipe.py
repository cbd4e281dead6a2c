import copy
import json
import pickle
import re

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from ogc.training import method as methods
from ogc.training.method import METHODS
from ogc.training.recipe import RECIPES, Recipe, by_name, from_toml, never_clips, override

PAPER = RECIPES["cifar10"]


def error_of(change, recipe=PAPER):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        override(recipe, change)
    assert not isinstance(caught.value, ValidationError)  # its message has four lines
    return str(caught.value)


def changed(change, recipe=PAPER):
    """The fields that differ after the change."""
    return {name: value for name, value in override(recipe, change) if value != getattr(recipe, name)}


def test_plus_recipes():
    for name in ("cifar10", "cifar100"):
        base, plus = RECIPES[name], RECIPES[f"{name}-plus"]
        changed = {field for field, value in plus if value != getattr(base, field)}
        assert changed == {"name", "epochs", "milestones", "average", "report"}
        assert [plus.lr_at(epoch) for epoch in (0, 49, 50, 99)] == pytest.approx([0.1, 0.1, 0.01, 0.01])
        assert (plus.data, base.data, base.report) == (name, name, "raw")
        assert override(plus, {"method": "gce"}).parameters == override(base, {"method": "gce"}).parameters
    assert "`average` should be given with report = averaged" in error_of({"report": "averaged"})


@pytest.mark.parametrize(
    ("name", "network", "epochs", "milestones", "report"),
    [
        ("cifar10", "resnet18-cifar", 150, (50, 100), 10),
        ("cifar100", "resnet34-cifar", 150, (50, 100), 10),
        ("webvision", "resnet18", 120, (40, 80), 1),
    ],
)
def test_recipes_follow_the_papers_protocols(name, network, epochs, milestones, report):
    recipe = RECIPES[name]
    assert (recipe.network, recipe.epochs, recipe.milestones, recipe.report_epochs) == (
        network,
        epochs,
        milestones,
        report,
    )
    assert (recipe.optimizer, recipe.lr, recipe.momentum, recipe.weight_decay) == ("sgd", 0.1, 0.9, 5e-4)
    assert (recipe.batch_size, recipe.clip_norm, recipe.factor, recipe.average) == (128, 5.0, 0.1, None)
    assert recipe.nesterov == (name == "webvision")
    assert (recipe.augment, recipe.size) == (("large", 224) if name == "webvision" else ("cifar", None))


def test_other_recipes_average_weights():
    assert {name for name, recipe in RECIPES.items() if recipe.average is None} == {
        "cifar10",
        "cifar10-default",
        "cifar100",
        "webvision",
    }


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_has_the_name_of_its_key(name):
    assert RECIPES[name].name == name
    assert by_name(name) is RECIPES[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -1}, "Parameter `lr` should be greater than 0. Found `lr = -1`."),
        ({"lr": "fast"}, "Parameter `lr` should be a valid number. Found `lr = 'fast'`."),
        ({"lr": "nan"}, "Parameter `lr` should be a finite number. Found `lr = 'nan'`."),
        ({"lr": "inf"}, "Parameter `lr` should be a finite number. Found `lr = 'inf'`."),
        ({"epochs": 0}, "Parameter `epochs` should be greater than or equal to 1. Found `epochs = 0`."),
        ({"epochs": 1.5}, "Parameter `epochs` should be a valid integer"),
        ({"epochs": "inf"}, "Parameter `epochs` should be a valid integer. Found `epochs = 'inf'`."),
        ({"epochs": "nan"}, "Parameter `epochs` should be a valid integer. Found `epochs = 'nan'`."),
        ({"epochs": float("inf")}, "Parameter `epochs` should be a finite number. Found `epochs = inf`."),
        ({"epochs": "many"}, "Parameter `epochs` should be a valid integer. Found `epochs = 'many'`."),
        (
            {"batch_size": 1},
            "Parameter `batch_size` should be greater than or equal to 2 or auto. Found `batch_size = 1`.",
        ),
        ({"batch_size": "auto", "accumulate": 32}, "`accumulate` should be a divisor of 16 with batch_size = auto."),
        ({"accumulate": 3}, "Parameter `accumulate` should be a divisor of batch_size = 128. Found `accumulate = 3`."),
        ({"momentum": 1}, "Parameter `momentum` should be less than 1"),
        ({"weight_decay": -0.1}, "Parameter `weight_decay` should be greater than or equal to 0"),
        ({"factor": 0}, "Parameter `factor` should be greater than 0"),
        ({"clip_norm": 0}, "Parameter `clip_norm` should be greater than 0. Found `clip_norm = 0`."),
        ({"average": 1}, "Parameter `average` should be less than 1. Found `average = 1`."),
        ({"average": 0}, "Parameter `average` should be greater than 0. Found `average = 0`."),
        ({"seed": -1}, "Parameter `seed` should be greater than or equal to 0. Found `seed = -1`."),
        ({"seed": 2**32}, "Parameter `seed` should be less than 4294967296"),
        ({"size": 0}, "Parameter `size` should be greater than or equal to 1"),
        ({"report_epochs": 0}, "Parameter `report_epochs` should be greater than or equal to 1"),
        ({"optimizer": "sdg"}, "should be sgd or adamw. Found `optimizer = 'sdg'`. Did you mean sgd?"),
        (
            {"schedule": "cosin"},
            "should be steps, cosine or constant. Found `schedule = 'cosin'`. Did you mean cosine?",
        ),
        ({"precision": "fp16"}, "Parameter `precision` should be auto, float32 or bf16"),
        ({"augment": "cifra"}, "Did you mean cifar?"),
        ({"milestones": (100, 50)}, "Parameter `milestones` should be increasing, and below epochs = 150"),
        ({"milestones": (50, 50)}, "Parameter `milestones` should be increasing"),
        ({"milestones": "50,150"}, "Parameter `milestones` should be increasing, and below epochs = 150"),
        ({"milestones": "50,x"}, "Parameter `milestones[1]` should be a valid integer. Found `milestones[1] = 'x'`."),
        ({"milestones": (5,), "schedule": "cosine"}, "Parameter `milestones` should be left out"),
        ({"nesterov": True, "momentum": 0}, "Parameter `nesterov` should be false without SGD and a momentum above 0"),
        ({"nesterov": True, "optimizer": "adamw"}, "Parameter `nesterov` should be false without SGD"),
        ({"hidden": (5, 0)}, "Parameter `hidden[1]` should be greater than or equal to 1"),
        ({"augment": "large"}, "Parameter `size` should be given with augment = large. Found `size = None`."),
        ({"network": "resnet8"}, "There is no network named 'resnet8'"),
        ({"noise": "symetric:0.5"}, "Found `noise = 'symetric'`. Did you mean symmetric or asymmetric?"),
        (
            {"noise": "symetric"},
            "Parameter `noise` should be one of symmetric, asymmetric, blocks, pairflip, instance, human:KIND, file. "
            "Found `noise = 'symetric'`. Did you mean symmetric or asymmetric?",
        ),
        ({"noise": "worse"}, "Found `noise = 'worse'`. Did you mean human:worse?"),
        (
            {"method": "ce", "epsilon": 1.0},
            "There is no parameter 'epsilon'. It belongs to methods with OGC, such as ce+ogc.",
        ),
        ({"method": "gce:q=0.7"}, "no method named 'gce:q=0.7'. Give settings of a method by themselves, as in --set"),
        (
            {"noise": "symmetric:1.5"},
            "Parameter `noise` should be KIND:RATE with a rate in [0, 1], as in symmetric:0.5. "
            "Found `noise = 'symmetric:1.5'`.",
        ),
        ({"noise": "symmetric"}, "Parameter `noise` should be KIND:RATE with a rate in [0, 1], as in symmetric:0.5"),
        ({"noise": "symmetric:half"}, "Parameter `noise` should be KIND:RATE with a rate in [0, 1]"),
        ({"noise": "human:best"}, "Parameter `noise` should be human:KIND, where KIND is one of clean, aggregate"),
        ({"lrr": 1}, "There is no parameter 'lrr'. Did you mean lr? Choose from name, network, "),
        ({"quelle_size": 1}, "Did you mean queue_size?"),
        ({"method": "gcee"}, "There is no method named 'gcee'. Did you mean gce"),
        ({"method": "gce", "q": 1.4}, "Parameter `q` should be in (0, 1]. Found `q = 1.4`."),
        ({"method": "gce", "q": "much"}, "Parameter `q` should be a number. Found `q = 'much'`."),
        ({"parameters": {"q": 0.5}}, "The method ce+ogc has no parameter 'q'. It takes epsilon, epsilon0, follow_lr"),
        ({"parameters": 3}, "Parameter `parameters` should be numbers by name. Found `parameters = 3`."),
        ({"epsilon": 2, "epsilon0": 20}, "Parameter `epsilon` should be omitted with epsilon0. Found `epsilon = 2`."),
        ({"follow_lr": False}, "Parameter `follow_lr` should be True with epsilon0"),
    ],
    ids=str,
)
def test_bad_value_error_is_one_sentence(change, message):
    found = error_of(change)
    assert message in found
    assert "\n" not in found


def test_error_names_missing_or_unknown_parameter():
    with pytest.raises(ValueError, match=r"^Parameter `network` should be given\.$"):
        Recipe(name="mine")
    with pytest.raises(ValueError, match=r"There is no parameter 'epoch'\. Did you mean epochs\?"):
        Recipe(**{**dict(PAPER), "epoch": 3})
    with pytest.raises(ValueError, match=r"There is no recipe named 'cifar'\. Did you mean cifar10 or cifar100\?"):
        by_name("cifar")


def test_recipe_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        PAPER.lr = 1.0
    recipe = override(PAPER, {"lr": 0.05})
    assert pickle.loads(pickle.dumps(recipe)) == copy.deepcopy(recipe) == recipe
    assert recipe.parameters == PAPER.parameters


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"lr": "0.05"}, {"lr": 0.05}),
        ({"milestones": "30, 60"}, {"milestones": (30, 60)}),
        ({"milestones": "none"}, {"milestones": ()}),
        ({"clip_norm": "none"}, {"clip_norm": None}),
        ({"average": "0.99"}, {"average": 0.99}),
        ({"hidden": "64"}, {"hidden": (64,)}),
        ({"nesterov": "true"}, {"nesterov": True}),
        ({"size": "64", "augment": "large"}, {"size": 64, "augment": "large"}),
        ({"noise": "symmetric:0.5"}, {"noise": "symmetric:0.5"}),
        ({"noise": "none"}, {}),
        ({"epochs": "30"}, {"epochs": 30, "milestones": (10, 20)}),
        ({"epochs": 300}, {"epochs": 300, "milestones": (100, 200)}),
        ({"epochs": 2}, {"epochs": 2, "milestones": (1,), "report_epochs": 1}),
        ({"epochs": 1}, {"epochs": 1, "milestones": (), "report_epochs": 1}),
        ({"epochs": 20}, {"epochs": 20, "milestones": (7, 13), "report_epochs": 6}),
        ({"epochs": 20, "report_epochs": 15}, {"epochs": 20, "milestones": (7, 13), "report_epochs": 15}),
        ({"epochs": 30, "milestones": "25"}, {"epochs": 30, "milestones": (25,)}),
        ({"schedule": "cosine"}, {"schedule": "cosine", "milestones": ()}),
        ({"method": "gce"}, {"method": "gce", "parameters": {"q": 0.9}}),
        ({"method": "gce", "q": "0.5"}, {"method": "gce", "parameters": {"q": 0.5}}),
        ({"method": "taylor_ce", "t": "4"}, {"method": "taylor_ce", "parameters": {"t": 4}}),
        ({"name": "mine", "method": "gce"}, {"name": "mine", "method": "gce", "parameters": {"q": 0.9}}),
    ],
    ids=str,
)
def test_override_parses_command_line_values(change, expected):
    assert changed(change) == expected


def test_report_epochs_follow_the_epochs_unless_given():
    assert {name: recipe.report_epochs for name, recipe in RECIPES.items() if recipe.report_epochs != 10} == {
        "webvision": 1,
        "folder": 6,
    }
    short = override(PAPER, {"epochs": "2"})
    assert (short.report_epochs, override(short, {"epochs": 150}).report_epochs) == (1, 10)
    chosen = override(PAPER, {"epochs": 20, "report_epochs": 15})
    assert override(chosen, {"seed": 1}).report_epochs == override(chosen, {"epochs": 30}).report_epochs == 15
    with pytest.raises(ValueError, match=r"Parameter `epochs` should be a valid integer"):
        override(PAPER, {"epochs": "many"})


def test_epsilon_and_epsilon0_replace_each_other():
    rest = {"follow_lr": True, "every": 32, "queue_size": 4096}
    assert PAPER.parameters == {"epsilon0": 20.0, **rest}
    assert override(PAPER, {"epsilon": "0.5"}).parameters == {"epsilon": 0.5, **rest}
    assert RECIPES["digits"].parameters == rest  # the default rule has neither
    assert RECIPES["folder"].parameters == {"epsilon": 2.0, **rest}
    assert override(RECIPES["digits"], {"epsilon0": 10}).parameters == {"epsilon0": 10, **rest}
    fixed = override(PAPER, {"epsilon": 0.5, "follow_lr": "false"})
    assert fixed.parameters == {"epsilon": 0.5, **rest, "follow_lr": False}
    assert override(fixed, {"queue_size": 64}).parameters == {**fixed.parameters, "queue_size": 64}  # the rest is kept


def test_parameters_depend_on_the_name():
    assert override(PAPER, {"name": "webvision"}).parameters["epsilon0"] == 250.0
    assert "epsilon0" not in override(PAPER, {"name": "mine"}).parameters


@pytest.mark.parametrize("method", METHODS)
def test_json_round_trip(method):
    for recipe in RECIPES.values():
        changed = override(recipe, {"method": method})
        assert Recipe(**json.loads(json.dumps(changed.model_dump(mode="json")))) == changed


@pytest.mark.parametrize("schedule", ["steps", "cosine", "constant"])
def test_learning_rate_matches_torch(schedule):
    recipe = override(PAPER, {"schedule": schedule, "epochs": 30})
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=recipe.lr)
    scheduler = {
        "steps": lambda: torch.optim.lr_scheduler.MultiStepLR(optimizer, recipe.milestones, gamma=recipe.factor),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30 * 4),
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1),
    }[schedule]()
    for epoch in range(30):
        for step in range(4):
            assert recipe.lr_at(epoch, step / 4) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
            optimizer.step()
            if schedule == "cosine":
                scheduler.step()
        if schedule != "cosine":
            scheduler.step()


@pytest.mark.parametrize(
    ("samples", "changes", "clips"),
    [
        (50_000, {}, True),
        (100, {"epochs": 30}, False),  # 30 steps
        (100, {"epochs": 32}, False),  # 3,200 samples
        (100, {"epochs": 63}, False),  # 4,100 samples at step 41
        (100, {"epochs": 64}, True),
        (100, {"epochs": 30, "every": 1}, False),
        (100, {"epochs": 41, "every": 1}, True),
        (100, {"epochs": 30, "queue_size": 64}, False),
        (100, {"epochs": 30, "accumulate": 4, "batch_size": 100}, False),
        (100, {"epochs": 48, "accumulate": 4, "batch_size": 100}, True),  # call 192 is a multiple of 32: 4,800 samples
        (2, {"epochs": 3, "method": "gce"}, True),
        (2, {"epochs": 3, "method": "ce+ema"}, True),
    ],
)
def test_never_clips(samples, changes, clips):
    """Compare the rule, and the fix it suggests, with a criterion that is fed as in the loop."""
    recipe = override(RECIPES["table"], changes)
    if recipe.method == "ce+ogc":
        recipe = override(recipe, {"epsilon": 2.0})
    batch = min(recipe.batch_size, samples)
    run = {"samples": samples, "batch": batch, "steps": samples // batch}
    reason = never_clips(recipe, **run)
    assert (reason is None) == clips
    if samples > 100 or not recipe.method.endswith("+ogc"):
        return

    def is_fitted(recipe):
        criterion = methods.build(recipe.method, {**recipe.parameters, "follow_lr": False})
        part = batch // recipe.accumulate
        for _ in range(recipe.epochs * recipe.accumulate):
            criterion(torch.randn(part, 4), torch.randint(4, (part,)))
        return bool(criterion.solution.isfinite().all())

    assert is_fitted(recipe) == clips
    if reason is not None:
        suggested = dict(found.split("=") for found in re.findall(r"--set (\w+=\d+)", reason))
        fixed_recipe = override(recipe, suggested)
        assert never_clips(fixed_recipe, **run) is None
        assert is_fitted(fixed_recipe)


def toml(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_toml_file_with_a_base(tmp_path):
    path = toml(tmp_path, 'base = "cifar10"\nepochs = 30\nclip_norm = "none"\nmethod = "gce"\n[parameters]\nq = 0.5\n')
    expected = {"epochs": 30, "milestones": (10, 20), "clip_norm": None, "method": "gce", "parameters": {"q": 0.5}}
    assert from_toml(path) == override(PAPER, expected)


def test_toml_file_without_a_base(tmp_path):
    text = (
        'name = "mine"\nnetwork = "mlp"\nhidden = [8, 8]\nepochs = 3\nbatch_size = 4\nlr = 1\n'
        'weight_decay = 0\nschedule = "constant"\n'
    )
    recipe = from_toml(toml(tmp_path, text))
    assert (recipe.name, recipe.hidden, recipe.lr, recipe.average) == ("mine", (8, 8), 1.0, 0.999)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "cifar10"\nepoch = 3', "There is no parameter 'epoch'. Did you mean epochs?"),
        ('base = "cifar1"', "There is no recipe named 'cifar1'. Did you mean cifar10, cifar100 or cifar10-plus?"),
        ('base = "cifar10"\n[parameters]\nqueue = 3', "has no parameter 'queue'"),
        ('base = "cifar10"\nlr = [1]', "Parameter `lr` should be a valid number. Found `lr = [1]`."),
        ("epochs = 3", "Parameter `name` should be given."),
        ("epochs = ", "Invalid value"),
        ("\x00", "Invalid statement"),
    ],
)
def test_toml_error_names_the_file(tmp_path, text, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        from_toml(toml(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path / 'mine.toml'}: ")
    assert message in str(caught.value)


def test_show_prints_values_that_set_accepts():
    for recipe in (PAPER, RECIPES["digits"], override(RECIPES["table"], {"method": "sce", "noise": "pairflip:0.2"})):
        lines = recipe.show().splitlines()
        shown = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in lines}
        assert len(shown) == len(lines) == len(Recipe.model_fields) - 2 + len(recipe.parameters)
        assert len({len(line) - len(line.split(maxsplit=1)[1]) for line in lines}) == 1  # aligned
        assert override(PAPER, shown) == recipe
