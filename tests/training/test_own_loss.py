"""Custom losses from a file, ``ogc train --method my_loss.py:MyLoss``, and resuming with them."""

import hashlib
import pickle

import pytest
import torch

from ogc.losses import CrossEntropy, Pointwise
from ogc.training import RECIPES, CheckpointError, Interrupted, Recipe, allow_loss, load_network, override, train
from ogc.training.method import build, criterion, own_loss, split, with_absolute_path
from ogc.training.own_loss import OwnLoss
from small_runs import StopAt, assert_equal_runs, job, train_with_stops

FILE = """
import torch
from dataclasses import dataclass
from torch import nn
from ogc.losses import Pointwise


class Mine(nn.Module):
    \"\"\"A power of the cross entropy, with a step counter.\"\"\"

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


def write_allowed(path, content=FILE):
    """Write a file and allow it to run."""
    path.write_text(content)
    allow_loss(f"{path}:Mine")
    return path


@pytest.fixture
def file(tmp_path):
    return write_allowed(tmp_path / "my_loss.py")


def test_method_names_are_split():
    assert split("ce+ogc") == ("ce", "+", "ogc")
    assert split("gce") == ("gce", "", "")
    assert split("a+b/c.py:D+ema") == ("a+b/c.py:D", "+", "ema")
    assert own_loss("ce+ogc") is None
    assert own_loss("a.py:B+ogc").name == "B"
    assert with_absolute_path("ce+ogc") == "ce+ogc"


def test_recipe_records_absolute_path_and_checksum(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    recipe = override(RECIPES["digits"], {"method": "my_loss.py:Mine"})
    assert recipe.method == f"{file}:Mine"
    assert recipe.method_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert recipe.parameters == {"power": 1.0, "square": False}
    assert override(recipe, {"power": "2", "square": "true"}).parameters == {"power": 2, "square": True}
    assert override(recipe, {"method": "gce"}).method_sha256 is None
    assert Recipe(**recipe.model_dump(mode="json")) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_reading_a_recorded_recipe_does_not_run_the_file(file):
    recipe = override(RECIPES["digits"], {"method": f"{file}:Mine"})
    write_allowed(file, "raise SystemExit")
    assert Recipe(**recipe.model_dump(mode="json")) == recipe
    assert override(recipe, {"seed": 3}).method_sha256 == recipe.method_sha256
    with pytest.raises(ValueError, match=r"my_loss.py` has changed since this run began: its sha256 was"):
        criterion(recipe, classes=10, optimizer=None, total_steps=1)


def test_parameters_reach_the_custom_loss(file):
    logits, labels = torch.randn(8, 10), torch.randint(10, (8,))
    loss = build(f"{file}:Mine", {"power": 2.0})
    assert torch.allclose(loss(logits, labels), CrossEntropy()(logits, labels) ** 2)
    assert pickle.loads(pickle.dumps(loss)).power == 2.0


def test_pointwise_custom_loss_can_be_clipped(file):
    recipe = override(RECIPES["cifar10"], {"method": f"{file}:Power+ogc", "q": 0.7})
    loss = criterion(recipe, classes=10, optimizer=None, total_steps=1)
    assert isinstance(loss.base, Pointwise)
    assert loss.base.hyperparameters == {"q": 0.7}
    assert isinstance(build(f"{file}:Power+ema", {}).base, Pointwise)


def test_trial_call_uses_a_separate_copy(file):
    loss = criterion(override(RECIPES["digits"], {"method": f"{file}:Mine"}), classes=3, optimizer=None, total_steps=1)
    assert loss.steps == 0


def test_content_can_be_allowed_without_the_file(tmp_path):
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
    assert own.load(sha256).__name__ == own.load().__name__ == "Mine", "the allowed content is used, not the file"


@pytest.mark.parametrize("status", [0, 3])
def test_error_reports_a_file_that_exits(status, file):
    write_allowed(file, f"import sys\nsys.exit({status})")
    with pytest.raises(ValueError, match=rf"my_loss.py` cannot be loaded: SystemExit: {status}\."):
        OwnLoss(file, "Mine").load()
    exiting = "class Exiting(Mine):\n    def forward(self, logits, labels):\n        raise SystemExit(1)"
    write_allowed(file, f"{FILE}\n\n{exiting}")
    recipe = override(RECIPES["digits"], {"method": f"{file}:Exiting"})
    with pytest.raises(ValueError, match=r"fails on logits \(4, 10\) and labels \(4,\): SystemExit: 1"):
        criterion(recipe, classes=10, optimizer=None, total_steps=1)


def test_parameters_without_a_default_value_are_explained(file):
    write_allowed(file, "from torch import nn\nclass Mine(nn.Module):\n    def __init__(self, k):\n        pass")
    with pytest.raises(ValueError, match=r"positional argument: 'k'\. Give its parameters default values\.$"):
        build(f"{file}:Mine", {})


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("assert False", r"AssertionError\."),
        ("raise RuntimeError('Why?')", r"RuntimeError: Why\?"),
        ("1 / 0", r"ZeroDivisionError: division by zero\."),
    ],
)
def test_error_ends_like_a_sentence(statement, reason, file):
    write_allowed(file, statement)
    with pytest.raises(ValueError, match=rf"cannot be loaded: {reason}$"):
        OwnLoss(file, "Mine").load()
    in_the_constructor = f"class Mine(nn.Module):\n    def __init__(self):\n        {statement}"
    write_allowed(file, f"from torch import nn\n{in_the_constructor}")
    with pytest.raises(ValueError, match=rf"cannot be constructed: {reason}$"):
        build(f"{file}:Mine", {})
    write_allowed(file, f"from torch import nn\n{in_the_constructor.replace('__init__(self)', 'forward(self, *_)')}")
    with pytest.raises(ValueError, match=rf"fails on logits \(4, 10\) and labels \(4,\): {reason}$"):
        criterion(override(RECIPES["digits"], {"method": f"{file}:Mine"}), classes=10, optimizer=None, total_steps=1)


def test_run_resumes_with_the_file_at_another_path(file, tmp_path):
    """As on another machine of a cluster. The checksum must match."""
    other = tmp_path / "elsewhere" / file.name
    other.parent.mkdir()
    write_allowed(other)
    with pytest.raises(Interrupted):
        train([job(tmp_path / "run", method=f"{file}:Mine")], watch=StopAt(1, 2))
    [result] = train([job(tmp_path / "run", method=f"{other}:Mine")], resume=True)
    assert result["recipe"]["method"] == f"{other}:Mine"
    write_allowed(other, FILE + "\n")
    with pytest.raises(CheckpointError, match="method_sha256 is"):
        train([job(tmp_path / "run", method=f"{other}:Mine")], resume=True)


def test_custom_loss_resumes_bit_for_bit(file, tmp_path):
    def make(name):
        return job(tmp_path / name, method=f"{file}:Mine", parameters={"power": 1.5})

    train([make("uninterrupted")])
    train_with_stops(lambda: make("resumed"), [(1, 2), (3, 3)])
    assert_equal_runs(tmp_path / "uninterrupted", tmp_path / "resumed")


def test_run_does_not_resume_with_a_changed_file(file, tmp_path):
    """The network can still be loaded, even without the file."""

    def make():
        return job(tmp_path / "run", method=f"{file}:Mine", parameters={})

    with pytest.raises(KeyboardInterrupt):
        train([make()], watch=StopAt(2, None))
    write_allowed(file, FILE + "\n")
    with pytest.raises(CheckpointError, match="belongs to another run: method_sha256 is"):
        train([make()], resume=True)
    file.unlink()
    assert load_network(tmp_path / "run") is not None
