"""Members join, send heartbeats, leave and disappear.

    hello, epoch 0     ─▶ new member (or a known one that starts over: it owns nothing)
    hello, its epoch   ─▶ the same member after a broken stream: keeps everything
    hello, instance id ─▶ replaces a member that is disconnected, with its partitions
    leave, or no heartbeat in time ─▶ removed; static members only after a session timeout

A refusal happens before anything changes, and its stream ends with the error.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.core.groups import reconcile
from penstock.core.groups.catalog import NO_PARTS, Parts
from penstock.core.groups.contract import MemberHeard, MemberJoined, Owned, SendJoined
from penstock.core.groups.hello import check_hello, check_subscription, invalid
from penstock.core.groups.records import GroupRecord, MemberRecord
from penstock.core.groups.state import Book, Group, Member
from penstock.errors import ClusterError, ErrorCode, OverloadedError

_FULL_MS: Final = 5_000


def join(book: Book, event: MemberJoined) -> str:
    """Takes a hello; returns the member's id. Raises PenstockError, with nothing changed."""
    record = check_hello(book.config, event)
    group = book.groups.get(event.group_id)
    if group is None:
        group = _new_group(book, event)
    seat = _seat(group, event)
    member = group.members.get(event.member_id)
    _check_epoch(group, member, event)
    if member is not None:
        released = _again(book, group, member, event)
        changed = _differs(member.record, record)
    elif seat is not None:
        released = _replace(book, group, seat, event.member_id)
        member = group.members[event.member_id]
        changed = _differs(member.record, record)
    else:
        _check_room(book, group)
        released, changed = NO_PARTS, True
        member = Member(event.member_id, record)
    if member.record != record or event.member_id not in group.members:
        book.put_member(group, member, record)
    _take_seat(book, group, member, event.stream_id)
    if changed:
        if group.record.empty_since_ms or group.group_id not in book.groups:
            book.put_group(group, replace(group.record, empty_since_ms=0))
        reconcile.change(book, group, f"joined: member {member.member_id}")
    told = reconcile.advance(book, group, (member.member_id,), released)
    book.say(_joined(book, member))
    for member_id in sorted(told | {member.member_id}):
        reconcile.send_assignment(book, group.members[member_id])
    return member.member_id


def _take_seat(book: Book, group: Group, member: Member, stream_id: int) -> None:
    """From now on, the stream belongs to the member."""
    reconcile.end_stream(
        book,
        member,
        ClusterError(
            f"a newer stream of member {member.member_id} replaced this one",
            ErrorCode.STALE_MEMBER_EPOCH,
        ),
    )
    book.streams[stream_id] = (group.group_id, member.member_id)
    member.stream_id = stream_id
    member.seen = True
    member.number = member.revoked_by = 0
    member.deadline_ms = book.now_ms + member.record.session_timeout_ms
    if member.current.left:
        current = replace(member.current, left=False)
        book.put_current(group, member, current, current.parts, current.pending)


def _joined(book: Book, member: Member) -> SendJoined:
    """The answer to a hello."""
    assert member.stream_id is not None
    record = member.record
    return SendJoined(
        stream_id=member.stream_id,
        member_epoch=member.current.epoch,
        heartbeat_interval_ms=min(
            book.config.heartbeat_interval_ms, record.session_timeout_ms // 3
        ),
        session_timeout_ms=record.session_timeout_ms,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
    )


# ---------------------------------------------------------------- hello, taken or refused


def _new_group(book: Book, event: MemberJoined) -> Group:
    """A group that is not stored yet."""
    if event.member_epoch:
        raise _unknown(event.group_id, event.member_id)
    check_groups(book)
    return Group(event.group_id, GroupRecord())


def check_groups(book: Book) -> None:
    """Raises OverloadedError when one more group would be too many."""
    if len(book.groups) >= book.config.groups_max:
        raise OverloadedError(
            f"this coordinator has {len(book.groups)} groups, the limit is "
            f"{book.config.groups_max}; delete unused groups",
            _FULL_MS,
        )


def _check_room(book: Book, group: Group) -> None:
    if len(group.members) >= book.config.members_max:
        raise OverloadedError(
            f"group {group.group_id!r} has {len(group.members)} members, the limit is "
            f"{book.config.members_max}; stop some or use another group",
            _FULL_MS,
        )


def _seat(group: Group, event: MemberJoined) -> Member | None:
    """The other member that has this member's instance id, if any."""
    holder = group.instances.get(event.instance_id) if event.instance_id else None
    if holder in {None, event.member_id}:
        return None
    assert holder is not None
    if event.member_epoch:
        raise fenced_instance(group, event.member_id, event.instance_id)
    seat = group.members[holder]
    if not seat.away:
        raise ClusterError(
            f"instance id {event.instance_id!r} of group {group.group_id!r} is in use by member "
            f"{holder}; stop that member, choose another id, or wait until its session has ended",
            ErrorCode.UNRELEASED_INSTANCE_ID,
        )
    return seat


def _check_epoch(group: Group, member: Member | None, event: MemberJoined) -> None:
    """Checks the identity of a member that comes back."""
    if member is not None and member.record.instance_id != event.instance_id:
        raise invalid(
            f"member {event.member_id} of group {group.group_id!r} has instance id "
            f"{member.record.instance_id!r}, not {event.instance_id!r}; use a new member id"
        )
    if not event.member_epoch:
        return
    if member is None:
        raise _unknown(event.group_id, event.member_id)
    current = member.current
    # An older epoch: the answer that carried the newer one was lost with the stream.
    known = event.owned <= current.parts | current.pending
    if event.member_epoch > current.epoch or not known:
        raise ClusterError(
            f"member {event.member_id} of group {group.group_id!r} rejoins with epoch "
            f"{event.member_epoch} and {len(event.owned)} partitions, but it has epoch "
            f"{current.epoch} and does not own all of these: give them up and join with epoch 0",
            ErrorCode.STALE_MEMBER_EPOCH,
        )


def _again(book: Book, group: Group, member: Member, event: MemberJoined) -> Parts:
    """A known member on a new stream; returns what it no longer owns."""
    if event.member_epoch:
        return reconcile.acknowledge(book, group, member, event.owned)
    member.revoke_by_ms = None
    current = replace(member.current, epoch=0)
    return book.put_current(group, member, current, NO_PARTS, NO_PARTS)


def _replace(book: Book, group: Group, seat: Member, member_id: str) -> Parts:
    """Another process takes over a free instance id, and what the former member owned.

    Returns what the former member had yet to give up: it no longer runs.
    """
    released = seat.current.pending
    parts, target, current = seat.current.parts, seat.target, seat.current
    book.remove_member(group, seat)
    reconcile.abort_transaction(book, group, seat)
    member = Member(member_id, seat.record)
    book.put_member(group, member, seat.record)
    book.put_target(group, member, target)
    group.targets.update(dict.fromkeys(target, member_id))
    book.put_current(group, member, replace(current, left=False), parts, NO_PARTS)
    return released


def _differs(before: MemberRecord, after: MemberRecord) -> bool:
    """Something that the assignment depends on has changed."""
    return any(
        getattr(before, name) != getattr(after, name)
        for name in ("topics", "pattern", "assignor", "rack")
    )


# ---------------------------------------------------------------- later


def heard(book: Book, group: Group, member: Member, event: MemberHeard) -> None:
    """A heartbeat. Raises PenstockError, with nothing changed but the deadline."""
    member.deadline_ms = book.now_ms + member.record.session_timeout_ms
    if event.owned is None and event.subscription is None:
        return
    record = member.record
    if event.subscription is not None:
        topics = check_subscription(book.config, event.subscription)
        record = replace(record, topics=topics, pattern=event.subscription.pattern)
    released = NO_PARTS
    if event.owned is not None:
        _check_owned(group, member, event.owned)
        # An older number: it was sent before the member knew what to give up.
        if event.owned.number >= member.revoked_by:
            released = reconcile.acknowledge(book, group, member, event.owned.parts)
    changed = record != member.record
    if changed:
        book.put_member(group, member, record)
        reconcile.change(book, group, f"subscription changed: member {member.member_id}")
    if changed or released:
        reconcile.settle(book, group, (member.member_id,), released)


def _check_owned(group: Group, member: Member, owned: Owned) -> None:
    """A member that knows its assignment and owns other partitions is fenced."""
    current = member.current
    foreign = owned.parts - current.parts - current.pending
    if foreign and owned.number >= member.number:
        raise ClusterError(
            f"member {member.member_id} of group {group.group_id!r} claims {len(foreign)} "
            f"partitions that were not assigned to it, such as {min(foreign)}: give up all "
            "partitions and join with epoch 0",
            ErrorCode.STALE_MEMBER_EPOCH,
        )


def leave(book: Book, group: Group, member: Member, *, keep_seat: bool) -> None:
    """A member leaves by itself."""
    if not (keep_seat and member.record.instance_id):
        reconcile.remove(book, group, member, "left", None)
        return
    reconcile.end_stream(book, member, None)
    released = member.current.pending
    member.revoke_by_ms = None
    member.deadline_ms = book.now_ms + member.record.session_timeout_ms
    current = replace(member.current, left=True)
    book.put_current(group, member, current, current.parts, NO_PARTS)
    reconcile.settle(book, group, (member.member_id,), released)


def stream_broken(book: Book, member: Member, stream_id: int) -> None:
    """A dynamic member has little time left to come back; a static one its session timeout."""
    del book.streams[stream_id]
    member.stream_id = None
    if not member.record.instance_id:
        soon_ms = book.now_ms + book.config.broken_stream_ms
        member.deadline_ms = min(member.deadline_ms, soon_ms)


def due_ms(member: Member) -> int:
    """When the member is removed unless it sends or does something before."""
    if member.revoke_by_ms is None:
        return member.deadline_ms
    return min(member.deadline_ms, member.revoke_by_ms)


def expire(book: Book, group: Group, member: Member) -> None:
    """The member's time is over."""
    late = member.revoke_by_ms is not None and member.revoke_by_ms <= book.now_ms
    if late:
        reason = "fenced, revoked partitions not given up in time"
        what = (
            f"it did not give up {len(member.current.pending)} partitions within its rebalance "
            f"timeout of {member.record.rebalance_timeout_ms} ms"
        )
    else:
        reason = "session timed out" if member.stream_id is not None else "stream broken"
        what = f"it sent no heartbeat for {member.record.session_timeout_ms} ms"
    error = ClusterError(
        f"member {member.member_id} was removed from group {group.group_id!r}: {what}; join again",
        ErrorCode.UNKNOWN_MEMBER,
    )
    reconcile.remove(book, group, member, reason, error)


# ---------------------------------------------------------------- errors others raise too


def fenced_instance(group: Group, member_id: str, instance_id: str) -> ClusterError:
    return ClusterError(
        f"instance id {instance_id!r} of group {group.group_id!r} is member "
        f"{group.instances[instance_id]}, not {member_id}: another process has taken over the "
        "instance id",
        ErrorCode.FENCED_INSTANCE_ID,
    )


def unknown_member(groups: Mapping[str, Group], group_id: str, member_id: str) -> ClusterError:
    """The error, with what is known of the group."""
    members = len(groups[group_id].members) if group_id in groups else 0
    return ClusterError(
        f"group {group_id!r} has no member {member_id[:40]!r} among its {members}: it left or "
        "was removed; join again",
        ErrorCode.UNKNOWN_MEMBER,
    )


def _unknown(group_id: str, member_id: str) -> ClusterError:
    return unknown_member({}, group_id, member_id)
