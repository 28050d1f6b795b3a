"""Lists of invented names: refused, or worked off in slices, before anybody waits for them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

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
from penstock_broker.services.offsets import Offsets
from penstock_broker.services.subscribing import Subscription
from penstock_broker.serving.callers import Caller, Role, entered

__all__ = ["believing"]
pytestmark = pytest.mark.usefixtures("believed")
A = TypeVar("A")
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


async def with_turns(working: Awaitable[A]) -> tuple[A, int]:
    """What comes of it, and how many turns others had meanwhile."""
    loop, turns, is_over = asyncio.get_running_loop(), 0, False

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not is_over:
            loop.call_soon(turn)

    loop.call_soon(turn)
    found = await working
    is_over = True
    return found, turns


async def test_others_have_turns_while_many_topics_are_described(cluster: Identified) -> None:
    names = [f"t{index}" for index in range(NAMED_MAX)]
    entered(Caller(Role.USER, NOBODY))
    answer, turns = await with_turns(
        describe(cluster.broker._view, pb.MetadataRequest(topics=names))
    )
    assert turns > NAMED_MAX // 200
    assert [topic.topic for topic in answer.topics] == names
    assert {topic.error.code for topic in answer.topics} == {ErrorCode.UNKNOWN_TOPIC.value}


async def test_others_have_turns_while_many_topics_are_fetched(cluster: Identified) -> None:
    parts = [pb.FetchPartition(topic=f"t{index}") for index in range(NAMED_MAX)]
    entered(Caller(Role.USER, NOBODY))
    answer, turns = await with_turns(
        cluster.broker._fetching.fetch(pb.FetchRequest(partitions=parts))
    )
    answer.sent()
    assert turns > NAMED_MAX // 100, "to look at them, and to say what is wrong with them"
    assert [head.topic for head, _ in answer.results] == [part.topic for part in parts]
    assert {head.error.code for head, _ in answer.results} == {ErrorCode.UNKNOWN_TOPIC.value}


async def test_others_have_turns_while_one_partition_is_fetched_many_times(
    cluster: Identified,
) -> None:
    """It is empty: all of them are read, watched and told without a wait for anything."""
    await cluster.create("t")
    await cluster.allow(Resource(Kind.TOPIC, "t"), NOBODY, Operation.READ)
    await wait_until_async(
        lambda: cluster.broker._fetching.locate(pb.FetchPartition(topic="t")), what="it leads"
    )
    parts = [pb.FetchPartition(topic="t")] * NAMED_MAX
    entered(Caller(Role.USER, NOBODY))
    answer, turns = await with_turns(
        cluster.broker._fetching.fetch(pb.FetchRequest(max_wait_ms=1, partitions=parts))
    )
    answer.sent()
    assert turns > NAMED_MAX // 50, "in four rounds"
    assert not any(head.HasField("error") for head, _ in answer.results)
    assert len(answer.results) == NAMED_MAX


async def test_others_have_turns_while_offsets_of_many_topics_are_listed(
    cluster: Identified,
) -> None:
    parts = [pb.ListOffsetsPartition(topic=f"t{index}") for index in range(NAMED_MAX)]
    entered(Caller(Role.USER, NOBODY))
    unused: Any = None
    offsets = Offsets(cluster.broker._fetching._locator, unused, unused, unused)
    answer, turns = await with_turns(offsets.list_offsets(pb.ListOffsetsRequest(partitions=parts)))
    assert turns > NAMED_MAX // 200
    assert [result.topic for result in answer.results] == [part.topic for part in parts]
    assert {result.error.code for result in answer.results} == {ErrorCode.UNKNOWN_TOPIC.value}


async def test_others_have_turns_while_many_topics_are_subscribed_to(cluster: Identified) -> None:
    class Told:
        """A client that takes everything at once."""

        def __init__(self) -> None:
            self.topics: list[list[str]] = []

        async def write(self, message: bytes) -> None:
            results = pb.SubscribeResponse.FromString(message).results
            assert {result.error.code for result in results} == {ErrorCode.UNKNOWN_TOPIC.value}
            self.topics.append([result.topic for result in results])
            if sum(map(len, self.topics)) == NAMED_MAX:
                all_told.set()

    parts = [pb.FetchPartition(topic=f"t{index}") for index in range(NAMED_MAX)]
    entered(Caller(Role.USER, NOBODY))
    told, all_told = Told(), asyncio.Event()

    async def requests() -> AsyncIterator[pb.SubscribeRequest]:
        yield pb.SubscribeRequest(subscribe=parts)
        yield pb.SubscribeRequest(credit_bytes=1 << 20)
        await all_told.wait()

    _, turns = await with_turns(Subscription(cluster.broker._fetching).run(requests(), told))
    assert turns > NAMED_MAX // 100, "to look for them, and to say that there are none"
    assert [topic for each in told.topics for topic in each] == [part.topic for part in parts]
    assert max(map(len, told.topics)) <= 1_000, "a message has no more"


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
