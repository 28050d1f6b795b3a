"""`penstock scrub …`: brokers read all that they have stored, to find damage before readers do, and
compare it with what their leaders have."""

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import move_plan
from penstock.cli.at_once import SCRUBBED, scrubs_at_once, tell_silent
from penstock.cli.changes import print_change
from penstock.cli.connect import open_admin
from penstock.cli.log_dirs import brokers_to_ask
from penstock.cli.naming import check_partition, parse_topic_or_partition
from penstock.cli.options import (
    Bootstrap,
    DryRun,
    OnlyBrokers,
    Output,
    OutputOption,
    example,
    given_not_empty,
)
from penstock.cli.output import keep_code, print_rows

if TYPE_CHECKING:
    from penstock.client import Admin, ScrubDescription

app = typer.Typer(help="Read what is stored, to find damage.", no_args_is_help=True)


@app.command(
    epilog=example(
        "penstock scrub start", "penstock scrub start flights", "penstock scrub start flights/3"
    )
)
def start(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC[/PARTITION]]",
            help="Only this; left out: everything.",
            callback=given_not_empty,
        ),
    ] = None,
    *,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have every replica read now, at 16 MiB/s per broker at most.

    Brokers do this by themselves once in scrub.interval.days. What they find is mended.
    """
    topic, partition = (None, None) if what is None else parse_topic_or_partition(what)
    with open_admin(bootstrap) as admin:
        if dry_run:
            replicas = _count(admin, topic, partition)
        else:
            replicas = admin.start_scrub(topic, partition)
    then = "" if dry_run else "; see penstock scrub status"
    said = f"replicas to be read: {replicas}{then}"
    print_change(said, {"replicas": replicas}, output, dry_run=dry_run)


def _count(admin: "Admin", topic: str | None, partition: int | None) -> int:
    """Replicas on live brokers."""
    named = None if topic is None else [topic]
    if topic is not None:  # what does not exist has no replicas either
        seen = admin.describe_topics([topic])[topic]
        if partition is not None:
            check_partition(seen, partition)
    logs = [log for broker in admin.describe_logs(named) for log in broker.logs]
    return sum(partition in (None, log.partition) for log in logs)


@app.command(
    epilog=example(
        "penstock scrub status", "penstock scrub status --broker 1", "penstock scrub status -o json"
    )
)
def status(
    *,
    broker: OnlyBrokers = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how far each broker has read its logs, and what it has found since it started.

    Below: parts of logs that are not as the leader's although both read well. Nothing repairs them.
    Exit code 1 if a broker does not answer: what it has found is then not known.
    """
    with open_admin(bootstrap, only_look=True) as admin:
        found, silent = scrubs_at_once(admin, brokers_to_ask(admin, broker))
    rows = [_row(one) if output is Output.TABLE else _record(one) for one in found]
    differing = [row for one in found for row in _differences(one)]
    with keep_code():
        print_rows(rows, output, empty="no broker says how far it is")
        if output is Output.TABLE and differing:
            typer.echo()
            print_rows(differing, output)
    if tell_silent(silent, SCRUBBED):
        raise typer.Exit(1)


def _record(one: "ScrubDescription") -> dict[str, object]:
    reading = one.reading
    return {
        "broker": one.broker_id,
        "replicas": one.replicas,
        "due": one.due,
        "damaged": one.damaged,
        "reading": None if reading is None else str(reading.where),
        "offset": None if reading is None else reading.offset,
        "end_offset": None if reading is None else reading.end_offset,
        "bytes_per_second": None if reading is None else reading.bytes_per_second,
        "oldest_ms": one.oldest_ms,
        "read_bytes": one.read_bytes,
        "damage_found": one.damage_found,
        "waits": one.waits or None,
        "compared_ranges": one.compared_ranges,
        "differences": _differences(one),
    }


def _differences(one: "ScrubDescription") -> list[dict[str, object]]:
    return [
        {
            "broker": one.broker_id,
            "partition": str(differing.where),
            "offsets": str(differing.offsets),
            "digest": differing.own,
            "leader": differing.leader,
            "leader_digest": differing.leaders,
            "found": datetime.datetime.fromtimestamp(
                differing.found_ms // 1000, datetime.UTC
            ).isoformat(),
        }
        for differing in one.differences
    ]


def _row(one: "ScrubDescription") -> dict[str, object]:
    reading = one.reading
    now = one.waits or None
    if reading is not None:
        now = f"{reading.where} at {reading.offset} of {reading.end_offset}"
    return {
        "broker": one.broker_id,
        "replicas": one.replicas,
        "due": one.due,
        "damaged": one.damaged,
        "reading": now,
        "oldest": str(datetime.timedelta(seconds=one.oldest_ms // 1000)),
        "read": move_plan.size(one.read_bytes),
        "damage_found": one.damage_found,
    }
