"""Committed offsets: commit and fetch, and the checks of every change.

    commit ─ member, epoch, ownership, never back in a rewind epoch ─▶ record per partition
    fetch  ─ committed, and not pending in a transaction ─▶ an answer per partition

Offsets belong to topic ids: a topic that was deleted and created again has none. I18. Offsets in
transactions: `pending.py`. Resets, deletion and expiry: `resets.py`.
"""

from collections.abc import Container
from typing import Final

from penstock.core.groups.catalog import NamedPartition, Part
from penstock.core.groups.config import check_group_id
from penstock.core.groups.contract import CommitRequested, Committed, NewOffset
from penstock.core.groups.contract_views import Fetched, FetchRequested, OffsetAnswer
from penstock.core.groups.membership import check_groups, fenced_instance, unknown_member
from penstock.core.groups.records import AppliedReset, GroupRecord, OffsetRecord
from penstock.core.groups.state import Book, Group, Member
from penstock.core.limits import (
    COMMIT_METADATA_SUM_MAX,
    COMMIT_PARTITIONS_MAX,
    INT32_MAX,
    INT64_MAX,
)
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError

PARTITIONS_MAX: Final = COMMIT_PARTITIONS_MAX
"""Limit per request: its records must fit into one batch."""
METADATA_SUM_MAX: Final = COMMIT_METADATA_SUM_MAX


def commit(book: Book, event: CommitRequested) -> Committed:
    """Commits each partition separately; raises PenstockError for all."""
    check_group_id(event.group_id)
    check_size(event.offsets)
    group = book.groups.get(event.group_id)
    member = committer(book, group, event)
    if group is None:
        check_groups(book)
        group = Group(event.group_id)
    errors: list[PenstockError | None] = []
    for new in event.offsets:
        try:
            _commit_one(book, group, member, new)
            errors.append(None)
        except PenstockError as error:
            errors.append(error)
    return Committed(tuple(errors))


def _commit_one(book: Book, group: Group, member: Member | None, new: NewOffset) -> None:
    part = check(book, group, member, new)
    known = group.offsets.get(part)
    put(book, group, part, new)
    book.commits += 1
    if known is not None and new.offset < known.offset:
        book.decide(
            "committed offset moved back by its reader",
            group=group.group_id,
            member=member.member_id if member is not None else "",
            topic_partition=f"{new.where.topic}/{new.where.partition}",
            before=known.offset,
            offset=new.offset,
            rewind_epoch=new.rewind_epoch,
        )


def check(
    book: Book,
    group: Group,
    member: Member | None,
    new: NewOffset,
    producer_id: ProducerId | None = None,
) -> Part:
    """The partition, if this offset may be committed; `producer_id`: by its transaction.

    Raises PenstockError.
    """
    part = resolve(book, new.where)
    where = f"{new.where.topic}/{new.where.partition}"
    if member is not None:
        current = member.current
        if part not in current.parts and part not in current.pending:
            raise ClusterError(
                f"member {member.member_id} does not own {where} in epoch {current.epoch}; it "
                "can commit only partitions that it owns or is giving up",
                ErrorCode.STALE_MEMBER_EPOCH,
            )
    check_offset(book, new, where, least=0)
    if group.pending:
        check_stable(group, part, where, producer_id)
    known = group.offsets.get(part)
    if known is not None:
        check_not_back(new, known, f"which group {group.group_id!r} has committed")
    return part


def check_not_back(new: NewOffset, known: OffsetRecord, which: str) -> None:
    """Raises ClusterError(OFFSET_WENT_BACK) for a commit that would undo a newer one.

    (rewind epoch, offset) never goes back, in this order: so a commit from before its reader went
    back is refused whenever it comes, and one that goes back counts only once.
    """
    where = f"{new.where.topic}/{new.where.partition}"
    if 0 < new.rewind_epoch < known.rewind_epoch:
        raise ClusterError(
            f"offset {new.offset} of {where} has rewind epoch {new.rewind_epoch}, but "
            f"{known.offset}, {which}, has {known.rewind_epoch}: a reader has gone back since; "
            "continue at the committed offset",
            ErrorCode.OFFSET_WENT_BACK,
        )
    if new.rewind_epoch <= known.rewind_epoch and new.offset < known.offset:
        raise ClusterError(
            f"offset {new.offset} of {where} is below {known.offset}, {which}; only a consumer "
            "that has gone back, by a seek or because the log became shorter, may commit less, "
            "and a reset",
            ErrorCode.OFFSET_WENT_BACK,
        )


def check_stable(
    group: Group, part: Part, where: str, producer_id: ProducerId | None = None
) -> None:
    """Raises ClusterError(UNSTABLE_OFFSETS) if another transaction may change this offset."""
    holder = group.unstable(part)
    if holder is None or holder == producer_id:
        return
    pending = group.pending[holder]
    raise ClusterError(
        f"the offset of {where} in group {group.group_id!r} is pending in the open transaction "
        f"{pending.transactional_id!r} (producer {holder}, epoch {pending.producer_epoch}); try "
        "again when it has ended",
        ErrorCode.UNSTABLE_OFFSETS,
    )


def record(
    book: Book, new: NewOffset, known: OffsetRecord | None, reset: AppliedReset | None = None
) -> OffsetRecord:
    """The offset in its stored form, in place of `known`.

    A reset begins a new rewind epoch: what a consumer commits of before is refused, late or not.
    """
    epoch = 1 if known is None else known.rewind_epoch
    if reset is not None and known is not None:
        epoch = min(epoch + 1, INT32_MAX)
    return OffsetRecord(
        topic=new.where.topic,
        offset=new.offset,
        leader_epoch=new.leader_epoch,
        metadata=new.metadata,
        time_ms=book.time_ms,
        reset_id="" if reset is None else reset.reset_id,
        reason="" if reset is None else reset.reason,
        rewind_epoch=max(new.rewind_epoch, epoch),
    )


def put(
    book: Book, group: Group, part: Part, new: NewOffset, reset: AppliedReset | None = None
) -> None:
    if group.group_id not in book.groups:
        book.put_group(group, GroupRecord(empty_since_ms=book.time_ms))
    book.put_offset(group, part, record(book, new, group.offsets.get(part), reset))


def committer(book: Book, group: Group | None, event: CommitRequested) -> Member | None:
    """The member that commits; None: a consumer without membership. Raises ClusterError."""
    if not event.member_id:
        if event.member_epoch != -1:
            raise ClusterError(
                f"a commit without a member id has member epoch {event.member_epoch}; it must be "
                "-1, or name the member",
                ErrorCode.INVALID_REQUEST,
            )
        if group is not None and group.members:
            raise not_empty(group, "commits without membership are accepted")
        return None
    member = None if group is None else group.members.get(event.member_id)
    if group is None or member is None:
        if group is not None and group.instances.get(event.instance_id):
            raise fenced_instance(group, event.member_id, event.instance_id)
        raise unknown_member(book.groups, event.group_id, event.member_id)
    if event.instance_id and event.instance_id != member.record.instance_id:
        raise ClusterError(
            f"member {event.member_id} has instance id {member.record.instance_id!r}, not "
            f"{event.instance_id!r}",
            ErrorCode.FENCED_INSTANCE_ID,
        )
    if event.member_epoch != member.current.epoch:
        raise ClusterError(
            f"member {event.member_id} of group {group.group_id!r} commits with epoch "
            f"{event.member_epoch}, but its epoch is {member.current.epoch}",
            ErrorCode.STALE_MEMBER_EPOCH,
        )
    return member


def fetch(book: Book, event: FetchRequested) -> Fetched:
    """Committed offsets; a group that does not exist has none."""
    check_group_id(event.group_id)
    group = book.groups.get(event.group_id) or Group(event.group_id)
    if not event.partitions:
        return Fetched(committed(book, group, allow_unstable=event.allow_unstable))
    found = []
    for where in event.partitions:
        try:
            part = resolve(book, where)
        except PenstockError as error:
            found.append(_refused(where, error))
            continue
        found.append(_stable_answer(group, part, where.topic, event.allow_unstable))
    return Fetched(tuple(found))


def without_topics(answer: Fetched, event: FetchRequested, hidden: Container[str]) -> Fetched:
    """The answer to an event that names partitions, as if there were no topics of these names."""
    return Fetched(
        tuple(
            _refused(where, unknown_topic(where.topic)) if where.topic in hidden else found
            for where, found in zip(event.partitions, answer.offsets, strict=True)
        )
    )


def _refused(where: NamedPartition, error: PenstockError) -> OffsetAnswer:
    return OffsetAnswer(
        topic=where.topic, topic_id=where.topic_id, partition=where.partition, error=error
    )


def committed(book: Book, group: Group, *, allow_unstable: bool) -> tuple[OffsetAnswer, ...]:
    """All of a group's offsets in topics that exist, by topic and partition.

    `allow_unstable` False: an offset that may still change is an error (UNSTABLE_OFFSETS).
    """
    topics = book.catalog.topics
    parts = set(group.offsets)
    if not allow_unstable:
        parts.update(part for pending in group.pending.values() for part in pending.offsets)
    found = [
        _stable_answer(group, part, topics[part[0]].name, allow_unstable)
        for part in parts
        if part[0] in topics
    ]
    return tuple(sorted(found, key=lambda answer: (answer.topic, answer.partition)))


def _stable_answer(
    group: Group,
    part: Part,
    topic: str,
    allow_unstable: bool,
) -> OffsetAnswer:
    if group.pending and not allow_unstable:
        try:
            check_stable(group, part, f"{topic}/{part[1]}")
        except ClusterError as error:
            return OffsetAnswer(topic=topic, topic_id=part[0], partition=part[1], error=error)
    return _answer(part, topic, group.offsets.get(part))


def _answer(part: Part, topic: str, record: OffsetRecord | None) -> OffsetAnswer:
    topic_id, partition = part
    if record is None:
        return OffsetAnswer(topic=topic, topic_id=topic_id, partition=partition)
    return OffsetAnswer(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        offset=record.offset,
        leader_epoch=record.leader_epoch,
        metadata=record.metadata,
        commit_time_ms=record.time_ms,
        rewind_epoch=record.rewind_epoch,
    )


# ---------------------------------------------------------------- checks


def resolve(book: Book, where: NamedPartition) -> Part:
    """The requested partition.

    Raises ClusterError: UNKNOWN_TOPIC, also for an id of which this broker has not heard yet;
    TOPIC_ID_MISMATCH for one that was deleted; UNKNOWN_PARTITION.
    """
    topic_id = book.catalog.names.get(where.topic)
    if topic_id is None:
        raise unknown_topic(where.topic)
    if where.topic_id not in {"", topic_id}:
        if where.topic_id not in book.catalog.deleted:
            raise unknown_topic(where.topic, where.topic_id)
        raise ClusterError(
            f"topic {where.topic!r} has id {topic_id}, but the request names "
            f"{where.topic_id[:60]}: it was deleted and created again",
            ErrorCode.TOPIC_ID_MISMATCH,
        )
    partitions = book.catalog.topics[topic_id].partitions
    if not 0 <= where.partition < partitions:
        raise ClusterError(
            f"topic {where.topic!r} has partitions 0 to {partitions - 1}, not {where.partition}",
            ErrorCode.UNKNOWN_PARTITION,
        )
    return topic_id, where.partition


def unknown_topic(name: str, topic_id: TopicId | None = None) -> ClusterError:
    """For one that is not there, or is hidden from the caller."""
    named = f"{name[:60]!r} with id {topic_id[:60]}" if topic_id else repr(name[:60])
    return ClusterError(
        f"there is no topic {named} that groups can read; check the name",
        ErrorCode.UNKNOWN_TOPIC,
    )


def check_offset(book: Book, new: NewOffset, where: str, *, least: int) -> None:
    limit = book.config.metadata_bytes_max
    problem = ""
    if not least <= new.offset <= INT64_MAX:
        problem = f"offset {new.offset} of {where} is not valid; it must be {least} to {INT64_MAX}"
    elif not -1 <= new.leader_epoch <= INT32_MAX:
        problem = (
            f"leader epoch {new.leader_epoch} of {where} is not valid; it must be -1 to {INT32_MAX}"
        )
    elif not 0 <= new.rewind_epoch <= INT32_MAX:
        problem = (
            f"rewind epoch {new.rewind_epoch} of {where} is not valid; it must be 0 to {INT32_MAX}"
        )
    elif len(new.metadata) > limit or len(new.metadata.encode()) > limit:
        problem = (
            f"metadata of {where} has {len(new.metadata.encode())} bytes, the limit is {limit}"
        )
    if problem:
        raise ClusterError(problem, ErrorCode.INVALID_REQUEST)


def check_size(offsets: tuple[NewOffset, ...]) -> None:
    if len(offsets) > PARTITIONS_MAX:
        raise ClusterError(
            f"the request names {len(offsets)} partitions, the limit is {PARTITIONS_MAX}; split it",
            ErrorCode.INVALID_REQUEST,
        )
    size = sum(len(new.metadata) for new in offsets)
    if size > METADATA_SUM_MAX:
        raise ClusterError(
            f"the request has {size} characters of metadata, the limit is {METADATA_SUM_MAX}; "
            "split it",
            ErrorCode.INVALID_REQUEST,
        )


def not_empty(group: Group, then: str) -> ClusterError:
    return ClusterError(
        f"group {group.group_id!r} has {len(group.members)} members; stop them, or wait for their "
        f"sessions to end, then {then}",
        ErrorCode.GROUP_NOT_EMPTY,
    )
