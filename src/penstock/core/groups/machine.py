"""The coordinator of one partition of `__consumer_offsets`: events in, `Ready` out.

    load, load, … ─▶ start ─▶ handle(event, now_ms) ─▶ Ready: records, then outputs that need them

`membership` and `reconcile` decide about members and their partitions, `offsets`, `pending` and
`resets` about committed offsets. This module dispatches events and keeps time: members whose
session ends, targets that are due, the sweep. Waiting costs nothing: a heartbeat changes a number,
and `next_wake_ms` is checked when it is due (deadlines in the heap may be early, never late). I16,
I18.
"""

import heapq
from typing import Final

from penstock.core.defect import stopped_by
from penstock.core.groups import membership, offsets, pending, reconcile, resets, views
from penstock.core.groups.catalog import Catalog
from penstock.core.groups.config import GroupConfig
from penstock.core.groups.contract import (
    NOTHING,
    Answer,
    CommitRequested,
    DeleteRequested,
    EndStream,
    Event,
    MemberHeard,
    MemberJoined,
    MemberLeft,
    Output,
    Ready,
    Reply,
    Request,
    ResetRequested,
    StreamBroken,
    Tick,
    TopicsChanged,
    TransactionEnded,
    TransactionJoined,
)
from penstock.core.groups.contract_views import DescribeRequested, FetchRequested, ListRequested
from penstock.core.groups.loading import Loader
from penstock.core.groups.records import PendingKey, PendingRecord
from penstock.core.groups.state import Book, Group, Member
from penstock.core.groups.views import Census
from penstock.core.types import TopicId
from penstock.errors import ErrorCode, PenstockError

_SWEPT_AT_ONCE: Final = 100
_SWEEP_PAUSE_MS: Final = 100


class GroupCoordinator:
    """Feed it events, carry out each Ready (contract.py). Not thread-safe; never blocks."""

    def __init__(self, config: GroupConfig, time_at_zero_ms: int) -> None:
        """`time_at_zero_ms`: the time since 1970 at which `now_ms` was 0."""
        self._book = Book(config)
        self._time_at_zero_ms = time_at_zero_ms
        self._loader: Loader | None = Loader()
        self._wakes: list[tuple[int, str, str]] = []
        self._wake_of: dict[tuple[str, str], int] = {}
        self._assigning: dict[str, Group] = {}
        self._to_sweep: list[str] = []
        self._sweep_at_ms = 0
        self._gone_since: dict[TopicId, int] = {}
        self._gone: frozenset[TopicId] = frozenset()
        self._census: Census | None = None
        self._error: PenstockError | None = None

    # ------------------------------------------------------------ begin

    def load(self, key: bytes | None, value: bytes | None) -> None:
        """The next record of the log. Raises ClusterError(DATA_CORRUPTED)."""
        assert self._loader is not None, "load comes before start"
        self._loader.add(key, value)

    def start(self, catalog: Catalog, now_ms: int) -> Ready:
        """Everything is loaded: members have a full session timeout to come back.

        Raises ClusterError(DATA_CORRUPTED): then this partition's groups are not served.
        """
        assert self._loader is not None, "started once"
        book = self._book
        book.groups = self._loader.groups()
        book.ended = self._loader.ended()
        self._loader = None
        self._set_time(now_ms)
        self._sweep_at_ms = now_ms + book.config.sweep_interval_ms
        for group in book.groups.values():
            if group.record.epoch > group.record.assignment_epoch:
                group.assign_at_ms = now_ms
            for member in group.members.values():
                member.deadline_ms = now_ms + member.record.session_timeout_ms
                if member.current.pending:
                    member.revoke_by_ms = now_ms + member.record.rebalance_timeout_ms
                self._wake(group, member)
        self._topics_changed(catalog)
        self._assign_due()
        return self._ready()

    # ------------------------------------------------------------ views

    @property
    def error(self) -> PenstockError | None:
        """Why this coordinator was stopped; None if it was not."""
        return self._error

    @property
    def next_wake_ms(self) -> int:
        """When a `Tick` is due. Read ten times a second, for fifty coordinators."""
        due_ms = self._sweep_at_ms
        if self._wakes:
            due_ms = min(due_ms, self._wakes[0][0])
        for guard in self._book.guards.values():
            due_ms = min(due_ms, guard.deadline_ms)
            break  # they come in the order of their deadlines
        for group in self._assigning.values():
            if group.assign_at_ms is not None:
                due_ms = min(due_ms, group.assign_at_ms)
        return due_ms

    @property
    def census(self) -> Census:
        """Counted again only if something durable has changed since the last call."""
        if self._census is None:
            self._census = views.take_census(self._book)
        return self._census

    @property
    def open_transactions(self) -> tuple[tuple[PendingKey, PendingRecord], ...]:
        """Transactions that have offsets of groups here until they end."""
        return tuple(views.open_transactions(self._book))

    @property
    def groups(self) -> dict[str, Group]:
        """For tests and metrics. Do not change it."""
        return self._book.groups

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now_ms: int) -> Ready:
        """The only entry point. `now_ms` is any monotonic clock in ms; it must not go back.

        Raises nothing: any exception stops the machine, see `core.defect`.
        """
        if self._error is not None:
            return Ready(outputs=_refusals(event, self._error))
        try:
            self._dispatch(event, now_ms)
            return self._ready()
        except Exception as defect:  # noqa: BLE001 - half of the event may be done
            self._error = stopped_by(
                defect, "this coordinator", type(event).__name__, ErrorCode.INTERNAL
            )
            return Ready(outputs=_refusals(event, self._error), stopped=self._error)

    def _dispatch(self, event: Event, now_ms: int) -> None:
        assert self._loader is None, "start comes first"
        self._set_time(now_ms)
        match event:
            case MemberHeard() | MemberLeft() | StreamBroken():
                self._sign(event)
            case MemberJoined():
                self._joined(event)
            case TopicsChanged():
                self._topics_changed(event.catalog)
                self._assign_due()
            case Tick():
                self._tick()
            case TransactionJoined():
                pending.joined(self._book, event)
            case _:
                self._answer(event)

    def _joined(self, event: MemberJoined) -> None:
        book = self._book
        try:
            member_id = membership.join(book, event)
        except PenstockError as error:
            book.say(EndStream(event.stream_id, error))
            book.decide(
                "member refused",
                group=event.group_id,
                member=event.member_id,
                code=error.code.name,
                reason=error.message,
            )
            return
        group = book.groups[event.group_id]
        self._touched(group)
        self._wake(group, group.members[member_id])

    def _sign(self, event: MemberHeard | MemberLeft | StreamBroken) -> None:
        found = self._book.member(event.stream_id)
        if found is None:
            return
        group, member = found
        book = self._book
        match event:
            case MemberHeard():
                try:
                    membership.heard(book, group, member, event)
                except PenstockError as error:
                    reconcile.remove(book, group, member, "fenced", error)
                if not book.records:
                    return  # a heartbeat without news
            case MemberLeft():
                membership.leave(book, group, member, keep_seat=event.keep_seat)
            case StreamBroken():
                membership.stream_broken(book, member, event.stream_id)
        self._touched(group)

    def _answer(self, event: Request) -> None:
        try:
            answer = self._answered(event)
        except PenstockError as error:
            self._book.say(Reply(event.request_id, error))
        else:
            if answer is not None:
                self._book.say(Reply(event.request_id, answer))

    def _answered(self, event: Request) -> Answer | None:
        """None: the answer comes with a later event."""
        book = self._book
        match event:
            case CommitRequested() if event.transactional_id:
                return pending.commit(book, event)
            case CommitRequested():
                return offsets.commit(book, event)
            case TransactionEnded():
                return pending.end(book, event)
            case FetchRequested():
                return offsets.fetch(book, event)
            case ResetRequested():
                return resets.reset(book, event)
            case DeleteRequested():
                return resets.delete(book, event)
            case ListRequested():
                return views.list_groups(book, event)
            case DescribeRequested():
                return views.describe(book, event)

    def _topics_changed(self, catalog: Catalog) -> None:
        self._book.catalog = catalog
        for group in self._book.groups.values():
            if group.members and group.record.epoch == group.record.assignment_epoch:
                if reconcile.is_out_of_date(self._book, group):
                    reconcile.change(self._book, group, "topics changed")
                    self._touched(group)
            elif group.members:
                self._touched(group)

    # ------------------------------------------------------------ time

    def set_wall(self, time_at_zero_ms: int, *, is_trusted: bool) -> None:
        """The wall clock as of the next event: it may have been set since the last one.

        `is_trusted` False: nothing is removed because of its age.
        """
        self._time_at_zero_ms = time_at_zero_ms
        self._book.is_time_trusted = is_trusted

    def _set_time(self, now_ms: int) -> None:
        self._book.now_ms = now_ms
        self._book.time_ms = now_ms + self._time_at_zero_ms

    def _tick(self) -> None:
        now_ms = self._book.now_ms
        while self._wakes and self._wakes[0][0] <= now_ms:
            when_ms, group_id, member_id = heapq.heappop(self._wakes)
            if self._wake_of.get((group_id, member_id)) != when_ms:
                continue  # a later entry took its place
            del self._wake_of[group_id, member_id]
            group = self._book.groups.get(group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None:
                continue
            if membership.due_ms(member) <= now_ms:
                membership.expire(self._book, group, member)
                self._touched(group)
            else:
                self._wake(group, member)
        self._assign_due()
        pending.expire(self._book)
        if now_ms >= self._sweep_at_ms:
            self._sweep()

    def _wake(self, group: Group, member: Member) -> None:
        """Ensures a tick when the member's time is over, or before."""
        key = (group.group_id, member.member_id)
        due_ms = membership.due_ms(member)
        known_ms = self._wake_of.get(key)
        if known_ms is None or due_ms < known_ms:
            self._wake_of[key] = due_ms
            heapq.heappush(self._wakes, (due_ms, *key))

    def _touched(self, group: Group) -> None:
        """More than a bare heartbeat happened to the group: its times may have changed."""
        if group.assign_at_ms is not None:
            self._assigning[group.group_id] = group
        for member in group.members.values():
            self._wake(group, member)

    def _assign_due(self) -> None:
        for group_id, group in list(self._assigning.items()):
            if self._book.groups.get(group_id) is group:
                reconcile.settle(self._book, group, ())
                self._touched(group)
            if group.assign_at_ms is None:
                del self._assigning[group_id]

    def _sweep(self) -> None:
        """Sweeps some groups at a time, so that many groups never block the rest for long."""
        book = self._book
        if not self._to_sweep:
            self._to_sweep = list(book.groups)
            self._gone = self._find_gone()
        for _ in range(min(_SWEPT_AT_ONCE, len(self._to_sweep))):
            group = book.groups.get(self._to_sweep.pop())
            if group is not None:
                resets.sweep(book, group, self._gone)
            if len(book.records) > resets.SWEPT_RECORDS_MAX:
                break
        pending.sweep(book)
        pause_ms = _SWEEP_PAUSE_MS if self._to_sweep else book.config.sweep_interval_ms
        self._sweep_at_ms = book.now_ms + pause_ms

    def _find_gone(self) -> frozenset[TopicId]:
        """Topics with offsets that have not existed during the whole grace period."""
        book = self._book
        used = {part[0] for group in book.groups.values() for part in group.offsets}
        missing = used - book.catalog.topics.keys()
        since = self._gone_since
        self._gone_since = {topic_id: since.get(topic_id, book.now_ms) for topic_id in missing}
        oldest_ms = book.now_ms - book.config.deleted_topic_grace_ms
        return frozenset(t for t, since_ms in self._gone_since.items() if since_ms <= oldest_ms)

    # ------------------------------------------------------------ out

    def _ready(self) -> Ready:
        book = self._book
        if not (book.records or book.outputs or book.decisions):
            return NOTHING
        if book.records:
            self._census = None
        ready = Ready(
            records=tuple(book.records.items()),
            outputs=tuple(book.outputs),
            decisions=tuple(book.decisions),
            commits=book.commits,
            rebalances=book.rebalances,
        )
        book.records, book.outputs, book.decisions = {}, [], []
        book.commits = book.rebalances = 0
        return ready


def _refusals(event: Event, error: PenstockError) -> tuple[Output, ...]:
    """The answers for the sender of this event; the shell ends all other streams."""
    match event:
        case MemberJoined():
            return (EndStream(event.stream_id, error),)
        case MemberHeard() | MemberLeft() | StreamBroken() | TopicsChanged() | Tick():
            return ()
        case TransactionJoined():
            return ()
        case _:
            return (Reply(event.request_id, error),)
