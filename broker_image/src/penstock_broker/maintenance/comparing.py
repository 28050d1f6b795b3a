"""Compares what the scrub has read of a log with its leader's: logs that differ and read well (I3).

    Scrub: read from ─ to ─▶ ranges that end there ─▶ own digest ─┬─▶ equal: known well again
                                      the leader's, ReadDigest ───┘─▶ other: `found`, reported

Nobody can tell here which of the two is right, so nothing is repaired and nobody loses a seat: a
person decides (docs/operations.md). Only members of the ISR compare themselves, below their high
watermark: what others have is not promised yet. What is found stays known until the range is
compared again, or is not here any more; the scrub stores it.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Final

from penstock.core.replication.digests import LogDigest, OffsetRange, completed, cut
from penstock.core.types import BrokerId, Offset, PartitionState, ReplicaKey
from penstock.errors import PenstockError
from penstock_broker.clock import Clock
from penstock_broker.maintenance.scrub_metrics import ScrubMetrics
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog
from penstock_broker.replication.digests import Leaders, digest_of
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

DIFFERENCES_MAX: Final = 10
"""Of one log: with so many, it is a matter of the whole log."""
_PAUSE_S: Final = 60.0
"""How long nobody asks a leader again that did not answer: it may be of an older release."""
_events = EventLog("scrub")


@dataclass(frozen=True, slots=True)
class LogDifference:
    """A part of a log here that was not as its leader's. `found_ms`: since 1970, by this broker."""

    within: OffsetRange
    leader: BrokerId
    own: LogDigest
    leaders: LogDigest
    found_ms: int


Differences = dict[ReplicaKey, dict[int, LogDifference]]
"""By the number of the range."""


class LogComparison:
    """Of the logs of a broker. Call `close` at the end."""

    def __init__(
        self,
        replicas: ReplicaSet,
        view: ClusterView,
        leaders: Leaders,
        metrics: ScrubMetrics,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._leaders = leaders
        self._metrics = metrics
        self._clock = clock
        self._silent_until_s: dict[BrokerId, float] = {}
        self.found: Differences = {}
        self.compared_ranges = 0
        metrics.observe_differing(lambda: len(self.found))

    def here(self) -> Iterator[tuple[Replica, LogDifference]]:
        """What is known of replicas that are here."""
        for key, found in self.found.items():
            replica = self._replicas.by_key.get(key)
            if replica is not None:
                for number in sorted(found):
                    yield replica, found[number]

    def says(self, key: ReplicaKey) -> str:
        """How a log differs, for people; empty: it is not known to."""
        found = self.found.get(key)
        if not found:
            return ""
        first = found[min(found)]
        more = f" and {len(found) - 1} more ranges" if len(found) > 1 else ""
        return f"offsets {first.within}{more} are not as those of broker {first.leader}, which led"

    def keep(self, keys: Collection[ReplicaKey]) -> None:
        """Forgets logs that are not here any more, and parts that retention has removed."""
        for key in [key for key in self.found if key not in keys]:
            del self.found[key]
        for replica, difference in list(self.here()):
            if difference.within.end <= replica.marks.log_start_offset:
                self._forget(replica, difference.within)

    async def compare(
        self, reader: LogReader, replica: Replica, before: Offset, after: Offset, end: Offset
    ) -> None:
        """The scrub has read a log from `before` to `after`, and will read it to `end`.

        Raises ClusterError if the index here cannot be read.
        """
        marks = replica.marks
        for one in completed(max(before, marks.log_start_offset), after, end):
            within = cut(one, marks.log_start_offset, marks.high_watermark)
            if within is not None:
                await self._compare(reader, replica, within)

    async def _compare(self, reader: LogReader, replica: Replica, within: OffsetRange) -> None:
        if replica.marks.is_leader:
            self._forget(replica, within)  # its followers compare themselves with it
            return
        state, known = self._comparable(replica), self.found.get(replica.key, {})
        if state is None or (len(known) >= DIFFERENCES_MAX and within.number not in known):
            return
        truncations = replica.truncations
        own = await digest_of(reader, replica, within)
        if isinstance(own, str):
            return
        leaders = await self._ask(state, replica.key, within)
        now = self._comparable(replica)
        same = now is not None and now.leader_epoch == state.leader_epoch
        if leaders is None or not same or replica.truncations != truncations:
            return
        self.compared_ranges += 1
        self._metrics.ranges_compared.inc()
        if own == leaders:
            self._forget(replica, within)
        else:
            now_ms = self._clock.wall_ms()
            self._note(replica, LogDifference(within, state.leader, own, leaders, now_ms))

    def _comparable(self, replica: Replica) -> PartitionState | None:
        """The partition's state, if what is committed here must be as it is at the leader."""
        state, local = self._view.state(replica.key), self._replicas.broker_id
        if (
            state is None
            or self._replicas.by_key.get(replica.key) is not replica
            or replica.machine.error is not None
            or replica.marks.leader_epoch != state.leader_epoch
            or local not in state.isr
            or state.leader == local
            or state.leader not in self._view.brokers
        ):
            return None
        return state

    async def _ask(
        self, state: PartitionState, key: ReplicaKey, within: OffsetRange
    ) -> LogDigest | None:
        if monotonic() < self._silent_until_s.get(state.leader, 0.0):
            return None
        try:
            return await self._leaders.digest(state.leader, state.leader_epoch, key, within)
        except PenstockError as error:
            self._silent_until_s[state.leader] = monotonic() + _PAUSE_S
            _events.info("logs not compared", leader=state.leader, reason=str(error))
            return None

    def _note(self, replica: Replica, new: LogDifference) -> None:
        found = self.found.setdefault(replica.key, {})
        known = found.get(new.within.number)
        if known is not None and (known.own, known.leaders) == (new.own, new.leaders):
            return
        found[new.within.number] = new
        _events.error(
            "the log differs from the leader's, and both read well",
            replica=replica,
            offsets=new.within,
            leader=new.leader,
            own=new.own,
            leaders=new.leaders,
        )

    def _forget(self, replica: Replica, within: OffsetRange) -> None:
        found = self.found.get(replica.key, {})
        if found.pop(within.number, None) is None:
            return
        if not found:
            del self.found[replica.key]
        _events.info(
            "the log is not known to differ here any more", replica=replica, offsets=within
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._leaders.close()
