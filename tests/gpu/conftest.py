"""What all tests on a GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def idle_device() -> Iterator[None]:
    """Wait for the device after each test. Otherwise, steps still running would write into the next test's memory."""
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
