"""The first page: the sentence on top, what is wrong and what to do, and a row per broker.

The sentence names the worst that clients feel; findings follow with the causes first: nobody
answers, all sleeps, nothing decides (controller), brokers that are down, partitions, disks,
transactions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.core.throttle import room_for_copies
from penstock.views import cells
from penstock.views.answers import Answer, Logs, empty_text
from penstock.views.blocking import TRANSACTION_CODES, transaction_findings
from penstock.views.cells import Cell, Column, Fact, Table, Tone
from penstock.views.damage import differing_findings, mending_findings
from penstock.views.findings import Finding, some
from penstock.views.shortfalls import Shortfall, partition_findings, unnamed_findings

if TYPE_CHECKING:
    from penstock.client import (
        BlockingTransaction,
        BrokerDescription,
        ClusterDescription,
        MoveDescription,
    )

NOT_SERVED: Final = frozenset(
    {"no-answer", "refused", "hibernating", "offline", "under-min-isr", "disk-full"}
)
"""Codes of findings that mean: some clients cannot write or read."""
_MARK: Final[dict[Tone, str]] = {"good": "✔", "odd": "●", "bad": "✘"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """`tone`: good, odd (somebody should know) or bad (clients are not served)."""

    sentence: str
    tone: Tone
    findings: tuple[Finding, ...] = ()

    @property
    def mark(self) -> str:
        return _MARK[self.tone]

    def to_dict(self) -> dict[str, object]:
        return {
            "sentence": self.sentence,
            "served": self.tone != "bad",
            "findings": [asdict(one) for one in self.findings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAnswers:
    """All that the overview is made of; `short`: empty if the cluster counts no such partition."""

    cluster: "Answer[ClusterDescription]"
    logs: Answer[Logs]
    short: Answer[tuple[Shortfall, ...]]
    blocking: "Answer[list[BlockingTransaction]]"
    moves: "Answer[tuple[MoveDescription, ...]]" = field(default_factory=lambda: Answer(()))
    """Asked only if a disk has no room for copies."""


def explain(seen: ClusterAnswers) -> Explanation:
    """Why the cluster is as it is."""
    if seen.cluster.refused:
        refusal = Finding("the cluster", "refused", f"says: {seen.cluster.problem}")
        return Explanation("You may not see how the cluster is", "bad", (refusal,))
    if seen.cluster.value is None:
        finding = Finding(
            "no broker",
            "no-answer",
            f"answers: {seen.cluster.problem}",
            do="check that the brokers run, and that this machine reaches them",
        )
        return Explanation("No broker answers", "bad", (finding,))
    cluster = seen.cluster.value
    findings = (
        *_hibernation(cluster),
        *_controller(cluster),
        *_brokers(cluster, seen.logs.value),
        *_partitions(cluster, seen.short),
        *mending_findings(seen.logs.value.brokers if seen.logs.value else {}),
        *differing_findings(seen.logs.value.brokers if seen.logs.value else {}),
        *_disks(seen.logs.value),
        *_held_moves(seen),
        *transaction_findings(seen.blocking.value or ()),
        *_gaps(seen),
    )
    return Explanation(*_sentence(cluster, findings), findings)


def _sentence(cluster: "ClusterDescription", findings: Sequence[Finding]) -> tuple[str, Tone]:
    felt = [one for one in findings if one.code in NOT_SERVED]
    if felt:
        more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        return f"Some clients are not served: {felt[0].subject} {_brief(felt[0])}{more}", "bad"
    if any(one.code in TRANSACTION_CODES for one in findings):
        return "Readers of committed records wait for a transaction", "odd"
    if findings:
        first = findings[0]
        return f"Clients are served; {first.subject} {_brief(first)}", "odd"
    partitions = cells.plural(cluster.partitions, "partition")
    return f"All is well: {partitions}, each with a leader and every replica in sync", "good"


def _brief(finding: Finding) -> str:
    return finding.what.partition(":")[0]


def _hibernation(cluster: "ClusterDescription") -> Iterator[Finding]:
    if cluster.hibernating:
        yield Finding(
            "the cluster",
            "hibernating",
            "hibernates: it takes no new records, producers or group members",
            do="to wake it: kubectl penstock wake CLUSTER",
        )


def _controller(cluster: "ClusterDescription") -> Iterator[Finding]:
    if not cluster.controller_reachable:
        yield Finding(
            "the controller",
            "controller-unreachable",
            "does not answer the brokers: no leaders are elected, topics cannot be changed; "
            "brokers keep serving",
            do="check the controller's process and its log",
        )


def _brokers(cluster: "ClusterDescription", logs: Logs | None) -> Iterator[Finding]:
    down = [one for one in cluster.brokers if not one.alive]
    for one in down:
        yield Finding(
            f"broker {one.broker_id}",
            "broker-down",
            f"is down: the controller has no session with it ({one.address})",
            do="start it again; it catches up by itself",
        )
    for broker_id, problem in (logs.silent if logs else {}).items():
        if any(one.broker_id == broker_id for one in down):
            continue  # what was asked a moment ago is older than that
        yield Finding(
            f"broker {broker_id}",
            "broker-silent",
            f"has a session with the controller, but does not answer here: {problem}",
            do="if this stays: is the network between here and that broker open?",
        )


def _partitions(
    cluster: "ClusterDescription", short: Answer[tuple[Shortfall, ...]]
) -> Iterator[Finding]:
    alive = {one.broker_id for one in cluster.brokers if one.alive}

    def reason(broker: int) -> str:
        return "it runs, and catches up" if broker in alive else "it is down"

    yield from partition_findings(short.value or (), reason)
    yield from unnamed_findings(cluster, short.value or ())


def _disks(logs: Logs | None) -> Iterator[Finding]:
    full = [
        broker_id
        for broker_id, one in sorted((logs.brokers if logs else {}).items())
        if one.disk_is_full
    ]
    if full:
        yield Finding(
            f"the disk of broker {some([str(one) for one in full])}",
            "disk-full",
            "has less free than the broker keeps in reserve: it refuses writes, and serves reads",
            do="give it a larger volume, or shorten retention.ms or retention.bytes of topics",
        )


def without_room(logs: Logs | None) -> frozenset[int]:
    """Brokers to whose disks nothing is copied. An older one does not say its reserve."""
    return frozenset(
        broker_id
        for broker_id, one in (logs.brokers if logs else {}).items()
        if one.disk_reserve_bytes > 0
        and one.disk_free_bytes < room_for_copies(one.disk_reserve_bytes, one.disk_total_bytes)
    )


def _held_moves(seen: ClusterAnswers) -> Iterator[Finding]:
    for broker_id in sorted(without_room(seen.logs.value)):
        held = [str(one.where) for one in seen.moves.value or () if broker_id in one.adding]
        if held:
            yield Finding(
                f"the disk of broker {broker_id}",
                "moves-held",
                f"is nearly full: nothing is copied there, and these wait: {some(held)}",
                do="give it a larger volume, or shorten retention.ms or retention.bytes of topics; "
                f"to send them elsewhere, first: penstock partitions cancel --broker {broker_id}",
            )


def _gaps(seen: ClusterAnswers) -> Iterator[Finding]:
    for what, answer in (
        ("stored logs", seen.logs),
        ("partitions", seen.short),
        ("transactions that block readers", seen.blocking),
        ("moves", seen.moves),
    ):
        if answer.problem:
            yield Finding(what, "not-readable", f"could not be read: {answer.problem}")


def facts(seen: ClusterAnswers) -> tuple[Fact, ...]:
    """Numbers below the sentence; none if nobody answers."""
    cluster = seen.cluster.value
    if cluster is None:
        return ()
    alive = sum(one.alive for one in cluster.brokers)
    whole = len(cluster.brokers)

    def problem(count: int, tone: Tone) -> Cell:
        return cells.number(count, tone if count else "")

    return (
        Fact("Brokers", Cell(alive, f"{alive} of {whole}", "" if alive == whole else "bad")),
        Fact(
            "Controller",
            Cell(True, "reachable")
            if cluster.controller_reachable
            else Cell(False, "unreachable", "bad"),
        ),
        Fact("Topics", cells.number(cluster.topics)),
        Fact("Partitions", cells.number(cluster.partitions)),
        Fact("Offline", problem(cluster.offline_partitions, "bad")),
        Fact("Below min ISR", problem(cluster.under_min_isr_partitions, "bad")),
        Fact("Under-replicated", problem(cluster.under_replicated_partitions, "odd")),
    )


_BROKERS: Final = (
    Column("broker", "Broker", numeric=True),
    Column("state", "State"),
    Column("address", "Address"),
    Column("rack", "Rack"),
    Column("leaders", "Leads", numeric=True),
    Column("replicas", "Replicas", numeric=True),
    Column("size_bytes", "Size", numeric=True),
    Column("disk_free_bytes", "Disk free", numeric=True),
    Column("disk_used", "Disk used"),
)


def broker_table(seen: ClusterAnswers) -> Table:
    """A row per registered broker."""
    cluster = seen.cluster.value
    rows = [_broker(one, seen.logs.value) for one in (cluster.brokers if cluster else ())]
    empty = empty_text(seen.cluster, "No broker is registered yet.")
    return Table("Brokers", _BROKERS, tuple(rows), empty)


def _broker(one: "BrokerDescription", logs: Logs | None) -> tuple[Cell, ...]:
    seen = logs.brokers.get(one.broker_id) if logs else None
    if not one.alive:
        state = Cell("down", "down", "bad")
    elif logs and one.broker_id in logs.silent:
        state = Cell("silent", "no answer", "odd", "", logs.silent[one.broker_id])
    else:
        state = Cell("alive", "alive", "good")
    head = (
        cells.identifier(one.broker_id),
        state,
        cells.text(one.address),
        cells.text(one.rack),
    )
    if seen is None:
        return (*head, *(cells.unknown(),) * 5)
    total, free = seen.disk_total_bytes, seen.disk_free_bytes
    used = (total - free) / total if total else None
    tone: Tone = "bad" if free < seen.disk_reserve_bytes else ""
    return (
        *head,
        cells.number(sum(log.is_leader for log in seen.logs)),
        cells.number(len(seen.logs)),
        cells.size(sum(log.size_bytes for log in seen.logs)),
        cells.size(free, tone),
        cells.unknown() if used is None else Cell(round(used, 3), f"{used:.0%}", tone, share=used),
    )
