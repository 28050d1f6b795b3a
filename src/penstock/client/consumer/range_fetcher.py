"""Fetches of a range reader, from the partitions' leaders: the one place that asks brokers.

A fetch is started in the background and waited for later. After an error that means stale metadata,
the next fetch looks up the leader again.
"""

from dataclasses import dataclass

import grpc

from penstock.client.cluster.blocking import BlockingCluster
from penstock.client.cluster.credentials import Shown, credentials_of
from penstock.client.cluster.wire import ISOLATION_TO_WIRE
from penstock.client.consumer.range_reader import (
    FetchedBatches,
    PendingFetch,
    RangeConfig,
    RangeReader,
    RecordRange,
)
from penstock.core.types import TopicPartition
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.errors import error_from_rpc, error_from_wire


def open_range_reader(
    bootstrap: tuple[str, ...], config: RangeConfig, *, cluster_id: str = ""
) -> RangeReader:
    """A reader of the cluster behind these addresses; connects on first use.

    `cluster_id`: refuse any other cluster; "" = take the first that answers.
    """
    cluster = BlockingCluster(bootstrap, cluster_id, credentials_of(config))
    return RangeReader(LeaderFetcher(cluster, config), config)


class LeaderFetcher:
    """A `RangeFetcher`. For one thread."""

    def __init__(self, cluster: BlockingCluster, config: RangeConfig) -> None:
        self._cluster = cluster
        self._config = config

    def start(
        self, wanted: RecordRange, offset: int, max_bytes: int, timeout_s: float
    ) -> PendingFetch:
        """See `RangeFetcher`."""
        try:
            leader = self._cluster.leader(wanted.where)
        except PenstockError as problem:
            return _NotSent(problem)
        request = pb.FetchRequest(
            cluster_id=self._cluster.cluster_id,
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=ISOLATION_TO_WIRE[self._config.isolation_level],
            partitions=[
                pb.FetchPartition(
                    topic=wanted.where.topic,
                    topic_id=wanted.topic_id,
                    partition=wanted.where.partition,
                    offset=offset,
                    max_bytes=max_bytes,
                    leader_epoch=leader.leader_epoch,
                )
            ],
        )
        shown = self._cluster.credentials.shown()
        future = self._cluster.broker(leader.address).Fetch.future(
            request, timeout=timeout_s, metadata=shown.metadata
        )
        return _Sent(self._cluster, wanted.where, leader.address, future, self._config, shown)


@dataclass(frozen=True, slots=True)
class _NotSent:
    """A fetch whose partition has no known leader."""

    problem: PenstockError

    def result(self) -> FetchedBatches:
        raise self.problem

    def cancel(self) -> None:
        """Nothing is in flight."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A fetch sent to a leader."""

    cluster: BlockingCluster
    where: TopicPartition
    address: str
    future: "grpc.Future[pb.FetchResponse]"
    config: RangeConfig
    shown: Shown

    def result(self) -> FetchedBatches:
        try:
            response = self.future.result()
        except grpc.RpcError as problem:
            self.cluster.doubt(self.where)
            error = error_from_rpc(problem, self.address)
            raise self.cluster.credentials.judged(error, self.shown) from None
        for found in response.results:
            if TopicPartition(found.topic, found.partition) == self.where:
                return self._fetched(found)
        return FetchedBatches((), -1)

    def _fetched(self, found: pb.FetchResult) -> FetchedBatches:
        if found.HasField("error"):
            error = error_from_wire(found.error)
            if error.refresh_metadata:
                self.cluster.doubt(self.where)
            raise error
        committed = self.config.isolation_level == "read_committed"
        end = found.last_stable_offset if committed else found.high_watermark
        return FetchedBatches([batch_from_wire(batch) for batch in found.batches], end)

    def cancel(self) -> None:
        self.future.cancel()
