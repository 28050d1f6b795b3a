"""`penstock log-dirs`: what each live broker has on its disk, a row per replica."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import move_plan
from penstock.cli.at_once import describe_soon, logs_at_once, tell_silent
from penstock.cli.connect import open_admin
from penstock.cli.options import Bootstrap, OnlyBrokers, Output, OutputOption, example
from penstock.cli.output import keep_code, print_record
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin, BrokerDescription, LogDescription


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "log-dirs",
        epilog=example(
            "penstock log-dirs",
            "penstock log-dirs --broker 1 --topic flights",
            "penstock log-dirs -o json | jq '.logs[] | select(.size_bytes > 1e9)'",
        ),
    )(log_dirs)


def log_dirs(
    *,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only of this; may be repeated.")
    ] = None,
    broker: OnlyBrokers = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show disks, and the size and offsets of every replica on each live broker.

    Orphans are data of topics that do not exist: nothing deletes them by itself; penstock broker
    drop-orphans does. Exit code 1 if a broker does not answer: what it has is then not known.
    """
    with open_admin(bootstrap, only_look=True) as admin:
        asked = brokers_to_ask(admin, broker)
        if topic:
            admin.describe_topics(topic)  # a name that was misspelt has no logs either
        seen, silent = logs_at_once(admin, asked, topic)
    record = to_record(seen, silent)
    if output is Output.TABLE:
        del record["unknown"]  # told on standard error
        record = {name: [_readable(row) for row in rows] for name, rows in record.items()}
    with keep_code():
        print_record(record, output)
    if tell_silent(silent):
        raise typer.Exit(1)


def brokers_to_ask(admin: "Admin", broker_ids: Iterable[int] | None) -> list[int]:
    """These, once each; without any: all that live. Raises as `check_brokers`."""
    only = set(broker_ids or ())
    brokers = check_brokers(admin, only)
    return sorted(only or {one.broker_id for one in brokers if one.alive})


def check_brokers(admin: "Admin", broker_ids: Iterable[int]) -> "tuple[BrokerDescription, ...]":
    """All that there are. Raises MisuseError for one that the cluster does not have."""
    brokers = describe_soon(admin).brokers
    known = {one.broker_id for one in brokers}
    if strangers := sorted(set(broker_ids) - known):
        raise MisuseError(
            f"there is no broker {strangers[0]}; there are {', '.join(map(str, sorted(known)))}",
            ErrorCode.INVALID_REQUEST,
        )
    return brokers


def to_record(
    seen: "list[LogDescription]", silent: Mapping[int, str]
) -> dict[str, list[dict[str, object]]]:
    """Sizes in bytes. `silent`: why brokers did not answer, by id."""
    return {
        "brokers": [
            {
                "broker": one.broker_id,
                "replicas": len(one.logs),
                "size_bytes": sum(log.size_bytes for log in one.logs),
                "free_bytes": one.disk_free_bytes,
                "total_bytes": one.disk_total_bytes,
            }
            for one in seen
        ],
        "logs": [
            {
                "broker": one.broker_id,
                "topic": log.topic,
                "partition": log.partition,
                "leader": log.is_leader,
                "log_start": log.log_start_offset,
                "high_watermark": log.high_watermark,
                "log_end": log.log_end_offset,
                "size_bytes": log.size_bytes,
            }
            for one in seen
            for log in sorted(one.logs, key=lambda log: (log.topic, log.partition))
        ],
        "orphans": [
            {
                "broker": one.broker_id,
                "topic_id": orphan.topic_id,
                "partition": orphan.partition,
                "size_bytes": orphan.size_bytes,
            }
            for one in seen
            for orphan in one.orphans
        ],
        "unknown": [{"broker": one, "problem": why} for one, why in silent.items()],
    }


def _readable(row: dict[str, object]) -> dict[str, object]:
    return {
        name.removesuffix("_bytes"): move_plan.size(value)
        if name.endswith("_bytes") and isinstance(value, int)
        else value
        for name, value in row.items()
    }
