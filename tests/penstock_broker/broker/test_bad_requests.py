"""What a broker refuses, with which error, and that nothing happened."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from support.cluster import Cluster
from support.wire import Wire, call_error, make_batch, now_ms

from penstock.core.batch import Batch, compute_crc
from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT, ProducerId
from penstock.errors import ErrorCode, NotLeaderError, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire

METHODS = ["Produce", "Fetch", "Metadata", "ListOffsets", "InitProducer"]


@pytest.fixture
def wire(shared_broker: Cluster) -> Iterator[Wire]:
    with Wire(shared_broker.brokers[0].address) as wire:
        yield wire


@pytest.fixture
def topic(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", ".").replace("]", "")[-200:]
    shared_broker.create_topic(name)
    return name


def refused(wire: Wire, topic: str, batch: Batch, **fields: Any) -> PenstockError:
    """The error a produce ends with; and nothing was appended."""
    with pytest.raises(PenstockError) as error:
        wire.produce(topic, batch, **fields)
    assert wire.log(topic).log_end_offset == 0
    return error.value


@pytest.mark.parametrize("method", METHODS)
def test_garbage_bytes_are_an_invalid_request(
    shared_broker: Cluster, wire: Wire, method: str
) -> None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = wire.channel.unary_unary(
        f"/penstock.proto.v1.BrokerService/{method}"
    )
    with pytest.raises(grpc.RpcError) as failed:
        call(b"\xff\xfe\xfd this is no message", timeout=120)
    error = call_error(failed.value)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "22 bytes" in str(error)
    assert "Traceback" not in shared_broker.brokers[0].log_text()


def test_a_call_without_a_request_is_an_invalid_request(wire: Wire) -> None:
    call: grpc.StreamUnaryMultiCallable[bytes, bytes] = wire.channel.stream_unary(
        "/penstock.proto.v1.BrokerService/Metadata"
    )
    with pytest.raises(grpc.RpcError) as failed:
        call(iter([]), timeout=120)
    error = call_error(failed.value)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "without a request" in str(error)


@pytest.mark.parametrize("method", ["ProduceStream", "Subscribe"])
def test_garbage_bytes_end_a_stream(wire: Wire, method: str) -> None:
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = wire.channel.stream_stream(
        f"/penstock.proto.v1.BrokerService/{method}"
    )
    with pytest.raises(grpc.RpcError) as failed:
        list(call(iter([b"\xff\xfe garbage"]), timeout=120))
    assert call_error(failed.value).code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("method", METHODS)
def test_another_clusters_id_fails_the_whole_call(wire: Wire, method: str) -> None:
    request = getattr(pb, f"{method}Request")(cluster_id="another")
    with pytest.raises(grpc.RpcError) as failed:
        getattr(wire.data, method)(request, timeout=120)
    assert call_error(failed.value).code is ErrorCode.CLUSTER_ID_MISMATCH


def test_the_right_cluster_id_passes(shared_broker: Cluster, wire: Wire) -> None:
    cluster_id = shared_broker.metadata().cluster_id
    assert cluster_id
    wire.data.Metadata(pb.MetadataRequest(cluster_id=cluster_id), timeout=120)


def test_a_crc_that_lies_is_corrupt(wire: Wire, topic: str) -> None:
    batch = make_batch([b"abc"])
    flipped = bytes([batch.payload[0] ^ 1]) + batch.payload[1:]
    assert refused(wire, topic, Batch(batch.header, flipped)).code is ErrorCode.CORRUPT_BATCH


def test_a_count_that_lies_is_corrupt(wire: Wire, topic: str) -> None:
    batch = make_batch([b"abc"])
    header = dataclasses.replace(batch.header, record_count=0)
    header = dataclasses.replace(header, crc=compute_crc(header, batch.payload))
    assert refused(wire, topic, Batch(header, batch.payload)).code is ErrorCode.CORRUPT_BATCH


def test_an_unknown_codec_is_refused(wire: Wire, topic: str) -> None:
    message = batch_to_wire(make_batch([b"abc"]))
    message.codec = 9  # type: ignore[assignment]  # no value of the enum
    part = pb.ProducePartition(topic=topic, batch=message)
    (result,) = wire.data.Produce(pb.ProduceRequest(partitions=[part]), timeout=120).results
    assert ErrorCode(result.error.code) is ErrorCode.UNSUPPORTED_CODEC
    assert "9" in result.error.message


def test_a_batch_over_the_limit_names_size_and_limit(shared_broker: Cluster, wire: Wire) -> None:
    shared_broker.create_topic("small", configs={"max.message.bytes": "2048"})
    batch = make_batch([b"x" * 5_000])
    error = refused(wire, "small", batch)
    assert error.code is ErrorCode.RECORD_TOO_LARGE
    assert str(batch.size_bytes) in str(error)
    assert "2048" in str(error)


def test_a_batch_from_the_far_future_is_refused(wire: Wire, topic: str) -> None:
    error = refused(wire, topic, make_batch([b"a"], timestamps_ms=now_ms() + 7_200_000))
    assert error.code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(9, ErrorCode.UNKNOWN_LEADER_EPOCH), (1, None)],
)
def test_a_leader_epoch_is_checked(
    wire: Wire, topic: str, epoch: int, code: ErrorCode | None
) -> None:
    if code is None:
        assert wire.produce(topic, [b"a"], leader_epoch=epoch).base_offset == 0
        return
    error = refused(wire, topic, make_batch([b"a"]), leader_epoch=epoch)
    assert isinstance(error, NotLeaderError)
    assert error.code is code
    with pytest.raises(NotLeaderError):
        wire.fetch(topic, 0, leader_epoch=epoch)


def test_a_topic_id_that_nobody_has_heard_of_is_unknown(wire: Wire, topic: str) -> None:
    other = "00000000-0000-0000-0000-000000000000"
    error = refused(wire, topic, make_batch([b"a"]), topic_id=other)
    assert error.code is ErrorCode.UNKNOWN_TOPIC
    assert f"{topic!r} with id {other}" in error.message
    with pytest.raises(PenstockError) as failed:
        wire.offsets(topic, topic_id=other, latest=pb.Latest())
    assert failed.value.code is ErrorCode.UNKNOWN_TOPIC


def test_unknown_acks_and_missing_batches_are_invalid(wire: Wire, topic: str) -> None:
    unknown = pb.ProduceRequest(acks=77)  # type: ignore[arg-type]  # no value of the enum
    with pytest.raises(grpc.RpcError) as failed:
        wire.data.Produce(unknown, timeout=120)
    assert call_error(failed.value).code is ErrorCode.INVALID_REQUEST
    request = pb.ProduceRequest(partitions=[pb.ProducePartition(topic=topic)])
    (result,) = wire.data.Produce(request, timeout=120).results
    assert ErrorCode(result.error.code) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("flags", [1, 2])
def test_flags_are_not_taken_from_producers_without_a_transaction(
    wire: Wire, topic: str, flags: int
) -> None:
    batch = make_batch([b"a"])
    header = dataclasses.replace(
        batch.header,
        flags=type(batch.header.flags)(flags),
        producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT),
        producer_epoch=0,
        base_sequence=0,
    )
    header = dataclasses.replace(header, crc=compute_crc(header, batch.payload))
    assert refused(wire, topic, Batch(header, batch.payload)).code is ErrorCode.INVALID_REQUEST


def test_offsets_need_a_question(wire: Wire, topic: str) -> None:
    with pytest.raises(PenstockError) as failed:
        wire.offsets(topic)
    assert failed.value.code is ErrorCode.INVALID_REQUEST
