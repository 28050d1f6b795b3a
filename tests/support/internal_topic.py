"""What nobody but its coordinators may do to an internal topic."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from support.cluster import Cluster
from support.waiting import wait_until
from support.wire import Wire

from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1 import broker_pb2


def check_internal(cluster: Cluster, topic: str, partitions: int) -> None:
    """It is compacted and said to be internal; calls that write to it or change it are refused.

    All brokers are asked: those that lead it and those that do not.
    """

    def described_by(broker_id: int) -> broker_pb2.TopicInfo | None:
        topics = {one.topic: one for one in cluster.metadata(broker_id).topics}
        return topics.get(topic)

    for broker_id, broker in cluster.brokers.items():
        described = wait_until(partial(described_by, broker_id), what=f"{topic} is known")
        assert described.internal
        assert len(described.partitions) == partitions
        assert described.configs["cleanup.policy"] == "compact"
        with Wire(broker.address) as wire:
            with pytest.raises(PenstockError) as caught:
                wire.produce(topic, [b"x"])
            assert caught.value.code is ErrorCode.INVALID_TOPIC_NAME
            for call, request in _changes(wire, topic, partitions):
                with pytest.raises(PenstockError) as caught:
                    wire.call(call, request)
                assert caught.value.code is ErrorCode.INVALID_TOPIC_NAME
        after = described_by(broker_id)
        assert after is not None
        assert (after.topic_id, after.configs) == (described.topic_id, described.configs)
        assert len(after.partitions) == partitions


def _changes(
    wire: Wire, topic: str, partitions: int
) -> Iterator[tuple["grpc.UnaryUnaryMultiCallable[Any, Any]", Any]]:
    admin = wire.admin
    named = pb.TopicName(topic=topic)
    yield admin.DeleteTopics, pb.DeleteTopicsRequest(topics=[named])
    more = pb.CreatePartitionsRequest(topic=topic, partitions=partitions + 1)
    yield admin.CreatePartitions, more
    yield admin.AlterConfigs, pb.AlterConfigsRequest(topic=topic, set={"retention.ms": "1"})
    yield admin.DeleteRecords, pb.DeleteRecordsRequest(topic=topic, before_offset=-1)
    new = pb.NewTopic(topic="__mine", partitions=1)
    yield admin.CreateTopics, pb.CreateTopicsRequest(topics=[new])
