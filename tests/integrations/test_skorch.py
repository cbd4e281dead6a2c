"""skorch needs no adapter: ``criterion=OGC``, ``predict_nonlinearity``, and a callback that attaches the optimizer."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ogc import OGC, noise

pytest.importorskip("skorch")
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback


class Attach(Callback):
    """The only code that a user writes."""

    def on_train_begin(self, net: Any, **_: Any) -> None:
        net.criterion_.attach(net.optimizer_)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.layers(X)


def net_of(**settings: Any) -> NeuralNetClassifier:
    defaults = {"max_epochs": 4, "batch_size": 32, "lr": 0.1, "optimizer": torch.optim.SGD, "verbose": 0}
    own = {
        "criterion": OGC,
        "criterion__base": "ce",
        "criterion__every": 2,
        "criterion__queue_size": 64,
        "criterion__epsilon": 0.05,
        "predict_nonlinearity": torch.nn.Softmax(dim=1),
        "callbacks": [Attach()],
    }
    return NeuralNetClassifier(Network, **(defaults | own | settings))


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = make_blobs(300, centers=3, n_features=4, cluster_std=2.0, random_state=0)
    return X.astype(np.float32), noise.symmetric(y, 0.4, num_classes=3), y


def state_of(net: NeuralNetClassifier) -> dict[str, torch.Tensor]:
    state = {**net.module_.state_dict(), **net.criterion_.state_dict()}
    return {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}


def assert_same(found: NeuralNetClassifier, expected: NeuralNetClassifier) -> None:
    torch.testing.assert_close(state_of(found), state_of(expected), rtol=0, atol=0, equal_nan=True)


def test_trains(blobs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    X, given, true = blobs
    torch.manual_seed(0)
    net = net_of(max_epochs=10).fit(X, given)
    assert net.criterion_.tau < 1e6
    assert net.criterion_.highest_lr == 0.1
    assert net.criterion_.seen == 10 * 240  # skorch keeps a fifth for validation, which is not queued
    assert net.predict_proba(X).sum(1) == pytest.approx(np.ones(300), abs=1e-5)
    assert np.mean(net.predict(X) == true) > 0.9


def test_missing_callback_error_offers_two_fixes(blobs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    X, given, _ = blobs
    with pytest.raises(RuntimeError, match=r"criterion.attach\(optimizer\).* follow_lr=False"):
        net_of(callbacks=None).fit(X, given)
    net_of(callbacks=None, criterion__follow_lr=False).fit(X, given)


def test_resumed_run_equals_uninterrupted_run(blobs: tuple[np.ndarray, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    X, given, _ = blobs
    files = {f"f_{part}": tmp_path / f"{part}.pt" for part in ("params", "optimizer", "criterion")}
    torch.manual_seed(0)
    uninterrupted = net_of(optimizer__momentum=0.9).fit(X, given)
    uninterrupted.save_params(**files)
    pickled = pickle.loads(pickle.dumps(uninterrupted))
    uninterrupted.partial_fit(X, given)

    resumed = net_of(optimizer__momentum=0.9).initialize()
    resumed.load_params(**files)
    resumed.partial_fit(X, given)
    assert_same(resumed, uninterrupted)
    assert_same(pickled.partial_fit(X, given), uninterrupted)


def test_clones_and_grid_searches_start_fresh(blobs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    X, given, _ = blobs
    net = net_of().fit(X, given)
    assert clone(net).initialize().criterion_.steps == 0
    grid = GridSearchCV(net, {"criterion__epsilon": [0.05, 2.0]}, cv=2, scoring="accuracy").fit(X, given)
    best = grid.best_estimator_.criterion_
    assert best.rule.epsilon == grid.best_params_["criterion__epsilon"]
    assert best.steps == 4 * 8  # of a single fit
