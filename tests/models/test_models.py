"""Networks by name."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from ogc.models import NETWORKS, build_network, check_network


@pytest.mark.parametrize("name", NETWORKS)
def test_every_name_builds(name):
    network = build_network(name, inputs=(1, 32, 32), classes=3, hidden=(8,))
    assert network(torch.randn(2, 1, 32, 32)).shape == (2, 3)


def test_mlp_accepts_any_input_shape():
    images = build_network("mlp", inputs=(3, 4, 5), classes=2, hidden=(8, 9))
    state = build_network("mlp", inputs=(60,), classes=2, hidden=(8, 9)).state_dict()
    assert [value.shape[0] for value in state.values()] == [8, 8, 9, 9, 2, 2]
    images.load_state_dict(state)
    x = torch.randn(7, 3, 4, 5)
    assert torch.equal(images(x), images(x.flatten(1)))
    assert torch.equal(images(x), images(x.to(memory_format=torch.channels_last)))


def test_unknown_names_are_rejected_with_similar_ones():
    for name, found in (("resnet34", "Did you mean .*resnet34-cifar"), ("vgg", "Choose from mlp, .*timm:NAME")):
        with pytest.raises(ValueError, match=rf"'{name}'.*{found}"):
            build_network(name, inputs=(3, 8, 8), classes=2)


def test_resnet_requires_images():
    with pytest.raises(ValueError, match=r"`inputs`.*\(64,\)"):
        build_network("resnet18", inputs=(64,), classes=2)


def test_timm_by_name(monkeypatch):
    timm = ModuleType("timm")
    timm.is_model = lambda name: name == "convnext_tiny"
    timm.list_models = lambda: ["convnext_tiny", "resnet18"]
    timm.create_model = lambda name, *, in_chans, num_classes: nn.Conv2d(in_chans, num_classes, 1)
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert build_network("timm:convnext_tiny", inputs=(2, 8, 8), classes=4).weight.shape == (4, 2, 1, 1)
    with pytest.raises(ValueError, match=r"'convnext_tine'.* convnext_tiny"):
        check_network("timm:convnext_tine")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match="pip install timm"):
        check_network("timm:resnet18")
