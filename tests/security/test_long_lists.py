"""Lists of invented names: refused, or worked off in slices, before anybody waits for them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.channels import patient_aio_channel
from support.identified import ROOT, Identified, as_user, believing, identified, refusal
from support.waiting import wait_until_async

from penstock.core.authorization import Kind, Operation, Resource
from penstock.core.control.admin import TOPICS_MAX
from penstock.core.groups.offsets import PARTITIONS_MAX
from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2, group_pb2, transaction_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock_broker.services import limits
from penstock_broker.services.limits import PARTITIONS_MAX as NAMED_MAX
from penstock_broker.services.metadata import describe
from penstock_broker.serving.callers import Caller, Role, entered

__all__ = ["believing"]
pytestmark = pytest.mark.usefixtures("believed")
NOBODY = "serviceaccount:etl/nobody"
"""Is known, and no rule allows it anything."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Identified]:
    async with identified(tmp_path) as made:
        yield made


def creation(count: int) -> admin_pb2.CreateTopicsRequest:
    return admin_pb2.CreateTopicsRequest(
        topics=[admin_pb2.NewTopic(topic=f"t{index}") for index in range(count)]
    )


def deletion(count: int) -> admin_pb2.DeleteTopicsRequest:
    return admin_pb2.DeleteTopicsRequest(
        topics=[admin_pb2.TopicName(topic=f"t{index}") for index in range(count)]
    )


async def test_the_controller_counts_topics_before_it_asks_for_each(cluster: Identified) -> None:
    async with patient_aio_channel(f"127.0.0.1:{cluster.controller.server.port}") as channel:
        admin: Any = AdminServiceStub(channel)
        nobody = as_user(NOBODY)
        for call in (
            admin.CreateTopics(creation(TOPICS_MAX + 1), metadata=nobody),
            admin.DeleteTopics(deletion(TOPICS_MAX + 1), metadata=nobody),
        ):
            assert await refusal(call) is ErrorCode.INVALID_REQUEST
        answer = await admin.CreateTopics(creation(TOPICS_MAX), metadata=nobody)
        assert len(answer.results) == TOPICS_MAX, "denied one by one"


async def test_a_broker_counts_topics_before_it_asks_the_controller(cluster: Identified) -> None:
    cluster.controller.stop_requested.set()
    root = as_user(ROOT)

    async def has_no_controller() -> bool:
        code = await refusal(cluster.admin.CreateTopics(creation(1), metadata=root))
        return code is ErrorCode.CONTROLLER_UNAVAILABLE

    await wait_until_async(has_no_controller, what="the broker has lost its controller")
    for call in (
        cluster.admin.CreateTopics(creation(TOPICS_MAX + 1), metadata=root),
        cluster.admin.DeleteTopics(deletion(TOPICS_MAX + 1), metadata=root),
    ):
        assert await refusal(call) is ErrorCode.INVALID_REQUEST


async def test_a_commit_counts_partitions_before_it_asks_for_each(cluster: Identified) -> None:
    await cluster.allow(Resource(Kind.GROUP, "mine"), NOBODY, Operation.READ)
    commit = group_pb2.CommitOffsetsRequest(
        group_id="mine",
        member_epoch=-1,
        partitions=[
            group_pb2.CommitPartition(topic=f"t{index}") for index in range(PARTITIONS_MAX + 1)
        ],
    )
    groups: Any = cluster.stub(GroupServiceStub)
    answer = groups.CommitOffsets(commit, metadata=as_user(NOBODY))
    assert await refusal(answer) is ErrorCode.INVALID_REQUEST


async def test_others_have_turns_while_many_topics_are_described(cluster: Identified) -> None:
    loop, turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not answered:
            loop.call_soon(turn)

    answered: list[pb.MetadataResponse] = []
    names = [f"t{index}" for index in range(NAMED_MAX)]
    entered(Caller(Role.USER, NOBODY))
    loop.call_soon(turn)
    answered.append(await describe(cluster.broker._view, pb.MetadataRequest(topics=names)))
    assert turns > NAMED_MAX // 200
    assert [topic.topic for topic in answered[0].topics] == names
    assert {topic.error.code for topic in answered[0].topics} == {ErrorCode.UNKNOWN_TOPIC.value}


async def test_a_topic_that_is_named_often_is_described_once(cluster: Identified) -> None:
    """Or one request for a topic of 5,000 partitions would be answered with gigabytes."""
    entered(Caller(Role.USER, NOBODY))
    often = pb.MetadataRequest(topics=[*["b", "a"] * (NAMED_MAX // 2)])
    answer = await describe(cluster.broker._view, often)
    assert [topic.topic for topic in answer.topics] == ["b", "a"]


@pytest.mark.parametrize("kind", ["groups", "transactions"])
async def test_descriptions_end_where_the_answer_is_full(
    cluster: Identified, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each may have megabytes, and a request may name the same one a thousand times."""
    monkeypatch.setattr(limits, "ANSWER_BYTES_MAX", 400, raising=False)
    names, root = ["mine"] * limits.NAMES_MAX, as_user(ROOT)
    found: Any
    if kind == "groups":
        groups: Any = cluster.stub(GroupServiceStub)
        request = group_pb2.DescribeGroupsRequest(group_ids=names)
        found = (await groups.DescribeGroups(request, metadata=root)).groups
    else:
        transactions: Any = cluster.stub(TransactionServiceStub)
        asked = transaction_pb2.DescribeTransactionsRequest(transactional_ids=names)
        found = (await transactions.DescribeTransactions(asked, metadata=root)).transactions
    codes = [one.error.code for one in found]
    assert len(codes) == limits.NAMES_MAX, "one for each, in their order"
    full = codes.index(ErrorCode.INVALID_REQUEST.value)
    assert 0 < full < 20
    assert set(codes[full:]) == {ErrorCode.INVALID_REQUEST.value}
