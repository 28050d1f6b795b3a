"""What a person is shown of lost batches."""

from penstock.cli.accept_loss import joined
from penstock.client import OffsetSpan


def test_batches_that_follow_each_other_are_shown_as_one() -> None:
    lost = [OffsetSpan(7, 9), OffsetSpan(0, 0), OffsetSpan(1, 3), OffsetSpan(5, 6)]
    assert joined(lost) == [OffsetSpan(0, 3), OffsetSpan(5, 9)]
    assert joined([]) == []
