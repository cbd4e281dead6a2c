"""Batch norm, residual and ReLU on a GPU: the fused kernels beside torch.compile and eager torch.

    python benchmarks/norm_act.py [--seconds 85]

bf16, channels-last, batch 128, the norms of ResNet-18 on 32 x 32 pixels. Everything is timed as a CUDA graph.
The first table is a layer: forwards over enough buffers to leave the L2 cache, then backwards over them; microseconds
a call, and the bandwidth that the least traffic of two passes makes of it. The last two columns are all twenty norms of
a step: alone, and as one of four side by side on four streams, which is how several runs train.
Contenders come in order of interest and are left out once the time is up; all are compiled first, side by side.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ogc.models import NormAct, fused_norm
from ogc.models.fused_norm import SHAPES, Shape
from provenance import provenance

LAYERS = [(128, 64, 32, 32), (128, 128, 16, 16), (128, 256, 8, 8), (128, 512, 4, 4)]
Call = Callable[[NormAct, Tensor, Tensor | None], Tensor]


def torch_version(x: Tensor, residual: Tensor | None, *others: Tensor) -> Tensor:
    y = F.batch_norm(x, *others, True, 0.1, 1e-5)
    return F.relu(y if residual is None else y + residual)


def with_torch(function: Callable[..., Tensor]) -> Call:
    def call(module: NormAct, x: Tensor, residual: Tensor | None) -> Tensor:
        return function(x, residual, module.running_mean, module.running_var, module.weight, module.bias)

    return call


@contextmanager
def settings(finish: str, changes: dict[str, Shape]) -> Iterator[None]:
    before, fused_norm.FINISH = (fused_norm.FINISH, dict(SHAPES)), finish  # type: ignore[assignment]
    SHAPES.update(changes)
    try:
        yield
    finally:
        fused_norm.FINISH = before[0]
        SHAPES.update(before[1])


FUSED: dict[str, tuple[str, dict[str, Shape]]] = {
    "fused, user finishes": ("user", {}),
    "fused, last finishes": ("last", {}),
    "fused, own kernel": ("own", {}),
    "user, 32 columns, 8 warps": ("user", {kernel: Shape(2, 128, 32, 8) for kernel in SHAPES}),
    "user, 32 columns": ("user", {kernel: shape._replace(columns=32, step=256) for kernel, shape in SHAPES.items()}),
    "user, reduce by 32 columns": ("user", {"moments": Shape(1, 512, 32, 16), "sums": Shape(1, 256, 32, 16)}),
    "last, 2x programs of 8 warps": (
        "last",
        {
            "moments": Shape(2, 128, 64, 8),
            "apply": Shape(4, 64, 64, 8),
            "sums": Shape(2, 64, 64, 8),
            "gradient": Shape(4, 64, 64, 8),
        },
    ),
    "last, many small to write": ("last", {"apply": Shape(8, 32, 64, 4), "gradient": Shape(8, 32, 64, 4)}),
}


@cache
def side_stream() -> torch.cuda.Stream:
    """Everything is captured on the same one: autograd's nodes remember theirs."""
    return torch.cuda.Stream()


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    stream = side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph


def microseconds(replay: Callable[[], object], repeats: int = 25) -> float:
    """The median of some replays, after a few."""
    times = []
    for _ in range(repeats + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[5:])


class Norm:
    """One norm with its data; what a step does with it, in two halves."""

    def __init__(self, shape: tuple[int, ...], residual: bool) -> None:
        self.module = NormAct(shape[1]).cuda()
        self.x, self.dy, *rest = (
            torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
            for _ in range(2 + residual)
        )
        self.residual = rest[0].requires_grad_() if residual else None
        self.x.requires_grad_()
        self.inputs = [self.x, *([self.residual] if residual else []), self.module.weight, self.module.bias]

    def forward(self, call: Call) -> None:
        self.y = call(self.module, self.x, self.residual)

    def backward(self) -> None:
        self.gradients = torch.autograd.grad(self.y, self.inputs, self.dy)
        del self.y


def layer(norms: list[Norm], call: Call) -> tuple[float, float]:
    """Microseconds forwards and backwards."""

    def forward() -> None:
        for norm in norms:
            norm.forward(call)

    def both() -> None:
        forward()
        for norm in norms:
            norm.backward()

    graph = captured(both)
    total = microseconds(graph.replay)
    graph = captured(forward)
    first = microseconds(graph.replay)
    for norm in norms:
        del norm.y, norm.gradients
    return first / len(norms), (total - first) / len(norms)


def step(call: Call, streams: int) -> float:
    """Microseconds of the twenty norms of a step, each way, when so many steps run side by side: of one of them."""
    graphs, keep = [], []
    for _ in range(streams):
        norms = [Norm(shape, residual) for shape in LAYERS for residual in (False, False, True, False, True)]

        def work(norms: list[Norm] = norms) -> None:
            for norm in norms:
                norm.forward(call)
            for norm in reversed(norms):
                norm.backward()

        graphs.append(captured(work))
        keep.append(norms)
    sides = [torch.cuda.Stream() for _ in graphs]

    def replay() -> None:
        for side, graph in zip(sides, graphs, strict=True):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(4):
                    graph.replay()
        for side in sides:
            torch.cuda.current_stream().wait_stream(side)

    return microseconds(replay) / (4 * streams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=80, help="start no contender after this")
    parser.add_argument("--compile", metavar="NAME", help="only compile this one")
    arguments, begin = parser.parse_args(), time.perf_counter()
    torch._dynamo.config.recompile_limit = 64
    contenders: dict[str, tuple[Call, str, dict[str, Shape]]] = {
        "eager": (with_torch(torch_version), "user", {}),
        "compiled": (with_torch(torch.compile(torch_version, dynamic=False)), "user", {}),
        **{name: (lambda *args: fused_norm.norm_act(*args)[0], *how) for name, how in FUSED.items()},
    }
    kinds = [(shape, residual) for shape in LAYERS for residual in (False, True)]
    if arguments.compile:
        call, finish, changes = contenders[arguments.compile]
        with settings(finish, changes):
            for shape, residual in kinds:
                norm = Norm(shape, residual)
                norm.forward(call)
                norm.backward()
        return

    print(provenance("cuda"))
    work = [subprocess.Popen([sys.executable, __file__, "--compile", name]) for name in contenders]
    for process in work:
        process.wait()
    norms = {}
    for shape, residual in kinds:
        bytes_of_three = 6 * torch.Size(shape).numel()
        norms[shape, residual] = [Norm(shape, residual) for _ in range(max(4, int(180e6 / bytes_of_three)))]
    print(f"compiled after {time.perf_counter() - begin:.0f} s")

    titles = [f"{shape[1]}{'+r' if residual else ''}" for shape, residual in norms]
    print("\nus forwards/backwards (GB/s); +r with residual")
    print(f"{'':30}" + "".join(f"{title:>26}" for title in titles) + f"{'step':>8}{'x4':>8}")
    order = [*list(FUSED)[:3], "eager", "compiled", *list(FUSED)[3:]]
    for name in order:
        if time.perf_counter() - begin > arguments.seconds:
            print(f"{name:30} left out: the time is up")
            continue
        call, finish, changes = contenders[name]
        cells = []
        with settings(finish, changes):
            try:
                for (shape, residual), some in norms.items():
                    forward, backward = layer(some, call)
                    size = 2 * torch.Size(shape).numel() / 1e3
                    rates = (3 + residual) * size / forward, (5 + 2 * residual) * size / backward
                    cells.append(f"{forward:5.1f}/{backward:5.1f} ({rates[0]:5.0f}/{rates[1]:5.0f})")
                alone, four = step(call, 1), step(call, 4)
            except Exception as error:  # one that cannot be compiled should not hide the others
                print(f"{name:30} {type(error).__name__}: {str(error)[:200]}")
                continue
        seconds = time.perf_counter() - begin
        print(f"{name:30}" + "".join(f"{cell:>26}" for cell in cells) + f"{alone:8.0f}{four:8.0f}   [{seconds:.0f} s]")

    print("\ncopies of x, us (GB/s):", end=" ")
    for shape in LAYERS:
        pairs = [(norm.x.detach(), torch.empty_like(norm.x)) for norm in norms[shape, False]]

        def copy(pairs: list[tuple[Tensor, Tensor]] = pairs) -> None:
            for x, y in pairs:
                y.copy_(x)

        took = microseconds(captured(copy).replay) / len(pairs)
        print(f"{shape[1]}: {took:.1f} ({4 * torch.Size(shape).numel() / took / 1e3:.0f})", end="  ")
    print()


if __name__ == "__main__":
    main()
