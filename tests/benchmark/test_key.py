import re

from ogc.benchmark.key import key_of
from ogc.benchmark.plan import find, name_of
from ogc.training import RECIPES, allow_loss, override
from ogc.training.recipe import by_name


def test_key_has_the_decay_if_the_average_is_reported():
    raw, averaged = (by_name(name) for name in ("cifar10", "cifar10-plus"))
    assert key_of(override(raw, {"average": 0.9})) == key_of(raw)
    assert key_of(override(averaged, {"average": 0.9})) == f"{key_of(averaged)}-average-0.9"


def test_key_depends_on_settings():
    usual = override(RECIPES["cifar10"], {"method": "gce", "noise": "symmetric:0.5"})

    def key(**changes):
        return key_of(override(usual, changes))

    plain = "cifar10-gce-symmetric-0.5"
    assert key() == key(seed=3) == key(average=0.9) == key(precision="float32") == key(q=0.9) == plain
    assert key(noise=None) == "cifar10-gce"
    assert key(noise_seed=2) == f"{plain}-noise_seed-2"
    assert key(q=0.123456789) == f"{plain}-q-0.123456789"
    assert key(epochs=3) == f"{plain}-epochs-3"
    assert key(epochs=3, report_epochs=10) == f"{plain}-epochs-3-report_epochs-10"
    assert key(report_epochs=5) == f"{plain}-report_epochs-5"
    assert key(clip_norm=None) == f"{plain}-clip_norm-None"
    assert key_of(override(RECIPES["webvision"], {"report_epochs": 10})).endswith("-report_epochs-10")
    assert key(epochs=3, report_epochs=2) == f"{plain}-epochs-3-report_epochs-2"
    assert key(epochs=3, milestones=(1,)) == f"{plain}-epochs-3-milestones-1"
    assert key(milestones=(10, 20), lr=0.05) == f"{plain}-lr-0.05-milestones-10-20"
    assert key(network="resnet34-cifar") == f"{plain}-network-resnet34-cifar"
    assert key(lr=1e16) != key(lr=1e-16) == f"{plain}-lr-1e-16"


def test_key_of_custom_loss(tmp_path):
    file = tmp_path / "mine.py"
    text = "import torch.nn as nn\nclass MyLoss(nn.CrossEntropyLoss):\n    def __init__(self, q: float = 0.5):\n"
    file.write_text(f"{text}        super().__init__()\n")
    method = f"{file}:MyLoss"
    allow_loss(method)
    cells = find("cifar10", [method], ["symmetric:0.5"])
    assert [cell.paper for cell in cells] == [None]
    key = cells[0].key
    assert re.fullmatch(r"cifar10-mine.py-MyLoss-[0-9a-f]{8}-symmetric-0.5-q-0.5", key)
    file.write_text(f"{text}        super().__init__(label_smoothing=0.1)\n")
    allow_loss(method)
    assert find("cifar10", [method], ["symmetric:0.5"])[0].key != key
    assert name_of(method) == "MyLoss"
    values = (1, -1, 1e16, 1e-16, -1e16, -1e-16)
    keys = [key_of(override(cells[0].recipe(0), {"q": value})) for value in values]
    assert len(set(keys)) == len(values)
    assert keys[1].endswith("-q-minus-1")


def test_key_of_custom_loss_with_ogc_has_differences_from_ce_ogc(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ogc.losses import Pointwise\nclass Brier(Pointwise):\n    def value(self, p): return (1 - p) ** 2 / 2\n"
    )
    allow_loss(f"{file}:Brier+ogc")
    usual = find("cifar10", [f"{file}:Brier+ogc"], ["symmetric:0.5"])[0]
    assert re.fullmatch(r"cifar10-mine.py-Brier_ogc-[0-9a-f]{8}-symmetric-0.5-epsilon-2", usual.key)
    changed = override(usual.recipe(0), {"every": 8, "epsilon": 1})
    assert key_of(changed) == f"{usual.key.removesuffix('-2')}-1-every-8"
