"""`penstock elect` asks for the partitions whose preferred leader can lead, and for no other."""

import json
from types import TracebackType
from typing import Any, Self

import pytest
import typer

from penstock.cli import elect
from penstock.cli.main import app
from penstock.client import PartitionDescription, TopicDescription, TopicPartition


def partition(index: int, leader: int, isr: tuple[int, ...]) -> PartitionDescription:
    return PartitionDescription(
        partition=index, leader=leader, leader_epoch=4, replicas=(1, 2), isr=isr
    )


class Cluster:
    """Partition 0 is as it should be, 1 can go back, 2 cannot yet."""

    def __init__(self) -> None:
        self.asked: list[TopicPartition] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def describe_topics(self, names: Any = None) -> dict[str, TopicDescription]:
        partitions = (partition(0, 1, (1, 2)), partition(1, 2, (1, 2)), partition(2, 2, (2,)))
        known = {name: TopicDescription(name, f"id-{name}", partitions, {}) for name in ("a", "b")}
        return {name: known[name] for name in names or known}

    def elect_leaders(self, partitions: list[TopicPartition]) -> int:
        self.asked += partitions
        return len(partitions)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(elect, "open_admin", lambda _: made)
    return made


@pytest.mark.parametrize(
    ("words", "asked", "shown"),
    [
        (["--all"], ["a/1", "b/1"], 4),
        (["a"], ["a/1"], 2),
        (["a/1", "b/0"], ["a/1"], 1),
        (["a/2"], [], 1),
        (["a/1", "a"], ["a/1"], 2),
        (["a", "a/0"], ["a/1"], 2),
        (["--all", "--dry-run"], [], 4),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_those_that_can_lead_are_asked_for(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    asked: list[str],
    shown: int,
) -> None:
    with pytest.raises(SystemExit) as exited:
        typer.main.get_command(app).main(["elect", *words, "-o", "json"], prog_name="penstock")
    assert exited.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert [str(one) for one in cluster.asked] == asked
    assert said["moved"] == len(asked)
    assert len(said["partitions"]) == shown
