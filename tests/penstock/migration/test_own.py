"""A Penstock cluster as a target: what a broker that hears late of a new topic does to it."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ClusterError, ErrorCode
from penstock.migration import own
from penstock.migration.model import Topic

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
