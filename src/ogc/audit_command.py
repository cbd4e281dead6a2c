"""What ``ogc audit`` does: train if need be, find wrong labels, write the files, say what was found; and apply it.

Annotations are evaluated inside ``register``, like those of ``cli.py``.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ._ending import one_sentence

if TYPE_CHECKING:
    import typer
    from rich.console import Console
    from rich.table import Table

    from .audit.apply import Applied
    from .audit.findings import Findings
    from .train_command import Request as Training

ITSELF = "audit"  # the command of the group that has no name
PAIRS, WORST = 5, 5  # how many are printed
LONGEST = 40  # characters of an id or a class


@dataclass(frozen=True)
class Request:
    """The command's arguments; ``None`` where one is not given."""

    run: Path | None = None
    folder: Path | None = None
    table: Path | None = None
    label: str | None = None
    true: str | None = None
    id: str | None = None
    skip_bad: bool = False
    epochs: int | None = None
    seed: int | None = None
    changes: tuple[str, ...] = ()
    device: str = "auto"
    out: Path | None = None

    def training(self) -> "Training | None":
        """What to train first, on every sample; ``None`` with a run."""
        from ._require import require
        from .train_command import Request as Training
        from .training.source import NAMED, TABLES

        given = [str(path) for path in (self.run, self.folder, self.table) if path is not None]
        require(len(given) == 1, "RUN", "given alone, or else --folder, or --table", given or None)
        if self.run is not None:
            for field in fields(self):
                if field.name != "run" and getattr(self, field.name) != field.default:
                    name = {"changes": "set", "skip_bad": "skip-bad"}.get(field.name, field.name)
                    raise ValueError(f"Parameter `{name}` should be left out with RUN, which is trained already.")
            return None
        if self.folder is not None and not self.folder.is_dir():
            raise FileNotFoundError(f"There is no folder `{self.folder}`.")
        if self.table is not None:
            known = self.table.suffix.lower() in TABLES
            require(known, "table", f"a file that ends in one of {', '.join(TABLES)}", str(self.table))
        path = given[0]
        return Training(
            source=str(Path(path).absolute()) if path in NAMED else path,
            label=self.label,
            true=self.true,
            id=self.id,
            skip_bad=self.skip_bad,
            val=0.0,
            epochs=self.epochs,
            seed=self.seed,
            changes=self.changes,
            device=self.device,
            out=self.out,
        )


def register(app: "typer.Typer") -> None:
    """Add ``audit``, a group whose own work is done where no sub-command is named."""
    import typer
    from typer.core import TyperGroup

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, args if args[:1] == ["apply"] else [ITSELF, *args])

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, command, rest = super().resolve_command(ctx, args)
            return None if name == ITSELF else name, command, rest  # for the line of usage

    group = typer.Typer(cls=Group, add_completion=False)

    @group.command(ITSELF)
    def audit(
        run: Annotated[Path | None, typer.Argument(help="The folder of a finished run.", metavar="RUN")] = None,
        folder: Annotated[Path | None, typer.Option(help="Train on a folder of images first.")] = None,
        table: Annotated[Path | None, typer.Option(help="Train on a table first, CSV or Parquet.")] = None,
        label: Annotated[str | None, typer.Option(help="The table's column of labels.")] = None,
        true: Annotated[
            str | None, typer.Option(help="Its column of true labels, to measure by; for a folder a CSV file.")
        ] = None,
        id: Annotated[str | None, typer.Option("--id", help="The table's column to find rows by.")] = None,
        skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")] = False,
        epochs: Annotated[int | None, typer.Option(help="How long to train.")] = None,
        seed: Annotated[int | None, typer.Option(help="Of the training.")] = None,
        changes: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Change anything in the recipe; may be repeated."),
        ] = None,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
        out: Annotated[
            Path | None, typer.Option(help="The new run's folder.", show_default="runs/SOURCE-METHOD-SEED")
        ] = None,
    ) -> None:
        """Which labels are wrong, and what they should be: after ogc train, or from a folder or a table in one go.

        \b
        Examples:
          ogc audit runs/digits-ce+ogc-pairflip-0.2-0
          ogc audit --folder photos/
          ogc audit --table customers.csv --label churned --id customer

        \b
        Written to RUN/audit:
          audit.html                 a page to look through, and to decide on
          issues.csv, .parquet       all samples, the worst first
          labels_fixed.csv           every label, with the suggestions applied
          audit.json                 the numbers, and where they come from

        \b
        What was found, applied to a copy (see ogc audit apply --help):
          ogc audit apply runs/photos-ce+ogc-0 --out moves.csv
          ogc audit apply runs/customers-ce+ogc-0 --out customers-fixed.csv

        A training that was stopped goes on with ogc train --resume RUN.
        """
        from rich.console import Console

        request = Request(
            run, folder, table, label, true, id, skip_bad, epochs, seed, tuple(changes or ()), device, out
        )
        run_audit(request, Console(highlight=False))

    @group.command()
    def apply(
        run: Annotated[Path, typer.Argument(help="The folder of an audited run.", metavar="RUN")],
        out: Annotated[Path, typer.Option(help="The file to write.")],
        decisions: Annotated[
            Path | None,
            typer.Option(
                help="Decisions exported from audit.html: only accepted ones count.", show_default="all issues"
            ),
        ] = None,
    ) -> None:
        """The labels that ogc audit suggests, applied to a copy; the original is never touched.

        \b
        A table: a copy with the label column changed.
        A folder: a CSV list of files to move, from and to.
        Other data: a file of labels for ogc train --labels.

        \b
        Examples:
          ogc audit apply runs/customers-ce+ogc-0 --out customers-fixed.csv
          ogc audit apply runs/photos --decisions mine.csv --out moves.csv
          ogc audit apply runs/digits-ce+ogc-pairflip-0.2-0 --out fixed.npy
        """
        from rich.console import Console

        from .audit.apply import apply as write
        from .audit.files import AuditError
        from .noise import LabelFileError

        with one_sentence(failures=(AuditError, LabelFileError)):
            tell_applied(write(run, out, decisions), run, Console(highlight=False))

    app.add_typer(group, name="audit", help="Which labels are wrong, and what they should be.")


def run_audit(request: Request, console: "Console") -> None:
    """Train if asked to, audit, and say what was found."""
    from ._require import require
    from .audit.files import write_audit
    from .audit.run import AUDIT, check_size, findings_of
    from .noise import LabelFileError
    from .train_command import Plan, warnings_told
    from .training.checkpoint import CheckpointError

    with one_sentence(failures=(CheckpointError, LabelFileError)):
        training = request.training()
        if training is None:
            assert request.run is not None
            folder = request.run
        else:
            training.check()
            plan = Plan.of(training)
            [folder] = plan.folders
            surveys = plan.recipes[0].surveys
            require(surveys > 0, "surveys", "above 0: an audit is made of them", surveys)
            check_size(plan.source)
            _train(replace(training, out=folder), folder, console)
        if os.environ.get("RANK", "0") != "0":  # of torchrun's processes only the first has something to write
            return
        with warnings_told(console):
            findings = findings_of(folder)
            told, notes = write_audit(findings, folder / AUDIT)
        console.print()
        for line in sentences(told):
            console.print(line, markup=False)
        if told["pairs"]:
            console.print(pairs_table(told))
        console.print(worst_table(findings))
        for note in notes:
            console.print(f"Note: {note}", markup=False, soft_wrap=True)
        tell_next(folder, findings, console)


def _train(training: "Training", folder: Path, console: "Console") -> None:
    """As ``ogc train`` does; if it is stopped, what comes after going on with it."""
    import typer

    from .train_command import run as train

    try:
        train(training, console)
    except typer.Exit as stop:
        if stop.exit_code > 128 and folder.exists():
            typer.echo(f"Then: ogc audit {shlex.quote(str(folder))}", err=True)
        raise


def sentences(told: Mapping[str, Any]) -> list[str]:
    """The outcome in words."""
    issues, samples, true = told["issues"], told["samples"], told["true_noise_rate"]
    really = "" if true is None else f" (in truth {_percent(true)})"
    rate = "" if not samples else f": an estimated noise rate of {_percent(told['noise_rate'])}{really}"
    said = [f"{issues:,} of {samples:,} labels are probably wrong{rate}."]
    if told["unsettled"]:
        said.append(
            "That rate is probably too high: the training was too short for the network to learn the right "
            "labels. Train for more epochs."
        )
    if told["memorised_from"] is not None:
        said.append(
            f"From epoch {told['memorised_from']} on the network fits labels that it contradicted before. Such labels "
            "are mostly memorised, so later epochs do not count here. Training for more epochs would not help."
        )
    if told["measures"] is not None:
        found = told["measures"]
        areas = {name: "-" if value is None else f"{value:.3f}" for name, value in found.items()}
        shares = {name: "-" if value is None else _percent(value) for name, value in found.items()}
        said.append(
            f"By the true labels: AUROC {areas['auroc']}, average precision {areas['average_precision']}; "
            f"precision {shares['precision']}, recall {shares['recall']}; "
            f"with all suggestions applied {shares['wrong_after']} would be wrong."
        )
    return said


def pairs_table(told: Mapping[str, Any]) -> "Table":
    pairs = told["pairs"]
    more = len(pairs) - PAIRS
    shown = _table("Most often confused", f"and {more:,} more" if more > 0 else None)
    for name, side in (("given", "left"), ("suggested", "left"), ("labels", "right")):
        shown.add_column(name, justify=side)  # type: ignore[arg-type]
    for pair in pairs[:PAIRS]:
        shown.add_row(*(_cell(pair[name]) for name in ("given", "suggested")), f"{pair['count']:,}")
    return shown


def worst_table(findings: "Findings") -> "Table":
    issues, names = findings.issues, findings.class_names
    shown = _table("The worst")
    columns = ["id", "given", "suggested", "P(wrong) %", "score"] + ["true"] * (findings.true is not None)
    for number, name in enumerate(columns):
        shown.add_column(name, justify="right" if number in (3, 4) else "left", overflow="fold")
    for i in issues.worst_first[:WORST].tolist():
        labels = (issues.given_label, issues.predicted_label)
        cells = [_cell(findings.ids[i]), *(_cell(names[int(each[i])]) for each in labels)]
        cells += [f"{100 * float(issues.wrong_probability[i]):.1f}", f"{float(issues.label_score[i]):.2g}"]
        shown.add_row(*cells, *([] if findings.true is None else [_cell(names[int(findings.true[i])])]))
    return shown


def _table(title: str, caption: str | None = None) -> "Table":
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _cell(text: str) -> Any:
    """Neither markup nor control characters nor a long name may spoil the table."""
    from rich.text import Text

    shown = "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in text[: LONGEST + 1])
    return Text(shown if len(text) <= LONGEST else shown[: LONGEST - 3] + "...")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def tell_next(folder: Path, findings: "Findings", console: "Console") -> None:
    """Where the files are, and what to type."""
    from .audit.apply import WAYS
    from .audit.files import ISSUES_CSV, PAGE
    from .audit.run import AUDIT

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    there = folder / AUDIT
    say(f"All of them, the worst first: {there / ISSUES_CSV}")
    if (there / PAGE).exists():
        say(f"To look through them and decide: {there / PAGE}")
    source = findings.run.get("source") or {"kind": "python", "path": None}
    path, kind = Path(source["path"] or "labels"), source["kind"]
    if kind in WAYS and findings.run["recipe"]["noise"] is not None:
        return
    copy = {"table": f"{path.stem}-fixed{path.suffix}", "folder": f"{path.name}-moves.csv"}.get(
        kind, "labels-fixed.npy"
    )
    command = shlex.join(["ogc", "audit", "apply", str(folder), "--out", copy])
    what = {"table": "To apply all suggestions to a copy", "folder": "To list the files to move"}
    say(f"{what.get(kind, 'To apply all suggestions')}: {command}")
    say("With --decisions FILE, exported from the page, only those that you accept.")


def tell_applied(applied: "Applied", run: Path, console: "Console") -> None:
    """How many labels are new, where they are, and what they are for."""
    count = f"{applied.changed:,} of {applied.samples:,} labels changed"
    line = f"{applied.path}: {count}."
    if applied.kind == "folder":
        line = f"{applied.path}: {applied.changed:,} of {applied.samples:,} files to move, from and to."
    elif applied.kind in ("digits", "cifar10", "cifar100", "arrays"):
        line += f" ogc train with --labels {shlex.quote(str(applied.path))} trains on them."
    console.print(line, markup=False, soft_wrap=True)
