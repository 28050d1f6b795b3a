"""`kubectl penstock drain`: takes leaderships, or all data, off brokers before their node goes.

    --node ─▶ its broker pods ─┐
    --broker ──────────────────┴▶ cordon for leadership ─▶ leaders move ─▶ what they still lead
                         --data ▶ cordon for placement ─▶ moves, as `penstock broker drain`

A cordon stays until it is lifted (`--cancel`), also through restarts of the broker: leaderships
return only then. The operator takes away none that it did not set.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from penstock.cli import broker as broker_commands
from penstock.cli import move_submit
from penstock.cli.kube.snapshot import Snapshot, full_name
from penstock.cli.kube.status import broker_id
from penstock.cli.move_facts import read_facts
from penstock.cli.options import Output
from penstock.cli.output import print_rows
from penstock.core import balance
from penstock.core.types import BrokerId, TopicPartition
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin, BrokerPlacement, MoveOutcome

LEADERS_S: Final = 60.0
_POLL_S: Final = 0.5
_WHY: Final = "its node is about to go"
_BY: Final = "kubectl penstock drain"


@dataclass(frozen=True, slots=True)
class Led:
    """What a broker leads. `alone`: how many of its partitions nobody else can lead now."""

    broker: int
    node: str | None
    leads: int
    alone: int


def choose_brokers(
    snapshot: Snapshot, brokers: Iterable[int], node: str | None
) -> dict[int, str | None]:
    """Ids and their pods' nodes. Raises MisuseError for an id or a node without a broker."""
    nodes = {
        one: pod["spec"].get("nodeName")
        for pod in snapshot.pods_of("broker")
        if (one := broker_id(pod)) is not None
    }
    name = full_name(snapshot.cluster)
    if node is not None:
        found = {one: where for one, where in nodes.items() if where == node}
        if not found:
            places = ", ".join(sorted({str(where) for where in nodes.values() if where}))
            raise MisuseError(
                f"no broker of Cluster {name} runs on node {node!r}; brokers run on: "
                f"{places or 'no node'}; one that has left it since is named with --broker",
                ErrorCode.INVALID_REQUEST,
            )
        return dict(sorted(found.items()))
    for one in brokers:
        if one not in nodes:
            raise MisuseError(
                f"Cluster {name} has no pod of broker {one}; it has pods of "
                f"{', '.join(map(str, sorted(nodes))) or 'none'}",
                ErrorCode.INVALID_REQUEST,
            )
    return {one: nodes[one] for one in sorted(set(brokers))}


def describe_led(admin: "Admin", brokers: Mapping[int, str | None]) -> list[Led]:
    """One per broker."""
    alive = {one.broker_id for one in admin.describe_moves().brokers if one.alive}
    others = alive - set(brokers)
    partitions = [one for topic in admin.describe_topics().values() for one in topic.partitions]
    found = []
    for broker, node in brokers.items():
        led = [one for one in partitions if one.leader == broker]
        alone = sum(not others & set(one.isr) for one in led)
        found.append(Led(broker, node, len(led), alone))
    return found


def move_leaders(admin: "Admin", brokers: Mapping[int, str | None]) -> list[Led]:
    """Cordons the brokers for leadership and waits until they lead only what nobody else can.

    Returns what they still lead, after a minute at the latest.
    """
    placed = {one.broker_id: one for one in admin.describe_moves().brokers}
    # All of them first: leaderships must not move from one to the next.
    for broker in brokers:
        _cordon_leadership(admin, _registered(placed, broker))
    until = time.monotonic() + LEADERS_S
    while True:
        for broker in brokers:
            admin.elect_leaders(away_from_broker=broker)
        left = describe_led(admin, brokers)
        if all(one.leads == one.alone for one in left) or time.monotonic() > until:
            return left
        time.sleep(_POLL_S)


def _registered(placed: "Mapping[int, BrokerPlacement]", broker: int) -> "BrokerPlacement":
    if broker not in placed:
        raise MisuseError(
            f"broker {broker} has a pod and is not registered: it has not run yet, so it leads "
            "and holds nothing",
            ErrorCode.INVALID_REQUEST,
        )
    return placed[broker]


def _cordon_leadership(admin: "Admin", broker: "BrokerPlacement") -> None:
    """Keeps a cordon for placement, and who set it."""
    from penstock.client import BrokerChange, Cordon  # noqa: PLC0415 - grpc only when needed

    cordon = broker.cordon
    if cordon is not None and cordon.leadership:
        return
    wanted = (
        Cordon(placement=False, leadership=True, why=_WHY, by=_BY)
        if cordon is None
        else Cordon(placement=cordon.placement, leadership=True, why=cordon.why, by=cordon.by)
    )
    admin.alter_brokers([BrokerChange(broker.broker_id, wanted)])


def move_data(
    admin: "Admin", brokers: Iterable[int], output: Output, *, yes: bool, dry_run: bool
) -> "list[MoveOutcome] | None":
    """Shows the moves of all that the brokers hold, asks, cordons the brokers for placement and
    submits the moves. None: a dry run. Raises MisuseError if they do not fit."""
    ids = tuple(brokers)
    seen = read_facts(admin)
    made = broker_commands.show_and_ask(seen, _wish(ids), output, yes=yes, dry_run=dry_run)
    if made is None:
        return None
    placed = {one.broker_id: one for one in admin.describe_moves().brokers}
    for broker in ids:
        broker_commands.cordon_for_drain(admin, _registered(placed, broker), _WHY)
    return broker_commands.drain_as_shown(admin, _wish(ids), made, seen.topic_ids)


def _wish(brokers: Iterable[int]) -> balance.Drain:
    return balance.Drain(tuple(map(BrokerId, brokers)))


def cancel(admin: "Admin", brokers: Iterable[int], *, dry_run: bool) -> "list[MoveOutcome]":
    """Lifts the cordons, cancels moves away from the brokers, and gives leaderships back to them.

    What has moved stays. What they cannot lead yet returns by itself, once they can.
    """
    ids = set(brokers)
    outcomes = [
        found
        for one in sorted(ids)
        for found in broker_commands.cancel_drain(admin, one, dry_run=dry_run)
    ]
    if dry_run:
        return outcomes
    theirs = [
        TopicPartition(name, one.partition)
        for name, topic in admin.describe_topics().items()
        for one in topic.partitions
        if one.replicas[0] in ids & set(one.isr) and one.replicas[0] != one.leader
    ]
    if theirs:
        # Asked for, because by itself the controller returns none for a minute after they moved.
        admin.elect_leaders(theirs)
    return outcomes


def run(
    admin: "Admin",
    brokers: Mapping[int, str | None],
    output: Output,
    *,
    data: bool,
    dry_run: bool,
    yes: bool,
) -> bool:
    """Drains, and prints what came of it; False if leaderships are left that others could have."""
    if data:
        outcomes = move_data(admin, brokers, output, yes=yes, dry_run=dry_run)
        if outcomes is not None:
            move_submit.report(
                outcomes,
                output,
                done="moves submitted; to see how far they are: `kubectl penstock partitions "
                "status --watch`. The brokers stay cordoned until `--cancel`",
            )
        return True
    if dry_run:
        _show(describe_led(admin, brokers), output)
        return True
    left = move_leaders(admin, brokers)
    _show(left, output)
    return all(one.leads == one.alone for one in left)


def _show(found: Iterable[Led], output: Output) -> None:
    print_rows(
        [
            {
                "broker": one.broker,
                "node": one.node,
                "leads": one.leads,
                "only_it_can_lead": one.alone,
            }
            for one in found
        ],
        output,
    )


def run_cancel(
    admin: "Admin", brokers: Mapping[int, str | None], output: Output, *, dry_run: bool
) -> None:
    """Takes a drain back, and prints what was cancelled, or would be."""
    outcomes = cancel(admin, brokers, dry_run=dry_run)
    if output is Output.TABLE:
        lifted = "could be uncordoned" if dry_run else "not cordoned any more"
        typer.echo(f"{lifted}: {', '.join(map(str, brokers))}")
    move_submit.report(
        outcomes,
        output,
        done="moves could be cancelled" if dry_run else "moves cancelled",
        harmless=frozenset({ErrorCode.NO_MOVE}),
    )
