"""``ogc bench run`` on a GPU: several runs side by side in the engine."""

import pytest
import torch

from bench_runs import DIGITS, bench
from ogc.benchmark.result import read_all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inductor's own
]
FOUR = (*DIGITS, "--methods", "ce,ce+ogc", "--seeds", "1,2", "--device", "cuda")


def test_four_side_by_side(tmp_path):
    code, said = bench(*FOUR, "--out", tmp_path)
    assert code == 0, said
    found = read_all(tmp_path)[0]
    assert [result.side_by_side for result in found] == [4] * 4
    assert all(result.memory_gib > 0 for result in found)


def test_stopped_in_time_and_gone_on_with(tmp_path):
    code, said = bench(*FOUR, "--epochs", 300, "--out", tmp_path, "--max-minutes", 0.02)
    assert code == 3, said
    assert "4 left: run the same command again." in said
    code, said = bench(*FOUR, "--epochs", 300, "--out", tmp_path)
    assert code == 0, said
    assert len(read_all(tmp_path)[0]) == 4


def test_a_loss_of_ones_own_beside_others(tmp_path):
    """One that a graph cannot hold goes through the plain loop."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Plain(nn.CrossEntropyLoss): ...\n"
        "class Reading(nn.CrossEntropyLoss):\n"
        "    def forward(self, logits, labels):\n"
        "        loss = super().forward(logits, labels)\n"
        "        return loss * (1 if loss.item() > 0 else 0)\n"
    )
    own = ("--method", f"{tmp_path}/mine.py:Plain", "--method", f"{tmp_path}/mine.py:Reading")
    code, said = bench(*DIGITS, "--methods", "ce", *own, "--out", tmp_path / "out", "--device", "cuda")
    assert code == 0, said
    assert {result.method for result in read_all(tmp_path / "out")[0]} == {"ce", "mine.py:Plain", "mine.py:Reading"}
