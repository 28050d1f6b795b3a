"""What a person is shown of lost batches."""

from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.accept_loss import accept, joined, show_lost
from penstock.cli.main import app
from penstock.cli.options import Output
from penstock.client import OffsetSpan, TopicPartition


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
    held = {1: logs, 2: [the_log(2, is_leader=False, mending=mending)]}
    alive = [SimpleNamespace(broker_id=one, alive=True) for one in held]
    admin: Any = SimpleNamespace(
        cluster_id=lambda: "id",
        describe_cluster=lambda: SimpleNamespace(brokers=alive),
        describe_topics=lambda: {"flights": SimpleNamespace(partitions=partitions)},
        describe_logs=lambda _topics, broker_ids: [
            SimpleNamespace(broker_id=one, logs=held[one]) for one in broker_ids
        ],
    )
    show_lost(admin, Output.TABLE)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:3] for row in shown] == [["flights/1", "3-4", "1"], ["flights/2", "unknown", "1"]]
    assert " ".join(shown[1][3:]) == mending


def test_a_program_is_not_asked_whether_it_gives_up_what_is_lost() -> None:
    words = ["partitions", "accept-loss", "flights/3", "--offsets", "1-2", "-o", "json"]
    done: Any = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "nobody can ask: give --yes, or --dry-run" in done.stderr


@pytest.mark.parametrize(
    ("dry_run", "asked", "said"), [(True, [True], "could be"), (False, [True, False], "are")]
)
def test_a_dry_run_has_a_loss_checked_and_not_accepted(
    dry_run: bool, asked: list[bool], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[bool] = []

    def accept_loss(where: Any, span: Any, *, without: Any, validate_only: bool = False) -> Any:
        given.append(validate_only)
        return (OffsetSpan(100, 102), OffsetSpan(103, 109))

    admin: Any = SimpleNamespace(accept_loss=accept_loss)
    where, span = TopicPartition("flights", 3), OffsetSpan(90, 110)
    accept(admin, where, span, (), Output.TABLE, yes=not dry_run, dry_run=dry_run)
    assert given == asked, "each with whether only to validate"
    assert capsys.readouterr().out == f"offsets 100-109 of flights/3 {said} given up\n"
