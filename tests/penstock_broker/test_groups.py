"""Consumer groups on one real broker, by the plain protocol."""

import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.cluster import Cluster
from support.group_wire import AGAIN, Groups, wait_for_shares
from support.internal_topic import check_internal
from support.waiting import wait_until
from support.wire import Wire, call_error

from penstock.core.groups.config import OFFSETS_PARTITIONS, OFFSETS_TOPIC
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1 import group_pb2 as pb


@pytest.fixture
def groups(shared_broker: Cluster) -> Iterator[Groups]:
    with Groups(shared_broker) as groups:
        yield groups


@pytest.fixture
def name(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic with four partitions, and the name of a group."""
    name: str = request.node.name.replace("[", ".").replace("]", "")[-200:]
    shared_broker.create_topic(name, partitions=4)
    return name


def parts(topic: str, *partitions: int) -> set[tuple[str, int]]:
    return {(topic, partition) for partition in partitions}


def test_two_members_share_a_topic_and_one_takes_over_when_the_other_is_cut(
    groups: Groups, name: str
) -> None:
    one = groups.join(name, name)
    wait_until(lambda: one.owned == parts(name, 0, 1, 2, 3), what="one owns all")
    two = groups.join(name, name)
    wait_for_shares(2, one, two)
    assert one.owned | two.owned == parts(name, 0, 1, 2, 3)
    assert one.lost == two.owned, "what one keeps is never taken from it"
    two.cut()
    wait_until(lambda: one.owned == parts(name, 0, 1, 2, 3), what="one owns all again")
    one.leave()
    assert one.error is None
    assert groups.describe(name).state == pb.GROUP_STATE_EMPTY


def test_a_member_that_comes_back_in_time_keeps_everything(groups: Groups, name: str) -> None:
    one, two = groups.join(name, name), groups.join(name, name)
    wait_for_shares(2, one, two)
    before, epoch = set(two.owned), two.epoch
    two.cut_and_return()
    assert (two.owned, two.epoch, two.lost) == (before, epoch, set())
    assert two.error is None
    for member in (one, two):
        member.leave()


def test_commits_on_a_stream_are_answered_in_order_until_one_is_refused_as_a_whole(
    groups: Groups, name: str
) -> None:
    def request(offset: int, **fields: Any) -> pb.CommitOffsetsRequest:
        part = pb.CommitPartition(topic=name, partition=0, offset=offset, leader_epoch=-1)
        return pb.CommitOffsetsRequest(
            group_id=name, partitions=[part], **{"member_epoch": -1, **fields}
        )

    groups.commit(name, {(name, 0): 1})  # waits for the coordinator
    where = groups.find(name)
    stub = groups.at(f"{where.host}:{where.port}")
    sent = [request(9), request(8), request(10), request(11, member_id="nobody"), request(12)]
    answers: list[pb.CommitOffsetsResponse] = []
    with pytest.raises(grpc.RpcError) as ended:
        answers.extend(stub.CommitOffsetsStream(iter(sent), timeout=120))
    assert call_error(ended.value).code is ErrorCode.UNKNOWN_MEMBER
    assert groups.fetch(name) == {(name, 0): 10}
    with pytest.raises(grpc.RpcError) as ended:
        list(stub.CommitOffsetsStream(iter([request(11, cluster_id="another")]), timeout=120))
    assert call_error(ended.value).code is ErrorCode.CLUSTER_ID_MISMATCH
    told = list(stub.CommitOffsetsStream(iter(sent[:3]), timeout=120))
    codes = [ErrorCode(answer.results[0].error.code) for answer in told]
    back, none = ErrorCode.OFFSET_WENT_BACK, ErrorCode.UNSPECIFIED
    assert codes == [back, back, none]
    assert groups.fetch(name) == {(name, 0): 10}


def test_offsets_are_committed_fetched_reset_and_deleted(groups: Groups, name: str) -> None:
    member = groups.join(name, name)
    wait_until(lambda: len(member.owned) == 4, what="the member owns all")
    none, back = ErrorCode.UNSPECIFIED, ErrorCode.OFFSET_WENT_BACK
    assert member.commit({(name, 0): 5, (name, 1): 7}) == [none, none]
    assert member.commit({(name, 0): 4, (name, 1): 7, (name, 9): 1}) == [
        back,
        none,
        ErrorCode.UNKNOWN_PARTITION,
    ]
    assert groups.fetch(name) == {(name, 0): 5, (name, 1): 7}
    for call, request in (
        ("ResetOffsets", pb.ResetOffsetsRequest(group_id=name)),
        ("DeleteGroup", pb.DeleteGroupRequest(group_id=name)),
        ("CommitOffsets", pb.CommitOffsetsRequest(group_id=name, member_epoch=-1)),
    ):
        with pytest.raises(PenstockError) as caught:
            groups.call(call, request)
        assert caught.value.code is ErrorCode.GROUP_NOT_EMPTY
    with pytest.raises(PenstockError) as caught:
        member.commit({(name, 0): 6}, member_epoch=member.epoch - 1)
    assert caught.value.code is ErrorCode.STALE_MEMBER_EPOCH
    member.leave()
    with pytest.raises(PenstockError) as caught:
        member.commit({(name, 0): 6})
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER
    reset = pb.ResetOffsetsRequest(
        group_id=name,
        partitions=[pb.ResetPartition(topic=name, partition=0, offset=2, leader_epoch=-1)],
        reset_id="r1",
        reason="read again",
    )
    answer = groups.call("ResetOffsets", reset)
    assert answer.applied
    assert [(r.old_offset, r.new_offset) for r in answer.results] == [(5, 2)]
    again = groups.call("ResetOffsets", reset)
    assert again.already_applied
    assert not again.applied
    told = groups.describe(name, offsets=True)
    assert told.last_reset.reset_id == "r1"
    assert [(o.partition, o.offset) for o in told.offsets] == [(0, 2), (1, 7)]
    assert groups.commit(name, {(name, 0): 3}) == [none]
    groups.call("DeleteGroup", pb.DeleteGroupRequest(group_id=name))
    assert groups.describe(name).state == pb.GROUP_STATE_DEAD
    assert groups.fetch(name) == {}


def test_a_group_is_described_and_listed(shared_broker: Cluster, groups: Groups, name: str) -> None:
    member = groups.join(name, name, client_id="c", rack="r", instance_id="i")
    wait_until(lambda: len(member.owned) == 4, what="the member owns all")
    wait_until(lambda: groups.describe(name).state == pb.GROUP_STATE_STABLE, what="it has said so")
    told = groups.describe(name)
    (seen,) = told.members
    assert (seen.member_id, seen.client_id, seen.client_host) == (
        member.member_id,
        "c",
        "127.0.0.1",
    )
    assert (seen.instance_id, seen.rack, seen.connected) == ("i", "r", True)
    assert [(t.topic, list(t.partitions)) for t in seen.assigned] == [(name, [0, 1, 2, 3])]
    stub = groups.at(shared_broker.brokers[0].address)
    wanted = pb.ListGroupsRequest(states=[pb.GROUP_STATE_STABLE])
    listed = {group.group_id: group for group in stub.ListGroups(wanted).groups}
    assert listed[name].members == 1
    member.leave()
    assert name not in {group.group_id for group in stub.ListGroups(wanted).groups}


def test_a_static_member_returns_to_its_seat_and_two_cannot_have_it(
    groups: Groups, name: str
) -> None:
    other = groups.join(name, name)
    first = groups.join(name, name, instance_id="i")
    wait_for_shares(2, other, first)
    second = groups.join(name, name, instance_id="i")
    assert second.error is not None
    assert second.error.code is ErrorCode.UNRELEASED_INSTANCE_ID
    before = set(first.owned)
    first.leave(keep_seat=True)
    second.connect()
    wait_until(lambda: second.owned == before, what="the seat's partitions")
    assert other.lost <= before, "the other kept what it had"
    with pytest.raises(PenstockError) as caught:
        first.commit({min(before): 1}, instance_id="i")
    assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID
    for member in (other, second):
        member.leave()


def test_a_member_that_does_not_give_up_is_fenced_and_its_partitions_go_on(
    groups: Groups, name: str
) -> None:
    slow = groups.join(name, name, rebalance_timeout_ms=1_000)
    wait_until(lambda: len(slow.owned) == 4, what="the first owns all")
    slow.keeps_everything = True
    other = groups.join(name, name)
    wait_until(lambda: len(other.owned) == 4, what="the other owns all")
    assert slow.ended.wait(40)
    assert slow.error is not None
    assert slow.error.code in {ErrorCode.UNKNOWN_MEMBER, ErrorCode.STALE_MEMBER_EPOCH}
    other.leave()


def test_partitions_that_are_added_are_assigned(
    shared_broker: Cluster, groups: Groups, name: str
) -> None:
    member = groups.join(name, name)
    wait_until(lambda: len(member.owned) == 4, what="the member owns all")
    with Wire(shared_broker.brokers[0].address) as wire:
        wire.admin.CreatePartitions(admin_pb2.CreatePartitionsRequest(topic=name, partitions=6))
    wait_until(lambda: len(member.owned) == 6, what="the new ones too")
    assert not member.lost
    member.leave()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"session_timeout_ms": 999}, ErrorCode.INVALID_REQUEST),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"rack": "r" * 300}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_hello_that_cannot_be_is_refused_with_a_reason(
    groups: Groups, name: str, fields: dict[str, object], code: ErrorCode
) -> None:
    member = groups.join(name, name, **fields)
    assert member.error is not None
    assert member.error.code is code, member.error


def test_users_cannot_write_or_change_the_internal_topic(
    shared_broker: Cluster, groups: Groups, name: str
) -> None:
    groups.commit(name, {(name, 0): 1})
    check_internal(shared_broker, OFFSETS_TOPIC, OFFSETS_PARTITIONS)


def refusal(groups: Groups, shared_broker: Cluster, *messages: pb.JoinRequest) -> PenstockError:
    """What a Join stream that says this ends with, once there is a coordinator."""
    stub = groups.at(shared_broker.brokers[0].address)

    def ended() -> PenstockError | None:
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Join(iter(messages), timeout=120))
        error = call_error(caught.value)
        return None if error.code in AGAIN else error

    error = wait_until(ended, what="a coordinator refuses")
    assert error is not None
    return error


def hello(group_id: str, **fields: Any) -> pb.JoinRequest:
    subscription = pb.Subscription(topics=[group_id])
    return pb.JoinRequest(
        hello=pb.MemberHello(group_id=group_id, member_id="m", subscription=subscription, **fields)
    )


def test_a_full_disk_takes_no_member_and_answers_what_is_committed(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("g")
    with Groups(cluster) as groups:
        groups.commit("g", {("g", 0): 3})
    broker = cluster.brokers[0]
    assert broker.stop() == 0
    broker.start("--config", f"disk.reserve.bytes={2**62}")
    with Groups(cluster) as groups:
        full = refusal(groups, cluster, hello("g"))
        assert full.code is ErrorCode.DISK_FULL
        assert "disk.reserve.bytes" in str(full)
        assert groups.fetch("g") == {("g", 0): 3}


def test_a_stream_that_is_not_what_it_should_be_ends_with_a_reason(
    shared_broker: Cluster, groups: Groups, name: str
) -> None:
    groups.fetch(name)
    beat = pb.JoinRequest(heartbeat=pb.MemberHeartbeat())
    first = refusal(groups, shared_broker, beat)
    assert first.code is ErrorCode.INVALID_REQUEST
    assert "must be a hello" in first.message
    twice = refusal(groups, shared_broker, hello(name), hello(name))
    assert twice.code is ErrorCode.INVALID_REQUEST
    assert "heartbeats" in twice.message
    other = refusal(groups, shared_broker, hello(name, cluster_id="another"))
    assert other.code is ErrorCode.CLUSTER_ID_MISMATCH
    nameless = refusal(groups, shared_broker, hello(""))
    assert nameless.code is ErrorCode.INVALID_REQUEST
    stub = groups.at(shared_broker.brokers[0].address)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ListGroups(pb.ListGroupsRequest(states=[77]))  # type: ignore[list-item]
    assert call_error(caught.value).code is ErrorCode.INVALID_REQUEST
    # A stream that says nothing and closes is nobody.
    assert list(stub.Join(iter([]), timeout=120)) == []


def test_a_member_that_goes_without_a_word_has_little_time_to_come_back(
    shared_broker: Cluster, groups: Groups, name: str
) -> None:
    groups.fetch(name)
    stub = groups.at(shared_broker.brokers[0].address)
    list(stub.Join(iter([hello(name)]), timeout=120))  # closes its side, and so the stream ends
    wait_until(
        lambda: groups.describe(name).state == pb.GROUP_STATE_EMPTY, what="the member is out"
    )


def test_prometheus_hears_of_groups(shared_broker: Cluster, groups: Groups, name: str) -> None:
    member = groups.join(name, name)
    wait_until(lambda: len(member.owned) == 4, what="the member owns all")
    member.commit({(name, 0): 1})

    def seen() -> dict[str, float]:
        port = shared_broker.metrics_ports[0]
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        families = text_string_to_metric_families(text)
        return {s.name + s.labels.get("state", ""): s.value for f in families for s in f.samples}

    def counted() -> bool:
        found = seen()
        return (
            found["penstock_groupsStable"] >= 1
            and found["penstock_groups_members"] >= 1
            and found["penstock_group_load_seconds_count"] == OFFSETS_PARTITIONS
            and found["penstock_group_coordinators_loading"] == 0
        )

    wait_until(counted, what="groups are counted")
    found = seen()
    assert found["penstock_group_commits_total"] >= 1
    assert found["penstock_group_rebalances_total"] >= 1
    member.leave()
