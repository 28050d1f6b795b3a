"""The controller's state machine: events in, `Ready` out (contract.py says what the shell must do).

    STANDBY ──Loaded──▶ TAKING_OVER ──WriteDone──▶ ACTIVE ──Loaded with a higher epoch──▶ DEPOSED
                        (epoch + 1)              any phase ──a defect──▶ STOPPED (core.defect)

One write is in flight at a time. Meanwhile, requests and deaths collect; when it is done, the next
draft takes them all: the death of a broker with 1,000 partitions is one write. A draft is decided
only on adopted state, in this order: repairs after a reload, deaths, brokers that want to stop,
requests and registrations in order of arrival, preferred leaders. Its replies wait until it is
durable.

A conflict or an unknown outcome is never guessed (guarantees §4.3): everything is read again and
decided again; the effects of the attempt are recognized by topic ids, incarnations, versions.
Invariants: I1, I7 (election.py), I21.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, assert_never

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control import operator_contract as o
from penstock.core.control.config import ControlConfig
from penstock.core.control.copies import Copies
from penstock.core.control.documents import CLUSTER_KEY, TopicDocument, topic_key
from penstock.core.control.draft import Draft, Stored
from penstock.core.control.move_views import MoveView, Now, moves_of
from penstock.core.control.outbox import Outbox
from penstock.core.control.quota import MutationQuota
from penstock.core.control.refusals import not_controller, refusal
from penstock.core.control.registration import NextEpochPromisedError
from penstock.core.control.reload import adopt_loaded, begin_takeover
from penstock.core.control.session_streams import SessionStreams
from penstock.core.control.sessions import Session, Sessions
from penstock.core.control.views import Image, Summary, image_since, summarise
from penstock.core.control.work import Keeping, Outcome, Pending, Work, decide_work
from penstock.core.defect import Unanswered, stopped_by
from penstock.core.types import ControllerEpoch
from penstock.errors import ErrorCode, OverloadedError, PenstockError

_ACTIVATION_MS: Final = 1_000
_NAMED_MAX: Final = 5


class Phase(Enum):
    STANDBY = "standby"
    TAKING_OVER = "taking over"
    ACTIVE = "active"
    DEPOSED = "deposed"
    STOPPED = "stopped"


@dataclass(slots=True)
class _Flight:
    """A write in flight: its decisions, and the answers to send once it is durable."""

    write_id: int
    after: Stored
    work: Work
    outcomes: list[Outcome]
    decisions: list[c.Decision]


class ControllerMachine:
    """Feed it events, carry out each Ready. Not thread-safe; never blocks."""

    def __init__(self, config: ControlConfig) -> None:
        self.config = config
        self.phase = Phase.STANDBY
        self._stored: Stored | None = None
        self._sessions = Sessions(config)
        self._copies = Copies()
        self._keeping = Keeping(self._sessions, MutationQuota(config.mutation_rate), self._copies)
        self._streams = SessionStreams(config, self._sessions)
        self._work = Work()
        self._repair: Draft | None = None
        self._in_flight: _Flight | None = None
        self._reloading = False
        self._write_count = 0
        self._taken_over_at = 0
        self._journaling = False
        self._balance_due_ms: int | None = None
        self._activation_due_ms = 0
        self._now_ms = 0
        self._out = Outbox()
        self._unanswered = Unanswered()
        self._error: PenstockError | None = None

    # ------------------------------------------------------------ views

    @property
    def epoch(self) -> ControllerEpoch:
        """0 until a take-over is durable."""
        active = self._stored is not None and self.phase is Phase.ACTIVE
        return self.stored.cluster.controller_epoch if active else ControllerEpoch(0)

    @property
    def error(self) -> PenstockError | None:
        """Why this controller was stopped; None if it was not."""
        return self._error

    @property
    def stored(self) -> Stored:
        """The adopted state. Only after a `Loaded`."""
        assert self._stored is not None
        return self._stored

    @property
    def sessions(self) -> Sessions:
        """For metrics: the sessions. Do not change it."""
        return self._sessions

    @property
    def copies(self) -> Copies:
        """What leaders have said of running copies. Do not change it."""
        return self._copies

    @property
    def settled(self) -> bool:
        """Since the take-over every broker that was alive has registered, or its death is stored.

        Until then a broker may act on an answer of the previous controller that was stored after
        this one had read: the broker reports it when it registers, and a conflict reveals it if the
        broker is dead.
        """
        return self.phase is Phase.ACTIVE and self._streams.everybody_heard

    @property
    def pending_requests(self) -> int:
        """How many requests and registrations wait for a write to begin."""
        return len(self._work.pending)

    def image(self, since: int) -> Image:
        """The image for a session that got version `since` last; 0 = everything."""
        return image_since(self.stored, self.config, since)

    def summary(self) -> Summary:
        """The cluster in numbers; costs a scan of all partitions."""
        return summarise(self.stored, self.config)

    def moves(self, topics: Collection[str] = ()) -> tuple[MoveView, ...]:
        """Moves that have not ended, of these topics or of all; costs a scan of them."""
        draft = Draft(self.stored, self.config)
        now = Now(
            copies=self._copies,
            liveness=draft.liveness(self._sessions.leaving),
            journaling=self._journaling,
            hibernating=self.stored.cluster.hibernating,
            without_space=self._sessions.without_space_for_copies,
            now_ms=self._now_ms,
        )
        return tuple(moves_of(self.stored, self.config, now, topics))

    @property
    def journaling(self) -> bool:
        """The metadata store is unavailable, and no move begins or ends."""
        return self._journaling

    def topic(self, name: str) -> TopicDocument | None:
        """An adopted topic; None if there is none."""
        return self.stored.topics.get(name)

    # ------------------------------------------------------------ events

    def handle(self, event: c.Event, now_ms: int) -> c.Ready:
        """The only entry point. `now_ms` is any monotonic clock in ms; it must not go back.

        Raises nothing: any exception stops the machine, see `core.defect`.
        """
        if self._error is not None:
            return refusal(event, self._error)
        before = self._stored
        try:
            self._dispatch(event, now_ms)
            self._advance()
            ready = self._out.ready()
            self._out = Outbox()
        except Exception as defect:  # noqa: BLE001 - half of the event may be done
            error = stopped_by(defect, "this controller", event, ErrorCode.INTERNAL)
            return self._stop(error, event, before)
        self._unanswered.settle(ready.replies)
        return ready

    def _dispatch(self, event: c.Event, now_ms: int) -> None:
        self._now_ms = now_ms
        match event:
            case c.Loaded():
                self._on_loaded(event)
            case c.WriteDone():
                self._on_written(event)
            case c.WriteConflict() | c.WriteUnknown() | c.WriteNotSent():
                self._on_write_failed(event)
            case c.BrokerRegistered():
                self._streams.opened(event.stream_id)
                self._enqueue(event)
            case c.HeartbeatReceived():
                self._on_heartbeat(event)
            case c.StreamClosed():
                self._streams.closed(event.stream_id, now_ms)
            case c.Tick():
                self._on_tick()
            case c.StoreState() | c.StoreSeen():
                self._on_store(event)
            case (
                c.AlterIsr()
                | c.AllocateProducerIds()
                | c.CreateTopics()
                | c.DeleteTopics()
                | c.CreatePartitions()
                | c.AlterConfigs()
                | c.AlterAccess()
                | c.AlterQuotas()
                | c.ElectLeaders()
                | c.UnregisterBroker()
                | m.ReportReplicas()
                | m.AlterReplicas()
                | m.AlterBrokers()
                | m.AlterCluster()
                | m.AlterThrottle()
                | m.Finalize()
                | o.AcquireOperatorEpoch()
                | c.OperatorRequest()
            ):
                self._unanswered.take(event.request_id)
                self._enqueue(event)
            case _:
                assert_never(event)

    def _stop(self, error: PenstockError, event: c.Event, before: Stored | None) -> c.Ready:
        """Ends with what is certain: the waiting callers, and what was adopted before."""
        self._error, self.phase, self._stored = error, Phase.STOPPED, before
        own = refusal(event, error)
        for reply in own.replies:
            self._unanswered.take(reply.request_id)
        for message in own.session_messages:
            self._streams.opened(message.stream_id)
        return c.Ready(
            replies=tuple(c.Reply(one, error) for one in self._unanswered.give_up()),
            session_messages=self._streams.end_all(error),
            stopped=error,
        )

    def _on_loaded(self, event: c.Loaded) -> None:
        unasked = self.phase is Phase.ACTIVE and not self._reloading
        if self.phase is Phase.DEPOSED or self._in_flight is not None or unasked:
            return
        self._reloading = False
        if self.phase is not Phase.ACTIVE:
            self.phase = Phase.TAKING_OVER
            draft = begin_takeover(event, self.config)
            self._stored = draft.base
            self._write(draft, Work(), [])
            return
        found = adopt_loaded(event, self.stored, self.config)
        if found is None:
            self._depose(event)
            return
        if found.is_empty:
            self._stored = found.base  # the same documents; their store versions may differ
        else:
            self._repair = found
            # The controller that wrote it may have declared live brokers dead, and is no longer
            # active.
            self._work.settle_all = True

    def _on_store(self, event: c.StoreState | c.StoreSeen) -> None:
        """Where writes go, or what is in the store: if no write is under way, whatever differs from
        what is known was written by somebody else."""
        if isinstance(event, c.StoreState):
            self._journaling = event.journaling
            return
        busy = self._in_flight is not None or self._reloading or self._repair is not None
        if busy or self.phase is not Phase.ACTIVE or self._journaling:
            return
        known, seen = self.stored.versions, event.versions
        if event.metadata_version != self.stored.metadata_version or seen == known:
            return
        differ = sorted(key for key in {*known, *seen} if known.get(key) != seen.get(key))
        self._out.note(
            "somebody else has changed the metadata store, reading again",
            documents=differ[:_NAMED_MAX],
            count=len(differ),
        )
        self._read_again()

    def _read_again(self) -> None:
        """Asks for `Loaded`; nothing is decided before it comes."""
        self._reloading = True
        self._out.reload = True

    def _on_written(self, event: c.WriteDone) -> None:
        flight = self._in_flight
        if flight is None or flight.write_id != event.write_id:
            return
        self._in_flight = None
        self._adopt(flight.after, event)
        if self.phase is Phase.TAKING_OVER:
            self.phase = Phase.ACTIVE
            self._taken_over_at = self.stored.metadata_version
            self._streams.assume(self.stored.cluster, self._now_ms)
            self._work.settle_all = True
        self._tell(flight.work, flight.outcomes, flight.decisions)

    def _on_write_failed(self, event: c.WriteConflict | c.WriteUnknown | c.WriteNotSent) -> None:
        flight = self._in_flight
        if flight is None or flight.write_id != event.write_id:
            return
        self._in_flight = None
        self._read_again()
        match event:
            case c.WriteConflict():
                reason = "conflict"
            case c.WriteUnknown():
                reason = "outcome unknown"
            case c.WriteNotSent():
                reason = "brokers stand in for the store"
        sent = not isinstance(event, c.WriteNotSent)
        self._work.put_back(flight.work, flight.outcomes if sent else None)
        self._out.note(
            "metadata write failed, reading again",
            reason=reason,
            requests=len(flight.work.pending),
            deaths=len(flight.work.deaths),
        )

    def _on_heartbeat(self, event: c.HeartbeatReceived) -> None:
        session = self._sessions.by_stream(event.stream_id)
        if session is None:
            waiting = self._work.registers(event.stream_id) or (
                self._in_flight is not None and self._in_flight.work.registers(event.stream_id)
            )
            if not waiting:
                why = "this stream has no session; register again"
                self._streams.refuse(event.stream_id, why, self._out)
            return
        session.heard_at_ms = self._now_ms
        session.disk_full = event.disk_full
        session.no_space_for_copies = event.no_space_for_copies
        self._copies.heard(self.stored, session.broker_id, event.copies, self._now_ms)
        if event.wants_stop and not session.wants_stop:
            session.wants_stop, session.generation = True, event.generation
            self._work.leaving.add(session.broker_id)
        if event.opened and session.opening:
            session.opening = False
            self._work.opened.add(session.broker_id)
        self._answer_heartbeat(session)

    def _on_tick(self) -> None:
        now_ms = self._now_ms
        self._sessions.ticked(now_ms)
        if self.phase is not Phase.ACTIVE:
            return
        self._work.deaths.update(self._streams.expire(self._out, now_ms))
        if self._balance_due_ms is None:
            self._balance_due_ms = now_ms + self.config.preferred_leader_interval_ms
        elif now_ms >= self._balance_due_ms:
            self._balance_due_ms = now_ms + self.config.preferred_leader_interval_ms
            self._work.balance = True
        if now_ms >= self._activation_due_ms and self.stored.moving:
            self._activation_due_ms = now_ms + _ACTIVATION_MS
            self._work.activate = True

    def _enqueue(self, asked: c.Request | c.OperatorRequest | c.BrokerRegistered) -> None:
        event, epoch = c.unwrapped(asked)
        if self.phase is Phase.DEPOSED:
            self._answer(event, not_controller())
        elif self.pending_requests >= self.config.max_pending_requests:
            waiting = f"{self.pending_requests} requests wait for the metadata store"
            self._answer(event, OverloadedError(f"{waiting}; come back later"))
        else:
            self._work.pending.append(Pending(event, epoch))

    # ------------------------------------------------------------ deciding

    def _advance(self) -> None:
        busy = self._in_flight is not None or self._reloading
        if busy or self.phase is not Phase.ACTIVE or not (self._work or self._repair):
            return
        news = self._work.news(self.stored, self._taken_over_at) if self._repair is None else []
        if news:
            for entry in news:
                by = type(entry.event).__name__
                self._out.note("a broker has seen newer metadata, reading again", by=by)
            self._read_again()
            return
        draft = self._repair or Draft(self.stored, self.config)
        draft.journaling, draft.opening = self._journaling, self._sessions.opening
        work, self._work, self._repair = self._work, Work(), None
        outcomes = decide_work(draft, work, self._keeping, self._now_ms)
        if draft.is_empty:
            self._tell(work, outcomes, draft.decisions)
        else:
            self._write(draft, work, outcomes)

    # ------------------------------------------------------------ writing and adopting

    def _write(self, draft: Draft, work: Work, outcomes: list[Outcome]) -> None:
        assert self._in_flight is None
        self._write_count += 1
        after, writes = draft.finish()
        self._in_flight = _Flight(self._write_count, after, work, outcomes, draft.decisions)
        self._out.writes, self._out.write_id = writes, self._write_count
        self._out.stored_only = draft.stored_only

    def _adopt(self, after: Stored, event: c.WriteDone) -> None:
        versions = event.versions
        assert after.metadata_version > self.stored.metadata_version
        topic_versions = {
            name: versions.get(topic_key(name)) or after.topic_versions[name]
            for name in after.topics
        }
        self._stored = replace(
            after,
            cluster_version=versions.get(CLUSTER_KEY, after.cluster_version),
            topic_versions=topic_versions,
        )
        self._out.metadata_version = after.metadata_version

    def _tell(self, work: Work, outcomes: list[Outcome], decisions: list[c.Decision]) -> None:
        """Announces what is durable now."""
        self._out.decisions += decisions
        self._streams.buried(work.deaths)
        for entry, outcome in zip(work.pending, outcomes, strict=True):
            self._answer(entry.event, outcome)
        for session in self._sessions:
            if session.wants_stop and not session.told_may_stop:
                self._answer_heartbeat(session)

    def _answer(self, event: c.Request | c.BrokerRegistered, outcome: Outcome) -> None:
        if not isinstance(event, c.BrokerRegistered):
            if isinstance(outcome, m.ReplicasReported):
                # The store may have become unavailable while it was written.
                outcome = replace(outcome, stored=outcome.stored and not self._journaling)
            if isinstance(outcome, c.IsrAltered | m.ReplicasReported):
                outcome = replace(outcome, metadata_version=self.stored.metadata_version)
            self._out.replies.append(c.Reply(event.request_id, outcome))
        elif isinstance(outcome, PenstockError):
            self._out.messages.append(c.SessionRefused(event.stream_id, outcome))
            self._out.note("registration refused", broker=event.broker_id, reason=outcome.message)
            if isinstance(outcome, NextEpochPromisedError):
                self._out.take_over_again = True
        else:
            # Whatever ended before this registration is settled: it was decided as a new run.
            self._work.deaths.pop(event.broker_id, None)
            self._streams.accept(event, self.stored.cluster, self._out, self._now_ms)

    def _answer_heartbeat(self, session: Session) -> None:
        """A leaving broker may stop once everything that can be moved has been moved, durably."""
        in_flight = self._in_flight.work.leaving if self._in_flight is not None else set()
        waiting = session.broker_id in self._work.leaving | in_flight
        may_stop = session.wants_stop and not waiting
        self._streams.answer(session, self._out, may_stop=may_stop)

    def _depose(self, event: c.Loaded) -> None:
        assert event.cluster is not None
        self.phase = Phase.DEPOSED
        self._out.deposed = True
        self._out.note(
            "deposed by another controller",
            mine=self.stored.cluster.controller_epoch,
            seen=event.cluster[0].controller_epoch,
        )
        for entry in self._work.pending:
            self._answer(entry.event, not_controller())
        self._work = Work()
