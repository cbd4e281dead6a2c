"""The command line, ``ogc``. Annotations are evaluated inside ``build``: without typer, this file can be imported."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

NEEDED = ("typer", "rich", "matplotlib", "numpy", "sklearn")  # the extra `cli`


def main() -> None:
    """The entry point of ``ogc`` and ``python -m ogc``."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(f'The command line needs {", ".join(missing)}, not installed here: pip install "ogc[cli]"')
    build()(prog_name="ogc")


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
          ogc demo --epochs 30
        """
        from rich.console import Console

        from .demo import Settings
        from .demo import demo as first_run

        try:
            settings = Settings(seed=seed, seeds=seeds, epochs=epochs)
        except ValueError as error:
            raise _end(str(error), 2) from None
        try:
            first_run(out, settings, Console(highlight=False))
        except KeyboardInterrupt as stop:
            raise _end(str(stop), 130) from None
        except OSError as error:
            raise _end(f"Cannot write to {out}: {error.strerror or error}.", 1) from None

    def _end(sentence: str, code: int) -> typer.Exit:
        typer.echo(sentence, err=True)
        return typer.Exit(code)

    return app
