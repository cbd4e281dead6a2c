"""scikit-learn: :class:`OGCClassifier`, a small multi-layer perceptron trained with OGC, for features and embeddings.

``_weighted_rows.py`` defines ``sample_weight`` and the batches, ``_classifier_file.py`` the file of a classifier.

Defaults depend on the number of distinct rows. With few rows wrong labels are memorised early. So below 1,000 rows
there is one small hidden layer, and the learning rate is lower if there are fewer rows per feature. From 1,000 rows on
there are two layers.
"""

from __future__ import annotations

import copy
import math
import numbers
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
from ..given_label import margin
from ..losses import CLIPPABLE, Pointwise
from ..models import mlp

with extra("sklearn", "ogc.integrations.sklearn needs safetensors", "safetensors"):
    import safetensors.torch  # noqa: F401, for saving
with extra("sklearn", "ogc.integrations.sklearn needs scikit-learn", "numpy", "sklearn"):
    import numpy as np
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

    from . import _classifier_file
    from ._weighted_rows import CHUNK, Moments, Rows, batches, different, hold_out

MANY = 1_000  # distinct rows
WIDTHS = ((100,), (200, 200))  # default hidden layers: below MANY rows, and from there on
LOWEST_LR, MANY_LR, HIGHEST_LR = 1e-3, 2e-3, 3e-3
ROWS_A_FEATURE = 10  # where the lowest learning rate is used, below MANY rows; it grows in proportion
PASSES = 60
STEPS = (200, 20_000)  # minimum and maximum, if max_iter is not given
STEPS_AN_ITERATION = 10  # at least: if a pass has fewer steps, an iteration is several passes
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
        two of 200 from 1,000 distinct rows on.
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
    :ivar noise_rate_: weighted share of rows below 0.5. With few rows it includes right labels not learned yet.
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
        with _apart(self):
            X, y, weight = self._checked(X, y, sample_weight, reset=True)
            self.classes_ = np.unique(y[weight > 0])
            if len(self.classes_) < 2:
                found = self.classes_.tolist()[0]
                raise ValueError(f"OGCClassifier needs labels of at least two classes. Found one class, {found!r}.")
            labels = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
            rows = different(X, labels, weight)
            self._begin()
            self._standardise(rows)
            held_out = None
            if self.early_stopping:
                generator = self._generator()
                rows, held_out = hold_out(rows, self.validation_fraction, generator)
                self._rng = generator.get_state()
            self._different = len(rows.y)
            self._build(
                self._widths(self._different), self.base, queue_size=min(max(self._different, QUEUE[0]), QUEUE[1])
            )
            survey = _Survey(self._inputs(torch.tensor(X)), torch.from_numpy(labels))
            self._train(rows, held_out, survey)
            self.label_quality_ = np.where(self.classes_[labels] == y, survey.quality().numpy(), 0.0)
            self.noise_rate_ = float(np.average(self.label_quality_ < 0.5, weights=weight))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue training with one pass over these rows: (N, features), (N,), (C,), (N,).

        Features are standardised by all rows so far. ``hidden_layer_sizes``, ``base`` and defaults that depend on the
        number of rows are those of the first call. The other parameters may change between calls. ``label_quality_`` is
        set by ``fit`` only.

        :param classes: all labels that will ever occur. Required at the first call, unless ``fit`` was called before.
        """
        self._check_parameters()
        first = not hasattr(self, "network_")
        with _apart(self):
            X, y, weight = self._checked(X, y, sample_weight, reset=first)
            require(
                not first or classes is not None, "classes", "all labels, at the first call of partial_fit", classes
            )
            known = self.classes_ if classes is None else unique_labels(classes)
            require(len(known) >= 2, "classes", "at least two", known)
            require(first or np.array_equal(known, self.classes_), "classes", "those of the first call", classes)
            strange = np.setdiff1d(y, known)
            if len(strange):
                raise ValueError(f"Parameter `y` should hold labels among {known}. Found {strange}.")
            rows = different(X, np.searchsorted(known, y), weight)
            if first:
                self.classes_ = known
                self._begin()
            self._standardise(rows)
            if first:
                self._different = len(rows.y)
                self._build(self._widths(self._different), self.base, queue_size=QUEUE[0])
            self._hold_together()
            inputs, generator = self._inputs(rows.X), self._generator()
            losses = [
                self._step(inputs[batch], rows.y[batch], self._lr())
                for batch in batches(rows.weight, self.batch_size, generator)
            ]
            self._rng = generator.get_state()
            self._count(losses)
        return self

    def _check_parameters(self) -> None:
        try:
            good = all(_whole(width) and width >= 1 for width in self._widths(1))
        except TypeError:
            good = False
        require(good, "hidden_layer_sizes", "one or several integers of at least 1", self.hidden_layer_sizes)
        base = self.base
        good = base in CLIPPABLE if isinstance(base, str) else isinstance(base, Pointwise)
        require(good, "base", f"a pointwise loss, or one of {', '.join(CLIPPABLE)}", base)
        for name in ("batch_size", "n_iter_no_change", "max_iter"):
            value = getattr(self, name)
            good = (value is None and name == "max_iter") or (_whole(value) and value >= 1)
            require(good, name, "an integer of at least 1", value)
        for name in ("epsilon", "learning_rate_init"):
            value = getattr(self, name)
            good = value is None or (_real(value) and 0 < value < math.inf)
            require(good, name, "a number above 0, or None", value)
        decay, fraction = self.weight_decay, self.validation_fraction
        require(_real(decay) and 0 <= decay < math.inf, "weight_decay", "a number of at least 0", decay)
        require(_real(fraction) and 0 < fraction < 1, "validation_fraction", "a number in (0, 1)", fraction)
        good = isinstance(self.early_stopping, bool | np.bool_)
        require(good, "early_stopping", "True or False", self.early_stopping)

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", reset=reset)
        check_classification_targets(y)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        require(bool((weight > 0).any()), "sample_weight", "above 0 for some row", "zeros")
        return X, y, weight

    def _widths(self, different: int) -> list[int]:
        """Return the widths of the hidden layers."""
        widths: Any = self.hidden_layer_sizes
        widths = WIDTHS[different >= MANY] if widths is None else widths
        return [widths] if _whole(widths) else list(widths)

    def _lr(self) -> float:
        """Return the peak learning rate."""
        if self.learning_rate_init is not None:
            return self.learning_rate_init
        if self._different >= MANY:
            return MANY_LR
        times: float = self._different / (ROWS_A_FEATURE * self.n_features_in_)
        return min(max(LOWEST_LR * times, LOWEST_LR), HIGHEST_LR)

    def _begin(self) -> None:
        """Reset the training state."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._rng = torch.Generator().manual_seed(seed).get_state()
        nothing = np.zeros(self.n_features_in_)
        self._weight_seen, self.mean_, self._deviation = 0.0, nothing, nothing
        self.n_iter_ = 0
        self.loss_curve_: list[float] = []
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None

    def _generator(self) -> torch.Generator:
        generator = torch.Generator()
        generator.set_state(self._rng)
        return generator

    def _standardise(self, rows: Rows) -> None:
        """Update the mean and deviation of the features with these rows."""
        moments = Moments(self._weight_seen, self.mean_, self._deviation).with_rows(rows)
        self._weight_seen, self.mean_, self._deviation = moments
        self.scale_ = moments.scale()

    def _inputs(self, X: Tensor) -> Tensor:
        """Standardise: (N, features) float64 -> float32."""
        return ((X - torch.from_numpy(self.mean_)) / torch.from_numpy(self.scale_)).float()

    def _build(self, widths: Sequence[int], base: str | Pointwise, *, queue_size: int) -> None:
        """Build network, optimizer and loss, without using torch's global generator."""
        with torch.device("meta"):
            network = mlp(self.n_features_in_, len(self.classes_), hidden=widths)
        self.network_ = network.float().to_empty(device="cpu")
        generator = self._generator()
        with torch.no_grad():
            for layer in self.network_:
                if isinstance(layer, nn.Linear):  # as torch's default
                    bound = layer.in_features**-0.5
                    layer.weight.uniform_(-bound, bound, generator=generator)
                    layer.bias.uniform_(-bound, bound, generator=generator)
        self._rng = generator.get_state()
        self._optimizer = torch.optim.AdamW(
            self.network_.parameters(), lr=self._lr(), weight_decay=self.weight_decay, fused=True
        )
        self.criterion_ = OGC(base, epsilon=self.epsilon, queue_size=queue_size, process_group=False)

    def _hold_together(self) -> None:
        """Restore the links that a copy of the criterion loses, and apply changed parameters."""
        self.criterion_.attach(self._optimizer)
        self.criterion_.epsilon, self._optimizer.param_groups[0]["weight_decay"] = self.epsilon, self.weight_decay
        self.criterion_._has_warned = True  # normals that are hard to tell apart, as with clean labels, are no fault

    def _step(self, inputs: Tensor, labels: Tensor, lr: float) -> Tensor:
        self._optimizer.param_groups[0]["lr"] = lr
        loss: Tensor = self.criterion_(self.network_(inputs), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def _count(self, losses: list[Tensor]) -> None:
        """Record the end of an iteration."""
        self.loss_ = float(torch.stack(losses).mean())
        self.loss_curve_.append(self.loss_)
        self.n_iter_ += 1

    def _train(self, rows: Rows, held_out: Rows | None, survey: _Survey) -> None:
        inputs, generator = self._inputs(rows.X), self._generator()
        self._hold_together()
        a_pass = math.ceil(len(rows.y) / self.batch_size)
        passes = math.ceil(STEPS_AN_ITERATION / a_pass)
        budget = min(max(PASSES * a_pass, STEPS[0]), STEPS[1])
        iterations = math.ceil(budget / (passes * a_pass)) if self.max_iter is None else self.max_iter
        steps, step, best, best_iteration = iterations * passes * a_pass, 0, self._learnt(), 0
        for iteration in range(1, iterations + 1):
            losses = []
            for batch in (b for _ in range(passes) for b in batches(rows.weight, self.batch_size, generator)):
                falling = (1 + math.cos(math.pi * step / steps)) / 2
                losses.append(self._step(inputs[batch], rows.y[batch], self._lr() * falling))
                step += 1
                if step * SURVEYS // steps > (step - 1) * SURVEYS // steps:
                    survey.take(self.network_)
            self._count(losses)
            if held_out is not None and self._judge(held_out):
                best, best_iteration = self._learnt(), iteration
            if held_out is not None and iteration - best_iteration >= self.n_iter_no_change:
                break
        self._rng = generator.get_state()
        if held_out is not None:
            self.network_.load_state_dict(best[0])
            self.criterion_.load_state_dict(best[1])
            self._optimizer.load_state_dict(best[2])
        if not survey.count:
            survey.take(self.network_)

    def _judge(self, held_out: Rows) -> bool:
        """Record the accuracy on held-out rows. Return True if it is the best so far."""
        with torch.no_grad():
            right = self.network_(self._inputs(held_out.X)).argmax(1) == held_out.y
        score = float((right * held_out.weight).sum() / held_out.weight.sum())
        is_best = self.best_validation_score_ is None or score > self.best_validation_score_
        self.best_validation_score_ = score if is_best else self.best_validation_score_
        self.validation_scores_ = [*(self.validation_scores_ or []), score]
        return is_best

    def _learnt(self) -> list[dict[str, Any]]:
        """Copy everything that training changes."""
        return [copy.deepcopy(part.state_dict()) for part in (self.network_, self.criterion_, self._optimizer)]

    # --- predicting --------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities in the order of ``classes_``: (N, features) -> (N, C)."""
        check_is_fitted(self, "network_")
        X = torch.from_numpy(validate_data(self, X, dtype=np.float64, order="C", reset=False, copy=True))
        weights = {name: value.double() for name, value in self.network_.state_dict().items()}  # a row by itself ...
        with torch.no_grad():  # ... and among others gives the same, but for rounding
            standard = (
                (part - torch.from_numpy(self.mean_)) / torch.from_numpy(self.scale_) for part in X.split(CHUNK)
            )
            return torch.cat([functional_call(self.network_, weights, part).softmax(1) for part in standard]).numpy()

    def predict(self, X: Any) -> Any:
        """Return the most likely label of each row: (N, features) -> (N,)."""
        likeliest = self.predict_proba(X).argmax(1)  # which first checks that the classifier is fitted
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
        with _apart():
            found: Self = _classifier_file.read(cls, Path(path))
            return found


class _Survey:
    """Predictions for all rows of ``fit``, summed over the surveys during training."""

    def __init__(self, inputs: Tensor, given: Tensor) -> None:
        self.inputs, self.given, self.count = inputs, given, 0
        self.margin = torch.zeros(len(given))

    @torch.no_grad()
    def take(self, network: nn.Module) -> None:
        for start in range(0, len(self.given), CHUNK):
            part = slice(start, start + CHUNK)
            self.margin[part] += margin(network(self.inputs[part]).log_softmax(1), self.given[part])
        self.count += 1

    def quality(self) -> Tensor:
        return torch.sigmoid((self.margin / self.count).double())


@contextmanager
def _apart(estimator: object = None) -> Iterator[None]:
    """Isolate training from torch's global modes, and restore the estimator if it fails."""
    before = dict(vars(estimator)) if estimator is not None else {}
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            yield
    except BaseException:
        if estimator is not None:
            vars(estimator).clear()
            vars(estimator).update(before)
        raise


def _whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
