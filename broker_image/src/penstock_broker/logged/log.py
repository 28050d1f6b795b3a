"""The log under a machine, as its host uses it: a partition led here, appended to and read.

The seam between hosts and replicas: `ReplicaLog` is the broker's; a simulator brings its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from penstock.core.batch import Batch
from penstock.core.replication.contract import Marks
from penstock.core.replication.contract_leader import ProduceReply, ProduceRequested
from penstock.core.topic import TopicConfig
from penstock.core.types import Acks, LeaderEpoch, Offset, Sync
from penstock.errors import PenstockError
from penstock_broker.replication.reads import LogReader, waiting_for_others
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

_APPEND_TIMEOUT_MS: Final = 600_000
_READ_BYTES: Final = 1024 * 1024
_REQUEST_IDS: Final = count(-1, -1)


def next_request_id() -> int:
    """For appends of this broker itself: below 0, never a producer's number, never reused."""
    return next(_REQUEST_IDS)


class PartitionLog(Protocol):
    """One replica of an internal topic's partition. `str` is its name in logs and errors."""

    @property
    def broker_id(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def marks(self) -> Marks: ...
    @property
    def config(self) -> TopicConfig: ...
    def append(
        self, batch: Batch, epoch: LeaderEpoch, done: Callable[[PenstockError | None], None]
    ) -> None:
        """Appends in `epoch`; `done` is called once: None when the high watermark has passed it.

        An error leaves open whether the batch will be in the log. `done` may be called before this
        returns.
        """

    async def read(self, offset: Offset, end: Offset) -> list[Batch]:
        """Batches from the one with `offset` on, below `end`; [] if none is left there.

        Raises PenstockError.
        """


class ReplicaLog:
    """A replica of this broker as `PartitionLog`."""

    def __init__(self, replica: Replica, replicas: ReplicaSet, reader: LogReader) -> None:
        self.replica = replica
        self.read_bytes = _READ_BYTES
        """At least one batch, then up to this many."""
        self._replicas = replicas
        self._reader = reader

    def __str__(self) -> str:
        return str(self.replica)

    @property
    def broker_id(self) -> int:
        return self._replicas.broker_id

    @property
    def partition(self) -> int:
        return self.replica.key.partition

    @property
    def marks(self) -> Marks:
        return self.replica.marks

    @property
    def config(self) -> TopicConfig:
        return self.replica.config

    def append(
        self, batch: Batch, epoch: LeaderEpoch, done: Callable[[PenstockError | None], None]
    ) -> None:
        """Appends to all in-sync replicas, or is refused; see `PartitionLog`."""

        def answered(reply: ProduceReply) -> None:
            done(reply.error)

        request_id = next_request_id()
        self.replica.pending[request_id] = answered
        self._replicas.handle(
            self.replica,
            ProduceRequested(
                request_id=request_id,
                batch=batch,
                acks=Acks.ALL,
                sync=Sync.OS,
                deadline_ms=self._replicas.now_ms() + _APPEND_TIMEOUT_MS,
                expected_epoch=epoch,
            ),
        )

    async def read(self, offset: Offset, end: Offset) -> list[Batch]:
        """From memory or the store's threads; see `PartitionLog`."""
        with waiting_for_others(self.replica):
            return await self._reader.read(self.replica, offset, self.read_bytes, end)
