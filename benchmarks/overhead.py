"""Cost of OGC in a training step, compared with F.cross_entropy and with OGC written with scikit-learn and a deque.

    python benchmarks/overhead.py [--blocks 60] [--device cuda] [--json FILE]
    python benchmarks/overhead.py --write README.md

The contenders take turns in one process, in blocks of 32 steps, and the median block is reported, so that a noisy
machine affects all of them. Compare the ratios. On a CPU one thread is used, and its CPU time is measured. The default
rule updates eight times as often in the first 1,024 steps, which are timed by themselves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from marks import renewed
from ogc import OGC, losses
from ogc.clipping.default_rule import EARLY_STEPS
from ogc.given_label import H_MAX, H_MIN, P_MIN
from ogc.losses import Pointwise
from provenance import provenance

RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- made by benchmarks/overhead.py -->", "<!-- end -->"
EVERY, QUEUE, EPSILON, BATCH = 32, 4096, 2.0, 128
Make = Callable[[torch.optim.Optimizer], Callable[[Tensor, Tensor], Tensor]]


class ScikitLearnOGC(nn.Module):
    """A straightforward implementation: a deque, scikit-learn's GaussianMixture, ten bisection steps for p0."""

    def __init__(self, base: Pointwise, queue_size: int = QUEUE) -> None:
        super().__init__()
        self.base, self.p0, self.steps = base, P_MIN, 0
        self.queue: deque[float] = deque(maxlen=queue_size)
        self.H = np.linspace(H_MIN, H_MAX, 1000)
        self.slope = base.slope(torch.exp(-torch.from_numpy(self.H))).numpy()

    def update(self) -> None:
        from sklearn.mixture import GaussianMixture

        model = GaussianMixture(2, max_iter=10, reg_covar=1e-3, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the method stops after ten steps, converged or not
            model.fit(np.array(self.queue).reshape(-1, 1))
        mean, var = model.means_.ravel(), model.covariances_.ravel()
        density = np.exp(-((self.H - mean[:, None]) ** 2) / (2 * var[:, None]))
        clean, noisy = (density / density.sum(1, keepdims=True))[np.argsort(mean)]

        def ratio(tau: float) -> float:
            pull = np.minimum(self.slope, tau)
            return float((noisy * pull).sum() / (clean * pull).sum())

        self.p0 = P_MIN
        if ratio(self.slope[-1]) >= 1 + EPSILON:
            low, high = P_MIN, 1 - P_MIN
            for _ in range(10):
                middle = (low + high) / 2
                tau = float(self.base.slope(torch.tensor(middle, dtype=torch.float64)))
                low, high = (middle, high) if ratio(tau) >= 1 + EPSILON else (low, middle)
            self.p0 = high

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        H = F.cross_entropy(logits, labels, reduction="none")
        self.queue.extend(H.detach().clamp(H_MIN, H_MAX).tolist())
        self.steps += 1
        if self.steps % EVERY == 0 and len(self.queue) == self.queue.maxlen:
            self.update()
        p = torch.exp(-H)
        p0 = torch.tensor(self.p0, device=p.device)
        tau = self.base.slope(p0)
        return torch.where(p > p0, self.base.value(p), self.base.value(p0) + tau * (p0 - p)).mean()


def medians(contenders: dict[str, Callable[[], object]], blocks: int, device: torch.device) -> dict[str, float]:
    """Time the calls in turn, and return the median of each in microseconds."""
    now = time.perf_counter if device.type == "cuda" else time.thread_time
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks):
        for name, call in contenders.items():
            _wait(device)
            start = now()
            call()
            _wait(device)
            times[name].append(now() - start)
    return {name: statistics.median(t) * 1e6 for name, t in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# --- a step of a small network ---------------------------------------------------------------------------------------


def clusters(device: torch.device, samples: int = 64 * BATCH) -> tuple[Tensor, Tensor]:
    """Ten overlapping clusters with 64 features, 30 % of whose labels are random: inputs, labels."""
    g = torch.Generator().manual_seed(0)
    true, random = (torch.randint(10, (samples,), generator=g) for _ in range(2))
    inputs = 0.7 * torch.randn(10, 64, generator=g)[true] + torch.randn(samples, 64, generator=g)
    return inputs.to(device), torch.where(torch.rand(samples, generator=g) < 0.3, random, true).to(device)


def training(make: Make, inputs: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return a call that trains an MLP (64-256-256-10, batch 128, AdamW) for 32 steps."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(network.to(inputs.device).parameters(), lr=1e-3)
    criterion, place = make(optimizer), 0

    def block() -> None:
        nonlocal place
        for _ in range(EVERY):
            batch = slice(place, place + BATCH)
            optimizer.zero_grad()
            criterion(network(inputs[batch]), labels[batch]).backward()
            optimizer.step()
            place = (place + BATCH) % len(inputs)

    return block


def step_cost(device: torch.device, blocks: int) -> dict[str, dict[str, float]]:
    """Time a training step with each criterion in microseconds, in the first 1,024 steps and after them."""
    data = clusters(device)
    makes: dict[str, Make] = {
        "ce": lambda _: nn.CrossEntropyLoss(),
        "default": lambda optimizer: OGC("ce", optimizer),
        "epsilon": lambda optimizer: OGC("ce", optimizer, epsilon=EPSILON),
        "scikit-learn": lambda _: ScikitLearnOGC(losses.CrossEntropy()),
    }
    contenders = {name: training(make, *data) for name, make in makes.items()}
    phases = {"early": medians(contenders, EARLY_STEPS // EVERY, device), "later": medians(contenders, blocks, device)}
    return {phase: {name: t / EVERY for name, t in times.items()} for phase, times in phases.items()}


# --- an update -------------------------------------------------------------------------------------------------------


def update_cost(size: int, device: torch.device, blocks: int) -> dict[str, float]:
    """Time one update (fit and solve) on a full queue, in microseconds."""
    g = torch.Generator().manual_seed(1)
    spread, noisy = torch.randn(size, generator=g), torch.rand(size, generator=g) < 0.4
    H = torch.where(noisy, 3.3 + 1.3 * spread, 0.35 + 0.3 * spread).clamp(H_MIN, H_MAX)
    criterion = OGC("ce", epsilon=EPSILON, follow_lr=False, queue_size=size).to(device)
    criterion.queue[:-1] = H.to(device)
    criterion.seen.fill_(size)
    reference = ScikitLearnOGC(losses.CrossEntropy(), size)
    reference.queue.extend(H.tolist())
    updates = {"ogc": criterion.update, "scikit-learn": reference.update}
    times = medians({k: lambda update=u: [update() for _ in range(8)] for k, u in updates.items()}, blocks, device)  # type: ignore[misc]
    return {name: t / 8 for name, t in times.items()}


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


def launches(call: Callable[[], object]) -> int:
    """Count the kernels, copies and fills that a call launches on the GPU."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events() or ())


def captured_step_cost(classes: int, blocks: int) -> dict[str, dict[str, float]]:
    """Time the forward and backward pass of each criterion replayed from a CUDA graph, and count its launches.

    Logits are bf16, and the learning rate is a tensor.
    """
    device = torch.device("cuda")
    logits = torch.randn(BATCH, classes, device=device).bfloat16().requires_grad_()
    labels, lr = torch.randint(classes, (BATCH,), device=device), torch.tensor(0.1, device=device)
    optimizer = torch.optim.SGD([torch.zeros(1, device=device, requires_grad=True)], lr=lr)
    criteria: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "ce": lambda logits, labels: F.cross_entropy(logits.float(), labels),
        "ce+ogc": OGC("ce", optimizer, epsilon=EPSILON).to(device),
        "fl+ogc": OGC("fl", optimizer, epsilon=EPSILON).to(device),
    }

    def block(criterion: Callable[[Tensor, Tensor], Tensor]) -> None:
        for _ in range(EVERY):
            logits.grad = None
            criterion(logits, labels).backward()

    replays, counts = {}, {}
    for name, criterion in criteria.items():
        counts[name] = launches(lambda criterion=criterion: block(criterion)) / EVERY  # type: ignore[misc]
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            block(criterion)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            block(criterion)
        replays[name] = graph.replay
    times = medians(replays, blocks, device)
    return {name: {"us": times[name] / EVERY, "launches": counts[name]} for name in criteria}


# --- the summary -----------------------------------------------------------------------------------------------------


def summary(cpu: dict[str, Any], engine: dict[str, Any]) -> str:
    """Summarise the recorded runs for the README."""
    early, later = cpu["step_us"]["early"], cpu["step_us"]["later"]
    more = {name: 100 * (later[name] / later["ce"] - 1) for name in ("default", "epsilon")}
    at_first = 100 * (early["default"] / early["ce"] - 1)
    cheaper = {size: times["scikit-learn"] / times["ogc"] for size, times in cpu["update_us"].items()}
    rates = next(row for row in engine["rows"] if row["what"] == "engine")["images_per_second"]
    least, most = min(cheaper.values()), max(cheaper.values())
    lines = (
        "A step of a small network (64-256-256-10, AdamW, batch 128, one CPU core) takes",
        f"{more['default']:.0f} % longer with OGC than with CE, {more['epsilon']:.0f} % with `epsilon=2`, and "
        f"{at_first:.0f} % in the first 1,024 steps,",
        "in which the default rule updates more often. An update is "
        f"{least:.0f} to {most:.0f} times as fast as with scikit-learn's",
        f"`GaussianMixture`. On an {engine['device']}, ResNet-18 trains on images of CIFAR-10's size at",
        f"{rates['ce']:,} images/s with CE, and at {rates['ce+ogc']:,} with CE+OGC "
        "([more measurements](docs/training.md#the-engine)).",
    )
    return "\n".join(lines)


def with_summary(text: str) -> str:
    """Return the document with the summary of the recorded runs between its marks."""
    recorded = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("overhead-cpu", "throughput-h200"))
    return renewed(text, BEGIN, END, summary(*recorded))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--write", type=Path, help="insert the recorded numbers into this document, without measuring")
    args = parser.parse_args()
    if args.write:
        args.write.write_text(with_summary(args.write.read_text()))
        return
    device = torch.device(args.device)
    torch.set_num_threads(1)
    result: dict[str, Any] = {**provenance(device.type), "blocks": args.blocks}
    print(f"torch {torch.__version__} on {result['device']}; medians of {args.blocks} blocks in turn")

    result["step_us"] = step_cost(device, args.blocks)
    print("\nOne step of an MLP, update included (us, and more than with CE)")
    for phase, times in result["step_us"].items():
        cells = (f"{name} {t:.0f} ({t / times['ce'] - 1:+.1%})" for name, t in times.items())
        print(f"{phase:>8}  " + "   ".join(cells))
    result["update_us"] = {str(size): update_cost(size, device, args.blocks // 4) for size in (256, 1024, 4096, 16384)}
    print("\nOne update, fit and solve (us, and how many times as long with scikit-learn)")
    for size, times in result["update_us"].items():
        print(f"{size:>8}  {times['ogc']:.0f}  {times['scikit-learn'] / times['ogc']:.1f} x")
    if device.type == "cuda":
        result["replayed_step"] = {classes: captured_step_cost(classes, args.blocks) for classes in (10, 100, 1000)}
        print("\nForward and backward pass replayed from a CUDA graph, update included (us, launches)")
        for classes, costs in result["replayed_step"].items():
            print(f"{classes:>8}  " + "   ".join(f"{n} {c['us']:.1f} ({c['launches']:.1f})" for n, c in costs.items()))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="OGC: ")
    main()
