"""`penstock topic trim`: delete the records of a topic before a place; what follows stays.

    --before ─▶ an offset per partition ─▶ shown, confirmed ─▶ DeleteRecords, to each leader

The leader moves its log start, durably; followers take it over. Only what was shown goes: not what
is written meanwhile, and nothing of a transaction that was open then. Consumers that are before the
new start go on there as after retention.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.changes import check_output, confirm
from penstock.cli.connect import open_admin
from penstock.cli.consume import choose_partitions
from penstock.cli.options import (
    Bootstrap,
    DryRun,
    Output,
    OutputOption,
    Partitions,
    TopicArgument,
    Yes,
    example,
)
from penstock.cli.output import format_table, print_document
from penstock.cli.places import Place, PlaceKind, parse_place, resolve
from penstock.cli.usage import WrongUsageError
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin
    from penstock.core.types import TopicPartition


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog=example(
            "penstock topic trim flights --before @2013-06-01 --dry-run",
            "penstock topic trim flights --before 120000 -p 3 --yes",
            "penstock topic trim flights --before end",
        )
    )(trim)


def trim(
    topic: TopicArgument,
    *,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="PLACE",
            help="Where the log begins afterwards: OFFSET (with --partition), -N (keep the last N "
            "records), @TIME, or end.",
        ),
    ],
    partition: Partitions = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete the oldest records of a topic, permanently.

    Shows what would go, and asks. Records written meanwhile stay, and so do those after the begin
    of an open transaction.
    """
    place = parse_place(before, "--before")
    if place.kind is PlaceKind.OFFSET and not partition:
        raise WrongUsageError(
            f"--before {before} is an offset, which means another record in each partition: say "
            "which with --partition, or give @TIME, -N or end"
        )
    check_output(output, yes=yes, dry_run=dry_run)
    with open_admin(bootstrap) as admin:
        partitions = choose_partitions(admin, topic, partition)
        rows = _plan(admin, place, partitions)
        if output is Output.TABLE:
            typer.echo(format_table(rows), nl=False)
        wanted = {
            one: int(str(row["log_start"]))
            for row, one in zip(rows, partitions, strict=True)
            if row["records"]
        }
        if dry_run or not wanted:
            said = "" if wanted else "nothing to delete"
            _report(rows, output, said, dry_run=dry_run)
            return
        going = sum(int(str(row["records"])) for row in rows)
        confirm(f"Permanently delete up to {going} records of {topic}?", yes=yes)
        starts = admin.delete_records(wanted)
    done = [
        {**row, "log_start": starts[one]}
        for row, one in zip(rows, partitions, strict=True)
        if one in starts
    ]
    said = f"topic {topic} trimmed: {len(done)} partitions begin later"
    _report(done, output, said, dry_run=False)


def _plan(
    admin: "Admin", place: Place, partitions: "list[TopicPartition]"
) -> list[dict[str, object]]:
    """A row per partition. `log_start`: afterwards; a place outside of the log is brought into it,
    but an offset past its end is refused. Raises MisuseError."""
    starts = resolve(admin, Place(PlaceKind.BEGINNING), partitions)
    found = resolve(admin, place, partitions)
    ends = resolve(admin, Place(PlaceKind.END), partitions)  # last: what is found is not past them
    rows: list[dict[str, object]] = []
    for one in partitions:
        if found[one] > ends[one]:
            raise MisuseError(
                f"--before {place.number} is past the end of {one}, which is {ends[one]}; nothing "
                "was deleted",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        start = max(found[one], starts[one])
        rows.append(
            {
                "partition": one.partition,
                "begins_at": starts[one],
                "ends_at": ends[one],
                "log_start": start,
                "records": start - starts[one],
            }
        )
    return rows


def _report(rows: list[dict[str, object]], output: Output, said: str, *, dry_run: bool) -> None:
    if output is not Output.TABLE:
        print_document([{**row, "dry_run": dry_run} for row in rows], output)
    elif said:
        typer.echo(said)
