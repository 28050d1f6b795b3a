"""Transactions on one led partition, put there as the produce path and a coordinator would.

The machine, its writes and its store are real; the coordinator says yes to every join at once.
`expected` is the oracle: what readers must see, from what was sent and decided.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from support.wire import make_batch

from penstock.core.batch import Batch, BatchFlags
from penstock.core.records import build_batch, encode_columns
from penstock.core.replication.contract import Event, Ready
from penstock.core.replication.contract_leader import (
    EndRequested,
    Joined,
    ProduceReply,
    ProduceRequested,
)
from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT, Acks, ProducerId, Sync
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

_IDS = count(-1_000_000, -1)
PATIENCE_MS = 20_000


@dataclass(slots=True)
class Sent:
    """One record that is in the log."""

    offset: int
    value: bytes
    transaction: tuple[int, int] | None


class Transactor:
    """Producers 1, 2, 3 … with transactions on one partition."""

    def __init__(self, replicas: ReplicaSet, replica: Replica) -> None:
        self.sent: list[Sent] = []
        self.outcomes: dict[tuple[int, int], bool] = {}
        """Committed or aborted; a transaction that is not here is open."""
        self._epochs: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self._values = count()
        self.adopt(replicas, replica)

    def adopt(self, replicas: ReplicaSet, replica: Replica) -> None:
        """The partition is led there from now on."""
        self._replicas, self.replica = replicas, replica
        handle = replica.machine.handle

        def joining(event: Event, now_ms: int) -> Ready:
            ready = handle(event, now_ms)
            loop = asyncio.get_running_loop()
            for join in ready.joins:
                loop.call_soon(replicas.handle, replica, Joined(join.number))
            return ready

        replica.machine.handle = joining  # type: ignore[method-assign]

    async def send(
        self, producer: int | None, records: int = 1, *, timestamp_ms: int = 1_000, size: int = 0
    ) -> int:
        """Records of the producer's transaction; None: of no transaction. Their first offset."""
        values = [b"%d" % next(self._values) + b"." * size for _ in range(records)]
        transaction = None if producer is None else (producer, self._epochs.get(producer, 0))
        batch = make_batch(values, timestamps_ms=timestamp_ms)
        if producer is not None:
            batch = self._transactional(producer, values, timestamp_ms)
        request_id = next(_IDS)
        reply = await self._ask(
            request_id,
            ProduceRequested(
                request_id=request_id,
                batch=batch,
                acks=Acks.ALL,
                sync=Sync.OS,
                deadline_ms=self._replicas.now_ms() + PATIENCE_MS,
                transactional_id="" if producer is None else f"id-{producer}",
            ),
        )
        self.sent += [
            Sent(reply.base_offset + index, value, transaction)
            for index, value in enumerate(values)
        ]
        return int(reply.base_offset)

    def _transactional(self, producer: int, values: list[bytes], timestamp_ms: int) -> Batch:
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + len(values)
        return build_batch(
            encode_columns(values, timestamps_ms=timestamp_ms),
            producer_id=_id(producer),
            producer_epoch=self._epochs.get(producer, 0),
            base_sequence=sequence,
            flags=BatchFlags.TRANSACTIONAL,
        )

    async def end(self, producer: int, *, commit: bool) -> int:
        """Decides the producer's transaction; its marker's offset."""
        epoch = self._epochs.get(producer, 0)
        request_id = next(_IDS)
        reply = await self._ask(
            request_id,
            EndRequested(
                request_id=request_id,
                producer_id=_id(producer),
                producer_epoch=epoch,
                commit=commit,
                timestamp_ms=1_000,
                deadline_ms=self._replicas.now_ms() + PATIENCE_MS,
            ),
        )
        self.outcomes[producer, epoch] = commit
        self._epochs[producer], self._sequences[producer] = epoch + 1, 0
        return int(reply.base_offset)

    async def _ask(self, request_id: int, event: Event) -> ProduceReply:
        answered: asyncio.Future[ProduceReply] = asyncio.get_running_loop().create_future()
        respond: Callable[[ProduceReply], None] = answered.set_result
        self.replica.pending[request_id] = respond
        self._replicas.handle(self.replica, event)
        async with asyncio.timeout(PATIENCE_MS / 1000):
            reply = await answered
        assert reply.error is None, reply.error
        return reply

    # ------------------------------------------------------------ the oracle

    def stable_offset(self, high_watermark: int) -> int:
        """The first record of an open transaction, else the high watermark."""
        undecided = [one.offset for one in self.sent if not self._is_decided(one)]
        return min([*undecided, high_watermark])

    def expected(self, offset: int, high_watermark: int, *, committed: bool) -> list[bytes]:
        """What a reader from `offset` on must see, and nothing else."""
        end = self.stable_offset(high_watermark) if committed else high_watermark
        return [
            one.value
            for one in self.sent
            if offset <= one.offset < end and (not committed or self._is_committed(one))
        ]

    def _is_decided(self, one: Sent) -> bool:
        return one.transaction is None or one.transaction in self.outcomes

    def _is_committed(self, one: Sent) -> bool:
        return one.transaction is None or self.outcomes.get(one.transaction, False)


def _id(producer: int) -> ProducerId:
    return ProducerId(TRANSACTIONAL_PRODUCER_BIT | producer)
