"""``ogc bench run`` on a GPU: several runs side by side in the engine."""

import pytest
import torch

from bench_runs import DIGITS, bench
from ogc.benchmark.result import read_all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from inductor
]
FOUR = (*DIGITS, "--methods", "ce,ce+ogc", "--seeds", "1,2", "--device", "cuda")


def test_four_runs_side_by_side(tmp_path):
    code, output = bench(*FOUR, "--out", tmp_path)
    assert code == 0, output
    found = read_all(tmp_path)[0]
    assert [result.side_by_side for result in found] == [4] * 4
    assert all(result.memory_gib > 0 for result in found)


def test_runs_stop_at_the_time_limit_and_resume(tmp_path):
    code, output = bench(*FOUR, "--epochs", 300, "--out", tmp_path, "--max-minutes", 0.02)
    assert code == 3, output
    assert "4 left: run the same command again." in output
    code, output = bench(*FOUR, "--epochs", 300, "--out", tmp_path)
    assert code == 0, output
    assert len(read_all(tmp_path)[0]) == 4


def test_custom_losses_beside_others(tmp_path):
    """A loss that cannot be captured in a graph is trained with the plain loop."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Plain(nn.CrossEntropyLoss): ...\n"
        "class Reading(nn.CrossEntropyLoss):\n"
        "    def forward(self, logits, labels):\n"
        "        loss = super().forward(logits, labels)\n"
        "        return loss * (1 if loss.item() > 0 else 0)\n"
    )
    custom = ("--method", f"{tmp_path}/mine.py:Plain", "--method", f"{tmp_path}/mine.py:Reading")
    code, output = bench(*DIGITS, "--methods", "ce", *custom, "--out", tmp_path / "out", "--device", "cuda")
    assert code == 0, output
    assert {result.method for result in read_all(tmp_path / "out")[0]} == {"ce", "mine.py:Plain", "mine.py:Reading"}
