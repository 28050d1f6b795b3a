"""Attacks 13 to 17: who may do what, from a caller's first request on, and in streams."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.identified import ROOT, Identified, as_user, believing, identified, refusal
from support.produce_scene import part, request
from support.waiting import wait_until_async

from penstock.core.authorization import CLUSTER, AccessRole, Kind, Operation, Prefix, Resource, Rule
from penstock.errors import ErrorCode
from penstock.proto.v1 import (
    access_pb2,
    admin_pb2,
    group_pb2,
    transaction_pb2,
    transaction_peer_pb2,
    transaction_peer_pb2_grpc,
)
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.errors import error_from_rpc, error_from_wire
from penstock_broker.groups.coordinator import Coordinator
from penstock_broker.groups.coordinators import Coordinators

__all__ = ["believing"]
pytestmark = pytest.mark.usefixtures("believed")
ADA, BOB = "serviceaccount:etl/ada", "serviceaccount:etl/bob"
T = Resource(Kind.TOPIC, "orders")
G = Resource(Kind.GROUP, "readers")
DENIED, UNKNOWN, OK = (
    ErrorCode.PERMISSION_DENIED,
    ErrorCode.UNKNOWN_TOPIC,
    ErrorCode.UNSPECIFIED,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Identified]:
    async with identified(tmp_path) as made:
        await made.create("orders", "bills")
        yield made


def produce_request(topic: str, **producer: int) -> pb.ProduceRequest:
    return request(1, part(topic, b"a", **producer))


def fetch_request(*topics: str, wait_ms: int = 0) -> pb.FetchRequest:
    return pb.FetchRequest(
        max_wait_ms=wait_ms, partitions=[pb.FetchPartition(topic=topic) for topic in topics]
    )


async def codes(call: Any) -> list[ErrorCode]:
    """Of each part of an answer."""
    return [
        error_from_wire(one.error).code if one.HasField("error") else OK
        for one in (await call).results
    ]


# ---------------------------------------------------------------- 14: what a reader may do


async def test_a_reader_changes_nothing(cluster: Identified) -> None:
    await cluster.allow(T, ADA, Operation.READ)
    data, ada = cluster.stub(BrokerServiceStub), as_user(ADA)
    assert await codes(data.Fetch(fetch_request("orders"), metadata=ada)) == [OK]
    assert await codes(data.Produce(produce_request("orders"), metadata=ada)) == [DENIED]
    admin = cluster.admin
    for call in (
        admin.DeleteRecords(
            admin_pb2.DeleteRecordsRequest(topic="orders", before_offset=-1), metadata=ada
        ),
        admin.AlterConfigs(
            admin_pb2.AlterConfigsRequest(topic="orders", set={"retention.ms": "1"}), metadata=ada
        ),
        admin.CreatePartitions(
            admin_pb2.CreatePartitionsRequest(topic="orders", partitions=9), metadata=ada
        ),
        admin.CreateTopics(
            admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(topic="new")]), metadata=ada
        ),
        admin.DeleteTopics(
            admin_pb2.DeleteTopicsRequest(topics=[admin_pb2.TopicName(topic="orders")]),
            metadata=ada,
        ),
        admin.AlterAccess(
            admin_pb2.AlterAccessRequest(resource=access_pb2.AccessResource(topic="orders")),
            metadata=ada,
        ),
        admin.ElectLeaders(admin_pb2.ElectLeadersRequest(), metadata=ada),
        admin.UnregisterBroker(admin_pb2.UnregisterBrokerRequest(broker_id=0), metadata=ada),
    ):
        assert await refusal(call) is DENIED
    known = cluster.controller.runtime.machine.stored.topics
    assert known.keys() - {"__consumer_offsets"} == {"orders", "bills"}
    assert not known["orders"].configs
    assert len(known["orders"].partitions) == 1
    assert len(known["orders"].access) == 1


async def test_garbage_of_a_user_is_an_invalid_request_also_of_calls_that_are_written_down(
    cluster: Identified,
) -> None:
    call: Any = cluster.channel.unary_unary("/penstock.proto.v1.AdminService/AlterConfigs")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(b"\xff\xfe garbage", metadata=as_user(ADA))
    assert error_from_rpc(failed.value).code is ErrorCode.INVALID_REQUEST


async def test_a_denial_says_who_what_and_what_to_do(cluster: Identified) -> None:
    await cluster.allow(T, ADA, Operation.READ)
    data = cluster.stub(BrokerServiceStub)
    answer = await data.Produce(produce_request("orders"), metadata=as_user(ADA))
    assert answer.results[0].error.message == (
        "serviceaccount:etl/ada may not Write topic orders: no rule allows it; ask an "
        "administrator for Write on topic orders"
    )


async def test_one_denied_topic_fails_alone(cluster: Identified) -> None:
    await cluster.allow(T, ADA, Operation.READ, Operation.WRITE)
    data, ada = cluster.stub(BrokerServiceStub), as_user(ADA)
    both = request(1, part("bills"), part("orders"))
    assert await codes(data.Produce(both, metadata=ada)) == [UNKNOWN, OK]
    assert await codes(data.Fetch(fetch_request("bills", "orders"), metadata=ada)) == [UNKNOWN, OK]
    ask = pb.ListOffsetsRequest(
        partitions=[
            pb.ListOffsetsPartition(topic=t, earliest=pb.Earliest()) for t in ("bills", "orders")
        ]
    )
    assert await codes(data.ListOffsets(ask, metadata=ada)) == [UNKNOWN, OK]
    prefix = Prefix(Kind.TOPIC, "etl.")
    await cluster.put(
        CLUSTER, Rule(principals=(ADA,), operations=(Operation.CREATE,), prefix=prefix)
    )
    create = admin_pb2.CreateTopicsRequest(
        topics=[
            admin_pb2.NewTopic(topic=name, partitions=1, replication_factor=1)
            for name in ("x", "etl.x")
        ]
    )
    assert await codes(cluster.admin.CreateTopics(create, metadata=ada)) == [DENIED, OK]
    drop = admin_pb2.DeleteTopicsRequest(
        topics=[admin_pb2.TopicName(topic=name) for name in ("etl.x", "bills")]
    )
    assert await codes(cluster.admin.DeleteTopics(drop, metadata=ada)) == [DENIED, UNKNOWN]
    await cluster.put(
        CLUSTER, Rule(principals=(ADA,), operations=(Operation.DELETE,), prefix=prefix)
    )
    assert await codes(cluster.admin.DeleteTopics(drop, metadata=ada)) == [OK, UNKNOWN]


async def test_a_viewer_sees_everything_and_reads_nothing(cluster: Identified) -> None:
    await cluster.put(CLUSTER, Rule(principals=(ADA,), role=AccessRole.VIEWER))
    data, ada = cluster.stub(BrokerServiceStub), as_user(ADA)
    seen = await data.Metadata(pb.MetadataRequest(), metadata=ada)
    assert {topic.topic for topic in seen.topics} >= {"orders", "bills"}
    assert (
        await refusal(
            cluster.admin.DescribeCluster(admin_pb2.DescribeClusterRequest(), metadata=ada)
        )
        is OK
    )
    assert await codes(data.Fetch(fetch_request("orders"), metadata=ada)) == [DENIED]


# ---------------------------------------------------------------- 15: no rights, no names


async def test_without_rights_nothing_is_there(cluster: Identified) -> None:
    data, bob = cluster.stub(BrokerServiceStub), as_user(BOB)
    seen = await data.Metadata(pb.MetadataRequest(), metadata=bob)
    assert list(seen.topics) == []
    assert len(seen.brokers) == 1, "clients need brokers"
    named = await data.Metadata(pb.MetadataRequest(topics=["orders", "none"]), metadata=bob)
    there, absent = (topic.error.message.replace(topic.topic, "X") for topic in named.topics)
    assert there == absent
    assert there.startswith("there is no topic 'X'")
    groups, transactions = cluster.stub(GroupServiceStub), cluster.stub(TransactionServiceStub)
    await groups.FindCoordinator(
        group_pb2.FindCoordinatorRequest(group_id="readers"), metadata=as_user(ROOT)
    )
    listed = await groups.ListGroups(group_pb2.ListGroupsRequest(), metadata=bob)
    assert not listed.groups
    described = await groups.DescribeGroups(
        group_pb2.DescribeGroupsRequest(group_ids=["readers"]), metadata=bob
    )
    assert error_from_wire(described.groups[0].error).code is DENIED
    assert not (
        await transactions.ListTransactions(transaction_pb2.ListTransactionsRequest(), metadata=bob)
    ).transactions
    for call in (
        groups.FindCoordinator(group_pb2.FindCoordinatorRequest(group_id="x"), metadata=bob),
        cluster.admin.DescribeCluster(admin_pb2.DescribeClusterRequest(), metadata=bob),
        cluster.admin.DescribeLogs(admin_pb2.DescribeLogsRequest(), metadata=bob),
        cluster.admin.DescribeAccess(admin_pb2.DescribeAccessRequest(), metadata=bob),
    ):
        assert await refusal(call) is DENIED


async def test_a_pattern_does_not_tell_names(cluster: Identified) -> None:
    await cluster.allow(G, BOB, Operation.READ)
    hello = hello_of("readers", pattern=".*")
    assert await joined(cluster, BOB, hello) is DENIED


# ---------------------------------------------------------------- 13: a rule goes during a stream


async def test_a_subscription_ends_with_its_rule(cluster: Identified) -> None:
    await cluster.allow(T, ADA, Operation.READ)
    data = cluster.stub(BrokerServiceStub)
    call: Any = data.Subscribe(metadata=as_user(ADA))
    await call.write(
        pb.SubscribeRequest(subscribe=[pb.FetchPartition(topic="orders")], credit_bytes=1 << 20)
    )
    await data.Produce(produce_request("orders"), metadata=as_user(ROOT))
    first = await asyncio.wait_for(call.read(), 20)
    assert first.results[0].batches
    await cluster.allow(T, ADA)
    await data.Produce(produce_request("orders"), metadata=as_user(ROOT))
    last = await asyncio.wait_for(call.read(), 20)
    assert not last.results[0].batches
    assert error_from_wire(last.results[0].error).code is UNKNOWN
    call.cancel()


async def test_a_waiting_fetch_gets_nothing_once_its_rule_is_gone(cluster: Identified) -> None:
    await cluster.allow(T, ADA, Operation.READ)
    data = cluster.stub(BrokerServiceStub)
    waiting = data.Fetch(fetch_request("orders", wait_ms=30_000), metadata=as_user(ADA))
    fetching = cluster.broker._fetching
    await wait_until_async(lambda: fetching.parked == 1, what="it waits")
    await cluster.allow(T, ADA)
    await data.Produce(produce_request("orders"), metadata=as_user(ROOT))
    answer = await asyncio.wait_for(waiting, 20)
    assert not answer.results[0].batches
    assert error_from_wire(answer.results[0].error).code is UNKNOWN


async def test_a_produce_stream_is_asked_for_every_request(cluster: Identified) -> None:
    await cluster.allow(T, ADA, Operation.WRITE)
    call: Any = cluster.stub(BrokerServiceStub).ProduceStream(metadata=as_user(ADA))
    await call.write(produce_request("orders"))
    assert not (await asyncio.wait_for(call.read(), 20)).results[0].HasField("error")
    await cluster.allow(T, ADA, Operation.READ)
    await call.write(produce_request("orders"))
    answer = await asyncio.wait_for(call.read(), 20)
    assert error_from_wire(answer.results[0].error).code is DENIED
    call.cancel()


def hello_of(group: str, *topics: str, pattern: str = "") -> group_pb2.JoinRequest:
    return group_pb2.JoinRequest(
        hello=group_pb2.MemberHello(
            group_id=group,
            member_id=f"m-{group}",
            subscription=group_pb2.Subscription(topics=topics, pattern=pattern),
        )
    )


async def joined(cluster: Identified, who: str, hello: group_pb2.JoinRequest) -> ErrorCode:
    """How a stream of a member that begins so is refused."""
    call: Any = cluster.stub(GroupServiceStub).Join(metadata=as_user(who))
    await call.write(hello)
    try:
        await asyncio.wait_for(call.read(), 20)
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).code
    call.cancel()
    return OK


async def ready_group(cluster: Identified) -> None:
    """The group's coordinator is loaded."""
    groups = cluster.stub(GroupServiceStub)
    root = as_user(ROOT)

    async def described() -> bool:
        try:
            await groups.FindCoordinator(
                group_pb2.FindCoordinatorRequest(group_id="readers"), metadata=root
            )
        except grpc.aio.AioRpcError:
            return False
        answer = await groups.DescribeGroups(
            group_pb2.DescribeGroupsRequest(group_ids=["readers"]), metadata=root
        )
        return not answer.groups[0].HasField("error")

    # A coordinator that loads its log makes no image.
    await wait_until_async(described, what="the group has a coordinator")


async def last_of(call: Any) -> None:
    """Reads until the stream ends; raises how."""
    async with asyncio.timeout(20):
        while await call.read() is not grpc.aio.EOF:
            pass


async def test_a_member_without_read_is_told(cluster: Identified) -> None:
    await ready_group(cluster)
    await cluster.allow(G, ADA, Operation.READ)
    await cluster.allow(T, ADA, Operation.READ)
    call: Any = cluster.stub(GroupServiceStub).Join(metadata=as_user(ADA))
    await call.write(hello_of("readers", "orders"))
    await asyncio.wait_for(call.read(), 20)
    await cluster.allow(T, ADA, Operation.WRITE)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await last_of(call)
    error = error_from_rpc(ended.value)
    assert error.code is DENIED
    assert "a rule of access has changed: serviceaccount:etl/ada may not Read" in error.message


async def test_a_member_without_its_transactional_id_is_told(cluster: Identified) -> None:
    await ready_group(cluster)
    await cluster.allow(G, ADA, Operation.READ)
    await cluster.allow(T, ADA, Operation.READ)
    mine = Rule(
        principals=(ADA,),
        operations=(Operation.WRITE,),
        prefix=Prefix(Kind.TRANSACTIONAL_ID, "mine"),
    )
    await cluster.put(CLUSTER, mine)
    hello = hello_of("readers", "orders")
    hello.hello.transactional_id = "mine"
    call: Any = cluster.stub(GroupServiceStub).Join(metadata=as_user(ADA))
    await call.write(hello)
    await asyncio.wait_for(call.read(), 20)
    await cluster.put(CLUSTER)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await last_of(call)
    error = error_from_rpc(ended.value)
    assert error.code is DENIED
    assert "a rule of access has changed: serviceaccount:etl/ada may not Write" in error.message


async def test_a_rule_that_goes_while_a_member_is_let_in_is_noticed(
    cluster: Identified, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready_group(cluster)
    await cluster.allow(G, ADA, Operation.READ)
    await cluster.allow(T, ADA, Operation.READ)
    rules, find = cluster.broker._view.rules, Coordinators.find

    def find_later(coordinators: Coordinators, group_id: str) -> Coordinator:
        """The hello was checked before, and no other image comes after."""
        rules.put_topic("orders", ())
        return find(coordinators, group_id)

    monkeypatch.setattr(Coordinators, "find", find_later)
    call: Any = cluster.stub(GroupServiceStub).Join(metadata=as_user(ADA))
    await call.write(hello_of("readers", "orders"))
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await last_of(call)
    error = error_from_rpc(ended.value)
    assert error.code is DENIED
    assert "a rule of access has changed" in error.message


# ---------------------------------------------------------------- 17: what is another's


async def test_groups_of_others(cluster: Identified) -> None:
    await ready_group(cluster)
    await cluster.allow(G, BOB, Operation.READ, Operation.RESET)
    await cluster.allow(T, ADA, Operation.READ)
    groups, ada = cluster.stub(GroupServiceStub), as_user(ADA)
    assert await joined(cluster, ADA, hello_of("readers", "orders")) is DENIED
    assert await joined(cluster, BOB, hello_of("readers", "orders")) is UNKNOWN, "nor its topics"
    for call in (
        groups.ResetOffsets(
            group_pb2.ResetOffsetsRequest(
                group_id="readers", partitions=[group_pb2.ResetPartition(topic="orders")]
            ),
            metadata=ada,
        ),
        groups.CommitOffsets(
            group_pb2.CommitOffsetsRequest(group_id="readers", member_epoch=-1), metadata=ada
        ),
        groups.FetchOffsets(group_pb2.FetchOffsetsRequest(group_id="readers"), metadata=ada),
        groups.DeleteGroup(group_pb2.DeleteGroupRequest(group_id="readers"), metadata=ada),
    ):
        assert await refusal(call) is DENIED


async def test_a_commit_needs_the_topic_as_well(cluster: Identified) -> None:
    await ready_group(cluster)
    await cluster.allow(G, ADA, Operation.READ)
    await cluster.allow(T, ADA, Operation.READ)
    commit = group_pb2.CommitOffsetsRequest(
        group_id="readers",
        member_epoch=-1,
        partitions=[group_pb2.CommitPartition(topic=t, offset=0) for t in ("bills", "orders")],
    )
    groups = cluster.stub(GroupServiceStub)
    assert await codes(groups.CommitOffsets(commit, metadata=as_user(ADA))) == [UNKNOWN, OK]
    committed = await groups.FetchOffsets(
        group_pb2.FetchOffsetsRequest(group_id="readers"), metadata=as_user(ADA)
    )
    assert [one.topic for one in committed.offsets] == ["orders"]


async def test_offsets_do_not_tell_whether_a_hidden_topic_is_there(cluster: Identified) -> None:
    await ready_group(cluster)
    await cluster.allow(G, ADA, Operation.DESCRIBE)
    await cluster.allow(T, ADA, Operation.DESCRIBE)

    def ask(topic: str) -> group_pb2.FetchOffsetsRequest:
        return group_pb2.FetchOffsetsRequest(
            group_id="readers",
            partitions=[
                group_pb2.OffsetPartition(topic=topic, topic_id=topic_id, partition=partition)
                for topic_id, partition in (("", 0), ("", 5), ("an-id", 0))
            ],
        )

    groups: Any = cluster.stub(GroupServiceStub)
    hidden, absent, seen = [
        list((await groups.FetchOffsets(ask(topic), metadata=as_user(ADA))).offsets)
        for topic in ("bills", "nosuch", "orders")
    ]
    for each in (*hidden, *absent):
        each.error.message = each.error.message.replace(repr(each.topic), "X")
        each.topic = "X"
    assert hidden == absent
    assert error_from_wire(hidden[0].error).code is UNKNOWN
    assert not seen[0].HasField("error")
    assert seen[0].topic_id


async def test_producer_ids_of_others(cluster: Identified) -> None:
    data = cluster.stub(BrokerServiceStub)
    await cluster.put(
        T,
        Rule(principals=(ADA, BOB), operations=(Operation.WRITE,)),
    )
    given = await data.InitProducer(pb.InitProducerRequest(producer_id=-1), metadata=as_user(BOB))
    assert not given.HasField("error")
    bump = pb.InitProducerRequest(producer_id=given.producer_id, producer_epoch=0)
    assert await refusal(data.InitProducer(bump, metadata=as_user(ADA))) is DENIED
    mine = await data.InitProducer(bump, metadata=as_user(BOB))
    assert (mine.producer_id, mine.producer_epoch) == (given.producer_id, 1)
    stolen = produce_request(
        "orders", producer_id=given.producer_id, producer_epoch=5, base_sequence=0
    )
    assert await codes(data.Produce(stolen, metadata=as_user(ADA))) == [DENIED]
    own = produce_request(
        "orders", producer_id=given.producer_id, producer_epoch=1, base_sequence=0
    )
    assert await codes(data.Produce(own, metadata=as_user(BOB))) == [OK]


async def test_transactional_ids_of_others(cluster: Identified) -> None:
    prefix = Prefix(Kind.TRANSACTIONAL_ID, "bobs")
    await cluster.put(
        CLUSTER, Rule(principals=(BOB,), operations=(Operation.WRITE,), prefix=prefix)
    )
    await cluster.allow(T, ADA, Operation.WRITE)
    data, transactions = cluster.stub(BrokerServiceStub), cluster.stub(TransactionServiceStub)
    ada = as_user(ADA)
    take = pb.InitProducerRequest(transactional_id="bobs-1", instance_id="i")
    assert await refusal(data.InitProducer(take, metadata=ada)) is DENIED
    within = produce_request("orders")
    within.transactional_id = "bobs-1"
    assert await refusal(data.Produce(within, metadata=ada)) is DENIED
    for call in (
        transactions.AbortTransaction(
            transaction_pb2.AbortTransactionRequest(transactional_id="bobs-1", producer_epoch=-1),
            metadata=ada,
        ),
        transactions.EndTransaction(
            transaction_pb2.EndTransactionRequest(transactional_id="bobs-1"), metadata=ada
        ),
        transactions.ForgetLedger(
            transaction_pb2.ForgetLedgerRequest(application_id="bobs"), metadata=ada
        ),
        transactions.FindTransactionCoordinator(
            transaction_pb2.FindTransactionCoordinatorRequest(transactional_id="bobs-1"),
            metadata=ada,
        ),
    ):
        assert await refusal(call) is DENIED
    described = await transactions.DescribeTransactions(
        transaction_pb2.DescribeTransactionsRequest(transactional_ids=["bobs-1"]), metadata=ada
    )
    assert error_from_wire(described.transactions[0].error).code is DENIED


# ---------------------------------------------------------------- the controller, questions


async def test_the_controller_decides_again(cluster: Identified) -> None:
    """A broker whose rules are older, or that is wrong, does not decide for the controller."""
    cluster.broker._view.rules.put_cluster((Rule(principals=(ADA,), role=AccessRole.ADMIN),), {})
    alter = admin_pb2.AlterAccessRequest(resource=access_pb2.AccessResource(cluster=True))
    assert await refusal(cluster.admin.AlterAccess(alter, metadata=as_user(ADA))) is DENIED
    drop = admin_pb2.DeleteTopicsRequest(topics=[admin_pb2.TopicName(topic="orders")])
    assert await codes(cluster.admin.DeleteTopics(drop, metadata=as_user(ADA))) == [UNKNOWN]


async def test_everybody_may_ask_about_themselves(cluster: Identified) -> None:
    await cluster.allow(T, ADA, Operation.WRITE)
    ask = admin_pb2.CheckAccessRequest(
        resource=access_pb2.AccessResource(topic="orders"),
        operation=access_pb2.ACCESS_OPERATION_WRITE,
    )
    mine = await cluster.admin.CheckAccess(ask, metadata=as_user(ADA))
    assert (mine.principal, mine.allowed, mine.resource.topic) == (ADA, True, "orders")
    assert list(mine.rule.principals) == [ADA]
    no = await cluster.admin.CheckAccess(ask, metadata=as_user(BOB))
    assert (no.principal, no.allowed) == (BOB, False)
    ask.principal = ADA
    assert (await cluster.admin.CheckAccess(ask, metadata=as_user(ROOT))).allowed
    assert (await cluster.admin.CheckAccess(ask, metadata=as_user(ADA))).allowed
    assert await refusal(cluster.admin.CheckAccess(ask, metadata=as_user(BOB))) is DENIED


async def test_who_asks_about_themselves_is_not_told_who_else_is_in_the_rule(
    cluster: Identified,
) -> None:
    many = (BOB, "oidc:https://login/ceo", "serviceaccount:etl/*", ADA, "*")
    await cluster.put(T, Rule(principals=many, operations=(Operation.READ,)))
    ask = admin_pb2.CheckAccessRequest(
        resource=access_pb2.AccessResource(topic="orders"),
        operation=access_pb2.ACCESS_OPERATION_READ,
    )
    mine = await cluster.admin.CheckAccess(ask, metadata=as_user(ADA))
    assert list(mine.rule.principals) == ["serviceaccount:etl/*", ADA, "*"]
    await cluster.put(CLUSTER, Rule(principals=(ADA,), role=AccessRole.VIEWER))
    seen = await cluster.admin.CheckAccess(ask, metadata=as_user(ADA))
    assert tuple(seen.rule.principals) == many, "a viewer sees all rules anyway"


async def test_rules_are_shown(cluster: Identified) -> None:
    await cluster.allow(T, ADA, Operation.WRITE)
    await cluster.allow(G, ADA, Operation.READ)
    root = as_user(ROOT)
    every = await cluster.admin.DescribeAccess(admin_pb2.DescribeAccessRequest(), metadata=root)
    named = [one.resource.WhichOneof("resource") for one in every.access]
    assert named == ["group", "topic"]
    some = admin_pb2.DescribeAccessRequest(
        resources=[
            access_pb2.AccessResource(cluster=True),
            access_pb2.AccessResource(topic="bills"),
        ]
    )
    answer = await cluster.admin.DescribeAccess(some, metadata=root)
    assert [len(one.rules) for one in answer.access] == [0, 0]


async def test_no_user_calls_what_servers_call(cluster: Identified) -> None:
    stub = transaction_peer_pb2_grpc.TransactionPeerServiceStub(cluster.channel)
    call: Any = stub.JoinTransactions(
        transaction_peer_pb2.JoinTransactionsRequest(), metadata=as_user(ROOT)
    )
    assert await refusal(call) is DENIED


async def test_changes_are_written_down(
    cluster: Identified, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.audit")
    await cluster.allow(T, ADA, Operation.READ)
    drop = admin_pb2.DeleteTopicsRequest(topics=[admin_pb2.TopicName(topic="orders")])
    await cluster.admin.DeleteTopics(drop, metadata=as_user(ADA))
    reset = group_pb2.ResetOffsetsRequest(group_id="readers")
    groups, transactions = cluster.stub(GroupServiceStub), cluster.stub(TransactionServiceStub)
    assert await refusal(groups.ResetOffsets(reset, metadata=as_user(ADA))) is DENIED
    abort = transaction_pb2.AbortTransactionRequest(transactional_id="tx", producer_epoch=-1)
    await refusal(transactions.AbortTransaction(abort, metadata=as_user(ROOT)))
    orphans = admin_pb2.DropOrphansRequest(
        logs=[admin_pb2.OrphanName(topic_id="gone", partition=number) for number in range(2)]
    )
    await cluster.admin.DropOrphans(orphans, metadata=as_user(ROOT))
    fields = [
        record.__dict__["fields"] for record in caplog.records if record.name == "penstock.audit"
    ]
    assert fields[:2] == [
        {
            "principal": ROOT,
            "call": "AlterAccess",
            "names": "topic orders",
            "outcome": "ok",
        },
        {
            "principal": ADA,
            "call": "DeleteTopics",
            "names": "orders",
            "outcome": "ERROR_CODE_PERMISSION_DENIED",
        },
    ]
    assert [(one["principal"], one["call"], one["names"]) for one in fields[2:]] == [
        (ADA, "ResetOffsets", "readers"),
        (ROOT, "AbortTransaction", "tx"),
        (ROOT, "DropOrphans", "gone/0, gone/1"),
    ]
