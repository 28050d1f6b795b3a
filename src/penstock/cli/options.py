"""Options and texts that several commands share, so that they mean the same everywhere."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import completion
from penstock.cli.connect import ADDRESS_VARIABLE, note_typed
from penstock.cli.usage import WrongUsageError, typed
from penstock.core.types import BrokerId
from penstock.errors import MisuseError

COUNT_MAX: Final = 2**31 - 1
"""The protocol's limit; the cluster may have a lower one."""
RECORDS_MAX: Final = 2**63 - 1
"""An offset is not larger."""


class Output(StrEnum):
    """How results are printed. Programs should read json."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def topic_name(text: str) -> str:
    """Callback of arguments that name a topic. Raises WrongUsageError."""
    from penstock.core.topic import validate_topic_name  # noqa: PLC0415 - not for --help

    with typed():
        validate_topic_name(text)
    return text


def group_id(text: str) -> str:
    """Callback of arguments that name a group. Raises WrongUsageError."""
    from penstock.client.setting_checks import check_group_id  # noqa: PLC0415 - not for --help

    with typed():
        check_group_id(not_empty(text))
    return text


def given_not_empty(text: str | None) -> str | None:
    """The same, of arguments that may be left out: "" is not that."""
    return None if text is None else not_empty(text)


def not_empty(text: str) -> str:
    """Callback of arguments that name something: an unset variable names nothing."""
    if not text:
        raise typer.BadParameter("it is empty (an unset variable?)")
    return text


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar=ADDRESS_VARIABLE,
        callback=note_typed,
        metavar="HOST:PORT[,…]",
        help="Any brokers of the cluster. Without it: the current profile, else the running local "
        "cluster, else localhost:9092, else the only Cluster in the kubeconfig's context.",
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="CA certificates of the cluster (PEM): use TLS. Without it: $PENSTOCK_CA_FILE, or "
        "/var/run/secrets/penstock.dev/ca.crt.",
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Token that says who you are. Without it: $PENSTOCK_TOKEN_FILE, or "
        "/var/run/secrets/penstock.dev/token.",
    ),
]
CertificateFile = Annotated[
    str | None,
    typer.Option(
        "--certificate",
        "--cert",
        metavar="FILE",
        help="Certificate to show (PEM). Without it: $PENSTOCK_CERTIFICATE_FILE.",
    ),
]
KeyFile = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="FILE", help="The certificate's key (PEM). Without it: $PENSTOCK_KEY_FILE."
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Output format: for people, or for programs.")
]
OnlyBrokers = Annotated[
    list[int] | None,
    typer.Option("--broker", min=0, max=COUNT_MAX, help="Only of this; may be repeated."),
]
TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="Name of the topic.",
        callback=topic_name,
        autocompletion=completion.topics,
    ),
]
GroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="Id of the group.",
        callback=group_id,
        autocompletion=completion.groups,
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", "-D", help="What ends a record, if not a newline: ; or \\0."),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only check whether the change would work.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@dataclass(frozen=True, slots=True)
class Brokers:
    """Ids of brokers, as an option names them."""

    ids: tuple[BrokerId, ...]


def parse_brokers(text: str) -> Brokers:
    """Parser of options that name brokers."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) <= COUNT_MAX for part in parts):
        raise typer.BadParameter(f"it is {text!r}; it must be ids of brokers, as 3 or 4,5")
    ids = tuple(BrokerId(int(part)) for part in parts)
    if len(set(ids)) != len(ids):
        raise typer.BadParameter(f"it is {text!r}; it names a broker twice")
    return Brokers(ids)


def duration_ms(text: str) -> int:
    """Parser of options that are a duration, in milliseconds."""
    from penstock.core.offset_reset import parse_duration_ms  # noqa: PLC0415 - not for --help

    try:
        return parse_duration_ms(text)
    except MisuseError:
        raise typer.BadParameter(
            f"it is {text!r}; it must be a duration, as 90s, 1h30m, 2d or PT1H30M"
        ) from None


def moment_ms(text: str) -> int:
    """Parser of options that are a moment, in milliseconds since 1970."""
    from penstock.cli.places import TIME_FORMS, parse_time_ms  # noqa: PLC0415 - not for --help

    try:
        return parse_time_ms(text, "")
    except MisuseError:
        raise typer.BadParameter(f"it is {text!r}; it must be {TIME_FORMS}") from None


def directory(text: str) -> Path:
    """Parser of options that name a directory, which does not have to exist yet."""
    if not text:  # Path("") would be the working directory
        raise typer.BadParameter("it is empty (an unset variable?)")
    if Path(text).is_file():
        raise typer.BadParameter(f"{text} is a file, not a directory")
    return Path(text)


def new_file(text: str) -> Path:
    """Parser of options that name a file to write."""
    if not text:
        raise typer.BadParameter("it is empty (an unset variable?)")
    if Path(text).is_dir():
        raise typer.BadParameter(f"{text} is a directory, not a file")
    return Path(text)


def example(*lines: str) -> str:
    """The epilog of every command: lines to copy."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def parse_pairs(texts: list[str] | None, option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """`key=value` texts as a mapping; `form`: as help calls them.

    Raises WrongUsageError for one without '=' or given twice.
    """
    pairs: dict[str, str] = {}
    for text in texts or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise WrongUsageError(f"{option} is {text!r}; it must be {form}")
        if key in pairs:
            raise WrongUsageError(f"{option} gives {key!r} twice")
        pairs[key] = value
    return pairs
