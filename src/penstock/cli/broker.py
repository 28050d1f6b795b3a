"""`penstock broker …`: brokers as places for replicas, and how one is emptied.

cordon ──▶ nothing new lands there        drain = cordon, and moves for all that it holds
uncordon ◀── drain --cancel ◀── its moves are cancelled; what has moved stays where it is
forget: one that is dead, and has nothing left by the stored metadata, is unregistered
drop-orphans: logs on its disk that belong to no topic are deleted
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import broker_forget, broker_orphans, move_plan, move_submit
from penstock.cli.at_once import tell_silent
from penstock.cli.broker_left import read_left, wait_until_empty
from penstock.cli.changes import check_output, confirm, print_change
from penstock.cli.connect import locate, open_admin
from penstock.cli.move_facts import Looked, look_at, make_plan, read_facts
from penstock.cli.options import (
    COUNT_MAX,
    Bootstrap,
    DryRun,
    Output,
    OutputOption,
    Yes,
    example,
)
from penstock.cli.output import keep_code, print_record, print_rows
from penstock.cli.usage import WrongUsageError
from penstock.core import balance as core
from penstock.core.types import BrokerId, MoveReason
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin, BrokerPlacement, MoveOutcome, MovesDescription
    from penstock.client.admin.move_facts import ClusterFacts

UNKNOWN: Final = "unknown"
"""In tables, where a dash would say that there is none."""

app = typer.Typer(
    help="Show, cordon, drain and forget brokers, drop orphans.", no_args_is_help=True
)

Id = Annotated[int, typer.Argument(metavar="ID", min=0, max=COUNT_MAX, help="Id of the broker.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="Shown to others.")]


@app.command("list", epilog=example("penstock broker list", "penstock broker list -o json"))
def list_(*, bootstrap: Bootstrap = None, output: OutputOption = Output.TABLE) -> None:
    """List brokers: what each holds, the room it has, cordons.

    Exit code 1 if a live one does not say what it stores, or no controller answers: what only they
    know is then not known.
    """
    with open_admin(bootstrap, only_look=True) as admin:
        looked = look_at(admin)
    rows = [_row(looked, one) for one in looked.seen.moving.brokers]
    if output is Output.TABLE:
        rows = [_readable(row, looked) for row in rows]
    with keep_code():
        print_rows(rows, output)
    _complain(looked)


def _complain(looked: Looked) -> None:
    """Raises typer.Exit with 1 if something is not known."""
    if looked.controller:
        sys.stderr.write(f"penstock: {_controller_problem(looked)}\n")
    if tell_silent(looked.silent) or looked.controller:
        raise typer.Exit(1)


def _controller_problem(looked: Looked) -> str:
    return f"cordons, versions and moves are not known: {looked.controller}"


def _readable(row: dict[str, object], looked: Looked) -> dict[str, object]:
    """With sizes as in plans: `size_bytes` becomes `size`."""
    unknown = dict.fromkeys(("cordon", "version"), UNKNOWN) if looked.controller else {}
    return {
        name.removesuffix("_bytes"): move_plan.size(value)
        if name.endswith("_bytes") and isinstance(value, int)
        else value
        for name, value in {**row, **unknown}.items()
        if name != "problem"  # told on standard error
    }


@app.command(epilog=example("penstock broker describe 3", "penstock broker describe 3 -o json"))
def describe(
    broker: Id, *, bootstrap: Bootstrap = None, output: OutputOption = Output.TABLE
) -> None:
    """Show one broker, and the moves to and from it.

    Exit code 1 if it lives and does not say what it stores, or no controller answers.
    """
    with open_admin(bootstrap, only_look=True) as admin:
        looked = look_at(admin)
    silent = {one: problem for one, problem in looked.silent.items() if one == broker}
    looked = replace(looked, silent=silent)
    record = _described(looked, _placement(looked.seen.moving, broker))
    with keep_code():
        print_record(record, output)
    _complain(looked)


def _described(looked: Looked, broker: "BrokerPlacement") -> dict[str, object]:
    """None: not known without the controller."""
    row = _row(looked, broker)
    names = ("directory_id", "fresh", "why", "by", "moves")
    if looked.controller:
        return {**row, **dict.fromkeys(names)}
    cordon = broker.cordon
    moves = [
        {
            "partition": str(one.where),
            "state": one.state.value,
            "replicas": list(one.replicas),
            "target": list(one.target),
            "waiting_for": one.waiting_for or None,
        }
        for one in looked.seen.moving.moves
        if broker.broker_id in {*one.replicas, *one.target, *one.dropping}
    ]
    why, by = (cordon.why, cordon.by) if cordon else (None, None)
    values = (broker.directory_id, broker.fresh, why, by, moves)
    return {**row, **dict(zip(names, values, strict=True))}


@app.command(epilog=example("penstock broker config 3", "penstock broker config 3 --all -o json"))
def config(
    broker: Id,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Also what has its default.")] = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the settings of a broker that count now, and where each is from.

    SOURCE is start (given to its process, as by spec.config of a Cluster), cluster (set for all
    brokers while they run, as by penstock partitions throttle) or default. Settings of topics:
    penstock topic describe.
    """
    with open_admin(bootstrap) as admin:
        found = admin.describe_broker_configs([broker])[broker]
    rows: list[dict[str, object]] = [
        {
            "name": one.name,
            "value": one.value,
            "source": one.source.value if one.source else None,
            "default": one.default,
        }
        for one in found
        if all_ or one.value != one.default or one.source is None or one.source.value != "default"
    ]
    if output is not Output.TABLE:
        about = {one.name: one.documentation for one in found}
        rows = [{**row, "documentation": about[str(row["name"])]} for row in rows]
    print_rows(rows, output, empty=f"broker {broker} has its defaults; --all shows them")


def _row(looked: Looked, broker: "BrokerPlacement") -> dict[str, object]:
    facts, known = looked.seen.facts, BrokerId(broker.broker_id)
    silence = looked.silent.get(broker.broker_id)
    held = [one for one in facts.partitions if known in one.replicas]
    disk = next(one for one in facts.brokers if one.id == known)
    problems = [_controller_problem(looked)] if looked.controller else []
    if silence:
        problems.append(f"what it stores is not known: {silence}")
    return {
        "broker": broker.broker_id,
        "rack": broker.rack,
        "alive": broker.alive,
        "cordon": _cordon(broker),
        "replicas": len(held),
        "leaders": sum(one.leader == known for one in held),
        "size_bytes": sum(one.size_bytes or 0 for one in held) if not silence else None,
        "free_bytes": disk.free_bytes if disk.disk_bytes else None,
        "version": broker.software_version or None,
        "problem": "; ".join(problems) or None,
    }


def _cordon(broker: "BrokerPlacement") -> str | None:
    cordon = broker.cordon
    if cordon is None:
        return None
    kinds = [name for name in ("placement", "leadership") if getattr(cordon, name)]
    return " and ".join(kinds)


def _placement(seen: "MovesDescription", broker: int) -> "BrokerPlacement":
    for one in seen.brokers:
        if one.broker_id == broker:
            return one
    known = ", ".join(str(one.broker_id) for one in seen.brokers)
    raise MisuseError(f"there is no broker {broker}; there are {known}", ErrorCode.INVALID_REQUEST)


# ---------------------------------------------------------------- cordons


@app.command(
    epilog=example(
        "penstock broker cordon 3 --why 'its disk is slow'", "penstock broker cordon 3 --leaders"
    )
)
def cordon(
    broker: Id,
    *,
    leaders: Annotated[
        bool, typer.Option("--leaders", help="It leads only what nobody else can, too.")
    ] = False,
    why: Why = "",
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have no new replica placed on a broker; what it has stays."""
    with open_admin(bootstrap) as admin:
        set_cordon(admin, broker, (True, leaders), why, dry_run=dry_run)
    what = "gets no new replica" + (", and leads only what nobody else can" if leaders else "")
    said = f"broker {broker} could be cordoned" if dry_run else f"broker {broker} {what}"
    record = {"broker": broker, "placement": True, "leadership": leaders, "why": why}
    print_change(said, record, output, dry_run=dry_run)


@app.command(epilog=example("penstock broker uncordon 3"))
def uncordon(
    broker: Id,
    *,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Lift a broker's cordon: it may get replicas and leaderships again."""
    with open_admin(bootstrap) as admin:
        set_cordon(admin, broker, (False, False), "", dry_run=dry_run)
    said = f"broker {broker} could be uncordoned" if dry_run else f"broker {broker} is not cordoned"
    record = {"broker": broker, "placement": False, "leadership": False, "why": ""}
    print_change(said, record, output, dry_run=dry_run)


def set_cordon(
    admin: "Admin", broker: int, kinds: tuple[bool, bool], why: str, *, dry_run: bool = False
) -> None:
    from penstock.client import BrokerChange, Cordon  # noqa: PLC0415 - grpc only when needed

    by = "penstock broker" if any(kinds) else ""
    cordon = Cordon(placement=kinds[0], leadership=kinds[1], why=why, by=by)
    admin.alter_brokers([BrokerChange(broker, cordon)], validate_only=dry_run)


# ---------------------------------------------------------------- drain


@app.command(
    epilog=example(
        "penstock broker drain 3 --dry-run",
        "penstock broker drain 3 --wait --yes",
        "penstock broker drain 3 --cancel --dry-run",
        "penstock broker drain 3 --cancel",
    )
)
def drain(
    broker: Id,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing is left on it.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End a drain: what has moved stays where it is.")
    ] = False,
    why: Why = "drain",
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Empty a broker: cordon it, and move all its replicas to others.

    Shows the plan, and asks. Nothing begins unless all of it fits elsewhere. The cluster goes on by
    itself when this command has ended; run it again to move what has landed there before the
    cordon.
    """
    if cancel and wait:
        raise WrongUsageError("--cancel does not go with --wait")
    if wait and output is not Output.TABLE:
        raise WrongUsageError("--wait prints lines for people: leave out -o")
    check_output(output, yes=yes or cancel, dry_run=dry_run)
    where = locate(bootstrap)
    with open_admin(where) as admin:
        if cancel:
            outcomes = cancel_drain(admin, broker, dry_run=dry_run)
            if output is Output.TABLE:
                lifted = "could be uncordoned" if dry_run else "is not cordoned"
                typer.echo(f"broker {broker} {lifted}")
            move_submit.report(
                outcomes,
                output,
                done="moves could be cancelled" if dry_run else "moves cancelled",
                harmless=frozenset({ErrorCode.NO_MOVE}),
            )
            return
        wish = core.Drain((BrokerId(broker),))
        seen = read_facts(admin)
        made = show_and_ask(seen, wish, output, yes=yes, dry_run=dry_run)
        if made is None:
            return
        cordon_for_drain(admin, _placement(seen.moving, broker), why)
        outcomes = drain_as_shown(admin, wish, made, seen.topic_ids)
        if output is Output.TABLE:
            typer.echo(_stays_cordoned(broker, managed=where.reached is not None))
        if wait:
            wait_until_empty(admin, broker, lambda: drain_once(admin, wish))
            return
    move_submit.report(
        outcomes,
        output,
        done=f"moves submitted; see penstock partitions status, or: penstock broker drain {broker} "
        "--wait",
    )


def _stays_cordoned(broker: int, *, managed: bool) -> str:
    """`managed`: by an operator, which keeps a broker that the spec wants, and its cordon."""
    text = f"broker {broker} stays cordoned until: penstock broker uncordon {broker}"
    if not managed:
        return text
    return f"{text}; the operator does not lift that, and to remove a broker lower spec.brokers"


def show_and_ask(
    seen: "ClusterFacts", wish: core.Drain, output: Output, *, yes: bool, dry_run: bool
) -> core.Plan | None:
    """Shows the plan of a drain, to be carried out; None: a dry run.

    Ends the command if a person says no; nobody is asked about what is done already.
    """
    made = make_plan(seen, wish)
    if output is Output.TABLE or dry_run:
        move_plan.show(made, seen.topic_ids, output, seen.facts.copy_rate)
    if dry_run:
        return None
    names = ", ".join(map(str, wish.brokers))
    closed = {one.broker_id for one in seen.moving.brokers if one.cordon and one.cordon.placement}
    if made.moves:
        confirm(f"Cordon {names}, and carry out plan {made.id}?", yes=yes)
    elif not closed.issuperset(wish.brokers):
        confirm(f"Cordon {names}?", yes=yes)
    return made


def cordon_for_drain(admin: "Admin", broker: "BrokerPlacement", why: str) -> None:
    """What is cordoned already keeps its cordon; leaderships end with the moves."""
    cordon = broker.cordon
    if cordon is None or not cordon.placement:
        leadership = cordon is not None and cordon.leadership
        set_cordon(admin, broker.broker_id, (True, leadership), why)


def drain_as_shown(
    admin: "Admin", wish: core.Drain, made: core.Plan, topic_ids: "Mapping[str, str]"
) -> "list[MoveOutcome]":
    """What was agreed to, and then what has changed since: what was refused, and new topics."""
    shown = move_submit.submit(admin, made.moves, topic_ids, MoveReason.DRAIN)
    more = drain_once(admin, wish)
    again = {one.where for one in more}
    return [one for one in shown if one.where not in again] + more


def drain_once(admin: "Admin", wish: core.Drain) -> "list[MoveOutcome]":
    """Moves what is there now. After the cordon, because topics may have been created before it."""
    seen = read_facts(admin)
    made = make_plan(seen, wish)
    return move_submit.submit(admin, made.moves, seen.topic_ids, MoveReason.DRAIN)


def cancel_drain(admin: "Admin", broker: int, *, dry_run: bool) -> "list[MoveOutcome]":
    from penstock.client import ReplicaMove  # noqa: PLC0415 - grpc only when it is needed

    set_cordon(admin, broker, (False, False), "", dry_run=dry_run)
    leaving = [
        ReplicaMove(one.where, topic_id=one.topic_id)
        for one in admin.describe_moves().moves
        if one.target and broker in one.replicas and broker not in one.target
    ]
    return move_submit.send(admin, leaving, MoveReason.DRAIN, dry_run=dry_run)


# ---------------------------------------------------------------- forget


@app.command(epilog=example("penstock broker forget 3 --dry-run", "penstock broker forget 3 --yes"))
def forget(
    broker: Id,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let go of a broker that is dead and will never come back: the cluster forgets it.

    Refused while a partition has a replica there, or moves one to it: penstock broker drain moves
    them to others. On Kubernetes the operator does that, by spec.brokers, or by an annotation.
    """
    check_output(output, yes=yes, dry_run=dry_run)
    where = locate(bootstrap)
    with open_admin(where) as admin:
        left, seen = read_left(admin, broker)
        found = _placement(seen, broker)
        if where.reached is not None:
            raise MisuseError(
                broker_forget.of_an_operator(broker, where.reached.name), ErrorCode.INVALID_REQUEST
            )
        broker_forget.forget(admin, found, left, output, yes=yes, dry_run=dry_run)


# ---------------------------------------------------------------- orphans


@app.command(
    "drop-orphans",
    epilog=example(
        "penstock broker drop-orphans 3 --dry-run",
        "penstock broker drop-orphans 3 --topic-id 5e1cbd5e-7b5c-4f0e-9d3c-6a4d2f1f7a10 --yes",
    ),
)
def drop_orphans(
    broker: Id,
    *,
    topic_id: Annotated[
        list[str] | None,
        typer.Option("--topic-id", help="Only logs of this topic; may be repeated."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete logs on a broker that belong to no topic: nothing else ever deletes them.

    They stay if more topics were deleted than the controller remembers while the broker did not
    run, and keep it from being removed. Shows them, and asks. The records in them are gone for
    ever; those of a topic that is to be restored are among them, too.
    """
    check_output(output, yes=yes, dry_run=dry_run)
    with open_admin(bootstrap) as admin:
        broker_orphans.drop(admin, broker, topic_id or (), output, yes=yes, dry_run=dry_run)
