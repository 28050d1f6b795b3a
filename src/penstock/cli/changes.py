"""What commands that change something do alike: they ask first, change, and say what they did.

    --dry-run ─▶ checks, says what would be done      otherwise ─▶ confirm ─▶ change ─▶ print_change

People get a sentence, programs a record. Programs cannot be asked: where a person would be,
`-o json` needs `--yes`.
"""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Final, TypeVar

import typer

from penstock.cli.options import Output
from penstock.cli.output import Row, print_document, printable
from penstock.cli.usage import WrongUsageError
from penstock.errors import ClusterError, ErrorCode, MisuseError

_Rules = TypeVar("_Rules")

NOBODY_TO_ASK: Final = (
    "-o is for programs, which nobody can ask: give --yes, or --dry-run to look first"
)
_ATTEMPTS: Final = 50
"""Each fails only if somebody else has changed the rules in between."""


def check_output(output: Output, *, yes: bool, dry_run: bool) -> None:
    """Before a plan is made that somebody would have to confirm. Raises WrongUsageError."""
    if output is not Output.TABLE and not (yes or dry_run):
        raise WrongUsageError(NOBODY_TO_ASK)


def confirm(question: str, *, yes: bool) -> None:
    """Ends the command unless a person agrees, or has with --yes.

    Only a terminal is a person: in a `while read` loop, standard input is the data of the loop. The
    question goes to standard error, so that a result can go to a file. Raises MisuseError.
    """
    if yes:
        return
    if not is_person_there():
        raise MisuseError(
            "standard input is no terminal, so nobody can be asked: give --yes, or --dry-run to "
            "look"
        )
    with redirect_stdout(sys.stderr):  # all of it: with err=True, a blank would stay behind
        typer.confirm(printable(question), abort=True)


def is_person_there() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def replace_rules(
    read: Callable[[], _Rules],
    changed: Callable[[_Rules], _Rules],
    write: Callable[[_Rules, _Rules], None],
) -> _Rules:
    """Reads rules and replaces them, again whenever somebody else did so in between.

    `write` gets the new ones and those that it must find. Returns the new ones.
    """
    for left in reversed(range(_ATTEMPTS)):
        before = read()
        after = changed(before)
        try:
            write(after, before)
        except ClusterError as error:
            if error.code is not ErrorCode.STALE_RULES or not left:
                raise
        else:
            return after
    raise AssertionError("the last attempt returns or raises")


def print_change(said: str, record: Row, output: Output, *, dry_run: bool = False) -> None:
    """What was done, or with `dry_run` would be."""
    if output is Output.TABLE:
        typer.echo(printable(said, keep="\n"))
    else:
        print_document({**record, "dry_run": dry_run}, output)
