"""Groups, one group, its members, its lag. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from penstock.core.lag import PartitionLag
from penstock.core.types import TopicPartition
from penstock.views import cells
from penstock.views.answers import Answer
from penstock.views.cells import Cell, Column, Fact, Table, Tone
from penstock.views.topics import topic_href

if TYPE_CHECKING:
    from penstock.client import GroupDescription, GroupListing, MemberDescription

Lags = Mapping[TopicPartition, PartitionLag]
_TONES: Final[dict[str, Tone]] = {"Stable": "good", "Empty": "dim", "Dead": "bad"}
GROUPS: Final = (
    Column("group", "Group"),
    Column("state", "State"),
    Column("members", "Members", numeric=True),
    Column("lag", "Lag", numeric=True),
    Column("lag_s", "Oldest waits", numeric=True),
    Column("topics", "Topics"),
)
MEMBERS: Final = (
    Column("member", "Member"),
    Column("client", "Client"),
    Column("host", "Host"),
    Column("rack", "Rack"),
    Column("connected", "Connected"),
    Column("partitions", "Partitions", numeric=True),
    Column("giving_up", "Giving up", numeric=True),
    Column("epoch", "Epoch", numeric=True),
)
LAGS: Final = (
    Column("topic", "Topic"),
    Column("partition", "Partition", numeric=True),
    Column("committed", "Committed", numeric=True),
    Column("end", "End", numeric=True),
    Column("lag", "Lag", numeric=True),
    Column("lag_s", "Oldest waits", numeric=True),
    Column("member", "Read by"),
)
READERS: Final = (
    Column("group", "Group"),
    Column("lag", "Lag here", numeric=True),
    Column("lag_s", "Oldest waits", numeric=True),
    Column("partitions", "Partitions", numeric=True),
)


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What is known of a group and its lag."""

    seen: "GroupDescription"
    lags: Lags


@dataclass(frozen=True, slots=True)
class Lag:
    """Of several partitions together; None = unknown, as soon as one of them is."""

    records: int | None
    oldest_ms: int | None

    @property
    def cells(self) -> tuple[Cell, Cell]:
        tone: Tone = "dim" if self.records == 0 else ""
        return cells.number(self.records, tone), cells.age(self.oldest_ms, tone)


def total_lag(lags: Sequence[PartitionLag]) -> Lag:
    """Records are added up; of the ages, the oldest counts."""
    records = [one.records for one in lags]
    ages = [one.lag_ms for one in lags]
    return Lag(
        None if not lags or None in records else sum(one or 0 for one in records),
        None if not lags or None in ages else max(one or 0 for one in ages),
    )


def group_href(group_id: str) -> str:
    """A group id may be any text, and so it is no part of a path."""
    return f"/group?id={quote(group_id, safe='')}"


def state_cell(state: str) -> Cell:
    return Cell(state, state.lower(), _TONES.get(state, "odd"))


def group_table(
    groups: "Sequence[GroupListing]", seen: Mapping[str, Answer[GroupAnswer]], empty: str
) -> Table:
    """`seen`: of the groups whose lag was asked for."""
    rows = []
    for one in groups:
        answer = seen.get(one.group_id, Answer())
        found = answer.value
        lag = total_lag(list(found.lags.values())) if found else Lag(None, None)
        topics = sorted({where.topic for where in found.lags}) if found else []
        rows.append(
            (
                cells.text(one.group_id, group_href(one.group_id)),
                state_cell(one.state.value),
                cells.number(one.members),
                *lag.cells,
                Cell(topics, ", ".join(topics[:4]) + (" …" if len(topics) > 4 else ""))
                if topics
                else cells.unknown(answer.problem),
            )
        )
    return Table("Groups", GROUPS, tuple(rows), empty)


def group_facts(found: GroupAnswer) -> tuple[Fact, ...]:
    seen = found.seen
    records, oldest = total_lag(list(found.lags.values())).cells
    facts = [
        Fact("State", state_cell(seen.state.value)),
        Fact("Members", cells.number(len(seen.members))),
        Fact("Lag", records),
        Fact("Oldest waits", oldest),
        Fact("Assignor", cells.text(seen.assignor)),
        Fact("Coordinator", cells.text(f"broker {seen.coordinator}")),
    ]
    if seen.empty_since_ms:
        facts.append(Fact("Empty since", cells.moment(seen.empty_since_ms)))
    if seen.last_reset_ms:
        facts.append(Fact("Offsets reset", cells.moment(seen.last_reset_ms)))
    return tuple(facts)


def member_table(seen: "GroupDescription") -> Table:
    rows = [_member(one) for one in seen.members]
    return Table(
        "Members", MEMBERS, tuple(rows), "Nobody reads for this group now; its offsets are kept."
    )


def _member(one: "MemberDescription") -> tuple[Cell, ...]:
    connected = Cell(True, "yes", "good") if one.connected else Cell(False, "no", "odd")
    return (
        cells.text(one.instance_id or one.member_id[:8], title=one.member_id),
        cells.text(one.client_id),
        cells.text(one.client_host),
        cells.text(one.rack),
        connected,
        cells.number(len(one.assigned)),
        cells.number(len(one.pending_revocation)),
        cells.identifier(one.member_epoch),
    )


def lag_table(found: GroupAnswer, shown: Sequence[TopicPartition]) -> Table:
    """`shown`: the partitions of this page."""
    owners = {where: member for member in found.seen.members for where in member.assigned}
    rows = []
    for where in shown:
        lag, owner = found.lags[where], owners.get(where)
        tone: Tone = "dim" if lag.records == 0 else ""
        rows.append(
            (
                cells.text(where.topic, topic_href(where.topic)),
                cells.identifier(where.partition),
                cells.identifier(lag.committed if lag.committed >= 0 else None),
                cells.identifier(lag.end),
                cells.number(lag.records, tone),
                cells.age(lag.lag_ms, tone),
                cells.text(None if owner is None else owner.client_id or owner.member_id[:8]),
            )
        )
    return Table(
        "Partitions", LAGS, tuple(rows), "The group has committed no offset and reads nothing yet."
    )


def pending_table(seen: "GroupDescription") -> Table:
    """Open transactions that have offsets of the group."""
    rows = [
        (
            cells.text(one.transactional_id),
            cells.identifier(one.producer_id),
            cells.text(", ".join(map(str, one.partitions))),
        )
        for one in seen.pending
    ]
    columns = (
        Column("id", "Transaction"),
        Column("producer", "Producer", numeric=True),
        Column("partitions", "Partitions with pending offsets"),
    )
    return Table("Open transactions with its offsets", columns, tuple(rows))


def reader_table(topic: str, seen: Mapping[str, Answer[GroupAnswer]], note: str = "") -> Table:
    """The groups that read a topic or have, with their lag in it."""
    rows = []
    for group_id, answer in sorted(seen.items()):
        if answer.value is None:
            continue
        lags = [lag for where, lag in answer.value.lags.items() if where.topic == topic]
        if lags:
            lag = total_lag(lags)
            name = cells.text(group_id, group_href(group_id))
            rows.append((name, *lag.cells, cells.number(len(lags))))
    return Table(
        "Groups that read it",
        READERS,
        tuple(rows),
        f"No group reads {topic}. To start one: penstock consume {topic} --group NAME",
        note,
    )
