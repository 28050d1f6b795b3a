"""Two logs have the same digests where they have the same batches, whatever each has removed."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batch import BatchFlags, BatchHeader
from penstock.core.replication.digests import (
    RANGE_OFFSETS,
    Digesting,
    LogDigest,
    OffsetRange,
    completed,
    cut,
)
from penstock.core.types import LeaderEpoch, Offset

Log = list[BatchHeader]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Batches without gaps, small ones and some that are longer than a range."""
    counts = draw(st.lists(st.integers(1, 3 * RANGE_OFFSETS // 2), min_size=1, max_size=12))
    offset, epoch, log = draw(st.integers(0, 2 * RANGE_OFFSETS)), 0, []
    for count in counts:
        epoch += draw(st.integers(0, 1))
        header = BatchHeader(
            record_count=count,
            first_timestamp_ms=1,
            max_timestamp_ms=2,
            uncompressed_bytes=3,
            crc=draw(st.integers(0, 2**32 - 1)),
            base_offset=Offset(offset),
            leader_epoch=LeaderEpoch(epoch),
        )
        log.append(header)
        offset = header.next_offset
    return log


def digest(log: Log, within: OffsetRange) -> LogDigest | None:
    """Of a log whose store answers from the batch with `within.start` on."""
    digesting = Digesting(within)
    for header in log:
        if header.next_offset > within.start and header.base_offset < within.end:
            digesting.take([header])
    return digesting.result


def ranges(log: Log, log_start: int, high_watermark: int) -> list[OffsetRange]:
    """Those that a scrub compares while it reads the log batch by batch."""
    found, offset, end = list[OffsetRange](), Offset(log_start), log[-1].next_offset
    for header in log:
        if header.next_offset > offset:
            found += completed(offset, header.next_offset, end)
            offset = header.next_offset
    cuts = [cut(one, Offset(log_start), Offset(high_watermark)) for one in found]
    return [one for one in cuts if one is not None]


def kept(log: Log, log_start: int) -> Log:
    """What retention leaves: whole batches."""
    return [header for header in log if header.next_offset > log_start]


bounds = st.floats(0, 1)


def between(log: Log, share: float) -> int:
    first, end = log[0].base_offset, log[-1].next_offset
    return first + int(share * (end - first))


def boundary(log: Log, share: float) -> Offset:
    """The end of a batch, as high watermarks are."""
    return log[min(len(log) - 1, int(share * len(log)))].next_offset


@given(logs(), bounds, bounds, bounds)
def test_equal_logs_have_equal_digests_whatever_retention_has_removed(
    log: Log, removed_here: float, removed_there: float, committed: float
) -> None:
    here, there = between(log, removed_here), between(log, removed_there)
    for one in ranges(log, here, boundary(log, committed)):
        if there <= one.start:
            assert digest(kept(log, here), one) == digest(kept(log, there), one) is not None


@given(logs(), bounds, bounds)
def test_ranges_cover_what_is_committed_once_with_the_same_cuts(
    log: Log, removed: float, committed: float
) -> None:
    log_start, high_watermark = between(log, removed), boundary(log, committed)
    inner = [
        offset
        for offset in range(0, high_watermark, RANGE_OFFSETS)
        if log_start < offset < high_watermark
    ]
    edges = [log_start, *inner, high_watermark] if log_start < high_watermark else []
    found = ranges(log, log_start, high_watermark)
    assert [(one.start, one.end) for one in found] == list(pairwise(edges))


CHANGES = {
    "other records": lambda header: replace(header, crc=header.crc ^ 0x100),
    "another epoch": lambda header: replace(header, leader_epoch=header.leader_epoch + 1),
    "another time": lambda header: replace(header, append_time_ms=5),
}


@pytest.mark.parametrize("how", CHANGES)
@given(log=logs(), which=bounds)
def test_one_changed_batch_differs_in_exactly_its_range(how: str, log: Log, which: float) -> None:
    at = min(len(log) - 1, int(which * len(log)))
    other = [*log[:at], CHANGES[how](log[at]), *log[at + 1 :]]
    found = ranges(log, log[0].base_offset, log[-1].next_offset)
    differing = [one for one in found if digest(log, one) != digest(other, one)]
    assert [one.number for one in differing] == [log[at].base_offset // RANGE_OFFSETS]


@given(logs(), bounds)
def test_a_batch_that_is_missing_or_stored_as_two_differs(log: Log, which: float) -> None:
    at = min(len(log) - 1, int(which * len(log)))
    (holder,) = [
        one
        for one in ranges(log, log[0].base_offset, log[-1].next_offset)
        if one.number == log[at].base_offset // RANGE_OFFSETS
    ]
    assert digest(log[:at] + log[at + 1 :], holder) != digest(log, holder)
    half = log[at].record_count // 2
    if half:
        crc = log[at].crc ^ 1  # it covers the number of records
        first = replace(log[at], record_count=half, crc=crc)
        second = replace(log[at], record_count=half, base_offset=first.next_offset)
        assert digest([*log[:at], first, second, *log[at + 1 :]], holder) != digest(log, holder)


@given(logs(), bounds)
def test_a_range_that_compaction_has_touched_is_not_compared(log: Log, which: float) -> None:
    """Also where a merged batch reaches into it, in which other logs have batches of their own."""
    at = min(len(log) - 1, int(which * len(log)))
    flags = log[at].flags | BatchFlags.COMPACTED
    compacted = [*log[:at], replace(log[at], flags=flags), *log[at + 1 :]]
    for one in ranges(log, log[0].base_offset, log[-1].next_offset):
        touched = log[at].base_offset < one.end and one.start < log[at].next_offset
        assert (digest(compacted, one) is None) == touched


def test_an_interrupted_reading_still_completes_its_range() -> None:
    end = Offset(2 * RANGE_OFFSETS + 10)
    half = Offset(RANGE_OFFSETS + 7)
    first = list(completed(Offset(0), half, end))
    rest = list(completed(half, end, end))
    whole = list(completed(Offset(0), end, end))
    assert [*first, *rest] == whole
    assert [(one.start, one.end, one.number) for one in whole] == [
        (0, RANGE_OFFSETS, 0),
        (RANGE_OFFSETS, 2 * RANGE_OFFSETS, 1),
        (2 * RANGE_OFFSETS, end, 2),
    ]
    assert list(completed(end, end, end)) == []
