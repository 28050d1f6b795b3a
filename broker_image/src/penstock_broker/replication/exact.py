"""Batches from other replicas, to replace stored ones that cannot be read.

    damaged batch, its header from the index ─▶ Donors.exact ─▶ ReadExact at another broker
                                                    ▲                        │ `stored_exactly`
                                      `received`, checked again ◀────────────┘

The index keeps the header of every batch, and the header has the CRC of the rest. Bytes that fit
both are the ones that were lost, whoever gives them: a replica that is out of sync, or damaged in
other places, will do as well as the leader (L7). So both sides compare the whole header, also what
its CRC does not cover.
"""

from typing import Any, Final, Protocol

from penstock.core.batch import (
    HEADER_BYTES,
    Batch,
    BatchHeader,
    pack_batch,
    pack_header,
    unpack_batch,
    unpack_header,
)
from penstock.core.replication.losses import emptied, span
from penstock.core.types import BrokerId, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import replication_pb2 as pb
from penstock.proto.v1.replication_pb2_grpc import ReplicationServiceStub
from penstock.rpc.transport import Transport
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.peers import PeerChannels
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replicas import ReplicaSet

CALL_TIMEOUT_S: Final = 30.0
"""As long as the other broker may take to read it."""


class Donors(Protocol):
    """Other brokers that may have a batch."""

    async def exact(self, broker_id: BrokerId, key: ReplicaKey, header: BatchHeader) -> Batch:
        """The batch with exactly this header, from one broker.

        Raises ClusterError if it does not have it, cannot be reached, or is of an older release:
        OFFSET_OUT_OF_RANGE if nothing of its offsets is there, or it was given up; DATA_CORRUPTED
        if it is damaged there too, or, compacted, part of another batch.
        """
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


class RemoteDonors:
    """`Donors` over gRPC. Call `close` at the end."""

    def __init__(self, broker_id: BrokerId, view: ClusterView, transport: Transport) -> None:
        self._broker_id = broker_id
        self._view = view
        self._channels = PeerChannels(view, transport)

    async def exact(self, broker_id: BrokerId, key: ReplicaKey, header: BatchHeader) -> Batch:
        """See `Donors`."""
        request = pb.ReadExactRequest(
            cluster_id=self._view.cluster_id,
            broker_id=self._broker_id,
            topic_id=key.topic_id,
            partition=key.partition,
            base_offset=header.base_offset,
            header=pack_header(header),
        )
        async with self._channels.to(broker_id) as channel:
            stub: Any = ReplicationServiceStub(channel)
            answer = await stub.ReadExact(request, timeout=CALL_TIMEOUT_S)
        return received(answer.batch, header)

    async def close(self) -> None:
        """Ends all connections."""
        await self._channels.close()


def received(stored: bytes, header: BatchHeader) -> Batch:
    """The batch that a broker gave; raises ClusterError(DATA_CORRUPTED) unless it is that one."""
    if stored[:HEADER_BYTES] != pack_header(header):
        raise ClusterError(
            f"a batch with another header than that of offset {header.base_offset} was received",
            ErrorCode.DATA_CORRUPTED,
        )
    return unpack_batch(stored)


async def stored_exactly(
    replicas: ReplicaSet, reader: LogReader, request: pb.ReadExactRequest
) -> bytes:
    """What `ReadExact` returns. Raises ClusterError: what is asked for is not here, or damaged."""
    if len(request.header) != HEADER_BYTES:
        raise ClusterError(
            f"the header has {len(request.header)} bytes, a batch's has {HEADER_BYTES}",
            ErrorCode.INVALID_REQUEST,
        )
    header = unpack_header(request.header)
    key = ReplicaKey(TopicId(request.topic_id), request.partition)
    if header.base_offset != request.base_offset:
        raise ClusterError(
            f"the header is of offset {header.base_offset}, but offset {request.base_offset} of "
            f"{key} is asked for",
            ErrorCode.INVALID_REQUEST,
        )
    replica = replicas.by_key.get(key)
    if replica is None:
        raise ClusterError(
            f"broker {replicas.broker_id} has no replica of {key}", ErrorCode.UNKNOWN_PARTITION
        )
    known = await reader.stored_header(replica, header.base_offset)
    if known != header and _lacks(known, header):
        raise ClusterError(
            f"the log of {replica} at broker {replicas.broker_id} has nothing of offsets "
            f"{span(header)}; ask another replica",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    batches = await reader.read_stored(replica, header.base_offset, 1, header.next_offset)
    if not batches or pack_header(batches[0].header) != request.header:
        raise ClusterError(
            f"the log of {replica} at broker {replicas.broker_id} has no batch with this header "
            f"at offset {header.base_offset}; ask another replica",
            ErrorCode.DATA_CORRUPTED,
        )
    return pack_batch(batches[0])


def _lacks(known: BatchHeader | None, header: BatchHeader) -> bool:
    """Whether a log has nothing of a batch, if `known` is what it has there or behind it. What was
    emptied in its place has none of its records."""
    return (
        known is None or known.base_offset >= header.next_offset or known == emptied(header).header
    )
