"""A reader for the Python version of CIFAR that cannot run code: no name in the pickle is ever imported."""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import torch
from torch import Tensor

_ARRAYS = (("numpy", "ndarray"), ("numpy.core.multiarray", "_reconstruct"))


class _Refused(pickle.UnpicklingError):
    """Raised for something that the official files do not contain."""


class _Dtype:
    """Replacement for ``numpy.dtype`` that stores its code, and ignores byte order and alignment."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None: ...


class _Array:
    """Replacement for ``numpy.ndarray`` that reads the shape, the type and the raw bytes from its state."""

    pixels: Tensor | None = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, columns_first, raw = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1", "uint8"):
            raise _Refused(f"an array of type {getattr(dtype, 'code', dtype)!r} instead of uint8")
        if not isinstance(raw, bytes) or len(raw) != math.prod(shape) or columns_first:
            raise _Refused(f"an array of shape {shape} whose bytes do not match, in C order")
        self.pixels = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(shape)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("numpy", "dtype"):
            return _Dtype
        if (module.replace("._core.", ".core."), name) in _ARRAYS:
            return _Array
        raise _Refused(f"the global `{module}.{name}`, which is not allowed: nothing was run")


def read_pickle(content: bytes, name: str) -> dict[str, Any]:
    """Read a pickled dict of uint8 arrays (as tensors), lists, strings and numbers. Anything else raises an error."""
    try:
        entries = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise ValueError(f"`{name}` holds {error}.") from error
    except Exception as error:  # a broken pickle raises nearly anything: EOFError, IndexError, TypeError, ...
        raise ValueError(f"`{name}` is damaged or truncated after {len(content)} bytes: {error}.") from error
    if not isinstance(entries, dict):
        raise ValueError(f"`{name}` should hold a dict. Found a {type(entries).__name__}.")
    names = [key.decode() if isinstance(key, bytes) else str(key) for key in entries]
    values = [value.pixels if isinstance(value, _Array) else value for value in entries.values()]
    return dict(zip(names, values, strict=True))
