"""What a person is shown of lost batches."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.accept_loss import joined, show_lost
from penstock.cli.options import Output
from penstock.client import OffsetSpan


def test_batches_that_follow_each_other_are_shown_as_one() -> None:
    lost = [OffsetSpan(7, 9), OffsetSpan(0, 0), OffsetSpan(1, 3), OffsetSpan(5, 6)]
    assert joined(lost) == [OffsetSpan(0, 3), OffsetSpan(5, 9)]
    assert joined([]) == []


def the_log(partition: int, **changes: Any) -> SimpleNamespace:
    sound = {"is_leader": True, "lost": (), "mending": ""}
    return SimpleNamespace(topic="flights", partition=partition, **{**sound, **changes})


def test_a_log_that_nobody_can_open_is_shown_beside_lost_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only by the broker that is to lead it: that is where a loss is accepted."""
    mending = "its log could not be opened"
    partitions = [SimpleNamespace(partition=number, leader=1) for number in range(4)]
    logs = [
        the_log(0),
        the_log(1, lost=(OffsetSpan(3, 4),), mending="nobody has offsets 3-4 now"),
        the_log(2, is_leader=False, mending=mending),
        the_log(3, mending="its log is being read, offset 3 of 9"),
    ]
    admin: Any = SimpleNamespace(
        describe_topics=lambda: {"flights": SimpleNamespace(partitions=partitions)},
        describe_logs=lambda: [
            SimpleNamespace(broker_id=1, logs=logs),
            SimpleNamespace(broker_id=2, logs=[the_log(2, is_leader=False, mending=mending)]),
        ],
    )
    show_lost(admin, Output.TABLE)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:3] for row in shown] == [["flights/1", "3-4", "1"], ["flights/2", "unknown", "1"]]
    assert " ".join(shown[1][3:]) == mending
