"""Asks the leaders what a group has not read yet; `penstock.core.lag` computes the lag from the
answers.

committed offsets ─▶ ListOffsets (both ends) ─▶ one small Fetch per partition with unread
                                                records: the first batch there, no more
"""

import asyncio
import time
from collections.abc import Mapping
from time import monotonic
from typing import Final

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.leaders import Answers, LeaderCall, ask_leaders, list_offsets
from penstock.client.model import EARLIEST, LATEST
from penstock.core.batch import Batch
from penstock.core.lag import PartitionLag, Unread, fetch_from, oldest_unread, partition_lag
from penstock.core.types import TopicPartition
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.errors import error_from_wire

LOOKS_MAX: Final = 1_000
"""How many batches without a record, or answers without a batch, are skipped per partition."""
NOTHING_YET_S: Final = 0.05
"""A new leader may return nothing for a moment."""


async def ask_lag(
    cluster: Cluster, committed: Mapping[TopicPartition, int], timeout_s: float
) -> dict[TopicPartition, PartitionLag]:
    """The lag of each partition; committed -1 = none. Raises as `ask_leaders`."""
    starts = await list_offsets(cluster, dict.fromkeys(committed, EARLIEST), timeout_s)
    ends = await list_offsets(cluster, dict.fromkeys(committed, LATEST), timeout_s)
    looking = {
        where: position
        for where, offset in committed.items()
        if (position := fetch_from(offset, starts[where].offset, ends[where].offset)) is not None
    }
    unread: dict[TopicPartition, Unread] = {}
    deadline = monotonic() + timeout_s
    for _ in range(LOOKS_MAX):
        if not looking or monotonic() >= deadline:
            break
        found = await ask_leaders(cluster, looking, _first_batches(cluster), timeout_s)
        further: dict[TopicPartition, int] = {}
        for where, batches in found.items():
            first = oldest_unread(batches, looking[where])
            if first is not None:
                unread[where] = first
            elif not batches or batches[-1].next_offset < ends[where].offset:
                further[where] = batches[-1].next_offset if batches else looking[where]
        looking = further
        if any(not found[where] for where in looking):
            await asyncio.sleep(NOTHING_YET_S)
    now_ms = time.time_ns() // 1_000_000
    answer: dict[TopicPartition, PartitionLag] = {}
    for where, offset in committed.items():
        start, end = starts[where].offset, ends[where].offset
        if where in looking:  # its age is unknown
            answer[where] = PartitionLag(offset, start, end, end - looking[where], None)
        else:
            answer[where] = partition_lag(offset, start, end, unread.get(where), now_ms)
    return answer


def _first_batches(cluster: Cluster) -> LeaderCall[int, list[Batch]]:
    async def call(
        connection: Connection, part: Mapping[TopicPartition, int], timeout_s: float
    ) -> Answers[list[Batch]]:
        request = pb.FetchRequest(
            cluster_id=cluster.view.cluster_id,
            partitions=[
                pb.FetchPartition(
                    topic=where.topic, partition=where.partition, offset=offset, max_bytes=1
                )
                for where, offset in part.items()
            ],
        )
        answer = await connection.call(connection.broker.Fetch, request, timeout_s)
        found: dict[TopicPartition, list[Batch] | PenstockError] = {
            where: list[Batch]() for where in part
        }
        for result in answer.results:
            where = TopicPartition(result.topic, result.partition)
            found[where] = (
                error_from_wire(result.error)
                if result.HasField("error")
                else [batch_from_wire(message) for message in result.batches]
            )
        return found

    return call
