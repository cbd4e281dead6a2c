"""Networks by name."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from ogc.models import NETWORKS, build, check_name


@pytest.mark.parametrize("name", NETWORKS)
def test_every_name_builds(name: str) -> None:
    network = build(name, inputs=(1, 32, 32), classes=3, hidden=(8,))
    assert network(torch.randn(2, 1, 32, 32)).shape == (2, 3)


def test_mlp_accepts_any_input_shape() -> None:
    images, rows = build("mlp", inputs=(3, 4, 5), classes=2, hidden=(8, 9)), build("mlp", inputs=(60,), classes=2)
    x = torch.randn(7, 3, 4, 5)
    images.load_state_dict(state := build("mlp", inputs=(60,), classes=2, hidden=(8, 9)).state_dict())
    assert [value.shape[0] for value in state.values()] == [8, 8, 9, 9, 2, 2]
    assert torch.equal(images(x), images(x.flatten(1)))
    assert torch.equal(images(x), images(x.to(memory_format=torch.channels_last)))
    assert rows(x.flatten(1)).shape == (7, 2)


def test_unknown_name_lists_known_names() -> None:
    with pytest.raises(
        ValueError, match=r"no network named 'resnet34'. Did you mean .*resnet34-cifar.* Choose from mlp, .*timm:NAME"
    ):
        check_name("resnet34")
    with pytest.raises(ValueError, match="Did you mean resnet18-cifar, "):
        check_name("resnet18_cifar")
    with pytest.raises(ValueError, match="Choose from mlp, resnet20-cifar"):
        build("vgg", inputs=(3, 8, 8), classes=2)


def test_resnet_requires_images() -> None:
    with pytest.raises(ValueError, match=r"`inputs` should be the shape of an image.*resnet18.*Found `inputs = \(64,"):
        build("resnet18", inputs=(64,), classes=2)


def test_missing_timm_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"timm, which has this network, .* pip install timm"):
        check_name("timm:resnet18")


def test_timm_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = ModuleType("timm")
    timm.is_model = lambda name: name == "convnext_tiny"  # type: ignore[attr-defined]
    timm.list_models = lambda: ["convnext_tiny", "resnet18"]  # type: ignore[attr-defined]
    timm.create_model = lambda name, *, in_chans, num_classes: nn.Conv2d(in_chans, num_classes, 1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert build("timm:convnext_tiny", inputs=(2, 8, 8), classes=4).weight.shape == (4, 2, 1, 1)
    with pytest.raises(ValueError, match=r"timm has no network named 'convnext_tine'. Did you mean convnext_tiny"):
        check_name("timm:convnext_tine")
    with pytest.raises(ValueError, match="list_models"):
        check_name("timm:zzz")
