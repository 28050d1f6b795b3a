"""Every call that users can make, by one whom no rule names: nothing is done, no name is told.

A new method fails here until there is a sample of it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf.message import Message
from support.identified import ROOT, Identified, as_user, believing, identified
from support.produce_scene import part, request

from penstock.errors import ErrorCode
from penstock.proto.v1 import access_pb2, admin_pb2, group_pb2, transaction_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.errors import error_from_rpc, error_from_wire
from penstock_broker.serving.calls import CALLS, Who

__all__ = ["believing"]
STRANGER = "serviceaccount:else/where"
STUBS: Final[dict[str, Callable[[grpc.aio.Channel], Any]]] = {
    "BrokerService": BrokerServiceStub,
    "AdminService": AdminServiceStub,
    "GroupService": GroupServiceStub,
    "TransactionService": TransactionServiceStub,
}
TOPIC = access_pb2.AccessResource(topic="orders")
COMMIT = group_pb2.CommitOffsetsRequest(
    group_id="g", member_epoch=-1, partitions=[group_pb2.CommitPartition(topic="orders")]
)
SAMPLES: Final[dict[str, Message]] = {
    "BrokerService.Produce": request(1, part("orders")),
    "BrokerService.ProduceStream": request(1, part("orders")),
    "BrokerService.Fetch": pb.FetchRequest(partitions=[pb.FetchPartition(topic="orders")]),
    "BrokerService.Subscribe": pb.SubscribeRequest(
        subscribe=[pb.FetchPartition(topic="orders")], credit_bytes=1000
    ),
    "BrokerService.ListOffsets": pb.ListOffsetsRequest(
        partitions=[pb.ListOffsetsPartition(topic="orders", latest=pb.Latest())]
    ),
    "BrokerService.Metadata": pb.MetadataRequest(),
    "BrokerService.InitProducer": pb.InitProducerRequest(transactional_id="x"),
    "AdminService.CreateTopics": admin_pb2.CreateTopicsRequest(
        topics=[admin_pb2.NewTopic(topic="new", partitions=1, replication_factor=1)]
    ),
    "AdminService.DeleteTopics": admin_pb2.DeleteTopicsRequest(
        topics=[admin_pb2.TopicName(topic="orders")]
    ),
    "AdminService.CreatePartitions": admin_pb2.CreatePartitionsRequest(
        topic="orders", partitions=3
    ),
    "AdminService.AlterConfigs": admin_pb2.AlterConfigsRequest(
        topic="orders", set={"retention.ms": "1"}
    ),
    "AdminService.DescribeConfigs": admin_pb2.DescribeConfigsRequest(topic="orders"),
    "AdminService.DeleteRecords": admin_pb2.DeleteRecordsRequest(topic="orders", before_offset=-1),
    "AdminService.ElectLeaders": admin_pb2.ElectLeadersRequest(),
    "AdminService.UnregisterBroker": admin_pb2.UnregisterBrokerRequest(broker_id=0),
    "AdminService.DescribeCluster": admin_pb2.DescribeClusterRequest(),
    "AdminService.DescribeLogs": admin_pb2.DescribeLogsRequest(),
    "AdminService.AlterAccess": admin_pb2.AlterAccessRequest(resource=TOPIC),
    "AdminService.DescribeAccess": admin_pb2.DescribeAccessRequest(),
    "AdminService.AlterQuotas": admin_pb2.AlterQuotasRequest(),
    "AdminService.DescribeQuotas": admin_pb2.DescribeQuotasRequest(),
    "AdminService.AlterReplicas": admin_pb2.AlterReplicasRequest(
        changes=[admin_pb2.ReplicaChange(topic="orders", expected=[0], target=[0])]
    ),
    "AdminService.DescribeMoves": admin_pb2.DescribeMovesRequest(),
    "AdminService.AlterBrokers": admin_pb2.AlterBrokersRequest(
        changes=[admin_pb2.BrokerChange(broker_id=0, cordon=admin_pb2.Cordon(placement=True))]
    ),
    "AdminService.AlterThrottle": admin_pb2.AlterThrottleRequest(copy_rate=1 << 20),
    "AdminService.StartScrub": admin_pb2.StartScrubRequest(topic="orders"),
    "AdminService.DescribeScrub": admin_pb2.DescribeScrubRequest(),
    "AdminService.AcceptLoss": admin_pb2.AcceptLossRequest(topic="orders", partition=0),
    "AdminService.DropOrphans": admin_pb2.DropOrphansRequest(
        logs=[admin_pb2.OrphanName(topic_id="gone", partition=0)]
    ),
    "AdminService.DescribeBrokerConfigs": admin_pb2.DescribeBrokerConfigsRequest(),
    "AdminService.AlterCluster": admin_pb2.AlterClusterRequest(),
    "AdminService.DescribeQuiescence": admin_pb2.DescribeQuiescenceRequest(),
    "AdminService.Finalize": admin_pb2.FinalizeRequest(to=1),
    "AdminService.AcquireOperatorEpoch": admin_pb2.AcquireOperatorEpochRequest(
        lease_uid="u", lease_holder="h"
    ),
    "AdminService.CheckAccess": admin_pb2.CheckAccessRequest(
        principal=ROOT, resource=TOPIC, operation=access_pb2.ACCESS_OPERATION_READ
    ),
    "GroupService.FindCoordinator": group_pb2.FindCoordinatorRequest(group_id="g"),
    "GroupService.Join": group_pb2.JoinRequest(
        hello=group_pb2.MemberHello(group_id="g", member_id="m")
    ),
    "GroupService.CommitOffsets": COMMIT,
    "GroupService.CommitOffsetsStream": COMMIT,
    "GroupService.FetchOffsets": group_pb2.FetchOffsetsRequest(group_id="g"),
    "GroupService.ResetOffsets": group_pb2.ResetOffsetsRequest(group_id="g"),
    "GroupService.DeleteGroup": group_pb2.DeleteGroupRequest(group_id="g"),
    "GroupService.ListGroups": group_pb2.ListGroupsRequest(),
    "GroupService.DescribeGroups": group_pb2.DescribeGroupsRequest(group_ids=["g"]),
    "TransactionService.FindTransactionCoordinator": (
        transaction_pb2.FindTransactionCoordinatorRequest(transactional_id="x")
    ),
    "TransactionService.EndTransaction": transaction_pb2.EndTransactionRequest(
        transactional_id="x"
    ),
    "TransactionService.EndTransactionStream": transaction_pb2.EndTransactionRequest(
        transactional_id="x"
    ),
    "TransactionService.BeginBranch": transaction_pb2.BeginBranchRequest(application_id="x"),
    "TransactionService.CommitBatch": transaction_pb2.CommitBatchRequest(application_id="x"),
    "TransactionService.AbortBatch": transaction_pb2.AbortBatchRequest(application_id="x"),
    "TransactionService.ListTransactions": transaction_pb2.ListTransactionsRequest(),
    "TransactionService.DescribeTransactions": transaction_pb2.DescribeTransactionsRequest(
        transactional_ids=["x"]
    ),
    "TransactionService.AbortTransaction": transaction_pb2.AbortTransactionRequest(
        transactional_id="x", producer_epoch=-1
    ),
    "TransactionService.ListLedgers": transaction_pb2.ListLedgersRequest(),
    "TransactionService.ForgetLedger": transaction_pb2.ForgetLedgerRequest(application_id="x"),
    "TransactionService.DescribePartitionTransactions": (
        transaction_pb2.DescribePartitionTransactionsRequest(
            partitions=[transaction_pb2.TopicPartitionName(topic="orders")]
        )
    ),
}
LISTS: Final = {
    "BrokerService.Metadata",
    "GroupService.ListGroups",
    "TransactionService.ListTransactions",
    "TransactionService.ListLedgers",
}
"""Answers that name nothing."""


def test_there_is_a_sample_of_every_call_of_users() -> None:
    assert SAMPLES.keys() == {name for name, call in CALLS.items() if call.who is not Who.SERVERS}


async def answered(cluster: Identified, name: str) -> Any:
    """The answer, or the first one of a stream; the code of an error that ends it."""
    try:
        return await first_answer(cluster, name)
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).code


async def first_answer(cluster: Identified, name: str) -> Any:
    service, _, method = name.partition(".")
    call = getattr(cluster.stub(STUBS[service]), method)
    if method in {"Subscribe", "Join"} or method.endswith("Stream"):
        stream = call(metadata=as_user(STRANGER), timeout=30)
        await stream.write(SAMPLES[name])
        answer = await stream.read()
        stream.cancel()
        return answer
    return await call(SAMPLES[name], metadata=as_user(STRANGER), timeout=30)


def parts_of(answer: Any) -> list[Any]:
    for field in ("results", "groups", "transactions", "partitions"):
        if field in answer.DESCRIPTOR.fields_by_name:
            return list(getattr(answer, field))
    return [answer]


@pytest.mark.usefixtures("believed")
async def test_a_stranger_gets_nothing(tmp_path: Path) -> None:
    refused = {ErrorCode.PERMISSION_DENIED, ErrorCode.UNKNOWN_TOPIC}
    async with identified(tmp_path) as cluster:
        await cluster.create("orders")
        before = dict(cluster.controller.runtime.machine.stored.topics)
        for name in SAMPLES:
            answer = await answered(cluster, name)
            if isinstance(answer, ErrorCode):
                assert answer in refused, name
                continue
            if name in LISTS:
                assert "orders" not in str(answer), name
                continue
            parts = parts_of(answer)
            assert parts, name
            for each in parts:
                assert each.HasField("error"), f"{name}: {answer}"
                assert error_from_wire(each.error).code in refused, name
        assert cluster.controller.runtime.machine.stored.topics == before
