"""`penstock group reset`: moves a group's committed offsets, after showing how.

    --to-… ──▶ ResetTo ─┐
    --topic ─▶ partitions ─▶ Admin.plan_reset ─▶ Admin.reset_offsets, dry unless --execute

Without --execute nothing changes; with it, all partitions change or none.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connect import open_admin
from penstock.cli.consume import choose_partitions
from penstock.cli.options import (
    Bootstrap,
    GroupArgument,
    Output,
    OutputOption,
    duration_ms,
    example,
    moment_ms,
)
from penstock.cli.output import print_record, print_rows
from penstock.cli.usage import WrongUsageError
from penstock.errors import ErrorCode, MisuseError, PenstockError

if TYPE_CHECKING:
    from penstock.client import Admin, OffsetChange, TopicPartition
    from penstock.core.offset_reset import Move, ResetTo


app = typer.Typer()

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC[:P,P…]", help="Topic or partitions to move; may be repeated."
    ),
]
AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="All partitions with a committed offset.")
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the first record of each log.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the current end of each log.")]
ToOffset = Annotated[int | None, typer.Option(min=0, help="To this offset.")]
ToDatetime = Annotated[
    int | None,
    typer.Option(
        parser=moment_ms,
        metavar="TIME",
        help="To the first record at or after: ISO 8601 (UTC) or ms.",
    ),
]
ByDuration = Annotated[
    int | None,
    typer.Option(
        parser=duration_ms, metavar="DURATION", help="Back from now by this much: 1h30m, 2d, PT90S."
    ),
]
ShiftBy = Annotated[int | None, typer.Option(metavar="N", help="By N records; negative = back.")]
Clamp = Annotated[
    bool, typer.Option("--clamp", help="Use the nearest offset where N is not in the log.")
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Apply the reset; without this option, only show it.")
]
Reason = Annotated[str, typer.Option(help="Reason, stored with the group.")]


@app.command(
    epilog=example(
        "penstock group reset billing --topic flights --to-earliest",
        "penstock group reset billing --topic flights:0,3 --to-offset 1000 --execute",
        "penstock group reset billing --all-topics --by-duration 1h30m --execute",
    )
)
def reset(
    group: GroupArgument,
    *,
    topic: Topics = None,
    all_topics: AllTopics = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    clamp: Clamp = False,
    execute: Execute = False,
    reason: Reason = "",
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a group's committed offsets; shows what would change unless --execute is given.

    The group must have no members. A partition without a record at or after the given time is reset
    to its end.
    """
    to = _one_way(
        {
            "--to-earliest": ("EARLIEST", 0 if to_earliest else None),
            "--to-latest": ("LATEST", 0 if to_latest else None),
            "--to-offset": ("OFFSET", to_offset),
            "--to-datetime": ("DATETIME", to_datetime),
            "--by-duration": ("DURATION", by_duration),
            "--shift-by": ("SHIFT", shift_by),
        }
    )
    if bool(topic) == all_topics:
        raise WrongUsageError("give --topic (once or more) or --all-topics")
    chosen = [_topic_and_numbers(text) for text in topic or ()]
    with open_admin(bootstrap) as admin:
        committed = _committed(admin, group, chosen)
        moves = admin.plan_reset(to, committed, clamp=clamp)
        changes = admin.reset_offsets(
            group,
            {where: one.offset for where, one in moves.items()},
            reason=reason,
            dry_run=not execute,
        )
    _print(group, _rows(changes, moves), output, executed=execute)


def _one_way(ways: "dict[str, tuple[str, int | None]]") -> "ResetTo":
    from penstock.core.offset_reset import ResetKind, ResetTo  # noqa: PLC0415 - not for --help

    given = {option: way for option, way in ways.items() if way[1] is not None}
    if len(given) != 1:
        seen = f"{' and '.join(given)} are" if given else "nothing is"
        raise WrongUsageError(
            f"name one target of the reset: {seen} given; give one of {', '.join(ways)}"
        )
    ((name, number),) = given.values()
    return ResetTo(ResetKind[name], number or 0)


def _committed(
    admin: "Admin", group: str, topics: list[tuple[str, list[int] | None]]
) -> "dict[TopicPartition, int]":
    """The partitions to move, with their committed offsets; -1 = none."""
    try:
        offsets = {at: one.offset for at, one in admin.describe_group(group).offsets.items()}
    except PenstockError as error:
        if error.code is not ErrorCode.UNKNOWN_GROUP or not topics:
            raise
        offsets = {}  # a reset makes the group: it begins where it is told to
    if not topics:
        if not offsets:
            raise MisuseError(f"group {group} has no committed offsets; give --topic")
        return offsets
    chosen: dict[TopicPartition, int] = {}
    for name, numbers in topics:
        for where in choose_partitions(admin, name, numbers):
            chosen[where] = offsets.get(where, -1)
    return chosen


def _topic_and_numbers(text: str) -> tuple[str, list[int] | None]:
    """Of `--topic`; None: all partitions. Raises WrongUsageError."""
    name, colon, numbers = text.partition(":")
    parts = numbers.split(",") if colon else []  # "t:" names none, and not all (an unset variable?)
    if not name or not all(part.isascii() and part.isdigit() for part in parts):
        raise WrongUsageError(f"--topic {text!r} must be TOPIC or TOPIC:0,1,2")
    return name, [int(part) for part in parts] or None


def _rows(
    changes: "dict[TopicPartition, OffsetChange]", moves: "dict[TopicPartition, Move]"
) -> list[dict[str, object]]:
    """A row per partition. A broker answers with the offset it found (old) and the one it has set
    (new)."""
    rows: list[dict[str, object]] = []
    for where, change in sorted(changes.items()):
        wanted = moves[where].wanted
        rows.append(
            {
                "topic": where.topic,
                "partition": where.partition,
                "old": change.old_offset if change.old_offset >= 0 else None,
                "new": change.new_offset,
                "note": f"{wanted} is not in the log" if wanted is not None else None,
            }
        )
    return rows


def _print(group: str, rows: list[dict[str, object]], output: Output, *, executed: bool) -> None:
    """The plan and how to apply it, or what was done: nobody must mistake one for the other."""
    if output is not Output.TABLE:
        print_record({"executed": executed, "offsets": rows}, output)
        return
    if not executed:
        print_rows(rows, output)
        typer.echo("nothing was changed: add --execute to do it", err=True)
        return
    for row in rows:
        old = "nothing" if row["old"] is None else row["old"]
        note = f" ({row['note']})" if row["note"] else ""
        typer.echo(f"{row['topic']}/{row['partition']}: {old} → {row['new']}{note}")
    moved = sum(row["old"] != row["new"] for row in rows)
    typer.echo(f"applied: group {group}, {moved} of {len(rows)} partitions moved")
