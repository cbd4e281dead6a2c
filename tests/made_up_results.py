"""Results with made-up numbers, for tests of tables and figures."""

from ogc.benchmark.paper import LABELS
from ogc.benchmark.plan import Cell
from ogc.benchmark.result import Provenance, Result
from ogc.training.history import Epoch, summary

MADE = Provenance(
    date="2026-01-02T03:04:05+00:00", commit="abc", device="a device", torch="2.6.0", python="3.12.0", ogc="0.1.0"
)


def made_up(cell: Cell, seed: int = 1, percent: float = 50.0, **changes) -> Result:
    """Make a result with constant accuracy, two points higher on averaged weights. tau rises by 0.01 per epoch."""
    recipe = cell.recipe(seed)
    sets = (
        {"val": percent / 100, "ilsvrc": percent / 100 - 0.03}
        if cell.dataset == "webvision"
        else {"test": percent / 100}
    )
    epochs = [
        Epoch(
            epoch=number,
            lr=recipe.lr_at(number - 1),
            loss=1.0,
            accuracy=sets,
            averaged={name: value + 0.02 for name, value in sets.items()},
            agreement=0.5,
            clean=0.8,
            memorised=0.1,
            recovered=0.7,
            tau=2 + number / 100 if "ogc" in recipe.method else None,
            p0=None,
            mixture=None,
            ratio=None,
            true_ratio=None,
            seconds=1.2,
            images_per_second=1000.0,
        )
        for number in range(1, recipe.epochs + 1)
    ]
    facts = {
        "key": cell.key,
        "dataset": recipe.name,
        "method": recipe.method,
        "noise": recipe.noise,
        "seed": seed,
        "recipe": recipe,
        "noise_sha256": None if recipe.noise is None else LABELS.get((recipe.data, recipe.noise), "5a" * 32),
        "noise_rate": None if recipe.noise is None else 0.4,
        "network": "a network",
        "summary": summary(epochs, recipe.report_epochs),
        "wall_seconds": 200.0,
        "seconds": 1.2 * recipe.epochs,
        "images_per_second": 1000.0,
        "side_by_side": 1,
        "provenance": MADE,
        "epochs": tuple(epochs),
    }
    return Result(**facts | changes)
