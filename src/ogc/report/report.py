"""The report of a run: pictures as PNG files and an HTML page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._files import write_whole
from .._require import few, printable
from ..rival_label import MAY_BE_RIGHT, almost_all, class_confidence, likelier_label, unlearned
from ..training.method import for_rare_classes
from ..training.preprocessing import Preprocessing
from ..training.recipe import Recipe, never_clips, shown
from ..training.run_folder import PREPROCESSING, REPORT, StoredRun, read
from ..training.source import NAMED, ONLY_ADDED, OPTIONS
from ..training.stopping import resume_command
from ..training.survey import Point, memorised_from, points_of, why_unreliable
from .drawing import png, svg
from .pictures import Picture, mixture_of, pictures
from .table import better_best, clock

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATE = Path(__file__).with_name("report.html")
FEW = 0.02  # share of labels. If fewer are memorised, they may be hard samples that the network learns late.
FIRST_CLASSES = 20  # rows of the table of classes that are not folded
LOAD = """\
from ogc.predict import Predictor

predictor = Predictor.load({folder!r}{given})
predictions = predictor.predict({data!r})  # prepared like the training data
network = predictor.network"""
NEW_DATA = {"table": "new.csv", "folder": "new_images", "webvision": "new_images"}  # by kind of source
AUDIT = """\
from ogc.audit.run import audit_run

audit_run({folder!r}, (train, sets))  # the data of the job"""


def write_report(folder: Path) -> list[Path]:
    """Write the pictures and ``report.html``, which embeds them. Return the paths."""
    run = read(folder)
    when = "at the end" if run.finished else f"after epoch {len(run.epochs)}"
    drawn = pictures(run.epochs, run.samples, run.true_noise_rate, when=when)
    files = {folder / f"{picture.name}.png": png(picture.figure) for picture in drawn}
    files[folder / REPORT] = page(run, drawn).encode("utf-8", "replace")  # folder names may be invalid UTF-8
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def page(run: StoredRun, drawn: Sequence[Picture]) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    classes = list(class_rows(run))
    name = run.recipe.name if run.source is None else run.source.name
    html = template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=", ".join(filter(None, (name, run.recipe.method, run.recipe.noise))),
        run=run,
        sentences=sentences(run),
        whole_options=whole_options,
        numbers=headline(run),
        pictures=[(picture, Markup(svg(picture.figure, picture.name))) for picture in drawn],
        classes=classes[:FIRST_CLASSES],
        more_classes=classes[FIRST_CLASSES:],
        class_notes=class_notes(run),
        recipe=recipe_rows(run.recipe),
        noise=noise_rows(run),
        provenance=provenance_rows(run),
        columns=column_rows(run),
        next_steps=next_steps(run),
    )
    return html.replace(" %", "\u00a0%")  # no line break before the sign


def whole_options(text: str) -> Markup:
    """Escape a text, with no line break after the hyphens of an option."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"--[a-z][a-z-]*", r'<span class="whole">\g<0></span>', str(escape(text))))


def headline(run: StoredRun) -> list[tuple[str, str]]:
    """Return the main numbers and their names."""
    if not run.epochs:
        return []
    last, surveys = run.epochs[-1], points_of(run.samples.get("survey.history"))
    estimate = surveys[-1].noise_rate if surveys else None
    numbers = [
        *((of.get("averaged_last"), f"{of['set']} accuracy, averaged weights") for of in run.summaries),
        *((of["last"], f"{of['set']} accuracy") for of in run.summaries),
        (last.memorised, "wrong labels memorised"),
        (estimate, "of the labels wrong (estimate)"),
    ]
    return [(f"{100 * share:.1f} %", name) for share, name in numbers if share is not None]


def sentences(run: StoredRun) -> list[str]:
    """Describe the outcome."""
    recipe, epochs = run.recipe, run.epochs
    what = f"{run.facts['network']}, trained with {recipe.method}"
    if run.facts["samples"]:
        what += f" on {run.facts['samples']:,} samples of {len(run.facts['classes']):,} classes"
    if not epochs:
        return [what + ": no epoch is finished yet."]
    lines = [f"{what}, for {len(epochs)} of {recipe.epochs} epochs in {clock(sum(e.seconds for e in epochs))}."]
    if not run.summaries:
        lines.append("There was no held-out set, so the accuracy on new data is unknown.")
    else:
        last_epochs = epochs[-recipe.report_epochs :]
        for summary in run.summaries:
            n = sum(summary["set"] in epoch.accuracy for epoch in last_epochs)  # fewer if it was added on resuming
            lines.append(_accuracy(summary, n) + _best(summary, len(epochs)))
        lines += balanced_sentences(run)
        if run.source is not None and run.source.kind not in NAMED and run.source.true is None and not recipe.noise:
            lines.append(
                "Accuracy is measured against your labels. If one is wrong, a correct prediction counts as an error."
            )
    if "batch" in (facts := run.facts):
        why = never_clips(recipe, samples=facts["samples"], batch=facts["batch"], steps=facts["steps"])
        lines += [] if why is None else [why]
    if run.broken is not None:
        lines.append(
            f"Training failed at step {run.broken['step']} of epoch {run.broken['epoch']}: the loss or gradient was "
            "not finite. If resumed unchanged, it will fail again. A smaller lr or clip_norm may help."
        )
    last = epochs[-1]
    if last.memorised is not None:
        recovered = "" if last.recovered is None else f", for {100 * last.recovered:.1f} % the true one"
        lines.append(
            f"For {100 * last.memorised:.1f} % of the wrongly labelled samples the network predicts the wrong "
            f"label{recovered}."
        )
    return lines + noise_sentences(run)


def balanced_sentences(run: StoredRun) -> list[str]:
    """State the balanced accuracy on evaluation sets whose classes differ in size."""
    averaged = ", with the averaged weights" if run.recipe.average else ""
    found = []
    for name, recall in run.recall.items():
        lowest = min(recall.values())
        worst = [printable(label) for label, share in recall.items() if share == lowest]
        classes = "class" if len(worst) == 1 else "classes"
        found.append(
            f"Balanced accuracy (the mean over the classes) on {name} after the last epoch{averaged}: "
            f"{100 * fmean(recall.values()):.1f} %. Worst {classes} ({100 * lowest:.1f} %): {few(worst)}."
        )
    return found


def noise_sentences(run: StoredRun) -> list[str]:
    """State the estimated noise rate, followed by the notes on training."""
    surveys = points_of(run.samples.get("survey.history"))
    if not surveys:
        return []
    true = run.true_noise_rate
    known = "" if true is None else f" (true rate: {100 * true:.1f} %)"
    which = "training and validation labels" if "survey.val.margin" in run.samples else "labels"
    estimate = (
        f"An estimated {100 * surveys[-1].noise_rate:.1f} % of the {which} are wrong{known}. The estimate is the share "
        "for which the network preferred another label while it trained."
    )
    return [estimate, *training_notes(run)]


def training_notes(run: StoredRun) -> list[str]:
    """Return notes on the limits of the numbers: only added noise, short training, memorised labels, lost classes."""
    surveys = points_of(run.samples.get("survey.history"))
    own = run.source is not None and run.source.kind not in NAMED
    added = [ONLY_ADDED] if own and run.recipe.noise is not None else []
    classes = _unlearned(run)
    rejected = [f"The network rejects {almost_all(classes)}. {MAY_BE_RIGHT}"] if classes else []
    if why := why_unreliable(surveys, classes, run.facts["samples"]):
        return [*added, *rejected, why]
    remedy = f"Training {for_rare_classes(run.recipe.method, run.recipe.parameters)} may help."
    return [*added, *(f"{text} {remedy}" for text in rejected), *_memorised(run, surveys)]


def _unlearned(run: StoredRun) -> dict[str, int]:
    """Return the number of labels of each class that was not learned."""
    if not run.samples:
        return {}
    given, predicted, rejected = run.samples["given"], run.samples["predicted"], _rejected(run)
    if rejected is None:
        seen = predicted >= 0
        given, rejected = given[seen], (predicted != given)[seen]
    return unlearned(given, ~rejected, run.facts["classes"])


def _rejected(run: StoredRun) -> Tensor | None:
    """Return True for the labels that the surveys reject, as in an audit: (N,) bool. None without surveys."""
    p, given = run.samples.get("survey.train.probabilities"), run.samples["given"]
    return None if p is None else likelier_label(p, given, class_confidence(p, given)) != given


def _memorised(run: StoredRun, surveys: Sequence[Point]) -> Iterator[str]:
    if memorised_from(surveys) is None:
        return
    before, end = [point for point in surveys if point.counts][-1], surveys[-1]
    if before.disagreement - end.disagreement < FEW:
        return
    remedy = "with a smaller network"
    if epsilon := {"epsilon", "epsilon0"} & run.recipe.parameters.keys():
        remedy = f"if tau is well above 1, with a smaller {epsilon.pop()}"
    elif "+" not in run.recipe.method:
        remedy = "with a method that ends in +ogc"
    yield (
        f"The network probably memorised wrong labels after epoch {before.epoch}. At that point it contradicted "
        f"{100 * before.disagreement:.1f} % of the labels, and at the end {100 * end.disagreement:.1f} %. The "
        f"estimated noise rate uses only the surveys of the first {before.epoch} epochs. To avoid memorisation, train "
        f"for fewer epochs or {remedy}."
    )


def _accuracy(summary: Mapping[str, Any], epochs: int) -> str:
    over = f"over the last {epochs} epochs" if epochs > 1 else "after the last epoch"
    sentence = f"Accuracy on {summary['set']} {over}: {_mean(summary, '', epochs)}"
    if "averaged_last" in summary:
        sentence += f"; with the averaged weights {_mean(summary, 'averaged_', epochs)}"
    return f"{sentence}."


def _best(summary: Mapping[str, Any], epochs: int) -> str:
    if epochs == 1:
        return ""
    kind = better_best(summary)
    share = f"{100 * summary[f'{kind}best']:.1f} %{' (averaged)' if kind else ''}"
    return f" The best epoch, {summary[f'{kind}best_epoch']}, had {share}, but it was chosen on the same set."


def _mean(summary: Mapping[str, Any], kind: str, epochs: int) -> str:
    deviation = f" (standard deviation {100 * summary[f'{kind}std']:.1f})" if epochs > 1 else ""
    return f"{100 * summary[f'{kind}last']:.1f} %{deviation}"


class ClassRow(NamedTuple):
    """Counts of the samples with a given label; ``None`` if unknown."""

    name: str
    samples: int
    suspected: int | None  # wrong by the surveys; in runs without them, P(noisy | H) > 1/2
    wrong: int | None
    otherwise: int  # predicted to be another class
    instead: str  # the class most often predicted instead


def class_rows(run: StoredRun) -> Iterator[ClassRow]:
    """Yield classes by their share of suspected labels, or of other predictions, the largest first."""
    if not run.samples:
        return
    names, count = run.facts["classes"], len(run.facts["classes"])
    given, predicted, H = (run.samples[name] for name in ("given", "predicted", "H"))
    mixture = mixture_of(run.epochs[-1])

    def per_class(chosen: Tensor) -> Tensor:
        return torch.bincount(given[chosen], minlength=count)

    samples = torch.bincount(given, minlength=count)
    other = (predicted >= 0) & (predicted != given)
    otherwise = per_class(other)
    suspected = None if mixture is None else per_class(mixture.noise_probability(H) > 0.5)  # NaN is not suspected
    if (rejected := _rejected(run)) is not None:
        suspected = per_class(rejected)
    wrong = per_class(given != run.samples["true"]) if "true" in run.samples else None
    pairs = torch.bincount(given[other] * count + predicted[other], minlength=count * count).view(count, count)
    order = ((otherwise if suspected is None else suspected) / samples.clamp(min=1)).argsort(
        descending=True, stable=True
    )
    for i in order.tolist():
        instead = int(pairs[i].argmax())
        yield ClassRow(
            name=printable(names[i]),
            samples=int(samples[i]),
            suspected=None if suspected is None else int(suspected[i]),
            wrong=None if wrong is None else int(wrong[i]),
            otherwise=int(otherwise[i]),
            instead=f"{printable(names[instead])} ({int(pairs[i, instead]):,})" if otherwise[i] else "",
        )


def class_notes(run: StoredRun) -> list[str]:
    augmented = "" if run.recipe.augment == "none" else ", with augmentation"
    suspected = " Suspected labels are from the surveys." if "survey.train.probabilities" in run.samples else ""
    notes = [f"Predictions are from the last training step of each sample{augmented}.{suspected}"]
    if run.samples and (unseen := int(run.samples["H"].isnan().sum())):
        notes.append(f"{unseen:,} samples were never in a batch, so they have none.")
    return notes


def recipe_rows(recipe: Recipe) -> list[tuple[str, str]]:
    own = {f"{recipe.method}: {name}": value for name, value in recipe.parameters.items()}
    fields = {name: value for name, value in recipe if name != "parameters"} | own
    return [(name, shown(value)) for name, value in fields.items()]


def noise_rows(run: StoredRun) -> list[tuple[str, str]]:
    noise = run.facts["noise"]
    if noise is None:
        true = run.true_noise_rate
        known = "the true labels are unknown" if true is None else f"{100 * true:.2f} % of the labels are wrong"
        return [("kind", f"none added; {known}")]
    rates = ((name, noise[key]) for name, key in (("requested rate", "rate_asked"), ("actual rate", "rate_got")))
    return [
        ("kind", noise["kind"]),
        *((name, f"{100 * rate:.4g} %") for name, rate in rates if rate is not None),
        ("seed", shown(noise["seed"])),
        ("sha256 of the given labels", noise["sha256"]),
    ]


def provenance_rows(run: StoredRun) -> list[tuple[str, str]]:
    facts = run.facts
    rows: list[tuple[str, str]] = [("data", "from Python" if run.source is None else run.source.kind)]
    for option in () if run.source is None else OPTIONS[run.source.kind]:
        if (value := getattr(run.source, option)) not in (None, False):
            rows.append((f"data: {option}", shown(value)))
    rows += [(name, facts[name]) for name in ("network", "device", "started")]
    if "batch" in facts:
        rows.append(("epoch", f"{facts['steps']:,} steps of {facts['batch']:,} samples"))
    rows += [(f"version of {name}", version) for name, version in facts["versions"].items()]
    rows.append(("commit", facts["commit"] or "unknown"))
    if run.epochs:
        rows.append(("samples per second, last epoch", f"{run.epochs[-1].images_per_second:,.0f}"))
    return rows


def column_rows(run: StoredRun) -> list[tuple[str, str]]:
    """Return how each column of a table is used, or why it is dropped."""
    known = (run.folder / PREPROCESSING).exists()  # missing before the first epoch
    encoder = Preprocessing.read(run.folder).encoder if known else None
    return [] if encoder is None else [(printable(name), use) for name, use in encoder.uses.items()]


def _new_data(run: StoredRun) -> str:
    return NEW_DATA.get("" if run.source is None else run.source.kind, "new.npz")


def predict_command(run: StoredRun) -> str:
    """Return the command that predicts new data, unless the network came from Python."""
    return f"ogc predict {shlex.quote(str(run.folder))} {_new_data(run)}"


def next_steps(run: StoredRun) -> list[tuple[str, str]]:
    """Return pairs of a sentence and a command or code."""
    folder, from_python = run.folder, run.facts["from_python"]  # parts that no command can load: "data", "network"
    steps = []
    if not run.finished:
        # a loss from a file is not named here, because a report may come from anyone; the command explains what to add
        command = resume_command({folder: ""}, from_python=bool(from_python))
        steps.append(("Resume the run:", f"{command}  # the same jobs" if from_python else command))
    if run.finished and run.recipe.surveys:
        code = AUDIT.format(folder=str(folder))
        command = f"ogc audit {shlex.quote(str(folder))}"
        steps.append(("See which labels are wrong, and what they should be:", code if run.source is None else command))
    if run.epochs:
        averaged = ", with its averaged weights" if run.recipe.average else ""
        given = ", network=your_network" if "network" in from_python else ""
        if not given:
            steps.append((f"Predict new data{averaged}:", predict_command(run)))
        code = LOAD.format(folder=str(folder), given=given, data=_new_data(run))
        steps.append((f"Predict in Python{averaged}:", code))
    return steps
