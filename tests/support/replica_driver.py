"""One replica machine under a hand-driven clock, with short words for its events.

`Driver.do` feeds an event and keeps the `Ready`; `written` says what the disk did. Broker 1 is
always the machine under test; 2 and 3 are its peers.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.core.batch import Batch, BatchFlags, BatchHeader
from penstock.core.defect import raise_defect
from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    Acks,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ProducerId,
    Sync,
)
from penstock.errors import ClusterError, ErrorCode, PenstockError

TOO_LARGE = ClusterError("more than max.message.bytes", ErrorCode.RECORD_TOO_LARGE)
ME, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def recovered(
    end: int = 0,
    *,
    epoch: int = 0,
    high_watermark: int = 0,
    start: int = 0,
    epochs: tuple[tuple[int, int], ...] = (),
    producers: tuple[c.ProducerEntry, ...] = (),
) -> c.RecoveredLog:
    starts = tuple(c.EpochStart(LeaderEpoch(one), Offset(at)) for one, at in epochs)
    checkpoint = c.Checkpoint(LeaderEpoch(epoch), Offset(high_watermark), Offset(start), starts)
    return c.RecoveredLog(log_end_offset=Offset(end), checkpoint=checkpoint, producers=producers)


def batch(
    count: int = 1, *, base: int = 0, epoch: int = 0, producer: int = -1, sequence: int = -1
) -> Batch:
    header = BatchHeader(
        count,
        0,
        0,
        0,
        0,
        producer_id=ProducerId(producer),
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
        base_offset=Offset(base),
        leader_epoch=LeaderEpoch(epoch),
    )
    return Batch(header, b"x")


def stored(ready: c.Ready) -> c.Checkpoint:
    """The checkpoint that it stores."""
    assert ready.checkpoint is not None
    return ready.checkpoint


def refused(ready: c.Ready) -> PenstockError:
    """Why the peer is refused that it answers first."""
    message = ready.messages[0]
    assert isinstance(message, lc.SendRefusal)
    return message.error


def proposed(ready: c.Ready) -> tuple[int, ...]:
    """The ISR that it asks the controller for."""
    assert ready.isr_change is not None
    return ready.isr_change.isr


class Driver:
    """The machine of broker 1 and the last thing it said."""

    def __init__(self, log: c.RecoveredLog, now_ms: int = 1_000) -> None:
        self.machine = ReplicaMachine(ME, log, now_ms)
        self.now_ms = now_ms
        self.ready = c.NOTHING
        self.requests = 0

    def do(self, event: c.Event) -> c.Ready:
        self.ready = self.machine.handle(event, self.now_ms)
        raise_defect(self.ready.stopped)
        return self.ready

    @property
    def marks(self) -> c.Marks:
        return self.machine.marks

    # ------------------------------------------------------------ the controller

    def assign(
        self,
        leader: int = 1,
        *,
        epoch: int = 1,
        isr: tuple[int, ...] = (1, 2, 3),
        replicas: tuple[int, ...] = (1, 2, 3),
        version: int = 1,
        min_isr: int = 2,
        pending_max: int = 10_000,
        adding: tuple[int, ...] = (),
    ) -> c.Ready:
        state = PartitionState(
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            isr=tuple(BrokerId(member) for member in isr),
            replicas=tuple(BrokerId(member) for member in replicas),
            version=version,
            adding=tuple(BrokerId(member) for member in adding),
        )
        return self.do(c.Assigned(state, c.ReplicaConfig(min_isr, 10_000, pending_max)))

    def answer_isr(
        self,
        isr: tuple[int, ...],
        *,
        version: int,
        epoch: int = 1,
        adding: tuple[int, ...] = (),
        error: PenstockError | None = None,
    ) -> c.Ready:
        members = tuple(BrokerId(member) for member in isr)
        state = PartitionState(
            leader=ME,
            leader_epoch=LeaderEpoch(epoch),
            isr=members,
            replicas=(ME, TWO, THREE),
            version=version,
            adding=tuple(BrokerId(member) for member in adding),
        )
        return self.do(lc.IsrAnswered(state, error))

    # ------------------------------------------------------------ the disk

    def written(self, *, synced: bool = False, persist_id: int | None = None) -> c.Ready:
        """The last write asked for is done."""
        return self.do(
            c.Persisted(self.ready.persist_id if persist_id is None else persist_id, synced)
        )

    def failed(self, persist_id: int) -> c.Ready:
        return self.do(c.PersistFailed(persist_id, ClusterError("full", ErrorCode.DISK_FULL)))

    # ------------------------------------------------------------ clients

    def produce(
        self,
        count: int = 1,
        *,
        acks: Acks = Acks.ALL,
        sync: Sync = Sync.OS,
        producer: int = -1,
        sequence: int = -1,
        timeout_ms: int = 1_000,
        expected_epoch: int = 0,
        refusal: PenstockError | None = None,
    ) -> c.Ready:
        self.requests += 1
        return self.do(
            lc.ProduceRequested(
                request_id=self.requests,
                batch=batch(count, producer=producer, sequence=sequence),
                acks=acks,
                sync=sync,
                deadline_ms=self.now_ms + timeout_ms,
                expected_epoch=LeaderEpoch(expected_epoch),
                refusal=refusal,
            )
        )

    def transact(
        self,
        sequence: int = 0,
        *,
        producer: int = 7,
        epoch: int = 3,
        count: int = 1,
        timeout_ms: int = 1_000,
        **changes: Any,
    ) -> c.Ready:
        """Producer 7 (of those with the top bit) sends a batch of its transaction 3."""
        self.requests += 1
        header = replace(
            batch(count, producer=TRANSACTIONAL_PRODUCER_BIT + producer, sequence=sequence).header,
            producer_epoch=epoch,
            flags=BatchFlags.TRANSACTIONAL,
        )
        request = lc.ProduceRequested(
            request_id=self.requests,
            batch=Batch(header, b"x"),
            acks=Acks.ALL,
            sync=Sync.OS,
            deadline_ms=self.now_ms + timeout_ms,
            transactional_id="billing",
        )
        return self.do(replace(request, **changes))

    def joined(self, number: int = 1, error: PenstockError | None = None) -> c.Ready:
        return self.do(lc.Joined(number, error))

    def end(
        self,
        epoch: int = 3,
        *,
        producer: int = 7,
        commit: bool = True,
        sync: Sync = Sync.OS,
        timeout_ms: int = 1_000,
        expected_epoch: int = 0,
    ) -> c.Ready:
        self.requests += 1
        return self.do(
            lc.EndRequested(
                request_id=self.requests,
                producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT + producer),
                producer_epoch=epoch,
                commit=commit,
                timestamp_ms=1_700_000_000_000,
                deadline_ms=self.now_ms + timeout_ms,
                sync=sync,
                expected_epoch=LeaderEpoch(expected_epoch),
            )
        )

    def commit(self) -> c.Ready:
        """Whatever was appended is written here and at broker 2 and 3."""
        self.do(c.Persisted(self.machine._log.last_persist_id, synced=False))
        end = self.marks.log_end_offset
        self.ack(2, end, epoch=self.marks.leader_epoch)
        return self.ack(3, end, epoch=self.marks.leader_epoch)

    def outcomes(self) -> list[tuple[int, int, str]]:
        """(request, base offset, "ok" | "duplicate" | error code) of the last replies."""
        found: list[tuple[int, int, str]] = []
        for reply in self.ready.replies:
            word = "duplicate" if reply.duplicate else "ok"
            word = word if reply.error is None else reply.error.code.name
            found.append((reply.request_id, reply.base_offset, word))
        return found

    # ------------------------------------------------------------ followers of this broker

    def follow(
        self, broker: int, start: int, *, epoch: int = 1, synced: int | None = None
    ) -> c.Ready:
        """A follower looks up the divergence, starts, and acknowledges what it has."""
        self.do(lc.EpochQueried(BrokerId(broker), LeaderEpoch(epoch), LeaderEpoch(-1)))
        self.do(lc.FollowStarted(BrokerId(broker), LeaderEpoch(epoch), Offset(start)))
        return self.ack(broker, start, epoch=epoch, synced=synced)

    def ack(self, broker: int, end: int, *, epoch: int = 1, synced: int | None = None) -> c.Ready:
        return self.do(
            lc.FollowerAcked(
                BrokerId(broker),
                LeaderEpoch(epoch),
                Offset(end),
                Offset(end if synced is None else synced),
            )
        )

    # ------------------------------------------------------------ the leader of this broker

    def answer_epoch(
        self,
        epoch: int,
        end: int,
        *,
        leader_epoch: int = 1,
        start: int = 0,
        leader: int = 2,
        swept_end: int = 0,
    ) -> c.Ready:
        return self.do(
            fc.EpochAnswered(
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(leader_epoch),
                epoch=LeaderEpoch(epoch),
                end_offset=Offset(end),
                log_start_offset=Offset(start),
                swept_end=Offset(swept_end),
            )
        )

    def receive(
        self,
        *batches: Batch,
        epoch: int = 1,
        high_watermark: int = 0,
        start: int = 0,
        sync_through: int = 0,
        leader: int = 2,
    ) -> c.Ready:
        return self.do(
            fc.BatchesReceived(
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(epoch),
                batches=batches,
                high_watermark=Offset(high_watermark),
                log_start_offset=Offset(start),
                sync_through=Offset(sync_through),
            )
        )


Drive = Callable[..., Driver]
"""drive(end, **recovered fields) -> Driver over a log that was found on disk."""
