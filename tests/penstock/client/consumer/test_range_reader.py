"""Reading ranges with blocking calls: every record of [start, end) once and in order, or an error.

Most of it against a scripted log (`support.range_log`); at the end, ranges of a real broker.
"""

import random
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.range_log import ScriptedFetcher, batch_at
from support.waiting import wait_until

from penstock.client import Admin, ConsumedBatch, Producer, TopicPartition
from penstock.client.consumer import range_reader
from penstock.client.consumer.range_fetcher import open_range_reader
from penstock.client.consumer.range_reader import (
    FetchedBatches,
    LostRecords,
    NoProgressError,
    OnLost,
    RangeConfig,
    RangeReader,
    RecordRange,
)
from penstock.core.batch import Batch, BatchFlags
from penstock.errors import (
    ClusterError,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetRange,
    PenstockError,
    UnreachableError,
)


def span(partition: int, start: int, end: int) -> RecordRange:
    return RecordRange(TopicPartition("t", partition), start, end)


def never(lost: LostRecords) -> None:
    raise AssertionError(f"nothing was lost: {lost}")


def read(
    log: ScriptedFetcher,
    *ranges: RecordRange,
    on_lost: OnLost = never,
    progress_timeout_ms: int = 60_000,
) -> Iterator[ConsumedBatch]:
    reader = RangeReader(log, RangeConfig(progress_timeout_ms=progress_timeout_ms))
    return reader.read(ranges, on_lost)


def offsets(batches: Iterable[ConsumedBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets()]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "FIRST_PAUSE_S", 0.001)


@pytest.mark.parametrize("per_answer", [1, 2, 9])
def test_a_range_is_cut_out_of_the_partsaround_it(per_answer: int) -> None:
    log = ScriptedFetcher([batch_at(base, 10) for base in range(0, 50, 10)], 50, per_answer)
    assert offsets(read(log, span(0, 7, 33))) == list(range(7, 33))


def test_every_range_of_every_log_comes_out_whole() -> None:
    seed = 20_240
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(60):
        held: list[int] = []
        batches: list[Batch] = []
        at = 0
        while len(batches) < 8:
            at += rng.choice([0, 0, 0, 3, 40])  # gaps, as compaction leaves them
            count = rng.randint(1, 12)
            control = rng.random() < 0.2
            flags = BatchFlags.CONTROL if control else BatchFlags.NONE
            batches.append(batch_at(at, count, flags=flags))
            held += [] if control else range(at, at + count)
            at += count
        end = at + rng.choice([0, 15])
        lo, hi = sorted(rng.randint(0, end) for _ in range(2))
        log = ScriptedFetcher(batches, end, rng.randint(1, 4))
        seen = offsets(read(log, span(0, lo, hi)))
        assert seen == [offset for offset in held if lo <= offset < hi]


def test_one_fetch_is_under_way_while_records_are_consumed() -> None:
    log = ScriptedFetcher([batch_at(base, 10) for base in range(0, 30, 10)], 30)
    parts = read(log, span(0, 0, 20), span(1, 0, 10))
    next(parts)
    assert log.asked == [0, 10]
    next(parts)
    assert log.asked == [0, 10, 0]  # of the next range, before this one is consumed
    next(parts)
    assert log.most_under_way == 1
    assert next(parts, None) is None
    assert log.under_way == 0


def test_an_abandoned_read_cancels_its_fetch() -> None:
    log = ScriptedFetcher([batch_at(base, 10) for base in range(0, 30, 10)], 30)
    parts = read(log, span(0, 0, 30))
    next(parts)
    assert isinstance(parts, Generator)
    parts.close()
    assert (log.under_way, log.cancelled) == (0, 1)


def test_a_short_range_does_not_ask_for_megabytes() -> None:
    log = ScriptedFetcher([batch_at(0, 1000), batch_at(1000, 1000)], 2000)
    assert offsets(read(log, span(0, 0, 1050))) == list(range(1050))
    assert log.sizes[0] < 2 << 20
    assert log.sizes[1] == 64 << 10
    long = ScriptedFetcher([batch_at(0, 1000)], 1000)
    next(read(long, span(0, 0, 10**9)))
    assert set(long.sizes) == {4 << 20}


@pytest.mark.parametrize(
    "problem",
    [
        NotLeaderError("moved"),
        UnreachableError("killed"),
        ClusterError("slow", ErrorCode.REQUEST_TIMED_OUT),
        ClusterError("new", ErrorCode.UNKNOWN_TOPIC),
        OffsetOutOfRangeError("not committed here yet", OffsetRange(0, 3)),
        OffsetOutOfRangeError("no details"),
        FetchedBatches((), 2),  # the new leader's end is behind
        FetchedBatches([batch_at(0, 4)], 20),  # only what was read before
    ],
    ids=str,
)
def test_what_passes_is_waited_out(problem: PenstockError | FetchedBatches) -> None:
    batches = [batch_at(0, 10), batch_at(10, 10)]
    for fail_at in (0, 1):
        log = ScriptedFetcher(batches, 20)
        parts = read(log, span(0, 5, 20))
        seen = []
        if fail_at == 0:
            log.failures.extend([problem, problem, problem])
        else:
            seen += offsets(iter([next(parts)]))  # the second fetch is under way
            assert isinstance(parts, Generator)
            parts.close()
            log.failures.extend([problem])
            parts = read(log, span(0, 10, 20))
        assert seen + offsets(parts) == list(range(5, 20))


def test_past_the_deadline_topic_partition_offset_and_reason_are_named() -> None:
    log = ScriptedFetcher([batch_at(0, 10)], 10)
    with pytest.raises(NoProgressError) as caught:
        offsets(read(log, span(3, 0, 20), progress_timeout_ms=30))
    message = str(caught.value)
    assert message.startswith("t/3: no records at offset 10 (of 0 to 20) within 30 ms")
    assert "readable up to 10" in message
    assert "\n" not in message
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_answers_that_never_get_on_end_at_the_deadline_too() -> None:
    log = ScriptedFetcher([], 50, failures=deque([FetchedBatches([batch_at(0, 4)], 50)] * 10_000))
    with pytest.raises(ClusterError, match="no records at offset 5"):
        offsets(read(log, span(0, 5, 20), progress_timeout_ms=30))


def test_an_error_that_waiting_does_not_cure_is_raised_at_once() -> None:
    log = ScriptedFetcher([], 0, failures=deque([ClusterError("no", ErrorCode.DATA_CORRUPTED)]))
    with pytest.raises(ClusterError, match="t/0 at offset 4: no") as caught:
        offsets(read(log, span(0, 4, 9)))
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_a_batch_that_lies_is_refused_with_its_place() -> None:
    good = batch_at(0, 10)
    log = ScriptedFetcher([Batch(good.header, b"x" + good.payload[1:])], 10)
    with pytest.raises(ClusterError, match=r"t/0, batch at offset 0: .*CRC"):
        offsets(read(log, span(0, 0, 10)))


LOSSES = {
    "retention": (OffsetOutOfRangeError("gone", OffsetRange(12, 20)), 12, "available are 12 to 20"),
    "again": (ClusterError("other id", ErrorCode.TOPIC_ID_MISMATCH), 20, "created again"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_who_reads_is_told_of_lost_records_and_may_go_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, resume_at, words = LOSSES[name]
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_PATIENCE_S", 0)
    log = ScriptedFetcher([batch_at(0, 10), batch_at(10, 10)], 20, failures=deque([problem]))
    told: list[LostRecords] = []
    seen = offsets(read(log, span(0, 0, 20), span(1, 0, 5), on_lost=told.append))
    assert seen == [*range(resume_at, 20), *range(5)]
    [lost] = told
    assert (lost.where, lost.position, lost.resume_at) == (TopicPartition("t", 0), 0, resume_at)
    assert words in str(lost)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION])
def test_a_topic_out_of_sight_is_an_error_to_try_again_after_and_no_loss(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_PATIENCE_S", 0)
    log = ScriptedFetcher([batch_at(0, 10)], 10, failures=deque([ClusterError("unknown", code)]))
    told: list[LostRecords] = []
    with pytest.raises(
        ClusterError, match=r"t/0 at offset 0: .* may not see it any more"
    ) as caught:
        offsets(read(log, span(0, 0, 10), on_lost=told.append))
    assert (caught.value.code, caught.value.retriable, told) == (code, True, [])


def test_another_id_seen_once_is_asked_for_again_before_it_is_believed() -> None:
    log = ScriptedFetcher([batch_at(0, 10)], 10, failures=deque([LOSSES["again"][0]]))
    told: list[LostRecords] = []
    assert offsets(read(log, span(0, 0, 10), on_lost=told.append)) == [*range(10)]
    assert told == []


def test_who_does_not_want_to_go_on_raises_and_nothing_more_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_PATIENCE_S", 0)

    class GoneError(Exception):
        pass

    def refuse(lost: LostRecords) -> None:
        raise GoneError(lost)

    failures: deque[PenstockError | FetchedBatches] = deque([LOSSES["again"][0]])
    log = ScriptedFetcher([batch_at(0, 10)], 10, failures=failures)
    with pytest.raises(GoneError):
        offsets(read(log, span(0, 0, 10), on_lost=refuse))
    assert (log.asked, log.under_way) == ([0], 0)


# --- a real broker


def reader_of(cluster: Cluster, *, cluster_id: str = "", **settings: Any) -> RangeReader:
    config = RangeConfig(**{"fetch_max_wait_ms": 100, "progress_timeout_ms": 20_000} | settings)
    return open_range_reader(tuple(cluster.bootstrap.split(",")), config, cluster_id=cluster_id)


def values(batches: Iterable[ConsumedBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.values()]


def test_ranges_of_a_real_log_end_where_they_should(
    shared_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    topic = own_name(request)
    shared_cluster.create_topic(topic, partitions=2)
    with Producer(shared_cluster.bootstrap, batch_bytes=1_000) as producer:
        for number in range(600):
            producer.send(topic, b"%d" % number, partition=number % 2)
    reader = reader_of(shared_cluster)
    wanted = [
        RecordRange(TopicPartition(topic, 1), 7, 291),
        RecordRange(TopicPartition(topic, 0), 0, 300),
    ]
    seen = [record for batch in reader.read(wanted, never) for record in batch.records()]
    assert [(record.partition, record.offset, record.value) for record in seen] == [
        *((1, offset, b"%d" % (2 * offset + 1)) for offset in range(7, 291)),
        *((0, offset, b"%d" % (2 * offset)) for offset in range(300)),
    ]


def test_an_open_transaction_is_read_by_whoever_asks_for_it_only(
    shared_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    topic = own_name(request)
    shared_cluster.create_topic(topic)
    where = TopicPartition(topic, 0)
    with Producer(shared_cluster.bootstrap, transactional_id=topic) as producer:
        with producer.transaction() as tx:
            tx.send(topic, b"committed").result(120)
        with producer.transaction() as tx:
            open_at = tx.send(topic, b"open").result(120).offset
            everything = [RecordRange(where, 0, open_at + 1)]
            reader = reader_of(shared_cluster, isolation_level="read_uncommitted")
            assert values(reader.read(everything, never)) == [b"committed", b"open"]
            before = [RecordRange(where, 0, open_at)]
            assert values(reader_of(shared_cluster).read(before, never)) == [b"committed"]
            reader = reader_of(shared_cluster, progress_timeout_ms=300)

            def is_told() -> bool:
                with pytest.raises(NoProgressError) as stuck:
                    list(reader.read([RecordRange(where, open_at, open_at + 1)], never))
                # Or the leader did not say anything in time.
                return f"readable up to {open_at} so far" in stuck.value.message

            wait_until(is_told, what="where the open transaction begins")
            tx.abort()


def test_a_topic_that_was_created_again_is_not_read_for_its_predecessor(
    shared_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    topic = own_name(request)
    with Admin(shared_cluster.bootstrap) as admin:
        first = admin.create_topic(topic, 1, 1)
        reader = reader_of(shared_cluster)
        where = TopicPartition(topic, 0)
        with Producer(shared_cluster.bootstrap) as producer:
            producer.send(topic, b"old").result(120)
        wanted = [RecordRange(where, 0, 1, first.topic_id)]
        assert values(reader.read(wanted, never)) == [b"old"]
        admin.delete_topic(topic)
        admin.create_topic(topic, 1, 1)
    told: list[LostRecords] = []
    assert list(reader.read(wanted, told.append)) == []
    assert [(lost.where, lost.resume_at) for lost in told] == [(where, 1)]
    assert "created again" in str(told[0])


def test_another_cluster_is_refused(
    shared_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    topic = own_name(request)
    shared_cluster.create_topic(topic)
    reader = reader_of(shared_cluster, cluster_id="of-somebody-else")
    with pytest.raises(ClusterError) as refused:
        list(reader.read([RecordRange(TopicPartition(topic, 0), 0, 1)], never))
    assert refused.value.code is ErrorCode.CLUSTER_ID_MISMATCH
