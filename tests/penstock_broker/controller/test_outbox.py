"""A slow stream holds at most one of each message; images are made when there is room."""

import asyncio

from penstock.core.control import contract as c
from penstock.core.types import ControllerEpoch
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import controller_pb2 as pb
from penstock_broker.controller.outbox import SessionOutbox

WALL_MS = 1_800_000_000_000


class Images:
    """Counts what was made; the version moves by hand."""

    def __init__(self) -> None:
        self.version = 1
        self.made: list[int] = []

    def since(self, version: int) -> pb.ClusterImage:
        self.made.append(version)
        return pb.ClusterImage(metadata_version=self.version, full=version == 0)


ACCEPTED = c.SessionAccepted(
    stream_id=1,
    cluster_id="cluster",
    controller_epoch=ControllerEpoch(1),
    broker_session=1,
    heartbeat_interval_ms=300,
    session_timeout_ms=1_800,
)


async def take(outbox: SessionOutbox) -> str:
    message = await asyncio.wait_for(outbox.next(), 40.0)
    return str(message.WhichOneof("message"))


async def test_the_acceptance_comes_first_then_a_full_image() -> None:
    images = Images()
    outbox = SessionOutbox(images.since, lambda: WALL_MS)
    outbox.notify()
    outbox.put(ACCEPTED)
    outbox.put(c.HeartbeatAnswered(1, may_stop=False))
    assert [await take(outbox) for _ in range(3)] == ["registered", "image", "heartbeat_ack"]
    assert images.made == [0]


async def test_a_slow_stream_gets_one_image_for_many_changes() -> None:
    images = Images()
    outbox = SessionOutbox(images.since, lambda: WALL_MS)
    outbox.put(ACCEPTED)
    assert [await take(outbox) for _ in range(2)] == ["registered", "image"]
    for _ in range(1_000):
        images.version += 1
        outbox.notify()
        outbox.put(c.HeartbeatAnswered(1, may_stop=False))
    assert [await take(outbox) for _ in range(2)] == ["image", "heartbeat_ack"]
    assert images.made == [0, 1]


async def test_a_refusal_overtakes_images() -> None:
    outbox = SessionOutbox(Images().since, lambda: WALL_MS)
    outbox.put(ACCEPTED)
    outbox.notify()
    outbox.put(c.SessionRefused(1, ClusterError("over", ErrorCode.STALE_BROKER_SESSION)))
    assert [await take(outbox) for _ in range(2)] == ["registered", "error"]


async def test_brokers_are_told_the_time_of_each_message_that_is_sent() -> None:
    times = iter((WALL_MS, WALL_MS + 300))
    outbox = SessionOutbox(Images().since, lambda: next(times))
    outbox.put(ACCEPTED)
    outbox.put(c.HeartbeatAnswered(1, may_stop=False))
    registered, _, acknowledged = [await asyncio.wait_for(outbox.next(), 40.0) for _ in range(3)]
    assert registered.registered.wall_ms == WALL_MS
    assert acknowledged.heartbeat_ack.wall_ms == WALL_MS + 300
