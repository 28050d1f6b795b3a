"""Subscribe: fetch as a stream, pushed while the client's byte credit lasts.

    requests ─▶ positions, credit, generation ─┐
    Replica.wake ─────────────────────────────┴▶ read ─▶ SubscribeResponse ─▶ less credit

The client says once where to start and, in its first message, at which isolation level; the broker
remembers the position per partition and sends what becomes visible. Credit bounds what is in
flight; one batch may exceed it. A partition whose read fails is reported once and dropped: the
client subscribes again where it wants to continue.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from penstock.core.isolation import Isolation
from penstock.core.quotas import Limit
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.splice import subscribe_response
from penstock_broker.services.fetching import (
    DEFAULT_PARTITION_BYTES,
    Fetching,
    Parking,
    Slice,
    isolation_from_wire,
)
from penstock_broker.services.limits import PARTITIONS_MAX, begins_slice
from penstock_broker.serving.callers import caller

_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_MESSAGE_PARTS: Final = 1_000
"""Partitions in one message: also of those that are refused, which take no credit."""
_CREDIT_MAX: Final = 1 << 31
_PARTITION_BYTES_MAX: Final = 1024
"""Of one in a request, with all that a later client may add: it is kept as long as the stream."""


class Subscription:
    """One Subscribe stream."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        self._who = caller()
        self._positions: dict[TopicPartition, pb.FetchPartition] = {}
        self._ready: dict[TopicPartition, None] = {}
        self._credit = 0
        self._generation = 0
        self._changed = asyncio.Event()
        self._started = False
        self._parking = _Wakes(self)

    async def run(self, requests: AsyncIterator[pb.SubscribeRequest], context: Any) -> None:
        """Serves until the client ends the stream."""
        try:
            async with asyncio.TaskGroup() as tasks:
                pushing = tasks.create_task(self._push(context))
                async for request in requests:
                    self._take(request)
                    await self._watch(request.subscribe)
                pushing.cancel()
        finally:
            self._parking.leave()

    def _take(self, request: pb.SubscribeRequest) -> None:
        """In one go: what is pushed with a request's generation is from positions that it set."""
        if not self._started:
            self._started = True
            self._parking.isolation = isolation_from_wire(request.isolation_level)
        self._generation = max(self._generation, request.generation)
        self._credit = min(self._credit + request.credit_bytes, _CREDIT_MAX)
        for name in request.unsubscribe:
            key = TopicPartition(name.topic, name.partition)
            self._positions.pop(key, None)
            self._ready.pop(key, None)
            self._parking.unwatch(key)
        for part in request.subscribe:
            if part.ByteSize() > _PARTITION_BYTES_MAX:
                raise ClusterError(
                    f"partition {part.topic[:40]!r}…/{part.partition} takes {part.ByteSize()} "
                    f"bytes of the request, the limit is {_PARTITION_BYTES_MAX}; check the name "
                    "of the topic",
                    ErrorCode.INVALID_REQUEST,
                )
            key = TopicPartition(part.topic, part.partition)
            if len(self._positions) >= PARTITIONS_MAX and key not in self._positions:
                raise ClusterError(
                    f"a subscription can have at most {PARTITIONS_MAX} partitions; open "
                    "another one",
                    ErrorCode.INVALID_REQUEST,
                )
            self._positions[key] = part
            self.ready(key)
        self._changed.set()

    async def _watch(self, parts: Iterable[pb.FetchPartition]) -> None:
        """Those of them that the stream still has: with the turns of others, it may have lost some
        that were refused."""
        for index, part in enumerate(parts):
            if begins_slice(index):
                await asyncio.sleep(0)
            key = TopicPartition(part.topic, part.partition)
            if self._positions.get(key) is not part:
                continue
            replica = self._fetching.locate(part)
            if replica is not None:
                self._parking.watch(replica, key)

    def ready(self, key: TopicPartition) -> None:
        """A partition may have new records."""
        if key in self._positions:
            self._ready[key] = None
            self._changed.set()

    async def _push(self, context: Any) -> None:
        while True:
            while not self._ready or self._credit <= 0:
                self._changed.clear()
                await self._changed.wait()
            await self._push_one(context)

    async def _push_one(self, context: Any) -> None:
        """Reads and writes one message; a slow reader holds part of the budget."""
        await self._fetching.quotas.paid(self._who, Limit.FETCH)
        budget = self._fetching.budget.of(self._who)
        taken_bytes = min(self._credit, _MESSAGE_BYTES)
        await budget.room(taken_bytes)
        budget.take(taken_bytes, always=True)
        try:
            generation = self._generation
            slices = await self._collect(taken_bytes)
            size_bytes = sum(part.size_bytes for part in slices)
            budget.take(size_bytes, always=True)
            budget.give(taken_bytes)
            taken_bytes = size_bytes
            self._fetching.quotas.take(self._who, Limit.FETCH, size_bytes)
            if slices:
                await context.write(self._message(generation, slices))
        finally:
            budget.give(taken_bytes)

    def _message(self, generation: int, slices: list[Slice]) -> bytes:
        for part in slices:
            self._fetching.count(part)
        return subscribe_response(generation, ((part.head(), part.batches) for part in slices))

    async def _collect(self, room: int) -> list[Slice]:
        """Batches of partitions that are ready, about `room` bytes."""
        slices: list[Slice] = []
        for index, key in enumerate(list(self._ready)):
            if room <= 0 or len(slices) >= _MESSAGE_PARTS:
                break
            if begins_slice(index):
                await asyncio.sleep(0)
            if key not in self._ready:
                continue  # given up while another one was read
            del self._ready[key]
            part = self._positions.get(key)
            if part is None:
                continue
            replica = self._fetching.locate(part)
            if replica is not None:  # another one than before, if the partition moved away and back
                self._parking.watch(replica, key)
            limit = min(room, part.max_bytes or DEFAULT_PARTITION_BYTES)
            found = await self._fetching.read(part, limit, self._parking.isolation)
            if self._positions.get(key) is not part:
                continue  # moved or dropped during the read: the batches are of an old position
            self._advance(key, part, found)
            room -= found.size_bytes
            self._credit -= found.size_bytes
            if found.batches or found.error is not None:
                slices.append(found)
        return slices

    def _advance(self, key: TopicPartition, part: pb.FetchPartition, found: Slice) -> None:
        if found.error is not None:
            del self._positions[key]
            self._parking.unwatch(key)
        elif found.batches:
            part.offset = found.batches[-1].next_offset
            self._ready[key] = None


class _Wakes(Parking):
    """Passes wake-ups of replicas on to the subscription."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(Isolation.COMMITTED)  # until the first message sets it
        self._subscription = subscription
        self._watched: dict[Any, TopicPartition] = {}
        self._replica_of: dict[TopicPartition, Any] = {}

    def watch(self, replica: Any, key: TopicPartition) -> None:
        """Watches this replica for a partition, instead of the one before."""
        if self._replica_of.get(key) is not replica:
            self.unwatch(key)
            self._replica_of[key] = replica
            self._watched[replica] = key
            self.add(replica, 0)

    def unwatch(self, key: TopicPartition) -> None:
        """A replica that is deleted would live as long as the stream, with all that it holds."""
        replica = self._replica_of.pop(key, None)
        if replica is not None:
            del self._watched[replica]
            self.remove(replica)

    def wake(self, replica: Any) -> None:
        self._subscription.ready(self._watched[replica])
