"""Views of a coordinator's groups, as of its newest record."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core.groups.catalog import Subscription
from penstock.core.groups.config import check_group_id
from penstock.core.groups.contract_views import (
    Described,
    DescribedMember,
    DescribedPending,
    DescribeRequested,
    GroupState,
    Listed,
    ListedGroup,
    ListRequested,
)
from penstock.core.groups.offsets import committed
from penstock.core.groups.records import PendingKey, PendingRecord
from penstock.core.groups.state import Book, Member


def list_groups(book: Book, event: ListRequested) -> Listed:
    """By group id; no states: all."""
    found = [
        ListedGroup(group.group_id, group.state, len(group.members))
        for _, group in sorted(book.groups.items())
    ]
    return Listed(tuple(g for g in found if not event.states or g.state in event.states))


@dataclass(frozen=True, slots=True)
class Census:
    """Groups by state, and members of all groups; for metrics. Do not change it."""

    states: Counter[GroupState]
    members: int


def take_census(book: Book) -> Census:
    """Scans all groups. Everything it depends on is durable."""
    groups = book.groups.values()
    return Census(Counter(g.state for g in groups), sum(len(g.members) for g in groups))


def open_transactions(book: Book) -> Iterator[tuple[PendingKey, PendingRecord]]:
    """Transactions that have offsets of groups here. Scans all groups."""
    for group in book.groups.values():
        for producer_id, record in group.pending.items():
            yield PendingKey(group.group_id, producer_id), record


def describe(book: Book, event: DescribeRequested) -> Described:
    """An unknown group is DEAD."""
    check_group_id(event.group_id)
    group = book.groups.get(event.group_id)
    if group is None:
        return Described(group_id=event.group_id, state=GroupState.DEAD)
    members = [_member(member) for _, member in sorted(group.members.items())]
    parts = {part for m in members for part in m.assigned | m.pending | m.target}
    return Described(
        group_id=group.group_id,
        state=group.state,
        group_epoch=group.record.epoch,
        assignment_epoch=group.record.assignment_epoch,
        assignor=group.record.assignor,
        members=tuple(members),
        offsets=committed(book, group, allow_unstable=True) if event.include_offsets else (),
        empty_since_ms=group.record.empty_since_ms,
        last_reset=group.record.reset,
        pending=tuple(
            DescribedPending(
                transactional_id=record.transactional_id,
                producer_id=producer_id,
                producer_epoch=record.producer_epoch,
                parts=frozenset(record.offsets),
                names={part[0]: offset.topic for part, offset in record.offsets.items()},
            )
            for producer_id, record in sorted(group.pending.items())
        ),
        names=group.named(parts),
    )


def _member(member: Member) -> DescribedMember:
    record, current = member.record, member.current
    return DescribedMember(
        member_id=member.member_id,
        instance_id=record.instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        rack=record.rack,
        member_epoch=current.epoch,
        subscription=Subscription(record.topics, record.pattern),
        assignor=record.assignor,
        session_timeout_ms=record.session_timeout_ms,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        connected=member.stream_id is not None,
        assigned=current.parts,
        pending=current.pending,
        target=member.target,
    )
