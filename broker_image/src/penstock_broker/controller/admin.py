"""`AdminService` of the controller: calls that change or describe metadata.

Brokers forward these calls. DeleteRecords, DescribeLogs, DescribeQuiescence, the scrub,
AcceptLoss and DropOrphans are about the logs of a broker, and only brokers answer them.
"""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

from collections.abc import Callable
from typing import Any

from penstock.core.authorization import Kind, Operation
from penstock.core.control import contract as c
from penstock.core.control.admin import check_topic_count
from penstock.core.control.move_contract import Finalize, FormatChosen, ReplicasAltered
from penstock.core.control.operator_contract import OperatorEpochGiven
from penstock.core.topic import CONFIG_KEYS
from penstock.core.types import BrokerId, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceServicer
from penstock.rpc.errors import error_to_wire
from penstock.rpc.quotas import quotas_to_wire
from penstock_broker.controller.move_wire import (
    alter_brokers_from_wire,
    alter_cluster_from_wire,
    alter_replicas_from_wire,
    alter_throttle_from_wire,
    describe_moves,
    replica_outcome_to_wire,
)
from penstock_broker.controller.rules import StoredRules, check_access, describe_access
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.controller.wire import (
    acquire_from_wire,
    alter_access_from_wire,
    alter_quotas_from_wire,
    broker_to_wire,
    elect_leaders_from_wire,
    new_topic_from_wire,
    topic_results,
)
from penstock_broker.serving.callers import caller
from penstock_broker.serving.edge import check_cluster_id


class ControllerAdminService(AdminServiceServicer):
    """See the module. Errors of a whole call are raised; the edge turns them into a status."""

    def __init__(
        self, runtime: ControllerRuntime, rules: StoredRules, new_id: Callable[[], str]
    ) -> None:
        """`new_id` returns a new UUID, for a new topic."""
        self._rules = rules
        self._runtime = runtime
        self._new_id = new_id

    async def CreateTopics(
        self, request: pb.CreateTopicsRequest, context: Any
    ) -> pb.CreateTopicsResponse:
        """Per-topic results."""
        denied = self._denied(Operation.CREATE, [topic.topic for topic in request.topics])
        topics = tuple(
            new_topic_from_wire(topic, TopicId(self._new_id()))
            for topic in request.topics
            if topic.topic not in denied
        )
        result = await self._runtime.submit(
            lambda request_id: c.CreateTopics(
                request_id, request.cluster_id, topics, request.validate_only
            )
        )
        assert isinstance(result, c.TopicsChanged)
        changed = topic_results(result.outcomes, with_id_on_error=False)
        names = [topic.topic for topic in request.topics]
        return pb.CreateTopicsResponse(results=_with_denied(names, changed, denied))

    async def DeleteTopics(
        self, request: pb.DeleteTopicsRequest, context: Any
    ) -> pb.DeleteTopicsResponse:
        """Per-topic results."""
        denied = self._denied(Operation.DELETE, [topic.topic for topic in request.topics])
        topics = tuple(
            (topic.topic, TopicId(topic.topic_id))
            for topic in request.topics
            if topic.topic not in denied
        )
        result = await self._runtime.submit(
            lambda request_id: c.DeleteTopics(
                request_id, request.cluster_id, topics, request.validate_only
            )
        )
        assert isinstance(result, c.TopicsChanged)
        changed = topic_results(result.outcomes, with_id_on_error=True)
        names = [topic.topic for topic in request.topics]
        return pb.DeleteTopicsResponse(results=_with_denied(names, changed, denied))

    def _denied(self, operation: Operation, topics: list[str]) -> dict[str, PenstockError]:
        """Topics of a request that the caller may not do this to, with the reason."""
        check_topic_count(len(topics))
        denied: dict[str, PenstockError] = {}
        for topic in topics:
            try:
                self._rules.access.check(operation, Kind.TOPIC, topic)
            except PenstockError as error:
                denied[topic] = error
        return denied

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
                    request_id,
                    request.cluster_id,
                    BrokerId(request.broker_id),
                    request.directory_id,
                )
            )
        except PenstockError as error:
            return pb.UnregisterBrokerResponse(error=error_to_wire(error))
        return pb.UnregisterBrokerResponse()

    async def AlterReplicas(
        self, request: pb.AlterReplicasRequest, context: Any
    ) -> pb.AlterReplicasResponse:
        """Per-partition results."""
        try:
            result = await self._runtime.submit(
                lambda request_id: alter_replicas_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.AlterReplicasResponse(error=error_to_wire(error))
        assert isinstance(result, ReplicasAltered)
        return pb.AlterReplicasResponse(
            results=[replica_outcome_to_wire(outcome) for outcome in result.outcomes]
        )

    async def DescribeMoves(
        self, request: pb.DescribeMovesRequest, context: Any
    ) -> pb.DescribeMovesResponse:
        """As stored now, and as leaders have reported."""
        self._check_cluster_id(request.cluster_id)
        return describe_moves(self._runtime.machine, request)

    async def AlterBrokers(
        self, request: pb.AlterBrokersRequest, context: Any
    ) -> pb.AlterBrokersResponse:
        """All changes, or none."""
        try:
            await self._runtime.submit(
                lambda request_id: alter_brokers_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.AlterBrokersResponse(error=error_to_wire(error))
        return pb.AlterBrokersResponse()

    async def AlterThrottle(
        self, request: pb.AlterThrottleRequest, context: Any
    ) -> pb.AlterThrottleResponse:
        """For the whole cluster."""
        try:
            await self._runtime.submit(
                lambda request_id: alter_throttle_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.AlterThrottleResponse(error=error_to_wire(error))
        return pb.AlterThrottleResponse()

    async def AlterCluster(
        self, request: pb.AlterClusterRequest, context: Any
    ) -> pb.AlterClusterResponse:
        """Begins or ends hibernation."""
        try:
            await self._runtime.submit(
                lambda request_id: alter_cluster_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.AlterClusterResponse(error=error_to_wire(error))
        return pb.AlterClusterResponse()

    async def Finalize(self, request: pb.FinalizeRequest, context: Any) -> pb.FinalizeResponse:
        """Chooses the format of stored metadata."""
        try:
            result = await self._runtime.submit(
                lambda request_id: Finalize(
                    request_id=request_id,
                    cluster_id=request.cluster_id,
                    to=request.to,
                    validate_only=request.validate_only,
                )
            )
        except PenstockError as error:
            return pb.FinalizeResponse(error=error_to_wire(error))
        assert isinstance(result, FormatChosen)
        return pb.FinalizeResponse(format_before=result.before, format=result.after)

    async def AcquireOperatorEpoch(
        self, request: pb.AcquireOperatorEpochRequest, context: Any
    ) -> pb.AcquireOperatorEpochResponse:
        """From then on former operators change nothing."""
        try:
            result = await self._runtime.submit(
                lambda request_id: acquire_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.AcquireOperatorEpochResponse(error=error_to_wire(error))
        assert isinstance(result, OperatorEpochGiven)
        return pb.AcquireOperatorEpochResponse(operator_epoch=result.epoch)

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
            hibernating=summary.hibernating,
        )

    async def AlterAccess(
        self, request: pb.AlterAccessRequest, context: Any
    ) -> pb.AlterAccessResponse:
        """Replaces all rules of one resource."""
        try:
            await self._runtime.submit(
                lambda request_id: alter_access_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.AlterAccessResponse(error=error_to_wire(error))
        return pb.AlterAccessResponse()

    async def DescribeAccess(
        self, request: pb.DescribeAccessRequest, context: Any
    ) -> pb.DescribeAccessResponse:
        """As stored now."""
        self._check_cluster_id(request.cluster_id)
        return describe_access(self._rules.rulebook, request)

    async def CheckAccess(
        self, request: pb.CheckAccessRequest, context: Any
    ) -> pb.CheckAccessResponse:
        """By the rules stored now, and the roles that this process was started with."""
        self._check_cluster_id(request.cluster_id)
        return check_access(self._rules.rulebook, caller(), request)

    async def AlterQuotas(
        self, request: pb.AlterQuotasRequest, context: Any
    ) -> pb.AlterQuotasResponse:
        """Replaces all quotas."""
        try:
            await self._runtime.submit(
                lambda request_id: alter_quotas_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.AlterQuotasResponse(error=error_to_wire(error))
        return pb.AlterQuotasResponse()

    async def DescribeQuotas(
        self, request: pb.DescribeQuotasRequest, context: Any
    ) -> pb.DescribeQuotasResponse:
        """As stored now."""
        self._check_cluster_id(request.cluster_id)
        stored = self._runtime.machine.stored
        return pb.DescribeQuotasResponse(rules=quotas_to_wire(stored.cluster.quotas.rules))

    def _check_cluster_id(self, cluster_id: str) -> None:
        check_cluster_id(cluster_id, self._runtime.cluster_id)

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

    async def DescribeQuiescence(
        self, request: pb.DescribeQuiescenceRequest, context: Any
    ) -> pb.DescribeQuiescenceResponse:
        """Refused: brokers answer this."""
        raise _ask_a_broker("DescribeQuiescence")

    async def StartScrub(
        self, request: pb.StartScrubRequest, context: Any
    ) -> pb.StartScrubResponse:
        """Refused: brokers do this."""
        raise _ask_a_broker("StartScrub")

    async def DescribeScrub(
        self, request: pb.DescribeScrubRequest, context: Any
    ) -> pb.DescribeScrubResponse:
        """Refused: brokers answer this."""
        raise _ask_a_broker("DescribeScrub")

    async def AcceptLoss(
        self, request: pb.AcceptLossRequest, context: Any
    ) -> pb.AcceptLossResponse:
        """Refused: the partition's leader does this."""
        return pb.AcceptLossResponse(error=error_to_wire(_ask_a_broker("AcceptLoss")))

    async def DropOrphans(
        self, request: pb.DropOrphansRequest, context: Any
    ) -> pb.DropOrphansResponse:
        """Refused: brokers do this."""
        return pb.DropOrphansResponse(error=error_to_wire(_ask_a_broker("DropOrphans")))

    async def DescribeBrokerConfigs(
        self, request: pb.DescribeBrokerConfigsRequest, context: Any
    ) -> pb.DescribeBrokerConfigsResponse:
        """Refused: brokers answer this."""
        raise _ask_a_broker("DescribeBrokerConfigs")


def _with_denied(
    names: list[str], changed: list[pb.TopicResult], denied: dict[str, PenstockError]
) -> list[pb.TopicResult]:
    """One result per name, in order: `changed` are those of the others."""
    rest = iter(changed)
    return [
        pb.TopicResult(topic=name, error=error_to_wire(denied[name]))
        if name in denied
        else next(rest)
        for name in names
    ]


def _ask_a_broker(method: str) -> ClusterError:
    return ClusterError(
        f"{method} is answered by brokers, this is the controller; ask the partition's leader",
        ErrorCode.INVALID_REQUEST,
    )
