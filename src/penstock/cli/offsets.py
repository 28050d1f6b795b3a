"""`penstock offsets`: where a topic's partitions begin and end, and what lies at a time."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connect import open_admin
from penstock.cli.consume import choose_partitions
from penstock.cli.options import (
    Bootstrap,
    Output,
    OutputOption,
    Partitions,
    TopicArgument,
    example,
    moment_ms,
)
from penstock.cli.output import print_rows

if TYPE_CHECKING:
    from penstock.client import Admin
    from penstock.core.types import TopicPartition


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog=example(
            "penstock offsets flights", "penstock offsets flights --at 2013-06-01T12:00 -o json"
        )
    )(offsets)


def offsets(
    topic: TopicArgument,
    *,
    partition: Partitions = None,
    at: Annotated[
        int | None,
        typer.Option(
            parser=moment_ms,
            metavar="TIME",
            help="Also the first record at or after this: ms since 1970, or ISO 8601 (UTC).",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the earliest and latest offset of each partition.

    `latest` is the last stable offset: what readers of committed records get ends there, and an
    open transaction keeps it at its first record. With --at, `at` is empty if no record is that
    recent.
    """
    with open_admin(bootstrap) as admin:
        partitions = choose_partitions(admin, topic, partition)
        print_rows(_rows(admin, partitions, at), output)


def _rows(
    admin: "Admin", partitions: "list[TopicPartition]", time_ms: int | None
) -> list[dict[str, object]]:
    from penstock.client import EARLIEST, LATEST  # noqa: PLC0415 - grpc only when it is needed

    earliest = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    latest = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    rows: list[dict[str, object]] = [
        {
            "partition": one.partition,
            "earliest": earliest[one].offset,
            "latest": latest[one].offset,
            "records": latest[one].offset - earliest[one].offset,
        }
        for one in partitions
    ]
    if time_ms is not None:
        listed = admin.list_offsets(dict.fromkeys(partitions, time_ms))
        for row, one in zip(rows, partitions, strict=True):
            row["at"] = listed[one].offset if listed[one].offset >= 0 else None
    return rows
