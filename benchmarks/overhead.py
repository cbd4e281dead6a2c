"""Cost of OGC in a training step, compared with F.cross_entropy and with OGC written with scikit-learn and a deque.

    python benchmarks/overhead.py [--blocks 60] [--device cuda] [--json FILE]
    python benchmarks/overhead.py --write README.md

The contenders take turns in one process, in blocks of 32 steps, so that a noisy machine affects all of them. A step is
forward and backward, a block contains one update, and the median block is reported. Updates alone are timed in blocks
of eight. On a CPU one thread is used. Times depend on the machine, so compare the ratios.

Both implementations of OGC solve Eq. 12 with a constant epsilon. The default rule is timed by itself, in its first
1,024 steps, where it updates every four steps, and after them.
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
EVERY = 32
QUEUE = 4096
EPSILON = 2.0


class ScikitLearnOGC(nn.Module):
    """A straightforward implementation: a deque, scikit-learn's GaussianMixture, ten bisection steps for p0."""

    def __init__(self, base: Pointwise, epsilon: float = EPSILON, queue_size: int = QUEUE) -> None:
        super().__init__()
        self.base, self.epsilon = base, epsilon
        self.queue: deque[float] = deque(maxlen=queue_size)
        self.p0, self.steps = P_MIN, 0
        self.H = np.linspace(H_MIN, H_MAX, 1000)
        self.slope = base.slope(torch.exp(-torch.from_numpy(self.H))).numpy()

    def update(self) -> None:
        from sklearn.mixture import GaussianMixture

        queue = np.array(self.queue).reshape(-1, 1)
        model = GaussianMixture(2, max_iter=10, reg_covar=1e-3, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the method stops after ten steps, converged or not
            model.fit(queue)
        mean, var = model.means_.ravel(), model.covariances_.ravel()
        density = np.exp(-((self.H - mean[:, None]) ** 2) / (2 * var[:, None]))
        clean, noisy = (density / density.sum(1, keepdims=True))[np.argsort(mean)]

        def ratio(tau: float) -> float:
            pull = np.minimum(self.slope, tau)
            return float((noisy * pull).sum() / (clean * pull).sum())

        self.p0 = P_MIN
        if ratio(self.slope[-1]) >= 1 + self.epsilon:
            low, high = P_MIN, 1 - P_MIN
            for _ in range(10):
                middle = (low + high) / 2
                tau = float(self.base.slope(torch.tensor(middle, dtype=torch.float64)))
                low, high = (middle, high) if ratio(tau) >= 1 + self.epsilon else (low, middle)
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
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks + 3):
        for name, call in contenders.items():
            _wait(device)
            start = time.perf_counter()
            call()
            _wait(device)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t[3:]) * 1e6 for name, t in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def steps_of(criterion: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> Callable[[], None]:
    def block() -> None:
        for _ in range(EVERY):
            logits.grad = None
            criterion(logits, labels).backward()

    return block


def batch(classes: int, device: torch.device, samples: int = 128) -> tuple[Tensor, Tensor]:
    """Make logits like those of a partly trained network, with 40 % wrong labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (samples,), generator=generator)
    logits = torch.randn(samples, classes, generator=generator)
    right = torch.rand(samples, generator=generator) < 0.6
    logits[torch.arange(samples), labels] += torch.where(right, 5.0, 0.0)
    return logits.to(device).requires_grad_(), labels.to(device)


def queue_like_training(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    spread = torch.randn(size, generator=generator)
    noisy = torch.rand(size, generator=generator) < 0.4
    return torch.where(noisy, 3.3 + 1.3 * spread, 0.35 + 0.3 * spread).clamp(H_MIN, H_MAX)


def update_cost(base: str, size: int, device: torch.device, blocks: int) -> dict[str, float]:
    """Time one update (fit and solve) on a full queue of ``size``, in microseconds."""
    criterion = OGC(base, epsilon=EPSILON, follow_lr=False, queue_size=size).to(device)
    reference = ScikitLearnOGC(losses.by_name(base)(), queue_size=size)
    H = queue_like_training(size)
    criterion.queue[:-1] = H.to(device)
    criterion.seen.fill_(size)
    reference.queue.extend(H.tolist())

    def eight_times(update: Callable[[], None]) -> Callable[[], None]:
        return lambda: [update() for _ in range(8)] and None

    times = medians(
        {"ogc": eight_times(criterion.update), "scikit-learn": eight_times(reference.update)}, blocks, device
    )
    return {name: t / 8 for name, t in times.items()}


def replayed_update_cost(base: str, device: torch.device, blocks: int) -> float:
    """Time one update replayed from a CUDA graph, which excludes the host, in microseconds."""
    criterion = OGC(base, epsilon=EPSILON, follow_lr=False).to(device)
    criterion.queue[:-1] = queue_like_training(QUEUE).to(device)
    criterion.seen.fill_(QUEUE)
    criterion.update()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        criterion.update()
    return medians({"ogc": lambda: [graph.replay() for _ in range(100)]}, blocks, device)["ogc"] / 100


def launches(call: Callable[[], object]) -> int:
    """Count the kernels, copies and fills that a call launches on the GPU."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events() or ())


def captured(block: Callable[[], None]) -> Callable[[], None]:
    """Capture a block as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        block()  # compiles the kernels
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        block()
    return graph.replay


def captured_step_cost(classes: int, device: torch.device, blocks: int) -> dict[str, dict[str, float]]:
    """Time a step of each criterion replayed from a CUDA graph, in microseconds, and count its launches.

    Logits are bf16, and the learning rate is a tensor.
    """
    logits, labels = batch(classes, device)
    logits = logits.detach().bfloat16().requires_grad_()
    lr = torch.tensor(0.1, device=device)
    optimizer = torch.optim.SGD([torch.zeros(1, device=device, requires_grad=True)], lr=lr)
    contenders: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "ce": lambda logits, labels: F.cross_entropy(logits.float(), labels),
        "ce+ogc": OGC("ce", optimizer, epsilon=EPSILON).to(device),
        "fl+ogc": OGC("fl", optimizer, epsilon=EPSILON).to(device),
    }
    steps = {name: steps_of(criterion, logits, labels) for name, criterion in contenders.items()}
    counts = {name: launches(step) / EVERY for name, step in steps.items()}
    times = medians({name: captured(step) for name, step in steps.items()}, blocks, device)
    return {name: {"us": times[name] / EVERY, "launches": counts[name]} for name in contenders}


def default_cost(classes: int, device: torch.device, blocks: int) -> dict[str, float]:
    """Time a step with the default rule, in its first steps and after them, in multiples of F.cross_entropy."""
    logits, labels = batch(classes, device)
    criterion = OGC("ce", follow_lr=False).to(device)
    contenders = {"ce": steps_of(F.cross_entropy, logits, labels), "ogc": steps_of(criterion, logits, labels)}
    early = medians(contenders, EARLY_STEPS // EVERY - 3, device)  # after three blocks of warm-up
    later = medians(contenders, blocks, device)
    return {"early": early["ogc"] / early["ce"], "later": later["ogc"] / later["ce"]}


def mlp_share(device: torch.device, blocks: int) -> dict[str, float]:
    """Time a step of a small MLP (64-512-512-10, batch 128, SGD) with CE and with OGC, in microseconds."""
    inputs, labels = torch.randn(128, 64, device=device), torch.randint(10, (128,), device=device)

    def training(make: Callable[[torch.optim.Optimizer], nn.Module]) -> Callable[[], None]:
        layers = nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        network = nn.Sequential(*layers).to(device)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        criterion = make(optimizer).to(device)

        def block() -> None:
            for _ in range(EVERY):
                optimizer.zero_grad()
                criterion(network(inputs), labels).backward()
                optimizer.step()

        return block

    times = medians(
        {"ce": training(lambda _: nn.CrossEntropyLoss()), "ogc": training(lambda o: OGC("ce", o, epsilon=EPSILON))},
        blocks,
        device,
    )
    return {name: t / EVERY for name, t in times.items()}


def _times(cheaper: dict[str, float]) -> str:
    """Return "6 times", or "6 (CE) or 7 (FL) times".

    >>> _times({"ce": 5.9, "fl": 6.1})
    '6 times'
    """
    ce, fl = (f"{cheaper[base]:.0f}" for base in ("ce", "fl"))
    return f"{ce} times" if ce == fl else f"{ce} (CE) or {fl} (FL) times"


def summary(cpu: dict[str, Any], eager: dict[str, Any], gpu: dict[str, Any]) -> str:
    """Summarise the recorded runs for the README."""
    step, update, mlp = cpu["step_us"], cpu["update_us"], cpu["mlp_step_us"]
    times = {(c, m): step[c][f"{m}+ogc"] / step[c]["ce"] for c in ("10", "1000") for m in ("ce", "fl")}
    cheaper = {base: update[f"{base} 4096"]["scikit-learn"] / update[f"{base} 4096"]["ogc"] for base in ("ce", "fl")}
    early, later = (cpu["default_times_ce"][name] for name in ("early", "later"))
    plain = [step[c]["scikit-learn"] / step[c]["ce+ogc"] for c in ("10", "100", "1000")]
    on_gpu = {c: times["ce+ogc"] / times["ce"] for c, times in eager["step_us"].items()}
    rates = next(row for row in gpu["rows"] if row["what"] == "engine")["images_per_second"]
    dates = sorted({measured["date"][:10] for measured in (eager, gpu)})
    lines = (
        "The table shows the time of a forward and backward pass on one CPU core, relative to `F.cross_entropy`,",
        f"with a batch size of 128 ({cpu['device']}, torch {cpu['torch']}, {cpu['date'][:10]}).",
        "",
        "| loss | 10 classes | 1,000 classes |",
        "|---|---|---|",
        *(
            f"| {base.upper()}+OGC, `epsilon={EPSILON:g}` | {times['10', base]:.1f} | {times['1000', base]:.1f} |"
            for base in ("ce", "fl")
        ),
        f"| CE+OGC, default rule, first 1,024 steps (an update every 4 steps) | {early:.1f} | - |",
        f"| CE+OGC, default rule, later steps (an update every 32 steps) | {later:.1f} | - |",
        "",
        f"A whole training step of a small MLP takes {100 * (mlp['ogc'] / mlp['ce'] - 1):.0f} % longer with CE+OGC "
        f"(`epsilon={EPSILON:g}`) than with CE. Compared",
        "with ogc, a straightforward implementation with scikit-learn's `GaussianMixture` and a deque takes "
        f"{_times(cheaper)} as long to update",
        f"tau, and {min(plain):.1f} to {max(plain):.1f} times as long for a forward and backward pass "
        "(10 to 1,000 classes).",
        "",
        f"On an {gpu['device']} (torch {gpu['torch']}, {' and '.join(dates)}), a forward and "
        "backward pass of CE+OGC in eager mode takes",
        f"{on_gpu['10']:.1f} times as long as `F.cross_entropy` with 10 classes, and {on_gpu['10000']:.1f} times with "
        "10,000. At 10 classes this hardly matters for a real network",
        f"in a CUDA graph: ResNet-18 trains on images of CIFAR-10's size at {rates['ce']:,} images/s with CE, and at "
        f"{rates['ce+ogc']:,}",
        "images/s with CE+OGC ([more measurements](docs/training.md#the-engine)).",
    )
    return "\n".join(lines)


def with_summary(text: str) -> str:
    """Return the document with the summary of the recorded runs between its marks."""
    names = ("overhead-cpu", "overhead-h200", "throughput-h200")
    return renewed(text, BEGIN, END, summary(*(json.loads((RESULTS / f"{name}.json").read_text()) for name in names)))


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
    # The batch never changes, so the normals overlap, or nothing is clipped.
    warnings.filterwarnings("ignore", message="OGC: ")
    result: dict[str, object] = {**provenance(device.type), "blocks": args.blocks}
    where = "" if device.type == "cuda" else ", one core"
    print(f"torch {torch.__version__} on {result['device']}{where}; medians of {args.blocks} blocks in turn")

    print("\nOne step, forward and backward, batch 128, update included (us, and times F.cross_entropy)")
    print(f"{'classes':>8} {'CE':>8} {'CE+OGC':>16} {'FL+OGC':>16} {'scikit-learn':>16}")
    growth = {}
    for classes in (10, 100, 1000, 10000):
        logits, labels = batch(classes, device)
        contenders = {
            "ce": steps_of(F.cross_entropy, logits, labels),
            "ce+ogc": steps_of(OGC("ce", epsilon=EPSILON, follow_lr=False).to(device), logits, labels),
            "fl+ogc": steps_of(OGC("fl", epsilon=EPSILON, follow_lr=False).to(device), logits, labels),
            "scikit-learn": steps_of(ScikitLearnOGC(losses.CrossEntropy()), logits, labels),
        }
        times = {k: t / EVERY for k, t in medians(contenders, args.blocks, device).items()}
        growth[classes] = times
        cells = (f"{times[k]:8.1f} {times[k] / times['ce']:5.2f} x" for k in list(contenders)[1:])
        print(f"{classes:>8} {times['ce']:8.1f} {' '.join(cells)}")
    result["step_us"] = growth
    result["default_times_ce"] = default = default_cost(10, device, args.blocks)
    early, later = default.values()
    print(f"CE+OGC with the default rule at 10 classes: {early:.2f} x in the first 1,024 steps, {later:.2f} x later")

    print("\nOne update, fit and solve (us, and how many times cheaper than with scikit-learn)")
    print(f"{'queue':>8} {'loss':>6} {'OGC':>8} {'scikit-learn':>14} {'cheaper':>9}")
    updates = {}
    for size, base in ((QUEUE, "ce"), (QUEUE, "fl"), (256, "ce"), (1024, "ce"), (16384, "ce"), (65536, "ce")):
        times = update_cost(base, size, device, max(args.blocks // 4, 5))
        updates[f"{base} {size}"] = times
        cheaper = times["scikit-learn"] / times["ogc"]
        print(f"{size:>8} {base:>6} {times['ogc']:8.0f} {times['scikit-learn']:14.0f} {cheaper:7.1f} x")
    result["update_us"] = updates
    if device.type == "cuda":
        replayed = {base: replayed_update_cost(base, device, args.blocks) for base in ("ce", "fl")}
        result["replayed_update_us"] = replayed
        print("Replayed from a CUDA graph: " + ", ".join(f"{base} {t:.0f} us" for base, t in replayed.items()))

        print("\nOne step of a criterion replayed from a CUDA graph, update included, bf16 logits (us, launches)")
        replays = {classes: captured_step_cost(classes, device, args.blocks) for classes in (10, 100, 1000)}
        result["replayed_step"] = replays
        for classes, costs in replays.items():
            cells = (f"{name} {cost['us']:.1f} ({cost['launches']:.1f})" for name, cost in costs.items())
            print(f"{classes:>8} " + "   ".join(cells))

    share = mlp_share(device, args.blocks)
    result["mlp_step_us"] = share
    more = share["ogc"] / share["ce"] - 1
    print(f"\nA step of a small MLP: {share['ce']:.0f} us with CE, {share['ogc']:.0f} us with CE+OGC: {more:+.1%}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
