"""The fetcher of a consumer in virtual time, where partitions are read from whoever seems to lead.

It stands for `client/consumer/fetcher.py` and the service that it asks: `FetchState` decides as in
the product. An answer arrives in a turn of the consumer's event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.client.consumer.fetch_state import FetchState
from penstock.client.consumer.fetcher import Fetcher
from penstock.core.batch import Batch
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.errors import OffsetOutOfRangeError, OffsetRange
from penstock_sim.node_loop import pause
from penstock_sim.scheduler import RATE

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.members import SimMember

_PACE_MS: Final = (3, 9)
_BUFFER_BYTES: Final = 4_000
BATCHES: Final = 8
"""In an answer."""


class SimFetcher(Fetcher):
    """Of one process."""

    def __init__(self, process: SimMember, *parts: Any) -> None:
        super().__init__(*parts)
        self._process = process
        self._world = process.world

    async def run(self) -> None:
        while True:
            await pause(self._world.scheduler.between(*_PACE_MS))
            for state in list(self._states.values()):
                if state.in_flight is not None and state.in_flight[0] == state.generation:
                    continue
                if state.position is None or state.wants_fetch(_BUFFER_BYTES):
                    self._request(state)

    def _request(self, state: FetchState) -> None:
        """Asks the broker that seems to lead; an empty answer costs nothing."""
        key = ReplicaKey(TopicId(state.topic_id), state.where.partition)
        broker, _ = self._world.find_leader(key)
        replica = broker.replicas.get(key) if broker.up else None
        net, node = self._world.net, self._process.node
        if replica is None or (node, int(broker.id)) in net.blocked:
            return
        marks = replica.machine.marks
        if not marks.is_leader or marks.leader_epoch < state.leader_epoch:
            return
        if state.position is None:
            found: Any = marks.log_start_offset
        elif state.fetch_offset < marks.log_start_offset:
            valid = OffsetRange(marks.log_start_offset, marks.high_watermark)
            found = OffsetOutOfRangeError("below the log start", valid)
        else:
            found = self._read(broker, replica, Offset(state.fetch_offset))
            if not found:
                return
        state.in_flight = (state.generation, broker.name)
        self._process.user.loop.call_later(
            net.delay_ms() * RATE / 1000, self._answered, state, state.generation,
            state.fetch_offset, found, marks.leader_epoch, marks.high_watermark,
        )  # fmt: skip

    def _read(self, broker: SimBroker, replica: Replica, offset: Offset) -> list[Batch]:
        """The leader's answer, from `offset` on."""
        found = broker.read(replica, offset, replica.machine.marks.high_watermark, BATCHES)
        checks = self._world.checks
        if found and not checks.unclean.is_deposed(replica.key, replica.machine.marks):
            who = f"{broker.name} to {self._process.name}"
            checks.consumed(replica.key, found, who)
        return found

    def _answered(
        self, state: FetchState, generation: int, asked: int, found: Any, epoch: int, end: int
    ) -> None:
        """As `Fetcher._take`."""
        if state.generation != generation:
            return
        state.in_flight = None
        if isinstance(found, list):
            state.leader_epoch = max(state.leader_epoch, epoch)
            state.accept(asked, found, end)
        elif isinstance(found, OffsetOutOfRangeError):
            state.out_of_range(found, "earliest", self._process.now_ms)
        else:
            state.looked_up(found)
        self.arrived()
