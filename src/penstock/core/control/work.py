"""The waiting work, and deciding all of it on one draft.

While a write is in flight, everything that happens collects in a `Work`; the next draft takes all
of it. Order: deaths, brokers that want to stop, requests and registrations in order of arrival,
preferred leaders last. If the write fails, its work is put back before what arrived since.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from penstock.core.authorization import Kind
from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control import operator_contract as o
from penstock.core.control.access import decide_alter_access
from penstock.core.control.admin import (
    decide_alter_configs,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from penstock.core.control.copies import Copies, activate
from penstock.core.control.cordons import decide_alter_brokers
from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft, Stored
from penstock.core.control.election import Liveness
from penstock.core.control.fencing import check_operator_epoch, decide_acquire
from penstock.core.control.formats import decide_finalize
from penstock.core.control.generations import note_stops
from penstock.core.control.hibernation import decide_alter_cluster
from penstock.core.control.isr import decide_alter_isr
from penstock.core.control.move_requests import decide_alter_replicas
from penstock.core.control.quota import MutationQuota
from penstock.core.control.quotas import decide_alter_quotas
from penstock.core.control.registration import (
    decide_deaths,
    decide_registration,
    decide_unregistration,
)
from penstock.core.control.replica_reports import decide_report
from penstock.core.control.requests import (
    decide_elect_leaders,
    decide_producer_ids,
)
from penstock.core.control.returning import Returning
from penstock.core.control.sessions import Sessions
from penstock.core.control.throttle import decide_alter_throttle
from penstock.core.topic import INTERNAL_TOPICS
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError

Outcome = c.Result | PenstockError


@dataclass(slots=True)
class Pending:
    """A request or registration; `before`: the earlier answer, decided in a write that failed.

    `operator_epoch`: of the operator that asked; 0: it was none. `reread`: the store was read again
    because of it; once is enough.
    """

    event: c.Request | c.BrokerRegistered
    operator_epoch: int = 0
    before: Outcome | None = None
    reread: bool = False

    def knows_more(self, stored: Stored, taken_over_at: int) -> bool:
        """The sender has seen something newer than what was adopted from the store.

        A deposed controller can have a last topic write in flight when another takes over; it
        succeeds after the new one has read, and brokers are told of it. Reading again finds it.

        Both count metadata versions on from the same one: from `taken_over_at`, the take-over's
        own, on, a version that was seen under an earlier controller epoch is a different one.

        Whoever asks for the promise of an epoch has read the one before. So a promise of the next
        epoch is no news, and the broker must not wait for a store that may be unavailable.
        """
        event = self.event
        if isinstance(event, c.BrokerRegistered):
            mine = (stored.cluster.controller_epoch, stored.metadata_version)
            seen = (event.seen_controller_epoch, event.seen_metadata_version)
            unread = seen[0] < mine[0] and seen[1] >= taken_over_at
            stored_epoch = max(seen[0], event.promised_controller_epoch - 1)
            return stored_epoch > mine[0] or seen[1] > mine[1] or unread
        if isinstance(event, c.AlterIsr):
            return any(_is_newer(change, stored) for change in event.changes)
        return False


@dataclass(slots=True)
class Work:
    """`deaths`: broker and reason. `leaving`: newly want to stop. `opened`: may be elected from now
    on. `settle_all`: check every partition. `balance`: it is time to give leadership back to
    preferred replicas. `activate`: to begin queued moves."""

    pending: deque[Pending] = field(default_factory=deque)
    deaths: dict[BrokerId, str] = field(default_factory=dict)
    leaving: set[BrokerId] = field(default_factory=set)
    opened: set[BrokerId] = field(default_factory=set)
    settle_all: bool = False
    balance: bool = False
    activate: bool = False

    def __bool__(self) -> bool:
        changed = self.deaths or self.leaving or self.opened
        urgent = self.pending or changed or self.settle_all
        return bool(urgent or self.balance or self.activate)

    def put_back(self, failed: "Work", outcomes: list[Outcome] | None) -> None:
        """The write of `failed` may not have succeeded: decides it again, first.

        `outcomes`: what it would have answered; None if it was not sent, so nothing is stored.
        """
        if outcomes is not None:
            for entry, outcome in zip(failed.pending, outcomes, strict=True):
                entry.before = outcome
        self.pending.extendleft(reversed(failed.pending))
        self.deaths = {**failed.deaths, **self.deaths}
        self.leaving |= failed.leaving
        self.settle_all = True

    def news(self, stored: Stored, taken_over_at: int) -> list[Pending]:
        """Those whose senders know more than was adopted, and the store was not read since."""
        ahead = [
            entry
            for entry in self.pending
            if not entry.reread and entry.knows_more(stored, taken_over_at)
        ]
        for entry in ahead:
            entry.reread = True
        return ahead

    def registers(self, stream_id: int) -> bool:
        """A registration of this stream is part of the work."""
        return any(
            isinstance(entry.event, c.BrokerRegistered) and entry.event.stream_id == stream_id
            for entry in self.pending
        )


def _is_newer(change: c.IsrChange, stored: Stored) -> bool:
    topic = stored.topics.get(stored.names.get(change.topic_id, ""))
    if topic is None or not 0 <= change.partition < len(topic.partitions):
        return False
    state = topic.partitions[change.partition].state
    return change.version > state.version or change.leader_epoch > state.leader_epoch


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a controller keeps in memory only."""

    sessions: Sessions
    quota: MutationQuota
    copies: Copies
    returning: Returning = field(default_factory=Returning)


def decide_work(draft: Draft, work: Work, keeping: Keeping, now_ms: int) -> list[Outcome]:
    """Changes the draft; returns one outcome per pending entry, same order."""
    sessions = keeping.sessions
    decide_deaths(draft, work.deaths, sessions.leaving)
    note_stops(draft, work.leaving, sessions)
    if work.settle_all or work.leaving or work.opened:
        concerned = None if work.settle_all else frozenset(work.leaving | work.opened)
        draft.settle_all(_liveness(draft, sessions), concerned)
    outcomes = [_decide(draft, entry, keeping, now_ms) for entry in work.pending]
    if work.balance and not draft.cluster.hibernating:
        _return_leaders(draft, keeping, now_ms)
    if work.activate:
        activate(draft, keeping.copies, _liveness(draft, sessions))
    return outcomes


def _decide(draft: Draft, entry: Pending, keeping: Keeping, now_ms: int) -> Outcome:
    names = _topics_to_change(entry)
    before = {name: draft.topic(name) for name in names}
    try:
        check_operator_epoch(draft, entry.operator_epoch)
        if names:
            keeping.quota.check(now_ms)
        outcome = _decide_or_raise(draft, entry, keeping.sessions, now_ms)
    except PenstockError as error:
        return _maybe_applied(error) if _may_be_stored(entry, error) else error
    keeping.quota.charge(_partitions_written(draft, before))
    return outcome


def _may_be_stored(entry: Pending, error: PenstockError) -> bool:
    """Refused because the store is unavailable, after a write of the same whose outcome is unknown:
    only the store could say what that has done."""
    succeeded = entry.before is not None and not isinstance(entry.before, PenstockError)
    return succeeded and error.code is ErrorCode.MOVES_PAUSED


def _maybe_applied(error: PenstockError) -> ClusterError:
    text = f"{error.message}; what was asked for may have been stored before, so look first"
    return ClusterError(text, ErrorCode.CONTROLLER_UNAVAILABLE)


def _topics_to_change(entry: Pending) -> frozenset[str]:
    """Topics that a user wants to have changed; none if this was decided before, and paid."""
    event = entry.event
    if entry.before is not None:
        return frozenset()
    match event:
        case c.CreateTopics() if not event.validate_only:
            return frozenset(topic.name for topic in event.topics) - INTERNAL_TOPICS
        case c.DeleteTopics() if not event.validate_only:
            return frozenset(name for name, _ in event.topics)
        case c.CreatePartitions() | c.AlterConfigs() if not event.validate_only:
            return frozenset((event.topic,))
        case c.AlterAccess() if event.resource.kind is Kind.TOPIC and not event.validate_only:
            return frozenset((event.resource.name,))
        case _:
            return frozenset()


def _partitions_written(draft: Draft, before: Mapping[str, TopicDocument | None]) -> int:
    """Of topics that are not what they were; of each as many as it had, or has, if more."""
    written = 0
    for name, known in before.items():
        now = draft.topic(name)
        if now is not known:
            written += max(len(topic.partitions) for topic in (known, now) if topic is not None)
    return written


def _decide_or_raise(draft: Draft, entry: Pending, sessions: Sessions, now_ms: int) -> c.Result:
    event, liveness = entry.event, _liveness(draft, sessions)
    match event:
        case c.BrokerRegistered():
            decide_registration(draft, event, sessions)
            return c.Done()
        case c.AlterIsr():
            return decide_alter_isr(draft, event, sessions, liveness)
        case c.AllocateProducerIds():
            return decide_producer_ids(draft, event, sessions)
        case c.CreateTopics() | c.DeleteTopics() | c.CreatePartitions() | c.AlterConfigs():
            return _decide_topics(draft, event, entry, liveness)
        case c.AlterAccess() | c.AlterQuotas():
            return _decide_rules(draft, event)
        case c.ElectLeaders():
            held = None if event.away_from is None else sessions.get(event.away_from)
            if held is not None:
                held.held_until_ms = now_ms + draft.config.away_hold_ms
            return decide_elect_leaders(draft, event, liveness)
        case c.UnregisterBroker():
            decide_unregistration(draft, event, sessions)
            return c.Done()
        case (
            m.ReportReplicas()
            | m.AlterReplicas()
            | m.AlterBrokers()
            | m.AlterThrottle()
            | m.AlterCluster()
            | m.Finalize()
            | o.AcquireOperatorEpoch()
        ):
            return _decide_life(draft, event, entry, sessions)
        case _:
            assert_never(event)


def _decide_life(
    draft: Draft,
    event: m.ReportReplicas
    | m.AlterReplicas
    | m.AlterBrokers
    | m.AlterThrottle
    | m.AlterCluster
    | m.Finalize
    | o.AcquireOperatorEpoch,
    entry: Pending,
    sessions: Sessions,
) -> c.Result:
    match event:
        case m.ReportReplicas():
            return decide_report(draft, event, sessions, _liveness(draft, sessions))
        case m.AlterReplicas():
            return decide_alter_replicas(draft, event, _liveness(draft, sessions), entry.before)
        case m.AlterBrokers():
            decide_alter_brokers(draft, event)
            return c.Done()
        case m.AlterThrottle():
            decide_alter_throttle(draft, event)
            return c.Done()
        case m.AlterCluster():
            decide_alter_cluster(draft, event, sessions)
            return c.Done()
        case m.Finalize():
            return decide_finalize(draft, event, sessions)
        case o.AcquireOperatorEpoch():
            return decide_acquire(draft, event)
        case _:
            assert_never(event)


def _decide_rules(draft: Draft, event: c.AlterAccess | c.AlterQuotas) -> c.Result:
    match event:
        case c.AlterAccess():
            return decide_alter_access(draft, event)
        case c.AlterQuotas():
            return decide_alter_quotas(draft, event)
        case _:
            assert_never(event)


def _decide_topics(
    draft: Draft,
    event: c.CreateTopics | c.DeleteTopics | c.CreatePartitions | c.AlterConfigs,
    entry: Pending,
    liveness: Liveness,
) -> c.Result:
    match event:
        case c.CreateTopics():
            return decide_create_topics(draft, event, liveness)
        case c.DeleteTopics():
            return decide_delete_topics(draft, event, entry.before)
        case c.CreatePartitions():
            return decide_create_partitions(draft, event, liveness, entry.before)
        case c.AlterConfigs():
            return decide_alter_configs(draft, event, liveness)
        case _:
            assert_never(event)


def _return_leaders(draft: Draft, keeping: Keeping, now_ms: int) -> None:
    sessions = keeping.sessions
    since_ms = now_ms - draft.config.preferred_leader_interval_ms
    may_lead = frozenset(
        session.broker_id
        for session in sessions
        if session.stream_id is not None
        and session.started_at_ms <= since_ms
        and session.held_until_ms <= now_ms
    )
    moved = keeping.returning.give_back(draft, _liveness(draft, sessions), may_lead)
    if moved:
        draft.decide(
            c.Severity.INFO,
            "leaderships moved back to preferred leaders",
            count=moved,
            limit=draft.config.preferred_leader_moves,
        )


def _liveness(draft: Draft, sessions: Sessions) -> Liveness:
    return draft.liveness(sessions.leaving)
