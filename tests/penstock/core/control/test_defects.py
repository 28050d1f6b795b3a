"""A defect anywhere in the controller stops it: nothing is decided any more, everyone is told."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from support.controller_world import World
from support.defects import PlantedError, every_line

from penstock.core.authorization import CLUSTER, AccessRole, Rule
from penstock.core.control import Phase
from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control import operator_contract as o
from penstock.core.control.documents import FORMATS, OperatorLease
from penstock.core.quotas import Limit, QuotaRule
from penstock.core.types import BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicPartition
from penstock.errors import ErrorCode

UNDER_WAY, QUEUED, REQUEST = 1_001, 1_002, 1_003
NEW_STREAM = 1_004
ADMIN = (Rule(principals=("cert:ada",), role=AccessRole.ADMIN),)
QUOTAS = (QuotaRule(principals=("cert:ada",), limits={Limit.STREAMS: 1}),)
Make = Callable[[Any], c.Event]


def idle(make_world: type[World]) -> Any:
    """Three brokers, topic `t`; nothing is on its way."""
    world = make_world().start()
    world.register_all(0, 1, 2)
    world.create(partitions=1, replication_factor=3)
    return world


def busy(make_world: type[World]) -> Any:
    """A write is under way, a request waits behind it."""
    world = idle(make_world)
    world.hold_writes = True
    world.step(create("under-way", UNDER_WAY))
    world.step(create("queued", QUEUED))
    return world


def starting(make_world: type[World]) -> Any:
    world = make_world()
    world.step(create("early", QUEUED))
    return world


def create(name: str, request_id: int) -> c.CreateTopics:
    topic = c.NewTopic(name=name, topic_id=TopicId(f"id-{name}"), partitions=2, configs={})
    return c.CreateTopics(request_id=request_id, cluster_id="", topics=(topic,))


def registered(world: World) -> c.Event:
    return c.BrokerRegistered(
        stream_id=NEW_STREAM,
        cluster_id="",
        broker_id=BrokerId(3),
        incarnation="run",
        host="127.0.0.1",
        port=7003,
        rack="",
        directory_id="dir-3",
        data_intact=True,
        formats=FORMATS,
    )


def alter(world: World) -> c.Event:
    document = world.topic()
    held = document.partitions[0].state
    change = c.IsrChange(
        topic_id=document.topic_id,
        partition=0,
        leader_epoch=LeaderEpoch(held.leader_epoch),
        version=held.version,
        isr=(BrokerId(0), BrokerId(1)),
    )
    return c.AlterIsr(
        request_id=REQUEST,
        cluster_id="",
        broker_id=BrokerId(0),
        broker_session=world.session(0),
        controller_epoch=ControllerEpoch(1),
        changes=(change,),
    )


def request(kind: type, **fields: Any) -> Make:
    return lambda world: kind(request_id=REQUEST, cluster_id="", **fields)


def allocate(world: World) -> c.Event:
    return c.AllocateProducerIds(
        request_id=REQUEST,
        cluster_id="",
        broker_id=BrokerId(0),
        broker_session=world.session(0),
    )


def report(world: World) -> c.Event:
    return m.ReportReplicas(
        request_id=REQUEST,
        cluster_id="",
        broker_id=BrokerId(0),
        broker_session=world.session(0),
    )


def heard(world: World) -> c.Event:
    return c.HeartbeatReceived(stream_id=world.streams[0], metadata_version=1, wants_stop=True)


LEASE = OperatorLease(uid="u", created_s=1, transitions=1, holder="h")


def operated(world: World) -> c.Event:
    change = c.ElectLeaders(request_id=REQUEST, cluster_id="", partitions=())
    return c.OperatorRequest(operator_epoch=1, request=change)


def versions(world: World) -> c.Event:
    assert world.held is not None
    # Nothing was written the second time, when it is made for the machine that has stopped.
    found = world.documents.write(world.held.writes) or {}
    return c.WriteDone(write_id=world.held.write_id, versions=found)


SCENES: dict[type, list[tuple[Callable[[Any], Any], Make]]] = {
    c.Loaded: [(starting, lambda world: world.documents.loaded())],
    c.WriteDone: [(busy, versions)],
    c.WriteConflict: [(busy, lambda world: c.WriteConflict(write_id=world.held.write_id))],
    c.WriteUnknown: [(busy, lambda world: c.WriteUnknown(write_id=world.held.write_id))],
    c.WriteNotSent: [(busy, lambda world: c.WriteNotSent(write_id=world.held.write_id))],
    c.BrokerRegistered: [(idle, registered), (busy, registered)],
    c.HeartbeatReceived: [(idle, heard), (busy, heard)],
    c.StreamClosed: [(idle, lambda world: c.StreamClosed(stream_id=world.streams[0]))],
    c.AlterIsr: [(idle, alter)],
    c.AllocateProducerIds: [(idle, allocate)],
    c.CreateTopics: [(idle, lambda world: create("new", REQUEST))],
    c.DeleteTopics: [(idle, request(c.DeleteTopics, topics=(("t", TopicId("")),)))],
    c.CreatePartitions: [(idle, request(c.CreatePartitions, topic="t", partitions=4))],
    c.AlterConfigs: [(idle, request(c.AlterConfigs, topic="t", set_configs={"retention.ms": "9"}))],
    c.AlterAccess: [(idle, request(c.AlterAccess, resource=CLUSTER, rules=ADMIN))],
    c.AlterQuotas: [(idle, request(c.AlterQuotas, rules=QUOTAS))],
    c.ElectLeaders: [(idle, request(c.ElectLeaders, partitions=(TopicPartition("t", 0),)))],
    c.UnregisterBroker: [(idle, request(c.UnregisterBroker, broker_id=BrokerId(2)))],
    c.StoreState: [(idle, lambda world: c.StoreState(journaling=True))],
    c.StoreSeen: [(idle, lambda world: c.StoreSeen(versions={}, metadata_version=0))],
    m.ReportReplicas: [(idle, report)],
    m.AlterReplicas: [(idle, request(m.AlterReplicas, changes=()))],
    m.AlterBrokers: [(idle, request(m.AlterBrokers, changes=()))],
    m.AlterThrottle: [(idle, request(m.AlterThrottle, copy_rate=1))],
    m.AlterCluster: [(idle, request(m.AlterCluster, hibernating=True))],
    m.Finalize: [(idle, request(m.Finalize))],
    o.AcquireOperatorEpoch: [(idle, request(o.AcquireOperatorEpoch, lease=LEASE))],
    c.OperatorRequest: [(idle, operated), (busy, operated)],
    c.Tick: [(idle, lambda world: c.Tick()), (busy, lambda world: c.Tick())],
}
KINDS = {kind for one in get_args(c.Event) for kind in (get_args(one) or (one,))}


def test_every_event_has_its_scene() -> None:
    assert set(SCENES) == KINDS


@pytest.mark.parametrize(
    ("scene", "make"),
    [pytest.param(*one, id=f"{kind.__name__}-{one[0].__name__}") for kind in SCENES
     for one in SCENES[kind]],
)  # fmt: skip
def test_a_defect_at_any_line_stops_the_controller(
    make_world: type[World], scene: Callable[[Any], Any], make: Make
) -> None:
    for plant in every_line("control", "handle", "refusal"):
        world = scene(make_world)
        machine, event = world.machine, make(world)
        before = machine._stored
        others = [another for scenes in SCENES.values() for another in scenes]
        later = [another(world) for other, another in others if other is scene]
        now_ms = world.now_ms + 10**8
        with plant:
            ready = machine.handle(event, now_ms)
        if not plant.struck:
            assert machine.error is None
            continue
        error = machine.error
        assert ready.stopped is error
        assert isinstance(error.__cause__, PlantedError)
        assert (machine.phase, machine.epoch) == (Phase.STOPPED, 0)
        assert machine._stored is before
        check_told(world, event, ready)
        for another in later:
            check_refused(another, machine.handle(another, now_ms), error)
            assert machine._stored is before
            assert machine.phase is Phase.STOPPED


def check_refused(event: c.Event, ready: c.Ready, error: Any) -> None:
    replies: tuple[c.Reply, ...] = ()
    messages: tuple[c.SessionRefused, ...] = ()
    if hasattr(event, "request_id"):
        replies = (c.Reply(request_id=event.request_id, outcome=error),)
    if isinstance(event, c.BrokerRegistered | c.HeartbeatReceived):
        messages = (c.SessionRefused(stream_id=event.stream_id, error=error),)
    assert ready == c.Ready(replies=replies, session_messages=messages)


def check_told(world: World, event: c.Event, ready: c.Ready) -> None:
    """All who wait for an answer get one, all streams end; nothing else leaves."""
    waiting = {UNDER_WAY, QUEUED} if world.held is not None else set()
    waiting |= {QUEUED} if world.documents.count == 0 else set()
    waiting |= {REQUEST} if hasattr(event, "request_id") else set()
    assert {reply.request_id for reply in ready.replies} == waiting
    assert len(ready.replies) == len(waiting)
    assert all(reply.outcome is ready.stopped for reply in ready.replies)
    assert ready.stopped is not None
    assert ready.stopped.code is ErrorCode.INTERNAL, "not sent again, to the next controller"
    told = {message.stream_id for message in ready.session_messages}
    ended = {event.stream_id} if isinstance(event, c.StreamClosed) else set()
    own = {NEW_STREAM} if isinstance(event, c.BrokerRegistered) else set()
    assert told | ended == {*world.streams.values()} | own
    assert all(isinstance(message, c.SessionRefused) for message in ready.session_messages)
    dropped = (ready.writes, ready.write_id, ready.reload, ready.metadata_version)
    assert dropped == ((), 0, False, None)
    assert (ready.decisions, ready.deposed) == ((), False)
