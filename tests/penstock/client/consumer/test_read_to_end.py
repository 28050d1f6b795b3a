"""`read_to_end` on real brokers: all that is there at the call, once, as objects and as tables."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.waiting import wait_until

from penstock.client import (
    EARLIEST,
    LATEST,
    Admin,
    AsyncConsumer,
    Consumer,
    DecodeError,
    JsonSerializer,
    Producer,
    ReadResult,
    TopicPartition,
    json_decoder,
    protobuf_decoder,
    string_decoder,
)
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.consumer.fetcher import Call, Fetcher
from penstock.errors import ClusterError, ErrorCode, MisuseError, OffsetOutOfRangeError
from penstock.proto.v1.broker_pb2 import BrokerInfo


@pytest.fixture
def topic(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions for this test alone."""
    name = own_name(request)
    shared_broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def consumer(shared_broker: Cluster) -> Iterator[Consumer]:
    with Consumer(shared_broker.bootstrap) as consumer:
        yield consumer


@pytest.fixture
def producer(shared_broker: Cluster) -> Iterator[Producer]:
    with Producer(shared_broker.bootstrap, batch_bytes=500) as producer:
        yield producer


def fill(
    producer: Producer, topic: str, *values: bytes, partition: int = 0, first_ms: int = 0
) -> None:
    """Records a millisecond apart from `first_ms`, if that is given."""
    for index, value in enumerate(values):
        time_ms = first_ms + index if first_ms else None
        producer.send(topic, value, partition=partition, timestamp_ms=time_ms)
    producer.flush(120)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def values_of(result: ReadResult, partition: int | None = None) -> list[Any]:
    return [one.value for one in result.records if partition in (None, one.partition)]


def test_a_notebook_shows_a_result_in_one_line(
    consumer: Consumer, producer: Producer, topic: str
) -> None:
    fill(producer, topic, b"a", b"b")
    producer.flush()
    assert repr(consumer.read_to_end(topic)) == f"<ReadResult: 2 records of {topic}>"
    some = consumer.read_to_end(topic, max_records=1)
    assert repr(some) == f"<ReadResult: 1 records of {topic}, truncated>"


def test_all_is_read_in_order_and_what_comes_later_is_not(
    topic: str, consumer: Consumer, producer: Producer
) -> None:
    fill(producer, topic, *numbers(300))
    fill(producer, topic, *numbers(50, 1_000), partition=1)
    first = consumer.read_to_end(topic)
    assert (len(first), first.truncated) == (350, False)
    assert values_of(first, 0) == numbers(300)
    assert values_of(first, 1) == numbers(50, 1_000)
    assert first.next_offsets == {TopicPartition(topic, 0): 300, TopicPartition(topic, 1): 50}
    fill(producer, topic, *numbers(10, 300))
    assert len(first) == 350
    assert values_of(consumer.read_to_end(topic, first.next_offsets)) == numbers(10, 300)
    assert consumer.assignment() == set()


def test_an_empty_topic_is_an_empty_result(topic: str, consumer: Consumer) -> None:
    found = consumer.read_to_end(topic)
    assert (found.records, found.truncated) == ([], False)
    assert found.to_arrow().num_rows == 0
    assert len(consumer.read_to_end(topic, LATEST)) == 0


def test_a_read_starts_at_a_time_at_offsets_or_in_some_partitions(
    topic: str, consumer: Consumer, producer: Producer
) -> None:
    fill(producer, topic, *numbers(100), first_ms=1_700_000_000_000)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    since = datetime.fromtimestamp(1_700_000_000.090, UTC)
    assert values_of(consumer.read_to_end(topic, since)) == numbers(10, 90)
    late = datetime(2100, 1, 1, tzinfo=UTC)
    assert values_of(consumer.read_to_end(topic, late)) == []
    assert values_of(consumer.read_to_end([zero], {zero: 95})) == numbers(5, 95)
    fill(producer, topic, b"x", partition=1)
    assert values_of(consumer.read_to_end([one])) == [b"x"]
    both = consumer.read_to_end(topic, {zero: 99})
    assert sorted(values_of(both)) == [b"99", b"x"]


def test_a_limit_of_records_cuts_and_says_where_it_goes_on(
    topic: str, consumer: Consumer, producer: Producer
) -> None:
    fill(producer, topic, *numbers(100))
    found, start = [], EARLIEST
    while True:
        part = consumer.read_to_end(topic, start, max_records=30)
        found.append(len(part))
        start = part.next_offsets  # type: ignore[assignment]  # any start
        if not part.truncated:
            break
    assert found == [30, 30, 30, 10]


def test_a_read_that_is_too_large_is_refused_not_cut(
    topic: str, consumer: Consumer, producer: Producer
) -> None:
    fill(producer, topic, *[b"x" * 400] * 10)
    with pytest.raises(MisuseError, match=r"more than max_bytes, 1,000 bytes.*of 0 to 10 in"):
        consumer.read_to_end(topic, max_bytes=1_000)
    assert len(consumer.read_to_end(topic, max_bytes=4_000)) == 10


def test_open_transactions_end_a_read_and_aborted_records_are_not_in_it(
    shared_broker: Cluster, topic: str, consumer: Consumer
) -> None:
    with Producer(shared_broker.bootstrap, transactional_id=topic) as transactional:
        with transactional.transaction() as kept:
            kept.send(topic, b"kept", partition=0)
        undone = transactional.transaction()
        undone.begin()
        undone.send(topic, b"aborted", partition=0).result(120)
        undone.abort()
        # Markers are written after the decision; until then, readers wait before the record.
        here = TopicPartition(topic, 0)
        with Admin(shared_broker.bootstrap) as admin:
            wait_until(
                lambda: admin.list_offsets({here: LATEST})[here].offset >= 4, what="all is decided"
            )
        with transactional.transaction() as still_open:
            still_open.send(topic, b"open", partition=0).result(120)
            assert values_of(consumer.read_to_end(topic)) == [b"kept"]
            with Consumer(shared_broker.bootstrap, isolation_level="read_uncommitted") as dirty:
                assert values_of(dirty.read_to_end(topic)) == [b"kept", b"aborted", b"open"]


def test_a_member_of_a_group_reads_beside_its_group(
    shared_broker: Cluster, topic: str, producer: Producer
) -> None:
    fill(producer, topic, *numbers(10))
    with Consumer(shared_broker.bootstrap, group_id=topic, auto_offset_reset="latest") as member:
        member.subscribe(topic)
        wait_until(
            lambda: member.poll(0.05) == [] and len(member.assignment()) == 2, what="it has joined"
        )
        assert len(member.read_to_end(topic)) == 10
        assert member.committed([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): None}
        assert member.position(TopicPartition(topic, 0)) == 10
        with Admin(shared_broker.bootstrap) as admin:
            assert len(admin.describe_group(topic).members) == 1


async def test_the_async_consumer_reads_the_same(
    shared_broker: Cluster, topic: str, producer: Producer
) -> None:
    fill(producer, topic, *numbers(10))
    async with AsyncConsumer(shared_broker.bootstrap) as consumer:
        found = await consumer.read_to_end(topic, value=json_decoder())
        assert values_of(found) == list(range(10))
        await consumer.close()
        with pytest.raises(ClusterError, match="closed"):
            await consumer.read_to_end(topic)


def test_wrong_arguments_are_refused_with_what_to_do(topic: str, consumer: Consumer) -> None:
    here = TopicPartition(topic, 0)
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - what is refused
    refused: list[tuple[Any, Any, dict[str, Any], str]] = [
        (topic, naive, {}, "no time zone"),
        (topic, 5, {}, "use EARLIEST or LATEST, a datetime"),
        (topic, "earliest", {}, "use EARLIEST or LATEST, a datetime"),
        (topic, {TopicPartition("other", 0): 1}, {}, "other/0, which is not read; 2 partitions"),
        (topic, {here: -1}, {}, "it must be 0 or more"),
        ([], EARLIEST, {}, "at least one TopicPartition"),
        ([TopicPartition(topic, 2)], EARLIEST, {}, "has partitions 0 to 1, not 2"),
        (topic, EARLIEST, {"max_records": 0}, "max_records must be a whole number above 0"),
        (topic, EARLIEST, {"max_bytes": 0}, "max_bytes must be a whole number above 0"),
        (topic, EARLIEST, {"value": "json"}, "it must be a decoder"),
    ]
    for source, start, options, text in refused:
        with pytest.raises(MisuseError, match=text):
            consumer.read_to_end(source, start, **options)
    with pytest.raises(OffsetOutOfRangeError, match="offset 1 is after the end of the log"):
        consumer.read_to_end(topic, {here: 1})
    with pytest.raises(ClusterError, match="does not exist") as seen:
        consumer.read_to_end("no.such.topic")
    assert seen.value.code is ErrorCode.UNKNOWN_TOPIC


def test_offsets_that_retention_removed_are_an_error(
    shared_broker: Cluster, topic: str, consumer: Consumer, producer: Producer
) -> None:
    fill(producer, topic, *numbers(20))
    here = TopicPartition(topic, 0)
    with Admin(shared_broker.bootstrap) as admin:
        admin.delete_records({here: 10})
    assert values_of(consumer.read_to_end(topic)) == numbers(10, 10)
    with pytest.raises(OffsetOutOfRangeError, match="offset 3 is not in the log"):
        consumer.read_to_end(topic, {here: 3})


def test_json_becomes_columns(topic: str, consumer: Consumer, producer: Producer) -> None:
    rows: list[Any] = [{"city": "Bern", "n": 2**60 + 1}, {"city": "Ürgüp"}, None]
    for row in rows:
        producer.send(topic, JsonSerializer()("", row), key=b"k", partition=0)
    producer.flush(120)
    found = consumer.read_to_end(topic, key=string_decoder(), value=json_decoder())
    assert values_of(found) == rows
    table = found.to_arrow(include_headers=True)
    assert table["value"].to_pylist() == [rows[0], {"city": "Ürgüp", "n": None}, None]
    assert table.column_names[:2] == ["key", "value"]
    assert table["key"].to_pylist() == ["k"] * 3
    frame = found.to_pandas()
    assert list(frame)[:3] == ["key", "value.city", "value.n"]
    assert frame["value.n"][0] == 2**60 + 1
    assert frame["value.n"].isna().tolist() == [False, True, True]
    assert str(frame["offset"].dtype) == "int64"
    assert str(frame["timestamp"].dtype) == "datetime64[us, UTC]"


def test_integers_stay_exact_though_one_is_missing(
    topic: str, consumer: Consumer, producer: Producer
) -> None:
    fill(producer, topic, b"%d" % (2**60 + 1), b"null")
    frame = consumer.read_to_end(topic, value=json_decoder()).to_pandas()
    assert frame["value"][0] == 2**60 + 1
    assert frame["value"].isna().tolist() == [False, True]


def test_messages_become_columns(topic: str, consumer: Consumer, producer: Producer) -> None:
    message = BrokerInfo(broker_id=3, host="h", alive=True)
    fill(producer, topic, message.SerializeToString())
    found = consumer.read_to_end(topic, value=protobuf_decoder(BrokerInfo))
    assert values_of(found) == [message]
    frame = found.to_pandas()
    assert (frame["value.broker_id"][0], frame["value.host"][0]) == (3, "h")


def test_polars_gets_the_same_columns(topic: str, consumer: Consumer, producer: Producer) -> None:
    fill(producer, topic, b'{"a":1}', b'{"a":null}')
    frame = consumer.read_to_end(topic, value=json_decoder()).to_polars()
    assert frame["value.a"].to_list() == [1, None]
    assert frame["offset"].to_list() == [0, 1]


def test_a_record_that_cannot_be_decoded_stops_or_is_kept(
    topic: str, consumer: Consumer, producer: Producer
) -> None:
    fill(producer, topic, b'{"a":1}', b"?")
    strict = consumer.read_to_end(topic, value=json_decoder())
    for convert in (lambda: strict.records, strict.to_arrow, strict.to_pandas):
        with pytest.raises(DecodeError, match="/0 offset 1: cannot decode the value"):
            convert()
    kept = consumer.read_to_end(topic, value=json_decoder(), on_undecodable="keep")
    assert [one.raw.value for one in kept.records if one.error] == [b"?"]
    table = kept.to_arrow(flatten=True)
    assert table["value.a"].to_pylist() == [1, None]
    good, bad = table["error"].to_pylist()
    assert good is None
    assert "offset 1: cannot decode the value" in bad


def test_values_without_a_common_type_are_no_column(
    topic: str, consumer: Consumer, producer: Producer
) -> None:
    fill(producer, topic, b"1", b'"one"')
    found = consumer.read_to_end(topic, value=json_decoder())
    assert values_of(found) == [1, "one"]
    with pytest.raises(MisuseError, match="the decoded values have no common Arrow type"):
        found.to_arrow()


@pytest.mark.parametrize(
    ("package", "convert", "line"),
    [
        ("pandas", "to_pandas", "pip install pandas"),
        ("polars", "to_polars", "pip install polars"),
    ],
)
def test_a_missing_package_is_one_line(
    package: str,
    convert: str,
    line: str,
    topic: str,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = consumer.read_to_end(topic)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MisuseError, match=line):
        getattr(found, convert)()


def test_a_partition_that_gives_nothing_is_named_and_not_left_out(
    shared_broker: Cluster, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(producer, topic, b"x")
    fill(producer, topic, b"y", partition=1)
    passes = Fetcher._ask

    def silent(self: Fetcher, address: str, states: list[FetchState], at_ms: int) -> Call:
        """Nothing is asked of partition 1."""
        return passes(self, address, [one for one in states if one.where.partition == 0], at_ms)

    monkeypatch.setattr(Fetcher, "_ask", silent)
    with Consumer(shared_broker.bootstrap, request_timeout_ms=2_000) as impatient:

        def is_named() -> bool:
            with pytest.raises(ClusterError) as seen:
                impatient.read_to_end(topic)
            # Or on a machine that stalled, something else took as long.
            assert seen.value.code in {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNREACHABLE}
            return "/1: no records at offset 0 (of 0 to 1)" in seen.value.message

        wait_until(is_named, what="the partition that gives nothing is named")
