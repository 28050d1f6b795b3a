"""Transactions in partitions led here: outgoing joins, incoming Ends.

    ReplicaMachine ── Ready.joins ─▶ PartitionJoins ─▶ links … answered ─▶ Joined ─▶ ReplicaMachine
    coordinator ── End ─▶ Markers ─▶ EndRequested ─▶ ReplicaMachine … the marker is committed

The machine decides whether a batch may wait, what a marker ends and when it counts (I12).
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from penstock.core.replication.contract_leader import (
    EndRequested,
    Joined,
    JoinRequest,
    ProduceReply,
)
from penstock.core.transactions.contract import End, JoinRequested
from penstock.core.transactions.orphans import OpenHere
from penstock.core.transactions.records import PartitionParticipant
from penstock.core.types import ReplicaKey
from penstock.errors import ClusterError, ErrorCode, NotLeaderError, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.logged.log import next_request_id
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.transactions.links import TransactionLinks

END_TIMEOUT_MS: Final = 8_000
"""Shorter than the timeout of the call (`transport`), so that the caller still gets an answer."""
_GRACE_S: Final = 1.0


class PartitionJoins:
    """Receives the joins of replicas (`replica.JoinOutlet`)."""

    def __init__(self, links: TransactionLinks, replicas: ReplicaSet) -> None:
        self._links = links
        self._replicas = replicas

    def join(self, replica: Replica, request: JoinRequest) -> None:
        """The machine gets `Joined` with the same number, unless the replica was removed."""

        def heard(error: PenstockError | None) -> None:
            self._replicas.handle(replica, Joined(request.number, error))

        entry = JoinRequested(
            request_id=0,
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            participant=PartitionParticipant(replica.key.topic_id, replica.key.partition),
        )
        self._links.join(entry, heard)


class Markers:
    """Ends transactions on partitions led here (`here.Partitions`)."""

    def __init__(self, replicas: ReplicaSet, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock

    def open_here(self) -> Iterator[OpenHere]:
        """Open transactions of partitions led here, according to their logs."""
        for key, replica in list(self._replicas.by_key.items()):
            if replica.machine.error is None and replica.marks.is_leader:
                where = PartitionParticipant(key.topic_id, key.partition)
                for entry in replica.machine.open_transactions:
                    yield OpenHere(where, (entry.producer_id, entry.producer_epoch))

    async def end(self, participant: PartitionParticipant, end: End) -> None:
        """Returns once the marker is below the high watermark.

        Raises PenstockError: NOT_LEADER, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT (it may be there).
        """
        key = ReplicaKey(participant.topic_id, participant.partition)
        replica = self._replicas.by_key.get(key)
        if replica is None:
            raise NotLeaderError(f"broker {self._replicas.broker_id} has no replica of {key}")
        request_id = next_request_id()
        answered: asyncio.Future[ProduceReply] = asyncio.get_running_loop().create_future()
        replica.pending[request_id] = lambda reply: _answer(answered, reply)
        try:
            self._replicas.handle(
                replica,
                EndRequested(
                    request_id=request_id,
                    producer_id=end.producer_id,
                    producer_epoch=end.producer_epoch,
                    commit=end.commit,
                    timestamp_ms=self._clock.wall.look().ms,
                    deadline_ms=self._clock.now_ms() + END_TIMEOUT_MS,
                ),
            )
            async with self._clock.timeout(END_TIMEOUT_MS / 1000 + _GRACE_S):
                reply = await answered
        except TimeoutError:
            raise ClusterError(
                f"no answer from {replica} within {END_TIMEOUT_MS} ms; the marker may be there",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None
        finally:
            replica.pending.pop(request_id, None)
        if reply.error is not None:
            raise reply.error


def _answer(answered: "asyncio.Future[ProduceReply]", reply: ProduceReply) -> None:
    if not answered.done():  # the caller may have stopped waiting
        answered.set_result(reply)
