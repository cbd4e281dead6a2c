"""The file of an :class:`~ogc.integrations.sklearn.OGCClassifier`: safetensors, with JSON in its header."""

from __future__ import annotations

import json
import numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from .._files import checked_fields
from .._require import require
from .._tensors import part_of, read_tensors, write_tensors
from ..clipping.rules import choose_rule
from ..losses import CLIPPABLE, LOSSES, Pointwise

if TYPE_CHECKING:
    from .sklearn import OGCClassifier

Kind = TypeVar("Kind", bound="OGCClassifier")
FORMAT = 2
FACTS = (
    "n_features_in_", "n_iter_", "loss_", "loss_curve_", "noise_rate_", "validation_scores_", "best_validation_score_",
    "_weight_seen", "_different",
)  # fmt: skip
ARRAYS = ("mean_", "scale_", "_deviation", "label_quality_")


def write(classifier: OGCClassifier, path: Path) -> None:
    network, criterion, optimizer = classifier.network_, classifier.criterion_, classifier._optimizer
    parameters = classifier.get_params()
    parameters["base"] = _describe(classifier.base)
    if not isinstance(classifier.random_state, numbers.Integral) or isinstance(classifier.random_state, bool):
        parameters["random_state"] = None
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    facts = {
        "format": FORMAT,
        "parameters": parameters,
        "classes": classifier.classes_.tolist(),
        "dtype": classifier.classes_.dtype.str,
        "widths": [layer.out_features for layer in layers[:-1]],  # as built: the parameters may have changed since
        "base": _describe(criterion.base),
        "epsilon": getattr(criterion.rule, "epsilon", None),
        "weight_decay": optimizer.param_groups[0]["weight_decay"],
        "criterion": criterion.get_extra_state(),
        **{name: getattr(classifier, name) for name in FACTS if hasattr(classifier, name)},
    }
    if hasattr(classifier, "feature_names_in_"):
        facts["feature_names_in_"] = list(classifier.feature_names_in_)
    slots = optimizer.state_dict()["state"].items()
    tensors = {
        **{name: torch.from_numpy(getattr(classifier, name)) for name in ARRAYS if hasattr(classifier, name)},
        **{f"network.{name}": value for name, value in network.state_dict().items()},
        **{f"criterion.{name}": value for name, value in criterion.state_dict().items() if isinstance(value, Tensor)},
        **{f"optimizer.{slot}.{name}": value for slot, state in slots for name, value in state.items()},
        "rng": classifier._rng,
    }
    try:
        header = json.dumps(facts, default=_plain)
    except TypeError as error:
        raise ValueError(f"To be saved, labels and parameters should be numbers or text: {error}.") from None
    write_tensors(path, tensors, header)


def read(kind: type[Kind], path: Path) -> Kind:
    with path.open("rb") as file:
        if file.read(9)[8:] != b"{":  # safetensors starts with the header's length and the header, a JSON object
            raise ValueError(f"{path} is not a file saved by OGCClassifier.save. Pass the path of such a file.")
    again = "fit and save the classifier again"
    tensors, facts = read_tensors(path, error=ValueError, again=again, format=FORMAT)
    with checked_fields(path, error=ValueError, again=again):
        return _restore(kind, tensors, facts)


def _restore(kind: type[Kind], tensors: dict[str, Tensor], facts: dict[str, Any]) -> Kind:
    parameters: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in facts["parameters"].items()
    }
    found = kind(**parameters | {"base": _loss(parameters["base"])})
    found.classes_ = np.array(facts["classes"], dtype=facts["dtype"])
    if "feature_names_in_" in facts:
        found.feature_names_in_ = np.array(facts["feature_names_in_"], dtype=object)
    for name in FACTS:
        if name in facts:
            setattr(found, name, facts[name])
    for name in ARRAYS:
        if name in tensors:
            setattr(found, name, tensors[name].numpy())
    found._rng = tensors["rng"]
    found._build(facts["widths"], _loss(facts["base"]), queue_size=facts["criterion"]["queue_size"])
    found.criterion_.set_rule(choose_rule(epsilon=facts["epsilon"]))
    found._optimizer.param_groups[0]["weight_decay"] = facts["weight_decay"]
    found._rng = tensors["rng"]  # building the network has advanced it
    found.network_.load_state_dict(part_of(tensors, "network"))
    found.criterion_.load_state_dict(part_of(tensors, "criterion") | {"_extra_state": facts["criterion"]})
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in part_of(tensors, "optimizer").items():
        slot, name = key.split(".")
        slots.setdefault(int(slot), {})[name] = value
    found._optimizer.load_state_dict(found._optimizer.state_dict() | {"state": slots})
    return found


def _describe(base: str | Pointwise) -> str | dict[str, Any]:
    """Describe a loss for JSON."""
    if isinstance(base, str):
        return base
    name = next((name for name in CLIPPABLE if LOSSES[name] is type(base)), None)
    require(name is not None, "base", f"one of {', '.join(CLIPPABLE)}, to be saved", base)
    return {"name": name, **base.hyperparameters}


def _loss(found: str | dict[str, Any]) -> Any:
    """Build the loss that :func:`_describe` described."""
    if isinstance(found, str):
        return found
    return LOSSES[found["name"]](**{name: value for name, value in found.items() if name != "name"})


def _plain(value: Any) -> Any:
    """Convert NumPy numbers and arrays for JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} is neither")
