"""The way to a partition's leader with blocking calls, for readers without an event loop.

    leader(where)   by the view; asks any broker for metadata if that does not know
    doubt(where)    after an error that says the metadata is stale: the next leader() asks
    broker(address) the stub on that broker's channel

`cluster.py` does this in the background and for all topics; here it is done on demand and for one
topic: nothing runs between two calls. Never used across a fork.
"""

from typing import Final

import grpc

from penstock.client.cluster.credentials import Credentials
from penstock.client.cluster.view import Leader, MetadataSnapshot
from penstock.client.cluster.wire import view_from_wire
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, UnreachableError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.channel import open_channel
from penstock.rpc.errors import error_from_rpc, error_from_wire

METADATA_TIMEOUT_S: Final = 3.0
"""Timeout of one attempt at one address: a frozen broker must not use up the whole deadline."""


class BlockingCluster:
    """Channels by address, leaders by partition. For one thread."""

    def __init__(
        self,
        bootstrap: tuple[str, ...],
        cluster_id: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        """Connects on first use. `cluster_id` "" = the one of the first broker that answers.

        `credentials` None: plaintext.
        """
        self.credentials = credentials or Credentials()
        self._generation = self.credentials.generation
        self._bootstrap = bootstrap
        self._view = MetadataSnapshot(cluster_id)
        self._doubted: set[TopicPartition] = set()
        self._stubs: dict[str, BrokerServiceStub] = {}

    @property
    def cluster_id(self) -> str:
        """ "" before any broker has answered."""
        return self._view.cluster_id

    def leader(self, where: TopicPartition) -> Leader:
        """Who leads the partition.

        Raises ClusterError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, LEADER_NOT_AVAILABLE, which are
        retriable, CLUSTER_ID_MISMATCH; UnreachableError if no broker answered.
        """
        if where in self._doubted or self._view.leader(where) is None:
            self._learn(where.topic)
            self._doubted.discard(where)
        leader = self._view.leader(where)
        if leader is not None:
            return leader
        if where.partition >= len(self._view.topics[where.topic].partitions):
            raise ClusterError(f"{where} does not exist", ErrorCode.UNKNOWN_PARTITION)
        raise ClusterError(f"{where} has no leader now", ErrorCode.LEADER_NOT_AVAILABLE)

    def doubt(self, where: TopicPartition) -> None:
        """The next `leader(where)` asks again."""
        self._doubted.add(where)

    def broker(self, address: str) -> BrokerServiceStub:
        """Its calls block, and raise grpc.RpcError. They show `credentials.metadata()`."""
        if self._generation != self.credentials.generation:
            self._generation = self.credentials.generation
            self._stubs.clear()  # a channel that nobody uses any more closes
        if address not in self._stubs:
            channel = open_channel(address, self.credentials.tls)
            self._stubs[address] = BrokerServiceStub(channel)
        return self._stubs[address]

    def _learn(self, topic: str) -> None:
        answer = self._metadata(topic)
        self._view = self._view.merge(view_from_wire(answer), frozenset({topic}))
        for info in answer.topics:
            if info.topic == topic and info.HasField("error"):
                raise error_from_wire(info.error)
        if topic not in self._view.topics:
            raise ClusterError(f"topic {topic} does not exist", ErrorCode.UNKNOWN_TOPIC)

    def _metadata(self, topic: str) -> pb.MetadataResponse:
        request = pb.MetadataRequest(cluster_id=self._view.cluster_id, topics=[topic])
        failures: list[str] = []
        # Brokers first, the user's addresses last: those may be a load balancer, or dead.
        for address in dict.fromkeys([*self._view.addresses(), *self._bootstrap]):
            shown = self.credentials.shown()
            try:
                return self.broker(address).Metadata(
                    request, timeout=METADATA_TIMEOUT_S, metadata=shown.metadata
                )
            except grpc.RpcError as problem:
                error = self.credentials.judged(error_from_rpc(problem, address), shown)
                if not error.retriable:
                    raise error from None
                failures.append(error.message)
        raise UnreachableError("no broker answered: " + "; ".join(failures[:3]))
