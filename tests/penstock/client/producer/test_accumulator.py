"""Records become batches that fit, in order, within the buffer, from any number of threads."""

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.client.clock import now_ms
from penstock.client.config import ProducerConfig
from penstock.client.model import PartitionDescription, TopicDescription
from penstock.client.producer.accumulator import (
    BATCH_OVERHEAD_BYTES,
    Accumulator,
    PartitionQueue,
    PendingBatch,
)
from penstock.client.producer.topic_buffer import TopicBuffer, given_headers
from penstock.client.serializers import JsonSerializer, StringSerializer
from penstock.core.batch import HEADER_BYTES
from penstock.core.limits import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from penstock.core.partitioner import KeyHash, partition_for_key
from penstock.core.records import build_batch, encode_columns
from penstock.errors import ClusterError, ErrorCode, MisuseError

LATER = 10**15


def topic(
    partitions: int = 3, *, topic_id: str = "id", leaderless: int = -1, **configs: str
) -> TopicDescription:
    return TopicDescription(
        "t",
        topic_id,
        tuple(
            PartitionDescription(index, -1 if index == leaderless else 0, 1, (0,), (0,))
            for index in range(partitions)
        ),
        {name.replace("_", "."): value for name, value in configs.items()},
    )


class Made:
    """An accumulator with one topic, and how often it called for the loop."""

    def __init__(self, description: TopicDescription | None = None, **settings: Any) -> None:
        self.woken_by: list[PartitionQueue] = []
        self.accumulator = Accumulator(ProducerConfig(**settings), self._wake)
        self.topic = TopicBuffer(description or topic(), self.accumulator)

    def _wake(self, queue: PartitionQueue) -> None:
        self.woken_by.append(queue)

    def send(
        self, value: Any = None, key: Any = None, partition: int | None = None, **more: Any
    ) -> object:
        return self.topic.append(
            value, key, partition, more.get("timestamp_ms"), more.get("headers")
        )

    def drain(self, at_ms: int = LATER) -> list[tuple[int, PendingBatch]]:
        """Every batch that may be sent then, with its partition."""
        taken = []
        for queue in self.topic.queues:
            while (batch := self.accumulator.next_batch(queue, at_ms)) is not None:
                taken.append((queue.where.partition, batch))
        return taken


def test_records_without_a_key_stay_together_until_the_batch_is_full_then_move_on() -> None:
    made = Made(batch_bytes=1_000)
    for index in range(30):
        made.send(b"%03d" % index * 20)  # 60 bytes and framing: 9 fit
    batches = made.drain()
    assert sorted(batch.record_count for _, batch in batches) == [3, 9, 9, 9]
    assert len({partition for partition, _ in batches}) == 3
    assert max(batch.size_bytes for _, batch in batches) <= 1_000


def test_records_without_a_key_avoid_partitions_without_a_leader() -> None:
    made = Made(topic(leaderless=1), batch_bytes=400)
    for _ in range(40):
        made.send(b"x" * 60)
    assert {partition for partition, _ in made.drain()} == {0, 2}


def test_keys_explicit_partitions_and_own_partitioners_decide() -> None:
    made = Made()
    made.send(b"v", b"some key")
    made.send(b"v", b"")
    made.send(b"v", b"some key", 1)
    places = [partition for partition, batch in made.drain() for _ in range(batch.record_count)]
    expected = [partition_for_key(b"some key", 3), partition_for_key(b"", 3), 1]
    assert sorted(places) == sorted(expected)
    own = Made(partitioner=lambda topic, key, count: len(key or b"") % count)
    own.send(b"v", b"12345")
    own.send(b"v", None)
    assert [partition for partition, _ in own.drain()] == [0, 2]


def test_the_topic_says_how_keys_are_hashed() -> None:
    made = Made(topic(12, partitioner="murmur2"))
    made.send(b"v", b"foobar")
    kafkas = partition_for_key(b"foobar", 12, KeyHash.MURMUR2)
    assert kafkas != partition_for_key(b"foobar", 12)
    assert [partition for partition, _ in made.drain()] == [kafkas]
    made.topic.update(topic(12))
    made.send(b"v", b"foobar")
    assert [partition for partition, _ in made.drain()] == [partition_for_key(b"foobar", 12)]


def test_a_hash_that_this_client_does_not_know_is_refused() -> None:
    with pytest.raises(MisuseError, match=r"partitioner=dice, which .* crc32c and murmur2; upgr"):
        Made(topic(partitioner="dice"))


@pytest.mark.parametrize("answer", [3, -1, "0", None])
def test_a_partitioner_that_returns_nonsense_is_told_so(answer: Any) -> None:
    made = Made(partitioner=lambda topic, key, count: answer)
    with pytest.raises(MisuseError, match="partitioner returned"):
        made.send(b"v")


@pytest.mark.parametrize("partition", [3, -1])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    with pytest.raises(MisuseError, match=r"0 to 2") as refused:
        Made().send(b"v", partition=partition)
    assert refused.value.code is ErrorCode.UNKNOWN_PARTITION


def test_a_record_over_the_topics_limit_is_refused_with_size_and_limit() -> None:
    made = Made(topic(max_message_bytes="5000"))
    made.send(b"x" * 4_600)
    with pytest.raises(MisuseError, match=r"5020 bytes.*limit is 5000") as refused:
        made.send(b"x" * 5_000)
    assert refused.value.code is ErrorCode.RECORD_TOO_LARGE
    assert made.accumulator.used_bytes < 5_000, "nothing of it was kept"


@pytest.mark.parametrize("size", [1, 100, 4_000])
@pytest.mark.parametrize("with_headers", [False, True])
def test_no_batch_is_ever_larger_than_the_broker_takes(size: int, with_headers: bool) -> None:
    made = Made(topic(1, max_message_bytes="20000"), batch_bytes=10**6)
    for index in range(60_000 // size + 1):
        headers = [("name", os.urandom(10)), ("other", None)] if with_headers else None
        made.send(
            os.urandom(size), os.urandom(size // 2), timestamp_ms=index * 977, headers=headers
        )
    batches = [batch for _, batch in made.drain()]
    sizes = [len(build_batch(batch.encoded()).payload) + HEADER_BYTES for batch in batches]
    assert max(sizes) <= 20_000
    assert max(sizes) > 15_000, "batches are filled"


@pytest.mark.parametrize(
    "timestamp_ms", [1.5, 1e12, "5", float("nan"), MIN_TIMESTAMP_MS - 1, 2**70, b"1"]
)
def test_a_time_that_is_none_is_refused_at_once_and_spoils_no_other_record(
    timestamp_ms: Any,
) -> None:
    made = Made(topic(1))
    made.send(b"before", timestamp_ms=MAX_TIMESTAMP_MS)
    with pytest.raises(MisuseError, match=r"timestamp_ms is .* must be a whole number") as refused:
        made.send(b"v", timestamp_ms=timestamp_ms)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    made.send(b"after", timestamp_ms=np.int64(7))
    ((_, batch),) = made.drain()
    assert list(batch.encoded().timestamps()) == [MAX_TIMESTAMP_MS, 7]


def test_rows_survive_with_nulls_empties_headers_and_times() -> None:
    made = Made(topic(1))
    made.send(None, b"k", timestamp_ms=5)
    made.send(b"", None, timestamp_ms=3, headers=[("a", b"1"), ("a", None)])
    made.send(b"v", b"", timestamp_ms=9)
    ((_, batch),) = made.drain()
    columns = batch.encoded()
    assert columns.values() == [None, b"", b"v"]
    assert columns.keys() == [b"k", None, b""]
    assert columns.timestamps() == [5, 3, 9]
    assert columns.headers() == [(), (("a", b"1"), ("a", None)), ()]


def test_serializers_are_applied_to_keys_and_values() -> None:
    made = Made(topic(1), key_serializer=StringSerializer(), value_serializer=JsonSerializer())
    made.send({"a": 1}, "ü")
    made.send(b"bytes are no JSON".decode(), None)
    ((_, batch),) = made.drain()
    assert batch.encoded().values() == [b'{"a":1}', b'"bytes are no JSON"']
    assert batch.encoded().keys() == ["ü".encode(), None]


@pytest.mark.parametrize("headers", [[("a",)], [(b"a", b"b")], [("a", "text")], [5]])
def test_headers_that_are_none_are_refused_before_anything_is_kept(headers: Any) -> None:
    made = Made()
    with pytest.raises(MisuseError, match="header"):
        made.send(b"v", headers=headers)
    assert made.drain() == []


def test_headers_can_be_asked_for_again_while_there_is_no_room() -> None:
    given = given_headers(iter([("a", b"b")]))
    assert given == (("a", b"b"),)
    assert given_headers(None) is None
    with pytest.raises(MisuseError, match="headers are 5; they must be"):
        given_headers(5)  # type: ignore[arg-type]


def test_headers_are_those_of_the_call_whatever_the_program_does_to_them_afterwards() -> None:
    made = Made(topic(1))
    headers: list[Any] = [("trace", b"1")]
    value = bytearray(b"first")
    made.send(b"a", headers=headers)
    headers[0] = ("trace", b"2")
    made.send(b"b", headers=[("part", value), ["of", memoryview(value)]])
    value[:] = b"other, and longer"[: len(value)]
    made.send(b"c", headers={"all": b"at once"}.items())
    made.send(b"d", headers=(pair for pair in [("one", b"by one")]))
    headers.append("no header at all")
    ((_, batch),) = made.drain()
    assert batch.encoded().headers() == [
        (("trace", b"1"),),
        (("part", b"first"), ("of", b"first")),
        (("all", b"at once"),),
        (("one", b"by one"),),
    ]


def test_a_batch_lingers_unless_it_is_full_or_flushed() -> None:
    made = Made(topic(1), linger_ms=1_000, batch_bytes=1_000)
    before_ms = now_ms()
    made.send(b"v")
    after_ms = now_ms()
    assert made.drain(before_ms + 999) == []
    look_ms = made.accumulator.next_look_ms(made.topic.queues[0])
    assert look_ms is not None
    assert before_ms + 1_000 <= look_ms <= after_ms + 1_000
    for _ in range(11):
        made.send(b"x" * 60)
    assert [batch.record_count for _, batch in made.drain(before_ms)] == [10]
    made.accumulator.flushing = 1
    assert [batch.record_count for _, batch in made.drain(before_ms)] == [2]


def test_columns_take_their_turn_among_single_records() -> None:
    made = Made(topic(1))
    made.send(b"first")
    made.topic.add_columns(encode_columns([b"second", b"third"], timestamps_ms=5), 0)
    made.send(b"fourth")
    values = [value for _, batch in made.drain() for value in batch.encoded().values()]
    assert values == [b"first", b"second", b"third", b"fourth"]


def test_the_loop_is_woken_once_until_it_looks() -> None:
    made = Made(topic(1), batch_bytes=1_000)
    for _ in range(100):
        made.send(b"x" * 60)
    assert made.woken_by == made.topic.queues
    assert made.accumulator.take_news() == made.topic.queues
    for _ in range(10):
        made.send(b"x" * 60)
    assert len(made.woken_by) == 2
    assert made.accumulator.take_news() == [], "the loop knows the partition already"
    made.drain()
    assert made.accumulator.next_look_ms(made.topic.queues[0]) is None
    made.send(b"again")
    assert len(made.accumulator.take_news()) == 1


def test_the_buffer_is_bounded_and_frees_what_is_settled() -> None:
    made = Made(topic(1), buffer_bytes=2_000, batch_bytes=1_000)
    sent = 0
    while made.send(b"x" * 60) is not None:
        sent += 1
    assert 15 <= sent <= 25
    for _, batch in made.drain():
        made.accumulator.release(batch)
    assert made.accumulator.used_bytes == 0
    assert made.send(b"x" * 60) is not None


def test_one_record_larger_than_the_whole_buffer_still_goes_through() -> None:
    made = Made(topic(1), buffer_bytes=100)
    assert made.send(b"x" * 500) is not None
    assert made.send(b"x") is None


@pytest.mark.parametrize("buffer_bytes", [100, 10_000])
def test_after_the_end_nothing_is_added_whether_or_not_there_is_room(buffer_bytes: int) -> None:
    made = Made(topic(1), buffer_bytes=buffer_bytes)
    made.send(b"x" * 500)
    made.accumulator.end(ClusterError("the first reason", ErrorCode.CLOSED))
    made.accumulator.end(ClusterError("another"))
    with pytest.raises(ClusterError, match="the first reason"):
        made.send(b"late")
    with pytest.raises(ClusterError, match="the first reason"):
        made.topic.add_columns(encode_columns([b"late"], timestamps_ms=5), 0)
    assert [batch.record_count for _, batch in made.drain()] == [1]


def test_only_batches_past_their_delivery_time_expire() -> None:
    made = Made(topic(1), delivery_timeout_ms=1_000, batch_bytes=BATCH_OVERHEAD_BYTES + 150)
    before_ms = now_ms()
    for _ in range(3):
        made.send(b"x" * 60)
    (queue,) = made.topic.queues
    assert made.accumulator.expire(queue, before_ms + 999) == []
    assert [b.record_count for b in made.accumulator.expire(queue, now_ms() + 1_001)] == [1, 1, 1]


def test_new_partitions_are_used_and_a_topic_created_again_starts_over() -> None:
    made = Made(topic(1))
    made.send(b"old", partition=0)
    made.topic.update(topic(2))
    made.send(b"new", partition=1)
    old_queue = made.topic.queues[0]
    made.topic.update(topic(2, topic_id="other"))
    made.send(b"other", partition=0)
    assert old_queue not in made.topic.queues
    stale = made.accumulator.next_batch(old_queue, now_ms())
    assert stale is not None
    assert (stale.topic_id, stale.record_count) == ("id", 1)
    assert [(p, batch.topic_id) for p, batch in made.drain()] == [(0, "other")]


@pytest.mark.parametrize("key", [None, b"k"])
def test_a_topic_that_is_created_again_during_a_send_gets_the_record_in_its_own_queue(
    key: bytes | None,
) -> None:
    """Another queue for the same partition would count its own sequences: records of either would
    be taken for copies of the other's."""
    other = topic(2, topic_id="other")

    class Meanwhile(list[Any]):
        """Headers: looked at when the queue was chosen."""

        def __iter__(self) -> Iterator[Any]:
            made.topic.update(other)
            return super().__iter__()

    made = Made(topic(5))
    old_queues = made.topic.queues
    headers = Meanwhile([("a", b"1")])
    assert made.send(b"v", key, None if key else 1, headers=headers) is None, "to be tried again"
    assert made.send(b"v", key, None if key else 1, headers=headers) is not None
    columns = encode_columns([b"w"], timestamps_ms=1)
    assert made.topic.add_columns(columns, 0) is not None
    assert made.accumulator.add_columns(old_queues[0], "id", columns) is None
    assert {queue.open for queue in old_queues} == {None}
    assert not any(queue.ready for queue in old_queues)
    assert [batch.topic_id for _, batch in made.drain()] == ["other", "other"]


def test_a_partition_is_chosen_among_those_of_one_topic() -> None:
    def choose(name: str, key: Any, count: int) -> int:
        made.topic.update(topic(1, topic_id="other"))
        return count - 1

    made = Made(topic(5), partitioner=choose)
    assert made.send(b"v", b"k") is None, "to be tried again"
    assert made.send(b"v", b"k") is not None
    assert [(p, batch.topic_id) for p, batch in made.drain()] == [(0, "other")]


def test_threads_share_a_producer_and_no_record_is_lost_or_doubled() -> None:
    made = Made(topic(2), batch_bytes=2_000)

    def send(name: int) -> None:
        for index in range(2_000):
            made.send(b"%d:%d" % (name, index), b"%d" % name)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert made.accumulator.used_bytes == sum(b.size_bytes for b in made.accumulator.unsettled)
    seen: dict[bytes, list[int]] = {}
    for _, batch in made.drain():
        for value in batch.encoded().values():
            name, index = (value or b"").split(b":")
            seen.setdefault(name, []).append(int(index))
    assert seen == {b"%d" % name: list(range(2_000)) for name in range(4)}
