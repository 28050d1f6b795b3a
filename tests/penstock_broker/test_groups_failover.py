"""Groups on three real brokers: coordinators die, freeze, hand over; nothing that was told is lost.

I16, I18 from outside: what a member owned it still owns, what was committed is committed.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from support.cluster import PATIENT, Cluster
from support.group_wire import Groups, Member, wait_for_shares
from support.waiting import wait_until
from support.wire import Wire, call_error

from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import group_pb2 as pb

NONE = ErrorCode.UNSPECIFIED


@pytest.fixture
def groups(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Groups]:
    cluster = make_cluster(brokers=3, controller_config=PATIENT)
    cluster.create_topic("t", partitions=6)
    with Groups(cluster) as groups:
        groups.find("g")
        cluster.wait_in_sync(OFFSETS_TOPIC)
        yield groups


def test_the_first_group_of_a_starting_cluster_waits_for_its_brokers(
    make_cluster: Callable[..., Cluster],
) -> None:
    """A broker that is alone for a moment must not make a topic of one replica for ever."""
    cluster = make_cluster(brokers=3, start=False)
    cluster.controller.start()
    cluster.brokers[0].start()
    with Groups(cluster) as groups:
        with pytest.raises(PenstockError, match="waits for more brokers") as caught:
            groups.find("g")
        assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
        cluster.brokers[1].start()
        cluster.brokers[2].start()
        cluster.wait_alive({0, 1, 2})
        groups.find("g")
        info = cluster.topic(OFFSETS_TOPIC)
        assert info is not None
        assert {len(partition.replicas) for partition in info.partitions} == {3}


def two_members(groups: Groups) -> tuple[Member, Member]:
    one, two = groups.join("g", "t"), groups.join("g", "t")
    wait_for_shares(3, one, two)
    return one, two


def owned_as_before(
    groups: Groups, members: tuple[Member, Member], how: Callable[[], None]
) -> None:
    """Both members come back with all they had when `how` was done."""
    before = [set(member.owned) for member in members]
    for member in members:
        member.lost.clear()
    started = time.monotonic()
    how()
    for member in members:
        assert member.ended.wait(60), "the stream ends with its coordinator"
        member.connect()
        assert member.error is None
    print(f"members back after {time.monotonic() - started:.2f} s")
    assert [member.owned for member in members] == before
    assert all(not member.lost for member in members)


def test_members_keep_everything_and_offsets_stay_when_the_coordinator_is_killed(
    groups: Groups,
) -> None:
    members = two_members(groups)
    offsets = {part: 10 + part[1] for member in members for part in member.owned}
    for member in members:
        assert set(member.commit({part: offsets[part] for part in member.owned})) == {NONE}
    former = groups.find("g")
    owned_as_before(groups, members, groups.cluster.brokers[former.broker_id].kill)
    assert groups.find("g").broker_id != former.broker_id
    assert groups.fetch("g") == offsets
    # The same epochs go on: nothing changed for the group.
    part = min(members[0].owned)
    assert members[0].commit({part: 20}) == [NONE]
    with pytest.raises(PenstockError) as caught:
        members[1].commit({min(members[1].owned): 99}, member_epoch=members[1].epoch - 1)
    assert caught.value.code is ErrorCode.STALE_MEMBER_EPOCH
    members[1].cut()
    wait_until(lambda: len(members[0].owned) == 6, what="one owns all")


def test_a_coordinator_that_stops_hands_its_groups_over(groups: Groups) -> None:
    members = two_members(groups)
    former = groups.find("g").broker_id
    for broker_id, broker in groups.cluster.brokers.items():
        if broker_id != former:
            assert_elsewhere(groups, broker.address, former)

    def stop() -> None:
        assert groups.cluster.brokers[former].stop() == 0

    owned_as_before(groups, members, stop)
    assert members[0].commit({min(members[0].owned): 1}) == [NONE]


def isr(groups: Groups, where: pb.FindCoordinatorResponse) -> list[int]:
    """Of a coordinator's partition, as it has it itself."""
    return list(groups.cluster.partition(OFFSETS_TOPIC, where.partition, where.broker_id).isr)


def assert_elsewhere(groups: Groups, address: str, coordinator: int) -> None:
    """A broker that does not coordinate the group says who does, and takes nothing."""
    stub = groups.at(address)
    hello = pb.MemberHello(group_id="g", member_id="m", subscription=pb.Subscription(topics=["t"]))
    for call in (
        lambda: stub.CommitOffsets(pb.CommitOffsetsRequest(group_id="g", member_epoch=-1)),
        lambda: stub.FetchOffsets(pb.FetchOffsetsRequest(group_id="g")),
        lambda: stub.DeleteGroup(pb.DeleteGroupRequest(group_id="g")),
        lambda: list(stub.Join(iter([pb.JoinRequest(hello=hello)]))),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        error = call_error(caught.value)
        assert error.code is ErrorCode.NOT_COORDINATOR
        assert f"broker {coordinator} does" in error.message
    described = stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=["g"])).groups[0]
    assert ErrorCode(described.error.code) is ErrorCode.NOT_COORDINATOR
    assert "g" not in {group.group_id for group in stub.ListGroups(pb.ListGroupsRequest()).groups}


def test_committed_offsets_survive_the_death_of_every_broker(groups: Groups) -> None:
    member = groups.join("g", "t")
    wait_until(lambda: len(member.owned) == 6, what="the member owns all")
    for offset in range(1, 30):
        assert member.commit({("t", 1): offset, ("t", 2): 2 * offset}) == [NONE, NONE]
    for broker in groups.cluster.brokers.values():
        broker.kill()
    for broker in groups.cluster.brokers.values():
        broker.restart(wait=False)
    groups.cluster.wait_alive({0, 1, 2})
    assert groups.fetch("g") == {("t", 1): 29, ("t", 2): 58}
    member.connect()
    assert len(member.owned) == 6
    assert member.commit({("t", 1): 30}) == [NONE]


def test_a_commit_is_answered_only_when_the_replicas_have_it(groups: Groups) -> None:
    """And while too few replicas are there it is refused without harm to the members."""
    member = groups.join("g", "t", session_timeout_ms=600_000)
    wait_until(lambda: len(member.owned) == 6, what="the member owns all")
    where = groups.find("g")
    others = [b for i, b in groups.cluster.brokers.items() if i != where.broker_id]
    stub = groups.at(f"{where.host}:{where.port}")
    groups.cluster.controller.pause()  # so that they stay in the ISRs, however long this takes
    for broker in others:
        broker.pause()
    request = pb.CommitOffsetsRequest(
        group_id="g",
        member_id=member.member_id,
        member_epoch=member.epoch,
        partitions=[pb.CommitPartition(topic="t", partition=0, offset=3, leader_epoch=-1)],
    )
    with Wire(f"{where.host}:{where.port}") as wire:

        def log_end() -> int:
            return wire.log(OFFSETS_TOPIC, where.partition).log_end_offset

        before = log_end()
        waiting = stub.CommitOffsets.future(request, timeout=240)
        wait_until(lambda: log_end() > before, what="the commit is in the leader's log")
        reading = stub.FetchOffsets.future(pb.FetchOffsetsRequest(group_id="g"), timeout=240)
        # What needs no coordinator is answered meanwhile; these two are not.
        for _ in range(20):
            log_end()
    assert not waiting.done()
    assert not reading.done()
    for server in (groups.cluster.controller, *others):
        server.resume()
    assert not waiting.result(240).results[0].HasField("error")
    assert reading.result(240).offsets[0].offset == 3
    assert member.error is None
    for broker in others:
        broker.kill()
    wait_until(lambda: isr(groups, where) == [where.broker_id], what="the ISR has shrunk")

    def refused() -> bool:
        try:
            stub.CommitOffsets(request, timeout=120)
        except Exception as error:  # noqa: BLE001 - the code is looked at
            return "in-sync replicas" in str(error)
        return False

    wait_until(refused, what="a commit is refused")
    member.beat()
    assert not member.ended.is_set(), "members do not suffer from it"
