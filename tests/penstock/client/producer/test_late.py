"""Records that wait are told of once, and again only after something was stored."""

import pytest

from penstock.client.producer.accumulator import PartitionQueue
from penstock.client.producer.late import LATE_MS, LateDeliveries
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode

QUEUE, OTHER = (PartitionQueue(TopicPartition("t", number)) for number in (0, 1))
TROUBLE = ClusterError("its disk is full", ErrorCode.STORAGE_FAILED)


@pytest.fixture
def late() -> LateDeliveries:
    return LateDeliveries(120_000)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return said


def test_it_is_told_once_per_partition(
    late: LateDeliveries, caplog: pytest.LogCaptureFixture
) -> None:
    for at_ms in range(0, LATE_MS, 50):
        late.look(QUEUE, TROUBLE, at_ms)
    assert told(caplog) == []
    for at_ms in range(LATE_MS, 4 * LATE_MS, 50):
        late.look(QUEUE, TROUBLE, at_ms)
    (said,) = told(caplog)
    assert said == (
        "t/0: nothing was stored for 5 s; records are sent again until 120 s have passed "
        "(delivery_timeout_ms): its disk is full"
    )
    late.look(OTHER, TROUBLE, 0)
    late.look(OTHER, TROUBLE, LATE_MS)
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("end", ["stored", "rests"])
def test_what_is_stored_or_rests_begins_again(
    late: LateDeliveries, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    late.look(QUEUE, TROUBLE, 0)
    if end == "stored":
        late.look(QUEUE, None, LATE_MS - 1)
    else:
        late.rests(QUEUE)
    late.look(QUEUE, TROUBLE, LATE_MS)
    assert told(caplog) == []
    late.look(QUEUE, TROUBLE, 2 * LATE_MS)
    assert len(told(caplog)) == 1
