"""scikit-learn: :class:`OGCClassifier`, a small multi-layer perceptron trained with OGC, for features and embeddings.

``_weighted_rows.py`` defines ``sample_weight`` and the batches, ``_classifier_file.py`` the file of a classifier.

Defaults depend on the number of distinct rows: with few of them, wrong labels are memorised early, and a smaller
network and a lower learning rate delay that.
"""

from __future__ import annotations

import copy
import math
import numbers
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .._extras import extra
from .._require import require
from ..clipping import OGC
from ..clipping.rules import choose_rule
from ..losses import CLIPPABLE, Pointwise
from ..models import mlp
from ..rival_label import MAY_BE_RIGHT, almost_all, margin, unlearned

with extra("sklearn", "ogc.integrations.sklearn needs safetensors", "safetensors"):
    import safetensors.torch  # noqa: F401, for saving
with extra("sklearn", "ogc.integrations.sklearn needs scikit-learn", "numpy", "sklearn"):
    import numpy as np
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

    from . import _classifier_file
    from ._weighted_rows import CHUNK, Moments, Rows, batches, distinct, hold_out

MANY = 1_000  # distinct rows
WIDTHS = ((100,), (200, 200))  # default hidden layers: below MANY rows, and from there on
LOWEST_LR, MANY_LR, HIGHEST_LR = 1e-3, 2e-3, 3e-3
ROWS_PER_FEATURE = 10  # below MANY rows: up to here the lowest learning rate, above it in proportion
PASSES = 60
STEPS = (200, 20_000)  # minimum and maximum, if max_iter is not given
STEPS_PER_ITERATION = 10  # minimum: if a pass has fewer steps, an iteration is several passes
SURVEYS = 10
QUEUE = (256, 4096)


class OGCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A multi-layer perceptron for noisy training labels. It standardises the features itself.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = OGCClassifier(random_state=0).fit(X, y)
    >>> classifier.predict_proba(X).shape, classifier.label_quality_.shape
    ((150, 3), (150,))

    Parameters shared with ``MLPClassifier`` have the same names.

    :param hidden_layer_sizes: widths of the hidden layers; () is a linear classifier. ``None`` is one layer of 100, or
        two layers of 200 if there are at least 1,000 distinct rows.
    :param base: the loss that OGC clips: a name in ``ogc.losses.LOSSES``, or a pointwise loss.
    :param epsilon: limit the gradients of noisy samples to 1 + epsilon times those of clean ones, at the highest
        learning rate. ``None`` is OGC's default rule, which needs no parameter.
    :param learning_rate_init: learning rate of AdamW. ``fit`` decays it along a cosine, ``partial_fit`` keeps it
        constant. ``None`` is 0.002. Below 1,000 distinct rows it is 0.001 for ten rows per feature, and grows in
        proportion up to 0.003.
    :param weight_decay: weight decay of AdamW.
    :param batch_size: maximum batch size.
    :param max_iter: iterations of ``fit``. An iteration is a pass over the data, or several passes if one has fewer
        than ten steps. ``None`` is 60 passes, but at least 200 and at most 20,000 steps. For a few hundred rows this
        suits many wrong labels; if most labels are right, more iterations (``max_iter=100``) can be better.
    :param early_stopping: stop if the accuracy on held-out rows, with their given labels, has not improved for
        ``n_iter_no_change`` iterations, and restore the best iteration. With OGC this seldom helps: it costs training
        rows, and few wrong labels are memorised (docs/log.md).
    :param validation_fraction: share of the distinct rows that is held out, stratified by class. One row of each class
        is always used for training.
    :param random_state: an integer makes ``fit`` reproducible, bit for bit.

    :ivar classes_: (C,) the labels, sorted, without those that occur only in rows of weight 0.
    :ivar label_quality_: (N,) label quality scores in the order of the rows of ``fit``: in [0, 1], lower is worse, and
        below 0.5 another label is more likely; 0 for labels that are not in ``classes_``. Computed from ten surveys
        during training, as in ``ogc.audit``, or fewer with early stopping.
    :ivar noise_rate_: weighted share of rows below 0.5. With few rows it includes correct labels not learned yet.
    :ivar n_iter_: number of iterations; ``loss_curve_`` has the mean loss of each, ``loss_`` the last one.
    :ivar validation_scores_: with early stopping, the accuracy after each iteration, otherwise ``None``;
        ``best_validation_score_`` is the best one.
    :ivar network_: maps ``(X - mean_) / scale_`` to logits; with early stopping, of the best iteration.
    :ivar criterion_: the OGC with its tau and its mixture; with early stopping, of the best iteration.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | None = None,
        *,
        base: str | Pointwise = "ce",
        epsilon: float | None = None,
        learning_rate_init: float | None = None,
        weight_decay: float = 1e-2,
        batch_size: int = 200,
        max_iter: int | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.base = base
        self.epsilon = epsilon
        self.learning_rate_init = learning_rate_init
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state

    # --- fitting -----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from scratch: (N, features), (N,), (N,). A weight of 2 means that a row occurs twice."""
        self._check_parameters()
        with _isolated(self):
            X, y, weight = self._checked(X, y, sample_weight, reset=True)
            self.classes_ = np.unique(y[weight > 0])
            if len(self.classes_) < 2:
                raise ValueError(f"`y` should have at least two classes. Found one class, {self.classes_.item()!r}.")
            labels = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
            rows = distinct(X, labels, weight)
            self._reset()
            self._update_moments(rows)
            held_out = None
            if self.early_stopping:
                with self._generator() as generator:
                    rows, held_out = hold_out(rows, self.validation_fraction, generator)
            self._different = len(rows.y)
            queue_size = min(max(self._different, QUEUE[0]), QUEUE[1])
            self._build(self._widths(self._different), self.base, queue_size=queue_size)
            survey = _Survey(self._standardise(torch.tensor(X)).float(), torch.from_numpy(labels))
            steps = self._train(rows, held_out, survey)
            self.label_quality_ = np.where(self.classes_[labels] == y, survey.quality().numpy(), 0.0)
            accepted = self.label_quality_ >= 0.5
            self.noise_rate_ = float(np.average(~accepted, weights=weight))
        known = (weight > 0) & (self.classes_[labels] == y)
        if steps >= STEPS[0]:
            self._check_classes(labels[known], accepted[known])
        return self

    def _check_classes(self, labels: np.ndarray, accepted: np.ndarray) -> None:
        """Warn if a class was not learned: (N,), (N,) bool."""
        names = [str(name) for name in self.classes_]
        classes = unlearned(torch.from_numpy(labels), torch.from_numpy(accepted), names)
        if classes:
            remedy = f"Try max_iter={2 * self.n_iter_}."
            if self.early_stopping or self.epsilon is not None:
                remedy = f"Try it without {'early_stopping' if self.early_stopping else 'epsilon'}."
            warnings.warn(f"OGCClassifier rejects {almost_all(classes)}. {MAY_BE_RIGHT} {remedy}", stacklevel=3)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue training with one pass over these rows: (N, features), (N,), (C,), (N,).

        Features are standardised by all rows so far. ``hidden_layer_sizes``, ``base`` and defaults that depend on the
        number of rows are those of the first call. The other parameters may change between calls. ``label_quality_`` is
        set by ``fit`` only.

        :param classes: all labels that will ever occur. Required at the first call, unless ``fit`` was called before.
        """
        self._check_parameters()
        first = not hasattr(self, "network_")
        with _isolated(self):
            X, y, weight = self._checked(X, y, sample_weight, reset=first)
            require(not first or classes is not None, "classes", "all labels, at the first call", classes)
            known = self.classes_ if classes is None else unique_labels(classes)
            require(len(known) >= 2, "classes", "at least two", known)
            require(first or np.array_equal(known, self.classes_), "classes", "those of the first call", classes)
            unknown = np.setdiff1d(y, known).tolist()
            require(not unknown, "y", f"labels among {known.tolist()}", unknown)
            rows = distinct(X, np.searchsorted(known, y), weight)
            if first:
                self.classes_ = known
                self._reset()
                self._different = len(rows.y)
                self._build(self._widths(self._different), self.base, queue_size=QUEUE[0])
            self._update_moments(rows)
            self._reconnect()
            inputs = self._standardise(rows.X).float()
            with self._generator() as generator:
                drawn = batches(rows.weight, self.batch_size, generator)
            self._end_iteration([self._step(inputs[batch], rows.y[batch], self._lr()) for batch in drawn])
        return self

    def _check_parameters(self) -> None:
        base, epsilon, lr = self.base, self.epsilon, self.learning_rate_init
        decay, fraction = self.weight_decay, self.validation_fraction
        loss = base in CLIPPABLE if isinstance(base, str) else isinstance(base, Pointwise)
        try:
            widths = all(map(_is_count, self._widths(1)))
        except TypeError:
            widths = False
        for name, good, rule in (
            ("hidden_layer_sizes", widths, "one or several integers of at least 1"),
            ("base", loss, f"a pointwise loss, or one of {', '.join(CLIPPABLE)}"),
            ("epsilon", epsilon is None or (_is_real(epsilon) and epsilon > 0), "a number above 0, or None"),
            ("learning_rate_init", lr is None or (_is_real(lr) and lr > 0), "a number above 0, or None"),
            ("weight_decay", _is_real(decay) and decay >= 0, "a number of at least 0"),
            ("batch_size", _is_count(self.batch_size), "an integer of at least 1"),
            ("max_iter", self.max_iter is None or _is_count(self.max_iter), "an integer of at least 1, or None"),
            ("early_stopping", isinstance(self.early_stopping, bool | np.bool_), "True or False"),
            ("validation_fraction", _is_real(fraction) and 0 < fraction < 1, "a number in (0, 1)"),
            ("n_iter_no_change", _is_count(self.n_iter_no_change), "an integer of at least 1"),
        ):
            require(good, name, rule, getattr(self, name))

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", reset=reset)
        check_classification_targets(y)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not (weight > 0).any():
            raise ValueError("Parameter `sample_weight` should be above 0 for some row. Found only zeros.")
        return X, y, weight

    def _widths(self, distinct_rows: int) -> list[int]:
        """Return the widths of the hidden layers."""
        widths: Any = self.hidden_layer_sizes
        widths = WIDTHS[distinct_rows >= MANY] if widths is None else widths
        return [widths] if _is_count(widths) else list(widths)

    def _lr(self) -> float:
        """Return the peak learning rate."""
        if self.learning_rate_init is not None:
            return self.learning_rate_init
        if self._different >= MANY:
            return MANY_LR
        times: float = self._different / (ROWS_PER_FEATURE * self.n_features_in_)
        return min(max(LOWEST_LR * times, LOWEST_LR), HIGHEST_LR)

    def _reset(self) -> None:
        """Reset the training state."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._rng = torch.Generator().manual_seed(seed).get_state()
        self._weight_seen, self.mean_, self._deviation = 0.0, *np.zeros((2, self.n_features_in_))
        self.n_iter_ = 0
        self.loss_curve_: list[float] = []
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None

    @contextmanager
    def _generator(self) -> Iterator[torch.Generator]:
        """Yield a generator that continues the random numbers of this classifier."""
        generator = torch.Generator()
        generator.set_state(self._rng)
        yield generator
        self._rng = generator.get_state()

    def _update_moments(self, rows: Rows) -> None:
        """Update the mean and deviation of the features with these rows."""
        moments = Moments(self._weight_seen, self.mean_, self._deviation).with_rows(rows)
        self._weight_seen, self.mean_, self._deviation = moments
        self.scale_ = moments.scale()

    def _standardise(self, X: Tensor) -> Tensor:
        """Standardise: (N, features) -> (N, features), float64."""
        return (X - torch.from_numpy(self.mean_)) / torch.from_numpy(self.scale_)

    def _build(self, widths: Sequence[int], base: str | Pointwise, *, queue_size: int) -> None:
        """Build network, optimizer and loss, without using torch's global generator."""
        with torch.device("meta"):
            network = mlp(self.n_features_in_, len(self.classes_), hidden=widths)
        self.network_ = network.float().to_empty(device="cpu")
        with torch.no_grad(), self._generator() as generator:
            for layer in self.network_:
                if isinstance(layer, nn.Linear):  # as torch's default
                    bound = layer.in_features**-0.5
                    layer.weight.uniform_(-bound, bound, generator=generator)
                    layer.bias.uniform_(-bound, bound, generator=generator)
        self._optimizer = torch.optim.AdamW(
            self.network_.parameters(), lr=self._lr(), weight_decay=self.weight_decay, fused=True
        )
        self.criterion_ = OGC(base, epsilon=self.epsilon, queue_size=queue_size, process_group=False)

    def _reconnect(self) -> None:
        """Reattach the optimizer, which a copy of the criterion loses, and apply changed parameters."""
        self.criterion_.attach(self._optimizer)
        rule = choose_rule(epsilon=self.epsilon)
        if rule != self.criterion_.rule:
            self.criterion_.set_rule(rule)
        self._optimizer.param_groups[0]["weight_decay"] = self.weight_decay
        self.criterion_.warns = False  # with clean labels the normals are hard to tell apart, which is fine

    def _step(self, inputs: Tensor, labels: Tensor, lr: float) -> Tensor:
        self._optimizer.param_groups[0]["lr"] = lr
        loss: Tensor = self.criterion_(self.network_(inputs), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def _end_iteration(self, losses: list[Tensor]) -> None:
        """Record the end of an iteration."""
        self.loss_ = float(torch.stack(losses).mean())
        self.loss_curve_.append(self.loss_)
        self.n_iter_ += 1

    def _train(self, rows: Rows, held_out: Rows | None, survey: _Survey) -> int:
        """Train, and return the number of steps. With ``held_out``, restore the best iteration."""
        inputs = self._standardise(rows.X).float()
        self._reconnect()
        steps_per_pass = math.ceil(len(rows.y) / self.batch_size)
        passes = math.ceil(STEPS_PER_ITERATION / steps_per_pass)
        budget = min(max(PASSES * steps_per_pass, STEPS[0]), STEPS[1])
        iterations = math.ceil(budget / (passes * steps_per_pass)) if self.max_iter is None else self.max_iter
        steps, best, best_iteration = iterations * passes * steps_per_pass, [], 0
        parts: tuple[Any, ...] = self.network_, self.criterion_, self._optimizer
        for iteration in range(1, iterations + 1):
            losses = []
            with self._generator() as generator:
                drawn = [batch for _ in range(passes) for batch in batches(rows.weight, self.batch_size, generator)]
            for step, batch in enumerate(drawn, (iteration - 1) * len(drawn)):
                decay = (1 + math.cos(math.pi * step / steps)) / 2
                losses.append(self._step(inputs[batch], rows.y[batch], self._lr() * decay))
                if (step + 1) * SURVEYS // steps > step * SURVEYS // steps:
                    survey.take(self.network_)
            self._end_iteration(losses)
            if held_out is not None and self._score_held_out(held_out):
                best, best_iteration = copy.deepcopy([part.state_dict() for part in parts]), iteration
            if held_out is not None and iteration - best_iteration >= self.n_iter_no_change:
                break
        for part, state in zip(parts, best, strict=held_out is not None):
            part.load_state_dict(state)
        if not survey.count:
            survey.take(self.network_)
        return iteration * passes * steps_per_pass

    def _score_held_out(self, held_out: Rows) -> bool:
        """Record the accuracy on held-out rows. Return True if it is the best so far."""
        with torch.no_grad():
            right = self.network_(self._standardise(held_out.X).float()).argmax(1) == held_out.y
        score = float((right * held_out.weight).sum() / held_out.weight.sum())
        is_best = self.best_validation_score_ is None or score > self.best_validation_score_
        self.best_validation_score_ = score if is_best else self.best_validation_score_
        self.validation_scores_ = [*(self.validation_scores_ or []), score]
        return is_best

    # --- predicting --------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities in the order of ``classes_``: (N, features) -> (N, C)."""
        check_is_fitted(self, "network_")
        X = torch.from_numpy(validate_data(self, X, dtype=np.float64, order="C", reset=False, copy=True))
        # in float64, the other rows affect the result for a row only by rounding
        weights = {name: value.double() for name, value in self.network_.state_dict().items()}
        with torch.no_grad():
            standard = map(self._standardise, X.split(CHUNK))
            return torch.cat([functional_call(self.network_, weights, part).softmax(1) for part in standard]).numpy()

    def predict(self, X: Any) -> Any:
        """Return the most likely label of each row: (N, features) -> (N,)."""
        likeliest = self.predict_proba(X).argmax(1)  # also checks that the classifier is fitted
        return self.classes_[likeliest]

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Save everything in one safetensors file, with JSON in its header. It needs no pickle.

        ``partial_fit`` after :meth:`load` gives the same bits as without saving. A ``random_state`` that is not an
        integer is not saved, and ``base`` must be a loss of ogc.
        """
        check_is_fitted(self, "network_")
        _classifier_file.write(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a file written by :meth:`save`."""
        with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            return _classifier_file.read(cls, Path(path))


class _Survey:
    """Log margins of all rows of ``fit``, summed over the surveys during training."""

    def __init__(self, inputs: Tensor, given: Tensor) -> None:
        self.inputs, self.given, self.margin, self.count = inputs, given, torch.zeros(len(given)), 0

    @torch.no_grad()
    def take(self, network: nn.Module) -> None:
        for start in range(0, len(self.given), CHUNK):
            part = slice(start, start + CHUNK)
            self.margin[part] += margin(network(self.inputs[part]).log_softmax(1), self.given[part])
        self.count += 1

    def quality(self) -> Tensor:
        return torch.sigmoid((self.margin / self.count).double())


@contextmanager
def _isolated(estimator: object) -> Iterator[None]:
    """Isolate training from torch's global modes, and restore the estimator if it fails."""
    before = dict(vars(estimator))
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def _is_real(value: Any, kind: Any = numbers.Real) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and abs(value) < math.inf


def _is_count(value: Any) -> bool:
    return _is_real(value, numbers.Integral) and value >= 1
