"""The record of an epoch, and the summary shown in tables."""

import json
from dataclasses import asdict, replace

import pytest

from ogc.training.history import Epoch, SilentWatch, summary

EPOCH = Epoch(
    epoch=1,
    lr=0.1,
    loss=1 / 3,
    accuracy={"test": 0.5, "val": 0.25},
    averaged={},
    agreement=0.5,
    clean=None,
    memorised=None,
    recovered=None,
    tau=None,
    p0=None,
    mixture=None,
    ratio=None,
    true_ratio=None,
    seconds=1.5,
    images_per_second=10.0,
)


def epochs(*accuracies, averaged=None):
    return [
        replace(EPOCH, epoch=i + 1, accuracy={"test": accuracy}, averaged={"test": averaged[i]} if averaged else {})
        for i, accuracy in enumerate(accuracies)
    ]


def test_json_round_trip():
    line = EPOCH.to_json()
    assert "\n" not in line
    assert Epoch(**json.loads(line)) == EPOCH
    assert asdict(EPOCH) == json.loads(line)


def test_summary():
    assert summary(epochs(0.25, 0.75, 0.25, 0.5), 2) == {
        "set": "test",
        "last": 0.375,
        "std": 0.125,
        "best": 0.75,
        "best_epoch": 2,
    }


def test_summary_with_averages():
    found = summary(epochs(0.25, 0.5, averaged=[0.75, 0.5]), 10)
    assert found["last"] == 0.375
    assert (found["averaged_last"], found["averaged_best"], found["averaged_best_epoch"]) == (0.625, 0.75, 1)
    assert found["averaged_std"] == pytest.approx(0.125)


def test_summary_without_accuracies():
    assert summary([], 3) == {"set": None}
    assert summary([replace(EPOCH, accuracy={})], 3) == {"set": None}


def test_summary_uses_the_first_set():
    assert summary([EPOCH], 1)["set"] == "test"


def test_silent_watch_accepts_all_events():
    watch = SilentWatch()
    watch.began(0, epoch=0, epochs=1, steps=1)
    watch.moved(0, epoch=0, step=1, images_per_second=None)
    watch.ended_epoch(0, EPOCH)
    watch.said("nothing")
