"""Who is always admin or viewer, by options of the process: nobody can be locked out by rules.

Without them nobody could make the first rule.
"""

import argparse
import os
from typing import Final

from penstock.core.authorization import Rulebook
from penstock.core.authorization.checks import check_principal
from penstock.errors import ErrorCode, MisuseError

_OPTIONS: Final = (("--admin", "PENSTOCK_ADMINS"), ("--viewer", "PENSTOCK_VIEWERS"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--admin` and `--viewer`, which brokers and controllers have in common."""
    for option, variable in _OPTIONS:
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="PRINCIPAL",
            help=f"always has the role {option[2:]}, whatever the rules say, as "
            f"serviceaccount:ops/tool; repeatable; and those in ${variable}, comma-separated",
        )


def parse_roles(args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Admins and viewers. Raises MisuseError for what is no principal."""
    admins, viewers = (_principals(args, *each) for each in _OPTIONS)
    return admins, viewers


def rulebook(args: argparse.Namespace) -> Rulebook:
    """One that knows these roles, and no rules yet. Raises MisuseError as `parse_roles`."""
    return Rulebook(*parse_roles(args))


def _principals(args: argparse.Namespace, option: str, variable: str) -> tuple[str, ...]:
    given: list[str] = list(getattr(args, option[2:]))
    listed = [one.strip() for one in os.environ.get(variable, "").split(",") if one.strip()]
    for source, principals in ((option, given), (f"${variable}", listed)):
        for principal in principals:
            try:
                check_principal(principal)
            except MisuseError as error:
                raise MisuseError(f"{source}: {error.message}", ErrorCode.INVALID_CONFIG) from None
    return tuple(dict.fromkeys([*given, *listed]))
