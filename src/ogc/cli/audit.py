"""``ogc audit`` and ``ogc audit apply``: train if needed, find wrong labels, and apply the suggestions to a copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .._require import printable, require
from ..report.console import make_console, say, warnings_as_notes
from . import options as shared
from . import train as training
from .command import as_typed, command, given
from .errors import SIGNALLED, is_first_process, reported

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..audit.findings import Findings

ITSELF = "audit"  # the name of the group's own command, which users do not type
PAIRS, WORST = 5, 5  # rows to print


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN|DATA", help="Folder of a finished run; or a table, a folder of images or an .npz to train on."
        ),
    ] = None
    folder: Annotated[Path | None, typer.Option(help="Folder of images to train on and audit.")] = None
    table: Annotated[Path | None, typer.Option(help="CSV or Parquet table to train on and audit.")] = None
    method: shared.Method = None
    label: shared.Label = None
    true: shared.TrueLabels = None
    id: shared.Id = None
    skip_bad: shared.SkipBad = False
    epochs: shared.Epochs = None
    seed: shared.Seed = None
    changes: shared.Set = field(default_factory=list)
    device: shared.Device = "auto"
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.", show_default="runs/SOURCE-METHOD-SEED")] = (
        None
    )

    def train_options(self) -> training.TrainOptions | None:
        """Return the options to train with on all samples, or ``None`` with a finished run."""
        from ..training.run_folder import RUN
        from ..training.source import NAMED, TABLES

        paths = [path for path in (self.source, self.folder, self.table) if path is not None]
        if not paths:
            raise ValueError(
                "The argument `RUN|DATA` is missing. Give the folder of a finished run, a table, a folder of images or "
                "an .npz file, as in: ogc audit customers.csv --label churned."
            )
        require(len(paths) == 1, "RUN|DATA", "one path, or --folder or --table instead", list(map(str, paths)))
        if self.source is not None and (self.source / RUN).is_file():
            for name in given(self):
                if name != "source":
                    raise ValueError(f"Parameter `{name}` cannot be combined with a run, which is already trained.")
            return None
        if self.source is not None:
            rule = "an existing folder of images, table or .npz file, or the folder of a finished run of ogc train"
            known = self.source.exists() and self.source.suffix.lower() != ".npy"
            require(known, "RUN|DATA", rule, str(self.source))
        if self.folder is not None and not self.folder.is_dir():
            raise FileNotFoundError(f"There is no folder `{self.folder}`.")
        if self.table is not None:
            known = self.table.suffix.lower() in TABLES
            require(known, "table", f"a file that ends in one of {', '.join(TABLES)}", str(self.table))
        source = str(paths[0].absolute() if str(paths[0]) in NAMED else paths[0])
        names = ("method", "label", "true", "id", "skip_bad", "epochs", "seed", "changes", "device", "out")
        return training.TrainOptions(source=source, val=0.0, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class ApplyOptions:
    run: Annotated[Path, typer.Argument(help="Folder of an audited run.", metavar="RUN")]
    out: Annotated[Path | None, typer.Option(help="The file to write.")] = None
    copy: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For a folder of images: copy it, with the labels corrected.")
    ] = None
    decisions: Annotated[
        Path | None,
        typer.Option(
            help="Decisions exported from audit.html: apply the labels chosen there.", show_default="all issues"
        ),
    ] = None
    accept_above: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Apply the suggestions without a decision if P(wrong) is at least P, in [0, 1].",
            show_default="none with --decisions, otherwise all",
        ),
    ] = None


class OwnContext(typer.Context):
    """Context of a group's own command, which has no name."""

    @property
    def command_path(self) -> str:
        return super().command_path.rstrip()


class OwnCommand(TyperCommand):
    """A group's own command."""

    context_class = OwnContext


class AuditGroup(TyperGroup):
    """Group that runs its own command unless a sub-command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] == ["apply"] else [ITSELF, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return None if name == ITSELF else name, command, rest  # for the usage line


def group() -> typer.Typer:
    """Return ``audit`` with ``apply``."""
    app = typer.Typer(cls=AuditGroup, add_completion=False)
    app.command(ITSELF, cls=OwnCommand)(audit)
    app.command()(apply)
    return app


@command()
def audit(options: AuditOptions) -> None:
    """Find wrong labels and suggest the right ones, in a finished run, a table, an .npz file or a folder of images.

    \b
    Examples:
      ogc audit runs/digits-ce+ogc-pairflip-0.2-0
      ogc audit customers.csv --label churned --id customer
      ogc audit photos/ --method gce+ogc
      ogc audit embeddings.npz

    \b
    Files written to RUN/audit:
      audit.html                 page for reviewing the issues
      issues.csv, .parquet       all samples, issues first
      labels_fixed.csv           all labels, with the suggestions applied
      audit.json                 the numbers and their provenance

    \b
    To apply the suggestions to a copy (see ogc audit apply --help):
      ogc audit apply runs/photos-ce+ogc-0 --copy photos-fixed
      ogc audit apply runs/customers-ce+ogc-0 --out customers-fixed.csv

    If training is stopped, resume it with ogc train --resume RUN.
    """
    from ..audit.files import write_audit
    from ..audit.run import findings_of
    from ..training.run_folder import AUDIT

    console = make_console()
    to_train = options.train_options()
    folder = options.source if to_train is None else _train(to_train, console)
    assert folder is not None
    if not is_first_process():
        return
    with warnings_as_notes(console):
        findings = findings_of(folder)
        summary, notes = write_audit(findings, folder / AUDIT)
    console.print()
    for sentence in sentences(summary):
        console.print(sentence, markup=False)
    if summary["pairs"]:
        console.print(pairs_table(summary))
    if summary["issues"]:
        console.print(worst_table(findings))
    for note in notes:
        say(console, f"Note: {note}")
    _next_steps(folder, findings, console)


def _train(options: training.TrainOptions, console: Console) -> Path:
    """Train as ``ogc train`` does, and return the run's folder. If it is stopped, print how to audit it later."""
    from ..audit.run import check_size

    options.check()
    plan = training.Plan.of(options)
    [folder] = plan.folders
    surveys = plan.recipes[0].surveys
    require(surveys > 0, "surveys", "above 0, because an audit is based on them", surveys)
    check_size(plan.source)
    try:
        with reported(**training.HINTS, reworded=partial(as_typed, options)):
            training.run(replace(options, out=folder), console)
    except typer.Exit as stop:
        if stop.exit_code > SIGNALLED and folder.exists():
            typer.echo(f"Then: ogc audit {shlex.quote(str(folder))}", err=True)
        raise
    return folder


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Describe the result of an audit."""
    from ..rival_label import MAY_BE_RIGHT, almost_all
    from ..training.method import for_rare_classes
    from ..training.source import NAMED, ONLY_ADDED

    issues, samples, true = summary["issues"], summary["samples"], summary["true_noise_rate"]
    actual = "" if true is None else f" (true rate: {_percent(true)})"
    rate = "" if not samples else f": an estimated noise rate of {_percent(summary['noise_rate'])}{actual}"
    found = [f"{issues:,} of {samples:,} labels are probably wrong{rate}."]
    if summary["unlearned"]:
        found.append(
            f"They include {almost_all(summary['unlearned'])}. {MAY_BE_RIGHT} Look at them before you apply the "
            "suggestions."
        )
    if summary["unreliable"] is not None:
        found.append(summary["unreliable"])
    elif summary["unlearned"]:
        recipe = summary["run"]["recipe"]
        found.append(f"Training {for_rare_classes(recipe['method'], recipe['parameters'])} may help.")
    if summary["memorised_from"] is not None and summary["unreliable"] is None:
        found.append(
            f"From epoch {summary['memorised_from']} on, the network fits labels that it contradicted before. Most of "
            "these are memorised, so later epochs are ignored here. Training for more epochs would not help."
        )
    if summary["measures"] is not None:
        measures = summary["measures"]
        areas = {name: "-" if value is None else f"{value:.3f}" for name, value in measures.items()}
        shares = {name: "-" if value is None else _percent(value) for name, value in measures.items()}
        found.append(
            f"Compared with the true labels: AUROC {areas['auroc']}, average precision {areas['average_precision']}, "
            f"precision {shares['precision']}, recall {shares['recall']}. "
            f"With all suggestions applied, {shares['wrong_after']} of the labels would be wrong."
        )
        source = summary["run"]["source"]
        if source is not None and source["kind"] not in NAMED and summary["run"]["recipe"]["noise"] is not None:
            found.append(ONLY_ADDED)
    return found


def pairs_table(summary: Mapping[str, Any]) -> Table:
    """Return the classes that are confused most often."""
    pairs = summary["pairs"]
    more = len(pairs) - PAIRS
    shown = _table("Most frequent confusions", f"and {more:,} more" if more > 0 else None)
    shown.add_column("given")
    shown.add_column("suggested")
    shown.add_column("labels", justify="right")
    for pair in pairs[:PAIRS]:
        shown.add_row(_cell(pair["given"]), _cell(pair["suggested"]), f"{pair['count']:,}")
    return shown


def worst_table(findings: Findings) -> Table:
    """Return the issues with the worst labels."""
    issues, names = findings.issues, findings.class_names
    shown = _table("Worst labels")
    columns = ["id", "given", "suggested", "P(wrong) %", "score"] + ["true"] * (findings.true is not None)
    for number, name in enumerate(columns):
        shown.add_column(name, justify="right" if number in (3, 4) else "left", overflow="fold")
    worst = issues.worst_first[issues.is_label_issue[issues.worst_first]]
    for i in worst[:WORST].tolist():
        labels = (issues.given_label, issues.predicted_label)
        cells = [_cell(findings.ids[i]), *(_cell(names[int(each[i])]) for each in labels)]
        cells += [f"{100 * float(issues.wrong_probability[i]):.1f}", f"{float(issues.label_score[i]):.2g}"]
        shown.add_row(*cells, *([] if findings.true is None else [_cell(names[int(findings.true[i])])]))
    return shown


def _table(title: str, caption: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    left: Any = {"title_justify": "left", "caption_justify": "left"}
    return Table(title=title, caption=caption, **left, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _cell(text: str) -> Any:
    """Return a table cell without markup."""
    from rich.text import Text

    return Text(printable(text))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _next_steps(folder: Path, findings: Findings, console: Console) -> None:
    """Print where the files are, and the command that applies the suggestions."""
    from ..audit.apply import WRITERS
    from ..audit.files import ISSUES_CSV, PAGE
    from ..training.run_folder import AUDIT

    written = folder / AUDIT
    say(console, f"All labels, issues first: {written / ISSUES_CSV}")
    if (written / PAGE).exists():
        say(console, f"Review page: {written / PAGE}")
    source = findings.run.get("source") or {"kind": "python", "path": None}
    path, kind = Path(source["path"] or "labels"), source["kind"]
    if kind in WRITERS and findings.run["recipe"]["noise"] is not None:
        return
    task, copy = {
        "table": ("To apply all suggestions to a copy", f"{path.stem}-fixed{path.suffix}"),
        "folder": ("To list the files to move", f"{path.name}-moves.csv"),
    }.get(kind, ("To apply all suggestions", "labels-fixed.npy"))
    if findings.doubtful is not None:
        say(console, f"Note: {findings.doubtful}")
    say(console, f"{task}: {shlex.join(['ogc', 'audit', 'apply', str(folder), '--out', copy])}")
    if kind == "folder":
        fixed = shlex.join(["ogc", "audit", "apply", str(folder), "--copy", f"{path.name}-fixed"])
        say(console, f"To copy the folder with all suggestions applied: {fixed}")
    say(console, "To apply only those that you accept on the review page, add --decisions with the exported file.")
    if (limit := findings.limit) is not None:
        wrong = findings.issues.wrong_probability[findings.issues.is_label_issue].double()
        kept = f"the {int((wrong >= limit).sum()):,} of {len(wrong):,} suggestions"
        say(console, f"To apply only {kept} with a P(wrong) of at least {limit}, add --accept-above {limit}.")


@command()
def apply(options: ApplyOptions) -> None:
    """Apply the suggestions of ogc audit to a copy. The original data is never changed.

    \b
    Table: a copy with the label column changed.
    Folder: with --copy, a copy with every file in the folder of its new label;
    with --out, a CSV list of moves.
    Other data: a file of labels for ogc train --labels.

    \b
    Examples:
      ogc audit apply runs/customers-ce+ogc-0 --out customers-fixed.csv
      ogc audit apply runs/photos --decisions mine.csv --copy photos-fixed
      ogc audit apply runs/photos --decisions mine.csv --accept-above 0.9 --copy photos-fixed
      ogc audit apply runs/photos --out moves.csv
      ogc audit apply runs/digits-ce+ogc-pairflip-0.2-0 --out fixed.npy
    """
    from ..audit.apply import apply as write
    from ..audit.files import PAGE
    from ..rival_label import MAY_BE_RIGHT, almost_all
    from ..training.run_folder import AUDIT

    console, limit = make_console(), options.accept_above
    applied = write(options.run, options.out, options.decisions, copy=options.copy, accept_above=limit)
    what = "files to move" if applied.kind == "folder" else "labels changed"
    message = f"{applied.path}: {applied.changed:,} of {applied.samples:,} {what}."
    if applied.copied is not None:
        labels = f"{applied.changed:,} of {applied.samples:,} images with a new label"
        message = f"{applied.path}: {applied.copied:,} files copied, {labels}."
    elif applied.kind in ("digits", "cifar10", "cifar100", "arrays"):
        message += f" To train on them, add --labels {shlex.quote(str(applied.path))} to ogc train."
    say(console, message)
    if applied.emptied and options.decisions is None:
        changed = almost_all(applied.emptied).removeprefix("almost ")
        say(
            console,
            f"Note: This changed {changed}. {MAY_BE_RIGHT} To review them first, open {options.run / AUDIT / PAGE}, "
            "and apply your --decisions.",
        )
