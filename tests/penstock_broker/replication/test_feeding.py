"""What a follower's stream waits for: marks for company, batches and answers for nothing."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import wait_until_async

from penstock.core.types import ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import replication_pb2 as pb
from penstock_broker.replication import feeding
from penstock_broker.replication.copies import CopyThrottle
from penstock_broker.replication.feeding import FollowerStream

KEY = ReplicaKey(TopicId("t"), 0)
REPLICA: Any = SimpleNamespace(key=KEY)
"""Of a partition that is not fed: what moves there makes the stream look, and say nothing."""


@pytest.fixture
def stream() -> FollowerStream:
    reader: Any = None
    hello = pb.FollowerHello(broker_id=1, window_bytes=1000)
    return FollowerStream(hello, 1000, reader, CopyThrottle(None), lambda sent_bytes: None)


async def test_marks_alone_go_out_after_a_moment(stream: FollowerStream) -> None:
    stream.notify(REPLICA, urgent=False)
    assert await stream.next_messages() == []


@pytest.mark.parametrize("news", ["batches", "an answer", "the end"])
async def test_nothing_else_waits_for_the_moment_that_marks_wait(
    stream: FollowerStream, news: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "_MARKS_DELAY_S", 3_600.0)
    stream.notify(REPLICA, urgent=False)
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        told = tasks.create_task(stream.next_messages())
        await wait_until_async(lambda: not stream._wake.is_set(), what="the marks wait")
        if news == "batches":
            stream.notify(REPLICA, urgent=True)
        elif news == "an answer":
            stream.refuse(KEY, ClusterError("no", ErrorCode.NOT_LEADER))
        else:
            stream.close()
    assert len(told.result()) == (news == "an answer")
