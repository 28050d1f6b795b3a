"""From changed members to owned partitions: target assignment, then every member separately.

    change ─▶ group epoch + 1 ─▶ assign ─▶ target per member ─▶ reconcile each member:

      epoch < assignment epoch, owns what is not its target ─▶ give up: pending, epoch stays
      pending ── the member owns less, or has left ──▶ released to its target member
      nothing to give up ─▶ epoch = assignment epoch, takes what is free
      at the epoch, target not complete ─▶ takes what was released since

A partition that is in a member's old and new target never leaves it, and none is given to a member
while another owns it or has yet to give it up (I18). KIP-848, "Reconciliation of the group";
members that change together are assigned together, `assignment_interval_ms` apart.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from penstock.core.groups.assignors import assign
from penstock.core.groups.catalog import NO_PARTS, Parts
from penstock.core.groups.contract import EndStream, SendAbort, SendAssignment
from penstock.core.groups.records import GroupRecord
from penstock.core.groups.state import Book, Group, Member
from penstock.errors import PenstockError


def change(book: Book, group: Group, reason: str) -> None:
    """Members, subscriptions or topics changed: a new target is due. `reason` is for the log."""
    book.put_group(group, replace(group.record, epoch=group.record.epoch + 1))
    due_ms = book.now_ms
    if group.assigned_at_ms is not None:
        due_ms = max(due_ms, group.assigned_at_ms + book.config.assignment_interval_ms)
    if group.assign_at_ms is None:
        group.assign_at_ms = due_ms
    book.decide(
        "group changed",
        group=group.group_id,
        reason=reason,
        epoch=group.record.epoch,
        members=len(group.members),
    )


def is_out_of_date(book: Book, group: Group) -> bool:
    """The target does not cover exactly the partitions that its members subscribe to."""
    topics = book.catalog.topics
    wanted = {
        topic_id: topics[topic_id].partitions
        for member in group.members.values()
        for topic_id in book.subscribed(member.record)
    }
    return wanted != Counter(topic_id for topic_id, _ in group.targets)


def settle(book: Book, group: Group, touched: Iterable[str], released: Parts = NO_PARTS) -> None:
    """Reconciles as far as possible now, and notifies the members whose assignments changed.

    `touched`: members that changed; `released`: partitions that are free now.
    """
    for member_id in sorted(advance(book, group, touched, released)):
        send_assignment(book, group.members[member_id])


def advance(book: Book, group: Group, touched: Iterable[str], released: Parts) -> set[str]:
    """As `settle`, but only returns members with a changed assignment or epoch."""
    todo = set(touched)
    if group.assign_at_ms is not None and group.assign_at_ms <= book.now_ms:
        _assign(book, group)
        todo.update(group.members)
    changed: set[str] = set()
    free = released
    while True:
        todo.update(group.targets[part] for part in free if part in group.targets)
        if not todo:
            break
        free = NO_PARTS
        for member_id in sorted(todo):
            member = group.members.get(member_id)
            if member is not None:
                before = member.current
                free |= _reconcile(book, group, member)
                if member.current is not before:
                    changed.add(member_id)
        todo.clear()
    return changed


def _assign(book: Book, group: Group) -> None:
    """Computes the target; one record per member whose target has changed."""
    group.assign_at_ms = None
    group.assigned_at_ms = book.now_ms
    group.targets.clear()
    book.rebalances += 1
    moved = 0
    members = book.assigned_members(group)
    asked = Counter(member.record.assignor for member in group.members.values())
    assignor = max(asked, key=lambda name: (asked[name], name))
    topics = book.assigned_topics({t for m in members.values() for t in m.topics})
    for member_id, parts in assign(assignor, members, topics).items():
        member = group.members[member_id]
        if parts != member.target:
            moved += len(parts - member.target)
            book.put_target(group, member, parts)
        group.targets.update(dict.fromkeys(parts, member_id))
    epoch = group.record.epoch
    book.put_group(group, replace(group.record, assignment_epoch=epoch, assignor=assignor))
    book.decide(
        "group assigned",
        group=group.group_id,
        epoch=epoch,
        assignor=assignor,
        members=len(group.members),
        partitions=len(group.targets),
        moved=moved,
    )


def _reconcile(book: Book, group: Group, member: Member) -> Parts:
    """Makes one step for one member; returns what it released."""
    current, epoch = member.current, group.record.assignment_epoch
    if current.pending:
        return NO_PARTS
    surplus = current.parts - member.target
    if surplus and not current.left:
        member.revoke_by_ms = book.now_ms + member.record.rebalance_timeout_ms
        member.revoked_by = member.number + 1
        return book.put_current(group, member, current, current.parts - surplus, surplus)
    # A static member that left no longer runs: there is nothing to wait for.
    kept = current.parts - surplus
    gained = {part for part in member.target - kept if part not in group.owners}
    if not gained and not surplus and current.epoch == epoch:
        return NO_PARTS
    return book.put_current(group, member, replace(current, epoch=epoch), kept | gained, NO_PARTS)


def acknowledge(book: Book, group: Group, member: Member, owned: Parts) -> Parts:
    """The member owns `owned` and no more; returns what it has given up thereby."""
    current = member.current
    pending = current.pending & owned
    if pending == current.pending:
        return NO_PARTS
    if not pending:
        member.revoke_by_ms = None
    return book.put_current(group, member, current, current.parts, pending)


def send_assignment(book: Book, member: Member) -> None:
    """Sends a member everything it may own, if it has a stream."""
    if member.stream_id is None:
        return
    member.number += 1
    current = member.current
    book.say(
        SendAssignment(
            stream_id=member.stream_id,
            member_epoch=current.epoch,
            number=member.number,
            parts=current.parts,
            names={topic_id: current.names[topic_id] for topic_id, _ in current.parts},
        )
    )


def end_stream(book: Book, member: Member, error: PenstockError | None) -> None:
    """Ends the member's stream, if it has one."""
    if member.stream_id is not None:
        book.streams.pop(member.stream_id, None)
        book.say(EndStream(member.stream_id, error))
        member.stream_id = None


def abort_transaction(book: Book, group: Group, member: Member) -> None:
    """So that the next owners need not wait until the transaction of a former member times out."""
    if member.record.transactional_id:
        book.say(
            SendAbort(
                member.record.transactional_id,
                f"member {member.member_id} of group {group.group_id} is gone",
            )
        )


def remove(
    book: Book, group: Group, member: Member, reason: str, error: PenstockError | None
) -> None:
    """Removes a member and frees what it owned for the others.

    `reason` is for the log; `error` is what its stream ends with, None: no error.
    """
    end_stream(book, member, error)
    released = book.remove_member(group, member)
    abort_transaction(book, group, member)
    change(book, group, f"{reason}: member {member.member_id}")
    if not group.members:
        # Nothing to compute, and no member to notify.
        group.assign_at_ms = None
        epoch = group.record.epoch
        record = GroupRecord(
            epoch=epoch,
            assignment_epoch=epoch,
            assignor="",
            empty_since_ms=book.time_ms,
            reset=group.record.reset,
        )
        book.put_group(group, record)
    settle(book, group, (), released)
