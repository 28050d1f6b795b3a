"""Compacted batches: offsets stay where they were, records go, every reader copes."""

from array import array
from dataclasses import replace

import pytest

from penstock.client.consumer.fetch_state import FetchState
from penstock.client.model import ConsumedBatch
from penstock.core.batch import Batch, BatchFlags, compute_crc
from penstock.core.columns import Columns
from penstock.core.records import build_batch, check_batch, decode_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset, TopicPartition
from penstock.errors import ClusterError, ErrorCode


def compacted(base: int, covered: int, *deltas: int) -> Batch:
    """A batch whose record at offset n has the value b"n"."""
    columns = Columns(0, 1)
    if deltas:
        values = [b"%d" % (base + delta) for delta in deltas]
        columns = encode_columns(values, timestamps_ms=[1000 + delta for delta in deltas])
        columns = replace(columns, offset_deltas=memoryview(array("i", deltas)))
    return build_batch(replace(columns, covered_offsets=covered)).stamped(
        Offset(base), LeaderEpoch(1), 0
    )


def handed_out(made: FetchState, max_records: int = 100) -> list[list[int]]:
    seen = []
    while (got := made.next_batch(max_records)) is not None:
        assert [int(value or b"") for value in got.values()] == list(got.offsets())
        seen.append(list(got.offsets()))
    return seen


def test_offsets_keep_their_gaps() -> None:
    columns = decode_batch(compacted(100, 10, 2, 5, 7))
    assert columns.offsets() == [102, 105, 107]
    assert [record.offset for record in columns.records()] == [102, 105, 107]
    assert [columns.offset_at(index) for index in range(4)] == [102, 105, 107, 110]
    assert [columns.index_of(o) for o in (0, 100, 102, 103, 105, 107, 108, 500)] == [
        *(0, 0, 0, 1, 1, 2, 3, 3)
    ]
    assert columns.record(1) == next(r for r in columns.records() if r.offset == 105)
    assert columns.next_offset == 110


def test_an_emptied_batch_has_columns_of_nothing() -> None:
    columns = decode_batch(compacted(100, 10))
    assert (columns.keys(), columns.values(), columns.timestamps()) == ([], [], [])
    assert (columns.headers(), list(columns.records())) == ([], [])
    assert (columns.offset_at(0), columns.index_of(105)) == (110, 0)


def test_a_producer_may_not_send_one() -> None:
    batch = compacted(0, 3, 1)
    with pytest.raises(ClusterError, match="producers send 0") as caught:
        check_batch(batch)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    check_batch(batch, allow_internal_flags=True)


def test_a_batch_covers_a_bounded_number_of_offsets() -> None:
    header = replace(compacted(0, 1).header, record_count=1 << 31)
    batch = Batch(replace(header, crc=compute_crc(header, b"")), b"")
    with pytest.raises(ClusterError, match="it must be 1 to 2147483647"):
        decode_batch(batch)


def test_what_is_left_is_bounded_like_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = compacted(0, 9, 1, 2, 3)
    monkeypatch.setattr("penstock.core.records.MAX_RECORDS", 2)
    with pytest.raises(ClusterError, match="3 records left; it must have 0 to 2"):
        decode_batch(batch)


def test_a_consumer_moves_over_gaps_and_emptied_batches() -> None:
    made = FetchState(TopicPartition("t", 0), "id")
    made.seek(0)
    made.accept(0, [compacted(0, 5), compacted(5, 10, 3, 9), compacted(15, 5)], 20)
    assert handed_out(made) == [[8, 14]]
    assert made.position == made.fetch_offset == 20
    assert made.buffered_bytes == 0


@pytest.mark.parametrize(
    ("position", "expected"), [(4, [[8], [14]]), (8, [[8], [14]]), (9, [[14]]), (15, [])]
)
def test_a_position_inside_a_gap_reads_on_behind_it(position: int, expected: object) -> None:
    made = FetchState(TopicPartition("t", 0), "id")
    made.seek(position)
    made.accept(position, [compacted(0, 20, 8, 14)], 20)
    assert handed_out(made, max_records=1) == expected
    assert made.position == 20


def test_a_position_after_few_records_is_the_next_record_that_is_left() -> None:
    made = FetchState(TopicPartition("t", 0), "id")
    made.seek(0)
    made.accept(0, [compacted(0, 20, 8, 14)], 20)
    got = made.next_batch(1)
    assert got is not None
    assert (got.first_offset, got.last_offset, got.next_offset) == (8, 8, 14)
    assert made.position == 14


def test_parts_between_offsets_and_arrow_agree() -> None:
    columns = decode_batch(compacted(100, 10, 2, 5, 7))
    whole = ConsumedBatch("t", 0, columns, 0, 3)
    assert list(whole.between(103, 107).offsets()) == [105]
    assert list(whole.between(103, 104).offsets()) == []
    assert whole.between(103, 104).next_offset == 105
    table = whole.to_arrow()
    assert table.column("offset").to_pylist() == [102, 105, 107]
    assert table.column("timestamp").to_pylist()[0].microsecond == 2000
    assert whole.between(104, 110).to_arrow().column("offset").to_pylist() == [105, 107]
    empty = ConsumedBatch("t", 0, decode_batch(compacted(0, 4)), 0, 0)
    assert empty.to_arrow(include_headers=True).num_rows == 0


def test_flags_of_dense_batches_stay_as_they_were() -> None:
    batch = build_batch(encode_columns([b"a"], timestamps_ms=0))
    assert batch.header.flags is BatchFlags.NONE
