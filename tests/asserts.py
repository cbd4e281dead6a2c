"""Contracts for every criterion. Each takes the criterion's constructor. Run by test_contracts.py."""

import inspect
import io

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from ogc import OGC, losses
from samples import C, Make, batch, same_bits, state_of

OTHER = {
    "base": losses.GCE(),
    "gamma": 2.0,
    "q": 0.3,
    "alpha": 0.7,
    "beta": 0.7,
    "tau": 3.0,
    "t": 3,
    "pi1": 0.4,
    "weight": torch.linspace(0.1, 2, C),
    "ignore_index": 3,
    "reduction": "sum",
}
"""A non-default value for each argument of a loss."""


def value_and_gradient(criterion: nn.Module, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.detach().clone().requires_grad_()
    value = criterion(logits, labels)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value.detach(), gradient


def rejects(make: Make, name: str, value: object) -> None:
    """An error about a parameter has its name and the value found."""
    with pytest.raises(ValueError, match=f"`{name}`") as error:
        make(**{name: 0.1 if isinstance(value, type) else value})
    assert repr(value) in str(error.value)


def is_finite(make: Make) -> None:
    for N in (1, 2, 32):
        value, gradient = value_and_gradient(make(), *batch(N))
        assert value.isfinite()
        assert value >= 0
        assert gradient.isfinite().all()


def passes_gradients(make: Make) -> None:
    """A step against the gradient lowers the loss, and every sample has a gradient."""
    logits, labels = batch()
    value, gradient = value_and_gradient(make(), logits, labels)
    assert (gradient.abs().sum(1) > 0).all()
    assert make()(logits - 0.1 * gradient, labels) < value


def ignores_order(make: Make) -> None:
    logits, labels = batch()
    order = torch.randperm(len(labels))
    value, gradient = value_and_gradient(make(), logits, labels)
    value_again, gradient_again = value_and_gradient(make(), logits[order], labels[order])
    assert_close(value_again, value, rtol=1e-6, atol=0)
    assert_close(gradient_again, gradient[order])
    each, each_again = make(reduction="none")(logits, labels), make(reduction="none")(logits[order], labels[order])
    assert_close(each_again, each[order])


def computes_in_float32_or_float64(make: Make) -> None:
    criterion = make()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        value, gradient = value_and_gradient(criterion, *batch(dtype=dtype))
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert gradient.dtype == dtype


def keeps_precision_in_half_types(make: Make) -> None:
    """The loss is that of the rounded logits in float32. So is the gradient, up to its own rounding."""
    criterion = make()
    for dtype in (torch.float16, torch.bfloat16):
        logits, labels = batch(dtype=dtype)
        value, gradient = value_and_gradient(criterion, logits, labels)
        value32, gradient32 = value_and_gradient(criterion, logits.float(), labels)
        assert_close(value, value32, rtol=1e-6, atol=0)
        assert_close(gradient, gradient32.to(dtype))
        value64, _ = value_and_gradient(criterion, logits.double(), labels)
        assert_close(value32.double(), value64, rtol=1e-5, atol=1e-6)


def accepts_dense_predictions(make: Make) -> None:
    """(N, C, d1, d2) gives the same as (N d1 d2, C)."""
    logits, labels = batch(3 * 4 * 5)
    dense, dense_labels = logits.view(3, 4, 5, C).movedim(3, 1), labels.view(3, 4, 5)
    for labels_ in (labels, torch.where(labels == 2, -100, labels)):
        dense_labels = labels_.view(3, 4, 5)
        value, gradient = value_and_gradient(make(), logits, labels_)
        dense_value, dense_gradient = value_and_gradient(make(), dense, dense_labels)
        assert_close(dense_value, value)
        assert_close(dense_gradient.movedim(1, 3).reshape(-1, C), gradient)
        each = make(reduction="none")(dense, dense_labels)
        assert each.shape == (3, 4, 5)
        assert_close(each.flatten(), make(reduction="none")(logits, labels_))


def reduces(make: Make) -> None:
    logits, labels = batch()
    each = make(reduction="none")(logits, labels)
    assert each.shape == labels.shape
    assert_close(make(reduction="sum")(logits, labels), each.sum())
    assert_close(make(reduction="mean")(logits, labels), each.mean())
    assert_close(make()(logits, labels), each.mean())


def weights_classes(make: Make) -> None:
    """As in torch, the mean divides by the sum of the weights used. Ignored labels add none."""
    logits, labels = batch()
    weight = torch.linspace(0, 2, C)
    for labels_ in (labels, torch.where(labels == 4, -100, labels)):
        sample_weight = torch.where(labels_ == -100, 0, weight[labels_.clamp(min=0)])
        expected = sample_weight * make(reduction="none")(logits, labels_)
        assert_close(make(weight=weight, reduction="none")(logits, labels_), expected)
        assert_close(make(weight=weight, reduction="sum")(logits, labels_), expected.sum())
        assert_close(make(weight=weight)(logits, labels_), expected.sum() / sample_weight.sum())
    with pytest.raises(ValueError, match=r"`weight`.* C = 10.* \(3,\)"):
        make(weight=torch.ones(3))(logits, labels)


def omits_ignored_labels(make: Make) -> None:
    logits, labels = batch()
    for ignore_index in (-100, -1, 255):
        partly_ignored = torch.where(labels % 3 == 0, ignore_index, labels)
        kept = partly_ignored != ignore_index
        value, gradient = value_and_gradient(make(ignore_index=ignore_index), logits, partly_ignored)
        value_kept, gradient_kept = value_and_gradient(
            make(ignore_index=ignore_index), logits[kept], partly_ignored[kept]
        )
        assert_close(value, value_kept)
        assert_close(gradient[kept], gradient_kept)
        assert (gradient[~kept] == 0).all()
        assert (make(ignore_index=ignore_index, reduction="none")(logits, partly_ignored)[~kept] == 0).all()


def is_zero_without_labels(make: Make) -> None:
    logits, labels = batch()
    for reduction in ("mean", "sum"):
        for weight in (None, torch.ones(C)):
            criterion = make(reduction=reduction, weight=weight)
            value, gradient = value_and_gradient(criterion, logits, torch.full_like(labels, -100))
            assert value == 0
            assert (gradient == 0).all()
            value, gradient = value_and_gradient(criterion, logits[:0], labels[:0])
            assert value == 0
            assert gradient.shape == (0, C)
    assert make(reduction="none")(logits[:0], labels[:0]).shape == (0,)


def accepts_any_integer_label(make: Make) -> None:
    logits, labels = batch()
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert torch.equal(make()(logits, labels.to(dtype)), make()(logits, labels))


def uses_every_argument(make: Make) -> None:
    """OGC's own arguments are tested in clipping/test_ogc.py."""
    logits, labels = batch()
    names = inspect.signature(type(make())).parameters.keys()
    if isinstance(make(), OGC):
        names = {"weight", "ignore_index", "reduction"}
    for name in names:
        assert not torch.equal(make(**{name: OTHER[name]})(logits, labels), make()(logits, labels)), name


def rejects_unknown_arguments(make: Make) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'wieght'"):
        make(wieght=None)


def rejects_invalid_batches(make: Make) -> None:
    """Errors show the shapes, types, labels or positions found."""
    logits, labels = batch(4)
    nan, infinite, dense = logits.clone(), logits.clone(), torch.zeros(2, C, 3)
    nan[1, 3], infinite[1, 3], dense[1, 0, 2] = torch.nan, torch.inf, torch.nan
    for wrong, found in (
        ((logits.numpy(), labels), "ndarray and Tensor"),
        ((logits, labels.numpy()), "Tensor and ndarray"),
        ((logits, labels[:3]), r"\(4, 10\).* \(3,\)"),
        ((logits[0], labels), r"\(10,\).* \(4,\)"),
        ((logits, labels[:, None]), r"\(4, 10\).* \(4, 1\)"),
        ((logits, labels.float()), "integer.* torch.float32"),
        ((logits, logits.softmax(1)), "integer.* torch.float32"),
        ((logits.long(), labels), "floating-point.* torch.int64"),
        ((logits, torch.tensor([0, 10, -1, -100])), r"\[0, 10\) .*-100.* \[-1, 10\]"),
        ((nan, labels), "1 of 4 samples, the first at index 1"),
        ((infinite, labels), "1 of 4 samples, the first at index 1"),
        ((dense, torch.zeros(2, 3, dtype=torch.long)), "1 of 2 samples, the first at index 1"),
        ((torch.zeros(8), torch.zeros(8)), r"two columns.* \(8,\)"),
        ((torch.zeros(8, 1), torch.zeros(8, dtype=torch.long)), r"two columns.* \(8, 1\)"),
        ((torch.zeros(4, 1, 3), torch.zeros(4, 1, 3)), r"two columns.* \(4, 1, 3\)"),
    ):
        with pytest.raises(ValueError, match=found):
            make()(*wrong)


def keeps_state_in_evaluation(make: Make) -> None:
    criterion = make().train()
    before = state_of(criterion)
    with torch.no_grad():
        criterion(*batch())
    criterion.eval()(*batch())
    assert all(same_bits(after, before[name]) for name, after in criterion.named_buffers())


def saves_and_loads(make: Make) -> None:
    weight = torch.linspace(0.5, 1, C)
    criterion, copy = make(weight=weight), make(weight=torch.ones(C))
    file = io.BytesIO()
    torch.save(criterion.state_dict(), file)
    file.seek(0)
    copy.load_state_dict(torch.load(file, weights_only=True))
    assert all(same_bits(a, b) for a, b in zip(criterion.buffers(), copy.buffers(), strict=True))
    assert torch.equal(copy(*batch()), criterion(*batch()))


def is_cross_entropy(make: Make) -> None:
    """Equal to torch's up to rounding: weight, ignore_index, reduction and dense predictions."""
    weight = torch.linspace(0.1, 3, C)
    logits, labels = batch(60)
    labels = torch.where(labels == 7, -100, labels)
    for shape in ((60,), (3, 4, 5)):
        x, y = logits.view(*shape, C).movedim(-1, 1), labels.view(shape)
        for reduction in ("none", "mean", "sum"):
            for w in (None, weight):
                value, gradient = value_and_gradient(make(weight=w, reduction=reduction), x, y)
                x_ = x.detach().clone().requires_grad_()
                expected = F.cross_entropy(x_, y, weight=w, reduction=reduction)
                (expected_gradient,) = torch.autograd.grad(expected.sum(), x_)
                assert_close(value, expected.detach(), rtol=1e-6, atol=1e-6)
                assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-6)


def traces(make: Make) -> None:
    """torch.compile captures it as one graph, forward and backward, with the same results."""
    criterion = make()
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    for dtype in (torch.float32, torch.bfloat16):
        logits, labels = batch(dtype=dtype)
        labels[::5] = -100
        value, gradient = value_and_gradient(compiled, logits, labels)
        expected, expected_gradient = value_and_gradient(criterion, logits, labels)
        assert_close(value, expected, rtol=1e-6, atol=1e-6)
        assert_close(gradient, expected_gradient)


CONTRACTS = [
    is_finite,
    passes_gradients,
    ignores_order,
    computes_in_float32_or_float64,
    keeps_precision_in_half_types,
    accepts_dense_predictions,
    reduces,
    weights_classes,
    omits_ignored_labels,
    is_zero_without_labels,
    accepts_any_integer_label,
    uses_every_argument,
    rejects_unknown_arguments,
    rejects_invalid_batches,
    keeps_state_in_evaluation,
    saves_and_loads,
]
