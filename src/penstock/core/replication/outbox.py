"""Collects what one event asks the shell to do, and becomes its `Ready`."""

from __future__ import annotations

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch
from penstock.core.replication.contract import NOTHING, Checkpoint, Message, Ready
from penstock.core.replication.contract_leader import (
    Feed,
    IsrProposal,
    JoinRequest,
    ProduceReply,
)
from penstock.core.replication.local_log import LocalLog
from penstock.core.types import Offset


class Outbox:
    """Mutable while one event is handled; one write (`persist_id`) per event at most."""

    __slots__ = (
        "aborted",
        "append",
        "checkpoint",
        "compacted_end",
        "feeds",
        "high_watermark",
        "isr_change",
        "joins",
        "messages",
        "persist_id",
        "persist_sync",
        "replies",
        "role_changed",
        "stable_offset",
        "swept_end",
        "truncate_to",
    )

    def __init__(self) -> None:
        self.truncate_to: Offset | None = None
        self.append: tuple[Batch, ...] = ()
        self.aborted: tuple[AbortedTransaction, ...] = ()
        self.swept_end: Offset | None = None
        self.compacted_end: Offset | None = None
        self.checkpoint: Checkpoint | None = None
        self.persist_id = 0
        self.persist_sync = False
        self.messages: list[Message] = []
        self.feeds: list[Feed] = []
        self.isr_change: IsrProposal | None = None
        self.joins: list[JoinRequest] = []
        self.replies: list[ProduceReply] = []
        self.high_watermark: Offset | None = None
        self.stable_offset: Offset | None = None
        self.role_changed = False

    def store(self, persist_id: int, checkpoint: Checkpoint, *, sync: bool) -> None:
        """A write of only partition state, or state added to the one write of this event."""
        assert self.persist_id in (0, persist_id), "one write per event"
        self.persist_id = persist_id
        self.checkpoint = checkpoint
        self.persist_sync = self.persist_sync or sync

    def write(
        self,
        appended: tuple[int, tuple[AbortedTransaction, ...]],
        batches: tuple[Batch, ...],
        *,
        sync: bool,
    ) -> None:
        """Adds batches, and the results of `LocalLog.append`, to the write of this event."""
        persist_id, aborted = appended
        assert self.persist_id in (0, persist_id), "one write per event"
        self.persist_id = persist_id
        self.append += batches
        self.aborted += aborted
        self.persist_sync = self.persist_sync or sync

    def commit(self, log: LocalLog, offset: Offset) -> None:
        """Raises the log's high watermark to `offset`, and records what moved."""
        stable = log.last_stable_offset
        if log.raise_high_watermark(offset):
            self.high_watermark = log.high_watermark
            if log.last_stable_offset != stable:
                self.stable_offset = log.last_stable_offset

    def ready(self) -> Ready:
        """What was collected; `NOTHING` if nothing was."""
        # What is stored comes with a write, the LSO moves with the HW.
        if not (
            self.persist_id
            or self.replies
            or self.messages
            or self.feeds
            or self.joins
            or self.role_changed
            or self.high_watermark is not None
            or self.isr_change is not None
        ):
            return NOTHING
        return Ready(
            truncate_to=self.truncate_to,
            append=self.append,
            aborted=self.aborted,
            swept_end=self.swept_end,
            compacted_end=self.compacted_end,
            checkpoint=self.checkpoint,
            persist_id=self.persist_id,
            persist_sync=self.persist_sync,
            messages=tuple(self.messages),
            feeds=tuple(self.feeds),
            isr_change=self.isr_change,
            joins=tuple(self.joins),
            replies=tuple(self.replies),
            high_watermark=self.high_watermark,
            stable_offset=self.stable_offset,
            role_changed=self.role_changed,
        )
