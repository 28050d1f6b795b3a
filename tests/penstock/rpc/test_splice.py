"""Spliced bytes are what protobuf would have written, as protobuf reads them."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batch import Batch, BatchFlags, BatchHeader, Codec
from penstock.core.types import LeaderEpoch, Offset, ProducerId
from penstock.proto.v1 import broker_pb2, replication_pb2
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.splice import fetch_response, leader_message, subscribe_response

u31 = st.integers(0, 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
batches = st.lists(
    st.builds(
        Batch,
        st.builds(
            BatchHeader,
            record_count=u31,
            first_timestamp_ms=i64,
            max_timestamp_ms=i64,
            uncompressed_bytes=u31,
            crc=st.integers(0, 2**32 - 1),
            codec=st.sampled_from(Codec),
            flags=st.sampled_from(BatchFlags),
            producer_id=st.integers(-1, 2**63 - 1).map(ProducerId),
            producer_epoch=st.integers(-1, 2**31 - 1),
            base_sequence=st.integers(-1, 2**31 - 1),
            base_offset=st.integers(0, 2**63 - 1).map(Offset),
            leader_epoch=u31.map(LeaderEpoch),
            append_time_ms=i64,
        ),
        st.binary(max_size=300) | st.integers(0, 40_000).map(bytes),
    ),
    max_size=3,
)


@given(st.lists(batches, max_size=3), st.text(max_size=200), u31)
def test_a_fetch_response_reads_as_if_protobuf_had_written_it(
    per_partition: list[list[Batch]], topic: str, throttle_ms: int
) -> None:
    heads = [
        broker_pb2.FetchResult(topic=topic, partition=number, high_watermark=-1)
        for number in range(len(per_partition))
    ]
    spliced = fetch_response(zip(heads, per_partition, strict=True), throttle_ms=throttle_ms)
    for head, found in zip(heads, per_partition, strict=True):
        head.batches.extend(batch_to_wire(batch) for batch in found)
    expected = broker_pb2.FetchResponse(results=heads, throttle_ms=throttle_ms)
    assert broker_pb2.FetchResponse.FromString(spliced) == expected


@given(batches, st.integers(0, 2**64 - 1))
def test_a_subscribe_response_keeps_its_generation(found: list[Batch], generation: int) -> None:
    spliced = subscribe_response(generation, [(broker_pb2.FetchResult(topic="t"), found)])
    expected = broker_pb2.SubscribeResponse(
        generation=generation,
        results=[broker_pb2.FetchResult(topic="t", batches=map(batch_to_wire, found))],
    )
    assert broker_pb2.SubscribeResponse.FromString(spliced) == expected


@given(batches)
def test_a_leader_message_reads_as_if_protobuf_had_written_it(found: list[Batch]) -> None:
    head = replication_pb2.AppendBatches(topic_id="id", partition=3, high_watermark=7)
    spliced = leader_message([(head, found), (head, [])])
    full = replication_pb2.AppendBatches(topic_id="id", partition=3, high_watermark=7)
    full.batches.extend(map(batch_to_wire, found))
    expected = replication_pb2.LeaderMessage(appends=[full, head])
    assert replication_pb2.LeaderMessage.FromString(spliced) == expected
