"""`penstock group …`: members, lag and offsets of consumer groups.

    describe, offsets ──▶ Admin.describe_group + group_lag ──▶ rows
    reset             ──▶ group_reset.py

Lag is unknown, and printed so, where no offset is committed.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import group_reset
from penstock.cli.changes import check_output, confirm, print_change
from penstock.cli.connect import open_admin
from penstock.cli.options import (
    Bootstrap,
    DryRun,
    GroupArgument,
    Output,
    OutputOption,
    Yes,
    example,
)
from penstock.cli.output import print_record, print_rows
from penstock.errors import ClusterError, ErrorCode

if TYPE_CHECKING:
    from penstock.client import (
        GroupDescription,
        MemberDescription,
        PendingOffsets,
        TopicPartition,
        TransactionListing,
    )
    from penstock.core.lag import PartitionLag

app = typer.Typer(help="Consumer groups: members, lag, offsets.", no_args_is_help=True)


class State(StrEnum):
    """State of a group, as typed on the command line."""

    EMPTY = "empty"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    STABLE = "stable"


@app.command("list", epilog=example("penstock group list", "penstock group list --state stable"))
def list_(
    *,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", help="Only groups in this state; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List groups."""
    with open_admin(bootstrap) as admin:
        from penstock.client import GroupState  # noqa: PLC0415 - grpc only when it is needed

        found = admin.list_groups([GroupState[one.name] for one in state or ()])
    rows = [
        {"group": one.group_id, "state": one.state.value, "members": one.members} for one in found
    ]
    print_rows(rows, output, empty="there are no groups")


@app.command(epilog=example("penstock group describe billing", "penstock group describe g -o json"))
def describe(
    group: GroupArgument, *, bootstrap: Bootstrap = None, output: OutputOption = Output.TABLE
) -> None:
    """Show a group's members, and the owner and lag of each partition.

    END is the last stable offset, where an open transaction holds up readers of committed records.
    LAG is the number of records up to there, LAG-S the time in seconds that the oldest
    unread one has waited; "-" where no offset is committed. TRANSACTIONS are open transactions that
    have pending offsets of the group: a member that takes over these partitions must wait until
    they end.
    """
    with open_admin(bootstrap) as admin:
        seen = admin.describe_group(group)
        lags = admin.group_lag(seen)
        owners = {
            one.producer_id: listed
            for one in seen.pending
            for listed in admin.list_transactions(producer_id=one.producer_id)
        }
    print_record(to_record(seen, lags, owners), output)


def to_record(
    seen: "GroupDescription",
    lags: "dict[TopicPartition, PartitionLag]",
    holders: "dict[int, TransactionListing]",
) -> dict[str, object]:
    """What is shown of it. `holders`: of its pending offsets, by producer id; may lack some."""
    owners = {where: member for member in seen.members for where in member.assigned}
    known = [lag for lag in lags.values() if lag.records is not None]
    whole = len(known) == len(lags)
    record: dict[str, object] = {
        "group": seen.group_id,
        "state": seen.state.value,
        "epoch": seen.group_epoch,
        "assignor": seen.assignor,
        "coordinator": seen.coordinator,
        "lag": sum(lag.records or 0 for lag in known) if whole else None,
        "lag_s": _seconds(max((lag.lag_ms or 0 for lag in known), default=0)) if whole else None,
        "members": [_member(member) for member in seen.members],
        "partitions": [
            {
                "topic": where.topic,
                "partition": where.partition,
                "committed": lag.committed if lag.committed >= 0 else None,
                "end": lag.end,
                "lag": lag.records,
                "lag_s": _seconds(lag.lag_ms),
                "member": owners[where].member_id[:8] if where in owners else None,
                "client": owners[where].client_id if where in owners else None,
            }
            for where, lag in lags.items()
        ],
    }
    if seen.pending:
        record["transactions"] = [
            _pending(one, holders.get(one.producer_id)) for one in seen.pending
        ]
    if seen.last_reset_ms:
        record["last_reset"] = {
            "id": seen.last_reset_id,
            "time_ms": seen.last_reset_ms,
            "reason": seen.last_reset_reason,
        }
    return record


def _pending(one: "PendingOffsets", owner: "TransactionListing | None") -> dict[str, object]:
    return {
        "id": one.transactional_id,
        "open_s": _seconds(owner.open_ms) if owner else None,
        "client": owner.client_id if owner else None,
        "host": owner.client_host if owner else None,
        "producer": one.producer_id,
        "epoch": one.producer_epoch,
        "partitions": [str(where) for where in one.partitions],
    }


def _member(member: "MemberDescription") -> dict[str, object]:
    return {
        "member": member.member_id[:8],
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "rack": member.rack,
        "epoch": member.member_epoch,
        "connected": member.connected,
        "partitions": len(member.assigned),
        "giving_up": len(member.pending_revocation),
        "topics": [*member.topics, *([f"/{member.pattern}/"] if member.pattern else [])],
    }


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1000, 3)


@app.command(epilog=example("penstock group offsets billing", "penstock group offsets g -o json"))
def offsets(
    group: GroupArgument, *, bootstrap: Bootstrap = None, output: OutputOption = Output.TABLE
) -> None:
    """Show a group's committed offsets."""
    with open_admin(bootstrap) as admin:
        seen = admin.describe_group(group)
    rows = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "offset": offset.offset,
            "leader_epoch": offset.leader_epoch if offset.leader_epoch >= 0 else None,
            "metadata": offset.metadata,
            "time_ms": offset.commit_time_ms,
        }
        for where, offset in sorted(seen.offsets.items())
    ]
    print_rows(rows, output, empty=f"group {group} has no committed offsets")


@app.command(epilog=example("penstock group delete billing", "penstock group delete billing --yes"))
def delete(
    group: GroupArgument,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a group without members, and its offsets, permanently."""
    check_output(output, yes=yes, dry_run=dry_run)
    with open_admin(bootstrap) as admin:
        seen = admin.describe_group(group)
        if seen.members:  # nobody should have to confirm what is refused
            raise ClusterError(
                f"group {group} has {len(seen.members)} members; stop its consumers first",
                ErrorCode.GROUP_NOT_EMPTY,
            )
        if not dry_run:
            confirm(f"Delete {group} and its {len(seen.offsets)} committed offsets?", yes=yes)
            admin.delete_group(group)
    said = f"group {group} could be deleted" if dry_run else f"group {group} deleted"
    record = {"group": group, "offsets": len(seen.offsets)}
    print_change(said, record, output, dry_run=dry_run)


app.add_typer(group_reset.app)
