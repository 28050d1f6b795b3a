"""Attack 22: topics without end. They fill the metadata store, which all of Kubernetes shares."""

from typing import Any

import grpc
from support.channels import patient_channel
from support.cluster import Cluster

from penstock.errors import ErrorCode, OverloadedError, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.errors import error_from_rpc, error_from_wire

LIMITS = {"max.partitions": "30", "controller.mutation.rate": "1"}


def ask(address: str, method: str, request: Any) -> PenstockError | None:
    """How a call about one topic was refused; None: it was not."""
    with patient_channel(address) as channel:
        try:
            answer = getattr(AdminServiceStub(channel), method)(request, timeout=60)
        except grpc.RpcError as error:
            return error_from_rpc(error)
    parts = answer.results if hasattr(answer, "results") else [answer]
    (part,) = parts
    return error_from_wire(part.error) if part.HasField("error") else None


def create(address: str, topic: str, partitions: int) -> PenstockError | None:
    new = pb.NewTopic(topic=topic, partitions=partitions, replication_factor=1)
    return ask(address, "CreateTopics", pb.CreateTopicsRequest(topics=[new]))


def delete(address: str, topic: str) -> PenstockError | None:
    named = pb.TopicName(topic=topic)
    return ask(address, "DeleteTopics", pb.DeleteTopicsRequest(topics=[named]))


def test_topics_in_a_loop_meet_a_cap_and_a_rate_at_every_port(make_cluster: Any) -> None:
    cluster: Cluster = make_cluster(controller_config=LIMITS)
    for address in (cluster.controller.address, cluster.brokers[0].address):
        assert create(address, "kept", 10) is None
        error = create(address, "large", 25)
        assert error is not None
        assert error.code is ErrorCode.INVALID_PARTITIONS
        assert "has 10 of at most 30 (max.partitions); delete topics" in error.message
        assert delete(address, "kept") is None
    refused = None
    for _ in range(20):
        refused = create(cluster.brokers[0].address, "t", 20) or delete(
            cluster.controller.address, "t"
        )
        if refused is not None:
            break
    assert isinstance(refused, OverloadedError)
    assert refused.retriable
    assert 0 < refused.throttle_ms <= 20_000
    assert "(controller.mutation.rate) were created" in refused.message
