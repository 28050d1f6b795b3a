"""Spliced bytes are what protobuf would have written, as protobuf reads them.

And a fetch's answer on a message stream is read back as it was put together.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.batch import Batch, BatchFlags, BatchHeader, Codec
from penstock.core.types import LeaderEpoch, Offset, ProducerId
from penstock.errors import ClusterError, ErrorCode, NotLeaderError, OverloadedError
from penstock.proto.v1 import broker_pb2, replication_pb2, streams_pb2
from penstock.rpc.batches import batch_from_wire, batch_to_wire
from penstock.rpc.errors import error_from_wire, error_to_wire
from penstock.rpc.splice import (
    fetch_response,
    leader_message,
    stream_fetch_answer,
    stream_fetch_failure,
    stream_fetch_read,
    subscribe_response,
)

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


@given(batches, st.integers(0, 2**64 - 1))
def test_a_leader_message_reads_as_if_protobuf_had_written_it(
    found: list[Batch], copy_spent: int
) -> None:
    head = replication_pb2.AppendBatches(topic_id="id", partition=3, high_watermark=7)
    spliced = leader_message([(head, found), (head, [])], copy_spent=copy_spent)
    full = replication_pb2.AppendBatches(topic_id="id", partition=3, high_watermark=7)
    full.batches.extend(map(batch_to_wire, found))
    expected = replication_pb2.LeaderMessage(appends=[full, head], copy_spent=copy_spent)
    assert replication_pb2.LeaderMessage.FromString(spliced) == expected


ids = st.integers(0, 2**64 - 1)
refusal = NotLeaderError("broker 7 leads", ErrorCode.NOT_LEADER)


def answer(correlation_id: int, per_partition: list[list[Batch]]) -> bytes:
    """An answer whose last partition has an error instead."""
    heads = [
        broker_pb2.FetchResult(topic="t", partition=number, high_watermark=7)
        for number in range(len(per_partition))
    ]
    failed = broker_pb2.FetchResult(topic="t", partition=99, error=error_to_wire(refusal))
    results = [*zip(heads, per_partition, strict=True), (failed, [])]
    return stream_fetch_answer(correlation_id, results)


@given(ids, st.lists(batches, max_size=3), st.booleans())
def test_a_fetch_answer_of_a_stream_is_read_back(
    correlation_id: int, per_partition: list[list[Batch]], in_place: bool
) -> None:
    message = answer(correlation_id, per_partition)
    head, payloads = stream_fetch_read(bytearray(message) if in_place else message)
    assert head.correlation_id == correlation_id
    assert not head.HasField("error")
    *results, failed = head.fetch.results
    assert [result.partition for result in results] == list(range(len(per_partition)))
    assert str(error_from_wire(failed.error)) == str(refusal)
    left = iter(payloads)
    for result, expected in zip(results, per_partition, strict=True):
        assert result.high_watermark == 7
        for batch, sent in zip(result.batches, expected, strict=True):
            assert batch.payload == b"", "payloads are beside the message"
            whole = batch_to_wire(sent)
            payload = whole.payload
            whole.ClearField("payload")
            assert (batch, next(left)) == (whole, payload)
    assert next(left, None) is None


@given(ids, st.text(max_size=200))
def test_a_fetch_that_failed_as_a_whole_is_read_back(correlation_id: int, words: str) -> None:
    error = OverloadedError(words, throttle_ms=17)
    head, payloads = stream_fetch_read(stream_fetch_failure(correlation_id, error_to_wire(error)))
    found = error_from_wire(head.error)
    assert head.correlation_id == correlation_id
    assert (list(head.fetch.results), payloads) == ([], [])
    assert isinstance(found, OverloadedError)
    assert (str(found), found.throttle_ms) == (words, 17)


HEADER = BatchHeader(
    record_count=3,
    first_timestamp_ms=1,
    max_timestamp_ms=2,
    uncompressed_bytes=90,
    crc=77,
    codec=Codec.ZSTD,
    flags=BatchFlags.TRANSACTIONAL,
)
WHOLE = answer(
    5,
    [[Batch(HEADER, payload)] for payload in (b"first payload", b"", b"third")],
)


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_an_answer_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(ClusterError, match="a broker ") as refused:
        stream_fetch_read(WHOLE[:size])
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("payload_bytes", "payloads"),
    [
        ([], b""),
        ([3], b"ab"),
        ([3], b"abcd"),
        ([1, 1], b"ab"),
        ([2**32 - 1], b"abc"),
        ([0, 3], b"abc"),
    ],
    ids=["none", "short", "long", "too many", "huge", "one is empty"],
)
def test_payloads_that_do_not_fit_their_batches_are_refused(
    payload_bytes: list[int], payloads: bytes
) -> None:
    result = broker_pb2.FetchResult(topic="t", batches=[batch_to_wire(Batch(HEADER, b""))])
    head = streams_pb2.StreamFetchResponse(payload_bytes=payload_bytes)
    head.fetch.results.append(result)
    body = head.SerializeToString()
    with pytest.raises(ClusterError, match="for 1 batches"):
        stream_fetch_read(len(body).to_bytes(4, "big") + body + payloads)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_whatever_is_damaged_nothing_but_cluster_errors_is_raised(at: int, flip: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= flip
    read_or_refuse(damaged)


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff\xff\xff\xff")
def test_whatever_comes_nothing_but_cluster_errors_is_raised(garbage: bytes) -> None:
    read_or_refuse(garbage)


def read_or_refuse(message: bytes | bytearray) -> None:
    """As a client: batches that can be read are checked as well."""
    try:
        head, payloads = stream_fetch_read(message)
        error_from_wire(head.error)
        assert sum(map(len, payloads)) <= len(message)
        left = iter(payloads)
        for result in head.fetch.results:
            for batch in result.batches:
                batch_from_wire(batch, next(left))
    except ClusterError:
        pass
