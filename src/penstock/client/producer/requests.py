"""From entries of lanes to produce requests: sealed batches, numbered as the lanes say.

Nothing is kept between calls. A retry is built again from the same columns and numbers, so that the
leader can tell it from a new batch (I9).
"""

from penstock.client.cluster.view import Leader
from penstock.client.config import ProducerConfig
from penstock.client.producer.accumulator import PendingBatch
from penstock.client.producer.lane import Entry
from penstock.client.producer.link import Sent
from penstock.core.batch import Batch, BatchFlags, Codec
from penstock.core.records import build_batch
from penstock.core.types import NO_PRODUCER
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire


class ProduceRequests:
    """Builds them as the producer is configured."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._transactional_id = config.transactional_id or ""

    def empty(self, cluster_id: str) -> pb.ProduceRequest:
        """A request without batches."""
        return pb.ProduceRequest(
            cluster_id=cluster_id,
            acks=pb.Acks.ValueType(int(self._config.acks)),
            sync=pb.Sync.ValueType(int(self._config.sync)),
            timeout_ms=self._config.request_timeout_ms,
            transactional_id=self._transactional_id,
        )

    def add(self, message: pb.ProduceRequest, sent: Sent, leader: Leader) -> int:
        """Puts a batch into a request; returns its size."""
        batch = self._built(sent.entry)
        message.partitions.append(
            pb.ProducePartition(
                topic=sent.queue.where.topic,
                topic_id=sent.entry.batch.topic_id,
                partition=sent.queue.where.partition,
                # A deposed leader that does not know it yet must not accept batches meant for its
                # successor.
                leader_epoch=leader.leader_epoch,
                batch=batch_to_wire(batch),
            )
        )
        return batch.size_bytes

    def _built(self, entry: Entry[PendingBatch]) -> Batch:
        """The sealed batch; rebuilt for a retry, from the same columns and numbers."""
        columns = entry.batch.encoded()
        identity = entry.identity
        producer_id = NO_PRODUCER if identity is None else identity.producer_id
        epoch = -1 if identity is None else identity.epoch
        codec = self._config.codec
        while True:
            batch = build_batch(
                columns,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=entry.sequence,
                flags=BatchFlags.TRANSACTIONAL if self._transactional_id else BatchFlags.NONE,
            )
            if codec is Codec.NONE or len(batch.payload) < batch.header.uncompressed_bytes:
                return batch
            # What does not get smaller by compression is sent and read uncompressed.
            codec = Codec.NONE
