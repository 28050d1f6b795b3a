"""`penstock txn …`: transactions, their owners, what they block; and two ways to intervene.

    list, ledgers, blocking ──▶ Admin ──▶ rows
    describe, partition     ──▶ Admin ──▶ one record, with tables
    abort, forget-ledger    ──▶ shown and asked first, unless --yes

A reader in read_committed mode stops at a partition's last stable offset: `partition` shows which
transaction keeps it there, and its owner; `blocking` shows this for all partitions.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.changes import check_output, confirm, print_change
from penstock.cli.connect import open_admin
from penstock.cli.naming import parse_partition
from penstock.cli.options import (
    Bootstrap,
    DryRun,
    Output,
    OutputOption,
    Yes,
    duration_ms,
    example,
    not_empty,
)
from penstock.cli.output import print_record, print_rows
from penstock.errors import MisuseError

if TYPE_CHECKING:
    from penstock.client import (
        BlockingTransaction,
        OpenTransaction,
        TransactionBranch,
        TransactionDescription,
        TransactionListing,
    )

app = typer.Typer(help="Transactions: their owners, and what they block.", no_args_is_help=True)

REASON: Final = "penstock txn abort"
IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="Transactional or application id.", callback=not_empty),
]


class State(StrEnum):
    """State of a transaction, as typed on the command line."""

    IDLE = "idle"
    OPEN = "open"


@app.command(
    "list",
    epilog=example("penstock txn list", "penstock txn list --older-than 30s -o json"),
)
def list_(
    *,
    older_than: Annotated[
        int | None,
        typer.Option(
            parser=duration_ms,
            metavar="DURATION",
            help="Only transactions open or finishing for this long: 30s, 1h30m.",
        ),
    ] = None,
    state: Annotated[
        list[State] | None, typer.Option("--state", help="Only ids in this state; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List transactional ids and their open transactions.

    FINISHING counts partitions and groups that have not stored yet how a transaction ended.
    """
    with open_admin(bootstrap) as admin:
        from penstock.client import TransactionState  # noqa: PLC0415 - grpc only when needed

        states = [TransactionState[one.name] for one in state or ()]
        found = admin.list_transactions(states, older_than_ms=older_than or 0)
    print_rows([_listing(one) for one in found], output, empty="there are no transactions")


def _listing(one: "TransactionListing") -> dict[str, object]:
    return {
        "id": one.transactional_id,
        "branch": one.branch,
        "state": one.state.value,
        "open_s": _seconds(one.open_ms),
        "finishing": one.finishing,
        "finishing_s": _seconds(one.finishing_ms),
        "producer": one.producer_id,
        "epoch": one.producer_epoch,
        "client": one.client_id,
        "host": one.client_host,
    }


@app.command(
    epilog=example("penstock txn describe billing-0", "penstock txn describe billing-0 -o json")
)
def describe(
    transactional_id: IdArgument,
    *,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show an id's owner, the participants of its transaction, and how the last one ended."""
    with open_admin(bootstrap) as admin:
        seen = admin.describe_transaction(transactional_id)
    print_record(_describe(seen), output)


def _describe(seen: "TransactionDescription") -> dict[str, object]:
    return {
        "id": seen.transactional_id,
        "client": seen.client_id,
        "host": seen.client_host,
        "instance": seen.instance_id,
        "timeout_s": _seconds(seen.timeout_ms or None),
        "used": _moment(seen.used_ms),
        "coordinator": seen.coordinator,
        "coordinator_partition": seen.partition,
        "branches": [_branch(one) for one in seen.branches],
    }


def _branch(one: "TransactionBranch") -> dict[str, object]:
    row: dict[str, object] = {
        "branch": one.branch,
        "state": one.state.value,
        "producer": one.producer_id,
        "epoch": one.producer_epoch,
        "since": _moment(one.started_ms),
        "timeout_s": _seconds(one.timeout_ms),
        "joined": list(one.joined),
        "finishing": [
            f"{each.participant} {'commit' if each.commit else 'abort'}" for each in one.finishing
        ],
        "last": one.last_outcome,
        "by": one.last_reason,
    }
    if one.run:
        row |= {"run": one.run, "batch": one.batch, "task": one.task, "attempt": one.attempt}
    return row


@app.command(
    epilog=example(
        "penstock txn abort billing-0",
        "penstock txn abort billing-0 --epoch 7 --reason 'host is gone' --yes",
    )
)
def abort(
    transactional_id: IdArgument,
    *,
    epoch: Annotated[
        int, typer.Option(min=-1, max=2**31 - 1, help="Abort only if this is its epoch; -1 = any.")
    ] = -1,
    reason: Annotated[str, typer.Option(help="Reason, for the brokers' logs.")] = REASON,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Abort the open transaction of an id; its producer gets an error.

    Its records never become visible to readers in read_committed mode.
    """
    check_output(output, yes=yes, dry_run=dry_run)
    with open_admin(bootstrap) as admin:
        seen = admin.describe_transaction(transactional_id)
        opened = [one.producer_epoch for one in seen.branches if one.started_ms is not None]
        aborted = sum(epoch in (-1, one) for one in opened)
        if opened and not aborted:
            raise MisuseError(
                f"--epoch is {epoch}, and what is open of {transactional_id} has epoch "
                f"{', '.join(map(str, sorted(set(opened))))}; nothing was aborted: look at "
                f"penstock txn describe {transactional_id}, and name its epoch"
            )
        owner = f"of {seen.client_id or 'a client'} at {seen.client_host or 'no known host'}"
        if not dry_run:
            confirm(f"Abort {_open_ones(aborted)} {owner}?", yes=yes)
            # Who was asked has agreed to what was shown, and not to what has begun since. Else
            # whatever is open now, also if nothing was just now.
            shown = sorted(set(opened)) if epoch == -1 and not yes else []
            aborted = sum(
                admin.abort_transaction(transactional_id, producer_epoch=one, reason=reason)
                for one in shown or [epoch]
            )
            if shown and not aborted:
                raise MisuseError(
                    f"{transactional_id}: what was shown has ended; nothing was aborted. Look at "
                    f"penstock txn describe {transactional_id}"
                )
    said = f"{transactional_id}: {_open_ones(aborted)} aborted"
    if dry_run:
        said = f"{transactional_id}: {_open_ones(aborted)} {owner} could be aborted"
    elif not aborted:
        said = f"{transactional_id}: nothing was open, so nothing was aborted"
    print_change(said, {"id": transactional_id, "aborted": aborted}, output, dry_run=dry_run)


@app.command(
    epilog=example("penstock txn partition flights/3", "penstock txn partition flights/3 -o json")
)
def partition(
    where: Annotated[
        str, typer.Argument(metavar="TOPIC/PARTITION", help="Partition, such as flights/3.")
    ],
    *,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the open transactions in a partition, and their owners.

    The first one determines the last stable offset, where all readers in read_committed mode wait.
    """
    chosen = parse_partition(where)
    with open_admin(bootstrap) as admin:
        seen = admin.partition_transactions(chosen)
        owners = {
            one.producer_id: listed
            for one in seen.open
            for listed in admin.list_transactions(producer_id=one.producer_id)
        }
    record = {
        "partition": where,
        "last_stable_offset": seen.last_stable_offset,
        "high_watermark": seen.high_watermark,
        "open": [_open(one, owners.get(one.producer_id)) for one in seen.open],
    }
    print_record(record, output)


def _open(one: "OpenTransaction", owner: "TransactionListing | None") -> dict[str, object]:
    return {
        "first_offset": one.first_offset,
        "producer": one.producer_id,
        "epoch": one.producer_epoch,
        "last_written": _moment(one.last_ms),
        "id": owner.transactional_id if owner else None,
        "open_s": _seconds(owner.open_ms) if owner else None,
        "client": owner.client_id if owner else None,
        "host": owner.client_host if owner else None,
    }


@app.command(
    epilog=example("penstock txn blocking", "penstock txn blocking --older-than 30s -o json")
)
def blocking(
    *,
    older_than: Annotated[
        int | None,
        typer.Option(
            parser=duration_ms,
            metavar="DURATION",
            help="Only those that have blocked readers for this long: 30s, 1h30m.",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List transactions that block readers of committed records, and their owners.

    BEHIND is the number of offsets from where such readers wait to the end. A transaction that is
    already decided waits for the partition to store the outcome.
    """
    with open_admin(bootstrap) as admin:
        found = admin.blocking_transactions(older_than_ms=older_than or 0)
    rows = [_blocking(one) for one in found]
    print_rows(rows, output, empty="no transaction blocks readers of committed records")


def _blocking(one: "BlockingTransaction") -> dict[str, object]:
    owner = one.owner
    return {
        "partition": str(one.where),
        "last_stable_offset": one.last_stable_offset,
        "behind": one.high_watermark - one.last_stable_offset,
        "id": owner.transactional_id if owner else None,
        "age_s": _seconds(one.age_ms),
        "decided": one.is_decided,
        "producer": one.producer_id,
        "epoch": one.producer_epoch,
        "client": owner.client_id if owner else None,
        "host": owner.client_host if owner else None,
    }


@app.command(epilog=example("penstock txn ledgers", "penstock txn ledgers -o json"))
def ledgers(*, bootstrap: Bootstrap = None, output: OutputOption = Output.TABLE) -> None:
    """List the last batch that each streaming application has committed, by application id."""
    with open_admin(bootstrap) as admin:
        found = admin.list_ledgers()
    rows = [
        {
            "application": one.application_id,
            "batch": one.batch,
            "rows": one.rows,
            "committed": _moment(one.time_ms),
            "run": one.run,
            "checkpoint": one.checkpoint,
        }
        for one in found
    ]
    print_rows(rows, output, empty="there are no ledgers")


@app.command(
    epilog=example(
        "penstock txn forget-ledger spark/flights", "penstock txn forget-ledger spark/flights --yes"
    )
)
def forget_ledger(
    application_id: IdArgument,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete the ledger of an application: its next batch counts as the first.

    For an application that starts over with a fresh checkpoint. One that continues with its old
    checkpoint may write its last batch twice.
    """
    check_output(output, yes=yes, dry_run=dry_run)
    with open_admin(bootstrap) as admin:
        if dry_run:
            known = any(one.application_id == application_id for one in admin.list_ledgers())
        else:
            confirm(f"Delete the ledger of {application_id}?", yes=yes)
            known = admin.forget_ledger(application_id)
    if not known:
        raise MisuseError(
            f"there is no ledger of {application_id!r}; `penstock txn ledgers` lists all"
        )
    verb = "could be deleted" if dry_run else "deleted"
    said = f"ledger of {application_id} {verb}"
    print_change(said, {"application": application_id}, output, dry_run=dry_run)


def _open_ones(count: int) -> str:
    return "1 open transaction" if count == 1 else f"{count} open transactions"


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1000, 3)


def _moment(time_ms: int | None) -> str | None:
    """ISO 8601, UTC, to the second; None for what never was."""
    if not time_ms:
        return None
    return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
