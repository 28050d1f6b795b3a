"""The coordinator of one partition of `__transactions`: events in, `Ready` out.

    load, load, … ─▶ start ─▶ handle(event, now_ms) ─▶ Ready: records, then outputs that need them

`producers` decides about producers and their epochs, `branches` about batches of many tasks,
`ending` about outcomes and the Ends to participants. This module dispatches events and keeps time:
timeouts, parked joins, Ends that are due again, expiry. Deadlines in the heap may be early, never
late. I11, I16.

A partition is given up without a marker only with proof that it no longer exists: its topic was
deleted, or is missing from full images for ten minutes (I22); joins are never refused for that.
"""

import heapq
from itertools import count
from typing import Final

from penstock.core.defect import stopped_by
from penstock.core.transactions import branches, ending, lost, producers, views
from penstock.core.transactions.config import TransactionConfig
from penstock.core.transactions.contract import (
    NOTHING,
    AbortBatchRequested,
    AbortRequested,
    Answer,
    BeginBranchRequested,
    CommitBatchRequested,
    EndRequested,
    Event,
    FinishedHeard,
    ForgetLedgerRequested,
    ImageChanged,
    InitRequested,
    JoinRequested,
    Output,
    Ready,
    Reply,
    Request,
    SendEnds,
    Tick,
    TopicsGone,
)
from penstock.core.transactions.contract_views import (
    DescribeRequested,
    FindRequested,
    LedgersRequested,
    ListRequested,
)
from penstock.core.transactions.loading import Loader
from penstock.core.transactions.records import LedgerRecord
from penstock.core.transactions.state import Book, Branch, Holder, Watcher, topics_of
from penstock.core.transactions.views import Census
from penstock.core.types import TopicId
from penstock.errors import ErrorCode, PenstockError

_SWEPT_AT_ONCE: Final = 200
_SWEEP_PAUSE_MS: Final = 100


class TransactionCoordinator:
    """Feed it events, carry out each Ready (contract.py). Not thread-safe; never blocks."""

    def __init__(self, config: TransactionConfig, time_at_zero_ms: int) -> None:
        """`time_at_zero_ms`: the time since 1970 at which `now_ms` was 0."""
        self._book = Book(config)
        self._time_at_zero_ms = time_at_zero_ms
        self._loader: Loader | None = Loader()
        self._wakes: list[tuple[int, int, Branch | Watcher]] = []
        self._wake_numbers = count()
        self._to_sweep: list[str] = []
        self._sweep_at_ms = 0
        self._topics: frozenset[TopicId] | None = None
        self._deleted: frozenset[TopicId] = frozenset()
        self._missing_since: dict[TopicId, int] = {}
        self._error: PenstockError | None = None

    # ------------------------------------------------------------ begin

    def load(self, key: bytes | None, value: bytes | None) -> None:
        """The next record of the log. Raises ClusterError(DATA_CORRUPTED)."""
        assert self._loader is not None, "load comes before start"
        self._loader.add(key, value)

    def start(self, now_ms: int) -> Ready:
        """Everything is loaded: timers continue, and every End that may be missing is sent.

        Raises ClusterError(DATA_CORRUPTED): then this partition's ids are not served.
        """
        assert self._loader is not None, "started once"
        book = self._book
        self._set_time(now_ms)
        self._loader.fill(book)
        self._loader = None
        self._sweep_at_ms = now_ms + book.config.sweep_interval_ms
        for branch in {**book.open, **book.unsettled}.values():
            ending.restore(book, branch)
        return self._ready()

    # ------------------------------------------------------------ views

    @property
    def error(self) -> PenstockError | None:
        """Why this coordinator was stopped; None if it was not."""
        return self._error

    @property
    def next_wake_ms(self) -> int:
        """When a `Tick` is due. Read ten times a second, for sixteen coordinators."""
        return min(self._sweep_at_ms, self._wakes[0][0]) if self._wakes else self._sweep_at_ms

    @property
    def census(self) -> Census:
        """As of the last event."""
        return views.take_census(self._book)

    @property
    def holders(self) -> dict[str, Holder]:
        """For tests. Do not change it."""
        return self._book.holders

    @property
    def ledgers(self) -> dict[str, LedgerRecord]:
        """For tests and metrics. Do not change it."""
        return self._book.ledgers

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
            self._error = stopped_by(defect, "this coordinator", event, ErrorCode.INTERNAL)
            return Ready(outputs=_refusals(event, self._error), stopped=self._error)

    def _dispatch(self, event: Event, now_ms: int) -> None:
        assert self._loader is None, "start comes first"
        self._set_time(now_ms)
        book = self._book
        match event:
            case FinishedHeard():
                producers.carry_on(book, ending.finished(book, event))
            case ImageChanged():
                self._image_changed(event.topic_ids)
            case TopicsGone():
                self._deleted = event.topic_ids
                self._give_up(event.topic_ids)
            case Tick():
                self._tick()
            case _:
                self._answer(event)

    def _answer(self, event: Request) -> None:
        try:
            answer = self._answered(event)
        except PenstockError as error:
            if _is_final(event, error):
                self._book.confirm()
            self._book.say(Reply(event.request_id, error))
        else:
            if answer is not None:
                self._book.say(Reply(event.request_id, answer))

    def _answered(self, event: Request) -> Answer | None:
        """None: the answer comes later."""
        book = self._book
        match event:
            case InitRequested():
                return producers.init(book, event)
            case JoinRequested():
                return producers.join(book, event)
            case EndRequested():
                return producers.end(book, event)
            case AbortRequested():
                return producers.abort(book, event)
            case FindRequested():
                book.confirm()
                return lost.find(book, event)
            case DescribeRequested():
                return views.describe(book, event)
            case ListRequested():
                return views.list_transactions(book, event)
            case _:
                return self._answered_batch(event)

    def _answered_batch(
        self,
        event: BeginBranchRequested
        | CommitBatchRequested
        | AbortBatchRequested
        | LedgersRequested
        | ForgetLedgerRequested,
    ) -> Answer | None:
        book = self._book
        match event:
            case BeginBranchRequested():
                return branches.begin(book, event)
            case CommitBatchRequested():
                return branches.commit_batch(book, event)
            case AbortBatchRequested():
                return branches.abort_batch(book, event)
            case LedgersRequested():
                return views.ledgers(book)
            case ForgetLedgerRequested():
                return branches.forget_ledger(book, event)

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
        book = self._book
        while self._wakes and self._wakes[0][0] <= book.now_ms:
            when_ms, _, found = heapq.heappop(self._wakes)
            if isinstance(found, Watcher):
                ending.answer_watcher(book, found)
            elif found.wake_at_ms == when_ms:  # otherwise an earlier entry replaced it
                found.wake_at_ms = None
                ending.tick(book, found)
                self._wake(found)
        if book.now_ms >= self._sweep_at_ms:
            self._sweep()

    def _wake(self, branch: Branch) -> None:
        """Ensures a tick when something is due for the branch, or before."""
        due_ms = branch.due_ms
        if due_ms is not None and (branch.wake_at_ms is None or due_ms < branch.wake_at_ms):
            branch.wake_at_ms = due_ms
            heapq.heappush(self._wakes, (due_ms, next(self._wake_numbers), branch))

    # ------------------------------------------------------------ upkeep

    def _sweep(self) -> None:
        """Sweeps some ids at a time, so that many never block the rest for long."""
        book = self._book
        if not self._to_sweep:
            self._to_sweep = [*book.holders, *(book.ledgers.keys() - book.holders.keys())]
            self._find_missing()
        for _ in range(min(_SWEPT_AT_ONCE, len(self._to_sweep))):
            self._expire(self._to_sweep.pop())
        pause_ms = _SWEEP_PAUSE_MS if self._to_sweep else book.config.sweep_interval_ms
        self._sweep_at_ms = book.now_ms + pause_ms

    def _expire(self, transactional_id: str) -> None:
        book = self._book
        holder, ledger = book.holders.get(transactional_id), book.ledgers.get(transactional_id)
        is_busy = holder is not None and any(
            branch.record.is_open or not branch.is_settled for branch in holder.branches.values()
        )
        if is_busy or not book.is_time_trusted:
            return
        oldest_ms = book.time_ms - book.config.id_expiration_ms
        if holder is not None and holder.used_ms < oldest_ms:
            book.remove_holder(holder)
            book.decide("transactional id expired", id=transactional_id, used_ms=holder.used_ms)
        oldest_ms = book.time_ms - book.config.ledger_expiration_ms
        if ledger is not None and ledger.used_ms < oldest_ms:
            book.put_ledger(transactional_id, None)
            book.decide("ledger expired", id=transactional_id, batch=ledger.batch)

    def _image_changed(self, topic_ids: frozenset[TopicId]) -> None:
        """Participants may have new leaders. Missing topics are handled in the sweep, as images may
        come often; topics that are back count at once."""
        self._topics = topic_ids
        since = self._missing_since
        self._missing_since = {t: ms for t, ms in since.items() if t not in topic_ids}
        for branch in list(self._book.unsettled.values()):
            ending.send_at_once(self._book, branch)

    def _find_missing(self) -> None:
        """Topics of participants that were in no image during the whole grace period."""
        book = self._book
        if self._topics is None:
            return
        busy = {**book.open, **book.unsettled}.values()
        used = {topic_id for branch in busy for topic_id in topics_of(branch.record)}
        book.gone &= used | self._deleted
        since = self._missing_since
        missing = used - self._topics
        self._missing_since = {topic_id: since.get(topic_id, book.now_ms) for topic_id in missing}
        oldest_ms = book.now_ms - book.config.gone_grace_ms
        found = {topic for topic, since_ms in self._missing_since.items() if since_ms <= oldest_ms}
        if found - book.gone:
            self._give_up(frozenset(found))

    def _give_up(self, topic_ids: frozenset[TopicId]) -> None:
        """Partitions of these topics get no more Ends, in later transactions too: a leader that
        does not know of the deletion may let one join."""
        book = self._book
        book.gone |= topic_ids
        for branch in list(book.unsettled.values()):
            producers.carry_on(book, ending.forget_gone(book, branch))

    # ------------------------------------------------------------ out

    def _ready(self) -> Ready:
        book = self._book
        for branch in book.touched.values():
            self._wake(branch)
        for watcher in book.new_watchers:
            heapq.heappush(self._wakes, (watcher.until_ms, next(self._wake_numbers), watcher))
        book.touched, book.new_watchers = {}, []
        if not (book.records or book.outputs or book.ends or book.decisions):
            return NOTHING
        outputs: list[Output] = book.outputs
        if book.ends:
            outputs.append(SendEnds(tuple(book.ends)))
        ready = Ready(
            records=tuple(book.records.items()),
            outputs=tuple(outputs),
            decisions=tuple(book.decisions),
            ended=tuple(book.ended),
            visible_ms=tuple(book.visible_ms),
        )
        book.records, book.outputs, book.decisions = {}, [], []
        book.ends, book.ended, book.visible_ms = [], [], []
        return ready


def _is_final(event: Request, error: PenstockError) -> bool:
    """Whether the client gives up after it, perhaps because of old state; reads end no client."""
    if error.retriable or isinstance(event, DescribeRequested | ListRequested):
        return False
    is_misuse = error.code is ErrorCode.INVALID_REQUEST
    return not is_misuse or isinstance(event, CommitBatchRequested)  # may name newer branches


def _refusals(event: Event, error: PenstockError) -> tuple[Output, ...]:
    """The answers for the sender of this event; the shell answers all others."""
    match event:
        case FinishedHeard() | ImageChanged() | TopicsGone() | Tick():
            return ()
        case _:
            return (Reply(event.request_id, error),)
