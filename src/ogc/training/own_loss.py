"""A loss from a Python file: ``my_loss.py:MyLoss``, a module that is called with logits and labels.

Such a file runs only if the user has named it, with ``--method`` on the command line or with
:func:`ogc.training.allow_loss` in Python. Being named in a run's folder, a result or a recipe is not enough, because
those may come from anyone.
"""

from __future__ import annotations

import copy
import hashlib
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._files import first_line
from .._require import did_you_mean

_allowed: dict[Path, bytes] = {}  # files that may run, by absolute path, as they were when they were allowed
_modules: dict[str, ModuleType] = {}  # by checksum


class OwnLoss(NamedTuple):
    """The file and the class of a custom loss."""

    path: Path
    name: str

    @classmethod
    def parse(cls, text: str) -> OwnLoss | None:
        """Parse ``FILE.py:CLASS``. Return ``None`` for anything else.

        >>> OwnLoss.parse("losses/mine.py:MyLoss")
        OwnLoss(path=PosixPath('losses/mine.py'), name='MyLoss')
        """
        path, dot, name = text.rpartition(".py:")
        return cls(Path(f"{path}.py").expanduser(), name) if dot else None

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def allow(self, content: bytes | None = None) -> None:
        """Let the file run in this process, as it is now.

        :param content: content of the file, if it was allowed on another machine of a cluster.
        """
        if content is None:
            try:
                content = self.path.read_bytes()
            except OSError as error:
                near = did_you_mean(self.path.name, [path.name for path in self.path.parent.glob("*.py")])
                why = "There is no" if isinstance(error, FileNotFoundError) else "Cannot read"
                raise ValueError(f"{why} loss file `{self.path}`.{near}") from None
        _allowed[self.path.absolute()] = content

    def content(self) -> bytes:
        """Return the content of the file at the time it was allowed."""
        if self.path.absolute() not in _allowed:
            raise ValueError(
                f"`{self}` is a loss from a file, which runs only if you name it yourself. If you trust the file, add "
                f"--method {shlex.quote(str(self))}, or in Python call ogc.training.allow_loss({str(self)!r}) first."
            )
        return _allowed[self.path.absolute()]

    def sha256(self) -> str:
        return hashlib.sha256(self.content()).hexdigest()

    def load(self, sha256: str | None = None) -> type[nn.Module]:
        """Run the file and return the class. The file must have the checksum ``sha256``, if one is given."""
        content = self.content()
        found = hashlib.sha256(content).hexdigest()
        if sha256 not in (None, found):
            raise ValueError(
                f"`{self.path}` has changed since this run began: its sha256 was {sha256}, now {found}. "
                "Restore it, or train again."
            )
        module = _modules.get(found) or self._run(content, found)
        losses = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
        }
        if self.name not in losses:
            there = f" It has {', '.join(losses)}." if losses else " It has none."
            raise ValueError(
                f"`{self.path}` has no torch module {self.name!r}.{did_you_mean(self.name, losses)}{there}"
            )
        return losses[self.name]

    def _run(self, content: bytes, sha256: str) -> ModuleType:
        module = ModuleType(f"ogc_own_{sha256[:16]}")
        module.__file__ = str(self.path)
        sys.modules[module.__name__] = module  # where pickle and dataclasses look classes up
        try:
            exec(compile(content, str(self.path), "exec"), vars(module))
        except (Exception, SystemExit) as error:  # the file may contain anything
            del sys.modules[module.__name__]
            raise ValueError(f"`{self.path}` cannot be loaded: {first_line(error, with_type=True)}") from error
        return _modules.setdefault(sha256, module)


def try_out(loss: nn.Module, name: str, classes: int) -> None:
    """Raise ``ValueError`` unless a copy of the loss maps logits (4, C), labels (4,) to a scalar with a gradient."""
    if any(value.requires_grad for value in loss.parameters()):
        raise ValueError(f"{name} has parameters, which would not be trained. Make them buffers.")
    logits = torch.zeros(4, classes, requires_grad=True)
    try:
        value = copy.deepcopy(loss)(logits, torch.arange(4) % classes)
    except (Exception, SystemExit) as error:  # the file may contain anything
        why = first_line(error, with_type=True)
        raise ValueError(f"{name} fails on logits (4, {classes}) and labels (4,): {why}") from error
    if not isinstance(value, Tensor) or value.shape != () or not value.requires_grad or not value.isfinite():
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) and value.dim() else repr(value)
        raise ValueError(f"{name} should return a finite scalar with a gradient for zero logits. Found {found}.")
