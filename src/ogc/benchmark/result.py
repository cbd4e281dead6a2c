"""Results: one JSON file per run, validated when it is written and when it is read."""

from __future__ import annotations

import json
import math
import reprlib
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from .._files import CHECKSUM, parse_json, unusable, with_checksum, without_checksum, write_whole
from .._require import counted, require
from ..training.history import Epoch, summary
from ..training.method import RULES, own_loss, split
from ..training.recipe import Checked, Recipe
from .key import key_of
from .paper import LABELS
from .plan import Cell

FOLDER = Path("benchmarks/results/runs")  # in a clone of the repository
OTHER_DRAWS = "other-draws"  # folder beside it: runs on other labels than the authors', which no table includes


class Provenance(Checked):
    date: str
    commit: str | None  # ends in + if files differed from it
    device: str
    torch: str
    python: str
    ogc: str


class Result(Checked):
    """A finished run. Shares are in [0, 1], as in ``result.json``."""

    version: Literal[1, 2, 3] = 3  # of this schema; 1 has no checksum, 2 a part of the start-up in wall_seconds
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    dataset: str
    method: str
    noise: str | None
    seed: int
    recipe: Recipe  # with its defaults filled in
    noise_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None  # of the given labels
    noise_rate: Annotated[float, Field(ge=0, le=1)] | None  # the share of wrong labels, as measured
    network: str
    summary: dict[str, str | float | int | None]
    wall_seconds: PositiveFloat  # including preparation, evaluation and the runs beside it, but not the start-up
    seconds: NonNegativeFloat  # of training
    images_per_second: PositiveFloat
    side_by_side: PositiveInt  # runs that shared the device, this one included
    memory_gib: float | None = None  # of the device, for all these runs
    startup_seconds: NonNegativeFloat | None = None  # of its process, until its first step
    provenance: Provenance
    epochs: tuple[Epoch, ...]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Check that redundant fields agree. This detects edited files."""
        recipe = self.recipe
        for name, own in (("dataset", "name"), ("method", "method"), ("noise", "noise"), ("seed", "seed")):
            require(getattr(self, name) == getattr(recipe, own), name, "as in the recipe", getattr(self, name))
        key = key_of(recipe, alone=self.alone)
        require(self.key == key, "key", f"{key}, from the recipe", self.key)
        require(not self.alone or self.side_by_side == 1, "side_by_side", "1 with this key", self.side_by_side)
        numbers = [epoch.epoch for epoch in self.epochs]
        require(len(numbers) == recipe.epochs, "len(epochs)", str(recipe.epochs), len(numbers))
        require(numbers == list(range(1, recipe.epochs + 1)), "epochs", "numbered from 1 on", numbers)
        for epoch in self.epochs:
            in_training = {name: getattr(epoch, name) for name in ("agreement", "clean", "memorised", "recovered")}
            for name, share in (*epoch.accuracy.items(), *epoch.averaged.items(), *in_training.items()):
                require(share is None or 0 <= share <= 1, f"epochs[{epoch.epoch - 1}].{name}", "in [0, 1]", share)
        known = summary(list(self.epochs), recipe.report_epochs)
        require(_alike(self.summary, known), "summary", f"{known}, from the epochs", self.summary)
        spent = math.fsum(epoch.seconds for epoch in self.epochs)
        require(math.isclose(self.seconds, spent, rel_tol=1e-6), "seconds", f"{spent}, from the epochs", self.seconds)
        _, plus, rule = split(self.method)
        if (loss := own_loss(self.method)) is not None:  # used as a name only; the file is not run
            require(loss.name.isidentifier(), "method", "FILE.py:CLASS", self.method)
            require(not plus or rule in RULES, "method", f"clipped by one of {', '.join(RULES)}", self.method)
            for name in recipe.parameters:
                require(name.isidentifier(), "parameters", "numbers by name", name)
        paired = (self.noise is None) == (self.noise_sha256 is None)
        require(paired, "noise_sha256", "given if and only if there is noise", self.noise_sha256)
        return self

    @property
    def alone(self) -> bool:
        return self.key.endswith("-alone")

    @property
    def other_draw(self) -> bool:
        """True if the given labels are not those behind the tables, so that the numbers cannot be compared."""
        known = LABELS.get((self.recipe.data, str(self.noise)), self.noise_sha256)
        return not self.recipe.noise_seed and self.noise_sha256 != known

    @property
    def reports_average(self) -> bool:
        return self.recipe.report == "averaged"

    def measured(self, measure: str, *, averaged: bool | None = None) -> float | None:
        """Return a number for a table: accuracy in % over the last epochs, minutes, or the variance of tau.

        :param measure: the name of an evaluation set, ``minutes`` or ``tau_variance``.
        :param averaged: use the averaged weights; by default if the recipe reports them.
        """
        if measure == "minutes":
            return self.seconds / 60
        if measure == "tau_variance":
            taus = [epoch.tau for epoch in self.epochs if epoch.tau is not None]
            return statistics.pvariance(taus) if taus else None
        averaged = self.reports_average if averaged is None else averaged
        last = self.epochs[-self.recipe.report_epochs :]
        found = [(epoch.averaged if averaged else epoch.accuracy).get(measure) for epoch in last]
        known = [value for value in found if value is not None]
        return 100 * statistics.fmean(known) if len(known) == len(last) else None


def _alike(found: Mapping[str, object], known: Mapping[str, object]) -> bool:
    """Return True if summaries are equal up to rounding: versions of Python sum differently."""

    def close(a: object, b: object) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
        return a == b

    return found.keys() == known.keys() and all(close(found[name], known[name]) for name in known)


def from_training(cell: Cell, trained: Mapping[str, Any], session: Mapping[str, Any]) -> Result:
    """Make the result of a finished run. For a custom loss it has the file's name and checksum, not its folder.

    :param trained: as returned by ``train``.
    :param session: the record of the run's last session, see ``batch.SessionWatch``.
    """
    facts, noise = trained["facts"], trained["facts"]["noise"] or {}
    recipe = trained["recipe"] | {"method": PurePath(trained["recipe"]["method"]).name}
    return Result(
        key=cell.key,
        dataset=recipe["name"],
        method=recipe["method"],
        noise=recipe["noise"],
        seed=recipe["seed"],
        recipe=recipe,
        noise_sha256=noise.get("sha256"),
        noise_rate=noise.get("rate_got"),
        network=facts["network"],
        summary=trained["summary"],
        wall_seconds=session["seconds"] + sum(epoch["seconds"] for epoch in trained["epochs"][: session["earlier"]]),
        seconds=trained["seconds"],
        images_per_second=trained["images_per_second"],
        side_by_side=session["side_by_side"],
        memory_gib=session["memory_gib"],
        startup_seconds=session.get("startup_seconds"),  # not recorded by earlier versions
        provenance=Provenance(
            date=facts["started"], commit=facts["commit"], device=facts["device"], **facts["versions"]
        ),
        epochs=trained["epochs"],
    )


def path_of(folder: Path, key: str, seed: int) -> Path:
    return folder / f"{key}-{seed}.json"


def write(folder: Path, result: Result) -> Path:
    """Write the file, with one line per epoch and a checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = result.model_copy(update={"version": max(result.version, 2)}).model_dump(mode="json", exclude={"epochs"})
    epochs = [asdict(epoch) for epoch in result.epochs]
    checksum = with_checksum({**facts, "epochs": epochs})[CHECKSUM]
    path = path_of(folder, result.key, result.seed)
    above = json.dumps(facts, indent=1, allow_nan=False)[:-2]
    lines = ",\n  ".join(json.dumps(epoch, allow_nan=False) for epoch in epochs)
    write_whole(path, f'{above},\n "epochs": [\n  {lines}\n ],\n "{CHECKSUM}": "{checksum}"\n}}\n'.encode())
    return path


def read(path: Path) -> Result:
    """Read a result. Raises ``ValueError`` with the path if the file is damaged or not a result of this version."""
    again = "move it away to repeat the run"
    try:
        found = parse_json(path.read_bytes(), finite=True)
        if found.get("version") not in (1, 2, 3):
            raise ValueError(f"expected version 1, 2 or 3 of a result, found {found.get('version')}.")
        if found["version"] >= 2 or CHECKSUM in found:  # version 1 had no checksum
            found = without_checksum(found)
    except ValueError as error:
        raise ValueError(unusable(path, error, again)) from None
    try:
        result = Result(**found)
        dumped = result.model_dump(mode="json")
        for place, raw, parsed in (("", found, dumped), ("recipe.", found["recipe"], dumped["recipe"])):
            for name in raw.keys() - {"recipe"}:  # compared field by field: older recipes have fewer fields
                require(raw[name] == parsed[name], place + name, "in canonical form", reprlib.repr(raw[name]))
    except (ValueError, TypeError) as error:
        raise ValueError(unusable(path, error, again)) from error
    named = path_of(path.parent, result.key, result.seed).name
    if path.name != named:
        raise ValueError(f"{path} has the name of another run. Rename it to {named}.")
    return result


def read_all(folder: Path) -> tuple[list[Result], list[str]]:
    """Read all results in a folder, sorted by name. Return them and one message per file that is not a result."""
    results, errors = [], []
    for path in sorted(path for path in folder.glob("*.json") if path.is_file()):
        try:
            results.append(read(path))
        except ValueError as error:
            errors.append(str(error))
    return results, errors


def disagreements(results: Iterable[Result]) -> list[str]:
    """Report runs that the tables leave out because of their labels, and noise types with inconsistent labels."""
    labels: dict[tuple[str, str, int], set[str]] = {}
    left_out: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.noise is None or result.noise_sha256 is None:
            continue
        if result.other_draw:
            left_out.setdefault((result.dataset, result.noise), []).append(result)
        else:
            noise = (result.dataset, result.noise, result.recipe.noise_seed)
            labels.setdefault(noise, set()).add(result.noise_sha256)
    return [
        f"The tables leave out {counted(len(runs), 'run')} on {dataset} with {noise}: trained on "
        f"other labels, whose checksum begins with {', '.join(sorted({str(run.noise_sha256)[:8] for run in runs}))}."
        for (dataset, noise), runs in left_out.items()
    ] + [
        f"The runs on {dataset} with {noise} (noise seed {seed}) were given {len(sums)} different sets of labels: "
        f"their checksums begin with {', '.join(sorted(each[:8] for each in sums))}."
        for (dataset, noise, seed), sums in labels.items()
        if len(sums) > 1
    ]
