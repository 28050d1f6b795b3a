"""Moves handed to the controller in parts, and what it said to each.

Each partition succeeds or fails on its own. A plan that is older than the cluster is refused
partition by partition, because it names the replicas that it expects; the rest of it is stored.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import typer

from penstock.cli.options import Output
from penstock.cli.output import keep_code, print_rows
from penstock.core.balance import Move
from penstock.core.limits import REPLICA_CHANGES_MAX
from penstock.core.types import MoveReason
from penstock.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.client import Admin, MoveOutcome, ReplicaMove


def submit(
    admin: "Admin",
    moves: Iterable[Move],
    topic_ids: Mapping[str, str],
    reason: MoveReason,
    *,
    dry_run: bool = False,
) -> "list[MoveOutcome]":
    """One outcome per move, in order. Raises ClusterError if the controller takes none at all."""
    from penstock.client import ReplicaMove  # noqa: PLC0415 - grpc only when it is needed

    asked = [
        ReplicaMove(
            move.partition, move.target, move.expected, topic_ids.get(move.partition.topic, "")
        )
        for move in moves
    ]
    return send(admin, asked, reason, dry_run=dry_run)


def send(
    admin: "Admin", moves: "list[ReplicaMove]", reason: MoveReason, *, dry_run: bool
) -> "list[MoveOutcome]":
    """The same for moves and cancellations of the client."""
    outcomes: list[MoveOutcome] = []
    for begin in range(0, len(moves), REPLICA_CHANGES_MAX):
        outcomes += admin.alter_replicas(
            moves[begin : begin + REPLICA_CHANGES_MAX],
            reason=reason,
            change_factor=reason is MoveReason.FACTOR,
            validate_only=dry_run,
        )
    return outcomes


def report(
    outcomes: "list[MoveOutcome]",
    output: Output,
    *,
    done: str,
    harmless: frozenset[ErrorCode] = frozenset(),
) -> None:
    """Prints what is stored now, and ends with 1 if anything was refused.

    `done` says what happened to the others: "12 of 12 moves submitted". Errors that are `harmless`
    are shown, and do not count.
    """
    rows = [
        {
            "partition": str(one.where),
            "state": one.state.value if one.state else None,
            "replicas": list(one.replicas),
            "target": list(one.target),
            "refused": one.error.message if one.error else None,
        }
        for one in outcomes
    ]
    refused = [one for one in outcomes if one.error is not None]
    with keep_code():
        print_rows(rows, output, empty="nothing to do")
        if output is Output.TABLE and rows:
            typer.echo(f"{len(rows) - len(refused)} of {len(rows)} {done}")
    if any(one.error.code not in harmless for one in refused if one.error):
        raise typer.Exit(1)
