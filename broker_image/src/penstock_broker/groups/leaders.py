"""Calls the leaders of partitions, for this broker's own metrics.

It uses the calls of clients, over one connection per broker that is kept while it is used. One
attempt each: a leader that moved or does not answer is asked again in the next round. This broker
is asked like any other, so that there is only one code path.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from penstock.core.batch import Batch
from penstock.core.groups.catalog import NamedPartition
from penstock.core.types import BrokerId, ReplicaKey, TopicId
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.transport import Transport
from penstock_broker.groups.lag import Bounds
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.peers import PeerChannels

TIMEOUT_S: Final = 2.0
PARTITIONS: Final = 5_000
"""Of one call: two offsets of each stay below what a request may name."""
ANSWER_BYTES: Final = 1024 * 1024
"""Of one fetch, which returns at least one batch."""


class PeerLeaders:
    """Implements `lag.Leaders` for a broker. Call `close` at the end."""

    def __init__(self, view: ClusterView, transport: Transport) -> None:
        self._view = view
        self._channels = PeerChannels(view, transport)

    async def bounds(self, asked: Iterable[NamedPartition]) -> dict[NamedPartition, Bounds]:
        """Start and end of these logs, as far as their leaders answered."""
        found: dict[NamedPartition, Bounds] = {}

        async def ask(stub: Any, parts: Sequence[NamedPartition]) -> None:
            starts = [_named(where) for where in parts]
            ends = [_named(where) for where in parts]
            for start, end in zip(starts, ends, strict=True):
                start.earliest.SetInParent()
                end.latest.SetInParent()
            answer: pb.ListOffsetsResponse = await stub.ListOffsets(
                pb.ListOffsetsRequest(cluster_id=self._view.cluster_id, partitions=starts + ends),
                timeout=TIMEOUT_S,
            )
            firsts, lasts = answer.results[: len(parts)], answer.results[len(parts) :]
            for where, first, last in zip(parts, firsts, lasts, strict=True):
                if not (first.HasField("error") or last.HasField("error")):
                    found[where] = Bounds(first.offset, last.offset)

        await self._ask_leaders(asked, ask)
        return found

    async def first_batches(
        self, asked: Mapping[NamedPartition, int]
    ) -> dict[NamedPartition, list[Batch]]:
        """The batch at each offset, as far as the leaders answered."""
        found: dict[NamedPartition, list[Batch]] = {}

        async def ask(stub: Any, parts: Sequence[NamedPartition]) -> None:
            request = pb.FetchRequest(
                cluster_id=self._view.cluster_id,
                max_bytes=ANSWER_BYTES,
                partitions=[
                    pb.FetchPartition(
                        topic=where.topic,
                        topic_id=where.topic_id,
                        partition=where.partition,
                        offset=asked[where],
                        max_bytes=1,
                    )
                    for where in parts
                ],
            )
            answer: pb.FetchResponse = await stub.Fetch(request, timeout=TIMEOUT_S)
            answered: dict[NamedPartition, list[Batch]] = {where: [] for where in parts}
            for result in answer.results:
                topic_id = TopicId(result.topic_id)
                where = NamedPartition(result.topic, topic_id, result.partition)
                try:
                    answered[where] = [batch_from_wire(message) for message in result.batches]
                except PenstockError:
                    answered.pop(where, None)  # a batch of a newer version: its age is unknown
                if result.HasField("error"):
                    answered.pop(where, None)
            found.update(answered)

        await self._ask_leaders(asked, ask)
        return found

    async def close(self) -> None:
        """Ends all connections."""
        await self._channels.close()

    async def _ask_leaders(
        self,
        asked: Iterable[NamedPartition],
        ask: Callable[[Any, Sequence[NamedPartition]], Awaitable[None]],
    ) -> None:
        """All leaders at the same time, each in as many calls as it takes."""
        by_leader: dict[BrokerId, list[NamedPartition]] = {}
        for where in asked:
            leader = self._view.leader(ReplicaKey(where.topic_id, where.partition))
            if leader is not None:
                by_leader.setdefault(leader, []).append(where)

        async def attempt(leader: BrokerId, parts: Sequence[NamedPartition]) -> None:
            # If it fails, its partitions are unknown in this round.
            with suppress(PenstockError):
                async with self._channels.to(leader) as channel:
                    for first in range(0, len(parts), PARTITIONS):
                        await ask(BrokerServiceStub(channel), parts[first : first + PARTITIONS])

        async with asyncio.TaskGroup() as calls:
            for leader, parts in by_leader.items():
                calls.create_task(attempt(leader, parts))


def _named(where: NamedPartition) -> pb.ListOffsetsPartition:
    return pb.ListOffsetsPartition(
        topic=where.topic, topic_id=where.topic_id, partition=where.partition
    )
