"""Kernels in Triton: a step of OGC, batch norm with ReLU, SGD over flat memory, and the records of a step.

They take tensors and numbers, and import nothing else of ogc but constants. Each has a slow twin in torch.
"""

from __future__ import annotations

from ._triton import triton

HAVE_TRITON = triton is not None
