"""What a broker says at most is taken, by controllers of this release and of earlier ones."""

import asyncio
import uuid
from dataclasses import replace

import pytest
from support.controller_seams import seams_on
from support.sessions import Broker, running
from support.waiting import wait_until_async

from penstock.core.control import ControlConfig
from penstock.core.control import contract as c
from penstock.core.limits import GENERATIONS_KEPT, GENERATIONS_MAX
from penstock.proto.v1 import controller_pb2 as pb
from penstock_broker.controller import sessions, wire
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments
from penstock_broker.controller.process import ControllerProcess
from penstock_broker.metadata.condition import Condition
from penstock_broker.replication.progress import COPIES_MAX
from penstock_broker.serving.request_limits import REQUEST_LIMITS, RequestCheck, RequestLimit

SESSION = "ControllerService.Session"
OURS = REQUEST_LIMITS[SESSION]
FORMER = RequestLimit(16 * 1024, 8_000)
CONFIG = ControlConfig(heartbeat_interval_ms=50, session_timeout_ms=60_000)


def names(count: int) -> tuple[str, ...]:
    return tuple(str(uuid.uuid4()) for _ in range(count))


def copy(number: int) -> pb.CopyProgress:
    """As long as one can be."""
    return pb.CopyProgress(
        topic_id=str(uuid.uuid4()),
        partition=100_000 + number,
        broker_id=2**31 - 1,
        bytes_left=2**60,
        bytes_per_second=2**40,
        limited_by=f"broker {2**31 - 1}, which is not connected",
    )


COPIES = tuple(copy(number) for number in range(COPIES_MAX))


@pytest.mark.parametrize("limit", [OURS, FORMER], ids=["this release", "an earlier one"])
async def test_a_broker_with_much_to_say_has_a_session(
    documents: SharedDocuments, monkeypatch: pytest.MonkeyPatch, limit: RequestLimit
) -> None:
    heard: set[int] = set()

    def hear(stream_id: int, message: pb.Heartbeat) -> c.HeartbeatReceived:
        heard.update(one.partition for one in message.copies)
        return wire.heartbeat_from_wire(stream_id, message)

    monkeypatch.setitem(REQUEST_LIMITS, SESSION, limit)
    monkeypatch.setattr(sessions, "heartbeat_from_wire", hear)
    with seams_on(MemoryMetadataStore(documents)) as seams:
        async with asyncio.TaskGroup() as tasks:
            process = ControllerProcess(CONFIG, seams, "127.0.0.1:0")
            serving = tasks.create_task(process.run())
            await process.listening.wait()
            broker = Broker(1, [f"127.0.0.1:{process.server.port}"])
            broker.identity = replace(broker.identity, generations=names(GENERATIONS_KEPT))
            broker.condition = Condition(copies=COPIES)
            async with running(broker):
                await wait_until_async(
                    lambda: len(heard) == COPIES_MAX, what="the controller knows all copies"
                )
                assert broker.session.connected
            process.stop_requested.set()
            await serving


def test_what_brokers_of_earlier_releases_say_at_once_is_taken() -> None:
    check = RequestCheck("/penstock.proto.v1.ControllerService/Session")
    register = pb.Register(host="h" * 253, rack="r" * 63, generations=names(GENERATIONS_MAX))
    check(pb.SessionRequest(register=register).SerializeToString())
    check(pb.SessionRequest(heartbeat=pb.Heartbeat(copies=COPIES)).SerializeToString())
