"""Orphans by their names, to the broker that has them, a part at a time."""

from typing import Any

import pytest

from penstock.client import OrphanedLog
from penstock.client.admin import cluster_calls
from penstock.client.admin.asking import Asking
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.errors import error_to_wire

NO_ORPHAN = error_to_wire(ClusterError("topic 't' has it", ErrorCode.INVALID_REQUEST))


class Broker:
    """A connection to broker 1, and what is asked on it."""

    timeout_s = 7.0

    def __init__(self, refusal: ClusterError | None = None) -> None:
        self.refusal = refusal
        self.asked: list[pb.DropOrphansRequest] = []
        self.admin = self
        self.DropOrphans = "the method"

    async def cluster_id(self) -> str:
        return "c"

    async def brokers(self, broker_ids: list[int]) -> dict[int, Any]:
        assert broker_ids == [1]
        return {1: self}

    async def call(
        self, method: object, request: pb.DropOrphansRequest, timeout_s: float
    ) -> pb.DropOrphansResponse:
        assert (method, timeout_s) == (self.DropOrphans, self.timeout_s)
        self.asked.append(request)
        if self.refusal is not None:
            return pb.DropOrphansResponse(error=error_to_wire(self.refusal))
        return pb.DropOrphansResponse(
            results=[
                pb.OrphanResult(
                    topic_id=log.topic_id,
                    partition=log.partition,
                    error=NO_ORPHAN if log.partition == 2 else None,
                )
                for log in request.logs
            ]
        )


def asking(broker: Broker) -> Asking:
    made: Any = broker
    return made  # type: ignore[no-any-return]


LOGS = [OrphanedLog("gone", partition, 9) for partition in range(5)]


@pytest.mark.parametrize("dry_run", [False, True])
async def test_many_are_sent_in_parts_and_each_has_an_outcome(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_calls, "_ORPHANS_PER_CALL", 2)
    broker = Broker()
    outcomes = await cluster_calls.drop_orphans(
        asking(broker), 1, iter(LOGS), validate_only=dry_run
    )
    assert [len(one.logs) for one in broker.asked] == [2, 2, 1]
    assert {(one.cluster_id, one.validate_only) for one in broker.asked} == {("c", dry_run)}
    assert [(one.topic_id, one.partition) for one in outcomes] == [("gone", at) for at in range(5)]
    assert [one.partition for one in outcomes if one.error] == [2]


async def test_what_is_refused_as_a_whole_is_raised() -> None:
    broker = Broker(ClusterError("no controller", ErrorCode.CONTROLLER_UNAVAILABLE))
    with pytest.raises(ClusterError, match="no controller"):
        await cluster_calls.drop_orphans(asking(broker), 1, LOGS, validate_only=False)


async def test_nothing_is_asked_for_no_logs() -> None:
    broker = Broker()
    assert await cluster_calls.drop_orphans(asking(broker), 1, [], validate_only=False) == []
    assert not broker.asked
