"""The command line, ``ogc``. Annotations are evaluated inside ``build``: without typer, this file can be imported."""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from ._ending import one_sentence

if TYPE_CHECKING:
    import typer

NEEDED = ("typer", "rich", "matplotlib", "numpy", "sklearn", "PIL", "pydantic", "safetensors")  # the extra `cli`


def main() -> None:
    """The entry point of ``ogc`` and ``python -m ogc``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(f'The command line needs {", ".join(missing)}, not installed here: pip install "torch-ogc[cli]"')
    try:
        build()(prog_name="ogc")
    except KeyboardInterrupt:  # before there is a command
        sys.exit(130)


def interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C as ever, but for imports: a library may swallow it there, and what is half imported is of no use."""
    while (above := frame) is not None:
        if above.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(130)
        frame = above.f_back
    raise KeyboardInterrupt


def build() -> "typer.Typer":
    """The app with its commands."""
    import typer

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

    def show_version(wanted: bool) -> None:
        if wanted:
            from . import __version__

            typer.echo(f"ogc {__version__}")
            raise typer.Exit

    @app.callback()
    def ogc(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """Train on data whose labels are partly wrong: Optimized Gradient Clipping.

        Start with: ogc demo
        """

    @app.command()
    def demo(
        out: Annotated[Path, typer.Option(help="Folder for the pictures and result.json.")] = Path("runs/demo"),
        seeds: Annotated[int, typer.Option(help="How many seeds to average over, from --seed on.")] = 1,
        seed: Annotated[int, typer.Option(help="The first seed: of the noise, the weights and the batches.")] = 0,
        epochs: Annotated[int, typer.Option(help="Epochs per run; lr falls after a third and two thirds.")] = 120,
    ) -> None:
        """Digits with half of the labels wrong: CE against CE+OGC, in under a minute, offline.

        \b
        Examples:
          ogc demo
          ogc demo --seeds 3 --out runs/three
        """
        from rich.console import Console

        from .demo import Settings
        from .demo import demo as first_run

        with one_sentence():
            first_run(out, Settings(seed=seed, seeds=seeds, epochs=epochs), Console(highlight=False))

    @app.command()
    def train(
        source: Annotated[
            str | None,
            typer.Argument(help="digits, cifar10, cifar100, webvision, a folder of images, a table, a .npz or .npy."),
        ] = None,
        recipe: Annotated[
            str | None, typer.Option(metavar="NAME|FILE.toml", help="A recipe's name or file; --print shows it.")
        ] = None,
        method: Annotated[str | None, typer.Option(help="ce+ogc, fl+ogc, ce, gce, ... (default: ce+ogc)")] = None,
        noise: Annotated[
            str | None,
            typer.Option(metavar="KIND:RATE", help="Noise for the training labels: symmetric:0.5, human:worse, ..."),
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Of the weights, the batches and the augmentation.")] = None,
        seeds: Annotated[int | None, typer.Option(help="How many seeds to train, from --seed on.")] = None,
        epochs: Annotated[int | None, typer.Option(help="How long to train; the schedule follows.")] = None,
        changes: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Change anything in the recipe; may be repeated."),
        ] = None,
        data: Annotated[
            Path | None, typer.Option(help="Folder of the CIFAR or WebVision files.", show_default="data")
        ] = None,
        label: Annotated[str | None, typer.Option(help="A table's column of labels, or an array's name.")] = None,
        true: Annotated[
            str | None, typer.Option(help="Likewise with true labels, to measure by; for a folder a CSV file.")
        ] = None,
        id: Annotated[str | None, typer.Option("--id", help="A table's column to find rows by.")] = None,
        labels: Annotated[
            Path | None, typer.Option(help="Given labels from a file: a CIFAR-N .pt, .npy, .csv.")
        ] = None,
        val: Annotated[float | None, typer.Option(help="Share to validate on.", show_default="0.2")] = None,
        test: Annotated[Path | None, typer.Option(help="A table to test on.")] = None,
        ilsvrc: Annotated[Path | None, typer.Option(help="ILSVRC-12's validation images, with webvision.")] = None,
        skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")] = False,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
        engine: Annotated[str, typer.Option(help="auto, loop, or graph: CUDA graphs, seeds side by side.")] = "auto",
        out: Annotated[
            Path | None, typer.Option(help="The run's folder.", show_default="runs/SOURCE-METHOD-NOISE-SEED")
        ] = None,
        tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write events to the run's folder.")] = False,
        download: Annotated[bool, typer.Option("--download", help="Fetch CIFAR into --data, if missing.")] = False,
        resume: Annotated[
            list[Path] | None, typer.Option(metavar="RUN", help="Go on with a run's folder; may be repeated.")
        ] = None,
        show: Annotated[
            bool, typer.Option("--print", help="Show the recipe and what would be read; do nothing.")
        ] = False,
    ) -> None:
        """Train a classifier on labels that are partly wrong; ends with a table and report.html in the run's folder.

        \b
        Examples:
          ogc train digits --noise symmetric:0.5
          ogc train photos/ --method ce --epochs 20
          ogc train photos/ --recipe folder-large --set size=160 --set batch_size=32
          ogc train customers.csv --label churned --id customer
          ogc train cifar10 --data ~/cifar --noise human:worse --seeds 3
          ogc train cifar10 --data ~/cifar --recipe mine.toml --print
          ogc train --resume runs/digits-ce+ogc-symmetric-0.5-0

        Ctrl-C saves, and says how to go on. A recipe in TOML: base = "cifar10", then what is different.
        """
        from rich.console import Console

        from .train_command import Request, run

        run(
            Request(
                source=source,
                recipe=recipe,
                method=method,
                noise=noise,
                seed=seed,
                seeds=seeds,
                epochs=epochs,
                changes=tuple(changes or ()),
                data=data,
                label=label,
                true=true,
                id=id,
                labels=labels,
                val=val,
                test=test,
                ilsvrc=ilsvrc,
                skip_bad=skip_bad,
                device=device,
                engine=engine,
                out=out,
                tensorboard=tensorboard,
                download=download,
                resume=tuple(resume or ()),
                show=show,
            ),
            Console(highlight=False),
        )

    @app.command(name="noise")
    def make_noise(
        source: Annotated[str, typer.Argument(help="digits, cifar10, cifar100, or a .npy or .csv file of labels.")],
        kind: Annotated[
            str | None,
            typer.Argument(
                help="symmetric, asymmetric, blocks, pairflip, instance, human:KIND, file; none to read SOURCE back."
            ),
        ] = None,
        rate: Annotated[float | None, typer.Argument(help="The share to flip, in [0, 1].")] = None,
        seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
        data: Annotated[Path, typer.Option(help="Folder that holds the CIFAR files.")] = Path("data"),
        labels: Annotated[Path | None, typer.Option(help="Labels to import: a CIFAR-N .pt, a .npy or .csv.")] = None,
        column: Annotated[
            str | None, typer.Option("--import", metavar="COLUMN", help="Column of the .csv or .npy to read.")
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option(help="The file to write, .npy or .csv.", show_default="runs/noise/SOURCE-KIND-RATE-SEED.npy"),
        ] = None,
        plot: Annotated[bool, typer.Option("--plot", help="Draw the confusion matrix beside it, as PNG.")] = False,
        download: Annotated[
            bool, typer.Option("--download", help="Fetch CIFAR into --data if it is not there; continues a broken one.")
        ] = False,
    ) -> None:
        """Given labels with noise, written to a file with its kind, rate, seed and checksum in a JSON beside it.

        \b
        Examples:
          ogc noise digits symmetric 0.5
          ogc noise cifar10 symmetric 0.5 --data ~/cifar --download --plot
          ogc noise cifar10 asymmetric 0.4 --data ~/cifar
          ogc noise cifar100 blocks 0.4 --data ~/cifar --seed 3
          ogc noise cifar10 human:worse --data ~/cifar --labels CIFAR-10_human.pt
          ogc noise cifar10 file --data ~/cifar --labels mine.csv --import worker_7
          ogc noise mine.csv pairflip 0.2 --import true_label
          ogc noise runs/noise/digits-symmetric-0.5-0.npy

        human: aggregate, random1, random2, random3, worse (CIFAR-10N) or noisy (CIFAR-100N).
        """
        from rich.console import Console

        from .noise import LabelFileError
        from .noise_command import Request, run, show

        with one_sentence(failures=(LabelFileError,)):
            info, files = run(Request(source, kind, rate, seed, data, labels, column, out, plot, download))
        show(info, files, Console(highlight=False, soft_wrap=True))

    from . import audit_command, bench_command, figures_command, tables_command

    audit_command.register(app)
    bench_command.register(app)
    tables_command.register(app)
    figures_command.register(app)
    return app
