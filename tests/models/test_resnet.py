"""ResNets: sizes, names and initial weights. Memory layout and batch do not change the output."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from ogc.models import NormAct, build_network
from ogc.models.resnet import BasicBlock, Bottleneck, ResNet

# number of parameters; torchvision's resnet18 and resnet50 have as many
SIZES = {
    ("resnet20-cifar", 10): 272_474,
    ("resnet18-cifar", 10): 11_173_962,
    ("resnet34-cifar", 100): 21_328_292,
    ("resnet18", 1000): 11_689_512,
    ("resnet50", 1000): 25_557_032,
}


def tiny(block=BasicBlock, *, small=True) -> ResNet:
    torch.manual_seed(0)
    return ResNet(block, (1, 2, 1, 1), channels=3, classes=7, small=small)


@pytest.mark.parametrize(("name", "classes"), SIZES)
def test_number_of_parameters(name, classes):
    with torch.device("meta"):
        network = build_network(name, inputs=(3, 32, 32), classes=classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == SIZES[name, classes]


def test_parameter_names_match_torchvision():
    with torch.device("meta"):
        names = build_network("resnet50", inputs=(3, 224, 224), classes=1000).state_dict()
    assert len(names) == 267  # torchvision's 320, less 53 counters
    wanted = {"conv1.weight", "bn1.running_var", "layer1.0.downsample.0.weight", "layer1.0.downsample.1.bias"}
    assert wanted <= names.keys()
    assert names["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)
    assert names["fc.weight"].shape == (1000, 2048)


@pytest.mark.parametrize(
    ("block", "small", "sides"), [(BasicBlock, True, [32, 16, 8, 4]), (Bottleneck, False, [8, 4, 2, 1])]
)
def test_feature_map_sizes(block, small, sides):
    network, found = tiny(block, small=small), []
    for name in ("layer1", "layer2", "layer3", "layer4"):
        network.get_submodule(name).register_forward_hook(lambda _, __, pair: found.append(pair[0].shape[-1]))
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert found == sides


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
@pytest.mark.parametrize(("before", "stride"), [(8, 2), (8, 1), (16, 1)])
def test_block_equals_the_papers_definition(block, before, stride):
    torch.manual_seed(0)
    module, x = block(before, 16 // block.expansion, stride), torch.randn(4, before, 6, 6)

    def norm(y):
        return (y - y.mean((0, 2, 3), keepdim=True)) / (y.var((0, 2, 3), keepdim=True, correction=0) + 1e-5).sqrt()

    y = x
    for i, convolution in enumerate(["conv1", "conv2", "conv3"][: 2 if block is BasicBlock else 3]):
        y = norm(module.get_submodule(convolution)(torch.relu(y) if i else y))
    shortcut = x if (before, stride) == (16, 1) else norm(module.downsample[0](x))
    for result in module((x, x)):
        assert_close(result, torch.relu(y + shortcut), rtol=1e-4, atol=1e-5)


def test_initial_weights():
    """Convolutions are uniform within sqrt(6 / fan-in), the last layer within sqrt(6 / (inputs + classes))."""
    network = tiny()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            bound = math.sqrt(6 / module.weight[0].numel())
            assert 0.97 * bound < module.weight.abs().max() <= bound
            assert_close(module.weight.std().item(), bound / math.sqrt(3), rtol=0.05, atol=0)
        if isinstance(module, NormAct):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert not module.bias.any()
    bound = math.sqrt(6 / (512 + 7))
    assert 0.97 * bound < network.fc.weight.abs().max() <= bound
    assert not network.fc.bias.any()


@pytest.mark.parametrize("small", [True, False])
def test_channels_last_is_preserved(small):
    network, images = tiny(small=small).double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected, layouts = network(images), []
    network.to(memory_format=torch.channels_last)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(
                lambda _, __, y: layouts.append(y.is_contiguous(memory_format=torch.channels_last))
            )
    assert_close(network(images.to(memory_format=torch.channels_last)), expected)
    assert all(layouts)
    assert len(layouts) == 13, "all but the stem, which is called by its function"


def test_zero_channels_and_the_rest_of_the_batch_do_not_change_the_output():
    network, images = tiny().double(), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    more = torch.nn.functional.pad(images, (0, 0, 0, 0, 0, 5))
    assert_close(network(more), network(images))
    network.eval()
    assert_close(network(images)[1:2], network(images[1:2]))
