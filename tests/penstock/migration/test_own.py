"""A Penstock cluster as a target: what a broker that hears late of a new topic does to it."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode
from penstock.migration import own
from penstock.migration.model import Bounds, Rows, Topic

TOPIC = Topic(name="t", partitions=1, replicas=1)


class Late:
    """The admin and the consumer of a cluster whose coordinator refuses `refusals` times."""

    def __init__(self, refusals: int, code: ErrorCode = ErrorCode.UNKNOWN_TOPIC) -> None:
        self.refusals, self.code, self.created = refusals, code, 0

    def __call__(self, *_: Any, **__: Any) -> "Late":
        return self

    def describe_cluster(self) -> Any:
        return SimpleNamespace(brokers=[SimpleNamespace(alive=True)], cluster_id="c")

    def create_topic(self, *_: Any, **__: Any) -> None:
        self.created += 1

    def committed(self, _partitions: Any) -> dict[object, None]:
        self.refusals -= 1
        if self.refusals >= 0:
            raise ClusterError("there is no topic 't'", self.code)
        return {}


def target(monkeypatch: pytest.MonkeyPatch, cluster: Late) -> own.Penstock:
    monkeypatch.setattr(own, "Admin", cluster)
    monkeypatch.setattr(own, "Consumer", cluster)
    monkeypatch.setattr(own, "RETRY_S", 0.0)
    return own.Penstock("h:1", {}, "copy")


def test_a_topic_is_there_once_the_coordinator_of_the_copy_knows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Late(3)
    target(monkeypatch, cluster).create(TOPIC)
    assert (cluster.created, cluster.refusals) == (1, -1)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC, ErrorCode.PERMISSION_DENIED])
def test_what_lasts_or_is_another_refusal_is_raised(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "KNOWN_S", 0.0)
    cluster = Late(9, code)
    with pytest.raises(ClusterError, match="no topic"):
        target(monkeypatch, cluster).create(TOPIC)
    assert cluster.refusals == 8, "once"


class Stream:
    """The consumer of a reader: what each poll returns, and where it stands then."""

    def __init__(self, *polls: tuple[list[Any], int]) -> None:
        self.polls, self.at = list(polls), 0

    def __call__(self, *_: Any, **__: Any) -> "Stream":
        return self

    def assign(self, _starts: Any) -> None: ...
    def seek(self, _where: Any, offset: int) -> None:
        self.at = offset

    def poll(self, _timeout_s: float) -> list[Any]:
        found, self.at = self.polls.pop(0)
        return found

    def position(self, _where: Any) -> int:
        return self.at


def batch(first: int, end: int) -> Any:
    count = end - first
    return SimpleNamespace(
        topic_partition=A,
        next_offset=end,
        offsets=lambda: range(first, end),
        keys=lambda: [None] * count,
        values=lambda: [b"v"] * count,
        timestamps_ms=lambda: [1] * count,
        headers=lambda: [()] * count,
    )


A = TopicPartition("t", 0)


def reader_of(monkeypatch: pytest.MonkeyPatch, end: list[int], stream: Stream) -> Any:
    monkeypatch.setattr(own, "Admin", Late(0))
    monkeypatch.setattr(own, "Consumer", stream)
    cluster = own.Penstock("h:1", {}, "copy")
    monkeypatch.setattr(cluster, "bounds", lambda _: {A: Bounds(0, end[0])})
    return cluster.read({A: 0})


def test_an_end_that_was_seen_before_records_came_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    end = [2]
    reader = reader_of(monkeypatch, end, Stream(([batch(0, 2)], 2), ([], 2), ([batch(2, 4)], 4)))
    reader.poll(0)
    reader.poll(0)
    assert reader.at_end(A)
    end[0] = 9
    reader.poll(0)
    assert not reader.at_end(A)


def test_a_reader_says_that_it_passed_offsets_without_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log that ends with the marker of a transaction is read to its end."""
    reader = reader_of(monkeypatch, [3], Stream(([batch(0, 2)], 2), ([], 3)))
    assert [(where, len(rows)) for where, rows in reader.poll(0)] == [(A, 2)]
    assert reader.poll(0) == [(A, Rows(3))]
    assert reader.at_end(A)
