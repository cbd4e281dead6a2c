"""Augmentation on a GPU: the same pixels as on the CPU, no synchronisation, and new draws in each graph replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ogc.data.augment import IMAGENET, Cifar, Large

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]
COUNT = 128


@contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def some_images(size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (COUNT, 3, size, size), dtype=torch.uint8, generator=generator)


def cifar(images: Tensor) -> Cifar:
    return Cifar(images, mean=IMAGENET.mean, std=IMAGENET.std)


Step = Callable[[torch.Generator], Tensor]


def cifar_step() -> Step:
    augment, index = cifar(some_images().cuda()), torch.arange(COUNT, device="cuda").flip(0)
    return lambda generator: augment(index, augment.draw(COUNT, generator))


def large_step() -> Step:
    augment, images = Large(48).cuda(), some_images(64).cuda()
    return lambda generator: augment(images, augment.draw(COUNT, 64, 64, generator))


def on(device: str, draws: Any) -> Any:
    return type(draws)(*(part.to(device) for part in draws))


def test_cifar_matches_the_cpu() -> None:
    images = some_images()
    alone, augment = cifar(images), cifar(images.cuda())
    index = torch.arange(COUNT)
    for seed in range(20):
        draws = alone.draw(COUNT, torch.Generator().manual_seed(seed))
        draws = draws._replace(angle=draws.angle * (1 + seed % 12))
        expected = alone.moved(index, draws)
        assert torch.equal(augment.moved(index.cuda(), on("cuda", draws)).cpu(), expected)
        assert_close(augment(index.cuda(), on("cuda", draws)).cpu(), alone(index, draws), rtol=0, atol=1e-6)


def test_large_matches_the_cpu() -> None:
    """Noise is the worst case: an error of 1e-6 of the width is multiplied by the difference of neighbouring pixels."""
    images, alone, augment = some_images(64), Large(48), Large(48).cuda()
    draws = alone.draw(COUNT, 64, 64, torch.Generator().manual_seed(0))
    assert_close(augment(images.cuda(), on("cuda", draws)).cpu(), alone(images, draws), rtol=0, atol=5e-4)


@pytest.mark.parametrize("make", [cifar_step, large_step])
def test_no_synchronisation(make: Callable[[], Step]) -> None:
    step, generator = make(), torch.Generator("cuda").manual_seed(0)
    step(generator)
    with no_synchronisation():
        step(generator)


@pytest.mark.parametrize("make", [cifar_step, large_step])
def test_graph_replays_equal_eager_steps(make: Callable[[], Step]) -> None:
    step, generator, eager = make(), torch.Generator("cuda"), torch.Generator("cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(generator)
    torch.cuda.current_stream().wait_stream(stream)

    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        captured = step(generator)
    generator.manual_seed(3)
    eager.manual_seed(3)
    results = []
    for _ in range(5):
        graph.replay()
        results.append(captured.clone())
        assert_close(captured, step(eager), rtol=0, atol=0)
    assert not torch.equal(results[0], results[1])
