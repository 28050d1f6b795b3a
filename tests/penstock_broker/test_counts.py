"""What a broker counts as images are applied."""

import pytest

from penstock_broker.counts import IsrCounts


@pytest.mark.parametrize(
    ("before", "after", "replicas", "shrinks", "expands"),
    [
        ((), (0, 1), (0, 1), 0, 0),
        ((0, 1), (0, 1), (0, 1), 0, 0),
        ((0, 1), (0,), (0, 1), 1, 0),
        ((0,), (0, 1), (0, 1), 0, 1),
        ((0, 1), (0, 2), (0, 1, 2), 1, 1),
        pytest.param((0, 3), (3,), (3,), 0, 0, id="a move has replaced 0 by 3"),
        pytest.param((0, 1, 2, 3), (1, 3), (1, 2, 3), 1, 0, id="2 left while 0 was moved"),
    ],
)
def test_replicas_leave_an_isr_unless_a_move_takes_them_off(
    before: tuple[int, ...],
    after: tuple[int, ...],
    replicas: tuple[int, ...],
    shrinks: int,
    expands: int,
) -> None:
    counts = IsrCounts()
    counts.learned(before, after, replicas)
    assert (counts.shrinks, counts.expands) == (shrinks, expands)
