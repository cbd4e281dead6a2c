"""Optimized Gradient Clipping in plain NumPy: the slow twin that the library is compared with.

Written from the paper alone, in float64, naively: nothing here is fast and no trick is shared with the library.
Alphabet: N samples, C classes, Q queue; H = -log p(given label), p0 the probability at which the slope is tau.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Curve = Callable[..., float]  # p -> float, or elementwise (N,) -> (N,)

P_MIN = 1e-7
H_MIN = -math.log(1 - P_MIN)
H_MAX = -math.log(P_MIN)


class Loss(NamedTuple):
    """A loss of p alone (section "Method"): value(p), and slope(p) = |d value / dp|."""

    value: Curve
    slope: Curve


class Mixture(NamedTuple):
    """The two normals of paragraph "Modeling of clean and noisy distributions"; clean has the smaller mean."""

    clean_mean: float
    clean_var: float
    noisy_mean: float
    noisy_var: float
    noisy_weight: float


def log_softmax(row: Sequence[float]) -> list[float]:
    """log p(k|x) of one sample: (C,) -> (C,)."""
    z = [float(logit) for logit in row]
    highest = max(z)
    log_sum = math.log(sum(math.exp(logit - highest) for logit in z))
    return [(logit - highest) - log_sum for logit in z]


def cross_entropy_of_given_label(logits: Array, labels: Sequence[int]) -> list[float]:
    """H = -log p(given label), the paper's equation for H: (N, C), (N,) -> (N,). A logit of -inf gives H = inf."""
    return [-log_softmax(row)[int(y)] for row, y in zip(logits, labels, strict=True)]


def ce() -> Loss:
    """Cross entropy."""
    return Loss(lambda p: -np.log(p), lambda p: 1 / p)


def fl(*, gamma: float) -> Loss:
    """Focal loss; the slope is the full derivative, focal weight included."""
    return Loss(
        lambda p: -((1 - p) ** gamma) * np.log(p),
        lambda p: (1 - p) ** gamma / p - gamma * (1 - p) ** (gamma - 1) * np.log(p),
    )


def gce(*, q: float) -> Loss:
    """Generalized cross entropy."""
    return Loss(lambda p: (1 - p**q) / q, lambda p: p ** (q - 1))


def taylor_ce(*, t: int) -> Loss:
    """Taylor cross entropy with t terms."""
    return Loss(
        lambda p: sum((1 - p) ** i / i for i in range(1, t + 1)),
        lambda p: sum((1 - p) ** (i - 1) for i in range(1, t + 1)),
    )


LOSSES: dict[str, Callable[..., Loss]] = {"ce": ce, "fl": fl, "gce": gce, "taylor_ce": taylor_ce}


def clipped(value: Curve, slope: Curve, p: float, p0: float, tau: float | None = None) -> float:
    """Paragraph "Implement optimized clipping on loss functions", continued from p0 by the tangent without a jump."""
    tau = float(slope(p0)) if tau is None else tau
    if p > p0:
        return float(value(p))
    return float(value(p0)) + tau * (p0 - p)


def fit_mixture(queue: Sequence[float]) -> Mixture:
    """Two normals on the queue: (Q,) -> Mixture. k-means in one dimension, then EM from its hard assignment."""
    h = np.asarray(queue, dtype=np.float64)

    centres = [float(h.min()), float(h.max())]
    for _ in range(10):
        upper = assign_to_upper(h, centres)
        for k, members in enumerate((h[~upper], h[upper])):
            if len(members) > 0:  # an empty cluster keeps its centre
                centres[k] = float(members.mean())
    upper = assign_to_upper(h, centres)

    responsibility = np.stack([~upper, upper]).astype(np.float64)  # (2, Q)
    weights, means, variances = m_step(h, responsibility, centres)
    previous = -math.inf
    for _ in range(10):
        log_likelihood, responsibility = e_step(h, weights, means, variances)
        weights, means, variances = m_step(h, responsibility, means)
        if abs(log_likelihood - previous) < 1e-3:
            break
        previous = log_likelihood

    clean, noisy = (0, 1) if means[0] <= means[1] else (1, 0)
    return Mixture(means[clean], variances[clean], means[noisy], variances[noisy], weights[noisy])


def assign_to_upper(h: Array, centres: Sequence[float]) -> NDArray[np.bool_]:
    """Which samples are nearer to the second centre; a tie goes to the first: (Q,), (2,) -> (Q,)."""
    return np.abs(h - centres[1]) < np.abs(h - centres[0])


def e_step(
    h: Array, weights: Sequence[float], means: Sequence[float], variances: Sequence[float]
) -> tuple[float, Array]:
    """Mean log likelihood, and P(component | H): (Q,) -> (2, Q)."""
    log_joint = np.empty((2, len(h)))
    for k in range(2):
        log_weight = math.log(weights[k]) if weights[k] > 0 else -math.inf
        log_normal = -0.5 * (math.log(2 * math.pi * variances[k]) + (h - means[k]) ** 2 / variances[k])
        log_joint[k] = log_weight + log_normal
    log_density = np.logaddexp(log_joint[0], log_joint[1])
    return float(log_density.mean()), np.exp(log_joint - log_density)


def m_step(h: Array, responsibility: Array, old_means: Sequence[float]) -> tuple[list[float], list[float], list[float]]:
    """Weights, means and variances (plus 1e-3) of the two components; an empty one keeps its mean."""
    weights, means, variances = [], [], []
    for k in range(2):
        count = float(responsibility[k].sum())
        mean = float((responsibility[k] * h).sum() / count) if count > 0 else old_means[k]
        variance = float((responsibility[k] * (h - mean) ** 2).sum() / count) if count > 0 else 0.0
        weights.append(count / len(h))
        means.append(mean)
        variances.append(variance + 1e-3)
    return weights, means, variances


def degenerate(queue: Sequence[float], mixture: Mixture) -> bool:
    """Whether the fit says nothing: a constant queue, or a component with fewer than two samples."""
    noisy = mixture.noisy_weight * len(queue)
    clean = (1 - mixture.noisy_weight) * len(queue)
    return max(queue) - min(queue) < 1e-6 or noisy < 2 or clean < 2


def ratio(slope: Curve, mixture: Mixture, tau: float) -> float:
    """The proxy ratio r of paragraph "Determine clipping threshold": E_noisy[min(slope, tau)] / E_clean[same].

    An expectation is the normalised sum over 1000 equally spaced H (appendix, "Time frame s": discretization).
    """
    h = np.linspace(H_MIN, H_MAX, 1000)
    gradient = np.minimum(slope(np.exp(-h)), tau)
    clean = np.exp(-((h - mixture.clean_mean) ** 2) / (2 * mixture.clean_var))
    noisy = np.exp(-((h - mixture.noisy_mean) ** 2) / (2 * mixture.noisy_var))
    return float(((noisy * gradient).sum() / noisy.sum()) / ((clean * gradient).sum() / clean.sum()))


def solve_threshold(slope: Curve, mixture: Mixture, target: float) -> float:
    """p0 with r(slope(p0)) = target = 1 + epsilon, by binary search; P_MIN if r without clipping is below target."""
    if ratio(slope, mixture, math.inf) < target:
        return P_MIN
    low, high = P_MIN, 1 - P_MIN
    for _ in range(200):
        middle = (low + high) / 2
        if ratio(slope, mixture, float(slope(middle))) >= target:
            low = middle
        else:
            high = middle
    return high


class ReferenceOGC:
    """The training process of the paper's algorithm (appendix), one call of `step` per mini-batch."""

    def __init__(self, loss: Loss, *, epsilon: float = 2.0, every: int = 32, queue_size: int = 4096) -> None:
        self.loss = loss
        self.epsilon = epsilon
        self.every = every
        self.queue_size = queue_size
        self.queue: list[float] = []
        self.steps = 0
        self.highest_lr = 0.0
        self.mixture: Mixture | None = None
        self.degenerate_fits = 0
        self.p0 = P_MIN
        self.tau = float(loss.slope(self.p0))

    def step(self, logits: Array, labels: Sequence[int], lr: float) -> tuple[float, list[float]]:
        """Push, update tau if it is due, and the clipped loss with the new tau: its mean, and per sample (N,)."""
        self.highest_lr = max(self.highest_lr, lr)
        entropies = cross_entropy_of_given_label(logits, labels)
        for h in entropies:
            if math.isfinite(h):
                self.queue.append(float(np.float32(min(max(h, H_MIN), H_MAX))))
        self.queue = self.queue[-self.queue_size :]
        self.steps += 1
        if self.steps % self.every == 0 and len(self.queue) == self.queue_size and lr > 0:
            self.update(lr)
        losses = []
        for h in entropies:
            p = min(math.exp(-h), 1 - P_MIN)
            losses.append(clipped(self.loss.value, self.loss.slope, p, self.p0, self.tau))
        return sum(losses) / len(losses), losses

    def update(self, lr: float) -> None:
        """Fit the mixture and solve for tau; a degenerate fit keeps the last mixture and the last tau."""
        mixture = fit_mixture(self.queue)
        if degenerate(self.queue, mixture):
            self.degenerate_fits += 1
            return
        self.mixture = mixture
        self.p0 = solve_threshold(self.loss.slope, mixture, 1 + self.epsilon * lr / self.highest_lr)
        self.tau = float(self.loss.slope(self.p0))


class ReferenceDefault(ReferenceOGC):
    """OGC's default rule: the paper's bound, a limit early on, and the edge of the clean samples."""

    def __init__(self, loss: Loss, *, every: int = 32, queue_size: int = 4096) -> None:
        super().__init__(loss, epsilon=0.5, every=every, queue_size=queue_size)
        self.seen = 0
        self.since: list[tuple[int, float]] = []  # label and H of the samples since the last update
        self.factors: dict[int, float] = {}  # p0 of a class is its factor times p0, 1 if it is not here
        self.cases: set[str] = set()  # of the rule, that have occurred

    def step(self, logits: Array, labels: Sequence[int], lr: float) -> tuple[float, list[float]]:
        self.highest_lr = max(self.highest_lr, lr)
        self.num_classes = logits.shape[1]
        entropies = cross_entropy_of_given_label(logits, labels)
        for label, h in zip(labels, entropies, strict=True):
            if math.isfinite(h):
                self.queue.append(float(np.float32(min(max(h, H_MIN), H_MAX))))
                self.since.append((int(label), float(np.float32(h))))
                self.seen += 1
        self.queue = self.queue[-self.queue_size :]
        self.steps += 1
        self.period = self.every if self.steps > 1024 else max(1, self.every // 8)
        if self.steps % self.period == 0 and self.seen >= min(256, self.queue_size) and lr > 0:
            self.update(lr)
        losses = []
        for label, h in zip(labels, entropies, strict=True):
            p0 = max(self.factors.get(int(label), 1.0) * self.p0, P_MIN)
            tau = float(self.loss.slope(p0))
            losses.append(clipped(self.loss.value, self.loss.slope, min(math.exp(-h), 1 - P_MIN), p0, tau))
        return sum(losses) / len(losses), losses

    def update(self, lr: float) -> None:
        newest = self.queue[-min(max(self.seen // 4, 256), self.queue_size) :]
        since, self.since = self.since, []
        mixture = fit_mixture(newest)
        if degenerate(newest, mixture):
            self.degenerate_fits += 1
            return
        self.mixture = mixture
        clean_mean, noisy_mean = mixture[0], mixture[2]
        chance = math.log(self.num_classes)
        aim = solve_threshold(self.loss.slope, mixture, 1 + self.epsilon * lr / self.highest_lr)
        if noisy_mean <= chance:
            self.cases.add("better than a guess, limited" if aim > 1 / self.num_classes else "better than a guess")
            aim = min(aim, 1 / self.num_classes)
        elif self._every_class_is_learned(since, chance):
            self.cases.add("edge")
            aim = max(aim, min(math.exp(-max(clean_mean, 3 * chance - 2 * noisy_mean)), 1 - P_MIN))
        else:
            self.cases.add("a class is given up")
        alpha = math.exp(-self.period / 16)
        for c in range(self.num_classes if self.num_classes <= 64 else 0):
            of_class = [h for label, h in since if label == c]
            good = sum(h < chance for h in of_class)
            if of_class:
                goal = min(1, 3 * good / len(of_class))
                self.factors[c] = alpha * self.factors.get(c, 1.0) + (1 - alpha) * goal
        self.p0 = alpha * self.p0 + (1 - alpha) * aim
        self.tau = float(self.loss.slope(self.p0))

    def _every_class_is_learned(self, since: list[tuple[int, float]], chance: float) -> bool:
        if self.num_classes > 64:
            return False
        for c in {label for label, _ in since}:
            of_class = [h for label, h in since if label == c]
            if sum(h < chance for h in of_class) < len(of_class) / 3:
                return False
        return True


def mae(logits: Array, labels: Sequence[int]) -> list[float]:
    """MAE, 1 - p(y): (N, C), (N,) -> (N,), as all the baselines below."""
    return [1 - math.exp(-h) for h in cross_entropy_of_given_label(logits, labels)]


def nce(log_p: Sequence[float], y: int) -> float:
    """Normalized cross entropy: log p_y / sum_k log p_k."""
    return log_p[y] / sum(log_p)


def rce(log_p: Sequence[float], y: int) -> float:
    """Reverse cross entropy: -sum_k p_k log q_k, q one-hot and log 0 := log 1e-4."""
    return -sum(math.exp(log_p[k]) * (0.0 if k == y else math.log(1e-4)) for k in range(len(log_p)))


def nnce(log_p: Sequence[float], y: int) -> float:
    """Normalized negative cross entropy: 1 - (A + log p_y) / sum_k (A + log p_k), A = -log 1e-7, no p below 1e-7."""
    a = -math.log(1e-7)
    above = [max(a + log_p_k, 0.0) for log_p_k in log_p]
    return 1 - above[y] / sum(above)


def sce(logits: Array, labels: Sequence[int], *, alpha: float, beta: float) -> list[float]:
    """Symmetric cross entropy: alpha CE + beta RCE."""
    rows = [(log_softmax(row), int(y)) for row, y in zip(logits, labels, strict=True)]
    return [alpha * -log_p[y] + beta * rce(log_p, y) for log_p, y in rows]


def nce_rce(logits: Array, labels: Sequence[int], *, alpha: float, beta: float) -> list[float]:
    """Active passive loss: alpha NCE + beta RCE."""
    rows = [(log_softmax(row), int(y)) for row, y in zip(logits, labels, strict=True)]
    return [alpha * nce(log_p, y) + beta * rce(log_p, y) for log_p, y in rows]


def nce_nnce(logits: Array, labels: Sequence[int], *, alpha: float, beta: float) -> list[float]:
    """Active negative loss: alpha NCE + beta NNCE."""
    rows = [(log_softmax(row), int(y)) for row, y in zip(logits, labels, strict=True)]
    return [alpha * nce(log_p, y) + beta * nnce(log_p, y) for log_p, y in rows]


def js(logits: Array, labels: Sequence[int], *, pi1: float) -> list[float]:
    """pi1 KL(q|m) + (1-pi1) KL(p|m), q one-hot, m = pi1 q + (1-pi1) p, over -(1-pi1) log(1-pi1)."""
    values = []
    for row, y in zip(logits, labels, strict=True):
        p = [math.exp(log_p_k) for log_p_k in log_softmax(row)]
        q = [float(k == int(y)) for k in range(len(p))]
        divergence = 0.0
        for p_k, q_k in zip(p, q, strict=True):
            m_k = pi1 * q_k + (1 - pi1) * p_k
            divergence += pi1 * q_k * math.log(q_k / m_k) if q_k > 0 else 0.0
            divergence += (1 - pi1) * p_k * math.log(p_k / m_k) if p_k > 0 else 0.0
        values.append(divergence / -((1 - pi1) * math.log(1 - pi1)))
    return values


def lc_ce(logits: Array, labels: Sequence[int], *, tau: float) -> list[float]:
    """LogitClip: logits whose norm exceeds tau are rescaled to norm tau, then cross entropy."""
    rows = []
    for row in logits:
        norm = math.sqrt(sum(float(logit) ** 2 for logit in row))
        rows.append([float(logit) * tau / norm if norm > tau else float(logit) for logit in row])
    return cross_entropy_of_given_label(np.array(rows), labels)


BASELINES: dict[str, Callable[..., list[float]]] = {
    "mae": mae,
    "sce": sce,
    "nce_rce": nce_rce,
    "js": js,
    "lc_ce": lc_ce,
    "nce_nnce": nce_nnce,
}
