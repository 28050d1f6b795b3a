"""Epoch histories as tables, after the pictures in KIP-101 and KIP-279."""

import pytest

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication.contract import EpochStart
from penstock.core.replication.epochs import EpochEnd, EpochHistory
from penstock.core.types import LeaderEpoch, Offset


def history(*starts: tuple[int, int]) -> EpochHistory:
    return EpochHistory(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in starts)


def pairs(found: EpochHistory) -> tuple[tuple[int, int], ...]:
    return tuple((start.epoch, start.start_offset) for start in found.starts)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (0, EpochEnd(LeaderEpoch(-1), Offset(0))),
        (-1, EpochEnd(LeaderEpoch(-1), Offset(0))),
        (1, EpochEnd(LeaderEpoch(1), Offset(20))),
        (2, EpochEnd(LeaderEpoch(1), Offset(20))),
        (3, EpochEnd(LeaderEpoch(3), Offset(70))),
        (4, EpochEnd(LeaderEpoch(4), Offset(90))),
        (9, EpochEnd(LeaderEpoch(4), Offset(90))),
    ],
)
def test_the_largest_epoch_not_above_the_asked_one_ends_where_the_next_begins(
    asked: int, expected: EpochEnd
) -> None:
    found = history((1, 0), (3, 20), (4, 70))
    assert found.end_of(LeaderEpoch(asked), Offset(90)) == expected


def test_an_empty_history_ends_at_the_log_end() -> None:
    assert history().last_epoch == -1
    assert history().end_of(LeaderEpoch(5), Offset(7)) == EpochEnd(LeaderEpoch(-1), Offset(7))


def test_an_epoch_without_records_leaves_no_trace_when_the_next_begins_there() -> None:
    assert pairs(history((1, 0), (2, 10)).begun(LeaderEpoch(5), Offset(10))) == ((1, 0), (5, 10))
    with pytest.raises(AssertionError, match="epoch 2 after 2"):
        history((2, 0)).begun(LeaderEpoch(2), Offset(5))


def test_batches_extend_the_history_only_with_larger_epochs() -> None:
    def batch(offset: int, epoch: int) -> Batch:
        header = BatchHeader(
            5, 0, 0, 0, 0, base_offset=Offset(offset), leader_epoch=LeaderEpoch(epoch)
        )
        return Batch(header, b"")

    found = history((1, 0))
    assert found.extended([batch(10, 1)]) is found
    assert pairs(found.extended([batch(10, 1), batch(15, 2), batch(20, 2), batch(25, 4)])) == (
        (1, 0),
        (2, 15),
        (4, 25),
    )


def test_cutting_drops_epochs_that_keep_no_record() -> None:
    found = history((1, 0), (3, 20), (4, 70))
    assert pairs(found.cut(Offset(70))) == ((1, 0), (3, 20))
    assert pairs(found.cut(Offset(20))) == ((1, 0),)
    assert pairs(found.cut(Offset(0))) == ()
    assert found.cut(Offset(71)) is found


def test_trimming_keeps_the_epoch_that_holds_the_log_start() -> None:
    found = history((1, 0), (3, 20), (4, 70))
    assert found.trimmed(Offset(19)) is found
    assert pairs(found.trimmed(Offset(20))) == ((3, 20), (4, 70))
    assert pairs(found.trimmed(Offset(69))) == ((3, 20), (4, 70))
    assert pairs(found.trimmed(Offset(500))) == ((4, 70),)
