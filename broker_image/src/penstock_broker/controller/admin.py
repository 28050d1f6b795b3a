"""`AdminService` of the controller: calls that change or describe metadata.

Brokers forward these calls. DeleteRecords and DescribeLogs are about the logs of a broker, and only
brokers answer them.
"""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

from collections.abc import Callable
from typing import Any

from penstock.core.control import contract as c
from penstock.core.topic import CONFIG_KEYS
from penstock.core.types import BrokerId, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceServicer
from penstock.rpc.errors import error_to_wire
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.controller.wire import (
    broker_to_wire,
    elect_leaders_from_wire,
    new_topic_from_wire,
    topic_results,
)


class ControllerAdminService(AdminServiceServicer):
    """See the module. Errors of a whole call are raised; the edge turns them into a status."""

    def __init__(self, runtime: ControllerRuntime, new_id: Callable[[], str]) -> None:
        """`new_id` returns a new UUID, for a new topic."""
        self._runtime = runtime
        self._new_id = new_id

    async def CreateTopics(
        self, request: pb.CreateTopicsRequest, context: Any
    ) -> pb.CreateTopicsResponse:
        """Per-topic results."""
        topics = tuple(
            new_topic_from_wire(topic, TopicId(self._new_id())) for topic in request.topics
        )
        result = await self._runtime.submit(
            lambda request_id: c.CreateTopics(
                request_id, request.cluster_id, topics, request.validate_only
            )
        )
        assert isinstance(result, c.TopicsChanged)
        return pb.CreateTopicsResponse(
            results=topic_results(result.outcomes, with_id_on_error=False)
        )

    async def DeleteTopics(
        self, request: pb.DeleteTopicsRequest, context: Any
    ) -> pb.DeleteTopicsResponse:
        """Per-topic results."""
        topics = tuple((topic.topic, TopicId(topic.topic_id)) for topic in request.topics)
        result = await self._runtime.submit(
            lambda request_id: c.DeleteTopics(
                request_id, request.cluster_id, topics, request.validate_only
            )
        )
        assert isinstance(result, c.TopicsChanged)
        return pb.DeleteTopicsResponse(
            results=topic_results(result.outcomes, with_id_on_error=True)
        )

    async def CreatePartitions(
        self, request: pb.CreatePartitionsRequest, context: Any
    ) -> pb.CreatePartitionsResponse:
        """`request.partitions` is the new total."""
        try:
            await self._runtime.submit(
                lambda request_id: c.CreatePartitions(
                    request_id=request_id,
                    cluster_id=request.cluster_id,
                    topic=request.topic,
                    partitions=request.partitions,
                    validate_only=request.validate_only,
                )
            )
        except PenstockError as error:
            return pb.CreatePartitionsResponse(error=error_to_wire(error))
        return pb.CreatePartitionsResponse()

    async def AlterConfigs(
        self, request: pb.AlterConfigsRequest, context: Any
    ) -> pb.AlterConfigsResponse:
        """Sets and unsets keys of one topic."""
        try:
            await self._runtime.submit(
                lambda request_id: c.AlterConfigs(
                    request_id=request_id,
                    cluster_id=request.cluster_id,
                    topic=request.topic,
                    set_configs=dict(request.set),
                    unset_configs=tuple(request.unset),
                    validate_only=request.validate_only,
                )
            )
        except PenstockError as error:
            return pb.AlterConfigsResponse(error=error_to_wire(error))
        return pb.AlterConfigsResponse()

    async def DescribeConfigs(
        self, request: pb.DescribeConfigsRequest, context: Any
    ) -> pb.DescribeConfigsResponse:
        """Every key with its value; `is_default`: the topic does not set it."""
        machine = self._runtime.machine
        topic = machine.topic(request.topic)
        if topic is None:
            error = ClusterError(
                f"there is no topic {request.topic!r}; check the name", ErrorCode.UNKNOWN_TOPIC
            )
            return pb.DescribeConfigsResponse(error=error_to_wire(error))
        values = machine.config.topic_config(topic.configs).to_mapping()
        return pb.DescribeConfigsResponse(
            configs=[
                pb.ConfigEntry(
                    name=key.name,
                    value=values[key.name],
                    is_default=key.name not in topic.configs,
                    documentation=key.documentation,
                )
                for key in CONFIG_KEYS
            ]
        )

    async def ElectLeaders(
        self, request: pb.ElectLeadersRequest, context: Any
    ) -> pb.ElectLeadersResponse:
        """Preferred leaders, or away from one broker."""
        try:
            result = await self._runtime.submit(
                lambda request_id: elect_leaders_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.ElectLeadersResponse(error=error_to_wire(error))
        assert isinstance(result, c.LeadersMoved)
        return pb.ElectLeadersResponse(moved=result.count)

    async def UnregisterBroker(
        self, request: pb.UnregisterBrokerRequest, context: Any
    ) -> pb.UnregisterBrokerResponse:
        """Unregisters a broker that is down and has no replica."""
        try:
            await self._runtime.submit(
                lambda request_id: c.UnregisterBroker(
                    request_id, request.cluster_id, BrokerId(request.broker_id)
                )
            )
        except PenstockError as error:
            return pb.UnregisterBrokerResponse(error=error_to_wire(error))
        return pb.UnregisterBrokerResponse()

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Any
    ) -> pb.DescribeClusterResponse:
        """The cluster in numbers."""
        summary = self._runtime.machine.summary()
        return pb.DescribeClusterResponse(
            cluster_id=summary.cluster_id,
            controller_epoch=summary.controller_epoch,
            metadata_version=summary.metadata_version,
            controller_reachable=True,
            brokers=[broker_to_wire(broker) for broker in summary.brokers],
            topics=summary.topics,
            partitions=summary.partitions,
            offline_partitions=summary.offline_partitions,
            under_replicated_partitions=summary.under_replicated_partitions,
            under_min_isr_partitions=summary.under_min_isr_partitions,
        )

    async def AlterAccess(
        self, request: pb.AlterAccessRequest, context: Any
    ) -> pb.AlterAccessResponse:
        """Refused."""
        raise _no_rules_yet()

    async def DescribeAccess(
        self, request: pb.DescribeAccessRequest, context: Any
    ) -> pb.DescribeAccessResponse:
        """Refused."""
        raise _no_rules_yet()

    async def CheckAccess(
        self, request: pb.CheckAccessRequest, context: Any
    ) -> pb.CheckAccessResponse:
        """Refused."""
        raise _no_rules_yet()

    async def DeleteRecords(
        self, request: pb.DeleteRecordsRequest, context: Any
    ) -> pb.DeleteRecordsResponse:
        """Refused: brokers answer this."""
        return pb.DeleteRecordsResponse(error=error_to_wire(_ask_a_broker("DeleteRecords")))

    async def DescribeLogs(
        self, request: pb.DescribeLogsRequest, context: Any
    ) -> pb.DescribeLogsResponse:
        """Refused: brokers answer this."""
        raise _ask_a_broker("DescribeLogs")


def _ask_a_broker(method: str) -> ClusterError:
    return ClusterError(
        f"{method} is answered by brokers, this is the controller; ask the partition's leader",
        ErrorCode.INVALID_REQUEST,
    )


def _no_rules_yet() -> ClusterError:
    return ClusterError("this controller keeps no rules of access", ErrorCode.INVALID_REQUEST)
