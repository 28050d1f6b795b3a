"""Records that the target cannot take are found before, and named with the way out."""

from collections.abc import Sequence
from dataclasses import replace
from time import time_ns
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from support.copied import MemoryEnd, row, rows_of

from penstock.client.producer.accumulator import BATCH_OVERHEAD_BYTES
from penstock.core.columns import Header
from penstock.core.records import encode_columns
from penstock.core.records_wire import encode_message
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode
from penstock.migration.copying import Copy
from penstock.migration.fitting import kafka_limit, own_limit, too_large, unfit
from penstock.migration.model import Rows, Topic
from penstock.migration.plan import Action, Spread, into_penstock
from penstock.migration.reading import CopyError
from penstock.migration.run import Migration

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC = Topic(name="t", partitions=2, replicas=1, max_message_bytes=100)
RECORDS: list[tuple[bytes | None, bytes | None, Sequence[Header]]] = [
    (None, None, []),
    (b"", b"", []),
    (b"k", b"v" * 63, []),
    (b"k" * 64, b"v" * 8_192, [("h", b"1"), ("null", None), ("", b"")]),
    (None, b"v" * 1_000_000, [("ü" * 100, b"x" * 100)]),
]


@pytest.mark.parametrize("record", RECORDS)
def test_what_a_record_needs_here_is_what_our_producer_asks_for(record: Any) -> None:
    key, value, headers = record
    columns = encode_columns([value], [key], timestamps_ms=5, headers=[headers])
    size = len(encode_message(columns)) + BATCH_OVERHEAD_BYTES
    assert own_limit(key, value, headers) == size
    expect_limit(record, own_limit)


@pytest.mark.parametrize("record", RECORDS)
def test_what_a_record_needs_in_kafka_is_its_batch(record: Any) -> None:
    key, value, headers = record
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=10_000_000,
    )  # fmt: skip
    builder.append(0, 5, key, value, headers)
    assert kafka_limit(key, value, headers) == len(builder.build())
    expect_limit(record, kafka_limit)


def expect_limit(record: Any, measure: Any) -> None:
    """A byte less is too little."""
    key, value, headers = record
    rows, needs = Rows(1, [0], [key], [value], [5], [headers or None]), measure(*record)
    assert too_large(rows, needs, measure) == []
    (misfit,) = too_large(rows, needs - 1, measure)
    assert (misfit.index, misfit.needs_bytes) == (0, needs)
    assert misfit.why == (
        f"it needs {needs} bytes, and max.message.bytes of the target's topic is {needs - 1}; "
        f"set that to {needs} or more"
    )


def test_a_record_that_no_topic_can_take_is_said_to_be_one() -> None:
    rows = rows_of(0, row("x" * (32 * 1024 * 1024)))
    (misfit,) = too_large(rows, 1_000, own_limit)
    assert "33554432 is the most there can be, so leave the topic out" in misfit.why


def ends() -> tuple[MemoryEnd, MemoryEnd]:
    source, into = MemoryEnd(), MemoryEnd()
    source.create(TOPIC)
    small, large = row("x"), row("x" * 600)
    source.logs[A].entries = [None, small, large, None, small, row("x" * 700)]
    source.logs[B].entries = [small, row("x" * 650), small]
    return source, into


def test_the_largest_record_of_each_topic_is_named() -> None:
    source, into = ends()
    found = unfit(source, into, {A: 0, B: 0}, {"t": TOPIC}, lambda _: None)
    assert found == {
        "t": "record t/0, offset 5: it needs 700 bytes, and max.message.bytes of the target's "
        "topic is 100; set that to 700 or more (3 records do not fit; this is the largest)"
    }
    assert (
        unfit(
            source, into, {A: 0, B: 0}, {"t": replace(TOPIC, max_message_bytes=700)}, lambda _: None
        )
        == {}
    )
    assert "(" not in unfit(source, into, {A: 3, B: 2}, {"t": TOPIC}, lambda _: None)["t"]
    assert unfit(source, into, {A: 6, B: 3}, {"t": TOPIC}, lambda _: None) == {}


def test_a_plan_is_refused_before_anything_is_written() -> None:
    source, into = ends()
    into.create(replace(TOPIC, configs={}))
    into.limit = 2
    migration = Migration(
        source, into, lambda _: "", lambda topic: into_penstock(topic, Spread.UNKNOWN)
    )
    (plan,) = migration.prepare(["t"])
    assert plan.action is Action.FILL
    (scanned,) = migration.scanned([plan], lambda _: None)
    assert scanned.action is Action.REFUSED
    assert scanned.reason.startswith("record t/0, offset 5: it needs 700 bytes")
    assert into.logs[A].entries == []


def test_what_was_copied_is_not_looked_at_again() -> None:
    source, into = ends()
    into.create(replace(TOPIC, max_message_bytes=1_000))
    Copy(source, into, [A, B]).begin()
    migration = Migration(
        source, into, lambda _: "", lambda topic: into_penstock(topic, Spread.UNKNOWN)
    )
    done = migration.execute(
        migration.prepare(["t"]), follow=False, stop=lambda: False, report=lambda _: None
    )
    assert done.complete
    into.known["t"] = TOPIC
    source.logs[A].entries.append(row("small"))
    (plan,) = migration.scanned(migration.prepare(["t"]), lambda _: None)
    assert plan.action is Action.CONTINUE


@pytest.mark.parametrize("late", [False, True], ids=["at once", "by its answer"])
def test_a_record_that_comes_later_ends_the_copy_with_its_name(late: bool) -> None:
    source, into = ends()
    into.create(TOPIC)
    copy = Copy(source, into, [A, B])
    copy.begin()
    append = into.append

    class Refused:
        def done(self) -> bool:
            return True

        def base_offset(self) -> int:
            raise ClusterError("too large", ErrorCode.RECORD_TOO_LARGE)

    def refuse(where: TopicPartition, rows: Rows) -> Any:
        if into.misfits(rows, TOPIC):
            return Refused() if late else Refused().base_offset()
        return append(where, rows)

    into.append = refuse  # type: ignore[method-assign]
    with pytest.raises(CopyError) as caught:
        copy.run(follow=True, stop=lambda: False, report=lambda _: None)
    assert caught.value.message == (
        "memory: record t/0, offset 2: it needs 600 bytes, and max.message.bytes of the target's "
        "topic is 100; set that to 600 or more; then the same command continues"
    )


def test_records_that_settings_exclude_are_found() -> None:
    """Old ones, such from the future, and those without a key where only keys count."""
    day_ms, now_ms = 86_400_000, time_ns() // 1_000_000
    times = (now_ms - 3 * day_ms, now_ms, now_ms + 3 * day_ms)
    rows = rows_of(
        0, *[(key, b"v", at, None) for key, at in zip((b"k", None, b"k"), times, strict=True)]
    )
    end = MemoryEnd()

    def refused(**configs: str) -> list[tuple[int, str]]:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        return [
            (each.index, each.why) for each in end.misfits(rows, replace(TOPIC, inherited=named))
        ]

    assert refused() == []
    assert refused(cleanup_policy="delete", message_timestamp_before_max_ms=str(2**63 - 1)) == []
    ((index, why),) = refused(message_timestamp_before_max_ms=str(day_ms))
    assert (index, f"before.max.ms of the target's topic is {day_ms}; set that to" in why) == (
        0,
        True,
    )
    ((index, why),) = refused(message_timestamp_after_max_ms=str(day_ms))
    assert (index, f"after.max.ms of the target's topic is {day_ms}; set that to" in why) == (
        2,
        True,
    )
    assert refused(cleanup_policy="compact") == [
        (1, "it has no key, and the target's topic is compacted: leave the topic out")
    ]
