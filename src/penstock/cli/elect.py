"""`penstock elect`: leaderships back to preferred leaders now, instead of in the next minutes."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connect import open_admin
from penstock.cli.naming import check_partition, parse_topic_or_partition
from penstock.cli.options import Bootstrap, DryRun, Output, OutputOption, example
from penstock.cli.output import print_record
from penstock.cli.usage import WrongUsageError
from penstock.core.types import TopicPartition

if TYPE_CHECKING:
    from penstock.client import Admin


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog=example(
            "penstock elect --all --dry-run", "penstock elect flights", "penstock elect flights/3"
        )
    )(elect)


def elect(
    what: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC[/PARTITION]]…", help="Of these.")
    ] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Of all partitions.")] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move leaderships to the preferred leaders: the first replica of each partition.

    One that is not in sync stays away: nothing is lost by this. The cluster does so by itself, a
    few at a time.
    """
    if bool(what) == all_:
        raise WrongUsageError("give TOPIC[/PARTITION], or --all")
    named = [parse_topic_or_partition(text) for text in what or ()]
    with open_admin(bootstrap) as admin:
        rows = _rows(admin, named)
        ready = [
            TopicPartition(str(row["topic"]), int(str(row["partition"])))
            for row in rows
            if row["in_sync"]
        ]
        moved = 0 if dry_run or not ready else admin.elect_leaders(ready)
    if output is not Output.TABLE:
        print_record({"moved": moved, "dry_run": dry_run, "partitions": rows}, output)
        return
    if rows:
        print_record({"partitions": rows}, output)
    verb = "could move" if dry_run else "moved"
    count = len(ready) if dry_run else moved
    typer.echo(f"{count} leadership{'' if count == 1 else 's'} {verb}")


def _rows(admin: "Admin", named: list[tuple[str, int | None]]) -> list[dict[str, object]]:
    """Of partitions whose leader is not the preferred one; `named`: none = of all."""
    seen = admin.describe_topics([topic for topic, _ in named] or None)
    wanted: dict[str, set[int] | None] = {}
    for topic, partition in named:
        known = wanted.setdefault(topic, set())
        if partition is None:
            wanted[topic] = None
        elif known is not None:
            check_partition(seen[topic], partition)
            known.add(partition)
    return [
        {
            "topic": topic.topic,
            "partition": one.partition,
            "leader": one.leader if one.leader >= 0 else None,
            "preferred": one.replicas[0],
            "in_sync": one.replicas[0] in one.isr,
        }
        for topic in sorted(seen.values(), key=lambda each: each.topic)
        for one in topic.partitions
        if one.leader != one.replicas[0]
        and ((chosen := wanted.get(topic.topic)) is None or one.partition in chosen)
    ]
