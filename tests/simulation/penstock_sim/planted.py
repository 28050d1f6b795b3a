"""Bugs put into the production machines on purpose: the simulator must find each (guarantees §5).

Every function takes pytest's `monkeypatch` and changes one rule, as a plausible mistake would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core.replication.appending import Appending
from penstock.core.replication.contract_follower import BatchesReceived, EpochAnswered, SendAck
from penstock.core.replication.contract_leader import (
    FollowerAcked,
    IsrAnswered,
    ProduceReply,
    ProduceRequested,
)
from penstock.core.replication.follower import Follower
from penstock.core.replication.isr import FollowerProgress, InSyncReplicas
from penstock.core.replication.leader import Leader
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.replication.outbox import Outbox
from penstock.core.replication.producers import Duplicate, ProducerTable
from penstock.core.types import Offset
from penstock_broker.services.leading import Leading

if TYPE_CHECKING:
    from collections.abc import Callable


def truncate_to_the_high_watermark(patch: Any) -> None:
    """As Kafka before KIP-101: the follower trusts its high watermark, not the leader."""

    def divergence(self: Follower, _answer: EpochAnswered) -> tuple[Offset, bool]:
        return self._log.high_watermark, True

    patch.setattr(Follower, "_divergence", divergence)


def follow_without_looking_up_the_divergence(patch: Any) -> None:
    """The follower continues where its own log ends."""

    def divergence(self: Follower, _answer: EpochAnswered) -> tuple[Offset, bool]:
        return self._log.log_end, True

    patch.setattr(Follower, "_divergence", divergence)


def acknowledge_before_persisting(patch: Any) -> None:
    """The follower acknowledges what it has received."""
    batches = Follower.batches

    def eager(self: Follower, received: BatchesReceived, out: Outbox, now_ms: int) -> None:
        batches(self, received, out, now_ms)
        end = self._log.log_end
        out.messages.append(SendAck(self.leader, self.epoch, end, self._log.synced_end))

    patch.setattr(Follower, "batches", eager)


def lead_with_unwritten_records(patch: Any) -> None:
    """The leader counts its own log end before the disk has it."""

    def everywhere(self: Leader) -> tuple[Offset, Offset]:
        written, synced = original(self)
        if len(self.isr.maximal) == 1:
            written = self._log.log_end
        return written, synced

    original = Leader._everywhere
    patch.setattr(Leader, "_everywhere", everywhere)
    append = LocalLog.append

    def appended(self: LocalLog, *args: Any, **options: Any) -> Any:
        write = append(self, *args, **options)
        self.written_end = self.log_end
        return write

    patch.setattr(LocalLog, "append", appended)


def count_acks_of_an_old_epoch(patch: Any) -> None:
    """What followers had acknowledged to an earlier leadership counts in the next."""
    init, acked = Leader.__init__, Leader.acked

    def remember(self: Leader, ack: FollowerAcked, out: Outbox, now_ms: int) -> None:
        acked(self, ack, out, now_ms)
        known = self._log.__dict__.setdefault("acked_before", {})
        known[ack.follower] = ack.written_end

    def start(self: Leader, *args: Any) -> None:
        init(self, *args)
        known = self._log.__dict__.setdefault("acked_before", {})
        for broker, progress in self.followers.items():
            progress.written_end = min(known.get(broker, Offset(0)), self._log.written_end)

    patch.setattr(Leader, "__init__", start)
    patch.setattr(Leader, "acked", remember)


def grow_the_isr_before_the_epoch_start_is_reached(patch: Any) -> None:
    """Any high watermark that a new leader knows is considered enough."""

    def joining(self: Leader, _now_ms: int) -> list[int]:
        return [
            broker
            for broker, progress in self.followers.items()
            if broker not in self.isr.committed
            and progress.started
            and progress.written_end >= self._log.high_watermark
        ]

    patch.setattr(Leader, "_joining", joining)


def grow_the_isr_without_a_sync(patch: Any) -> None:
    """A follower joins with records that only its page cache holds."""
    may_join = Leader._may_join

    def unsynced(self: Leader, progress: FollowerProgress) -> bool:
        progress.synced_end = progress.written_end
        return may_join(self, progress)

    patch.setattr(Leader, "_may_join", unsynced)


def commit_with_too_few_in_sync(patch: Any) -> None:
    """min.insync.replicas is ignored."""
    patch.setattr(Leader, "min_isr", 1)


def forget_producers_at_failover(patch: Any) -> None:
    """A new leader starts with an empty producer table."""
    init = Leader.__init__

    def start(self: Leader, *args: Any) -> None:
        init(self, *args)
        self._log.producers = ProducerTable()

    patch.setattr(Leader, "__init__", start)


def ignore_the_isr_change_in_flight(patch: Any) -> None:
    """Only the ISR that is known to be stored counts for the high watermark."""
    patch.setattr(InSyncReplicas, "maximal", property(lambda self: frozenset(self.state.isr)))


def take_no_answer_for_a_refusal(patch: Any) -> None:
    """After a lost answer to an ISR change, it is assumed to have been refused."""
    answered = ReplicaMachine._isr_answered

    def forget(self: ReplicaMachine, event: IsrAnswered, out: Outbox, now_ms: int) -> None:
        role = self._roles.current
        if event.state is None and isinstance(role, Leader):
            role.isr._proposed = frozenset()
        answered(self, event, out, now_ms)

    patch.setattr(ReplicaMachine, "_isr_answered", forget)


def answer_duplicates_at_once(patch: Any) -> None:
    """A retry is told that its batch is there, although it is not committed yet."""

    def repeat(
        _: Appending, request: ProduceRequested, first: Duplicate, out: Outbox, _now_ms: int
    ) -> None:
        reply = ProduceReply(
            request_id=request.request_id,
            base_offset=first.base_offset,
            acks=request.acks,
            sync=request.sync,
            duplicate=True,
        )
        out.replies.append(reply)

    patch.setattr(Appending, "_repeat", repeat)


def keep_streams_of_a_former_run(patch: Any) -> None:
    """The shell accepts any run of a follower, and does not end the stream of an earlier one."""
    patch.setattr(Leading, "_check_run", lambda _self, _hello: None)
    patch.setattr(Leading, "restarted", lambda _self, _follower, _incarnation: None)


PLANTED: Final[dict[str, tuple[Callable[[Any], None], str]]] = {
    bug.__name__: (bug, faults)
    for bug, faults in (
        (truncate_to_the_high_watermark, ""),
        (follow_without_looking_up_the_divergence, ""),
        (acknowledge_before_persisting, ""),
        (lead_with_unwritten_records, ""),
        (count_acks_of_an_old_epoch, "move_leaders cut_brokers full_disk"),
        (grow_the_isr_before_the_epoch_start_is_reached, "cut_broker_off kill_broker"),
        (grow_the_isr_without_a_sync, ""),
        (commit_with_too_few_in_sync, ""),
        (forget_producers_at_failover, ""),
        (ignore_the_isr_change_in_flight, ""),
        (take_no_answer_for_a_refusal, "cut_from_controller kill_controller slow_store slow_disk"),
        (answer_duplicates_at_once, ""),
        (keep_streams_of_a_former_run, "lose_power"),
    )
}
"""Name of each bug: how it is planted, and the faults that bring it out ("" = all of them).

With all faults the rare ones are found too, but within 500 to 1,500 seeds.
"""
