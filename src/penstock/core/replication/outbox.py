"""Collects what one event asks the shell to do, and becomes its `Ready`."""

from __future__ import annotations

from penstock.core.batch import Batch
from penstock.core.replication.contract import NOTHING, Checkpoint, Message, Ready
from penstock.core.replication.contract_leader import Feed, IsrProposal, ProduceReply
from penstock.core.types import Offset


class Outbox:
    """Mutable while one event is handled; at most one write (`persist_id`) per event."""

    __slots__ = (
        "append",
        "checkpoint",
        "feeds",
        "high_watermark",
        "isr_change",
        "messages",
        "persist_id",
        "persist_sync",
        "replies",
        "role_changed",
        "truncate_to",
    )

    def __init__(self) -> None:
        self.truncate_to: Offset | None = None
        self.append: tuple[Batch, ...] = ()
        self.checkpoint: Checkpoint | None = None
        self.persist_id = 0
        self.persist_sync = False
        self.messages: list[Message] = []
        self.feeds: list[Feed] = []
        self.isr_change: IsrProposal | None = None
        self.replies: list[ProduceReply] = []
        self.high_watermark: Offset | None = None
        self.role_changed = False

    def write(
        self,
        persist_id: int,
        append: tuple[Batch, ...],
        checkpoint: Checkpoint | None,
        *,
        sync: bool,
    ) -> None:
        """The one write of this event."""
        assert self.persist_id == 0, "one write per event"
        self.persist_id = persist_id
        self.append = append
        self.checkpoint = checkpoint
        self.persist_sync = sync

    def ready(self) -> Ready:
        """What was collected; `NOTHING` if nothing was."""
        ready = Ready(
            truncate_to=self.truncate_to,
            append=self.append,
            checkpoint=self.checkpoint,
            persist_id=self.persist_id,
            persist_sync=self.persist_sync,
            messages=tuple(self.messages),
            feeds=tuple(self.feeds),
            isr_change=self.isr_change,
            replies=tuple(self.replies),
            high_watermark=self.high_watermark,
            role_changed=self.role_changed,
        )
        return NOTHING if ready == NOTHING else ready
