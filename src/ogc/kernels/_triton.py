"""Triton, or None where the kernels cannot run. Its import takes a third of a second, so a CPU build of torch skips it.

``TRITON_INTERPRET=1`` runs the kernels on the CPU, for tests.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import Any

import torch

triton: Any = None
tl: Any = None
if torch.version.cuda is not None or os.environ.get("TRITON_INTERPRET") == "1":
    with suppress(ImportError):
        triton = importlib.import_module("triton")
        tl = importlib.import_module("triton.language")
