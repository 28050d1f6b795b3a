"""Opens the batches for compacted topics whose records take long to look through: in a thread.

    ProduceRequest ─▶ Opener.open ─ little to open ─▶ None: `Producing` opens them itself, at once
                          └─ much ─▶ wait ─▶ one after another in a thread ─▶ Opened ─▶ submit

A few hundred bytes can hold a million records, and to check their keys takes a quarter of a
second. On the event loop, all heartbeats would stop meanwhile. The loop opens what takes
about a millisecond, and a request without more than that waits for nothing.

Order (I9): whoever appends waits for this first, and only then submits the request, all its
partitions at once. A `ProduceStream` reads nothing meanwhile, so its next request stays behind.

What is opened, or waits for it, is bounded by a budget of decompressed bytes, over all requests
(I23); beyond it, a batch is refused as OVERLOADED, and its producer sends it again.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from concurrent.futures import Executor
from typing import Final, TypeAlias

from penstock.core.compaction.keymap import check_keys
from penstock.core.limits import MAX_UNCOMPRESSED_BYTES
from penstock.errors import OverloadedError, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock_broker.metadata.image import ClusterView
from penstock_broker.services.limits import ByteBudget
from penstock_broker.serving.callers import caller

OPENED_AT_ONCE_BYTES: Final = 256 * 1024
"""Of all batches of a request for compacted topics, decompressed: the worst take 1.5 ms."""
OPENING_BYTES: Final = 2 * MAX_UNCOMPRESSED_BYTES
"""Decompressed batches of all requests that are being opened, with what they arrived as."""

Opened: TypeAlias = Mapping[int, PenstockError | None]
"""By index of the partition in the request: why its batch is refused; None: it is fine."""


class Opener:
    """Of one broker. The executor has one thread: more would only share the interpreter."""

    def __init__(self, view: ClusterView, executor: Executor) -> None:
        self._view = view
        self._executor = executor
        self._budget = ByteBudget(OPENING_BYTES, "batches for compacted topics")

    def open(self, request: pb.ProduceRequest) -> Awaitable[Opened] | None:
        """Checks the batches for compacted topics; None: they are few, `submit` opens them."""
        claimed = sum(part.batch.uncompressed_bytes for part in request.partitions)
        if claimed <= OPENED_AT_ONCE_BYTES:
            return None
        indexes = [
            index for index, part in enumerate(request.partitions) if self._compacts(part.topic)
        ]
        parts = request.partitions
        if sum(parts[index].batch.uncompressed_bytes for index in indexes) <= OPENED_AT_ONCE_BYTES:
            return None
        return self._open(request, indexes)

    def _compacts(self, topic: str) -> bool:
        known = self._view.names.get(topic)
        return known is not None and self._view.topics[known].config.cleanup_policy.compacts

    async def _open(self, request: pb.ProduceRequest, indexes: list[int]) -> Opened:
        loop = asyncio.get_running_loop()
        opened: dict[int, PenstockError | None] = {}
        taken, budget = 0, self._budget.of(caller())
        try:
            for index in indexes:
                part = request.partitions[index]
                cost = min(part.batch.uncompressed_bytes, MAX_UNCOMPRESSED_BYTES)
                if not taken:
                    cost += request.ByteSize()  # it is held until all is opened
                try:
                    budget.take(cost)
                except OverloadedError as error:
                    opened[index] = error
                    continue
                taken += cost
                opened[index] = await loop.run_in_executor(self._executor, _problem, part)
        finally:
            budget.give(taken)
        return opened


def check_opened(part: pb.ProducePartition, index: int, opened: Opened | None) -> bool:
    """Whether this batch was opened, and found fine; False: open it now.

    Raises the PenstockError that refuses it, OverloadedError if opening it now takes too long: its
    topic was not compacted when the request came.
    """
    if opened is not None and index in opened:
        problem = opened[index]
        if problem is not None:
            raise problem
        return True
    if part.batch.uncompressed_bytes > OPENED_AT_ONCE_BYTES:
        raise OverloadedError(
            f"topic {part.topic} became compacted a moment ago, and the batch of "
            f"{part.batch.uncompressed_bytes} bytes was not opened; try again"
        )
    return False


def _problem(part: pb.ProducePartition) -> PenstockError | None:
    try:
        check_keys(batch_from_wire(part.batch), f"{part.topic}/{part.partition}")
    except PenstockError as error:
        return error
    return None
