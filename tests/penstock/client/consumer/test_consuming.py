"""Consuming from real brokers: every record once, in order, from wherever one asks to start."""

import asyncio
import re
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.waiting import wait_until

from penstock.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Codec,
    ConsumedBatch,
    Consumer,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from penstock.client.cluster import leaders
from penstock.client.config import ConsumerOptions
from penstock.client.consumer import seeking
from penstock.errors import (
    ClusterError,
    ErrorCode,
    MisuseError,
    OffsetOutOfRangeError,
    OffsetRange,
    PenstockError,
)


@pytest.fixture
def topic(shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions for this test alone."""
    name = own_name(request)
    shared_cluster.create_topic(name, partitions=2)
    return name


@pytest.fixture
def consumer(shared_cluster: Cluster) -> Iterator[Consumer]:
    with Consumer(shared_cluster.bootstrap) as consumer:
        yield consumer


def fill(
    cluster: Cluster,
    topic: str,
    values: Iterable[bytes],
    *,
    partition: int = 0,
    times: list[int] | None = None,
    batch_bytes: int = 1_000,
    codec: Codec = Codec.NONE,
) -> None:
    """Writes records in many small batches."""
    with Producer(cluster.bootstrap, batch_bytes=batch_bytes, codec=codec) as producer:
        for index, value in enumerate(values):
            timestamp_ms = times[index] if times else None
            producer.send(topic, value, partition=partition, timestamp_ms=timestamp_ms)
        producer.flush(PATIENCE_S)
        assert producer.close() == 0


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % index for index in range(first, first + count)]


LONG_POLL_MS = 60_000
"""A broker holds an empty answer no longer; `read` does not wait that long."""
PATIENCE_S = 120.0
"""Of polls that end as soon as there is something."""


def read(consumer: Consumer, count: int, max_records: int | None = None) -> list[ConsumedBatch]:
    """Polls until `count` records are there; exactly so many come."""
    batches: list[ConsumedBatch] = []

    def all_there() -> bool:
        batches.extend(consumer.poll(1.0, max_records))
        return sum(map(len, batches)) >= count

    wait_until(all_there, what=f"{count} records", timeout_s=30)
    assert sum(map(len, batches)) == count
    return batches


def polls_nothing(consumer: Consumer) -> None:
    """Polls, and gets nothing, until a poll raises what the caller expects."""

    def nothing() -> bool:
        assert consumer.poll(1) == []
        return False

    wait_until(nothing, what="an error")


def values_of(batches: Iterable[ConsumedBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.values()]


def test_records_come_in_order_and_a_poll_returns_no_more_than_asked(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(2_000))
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    first = consumer.poll(PATIENCE_S, max_records=7)
    assert values_of(first) == numbers(7)
    assert consumer.position(where) == 7
    rest: list[bytes | None] = []
    while len(rest) < 1_993:
        got = values_of(consumer.poll(PATIENCE_S, max_records=7))
        assert len(got) <= 7
        rest += got
    assert rest == numbers(1_993, 7)
    assert consumer.poll(0) == []
    assert consumer.lag() == {where: 0}


def test_new_records_wake_a_waiting_poll(shared_cluster: Cluster, topic: str) -> None:
    with Consumer(shared_cluster.bootstrap, fetch_max_wait_ms=LONG_POLL_MS) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        assert consumer.poll(0.5) == []
        fill(shared_cluster, topic, [b"news"], partition=1)
        assert values_of(read(consumer, 1)) == [b"news"]


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({}, 0),
        ({"auto_offset_reset": "latest"}, 10),
        ({"group_id": "fresh"}, 10),
        ({"group_id": "fresh", "auto_offset_reset": "earliest"}, 0),
    ],
)
def test_one_setting_says_where_a_partition_starts_without_a_committed_offset(
    shared_cluster: Cluster, topic: str, options: ConsumerOptions, at: int
) -> None:
    fill(shared_cluster, topic, numbers(10))
    where = TopicPartition(topic, 0)
    with Consumer(shared_cluster.bootstrap, **options) as consumer:
        consumer.assign([where])
        assert consumer.position(where) == at


@pytest.mark.parametrize(
    ("group_id", "said"),
    [
        ("", "it has no position, and auto_offset_reset is 'error'; seek to an offset, or use"),
        ("strict", "group 'strict' has no committed offset"),
    ],
)
def test_a_start_that_nothing_says_is_an_error_until_a_seek(
    shared_cluster: Cluster, topic: str, group_id: str, said: str
) -> None:
    fill(shared_cluster, topic, numbers(10))
    where = TopicPartition(topic, 0)
    options: ConsumerOptions = {"group_id": group_id, "auto_offset_reset": "error"}
    with Consumer(shared_cluster.bootstrap, **options) as consumer:
        consumer.assign([where])
        with pytest.raises(ClusterError, match=said) as seen:
            consumer.poll(PATIENCE_S)
        assert seen.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        consumer.seek(where, 8)
        assert values_of(read(consumer, 2)) == numbers(2, 8)


def test_a_consumer_may_start_at_the_end(shared_cluster: Cluster, topic: str) -> None:
    fill(shared_cluster, topic, numbers(10))
    with Consumer(shared_cluster.bootstrap, auto_offset_reset="latest") as consumer:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        assert consumer.position(where) == 10
        fill(shared_cluster, topic, [b"new"])
        assert values_of(read(consumer, 1)) == [b"new"]


def test_seeks_go_to_offsets_beginning_end_and_time(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    now_ms = time.time_ns() // 1_000_000
    times = [now_ms - 100_000 + 10 * index for index in range(1_000)]
    fill(shared_cluster, topic, numbers(1_000), times=times)
    where, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer.assign([where, other])
    for offset in (503, 0, 999, 17):
        consumer.seek(where, offset)
        assert consumer.position(where) == offset
        assert values_of(read(consumer, 1, max_records=1)) == numbers(1, offset)
    consumer.seek_to_end()
    assert (consumer.position(where), consumer.position(other)) == (1_000, 0)
    assert consumer.poll(0.2) == []
    consumer.seek_to_beginning([where])
    assert values_of(read(consumer, 1, max_records=1)) == [b"0"]
    found = consumer.seek_to_time({where: times[250] - 5, other: times[0]})
    assert found == {where: 250, other: 0}
    assert values_of(read(consumer, 750)) == numbers(750, 250)
    assert consumer.seek_to_time({where: now_ms + 10**6}) == {where: 1_000}


def test_a_record_that_comes_during_a_seek_by_time_is_not_skipped(
    shared_cluster: Cluster, topic: str, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = TopicPartition(topic, 0)
    fill(shared_cluster, topic, [b"old"], times=[1_000])
    consumer.assign([where])
    ask = leaders.list_offsets
    calls = 0

    async def slowly(*asked: Any) -> Any:
        nonlocal calls
        found = await ask(*asked)
        calls += 1
        if calls == 1:
            await asyncio.to_thread(fill, shared_cluster, topic, [b"new"], times=[2_010])
        return found

    monkeypatch.setattr(seeking, "list_offsets", slowly)
    assert consumer.seek_to_time({where: 2_000}) == {where: 1}
    assert values_of(read(consumer, 1)) == [b"new"]


def test_times_before_1970_are_found(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    where = TopicPartition(topic, 0)
    fill(shared_cluster, topic, [b"a", b"b", b"c"], times=[-10_000, -5, 20], batch_bytes=1)
    consumer.assign([where])
    for time_ms, offset in ((-(2**63), 0), (-10_000, 0), (-9_999, 1), (-1, 2), (0, 2), (21, 3)):
        assert consumer.seek_to_time({where: time_ms}) == {where: offset}


@pytest.mark.parametrize("beyond", [-1, 2**63, 1.5, "latest", None])
def test_an_offset_that_cannot_be_is_refused_by_the_seek(
    shared_cluster: Cluster, topic: str, consumer: Consumer, beyond: Any
) -> None:
    where = TopicPartition(topic, 0)
    fill(shared_cluster, topic, [b"a"])
    consumer.assign([where])
    with pytest.raises(
        MisuseError, match=f"cannot seek to offset {beyond!r}; it must be a whole number, 0 to 2"
    ):
        consumer.seek(where, beyond)
    with pytest.raises(MisuseError, match=f"{2**63} is not a valid offset"):
        consumer.seek_to_time({where: 2**63})
    consumer.seek_to_beginning([where])
    wait_until(lambda: consumer.poll(0.1), what="it reads on")


@pytest.mark.parametrize(
    ("commit", "told"),
    [
        (OffsetAndMetadata(1, "caf\udce9"), "cannot be stored as UTF-8 (surrogates not allowed at"),
        (OffsetAndMetadata(1, "x" * 4_097), "the metadata has 4097 bytes"),
        (OffsetAndMetadata(1, "x", 2**31), f"cannot commit leader epoch {2**31}"),
        (OffsetAndMetadata(2**63), f"cannot commit offset {2**63}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_commit_that_cannot_be_stored_says_why(
    shared_cluster: Cluster, topic: str, commit: OffsetAndMetadata, told: str
) -> None:
    where = TopicPartition(topic, 0)
    with Consumer(shared_cluster.bootstrap, group_id=topic) as consumer:
        consumer.assign([where])
        with pytest.raises(MisuseError, match=re.escape(told)):
            consumer.commit({where: commit})


def test_a_seek_while_data_is_on_its_way_gets_nothing_old(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(5_000))
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    for offset in (4_000, 10, 2_500, 0, 4_999) * 5:
        consumer.seek(where, offset)
        (batch, *_) = consumer.poll(PATIENCE_S, max_records=3)
        assert batch.first_offset == offset


def test_a_seek_does_not_wait_for_a_long_poll(shared_cluster: Cluster, topic: str) -> None:
    fill(shared_cluster, topic, numbers(10))
    where = TopicPartition(topic, 0)
    with Consumer(shared_cluster.bootstrap, fetch_max_wait_ms=LONG_POLL_MS) as consumer:
        consumer.assign([where])
        read(consumer, 10)
        assert consumer.poll(0.3) == []
        for _ in range(2):
            consumer.seek(where, 5)
            assert values_of(read(consumer, 5)) == numbers(5, 5)


def test_paused_partitions_are_silent_and_lose_nothing(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(100), partition=0)
    fill(shared_cluster, topic, numbers(100), partition=1)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer.assign([zero, one])
    assert read(consumer, 1, max_records=1)
    consumer.pause([zero])
    position = consumer.position(zero)
    seen = read(consumer, 100 if position == 1 else 99)
    assert {batch.partition for batch in seen} == {1}
    assert consumer.poll(0.3) == []
    assert consumer.lag() == {zero: 100 - position, one: 0}
    consumer.resume([zero])
    assert values_of(read(consumer, 100 - position)) == numbers(100 - position, position)


def test_partitions_that_stay_assigned_keep_their_position(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(10), partition=0)
    fill(shared_cluster, topic, numbers(10), partition=1)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer.assign([zero])
    read(consumer, 10)
    consumer.assign([zero, one])
    assert consumer.assignment() == {zero, one}
    assert {batch.partition for batch in read(consumer, 10)} == {1}
    consumer.assign([])
    assert consumer.poll(0.1) == []
    with pytest.raises(MisuseError, match="not assigned"):
        consumer.position(zero)


@pytest.mark.parametrize("codec", list(Codec))
def test_arrow_tables_hold_what_was_sent(
    shared_cluster: Cluster, topic: str, consumer: Consumer, codec: Codec
) -> None:
    values = [b"%05d" % index * 20 for index in range(20_000)]
    fill(shared_cluster, topic, values, batch_bytes=200_000, codec=codec)
    consumer.assign([TopicPartition(topic, 0)])
    seen: list[bytes] = []
    while len(seen) < 20_000:
        table = consumer.poll_arrow(PATIENCE_S, include_headers=True)
        assert table["offset"].to_pylist() == list(range(len(seen), len(seen) + len(table)))
        seen += table["value"].to_pylist()
    assert seen == values
    assert consumer.poll_arrow(0).num_rows == 0


async def test_records_that_cannot_be_converted_are_returned_by_the_next_poll(
    shared_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shared_cluster, topic, numbers(3), partition=0)

    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    here = TopicPartition(topic, 0)
    async with AsyncConsumer(shared_cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.assign([here])
        with monkeypatch.context() as patched:
            patched.setattr("penstock.client.arrow.batches_to_table", fails)
            with pytest.raises(MemoryError):
                await consumer.poll_arrow(60)
        assert await consumer.position(here) == 0
        assert (await consumer.poll_arrow(60)).num_rows == 3


def test_iterating_gives_one_record_after_the_other(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(50))
    consumer.assign([TopicPartition(topic, 0)])
    records = []
    for record in consumer:
        records.append(record)
        if len(records) == 50:
            break
    assert [(record.offset, record.value) for record in records] == list(enumerate(numbers(50)))


def test_a_small_buffer_still_reads_everything(shared_cluster: Cluster, topic: str) -> None:
    for partition in (0, 1):
        fill(shared_cluster, topic, [b"x" * 5_000] * 300, partition=partition, batch_bytes=20_000)
    with Consumer(
        shared_cluster.bootstrap,
        buffer_bytes=50_000,
        fetch_max_bytes=30_000,
        max_partition_fetch_bytes=10_000,
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        batches = read(consumer, 600)
    for partition in (0, 1):
        offsets = [o for b in batches if b.partition == partition for o in b.offsets()]
        assert offsets == list(range(300))


def test_what_is_fetched_ahead_is_bounded_and_a_paused_partition_holds_none_of_it(
    shared_cluster: Cluster, topic: str
) -> None:
    for partition in (0, 1):
        fill(shared_cluster, topic, [b"x" * 5_000] * 400, partition=partition, batch_bytes=20_000)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(
        shared_cluster.bootstrap, buffer_bytes=50_000, fetch_max_bytes=30_000
    ) as consumer:
        consumer.assign([zero])
        states = consumer._core._assignment.states

        def held() -> int:
            return sum(state.buffered_bytes for state in states.values())

        def resting() -> bool:
            return held() >= 50_000 and not any(state.in_flight for state in states.values())

        for _ in range(5):
            consumer.poll(PATIENCE_S, max_records=1)
            wait_until(resting, what="the buffer is full and nothing more is fetched")
            assert held() < 200_000
        consumer.assign([zero, one])
        consumer.pause([zero])
        assert {batch.partition for batch in read(consumer, 400)} == {1}


def truncate(cluster: Cluster, topic: str, before: int) -> None:
    with Admin(cluster.bootstrap) as admin:
        where = TopicPartition(topic, 0)
        assert admin.delete_records({where: before}) == {where: before}


def test_truncated_retention_is_an_error_until_a_seek(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(1_000))
    truncate(shared_cluster, topic, 600)
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    assert consumer.position(where) == 600, "the beginning is where the log starts"
    consumer.seek(where, 100)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 100 .*600 to 1000") as gone:
            consumer.poll(PATIENCE_S)
        assert gone.value.valid == OffsetRange(600, 1_000)
    consumer.seek(where, 600)
    assert values_of(read(consumer, 400)) == numbers(400, 600)


@pytest.mark.parametrize(("policy", "first"), [("earliest", 600), ("latest", 1_000)])
def test_truncated_retention_follows_the_policy_with_a_warning(
    shared_cluster: Cluster,
    topic: str,
    policy: str,
    first: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(shared_cluster, topic, numbers(1_000))
    truncate(shared_cluster, topic, 600)
    where = TopicPartition(topic, 0)
    with Consumer(shared_cluster.bootstrap, on_offset_out_of_range=policy) as consumer:  # type: ignore[arg-type]  # a literal
        consumer.assign([where])
        consumer.seek(where, 100)
        consumer.poll(2)
        wait_until(
            lambda: any("offset 100 is not in the log" in text for text in caplog.messages),
            what="a warning with the lost offset",
        )
        fill(shared_cluster, topic, [b"new"])
        consumer.seek_to_end()
        consumer.seek(where, 100)
        got: list[ConsumedBatch] = []
        while not got:
            got = consumer.poll(1)
            if policy == "latest" and not got:
                fill(shared_cluster, topic, [b"newer"])
        assert got[0].first_offset >= first


def test_a_position_far_past_the_end_is_an_error_in_the_end(
    shared_cluster: Cluster, topic: str, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.consumer.fetch_state.PAST_END_GRACE_MS", 500)
    fill(shared_cluster, topic, numbers(10))
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek(where, 5_000)
    with pytest.raises(OffsetOutOfRangeError, match="never written"):
        consumer.poll(PATIENCE_S)


def test_a_failed_partition_that_is_paused_does_not_stop_the_others(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(10), partition=0)
    fill(shared_cluster, topic, numbers(10), partition=1)
    truncate(shared_cluster, topic, 5)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer.assign([zero, one])
    consumer.seek(zero, 0)
    seen: list[ConsumedBatch] = []

    def failed() -> bool:
        try:
            seen.extend(consumer.poll(1))
        except OffsetOutOfRangeError:
            return True
        return False

    wait_until(failed, what="the deleted offset is noticed")
    consumer.pause([zero])
    while len(values_of(seen)) < 10:
        seen += consumer.poll(1)
    assert values_of(seen) == numbers(10)


def test_a_topic_created_again_is_an_error_not_a_continuation(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(10))
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    read(consumer, 10)
    with Admin(shared_cluster.bootstrap) as admin:
        admin.delete_topic(topic)
        wait_until(lambda: shared_cluster.topic(topic) is None, what="the topic is gone")
        admin.create_topic(topic, 2, 3)
    fill(shared_cluster, topic, numbers(30))
    with pytest.raises(ClusterError, match="created again") as changed:
        polls_nothing(consumer)
    assert changed.value.code is ErrorCode.TOPIC_ID_MISMATCH
    consumer.assign([where])
    assert values_of(read(consumer, 30)) == numbers(30)


def test_a_deleted_topic_is_an_error(shared_cluster: Cluster, topic: str) -> None:
    with (
        Consumer(shared_cluster.bootstrap, unknown_topic_timeout_ms=500) as consumer,
        Admin(shared_cluster.bootstrap) as admin,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(0.1) == []
        admin.delete_topic(topic)
        with pytest.raises(ClusterError) as gone:
            polls_nothing(consumer)
        assert gone.value.code is ErrorCode.UNKNOWN_TOPIC


def test_what_cannot_be_assigned_is_refused_and_changes_nothing(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    for wrong in (TopicPartition("nowhere", 0), TopicPartition(topic, 2), TopicPartition("", 0)):
        with pytest.raises(PenstockError):
            consumer.assign([where, wrong])
    assert consumer.assignment() == {where}
    with pytest.raises(MisuseError, match="must be a whole number, 0 to"):
        consumer.seek(where, -1)
    with pytest.raises(MisuseError, match="at least 1"):
        consumer.poll(0, max_records=0)


def test_lag_counts_what_is_still_to_come(
    shared_cluster: Cluster, topic: str, consumer: Consumer
) -> None:
    fill(shared_cluster, topic, numbers(100))
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer.assign([zero, one])
    assert consumer.lag() == {zero: 100, one: 0}
    read(consumer, 30, max_records=30)
    assert consumer.lag() == {zero: 70, one: 0}


def test_a_closed_consumer_says_so(shared_cluster: Cluster, topic: str) -> None:
    consumer = Consumer(shared_cluster.bootstrap)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.close()
    consumer.close()
    with pytest.raises(ClusterError, match="closed"):
        consumer.poll(0)


async def test_a_second_close_returns_when_the_first_one_has(
    shared_cluster: Cluster, topic: str
) -> None:
    consumer = AsyncConsumer(shared_cluster.bootstrap)
    await consumer.assign([TopicPartition(topic, 0)])
    leave = consumer._session.close
    leaving, may_leave = asyncio.Event(), asyncio.Event()

    async def leave_late() -> None:
        leaving.set()
        await consumer.close()  # as a listener may: returns at once
        await may_leave.wait()
        await leave()

    consumer._session.close = leave_late  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        first = group.create_task(consumer.close())
        await leaving.wait()
        second = group.create_task(consumer.close())
        for _ in range(10):
            await asyncio.sleep(0)  # polls nothing: lets the second one go as far as it can
        assert not second.done()
        may_leave.set()
        await second
        assert first.done()


def test_a_second_close_in_another_thread_returns_when_the_first_one_has(
    shared_cluster: Cluster, topic: str
) -> None:
    consumer = Consumer(shared_cluster.bootstrap)
    consumer.assign([TopicPartition(topic, 0)])
    leave = consumer.core._session.close
    leaving, may_leave = threading.Event(), threading.Event()
    ended: list[str] = []

    async def leave_late() -> None:
        leaving.set()
        await asyncio.to_thread(may_leave.wait, PATIENCE_S)
        await leave()
        ended.append("left")

    consumer.core._session.close = leave_late  # type: ignore[method-assign]
    first = threading.Thread(target=consumer.close)
    first.start()
    assert leaving.wait(PATIENCE_S)
    threading.Timer(0.1, may_leave.set).start()
    consumer.close()
    assert ended == ["left"]
    first.join()


async def test_closing_wakes_a_poll_that_waits(shared_cluster: Cluster, topic: str) -> None:
    consumer = AsyncConsumer(shared_cluster.bootstrap)
    await consumer.assign([TopicPartition(topic, 0)])
    async with asyncio.TaskGroup() as group:
        polling = group.create_task(expect_closed(consumer))
        await asyncio.sleep(0)  # polls nothing: lets the poll begin
        await consumer.close()
    assert polling.done()


async def expect_closed(consumer: AsyncConsumer) -> None:
    with pytest.raises(ClusterError, match="closed"):
        await consumer.poll(PATIENCE_S)


def test_a_loop_over_records_ends_when_another_thread_closes(
    shared_cluster: Cluster, topic: str
) -> None:
    consumer = Consumer(shared_cluster.bootstrap)
    consumer.assign([TopicPartition(topic, 0)])
    polling = threading.Event()
    collect = consumer.core._assignment.collect

    def collect_and_say_so(max_records: int) -> list[ConsumedBatch]:
        polling.set()
        return collect(max_records)

    consumer.core._assignment.collect = collect_and_say_so  # type: ignore[method-assign]

    def close() -> None:
        assert polling.wait(PATIENCE_S)
        consumer.close()

    closing = threading.Thread(target=close)
    closing.start()
    assert list(consumer) == []
    closing.join()
    assert list(consumer) == []


async def test_an_async_loop_over_records_ends_at_a_close_but_not_silently_at_a_defect(
    shared_cluster: Cluster, topic: str
) -> None:
    fill(shared_cluster, topic, [b"one"])
    here = TopicPartition(topic, 0)
    async with AsyncConsumer(shared_cluster.bootstrap, auto_offset_reset="earliest") as closed:
        await closed.assign([here])
        async for _ in closed:
            await closed.close()
    async with AsyncConsumer(shared_cluster.bootstrap, auto_offset_reset="earliest") as broken:
        await broken.assign([here])
        records = aiter(broken)
        await anext(records)
        broken._crashed(ValueError("a defect"))
        with pytest.raises(ClusterError, match="a defect"):
            await anext(records)


def test_a_poll_before_there_is_anything_to_read_says_so(
    shared_cluster: Cluster, topic: str
) -> None:
    with Consumer(shared_cluster.bootstrap) as consumer:
        with pytest.raises(MisuseError, match="call subscribe or assign before poll"):
            consumer.poll(0)
        with pytest.raises(MisuseError, match="call subscribe or assign before poll"):
            next(iter(consumer))
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(0) == []


@pytest.mark.parametrize("timeout_s", [-1, -0.5, float("nan"), "1"])
def test_a_time_that_no_poll_can_wait_is_refused(
    shared_cluster: Cluster, topic: str, timeout_s: Any
) -> None:
    with Consumer(shared_cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(MisuseError, match=r"timeout_s is .* 0 or more, or None"):
            consumer.poll(timeout_s)


async def test_a_poll_without_a_limit_waits_as_long_as_it_takes(
    shared_cluster: Cluster, topic: str
) -> None:
    async with (
        AsyncConsumer(shared_cluster.bootstrap) as consumer,
        AsyncProducer(shared_cluster.bootstrap) as producer,
        asyncio.TaskGroup() as group,
    ):
        await consumer.assign([TopicPartition(topic, 0)])
        assert await consumer.poll(0) == []
        polling = group.create_task(consumer.poll(None))
        await asyncio.wait([polling], timeout=0)
        assert not polling.done()
        await producer.send(topic, b"v", partition=0)
        (batch,) = await polling
        assert batch.values() == [b"v"]


async def test_after_a_program_cancelled_all_tasks_a_consumer_says_so(
    shared_broker: Cluster,
) -> None:
    """A loop over records must not end as after `close`, as if that were all."""
    shared_broker.create_topic("consumer.cancelled")
    consumer = AsyncConsumer(shared_broker.bootstrap)
    await consumer.assign([TopicPartition("consumer.cancelled", 0)])
    await consumer.poll(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    with pytest.raises(ClusterError, match="create one in each event loop"):
        _ = [record async for record in consumer]
    await consumer.close()
