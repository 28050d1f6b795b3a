"""Idempotence decided on a table: what is appended, what was there before, what is refused (I9)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.replica_driver import Driver

from penstock.core.batch import BatchHeader
from penstock.core.replication import producers
from penstock.core.replication.contract import (
    Checkpoint,
    ProducerEntry,
    ProducersExpired,
    RecoveredLog,
)
from penstock.core.replication.producers import (
    Append,
    Duplicate,
    ProducerTable,
    Refused,
    fair_limit,
)
from penstock.core.types import LeaderEpoch, Offset, ProducerId
from penstock.errors import ErrorCode

LAST = 2**31 - 1


def header(
    base: int, count: int = 1, *, producer: int = 7, epoch: int = 0, offset: int = 0
) -> BatchHeader:
    return BatchHeader(
        count,
        0,
        0,
        0,
        0,
        producer_id=ProducerId(producer),
        producer_epoch=epoch,
        base_sequence=base,
        base_offset=Offset(offset),
    )


def table(*batches: tuple[int, int], epoch: int = 0) -> ProducerTable:
    """Batches (base sequence, count) land one after the other from offset 100 on."""
    found, offset = ProducerTable(), 100
    for base, count in batches:
        found.apply(header(base, count, epoch=epoch, offset=offset))
        offset += count
    return found


def code(verdict: object) -> ErrorCode:
    assert isinstance(verdict, Refused), verdict
    return verdict.error.code


SIX = ((0, 10), (10, 10), (20, 10), (30, 10), (40, 10), (50, 10))


@pytest.mark.parametrize(
    ("before", "batch", "expected"),
    [
        ((), header(0), Append()),
        ((), header(1), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (((0, 10),), header(10, 5), Append()),
        (((0, 10),), header(11, 5), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (((0, 10),), header(0, 10), Duplicate(Offset(100), Offset(110))),
        (((0, 10),), header(0, 9), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (((0, 10),), header(5, 5), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (((0, 10),), header(5, 10), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (((0, 10),), header(LAST, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (((0, 10), (10, 10)), header(0, 10), Duplicate(Offset(100), Offset(110))),
        (SIX, header(10, 10), Duplicate(Offset(110), Offset(120))),
        (SIX, header(50, 10), Duplicate(Offset(150), Offset(160))),
        (SIX, header(0, 10), Duplicate(Offset(-1), Offset(110))),
        (SIX, header(3, 2), Duplicate(Offset(-1), Offset(110))),
        (SIX, header(5, 10), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (SIX, header(61, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (SIX, header(0, 1, epoch=1), Append()),
        (SIX, header(60, 1, epoch=1), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (SIX, header(60, 1, epoch=-1), ErrorCode.PRODUCER_FENCED),
        (SIX, header(60, 1, producer=8), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (SIX, header(99, 1, producer=-1), Append()),
        # A log that begins in the middle: what came before its first batch was there.
        (((100, 10),), header(90, 10), Duplicate(Offset(-1), Offset(100))),
        # Sequences wrap.
        (((LAST - 4, 5),), header(0, 3), Append()),
        (((LAST - 4, 10),), header(5, 1), Append()),
        (((LAST - 4, 10),), header(LAST - 4, 10), Duplicate(Offset(100), Offset(110))),
        (((LAST - 4, 10),), header(LAST - 9, 5), Duplicate(Offset(-1), Offset(100))),
        (((LAST - 4, 10),), header(6, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE),
    ],
)
def test_a_batch_is_new_known_or_out_of_order(
    before: tuple[tuple[int, int], ...],
    batch: BatchHeader,
    expected: Append | Duplicate | ErrorCode,
) -> None:
    found = table(*before)
    snapshot = found.snapshot()
    verdict = found.check(batch)
    if isinstance(expected, ErrorCode):
        assert code(verdict) is expected
    else:
        assert verdict == expected
    assert found.snapshot() == snapshot, "looking must not change anything"


def test_errors_say_what_was_expected() -> None:
    refused = table((0, 10)).check(header(12, 3))
    assert isinstance(refused, Refused)
    assert "sequences 12 to 14, expected 10" in refused.error.message


def test_a_snapshot_goes_on_where_the_table_was() -> None:
    found = table(*SIX)
    again = ProducerTable(found.snapshot())
    assert len(again) == 1
    assert again.check(header(60)) == Append()
    assert again.check(header(10, 10)) == found.check(header(10, 10))


def test_a_batch_without_a_producer_leaves_no_trace() -> None:
    found = table((0, 10))
    assert found.apply(header(0, producer=-1)) is None
    assert found.snapshot() == table((0, 10)).snapshot()


def test_an_applied_batch_can_be_taken_back() -> None:
    found = table((0, 10))
    known, unknown = found.get(ProducerId(7)), found.get(ProducerId(8))
    found.apply(header(10, 5, offset=110))
    found.apply(header(0, 5, producer=8, offset=115))
    found.restore([(ProducerId(7), known), (ProducerId(8), unknown)])
    assert found.snapshot() == table((0, 10)).snapshot()


DAY_MS = 24 * 3600 * 1000
NO_LIMIT = producers.PRODUCERS_MAX


def ids(found: ProducerTable) -> list[int]:
    return [entry.producer_id for entry in found.snapshot()]


def test_idle_producers_are_forgotten_after_a_day_and_never_earlier() -> None:
    found = ProducerTable()
    found.apply(header(0, producer=1), now_ms=0)
    found.apply(header(0, producer=2), now_ms=5)
    found.apply(header(1, producer=1), now_ms=10)
    found.forget_idle(DAY_MS + 5, DAY_MS, NO_LIMIT)
    assert ids(found) == [2, 1]
    found.forget_idle(DAY_MS + 6, DAY_MS, NO_LIMIT)
    assert ids(found) == [1]
    found.forget_idle(DAY_MS * 3, DAY_MS, NO_LIMIT)
    assert ids(found) == []


def test_a_restart_prolongs_what_is_remembered() -> None:
    found = ProducerTable(table((0, 10)).snapshot(), now_ms=DAY_MS * 2)
    found.forget_idle(DAY_MS * 3, DAY_MS, NO_LIMIT)
    assert len(found) == 1


def test_above_its_limit_a_table_forgets_the_longest_idle_but_nobody_who_may_still_repeat() -> None:
    found = ProducerTable()
    for producer in (1, 2, 3, 4):
        found.apply(header(0, producer=producer), now_ms=producer)
    now_ms = producers.KEPT_MS + 4
    found.forget_idle(now_ms - 1, DAY_MS, 0)
    assert ids(found) == [3, 4]
    found.forget_idle(now_ms, DAY_MS, 1)
    assert ids(found) == [4]
    found.forget_idle(now_ms, 0, 0)
    assert ids(found) == [4], "an expiry is not shorter either"


@given(st.lists(st.integers(0, 50)), st.integers(0, 300))
def test_large_tables_are_cut_until_all_fit_and_small_ones_keep_everything(
    sizes: list[int], total: int
) -> None:
    limit = fair_limit(sizes, total)
    left = [min(size, limit) for size in sizes]
    assert sum(left) <= total or sum(sizes) <= total
    if sum(sizes) <= total:
        assert limit == producers.PRODUCERS_MAX
    else:
        assert sum(min(size, limit + 1) for size in sizes) > total, "no more than needed"


def test_the_longest_idle_producer_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    found = ProducerTable()
    for producer in (1, 2, 3):
        found.apply(header(0, producer=producer))
    found.apply(header(1, producer=1))
    found.apply(header(0, producer=4))
    assert [entry.producer_id for entry in found.snapshot()] == [3, 1, 4]
    assert code(found.check(header(1, producer=2))) is ErrorCode.OUT_OF_ORDER_SEQUENCE


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.data())
def test_whatever_is_repeated_nothing_lands_twice_and_no_gap_is_let_in(
    counts: list[int], data: st.DataObject
) -> None:
    batches, base = [], 0
    for count in counts:
        batches.append((base, count))
        base += count
    found, offset = ProducerTable(), 0
    for index, (start, count) in enumerate(batches):
        for other in data.draw(st.lists(st.integers(0, len(batches) - 1), max_size=4)):
            verdict = found.check(header(*batches[other]))
            if other < index:
                assert isinstance(verdict, Duplicate)
            elif other > index:
                assert isinstance(verdict, Refused)
        assert found.check(header(start, count)) == Append()
        found.apply(header(start, count, offset=offset))
        offset += count


def test_a_machine_that_begins_late_on_its_clock_forgets_nobody_early() -> None:
    """That clock is the uptime of the node, which is longer than any expiry."""
    entry = ProducerEntry(
        producer_id=ProducerId(7), producer_epoch=0, batches=(), last_timestamp_ms=0
    )
    log = RecoveredLog(
        log_end_offset=Offset(5),
        checkpoint=Checkpoint(LeaderEpoch(1), Offset(5), Offset(0), ()),
        producers=(entry,),
    )
    driver = Driver(log, now_ms=DAY_MS * 30)
    for late_ms, known in ((DAY_MS, 1), (DAY_MS + 1, 0)):
        driver.now_ms = DAY_MS * 30 + late_ms
        driver.do(ProducersExpired(DAY_MS, NO_LIMIT))
        assert driver.machine.producer_count == known
