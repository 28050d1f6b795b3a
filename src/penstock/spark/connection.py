"""A blocking connection to the brokers of one cluster, for executors that read bounded ranges.

Why not `penstock.client.Consumer`: a consumer reads ahead to the end of the log and runs an
event loop in a thread. A task reads from lo to hi and is done; one channel per broker and one
call at a time in the background is all it takes.

    connection_to(settings)     cached per process and settings: a worker process serves many
                                tasks of many batches, and a channel costs more than a fetch
    Connection.leader(tp)       where to fetch from; asks any broker for metadata if unknown
    Connection.forget(tp)       after an error that says the picture is out of date

Never pickled, never used across a fork: the cache's key holds the process id.
"""

import os
from dataclasses import dataclass
from typing import Final

import grpc

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, UnreachableError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.channel import open_channel
from penstock.rpc.errors import error_from_rpc, error_from_wire
from penstock.spark.given import ClientSettings

METADATA_TIMEOUT_S: Final = 3.0
"""Of one attempt at one address: a frozen broker must not use up the whole deadline."""

_connections: dict[tuple[int, ClientSettings], "Connection"] = {}


def connection_to(settings: ClientSettings) -> "Connection":
    """This process's connection with these settings; made at first use, kept until it ends."""
    key = (os.getpid(), settings)
    if key not in _connections:
        _connections[key] = Connection(settings)
    return _connections[key]


@dataclass(frozen=True, slots=True)
class Leader:
    """A partition's leader as metadata last had it; `address` "" = none at that moment."""

    address: str
    leader_epoch: int


class Connection:
    """Channels by address, leaders by partition. For one thread."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._stubs: dict[str, BrokerServiceStub] = {}
        self._addresses = list(settings.bootstrap)
        self._leaders: dict[TopicPartition, Leader] = {}

    def leader(self, tp: TopicPartition) -> Leader:
        """The leader of `tp`.

        Raises ClusterError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, LEADER_NOT_AVAILABLE, or
        UnreachableError if no broker answered. All are retriable.
        """
        if tp not in self._leaders:
            self._learn(tp.topic)
        leader = self._leaders.get(tp)
        if leader is None:
            raise ClusterError(f"{tp} does not exist", ErrorCode.UNKNOWN_PARTITION)
        if not leader.address:
            self.forget(tp)
            raise ClusterError(f"{tp} has no leader now", ErrorCode.LEADER_NOT_AVAILABLE)
        return leader

    def forget(self, tp: TopicPartition) -> None:
        """The next `leader(tp)` asks again."""
        self._leaders.pop(tp, None)

    def fetch(
        self, address: str, request: pb.FetchRequest, timeout_s: float
    ) -> "grpc.Future[pb.FetchResponse]":
        """Starts a fetch in the background; `result()` raises grpc.RpcError."""
        return self._stub(address).Fetch.future(request, timeout=timeout_s)

    def _learn(self, topic: str) -> None:
        response = self._metadata(topic)
        brokers = {b.broker_id: f"{b.host}:{b.port}" for b in response.brokers}
        # Brokers first, the user's addresses last: those may be a load balancer, or dead.
        self._addresses = list(dict.fromkeys([*brokers.values(), *self._settings.bootstrap]))
        info = next((info for info in response.topics if info.topic == topic), None)
        if info is None:
            raise ClusterError(f"topic {topic} does not exist", ErrorCode.UNKNOWN_TOPIC)
        if info.HasField("error"):
            raise error_from_wire(info.error)
        for p in info.partitions:
            address = brokers.get(p.leader, "")
            self._leaders[TopicPartition(topic, p.partition)] = Leader(address, p.leader_epoch)

    def _metadata(self, topic: str) -> pb.MetadataResponse:
        request = pb.MetadataRequest(cluster_id=self._settings.cluster_id, topics=[topic])
        failures: list[str] = []
        for address in list(self._addresses):
            try:
                return self._stub(address).Metadata(request, timeout=METADATA_TIMEOUT_S)
            except grpc.RpcError as problem:
                error = error_from_rpc(problem, address)
                if not error.retriable:
                    raise error from None
                failures.append(error.message)
        raise UnreachableError("no broker answered: " + "; ".join(failures[:3]))

    def _stub(self, address: str) -> BrokerServiceStub:
        if address not in self._stubs:
            self._stubs[address] = BrokerServiceStub(open_channel(address))
        return self._stubs[address]
