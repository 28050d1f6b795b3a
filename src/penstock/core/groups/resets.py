"""How committed offsets change other than by commits: reset, deletion, expiry.

    reset  ─ no members; all or nothing; may lower offsets ─▶ records that carry its id and reason
    delete ─ no members, no open transaction ─▶ tombstones
    sweep  ─ no members for `offsets_retention_ms`; deleted topics ─▶ tombstones

The offsets of a group with members belong to them: nothing here changes one that they can still
commit (I18). The checks are those of a commit (`offsets.py`).
"""

from dataclasses import replace
from typing import Final

from penstock.core.groups import offsets
from penstock.core.groups.catalog import Part
from penstock.core.groups.config import check_group_id
from penstock.core.groups.contract import (
    Deleted,
    DeleteRequested,
    ResetDone,
    ResetLine,
    ResetRequested,
)
from penstock.core.groups.membership import check_groups
from penstock.core.groups.records import AppliedReset
from penstock.core.groups.state import Book, Group
from penstock.core.types import TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError

RESET_ID_MAX: Final = 249
SWEPT_RECORDS_MAX: Final = 5_000


def reset(book: Book, event: ResetRequested) -> ResetDone:
    """Sets offsets of a group without members, all or none; raises PenstockError."""
    check_group_id(event.group_id)
    offsets.check_size(event.offsets)
    _check_audit(book, event)
    group = book.groups.get(event.group_id) or Group(event.group_id)
    if group.members:
        raise offsets.not_empty(group, "its offsets can be reset")
    last = group.record.reset
    done = bool(event.reset_id) and last is not None and last.reset_id == event.reset_id
    if not done and group.group_id not in book.groups:
        check_groups(book)
    lines, parts = [], []
    for new in event.offsets:
        try:
            part = offsets.resolve(book, new.where)
            where = f"{new.where.topic}/{new.where.partition}"
            offsets.check_offset(book, new, where, least=-1)
            offsets.check_stable(group, part, where)
        except PenstockError as error:
            lines.append(ResetLine(-1, new.offset, error))
            continue
        known = group.offsets.get(part)
        old = -1 if known is None else known.offset
        # Carried out before: returns what is committed.
        lines.append(ResetLine(old, old if done else new.offset))
        parts.append(part)
    if done or event.dry_run or len(parts) < len(lines) or not parts:
        return ResetDone(tuple(lines), already_applied=done)
    _apply_reset(book, group, parts, event)
    return ResetDone(tuple(lines), applied=True)


def _apply_reset(book: Book, group: Group, parts: list[Part], event: ResetRequested) -> None:
    audit = AppliedReset(event.reset_id, event.reason, book.time_ms)
    record = group.record
    if group.group_id not in book.groups:
        record = replace(record, empty_since_ms=book.time_ms)
    book.put_group(group, replace(record, reset=audit))
    for part, new in zip(parts, event.offsets, strict=True):
        if new.offset < 0:
            book.put_offset(group, part, None)
        else:
            offsets.put(book, group, part, new, audit)
    book.decide(
        "offsets reset",
        group=group.group_id,
        partitions=len(parts),
        reset_id=event.reset_id,
        reason=event.reason,
    )


def _check_audit(book: Book, event: ResetRequested) -> None:
    for name, text, limit in (
        ("reset id", event.reset_id, RESET_ID_MAX),
        ("reason", event.reason, book.config.reason_bytes_max),
    ):
        if len(text.encode()) > limit:
            raise ClusterError(
                f"the {name} of the reset has {len(text.encode())} bytes, the limit is {limit}",
                ErrorCode.INVALID_REQUEST,
            )


def delete(book: Book, event: DeleteRequested) -> Deleted:
    """Deletes a group; raises ClusterError(UNKNOWN_GROUP, GROUP_NOT_EMPTY)."""
    check_group_id(event.group_id)
    group = book.group(event.group_id)
    if group.members:
        raise offsets.not_empty(group, "it can be deleted")
    for producer_id, pending in group.pending.items():
        raise ClusterError(
            f"group {group.group_id!r} has offsets in the open transaction "
            f"{pending.transactional_id!r} (producer {producer_id}); delete it when that has ended",
            ErrorCode.UNSTABLE_OFFSETS,
        )
    book.remove_group(group)
    book.decide("group deleted", group=group.group_id)
    return Deleted()


def sweep(book: Book, group: Group, gone: frozenset[TopicId]) -> None:
    """Removes expired offsets, offsets of topics that are `gone`, and a group without any.

    Nothing expires while a transaction may still change it.
    """
    if group.pending:
        return
    for part in [part for part in group.offsets if part[0] in gone]:
        book.put_offset(group, part, None)
    if group.members or not book.is_time_trusted:
        return
    empty_since_ms = group.record.empty_since_ms
    oldest_ms = book.time_ms - book.config.offsets_retention_ms
    if empty_since_ms < oldest_ms:
        old = [part for part, record in group.offsets.items() if record.time_ms < oldest_ms]
        for part in old:
            book.put_offset(group, part, None)
        if old:
            book.decide("offsets expired", group=group.group_id, partitions=len(old))
    if not group.offsets and empty_since_ms < book.time_ms - book.config.deleted_topic_grace_ms:
        book.remove_group(group)
        book.decide("group removed: no members, no offsets", group=group.group_id)
