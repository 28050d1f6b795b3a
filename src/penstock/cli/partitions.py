"""`penstock partitions …`: where replicas are, and where they should be.

plan ──▶ core.balance ──▶ shown, or a file ──▶ move ──▶ AlterReplicas
status, cancel ◀── DescribeMoves ◀── the controller, which carries moves out by itself
"""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import accept_loss, move_plan, move_status, move_submit, move_throttle
from penstock.cli.changes import check_output, confirm, print_change
from penstock.cli.connect import open_admin
from penstock.cli.log_dirs import check_brokers
from penstock.cli.move_facts import make_plan, read_facts
from penstock.cli.naming import check_partition, parse_partition, parse_topic_or_partition
from penstock.cli.options import (
    COUNT_MAX,
    Bootstrap,
    Brokers,
    DryRun,
    Output,
    OutputOption,
    Yes,
    example,
    parse_brokers,
)
from penstock.cli.usage import WrongUsageError
from penstock.core import balance as core
from penstock.core.types import BrokerId, MoveReason, TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError

if TYPE_CHECKING:
    from penstock.client import Admin, MoveOutcome, PartitionDescription, ReplicaMove

app = typer.Typer(help="Plan, move, watch and cancel moves of replicas.", no_args_is_help=True)
WATCH_S: Final = 2.0

Drain = Annotated[
    Brokers | None,
    typer.Option("--drain", parser=parse_brokers, metavar="ID[,ID…]", help="Empty these brokers."),
]
Onto = Annotated[
    Brokers | None,
    typer.Option(
        "--onto", parser=parse_brokers, metavar="ID[,ID…]", help="Give these brokers their share."
    ),
]
Topic = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="With --replicas: of this topic.")
]
Replicas = Annotated[
    int | None,
    typer.Option("--replicas", "-r", min=1, max=COUNT_MAX, help="The new replication factor."),
]
Balance = Annotated[
    bool, typer.Option("--balance", help="Spread replicas, bytes and leaders over all brokers.")
]


@app.command(
    epilog=example(
        "penstock partitions plan --drain 3",
        "penstock partitions plan --onto 4,5 -o json > plan.json",
        "penstock partitions plan --topic flights --replicas 3",
        "penstock partitions plan --balance",
    )
)
def plan(
    *,
    drain: Drain = None,
    onto: Onto = None,
    topic: Topic = None,
    replicas: Replicas = None,
    balance: Balance = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show which replicas would move, what that copies, and how long it takes. Changes nothing."""
    wish = _wish(drain, onto, (topic, replicas), balance=balance)
    with open_admin(bootstrap) as admin:
        seen = read_facts(admin)
    made = make_plan(seen, wish)
    move_plan.show(made, seen.topic_ids, output, seen.facts.copy_rate)


def _wish(
    drain: Brokers | None,
    onto: Brokers | None,
    factor: tuple[str | None, int | None],
    *,
    balance: bool,
) -> core.Wish:
    topic, replicas = factor
    if (topic is None) != (replicas is None):
        raise WrongUsageError("--topic and --replicas go together")
    wishes: list[core.Wish] = []
    if drain is not None:
        wishes.append(core.Drain(drain.ids))
    if onto is not None:
        wishes.append(core.Spread(onto.ids))
    if topic is not None and replicas is not None:
        wishes.append(core.Factor(topic, replicas))
    if balance:
        wishes.append(core.Balance())
    if len(wishes) != 1:
        raise WrongUsageError("give one of --drain, --onto, --topic with --replicas, --balance")
    return wishes[0]


@app.command(
    epilog=example(
        "penstock partitions move --plan plan.json",
        "penstock partitions move flights/3 --to 4,1,2 --yes",
    )
)
def move(
    partition: Annotated[
        str | None, typer.Argument(metavar="TOPIC/PARTITION", help="What to move.")
    ] = None,
    *,
    to: Annotated[
        Brokers | None,
        typer.Option(
            "--to",
            parser=parse_brokers,
            metavar="ID[,ID…]",
            help="All brokers that shall have a replica; the first is the preferred leader.",
        ),
    ] = None,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="What partitions plan -o json has written."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move replicas: shows the moves, asks, and stores them; the cluster carries them out itself.

    Of a plan, partitions whose replicas have changed since are refused, one by one.
    """
    single = partition is not None and to is not None
    if single == (plan_file is not None) or (partition is None) != (to is None):
        raise WrongUsageError("give --plan FILE, or TOPIC/PARTITION and --to")
    check_output(output, yes=yes, dry_run=dry_run)
    saved = None if plan_file is None else move_plan.load(plan_file)
    where = None if partition is None else parse_partition(partition)
    with open_admin(bootstrap) as admin:
        if saved is None:
            assert where is not None
            assert to is not None
            saved = _single(admin, where, to.ids)
        if output is Output.TABLE and saved.moves:
            move_plan.show_saved(saved)
        outcomes = _carry_out(admin, saved, yes=yes, dry_run=dry_run)
    done = "moves could be submitted" if dry_run else "moves submitted"
    move_submit.report(outcomes, output, done=done)


def _carry_out(
    admin: "Admin", saved: move_plan.SavedPlan, *, yes: bool, dry_run: bool
) -> "list[MoveOutcome]":
    """Asks before, unless all of it is refused."""
    submit = partial(move_submit.submit, admin, saved.moves, saved.topic_ids, saved.reason)
    if dry_run or not yes:
        outcomes = submit(dry_run=True)
        refused = sum(one.error is not None for one in outcomes)
        if dry_run or refused == len(outcomes):
            return outcomes
        what = f"plan {saved.id}" if saved.id else "this move"
        but = f", but for {refused} that the cluster refuses" if refused else ""
        confirm(f"Carry out {what}{but}?", yes=False)
    return submit()


def _single(
    admin: "Admin", where: TopicPartition, target: tuple[BrokerId, ...]
) -> move_plan.SavedPlan:
    admin.describe_moves([where.topic])  # brokers may not know yet how the last move ended
    topic = admin.describe_topics([where.topic])[where.topic]
    check_partition(topic, where.partition)
    present = topic.partitions[where.partition].replicas
    if len(target) != len(present):
        raise MisuseError(
            f"{where} has {len(present)} replicas, and --to names {len(target)}; to change how "
            f"many there are: penstock topic alter {where.topic} --replicas {len(target)}",
            ErrorCode.INVALID_REQUEST,
        )
    expected = tuple(BrokerId(one) for one in present)
    new = len(set(target) - set(expected))
    size = _size(admin, topic.topic_id, topic.partitions[where.partition]) if new else 0
    one = core.Move(partition=where, expected=expected, target=target, copied_bytes=size * new)
    return move_plan.SavedPlan("", MoveReason.MANUAL, (one,), {where.topic: topic.topic_id})


def _size(admin: "Admin", topic_id: str, partition: "PartitionDescription") -> int:
    """As its leader says; 0 if nobody does: a move does not need it."""
    leaders = [partition.leader] if partition.leader >= 0 else []
    try:
        found = admin.describe_logs(broker_ids=leaders) if leaders else []
    except PenstockError:
        return 0
    logs = (log for one in found for log in one.logs)
    return sum(
        log.size_bytes
        for log in logs
        if (log.topic_id, log.partition) == (topic_id, partition.partition)
    )


# ---------------------------------------------------------------- what moves


@app.command(
    epilog=example("penstock partitions status", "penstock partitions status --watch"),
)
def status(
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print it whenever it changes, to the end.")
    ] = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the moves that have not ended: how far they are, and what they wait for."""
    if watch and output is not Output.TABLE:
        raise WrongUsageError("--watch prints tables for people: leave out -o")
    with open_admin(bootstrap, only_look=not watch) as admin:
        seen = admin.describe_moves()
        if not watch:
            move_status.show(seen, output)
            return
        said = ""
        while True:
            if (text := move_status.table(seen)) != said:
                said = text
                typer.echo(said)
            if not seen.moves:
                return
            time.sleep(WATCH_S)
            seen = admin.describe_moves()


@app.command(
    epilog=example(
        "penstock partitions throttle",
        "penstock partitions throttle 40Mi",
        "penstock partitions throttle none",
        "penstock partitions throttle default",
    )
)
def throttle(
    rate: Annotated[
        str | None,
        typer.Argument(
            metavar="[BYTES|none|default]",
            help="Per second, in and out of each broker; 1Mi is 1048576. none: no limit. default: "
            "each broker's replica.copy.bytes.per.second. Left out: shows what counts now.",
        ),
    ] = None,
    *,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show or set how fast partitions move; running moves follow at once.

    It limits what was written before a move began. What is written meanwhile is copied beside it.
    """
    wanted = None if rate is None else move_throttle.parse(rate)
    with open_admin(bootstrap, only_look=wanted is None) as admin:
        if wanted is None:
            move_throttle.show(admin, output)
            return
        admin.alter_throttle(wanted.copy_rate, validate_only=dry_run)
    done = "could be set" if dry_run else "set"
    said = f"copy rate {done}: {wanted}"
    print_change(said, {"copy_rate": wanted.copy_rate}, output, dry_run=dry_run)


@app.command(
    epilog=example(
        "penstock partitions cancel flights/3",
        "penstock partitions cancel flights",
        "penstock partitions cancel --broker 4",
        "penstock partitions cancel --all",
    )
)
def cancel(
    what: Annotated[
        str | None, typer.Argument(metavar="TOPIC[/PARTITION]", help="What shall stay.")
    ] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="All moves.")] = False,
    broker: Annotated[
        int | None,
        typer.Option("--broker", min=0, max=COUNT_MAX, help="Moves to and from this broker."),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel moves: partitions keep the replicas they have. What has ended is not undone."""
    if sum((what is not None, all_, broker is not None)) != 1:
        raise WrongUsageError("give one of TOPIC[/PARTITION], --broker, --all")
    named = None if what is None else parse_topic_or_partition(what)
    with open_admin(bootstrap) as admin:
        asked = _to_cancel(admin, named, broker)
        outcomes = move_submit.send(admin, asked, MoveReason.MANUAL, dry_run=dry_run)
    single = named is not None and named[1] is not None
    move_submit.report(
        outcomes,
        output,
        done="moves could be cancelled" if dry_run else "moves cancelled",
        harmless=frozenset() if single else frozenset({ErrorCode.NO_MOVE}),
    )


def _to_cancel(
    admin: "Admin", named: tuple[str, int | None] | None, broker: int | None
) -> "list[ReplicaMove]":
    from penstock.client import ReplicaMove  # noqa: PLC0415 - grpc only when it is needed

    topic, partition = named or (None, None)
    if topic is not None and partition is not None:
        return [ReplicaMove(TopicPartition(topic, partition))]
    topics = None if topic is None else [topic]
    if topics:
        admin.describe_topics(topics)  # a name that was misspelt has no moves either
    found = [
        ReplicaMove(one.where, topic_id=one.topic_id)
        for one in admin.describe_moves(topics).moves
        if one.target and (broker is None or broker in one.target or broker in one.replicas)
    ]
    if broker is not None and not found:
        check_brokers(admin, [broker])
    return found


@app.command(
    "accept-loss",
    epilog=example(
        "penstock partitions accept-loss",
        "penstock partitions accept-loss flights/3 --offsets 100-109 --dry-run",
        "penstock partitions accept-loss flights/3 --offsets 100-109 --without 2",
    ),
)
def accept_loss_(
    partition: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC/PARTITION]", help="Left out: shows what is lost."),
    ] = None,
    *,
    offsets: Annotated[
        str | None,
        typer.Option("--offsets", metavar="FIRST-LAST", help="Whole batches, both ends included."),
    ] = None,
    without: Annotated[
        Brokers | None,
        typer.Option(
            "--without",
            parser=parse_brokers,
            metavar="ID[,ID…]",
            help="Brokers that will never come back: they need not say that they lack it.",
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give up damaged batches that no replica has any more, so that readers can pass them.

    Refused as long as a broker has one, or does not say. The records in them are gone for ever.
    """
    if (partition is None) != (offsets is None):
        raise WrongUsageError(
            "TOPIC/PARTITION and --offsets go together; without both, what is lost is shown"
        )
    if partition is None or offsets is None:
        with open_admin(bootstrap, only_look=True) as admin:
            accept_loss.show_lost(admin, output)
        return
    from penstock.client import OffsetSpan  # noqa: PLC0415 - grpc only when it is needed

    check_output(output, yes=yes, dry_run=dry_run)
    where, (first, last) = parse_partition(partition), accept_loss.parse_offsets(offsets)
    silent = () if without is None else without.ids
    with open_admin(bootstrap) as admin:
        accept_loss.accept(
            admin, where, OffsetSpan(first, last), silent, output, yes=yes, dry_run=dry_run
        )
