"""A move over the wire, from the request to the report that the old data is gone."""

import json
from functools import partial
from typing import TYPE_CHECKING

from support.waiting import wait_until_async

from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2, broker_pb2, controller_pb2
from penstock.rpc.errors import error_from_wire
from penstock_broker.controller.metadata_store.memory import SharedDocuments

if TYPE_CHECKING:
    from .conftest import BrokerClient, Running, Start


def seen(broker: "BrokerClient") -> broker_pb2.PartitionInfo:
    return broker.known("t").partitions[0]


def known(broker: "BrokerClient") -> tuple[int, int]:
    """The controller epoch and version of its metadata."""
    return broker.images[-1].controller_epoch, broker.images[-1].metadata_version


def copies(broker: "BrokerClient") -> bool:
    """Broker 2 does, as far as this one knows."""
    return list(seen(broker).adding) == [2]


async def shown(running: "Running") -> list[admin_pb2.PartitionMove]:
    answer = await running.admin.DescribeMoves(admin_pb2.DescribeMovesRequest(topics=["t"]))
    return list(answer.moves)


async def alter(
    running: "Running", *changes: admin_pb2.ReplicaChange
) -> admin_pb2.AlterReplicasResponse:
    return await running.admin.AlterReplicas(
        admin_pb2.AlterReplicasRequest(changes=changes, reason=admin_pb2.MOVE_REASON_DRAIN)
    )


async def test_a_partition_moves(start: "Start", documents: SharedDocuments) -> None:
    running = await start()
    brokers = [
        await running.broker(number, software_version="1.2.3", rack="r") for number in range(3)
    ]
    assignment = [admin_pb2.ReplicaList(broker_ids=[0, 1])]
    await running.create(assignment=assignment, partitions=0)
    wanted = admin_pb2.ReplicaChange(topic="t", expected=[0, 1], target=[2, 1])
    (result,) = (await alter(running, wanted)).results
    assert (result.state, list(result.target)) == (admin_pb2.MOVE_STATE_QUEUED, [2, 1])
    for broker in brokers:
        await broker.until(partial(copies, broker), "2 copies")
    before = known(brokers[0])
    described = await running.admin.DescribeMoves(admin_pb2.DescribeMovesRequest())
    told = (described.controller_epoch, described.metadata_version)
    assert told >= before > (0, 0)
    for broker in brokers:
        await broker.until(lambda: known(broker) >= told, "what was told")  # noqa: B023
    partition = json.loads(documents.documents["topic/t"].text)["partitions"][0]
    assert (partition["target"], partition["why"], partition["adding"]) == ([2, 1], "drain", [2])

    brokers[0].copies = [
        controller_pb2.CopyProgress(
            topic_id=brokers[0].known("t").topic_id,
            broker_id=2,
            bytes_left=7,
            bytes_per_second=3,
            limited_by="copy rate",
        )
    ]

    async def reported() -> bool:
        return bool((await shown(running))[0].copies)

    await wait_until_async(reported, what="the leader's report is shown")
    (move,) = await shown(running)
    copied = move.copies[0]
    copied.ClearField("known_for_ms")
    assert copied == admin_pb2.Copy(
        broker_id=2, bytes_left=7, bytes_per_second=3, limited_by="copy rate"
    )
    assert (move.state, move.reason) == (
        admin_pb2.MOVE_STATE_COPYING, admin_pb2.MOVE_REASON_DRAIN
    )  # fmt: skip

    info = seen(brokers[0])
    change = controller_pb2.IsrChange(
        topic_id=brokers[0].known("t").topic_id,
        leader_epoch=info.leader_epoch,
        version=info.version,
        isr=[0, 1, 2],
    )
    isr = await running.controller.AlterIsr(
        controller_pb2.AlterIsrRequest(
            broker_id=0,
            broker_session=brokers[0].registered.broker_session,
            controller_epoch=1,
            changes=[change],
        )
    )
    assert not isr.results[0].HasField("error"), isr
    after = isr.results[0].partition
    assert (list(after.replicas), list(after.isr), after.leader) == ([2, 1], [2, 1], 2)
    assert list(after.dropping) == [0]
    (move,) = await shown(running)
    assert (move.state, move.waiting_for) == (
        admin_pb2.MOVE_STATE_SETTLED, "broker 0 to delete its data"
    )  # fmt: skip

    gone = controller_pb2.DroppedReplica(
        topic_id=brokers[0].known("t").topic_id, version=after.version
    )
    answer = await running.controller.ReportReplicas(
        controller_pb2.ReportReplicasRequest(
            broker_id=0,
            broker_session=brokers[0].registered.broker_session,
            dropped=[gone],
        )
    )
    assert answer.metadata_version == running.runtime.machine.stored.metadata_version
    await brokers[1].until(lambda: not seen(brokers[1]).dropping, "nothing is left to delete")
    assert await shown(running) == []


async def test_a_copy_that_is_not_ready_is_told_to_wait(start: "Start") -> None:
    running = await start()
    brokers = [await running.broker(number) for number in range(3)]
    await running.create(assignment=[admin_pb2.ReplicaList(broker_ids=[0, 1])], partitions=0)
    await alter(running, admin_pb2.ReplicaChange(topic="t", expected=[0, 1], target=[2, 1]))
    await brokers[0].until(partial(copies, brokers[0]), "2 copies")
    brokers[2].break_off()
    await brokers[2].ended.wait()
    await brokers[0].until(lambda: not brokers[0].images[-1].brokers[2].alive, "2 is away")
    info = seen(brokers[0])
    change = controller_pb2.IsrChange(
        topic_id=brokers[0].known("t").topic_id,
        leader_epoch=info.leader_epoch,
        version=info.version,
        isr=[0, 1, 2],
    )
    isr = await running.controller.AlterIsr(
        controller_pb2.AlterIsrRequest(
            broker_id=0,
            broker_session=brokers[0].registered.broker_session,
            controller_epoch=1,
            changes=[change],
        )
    )
    (result,) = isr.results
    assert error_from_wire(result.error).code is ErrorCode.MOVE_WAITS
    assert (list(result.partition.isr), list(result.partition.adding)) == ([0, 1], [2])
    assert result.partition.version == info.version + 1


async def test_brokers_are_shown_as_places_for_replicas(start: "Start") -> None:
    running = await start()
    await running.broker(0, software_version="1.2.3", rack="r")
    cordon = admin_pb2.Cordon(leadership=True, why="disk", by="ana")
    answer = await running.admin.AlterBrokers(
        admin_pb2.AlterBrokersRequest(changes=[admin_pb2.BrokerChange(broker_id=0, cordon=cordon)])
    )
    assert not answer.HasField("error")
    found = await running.admin.DescribeMoves(admin_pb2.DescribeMovesRequest())
    assert list(found.brokers) == [
        admin_pb2.BrokerPlacement(
            broker_id=0,
            directory_id="dir-0",
            rack="r",
            alive=True,
            fresh=True,
            cordon=cordon,
            software_version="1.2.3",
            formats=[1, 2],
        )
    ]
    assert (found.format, found.newest_format, found.paused) == (2, 2, False)
    lifted = admin_pb2.BrokerChange(broker_id=0, cordon=admin_pb2.Cordon())
    await running.admin.AlterBrokers(admin_pb2.AlterBrokersRequest(changes=[lifted]))
    found = await running.admin.DescribeMoves(admin_pb2.DescribeMovesRequest())
    assert not found.brokers[0].HasField("cordon")
    wrong = admin_pb2.BrokerChange(broker_id=9, spread=True)
    answer = await running.admin.AlterBrokers(admin_pb2.AlterBrokersRequest(changes=[wrong]))
    assert error_from_wire(answer.error).code is ErrorCode.INVALID_REQUEST


async def test_a_format_is_chosen_and_older_brokers_are_refused(
    start: "Start", documents: SharedDocuments
) -> None:
    running = await start()
    await running.broker(0)
    older = running.start_broker(1, formats=[])
    older.register.ClearField("formats")
    await older.ended.wait()
    assert older.refusal.code is ErrorCode.FORMAT_TOO_OLD
    answer = await running.admin.Finalize(admin_pb2.FinalizeRequest(to=1))
    assert (answer.format_before, answer.format) == (2, 1)
    assert json.loads(documents.documents["cluster"].text)["format"] == 1
    late = running.start_broker(1, run=2)
    late.register.ClearField("formats")
    await late.until(lambda: late.images, "it is accepted")
    answer = await running.admin.Finalize(admin_pb2.FinalizeRequest())
    error = error_from_wire(answer.error)
    assert error.code is ErrorCode.FORMAT_TOO_OLD
    assert "broker 1" in error.message
