"""Run ``ogc`` in this process."""

from typer.testing import CliRunner

from ogc.cli.app import build


def ogc(*arguments):
    result = CliRunner().invoke(build(), [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def works(*arguments):
    """Run ``ogc``, check that it succeeds and return its output."""
    result = ogc(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout
