"""Attack 16: what brokers remember in internal topics is neither read nor changed by others.

The controller's port is attacked as well: whoever reaches it needs no broker in between.
"""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from support.channels import patient_channel
from support.cluster import Cluster
from support.waiting import wait_until
from support.wire import Wire

from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.topic import INTERNAL_TOPICS
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2, group_pb2, transaction_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.errors import error_from_wire

INTERNAL = sorted(INTERNAL_TOPICS)


@pytest.fixture(scope="module")
def used(cluster: Cluster) -> Cluster:
    """Groups and transactions are in use: both internal topics exist."""
    with Wire(cluster.brokers[0].address) as wire:

        def in_use() -> bool:
            try:
                GroupServiceStub(wire.channel).FindCoordinator(
                    group_pb2.FindCoordinatorRequest(group_id="g"), timeout=20
                )
                TransactionServiceStub(wire.channel).FindTransactionCoordinator(
                    transaction_pb2.FindTransactionCoordinatorRequest(transactional_id="t"),
                    timeout=20,
                )
            except grpc.RpcError:
                return False
            return True

        wait_until(in_use, what="there are coordinators")
    for topic in INTERNAL:
        cluster.wait_leaders(topic)
    return cluster


def errors(answer: Any) -> Iterator[ErrorCode]:
    """Of each part of an answer; a part without one is UNSPECIFIED."""
    parts = answer.results if hasattr(answer, "results") else [answer]
    for part in parts:
        yield error_from_wire(part.error).code if part.HasField("error") else ErrorCode.UNSPECIFIED


def refusal(stub: Any, request: Any) -> ErrorCode:
    (found,) = errors(stub(request, timeout=20))
    return found


def test_the_table_has_every_internal_topic() -> None:
    assert {OFFSETS_TOPIC, TRANSACTIONS_TOPIC} == INTERNAL_TOPICS


@pytest.mark.parametrize("topic", INTERNAL)
def test_the_controller_lets_nobody_change_an_internal_topic(used: Cluster, topic: str) -> None:
    before = used.known(topic)
    with patient_channel(used.controller.address) as channel:
        admin = AdminServiceStub(channel)
        for stub, request in (
            (
                admin.DeleteTopics,
                admin_pb2.DeleteTopicsRequest(topics=[admin_pb2.TopicName(topic=topic)]),
            ),
            (
                admin.AlterConfigs,
                admin_pb2.AlterConfigsRequest(topic=topic, unset=["retention.ms"]),
            ),
            (
                admin.AlterConfigs,
                admin_pb2.AlterConfigsRequest(topic=topic, set={"cleanup.policy": "delete"}),
            ),
            (
                admin.CreatePartitions,
                admin_pb2.CreatePartitionsRequest(
                    topic=topic, partitions=len(before.partitions) + 1
                ),
            ),
        ):
            assert refusal(stub, request) is ErrorCode.INVALID_TOPIC_NAME, request
    assert used.known(topic) == before


def test_the_controller_creates_no_internal_topic_that_brokers_would_not(used: Cluster) -> None:
    mine = admin_pb2.NewTopic(topic="__mine", partitions=1, configs={"cleanup.policy": "compact"})
    with patient_channel(used.controller.address) as channel:
        create = AdminServiceStub(channel).CreateTopics
        request = admin_pb2.CreateTopicsRequest(topics=[mine])
        assert refusal(create, request) is ErrorCode.INVALID_TOPIC_NAME


def test_the_place_of_an_internal_topic_cannot_be_taken_by_one_that_forgets(
    make_cluster: Any,
) -> None:
    fresh: Cluster = make_cluster()
    with patient_channel(fresh.controller.address) as channel:
        create = AdminServiceStub(channel).CreateTopics
        for configs in ({}, {"cleanup.policy": "compact,delete", "retention.ms": "1"}):
            new = admin_pb2.NewTopic(topic=OFFSETS_TOPIC, partitions=1, configs=configs)
            request = admin_pb2.CreateTopicsRequest(topics=[new])
            assert refusal(create, request) is ErrorCode.INVALID_CONFIG
    assert fresh.topic(OFFSETS_TOPIC) is None


@pytest.mark.parametrize("topic", INTERNAL)
def test_clients_cannot_read_an_internal_topic(used: Cluster, topic: str) -> None:
    with Wire(used.brokers[0].address) as wire:
        part = pb.FetchPartition(topic=topic, max_bytes=1)
        fetch = pb.FetchRequest(partitions=[part], max_wait_ms=10_000, min_bytes=1)
        assert refusal(wire.data.Fetch, fetch) is ErrorCode.INVALID_TOPIC_NAME
        subscribe = pb.SubscribeRequest(subscribe=[part], credit_bytes=2**20)
        pushed = next(wire.data.Subscribe(iter([subscribe]), timeout=20))
        assert list(errors(pushed)) == [ErrorCode.INVALID_TOPIC_NAME]
        for spec in ({"earliest": pb.Earliest()}, {"latest": pb.Latest()}, {"timestamp_ms": 0}):
            with pytest.raises(PenstockError) as caught:
                wire.offsets(topic, **spec)
            assert caught.value.code is ErrorCode.INVALID_TOPIC_NAME
