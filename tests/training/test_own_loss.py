"""A loss from a file: ``ogc train --method my_loss.py:MyLoss``, and going on with it."""

import hashlib
import pickle

import pytest
import torch

from ogc.losses import CrossEntropy, Pointwise
from ogc.training import RECIPES, CheckpointError, Interrupted, Recipe, allow_loss, load_network, override, train
from ogc.training.method import build, criterion, own_loss, split, with_absolute_path
from ogc.training.own_loss import OwnLoss
from small_runs import StopAt, assert_equal_runs, job, train_in_pieces

FILE = """
import torch
from dataclasses import dataclass
from torch import nn
from ogc.losses import Pointwise


class Mine(nn.Module):
    \"\"\"CE in a power, with a count of the steps.\"\"\"

    def __init__(self, power: float = 1.0, square: bool = False):
        super().__init__()
        self.power, self.square = power, square
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, logits, labels):
        self.steps += 1
        return nn.functional.cross_entropy(logits.float(), labels) ** self.power


class Power(Pointwise):
    def __init__(self, *, q: float = 0.5):
        super().__init__()
        self.q = q

    def value(self, p):
        return (1 - p**self.q) / self.q


@dataclass
class Helper:
    x: int = 1
"""


def allowed(path, content=FILE):
    """Write a file that may run."""
    path.write_text(content)
    allow_loss(f"{path}:Mine")
    return path


@pytest.fixture
def file(tmp_path):
    return allowed(tmp_path / "my_loss.py")


def test_names():
    assert split("ce+ogc") == ("ce", "+", "ogc")
    assert split("gce") == ("gce", "", "")
    assert split("a+b/c.py:D+ema") == ("a+b/c.py:D", "+", "ema")
    assert own_loss("ce+ogc") is None
    assert own_loss("a.py:B+ogc").name == "B"
    assert with_absolute_path("ce+ogc") == "ce+ogc"


def test_a_recipe_has_the_whole_path_and_the_checksum(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    recipe = override(RECIPES["digits"], {"method": "my_loss.py:Mine"})
    assert recipe.method == f"{file}:Mine"
    assert recipe.method_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert recipe.parameters == {"power": 1.0, "square": False}
    assert override(recipe, {"power": "2", "square": "true"}).parameters == {"power": 2, "square": True}
    assert override(recipe, {"method": "gce"}).method_sha256 is None
    assert Recipe(**recipe.model_dump(mode="json")) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_reading_a_recorded_recipe_runs_nothing(file):
    recipe = override(RECIPES["digits"], {"method": f"{file}:Mine"})
    allowed(file, "raise SystemExit")
    assert Recipe(**recipe.model_dump(mode="json")) == recipe
    assert override(recipe, {"seed": 3}).method_sha256 == recipe.method_sha256
    with pytest.raises(ValueError, match=r"my_loss.py` has changed since this run began: its sha256 was"):
        criterion(recipe, classes=10, optimizer=None, total_steps=1)


def test_what_it_is_called_with(file):
    logits, labels = torch.randn(8, 10), torch.randint(10, (8,))
    loss = build(f"{file}:Mine", {"power": 2.0})
    assert torch.allclose(loss(logits, labels), CrossEntropy()(logits, labels) ** 2)
    assert pickle.loads(pickle.dumps(loss)).power == 2.0


def test_one_that_is_pointwise_is_clipped(file):
    recipe = override(RECIPES["cifar10"], {"method": f"{file}:Power+ogc", "q": 0.7})
    loss = criterion(recipe, classes=10, optimizer=None, total_steps=1)
    assert isinstance(loss.base, Pointwise)
    assert loss.base.hyperparameters == {"q": 0.7}
    assert isinstance(build(f"{file}:Power+ema", {}).base, Pointwise)


def test_the_copy_that_is_tried_out_is_another(file):
    loss = criterion(override(RECIPES["digits"], {"method": f"{file}:Mine"}), classes=3, optimizer=None, total_steps=1)
    assert loss.steps == 0


def test_a_file_that_is_carried_here(tmp_path):
    own = OwnLoss(tmp_path / "elsewhere.py", "Mine")
    with pytest.raises(ValueError, match="There is no"):
        own.allow()
    with pytest.raises(ValueError, match="runs only if you name it yourself"):
        own.load()
    own.allow(FILE.encode())
    assert own.load().__name__ == "Mine"
    sha256 = hashlib.sha256(FILE.encode()).hexdigest()
    assert own.sha256() == sha256
    own.path.write_text("# an older one")
    assert own.load(sha256).__name__ == own.load().__name__ == "Mine", "whatever lies at its place"


@pytest.mark.parametrize("status", [0, 3])
def test_a_file_that_leaves_is_told(status, file):
    allowed(file, f"import sys\nsys.exit({status})")
    with pytest.raises(ValueError, match=rf"my_loss.py` cannot be loaded: SystemExit: {status}\."):
        OwnLoss(file, "Mine").load()
    leaving = "class Leaving(Mine):\n    def forward(self, logits, labels):\n        raise SystemExit(1)"
    allowed(file, f"{FILE}\n\n{leaving}")
    recipe = override(RECIPES["digits"], {"method": f"{file}:Leaving"})
    with pytest.raises(ValueError, match=r"fails on logits \(4, 10\) and labels \(4,\): SystemExit: 1"):
        criterion(recipe, classes=10, optimizer=None, total_steps=1)


def test_it_goes_on_where_its_file_lies_elsewhere(file, tmp_path):
    """On another machine of a cluster; its checksum says that it is the same."""
    other = tmp_path / "elsewhere" / file.name
    other.parent.mkdir()
    allowed(other)
    with pytest.raises(Interrupted):
        train([job(tmp_path / "run", method=f"{file}:Mine")], watch=StopAt(1, 2))
    [result] = train([job(tmp_path / "run", method=f"{other}:Mine")], resume=True)
    assert result["recipe"]["method"] == f"{other}:Mine"
    allowed(other, FILE + "\n")
    with pytest.raises(CheckpointError, match="method_sha256 is"):
        train([job(tmp_path / "run", method=f"{other}:Mine")], resume=True)


def test_it_resumes_bit_for_bit(file, tmp_path):
    def make(name):
        return job(tmp_path / name, method=f"{file}:Mine", parameters={"power": 1.5})

    train([make("whole")])
    train_in_pieces(lambda: make("pieces"), [(1, 2), (3, 3)])
    assert_equal_runs(tmp_path / "whole", tmp_path / "pieces")


def test_a_changed_file_is_noticed(file, tmp_path):
    """By a new recipe against the checkpoint, and by the recorded one against the file."""

    def make():
        return job(tmp_path / "run", method=f"{file}:Mine", parameters={})

    with pytest.raises(KeyboardInterrupt):
        train([make()], watch=StopAt(2, None))
    allowed(file, FILE + "\n")
    with pytest.raises(CheckpointError, match="belongs to another run: method_sha256 is"):
        train([make()], resume=True)
    file.unlink()
    assert load_network(tmp_path / "run") is not None  # which nobody needs the loss for
