"""Training: recipes, the plain loop, the engine, checkpoints.

>>> from ogc.data import load_digits
>>> recipe = override(RECIPES["digits"], {"epochs": 1})
>>> [result] = train([Job(recipe, None, load_digits())])
>>> len(result["epochs"])
1
"""

from __future__ import annotations

from .history import Epoch, Watch
from .method import allow_loss
from .recipe import RECIPES, Recipe, from_toml, override
from .run import Job, NonFinite
from .run_folder import CheckpointError
from .session import Result, jobs_of, load_network, train
from .source import Source, load
from .stopping import Interrupted

__all__ = [
    "RECIPES",
    "CheckpointError",
    "Epoch",
    "Interrupted",
    "Job",
    "NonFinite",
    "Recipe",
    "Result",
    "Source",
    "Watch",
    "allow_loss",
    "from_toml",
    "jobs_of",
    "load",
    "load_network",
    "override",
    "train",
]
