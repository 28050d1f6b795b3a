"""What of a log a reader gets to see, by headers and the index of aborted transactions alone."""

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchFlags, BatchHeader, build_marker, compute_crc
from penstock.core.isolation import (
    NONE_ABORTED,
    Isolation,
    covering,
    may_hide,
    named,
    visible,
    with_end_covered,
)
from penstock.core.limits import MAX_COVERED_OFFSETS
from penstock.core.records import decode_batch
from penstock.core.types import LeaderEpoch, Offset, ProducerId

EPOCH = LeaderEpoch(3)


def batch(
    offset: int, flags: int = 0, producer: int = -1, epoch: int = -1, count: int = 1
) -> Batch:
    header = BatchHeader(
        record_count=count,
        first_timestamp_ms=0,
        max_timestamp_ms=0,
        uncompressed_bytes=0,
        crc=0,
        flags=BatchFlags(flags),
        producer_id=ProducerId(producer),
        producer_epoch=epoch,
        base_offset=Offset(offset),
        leader_epoch=EPOCH,
    )
    return Batch(header, b"")


PLAIN, COMPACTED = batch(0), batch(1, BatchFlags.COMPACTED)
OLD, NEW = batch(2, 1, producer=7, epoch=0), batch(3, 1, producer=7, epoch=1)
MARKER = build_marker(ProducerId(7), 0, commit=False, timestamp_ms=0).stamped(Offset(4), EPOCH, 0)
ABORTED = named(
    [
        AbortedTransaction(
            marker_offset=Offset(4),
            first_offset=Offset(2),
            producer_id=ProducerId(7),
            producer_epoch=0,
            stable_offset=Offset(3),
        )
    ]
)


def test_only_batches_of_transactions_make_a_reader_ask() -> None:
    for level in Isolation:
        assert not may_hide([PLAIN, COMPACTED], level)
        assert may_hide([PLAIN, MARKER], level)
    assert may_hide([PLAIN, NEW], Isolation.COMMITTED)
    assert not may_hide([PLAIN, NEW], Isolation.UNCOMMITTED)


def test_a_transaction_is_known_by_producer_and_epoch() -> None:
    log = [PLAIN, COMPACTED, OLD, NEW, MARKER]
    assert visible(log, ABORTED) == [PLAIN, COMPACTED, NEW]
    assert visible(log, NONE_ABORTED) == [PLAIN, COMPACTED, OLD, NEW], "uncommitted: no markers"


def test_what_covers_hidden_offsets_is_a_batch_that_every_client_can_open() -> None:
    made = covering(Offset(10), Offset(25), EPOCH)
    assert (made.base_offset, made.next_offset, made.header.leader_epoch) == (10, 25, EPOCH)
    assert made.header.crc == compute_crc(made.header, made.payload)
    assert decode_batch(made).record_count == 0


def test_more_offsets_than_a_batch_can_cover_are_covered_in_part() -> None:
    made = covering(Offset(5), Offset(1 << 40), EPOCH)
    assert made.next_offset == 5 + MAX_COVERED_OFFSETS
    assert decode_batch(made).record_count == 0


def test_only_a_hidden_end_is_covered() -> None:
    first, last = batch(10, count=2), batch(15, count=5)
    assert with_end_covered([first, last], Offset(10), last) == [first, last]
    shown, cover = with_end_covered([first], Offset(10), last)
    assert shown is first
    assert (cover.base_offset, cover.next_offset) == (12, 20)
    (alone,) = with_end_covered([], Offset(11), last)
    assert (alone.base_offset, alone.next_offset) == (11, 20)
