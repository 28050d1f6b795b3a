"""What a consumer asks its group's coordinator, over the simulator's network.

    GroupCalls ─▶ Cluster ─▶ Connections ═ SimTransport ═▶ GroupService of brokers

All of it ships, on both sides. Here are only the seams: channels of the simulated network, chance
that is the seed's, and a watch on what is asked and answered. gRPC delivers a request once; but one
that its client has given up may still arrive, at any time. So the watch sends some of them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.client.cluster.cluster import Cluster
from penstock.client.group.coordinator import GroupCalls
from penstock.errors import PenstockError
from penstock.proto.v1 import group_pb2 as pb
from penstock.rpc import groups as wire
from penstock.rpc.errors import error_from_wire
from penstock_sim.coordinator import OFFSETS_KEY
from penstock_sim.nodes import broker_address

if TYPE_CHECKING:
    from random import Random

    from penstock.client.config import ConsumerConfig
    from penstock_sim.client_node import ClientNode
    from penstock_sim.world import World

_COPIES: Final = 0.02
_COPY_MS: Final = (1, 300)
_LATE: Final = 0.5
_LATE_MS: Final = (1, 150)


def cluster_of(node: ClientNode, config: ConsumerConfig, chance: Random) -> Cluster:
    """A client's access to the cluster, from this node. `chance`: whom it asks first."""
    addresses = tuple(broker_address(broker.id) for broker in node.world.brokers.values())
    cluster = Cluster(addresses, config, open_channel=node.open_channel, shuffle=chance.shuffle)
    # One that nobody ever answered asks the machine's real network why.
    cluster._answered_last = addresses[0]
    return cluster


class WatchedGroupCalls(GroupCalls):
    """The calls of one process."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        group_id: str,
        chance: Random,
        judge: Callable[[PenstockError], None],
    ) -> None:
        """`judge`: is told of every refusal, also of single partitions; not of a transaction's,
        which its producer judges."""
        super().__init__(cluster, group_id)
        self._world = world
        self._chance = chance
        self._judge = judge
        self._last: pb.CommitOffsetsRequest | None = None

    async def commit(
        self, make: Callable[[], pb.CommitOffsetsRequest], timeout_s: float
    ) -> pb.CommitOffsetsResponse:
        def made() -> pb.CommitOffsetsRequest:
            self._last = make()
            self._may_copy(self._last)
            return self._last

        try:
            answer = await super().commit(made, timeout_s)
        except PenstockError as error:
            self._judge(error)
            raise
        for result in answer.results:
            if result.HasField("error"):
                self._judge(error_from_wire(result.error))
        return answer

    async def commit_within(self, request: pb.CommitOffsetsRequest, timeout_s: float) -> None:
        self._may_copy(request)
        await super().commit_within(request, timeout_s)

    async def fetch(
        self, request: pb.FetchOffsetsRequest, timeout_s: float, *, repeat: bool = True
    ) -> pb.FetchOffsetsResponse:
        try:
            return await super().fetch(request, timeout_s, repeat=repeat)
        except PenstockError as error:
            self._judge(error)
            raise

    def last_comes_late(self) -> None:
        """The last commit may arrive once more, at any moment: its reader goes back."""
        if self._last is not None and self._world.chaotic and self._chance.random() < _LATE:
            self._arrives_again(self._last, self._chance.uniform(*_LATE_MS))

    def _may_copy(self, request: pb.CommitOffsetsRequest) -> None:
        if self._world.chaotic and self._chance.random() < _COPIES:
            self._arrives_again(request, self._chance.uniform(*_COPY_MS))

    def _arrives_again(self, request: pb.CommitOffsetsRequest, after_ms: float) -> None:
        world = self._world

        def arrives() -> None:
            broker, _ = world.find_leader(OFFSETS_KEY, self._chance)
            if broker.coordinators is not None:
                copy = wire.commit_from_wire(request, world.next_request())
                broker.coordinators.ask(copy, lambda _answer: None)

        world.scheduler.after(after_ms, arrives)
