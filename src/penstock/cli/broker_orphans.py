"""`penstock broker drop-orphans`: logs that belong to no topic are shown, and dropped by name.

DescribeLogs ─▶ chosen ─▶ shown ─▶ confirm ─▶ DropOrphans, with exactly what was shown

The broker looks again: what has become a log of a topic meanwhile is kept.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import typer

from penstock.cli import move_plan
from penstock.cli.changes import confirm
from penstock.cli.options import Output
from penstock.cli.output import format_table, keep_code, print_document
from penstock.core.words import listed
from penstock.errors import ErrorCode, MisuseError, PenstockError

if TYPE_CHECKING:
    from penstock.client import Admin, OrphanedLog, OrphanOutcome

WARNING: Final = (
    "a topic whose metadata was lost is among orphans, too, until it is restored; of what is "
    "dropped here, no record comes back"
)


def drop(
    admin: "Admin",
    broker: int,
    topic_ids: Sequence[str],
    output: Output,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Shows the orphans of a broker, asks, and has them dropped.

    `topic_ids`: of these topics only; (): all. Ends with 1 if one of them is kept. Raises
    MisuseError for an id that no orphan has.
    """
    (seen,) = admin.describe_logs(broker_ids=[broker])
    chosen = chosen_of(seen.orphans, broker, topic_ids)
    if output is Output.TABLE:
        _show(chosen, broker)
    outcomes: list[OrphanOutcome] = []
    if chosen:
        if not dry_run:
            confirm(f"Drop {_counted(chosen)} of broker {broker} for ever?", yes=yes)
        outcomes = admin.drop_orphans(broker, chosen, validate_only=dry_run)
    refused = {(one.topic_id, one.partition): one.error for one in outcomes if one.error}
    with keep_code():
        if output is not Output.TABLE:
            print_document(_record(broker, chosen, refused, dry_run=dry_run), output)
        elif chosen:
            done = "could be dropped" if dry_run else "dropped"
            typer.echo(f"{len(chosen) - len(refused)} of {_counted(chosen)} {done}")
            for error in refused.values():
                typer.echo(f"kept: {error.message}")
    if refused:
        raise typer.Exit(1)


def chosen_of(
    orphans: "Sequence[OrphanedLog]", broker: int, topic_ids: Sequence[str]
) -> "list[OrphanedLog]":
    """Those of these topics, in order; of none: all. Raises MisuseError."""
    known = {one.topic_id for one in orphans}
    if strangers := sorted(set(topic_ids) - known):
        raise MisuseError(
            f"broker {broker} has no orphans of topic ids {listed(strangers)}; penstock broker "
            f"drop-orphans {broker} --dry-run shows those that it has",
            ErrorCode.INVALID_REQUEST,
        )
    chosen = [one for one in orphans if not topic_ids or one.topic_id in topic_ids]
    return sorted(chosen, key=lambda one: (one.topic_id, one.partition))


def _show(chosen: "Sequence[OrphanedLog]", broker: int) -> None:
    if not chosen:
        typer.echo(f"broker {broker} has no orphans")
        return
    rows = [
        {
            "topic_id": one.topic_id,
            "partition": one.partition,
            "size": move_plan.size(one.size_bytes),
        }
        for one in chosen
    ]
    total = move_plan.size(sum(one.size_bytes for one in chosen))
    typer.echo(format_table(rows), nl=False)
    typer.echo(f"{_counted(chosen)} of topics that the cluster does not know, {total}")
    typer.echo(f"careful: {WARNING}")


def _record(
    broker: int,
    chosen: "Sequence[OrphanedLog]",
    refused: dict[tuple[str, int], PenstockError],
    *,
    dry_run: bool,
) -> dict[str, object]:
    rows = []
    for one in chosen:
        error = refused.get((one.topic_id, one.partition))
        rows.append(
            {
                "topic_id": one.topic_id,
                "partition": one.partition,
                "size_bytes": one.size_bytes,
                "refused": error.message if error else None,
            }
        )
    total = sum(one.size_bytes for one in chosen)
    return {"broker": broker, "orphans": rows, "size_bytes": total, "dry_run": dry_run}


def _counted(chosen: "Sequence[OrphanedLog]") -> str:
    return f"{len(chosen)} orphan" + ("s" if len(chosen) != 1 else "")
