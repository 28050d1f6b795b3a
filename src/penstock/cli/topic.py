"""`penstock topic …`: create, look at, change and delete topics."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import completion, move_plan, topic_lag, topic_trim
from penstock.cli.at_once import logs_at_once
from penstock.cli.changes import check_output, confirm, print_change
from penstock.cli.connect import open_admin
from penstock.cli.move_facts import make_plan, read_facts
from penstock.cli.move_submit import report, submit
from penstock.cli.options import (
    COUNT_MAX,
    Bootstrap,
    DryRun,
    Output,
    OutputOption,
    TopicArgument,
    Yes,
    example,
    parse_pairs,
)
from penstock.cli.output import print_record, print_rows
from penstock.cli.units import plain
from penstock.cli.usage import WrongUsageError
from penstock.core.balance import Factor

if TYPE_CHECKING:
    from penstock.client import Admin, ConfigEntry, TopicDescription

app = typer.Typer(help="Create, inspect, change and delete topics.", no_args_is_help=True)
topic_trim.register(app)

Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="As retention.ms=7d; repeatable.",
        autocompletion=completion.settings,
    ),
]

Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="As retention.ms=7d; repeatable.",
        autocompletion=completion.settings,
    ),
]


@app.command(
    epilog=example("penstock topic create flights -p 6 -r 3 -c retention.ms=7d"),
)
def create(
    topic: TopicArgument,
    *,
    partitions: Annotated[
        int,
        typer.Option("--partitions", "-p", min=0, max=COUNT_MAX, help="0 = the cluster's default."),
    ] = 0,
    replicas: Annotated[
        int,
        typer.Option("--replicas", "-r", min=0, max=COUNT_MAX, help="0 = the cluster's default."),
    ] = 0,
    config: Config = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic."""
    configs = plain(parse_pairs(config, "--config"))
    with open_admin(bootstrap) as admin:
        made = admin.create_topic(topic, partitions, replicas, configs, validate_only=dry_run)
    said = f"topic {topic} created: {len(made.partitions)} partitions, id {made.topic_id}"
    if dry_run:
        said = f"topic {topic} could be created"
    record = {"topic": topic, "topic_id": made.topic_id, "partitions": len(made.partitions)}
    print_change(said, {"topic": topic} if dry_run else record, output, dry_run=dry_run)


@app.command(
    "list",
    epilog=example(
        "penstock topic list", "penstock topic list --lag", "penstock topic list -o json"
    ),
)
def list_(
    *,
    internal: Annotated[bool, typer.Option("--internal", help="Also internal topics.")] = False,
    lag: Annotated[
        bool, typer.Option("--lag", help="Also which group is furthest behind; asks every group.")
    ] = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List topics. SIZE is that of one copy; "-": a leader does not say, or you may not ask.

    LAG is the number of records that GROUP has not read yet; others have read more. "-": no group
    reads the topic, or none has committed an offset in all that it reads.
    """
    with open_admin(bootstrap, only_look=not lag) as admin:
        topics = admin.describe_topics(admin.list_topics(include_internal=internal))
        sizes = _sizes(admin, topics.values())
        lags = topic_lag.read_lags(admin) if lag else {}
    rows = [{**_summary(topics[name]), **_size(sizes.get(name), output)} for name in sorted(topics)]
    if lag:
        found = [lags.get(name, topic_lag.TopicLag()) for name in sorted(topics)]
        rows = [
            {**row, "lag": one.records, "group": one.group}
            for row, one in zip(rows, found, strict=True)
        ]
    print_rows(rows, output, empty="there are no topics")


def _sizes(admin: "Admin", topics: Iterable["TopicDescription"]) -> dict[str, int]:
    """Bytes of what leaders have, by topic; of those of which all leaders say it."""
    leaders = {
        topic.topic: {one.leader for one in topic.partitions if one.leader >= 0} for topic in topics
    }
    seen, _ = logs_at_once(admin, sorted(set().union(*leaders.values())))
    told = {broker.broker_id for broker in seen}
    sizes = {topic: 0 for topic, ids in leaders.items() if ids and ids <= told}
    for log in (log for broker in seen for log in broker.logs if log.is_leader):
        if log.topic in sizes:
            sizes[log.topic] += log.size_bytes
    return sizes


def _size(known: int | None, output: Output) -> dict[str, object]:
    if output is not Output.TABLE:
        return {"size_bytes": known}
    return {"size": None if known is None else move_plan.size(known)}


def _summary(seen: "TopicDescription") -> dict[str, object]:
    return {
        "topic": seen.topic,
        "partitions": len(seen.partitions),
        "replicas": max((len(one.replicas) for one in seen.partitions), default=0),
        "under_replicated": sum(len(one.isr) < len(one.replicas) for one in seen.partitions),
        "offline": sum(one.leader < 0 for one in seen.partitions),
    }


@app.command(
    epilog=example("penstock topic describe flights", "penstock topic describe flights -o yaml")
)
def describe(
    topic: TopicArgument,
    *,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a topic's settings, and each partition's leader, replicas and in-sync replicas."""
    with open_admin(bootstrap) as admin:
        seen = admin.describe_topics([topic])[topic]
        configs = admin.describe_configs(topic)
    print_record(to_record(seen, configs), output)


def to_record(seen: "TopicDescription", configs: "list[ConfigEntry]") -> dict[str, object]:
    """What is shown of it."""
    return {
        **_summary(seen),
        "topic_id": seen.topic_id,
        "configs": [
            {"name": entry.name, "value": entry.value, "default": entry.is_default}
            for entry in configs
        ],
        "partition_list": [
            {
                "partition": one.partition,
                "leader": one.leader if one.leader >= 0 else None,
                "leader_epoch": one.leader_epoch,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
            }
            for one in seen.partitions
        ],
    }


@app.command(
    epilog=example(
        "penstock topic alter flights --set retention.ms=7d --unset max.message.bytes",
        "penstock topic alter flights --partitions 12",
        "penstock topic alter flights --replicas 3",
    )
)
def alter(
    topic: TopicArgument,
    *,
    set_: Setting = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Reset this setting to its default; may be repeated.",
            autocompletion=completion.setting_names,
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            max=COUNT_MAX,
            help="The new number of partitions; it can only grow.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            "-r",
            min=1,
            max=COUNT_MAX,
            help="Of every partition. Shows the plan of moves first; goes with no other change.",
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change settings, add partitions, change the replication factor."""
    changes = plain(parse_pairs(set_, "--set"))
    removals = unset or []
    others = bool(changes or removals or partitions is not None)
    if others == (replicas is not None):
        raise WrongUsageError(
            "nothing to change: give --set, --unset or --partitions, or --replicas alone"
        )
    if replicas is not None:
        check_output(output, yes=yes, dry_run=dry_run)
        _alter_replicas(topic, replicas, bootstrap, output, yes=yes, dry_run=dry_run)
        return
    with open_admin(bootstrap) as admin:
        for only_check in (True,) if dry_run else (True, False):  # nothing is done by half
            if partitions is not None:
                admin.create_partitions(topic, partitions, validate_only=only_check)
            if changes or removals:
                admin.alter_configs(topic, changes, unset=removals, validate_only=only_check)
    said = f"topic {topic} could be changed" if dry_run else f"topic {topic} changed"
    record = {"topic": topic, "set": changes, "unset": removals, "partitions": partitions}
    print_change(said, record, output, dry_run=dry_run)


def _alter_replicas(
    topic: str, replicas: int, bootstrap: str | None, output: Output, *, yes: bool, dry_run: bool
) -> None:
    """Shows what would move, asks, and submits it."""
    with open_admin(bootstrap) as admin:
        seen = read_facts(admin)
        plan = make_plan(seen, Factor(topic, replicas))
        shows_plan = output is Output.TABLE or dry_run or not plan.moves
        if shows_plan:
            move_plan.show(plan, seen.topic_ids, output, seen.facts.copy_rate)
        if dry_run or not plan.moves:
            return
        confirm(f"Have {replicas} replicas of every partition of {topic}?", yes=yes)
        outcomes = submit(admin, plan.moves, seen.topic_ids, plan.reason)
    report(outcomes, output, done="moves submitted; see penstock partitions status")


@app.command(epilog=example("penstock topic delete flights", "penstock topic delete flights --yes"))
def delete(
    topic: TopicArgument,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a topic and all its records, permanently. Refused while it is protected."""
    check_output(output, yes=yes, dry_run=dry_run)
    with open_admin(bootstrap) as admin:
        seen = admin.describe_topics([topic])[topic]
        if dry_run or not yes:
            # Nobody should have to confirm what is refused.
            admin.delete_topic(topic, topic_id=seen.topic_id, validate_only=True)
        if not dry_run:
            confirm(f"Permanently delete {topic} with {len(seen.partitions)} partitions?", yes=yes)
            # By id, so that the topic that was shown is deleted, not a new one of that name.
            admin.delete_topic(topic, topic_id=seen.topic_id)
    said = f"topic {topic} could be deleted" if dry_run else f"topic {topic} deleted"
    record = {"topic": topic, "topic_id": seen.topic_id, "partitions": len(seen.partitions)}
    print_change(said, record, output, dry_run=dry_run)
