"""One partition replica in the shell: its machine, and everything that waits for it.

The machine decides; this object holds what the decisions are about: the slot its log is stored in,
the newest batches, unanswered produce requests, waiting fetches, streams that feed followers. It
also owns its writes (`ticks.WriteOwner`) and adds lazily written state to them: a checkpoint at
most once a second, a producer snapshot once per `snapshot_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.core.aborted import AbortedIndex
from penstock.core.replication.contract import (
    Checkpoint,
    Event,
    LogDamaged,
    Marks,
    Persisted,
    PersistFailed,
    ProducerEntry,
    RecoveredLog,
    Truncated,
)
from penstock.core.replication.contract_follower import (
    SendAck,
    SendEpochQuery,
    SendFollowStart,
    SendFollowStop,
)
from penstock.core.replication.contract_leader import (
    Feed,
    IsrProposal,
    JoinRequest,
    ProduceReply,
    SendEpochAnswer,
    SendRefusal,
)
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.topic import TopicConfig
from penstock.core.types import BrokerId, Offset, ReplicaKey
from penstock.errors import ClusterError, PenstockError
from penstock_broker.counts import Flow, Probe
from penstock_broker.replication.recent import RecentBatches
from penstock_broker.store.interface import Slot

_CHECKPOINT_INTERVAL_MS: Final = 1_000


class Waiter(Protocol):
    """A request that waits until a replica has news for consumers."""

    def wake(self, replica: Replica) -> None: ...


class FollowerOutlet(Protocol):
    """The stream to a follower (`feeding`)."""

    def feed(self, replica: Replica, feed: Feed) -> None: ...
    def notify(self, replica: Replica, *, urgent: bool) -> None: ...
    def send(self, replica: Replica, message: SendEpochAnswer | SendRefusal) -> None: ...


class LeaderOutlet(Protocol):
    """The stream to a leader (`following`)."""

    def send(
        self,
        key: ReplicaKey,
        message: SendEpochQuery | SendFollowStart | SendFollowStop | SendAck,
    ) -> None: ...


class IsrOutlet(Protocol):
    """Sends ISR proposals to the controller (`isr`)."""

    def propose(self, replica: Replica, proposal: IsrProposal) -> None: ...


class ReportOutlet(Protocol):
    """Tells the controller about replicas (`reports`), or mends them (`mending`)."""

    def changed(self) -> None: ...


class JoinOutlet(Protocol):
    """Sends joins of transactions to their coordinators (`transactions.partitions`)."""

    def join(self, replica: Replica, request: JoinRequest) -> None: ...


class Shell(Protocol):
    """What a replica reports to (`replicas.ReplicaSet`)."""

    snapshot_bytes: int

    def handle(self, replica: Replica, event: Event) -> None: ...
    def found_damaged(self, replica: Replica, damage: LogDamaged) -> None: ...
    def removal_refused(self, replica: Replica) -> None: ...
    def now_ms(self) -> int: ...
    def now_s(self) -> float: ...


class Replica:
    """See the module. Created and removed by `ReplicaSet`."""

    __slots__ = (
        "_checkpoint_due_ms",
        "_shell",
        "_unsnapshotted_bytes",
        "aborted",
        "config",
        "feeders",
        "flow",
        "index_damaged",
        "is_opened",
        "isr",
        "key",
        "machine",
        "marks_dirty",
        "pending",
        "probe",
        "recent",
        "removed_before",
        "slot",
        "stable_waiters",
        "sync_asked",
        "ticks",
        "topic",
        "truncations",
        "waiters",
        "written_bytes",
    )

    def __init__(
        self,
        key: ReplicaKey,
        topic: str,
        slot: Slot,
        machine: ReplicaMachine,
        recent: RecentBatches,
        shell: Shell,
    ) -> None:
        self.key = key
        self.topic = topic
        self.slot = slot
        self.machine = machine
        self.recent = recent
        self.config = TopicConfig()
        self.is_opened = True
        """False: what is stored of the log could not be read, and the machine has stopped."""
        self.index_damaged = False
        """Batches cannot be removed from its log: what has to be read for that is damaged."""
        self.aborted = AbortedIndex()
        self.waiters: set[Waiter] = set()
        """Wait for the high watermark."""
        self.stable_waiters: set[Waiter] = set()
        """Wait for the last stable offset, which an open transaction holds back."""
        self.feeders: dict[BrokerId, FollowerOutlet] = {}
        self.pending: dict[int, Callable[[ProduceReply], None]] = {}
        self.marks_dirty = False
        self.removed_before = Offset(0)
        self.sync_asked = Offset(0)
        self.ticks = False
        """Whether its machine wants, and gets, ticks."""
        self.truncations = 0
        """Grows when a truncation of this log begins, and when it ends: what was read before may no
        longer be in it."""
        self.flow = Flow()
        """Of its topic: all replicas of one have the same."""
        self.isr: tuple[BrokerId, ...] = ()
        """By the newest image, to count how it changes."""
        self.probe: Probe | None = None
        """The batch that is timed now; `services.producing` begins and ends it."""
        self.written_bytes = 0
        """Of batches, in this run of the broker; never falls."""
        self._checkpoint_due_ms = 0
        self._unsnapshotted_bytes = 0
        self._shell = shell

    @property
    def marks(self) -> Marks:
        return self.machine.marks

    def __str__(self) -> str:
        return f"{self.topic}/{self.key.partition}"

    def wake(self) -> None:
        """Makes all waiting fetches check again."""
        self.wake_uncommitted()
        self.wake_committed()

    def wake_uncommitted(self) -> None:
        """The high watermark moved."""
        for waiter in tuple(self.waiters):
            waiter.wake(self)

    def wake_committed(self) -> None:
        """The last stable offset moved."""
        for waiter in tuple(self.stable_waiters):
            waiter.wake(self)

    def notify_feeders(self, *, urgent: bool) -> None:
        """Tells the streams to followers that marks moved; `urgent`: someone waits for them."""
        for feeder in self.feeders.values():
            feeder.notify(self, urgent=urgent)

    def answer(self, reply: ProduceReply) -> None:
        """Passes a reply to its request."""
        respond = self.pending.pop(reply.request_id, None)
        if respond is not None:
            respond(reply)

    def fail_pending(self, error: PenstockError) -> None:
        """Answers every waiting produce with `error`: the machine is being removed."""
        for request_id in tuple(self.pending):
            self.answer(ProduceReply(request_id=request_id, base_offset=Offset(-1), error=error))

    # ------------------------------------------------------------ ticks.WriteOwner

    def extras(
        self, *, written_bytes: int, now: bool
    ) -> tuple[Checkpoint | None, Sequence[ProducerEntry] | None]:
        """State written together with a write, as of the log end after that write.

        A stopped machine gives none: half of an event may be in it.
        """
        if self.machine.error is not None:
            return None, None
        self.written_bytes += written_bytes
        self._unsnapshotted_bytes += written_bytes
        checkpoint = producers = None
        now_ms = self._shell.now_ms()
        if self.marks_dirty and (now or now_ms >= self._checkpoint_due_ms):
            self.marks_dirty = False
            self._checkpoint_due_ms = now_ms + _CHECKPOINT_INTERVAL_MS
            checkpoint = self.machine.checkpoint
        limit = 0 if now else self._shell.snapshot_bytes
        if self._unsnapshotted_bytes > limit:
            self._unsnapshotted_bytes = 0
            producers = self.machine.producers
        return checkpoint, producers

    def persisted(self, persist_id: int, *, synced: bool) -> None:
        probe = self.probe
        if probe is not None and not probe.written_s and 0 < probe.persist_id <= persist_id:
            probe.written_s = self._shell.now_s()
        self._shell.handle(self, Persisted(persist_id, synced))
        self.notify_feeders(urgent=True)

    def persist_failed(self, persist_id: int, error: PenstockError) -> None:
        self.recent.clear()
        self._shell.handle(self, PersistFailed(persist_id, error))
        self.aborted.cut(self.marks.log_end_offset)

    def removal_refused(self) -> None:
        self._shell.removal_refused(self)

    def damaged(self, error: ClusterError, *, written: bool) -> None:
        """What was to be removed stays until the log is copied again; a replica whose log cannot be
        written stops."""
        self.is_opened = self.is_opened and written
        self.index_damaged = True
        self._shell.found_damaged(self, LogDamaged(error, unopened=not written))

    def truncated(self, log: RecoveredLog) -> None:
        self.truncations += 1
        self.removed_before = min(self.removed_before, log.checkpoint.log_start_offset)
        self._shell.handle(self, Truncated(log))
        self.aborted.cut(self.marks.log_end_offset)


def note(kind: dict[ReplicaKey, Replica], replica: Replica, *, holds: bool) -> None:
    """Whether it is of this kind now: an image names few replicas, and looks at no others."""
    if holds:
        kind[replica.key] = replica
    else:
        kind.pop(replica.key, None)
