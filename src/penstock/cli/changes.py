"""What every command that changes something does alike: it asks first, and says what it did.

    --dry-run ─▶ checks, says what would be done      otherwise ─▶ confirm ─▶ change ─▶ print_change

People get a sentence, programs a record. Programs cannot be asked: where a person would be,
`-o json` needs `--yes`.
"""

from typing import Final

import typer

from penstock.cli.options import Output
from penstock.cli.output import Row, print_document
from penstock.errors import ErrorCode, MisuseError

NOBODY_TO_ASK: Final = (
    "-o is for programs, which nobody can ask: give --yes, or --dry-run to look first"
)


def check_output(output: Output, *, yes: bool, dry_run: bool) -> None:
    """Before a plan is made that somebody would have to confirm. Raises MisuseError."""
    if output is not Output.TABLE and not (yes or dry_run):
        raise MisuseError(NOBODY_TO_ASK, ErrorCode.INVALID_REQUEST)


def confirm(question: str, *, yes: bool) -> None:
    """Ends the command unless a person agrees, or has with --yes."""
    if not yes:
        typer.confirm(question, abort=True)


def print_change(said: str, record: Row, output: Output, *, dry_run: bool = False) -> None:
    """What was done, or with `dry_run` would be."""
    if output is Output.TABLE:
        typer.echo(said)
    else:
        print_document({**record, "dry_run": dry_run}, output)
