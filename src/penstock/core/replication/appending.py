"""Appends of one leadership: batches go to the log's end, their requests wait for replication.

    land(request) ─▶ producers.check ─┬─ Append ────▶ log, write ─▶ PendingProduces ─▶ reply
                                      ├─ Duplicate ─▶ waits as the first one did ────▶ reply
                                      └─ Refused ───▶ reply
    a batch that the topic's settings do not allow now: only Duplicate, or it is refused

Requests that arrive here are accepted: `leader` has checked that this leadership may append now,
`transactions` that the batch belongs to an open transaction. Batches appended while one event is
handled make one write. Kept here: I7 (no reply before what `acks` and `sync` require), I8, I9.
"""

from __future__ import annotations

from typing import Final

from penstock.core.batch import Batch, BatchHeader, build_marker
from penstock.core.replication.contract_leader import EndRequested, ProduceReply, ProduceRequested
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.replication.pending import PendingProduces, Waiting
from penstock.core.replication.producers import Append, Duplicate, Refused
from penstock.core.types import Acks, LeaderEpoch, Offset, Sync
from penstock.errors import PenstockError

NOWHERE: Final = Offset(-1)


class Appending:
    """Appends to the log of one leadership, and keeps the requests that wait."""

    def __init__(self, log: LocalLog, epoch: LeaderEpoch) -> None:
        self.pending = PendingProduces()
        self._log = log
        self._epoch = epoch

    def land(self, request: ProduceRequested, out: Outbox, now_ms: int) -> bool:
        """Appends the batch, unless it was appended before or must not be.

        True: the request may already be complete.
        """
        verdict = self._log.producers.check(request.batch.header)
        if isinstance(verdict, Append):
            if request.refusal is None:
                self._append(request, out, now_ms)
            else:
                out.replies.append(failed(request, request.refusal))
        elif isinstance(verdict, Refused):
            out.replies.append(failed(request, verdict.error))
        else:
            self._repeat(request, verdict, out, now_ms)
            return True
        return False

    def mark(self, end: EndRequested, out: Outbox, now_ms: int) -> None:
        """Appends the marker of a transaction; the request waits until it is committed."""
        marker = build_marker(
            end.producer_id, end.producer_epoch, commit=end.commit, timestamp_ms=end.timestamp_ms
        )
        batch = self._write(marker, 0, end.sync, out, now_ms)
        self._wait_for_marker(end, batch.base_offset, batch.next_offset)

    def mark_again(
        self, end: EndRequested, marker_offset: Offset, out: Outbox, now_ms: int
    ) -> None:
        """Makes the request wait for a marker that is in the log (-1: at or before its end)."""
        if end.sync is Sync.DISK:
            self._sync(out, now_ms)
        known = marker_offset >= 0
        end_offset = Offset(marker_offset + 1) if known else self._log.log_end
        self._wait_for_marker(end, marker_offset, end_offset, duplicate=True)

    def _append(self, request: ProduceRequested, out: Outbox, now_ms: int) -> None:
        sync = Sync.OS if request.acks is Acks.NONE else request.sync
        batch = self._write(request.batch, request.append_time_ms, sync, out, now_ms)
        self._wait(request, batch.header, batch.next_offset, out)

    def _write(
        self, batch: Batch, append_time_ms: int, sync: Sync, out: Outbox, now_ms: int
    ) -> Batch:
        """Writes a batch; returns it as it is in the log, and will be on disk."""
        stamped = batch.stamped(self._log.log_end, self._epoch, append_time_ms)
        appended = self._log.append((stamped,), now_ms, within=out.persist_id)
        out.write(appended, (stamped,), sync=sync is Sync.DISK)
        return stamped

    def _repeat(
        self,
        request: ProduceRequested,
        first: Duplicate,
        out: Outbox,
        now_ms: int,
    ) -> None:
        """A retry of an appended batch: acknowledged under the same rule as the first time.

        It may wait for the write of the original, and sync=DISK may need a sync of its own.
        """
        if request.sync is Sync.DISK and request.acks is not Acks.NONE:
            self._sync(out, now_ms)
        header = request.batch.stamped(first.base_offset, self._epoch, 0).header
        self._wait(request, header, first.end_offset, out, duplicate=True)

    def _sync(self, out: Outbox, now_ms: int) -> None:
        persist_id = out.persist_id or self._log.checkpointed(now_ms)
        out.store(persist_id, self._log.checkpoint(), sync=True)

    def _last_write(self) -> int:
        """The write whose outcome decides about the whole log; 0: everything is written."""
        return 0 if self._log.is_still else self._log.last_persist_id

    def _wait(
        self,
        request: ProduceRequested,
        header: BatchHeader,
        end_offset: Offset,
        out: Outbox,
        *,
        duplicate: bool = False,
    ) -> None:
        if request.acks is Acks.NONE:
            out.replies.append(
                ProduceReply(request_id=request.request_id, base_offset=NOWHERE, acks=Acks.NONE)
            )
            return
        self.pending.add(
            Waiting(
                request_id=request.request_id,
                end_offset=end_offset,
                acks=request.acks,
                sync=request.sync,
                deadline_ms=request.deadline_ms,
                base_offset=header.base_offset,
                append_time_ms=header.append_time_ms,
                persist_id=self._last_write(),
                duplicate=duplicate,
            )
        )

    def _wait_for_marker(
        self,
        end: EndRequested,
        marker_offset: Offset,
        end_offset: Offset,
        *,
        duplicate: bool = False,
    ) -> None:
        self.pending.add(
            Waiting(
                request_id=end.request_id,
                end_offset=end_offset,
                acks=Acks.ALL,
                sync=end.sync,
                deadline_ms=end.deadline_ms,
                base_offset=marker_offset,
                append_time_ms=0,
                persist_id=self._last_write(),
                duplicate=duplicate,
            )
        )


def failed(request: ProduceRequested | EndRequested, error: PenstockError) -> ProduceReply:
    """The answer to a request that changed nothing."""
    return ProduceReply(request_id=request.request_id, base_offset=NOWHERE, error=error)
