"""`penstock version`: what this installation is. Of brokers: `penstock broker list`."""

import platform

import typer

from penstock import __version__
from penstock.cli.options import Output, OutputOption, example
from penstock.cli.output import print_record


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=example("penstock version", "penstock version -o json"))(version)


def version(*, output: OutputOption = Output.TABLE) -> None:
    """Show the version of this program, and of the Python that runs it."""
    record = {
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    print_record(record, output)
