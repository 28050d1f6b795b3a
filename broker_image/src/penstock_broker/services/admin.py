"""The `AdminService` of a broker: forwards changes to the active controller, answers questions.

Any broker accepts any admin call. The controller decides about changes of metadata; without a
session, the answer is CONTROLLER_UNAVAILABLE at once, retriable, and says that reads and writes
continue. After a topic was created, the answer is delayed until the topic is in this broker's
image, for a short time at most, so that the caller's next request here finds it.
"""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.control.admin import check_topic_count
from penstock.core.topic import CONFIG_KEYS, refuse_internal
from penstock.errors import PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceServicer
from penstock.rpc.errors import error_to_wire
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.session import ControllerSession
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.services.configs import Configs
from penstock_broker.services.logs import StoredLogs
from penstock_broker.services.offsets import Offsets
from penstock_broker.services.quiescence import Quiescence
from penstock_broker.services.scrubbing import Scrubbing
from penstock_broker.serving.forwarding import on_behalf
from penstock_broker.serving.listener import for_caller
from penstock_broker.serving.plaintext_clients import PlaintextClients

_ARRIVAL_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this broker alone knows and does. `plaintext`: who calls without TLS, of one that has
    both."""

    logs: StoredLogs
    quiescence: Quiescence
    scrubbing: Scrubbing
    configs: Configs
    accept_loss: Callable[[pb.AcceptLossRequest], Awaitable[pb.AcceptLossResponse]]
    drop_orphans: Callable[[pb.DropOrphansRequest], Awaitable[pb.DropOrphansResponse]]
    plaintext: PlaintextClients | None = None


class AdminService(AdminServiceServicer):
    """See the module."""

    def __init__(
        self,
        view: ClusterView,
        session: ControllerSession,
        replicas: ReplicaSet,
        offsets: Offsets,
        here: Here,
    ) -> None:
        self._accept_loss = here.accept_loss
        self._drop_orphans = here.drop_orphans
        self._scrubbing = here.scrubbing
        self._plaintext = here.plaintext
        self._view = view
        self._session = session
        self._replicas = replicas
        self._offsets = offsets
        self._logs = here.logs
        self._quiescence = here.quiescence
        self._configs = here.configs

    # ------------------------------------------------------------ passed on

    async def CreateTopics(
        self, request: pb.CreateTopicsRequest, context: Any
    ) -> pb.CreateTopicsResponse:
        """Forwarded; waits for the new topics to be in this broker's image."""
        check_topic_count(len(request.topics))
        for topic in request.topics:
            refuse_internal(topic.topic, "created by users")
        connection = self._session.connection()
        answer = await self._session.call(
            "CreateTopics", connection.admin.CreateTopics(request, metadata=on_behalf())
        )
        if not request.validate_only:
            made = [result.topic for result in answer.results if not result.HasField("error")]
            await self._arrival(made)
        return answer

    async def _arrival(self, names: list[str]) -> None:
        try:
            async with asyncio.timeout(_ARRIVAL_S):
                while not all(name in self._view.names for name in names):
                    await self._view.next_image()
        except TimeoutError:
            return  # clients retry UNKNOWN_TOPIC

    async def DeleteTopics(
        self, request: pb.DeleteTopicsRequest, context: Any
    ) -> pb.DeleteTopicsResponse:
        """Forwarded."""
        check_topic_count(len(request.topics))
        for topic in request.topics:
            refuse_internal(topic.topic, "deleted")
        return await self._session.call(
            "DeleteTopics",
            self._session.connection().admin.DeleteTopics(request, metadata=on_behalf()),
        )

    async def CreatePartitions(
        self, request: pb.CreatePartitionsRequest, context: Any
    ) -> pb.CreatePartitionsResponse:
        """Forwarded."""
        refuse_internal(request.topic, "given more partitions")
        return await self._session.call(
            "CreatePartitions",
            self._session.connection().admin.CreatePartitions(request, metadata=on_behalf()),
        )

    async def AlterConfigs(
        self, request: pb.AlterConfigsRequest, context: Any
    ) -> pb.AlterConfigsResponse:
        """Forwarded."""
        refuse_internal(request.topic, "altered")
        return await self._session.call(
            "AlterConfigs",
            self._session.connection().admin.AlterConfigs(request, metadata=on_behalf()),
        )

    async def ElectLeaders(
        self, request: pb.ElectLeadersRequest, context: Any
    ) -> pb.ElectLeadersResponse:
        """Forwarded."""
        return await self._session.call(
            "ElectLeaders",
            self._session.connection().admin.ElectLeaders(request, metadata=on_behalf()),
        )

    async def UnregisterBroker(
        self, request: pb.UnregisterBrokerRequest, context: Any
    ) -> pb.UnregisterBrokerResponse:
        """Forwarded."""
        return await self._session.call(
            "UnregisterBroker",
            self._session.connection().admin.UnregisterBroker(request, metadata=on_behalf()),
        )

    async def AlterAccess(
        self, request: pb.AlterAccessRequest, context: Any
    ) -> pb.AlterAccessResponse:
        """Forwarded."""
        return await self._session.call(
            "AlterAccess",
            self._session.connection().admin.AlterAccess(request, metadata=on_behalf()),
        )

    async def DescribeAccess(
        self, request: pb.DescribeAccessRequest, context: Any
    ) -> pb.DescribeAccessResponse:
        """Forwarded."""
        return await self._session.call(
            "DescribeAccess",
            self._session.connection().admin.DescribeAccess(request, metadata=on_behalf()),
        )

    async def AlterQuotas(
        self, request: pb.AlterQuotasRequest, context: Any
    ) -> pb.AlterQuotasResponse:
        """Forwarded."""
        return await self._session.call(
            "AlterQuotas",
            self._session.connection().admin.AlterQuotas(request, metadata=on_behalf()),
        )

    async def DescribeQuotas(
        self, request: pb.DescribeQuotasRequest, context: Any
    ) -> pb.DescribeQuotasResponse:
        """Forwarded."""
        return await self._session.call(
            "DescribeQuotas",
            self._session.connection().admin.DescribeQuotas(request, metadata=on_behalf()),
        )

    async def CheckAccess(
        self, request: pb.CheckAccessRequest, context: Any
    ) -> pb.CheckAccessResponse:
        """Forwarded."""
        return await self._session.call(
            "CheckAccess",
            self._session.connection().admin.CheckAccess(request, metadata=on_behalf()),
        )

    async def AlterReplicas(
        self, request: pb.AlterReplicasRequest, context: Any
    ) -> pb.AlterReplicasResponse:
        """Forwarded."""
        return await self._session.call(
            "AlterReplicas",
            self._session.connection().admin.AlterReplicas(request, metadata=on_behalf()),
        )

    async def DescribeMoves(
        self, request: pb.DescribeMovesRequest, context: Any
    ) -> pb.DescribeMovesResponse:
        """Forwarded."""
        return await self._session.call(
            "DescribeMoves",
            self._session.connection().admin.DescribeMoves(request, metadata=on_behalf()),
        )

    async def AlterBrokers(
        self, request: pb.AlterBrokersRequest, context: Any
    ) -> pb.AlterBrokersResponse:
        """Forwarded."""
        return await self._session.call(
            "AlterBrokers",
            self._session.connection().admin.AlterBrokers(request, metadata=on_behalf()),
        )

    async def AlterThrottle(
        self, request: pb.AlterThrottleRequest, context: Any
    ) -> pb.AlterThrottleResponse:
        """Forwarded."""
        return await self._session.call(
            "AlterThrottle",
            self._session.connection().admin.AlterThrottle(request, metadata=on_behalf()),
        )

    async def AlterCluster(
        self, request: pb.AlterClusterRequest, context: Any
    ) -> pb.AlterClusterResponse:
        """Forwarded."""
        return await self._session.call(
            "AlterCluster",
            self._session.connection().admin.AlterCluster(request, metadata=on_behalf()),
        )

    async def Finalize(self, request: pb.FinalizeRequest, context: Any) -> pb.FinalizeResponse:
        """Forwarded."""
        return await self._session.call(
            "Finalize",
            self._session.connection().admin.Finalize(request, metadata=on_behalf()),
        )

    async def AcquireOperatorEpoch(
        self, request: pb.AcquireOperatorEpochRequest, context: Any
    ) -> pb.AcquireOperatorEpochResponse:
        """Forwarded."""
        return await self._session.call(
            "AcquireOperatorEpoch",
            self._session.connection().admin.AcquireOperatorEpoch(request, metadata=on_behalf()),
        )

    # ------------------------------------------------------------ told here

    async def DescribeConfigs(
        self, request: pb.DescribeConfigsRequest, context: Any
    ) -> pb.DescribeConfigsResponse:
        """All settings of a topic, from the image; `is_default`: the topic does not set it."""
        try:
            topic = self._view.topic(request.topic)
        except PenstockError as error:
            return pb.DescribeConfigsResponse(error=error_to_wire(error))
        values = topic.config.to_mapping()
        own = topic.wire.configs.keys() - set(topic.wire.inherited_configs)
        return pb.DescribeConfigsResponse(
            configs=[
                pb.ConfigEntry(
                    name=key.name,
                    value=values[key.name],
                    is_default=key.name not in own,
                    documentation=key.documentation,
                )
                for key in CONFIG_KEYS
            ]
        )

    async def DeleteRecords(
        self, request: pb.DeleteRecordsRequest, context: Any
    ) -> pb.DeleteRecordsResponse:
        """See `offsets`; ask the partition's leader."""
        refuse_internal(request.topic, "shortened")
        return await self._offsets.delete_records(request)

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Any
    ) -> pb.DescribeClusterResponse:
        """Counts taken from the image."""
        view = self._view
        partitions = [
            (topic, state) for topic in view.topics.values() for state in topic.partitions
        ]
        return pb.DescribeClusterResponse(
            cluster_id=view.cluster_id,
            controller_epoch=view.controller_epoch,
            metadata_version=view.metadata_version,
            controller_reachable=self._session.is_informed,
            brokers=map(for_caller, view.brokers.values()),
            topics=len(view.topics),
            partitions=len(partitions),
            offline_partitions=sum(state.leader < 0 for _, state in partitions),
            under_replicated_partitions=sum(
                len(state.isr) < len(state.replicas) for _, state in partitions
            ),
            under_min_isr_partitions=sum(
                len(state.isr) < topic.config.effective_min_insync_replicas(len(state.replicas))
                for topic, state in partitions
            ),
            plaintext=None if self._plaintext is None else self._plaintext.describe(),
            hibernating=view.hibernating,
        )

    async def DescribeQuiescence(
        self, request: pb.DescribeQuiescenceRequest, context: Any
    ) -> pb.DescribeQuiescenceResponse:
        """See `quiescence`."""
        return await self._quiescence.describe()

    async def DescribeLogs(
        self, request: pb.DescribeLogsRequest, context: Any
    ) -> pb.DescribeLogsResponse:
        """See `logs`."""
        wanted = frozenset(request.topics)
        chosen = [
            replica
            for replica in self._replicas.by_key.values()
            if not wanted or replica.topic in wanted
        ]
        orphans = {} if wanted else self._replicas.orphans
        return await self._logs.describe(self._replicas.broker_id, chosen, orphans)

    async def StartScrub(
        self, request: pb.StartScrubRequest, context: Any
    ) -> pb.StartScrubResponse:
        """Of the replicas here."""
        return self._scrubbing.start(request)

    async def DescribeScrub(
        self, request: pb.DescribeScrubRequest, context: Any
    ) -> pb.DescribeScrubResponse:
        """Of the replicas here."""
        return self._scrubbing.describe()

    async def AcceptLoss(
        self, request: pb.AcceptLossRequest, context: Any
    ) -> pb.AcceptLossResponse:
        """See `losses`; ask the partition's leader."""
        return await self._accept_loss(request)

    async def DropOrphans(
        self, request: pb.DropOrphansRequest, context: Any
    ) -> pb.DropOrphansResponse:
        """See `orphans`."""
        return await self._drop_orphans(request)

    async def DescribeBrokerConfigs(
        self, request: pb.DescribeBrokerConfigsRequest, context: Any
    ) -> pb.DescribeBrokerConfigsResponse:
        """See `configs`."""
        return self._configs.describe()
