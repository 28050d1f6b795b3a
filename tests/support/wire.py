"""The plain protocol for tests, without the client library: one call, one message."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

import grpc
from support.channels import patient_channel

from penstock.core.batch import Batch
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.types import ProducerId
from penstock.errors import PenstockError
from penstock.proto.v1 import admin_pb2, errors_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.batches import batch_from_wire, batch_to_wire
from penstock.rpc.errors import error_from_rpc, error_from_wire
from penstock.rpc.tls import Tls


class _Result(Protocol):
    """What answers for one partition."""

    def HasField(self, field_name: Literal["error"]) -> bool: ...  # noqa: N802 - protobuf's name

    @property
    def error(self) -> errors_pb2.Error: ...


CALL_S = 120.0
"""No call that is answered at all takes that long, whatever else the machine does."""
_Q = TypeVar("_Q")
_A = TypeVar("_A")
_R = TypeVar("_R", bound=_Result)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_batch(
    values: Sequence[bytes],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamps_ms: int | Sequence[int] | None = None,
) -> Batch:
    """A batch of values without keys."""
    stamps = now_ms() if timestamps_ms is None else timestamps_ms
    return build_batch(
        encode_columns(list(values), timestamps_ms=stamps),
        producer_id=ProducerId(producer_id),
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


class Wire:
    """A connection to one broker."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        self.channel = patient_channel(address, tls)
        self.data = BrokerServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()

    def produce(
        self,
        topic: str,
        values: Sequence[bytes] | Batch,
        *,
        partition: int = 0,
        acks: pb.Acks.ValueType = pb.ACKS_ALL,
        sync: pb.Sync.ValueType = pb.SYNC_OS,
        timeout_ms: int = 60_000,
        **fields: Any,
    ) -> pb.ProduceResult:
        """Produces one batch; raises PenstockError for an error in the result or of the call.

        `fields` go into the ProducePartition (leader_epoch, topic_id).
        """
        batch = values if isinstance(values, Batch) else make_batch(values)
        part = pb.ProducePartition(
            topic=topic, partition=partition, batch=batch_to_wire(batch), **fields
        )
        request = pb.ProduceRequest(acks=acks, sync=sync, timeout_ms=timeout_ms, partitions=[part])
        (result,) = self.call(self.data.Produce, request, timeout_ms / 1000 + CALL_S).results
        return _checked(result)

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 0,
        partition_max_bytes: int = 0,
        **fields: Any,
    ) -> pb.FetchResult:
        """Fetches from one partition; raises PenstockError as `produce`."""
        part = pb.FetchPartition(
            topic=topic,
            partition=partition,
            offset=offset,
            max_bytes=partition_max_bytes,
            **fields,
        )
        request = pb.FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, partitions=[part]
        )
        (result,) = self.call(self.data.Fetch, request, max_wait_ms / 1000 + CALL_S).results
        return _checked(result)

    def read_all(self, topic: str, *, partition: int = 0, offset: int = 0) -> list[bytes]:
        """Every value from `offset` to the high watermark."""
        values: list[bytes] = []
        while True:
            result = self.fetch(topic, offset, partition=partition)
            if not result.batches:
                return values
            for message in result.batches:
                assert message.base_offset == offset, "no gaps"
                found = decode_batch(batch_from_wire(message)).values()
                values.extend(value or b"" for value in found)
                offset += message.record_count

    def offsets(self, topic: str, *, partition: int = 0, **spec: Any) -> pb.ListOffsetsResult:
        """ListOffsets with `earliest=pb.Earliest()`, `latest=pb.Latest()` or `timestamp_ms=…`."""
        part = pb.ListOffsetsPartition(topic=topic, partition=partition, **spec)
        request = pb.ListOffsetsRequest(partitions=[part])
        (result,) = self.call(self.data.ListOffsets, request).results
        return _checked(result)

    def latest(self, topic: str, *, partition: int = 0) -> int:
        return self.offsets(topic, partition=partition, latest=pb.Latest()).offset

    def log(self, topic: str, partition: int = 0) -> admin_pb2.LogInfo:
        """What this broker itself holds of a partition."""
        answer = self.call(self.admin.DescribeLogs, admin_pb2.DescribeLogsRequest(topics=[topic]))
        return next(log for log in answer.logs if log.partition == partition)

    def call(
        self, method: "grpc.UnaryUnaryMultiCallable[_Q, _A]", request: _Q, timeout_s: float = CALL_S
    ) -> _A:
        """The answer of a method of `data` or `admin`; raises PenstockError if the call fails."""
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error


def call_error(error: grpc.RpcError) -> PenstockError:
    """The typed error of a failed call."""
    return error_from_rpc(error)


def _checked(result: _R) -> _R:
    if result.HasField("error"):
        raise error_from_wire(result.error)
    return result
