"""The lag of the groups coordinated here, for Prometheus: measured in rounds.

    scrape ─▶ scraped() ┄┄▶ run: while there are scrapes, every `INTERVAL_S` one round
                              │  groups here, live ones first, up to `PARTITIONS_MAX` partitions
                              │  ─▶ their committed offsets (as a client gets them)
                              │  ─▶ start and end of those logs, one call per leader
                              │  ─▶ the first unread record, if not known yet (`unread`)
    scrape ◀── snapshot ◀─────┘

So a scrape costs only its text, however often it happens, and a broker that is not scraped does
nothing. A partition that several groups read is asked about once. If a leader does not answer in
time, the lag is unknown, and absent from the metrics, not 0: an autoscaler must then change
nothing. `penstock.core.lag` defines lag, here as in `penstock group describe`.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from penstock.core.batch import Batch
from penstock.core.groups import GroupCoordinator
from penstock.core.groups.catalog import NamedPartition
from penstock.core.groups.contract import Answer, Request
from penstock.core.groups.contract_views import Fetched, FetchRequested
from penstock.core.lag import PartitionLag, fetch_from, partition_lag
from penstock.errors import PenstockError
from penstock_broker.groups.unread import UnreadRecords
from penstock_broker.observability import EventLog

INTERVAL_S: Final = 15.0
KEEP_S: Final = 300.0
"""Rounds continue for this long after a scrape; Prometheus scrapes every minute or more often."""
PARTITIONS_MAX: Final = 2_000
"""Limit per broker, over all groups: three samples each, which bounds the text of a scrape."""
PASSES_MAX: Final = 8
"""Fetches per leader and round; each is one small answer."""
_events = EventLog("lag")


class Bounds(NamedTuple):
    """Of a log: first offset, last stable offset."""

    start: int
    end: int


class Leaders(Protocol):
    """The leaders of partitions. Each call ends soon; partitions without an answer are omitted."""

    async def bounds(self, asked: Iterable[NamedPartition]) -> Mapping[NamedPartition, Bounds]:
        """Start and end of these logs."""

    async def first_batches(
        self, asked: Mapping[NamedPartition, int]
    ) -> Mapping[NamedPartition, Sequence[Batch]]:
        """The batch at each offset; () = it did not fit into this answer, or does not exist yet."""

    async def close(self) -> None:
        """Ends the connections."""


class LedGroups(Protocol):
    """One coordinator, as this module uses it (`groups.coordinator`)."""

    closed: PenstockError | None
    loaded: bool
    machine: GroupCoordinator

    async def ask(self, make: Callable[[int], Request]) -> Answer:
        """Answers a request; raises PenstockError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A group before its lag is measured. `partitions`: how many have committed offsets; `pending`:
    for how many an open transaction may change the offset."""

    led: LedGroups
    group_id: str
    state: str
    members: int
    partitions: int
    pending: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group as it was in one round; its lag by partition."""

    group: Candidate
    partitions: Mapping[NamedPartition, PartitionLag]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`left_out`: group-partitions beyond the limit; a group without offsets counts as one."""

    groups: tuple[GroupLag, ...]
    left_out: int


class LagCollection:
    """See the module."""

    def __init__(self, led: Callable[[], Sequence[LedGroups]], leaders: Leaders) -> None:
        self._led = led
        self._leaders = leaders
        self._unread = UnreadRecords()
        self._turn = 0
        self._asked = asyncio.Event()
        self._asked_at_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.snapshot: Snapshot | None = None
        """Of the last round; None = no scrape for a long time, or the round failed."""

    def scraped(self) -> None:
        """There was a scrape. Can be called by any thread."""
        self._asked_at_s = time.monotonic()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended: so has this broker
                self._loop.call_soon_threadsafe(self._asked.set)

    async def run(self) -> None:
        """Runs until cancelled."""
        self._loop = asyncio.get_running_loop()
        if self._asked_at_s:
            self._asked.set()  # by a scrape while the broker was starting
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                while time.monotonic() - self._asked_at_s < KEEP_S:
                    self.snapshot = await self._round()
                    await asyncio.sleep(INTERVAL_S)
                self.snapshot = None
        finally:
            await self._leaders.close()

    async def _round(self) -> Snapshot | None:
        try:
            return await self.collect(PARTITIONS_MAX)
        except Exception as error:  # noqa: BLE001 - metrics must never end a broker
            _events.defect("lag of groups not collected", error)
            return None

    async def collect(self, partitions_max: int) -> Snapshot:
        """Measures one round."""
        chosen, left_out = choose(await self._candidates(), partitions_max)
        committed = await self._committed(chosen)
        bounds = await self._leaders.bounds({where for _, found in committed for where in found})
        await self._look(committed, bounds)
        now_ms = time.time_ns() // 1_000_000
        return Snapshot(
            tuple(
                GroupLag(
                    group,
                    {
                        where: self._lag(where, offset, bounds.get(where), now_ms)
                        for where, offset in found.items()
                    },
                )
                for group, found in committed
            ),
            left_out,
        )

    async def _candidates(self) -> list[Candidate]:
        found: list[Candidate] = []
        for led in self._led():
            if led.loaded and led.closed is None:
                found += [
                    Candidate(
                        led=led,
                        group_id=name,
                        state=group.state.value,
                        members=len(group.members),
                        partitions=len(group.offsets),
                        pending=sum(len(one.offsets) for one in group.pending.values()),
                    )
                    for name, group in led.machine.groups.items()
                ]
            await asyncio.sleep(0)  # ten thousand groups must not block everything else
        return found

    @staticmethod
    async def _committed(
        chosen: Sequence[Candidate],
    ) -> list[tuple[Candidate, dict[NamedPartition, int]]]:
        """The committed offsets: only those that no failover can undo (I16), without offsets that
        an open transaction has yet to decide."""
        found: list[tuple[Candidate, dict[NamedPartition, int]]] = []
        for group in chosen:
            try:
                answer = await group.led.ask(
                    partial(FetchRequested, group_id=group.group_id, allow_unstable=True)
                )
            except PenstockError:
                continue  # the group is moving, or its latest commit is not replicated yet
            assert isinstance(answer, Fetched)
            found.append(
                (
                    group,
                    {
                        NamedPartition(seen.topic, seen.topic_id, seen.partition): seen.offset
                        for seen in answer.offsets
                    },
                )
            )
            await asyncio.sleep(0)
        return found

    async def _look(
        self,
        committed: Iterable[tuple[Candidate, Mapping[NamedPartition, int]]],
        bounds: Mapping[NamedPartition, Bounds],
    ) -> None:
        wanted: dict[NamedPartition, set[int]] = {}
        for _, offsets in committed:
            for where, offset in offsets.items():
                position = fetch_from(offset, *bounds[where]) if where in bounds else None
                if position is not None:
                    wanted.setdefault(where, set()).add(position)
        ends = {where: bounds[where].end for where in wanted}
        self._unread.begin(wanted, ends, time.monotonic())
        for _ in range(PASSES_MAX):
            asked = self._unread.asked(self._turn)
            if not asked:
                break
            self._turn += 1
            found = await self._leaders.first_batches(asked)
            # Opening a batch takes milliseconds: not on the event loop, which serves everything.
            await asyncio.to_thread(self._unread.take, asked, found)

    def _lag(
        self, where: NamedPartition, offset: int, bounds: Bounds | None, now_ms: int
    ) -> PartitionLag:
        if bounds is None:
            return PartitionLag(offset, -1, -1, None, None)
        start, end = bounds
        position = fetch_from(offset, start, end)
        if position is None:
            return partition_lag(offset, start, end, None, now_ms)
        looked = self._unread.at(where, position)
        if looked.unread is None and looked.below < end:  # its age is not known yet
            return PartitionLag(offset, start, end, end - looked.below, None)
        return partition_lag(offset, start, end, looked.unread, now_ms)


def choose(candidates: Iterable[Candidate], partitions_max: int) -> tuple[list[Candidate], int]:
    """Whole groups within the limit, those with members first, then by name; how many partitions
    are left out.

    Part of a group would add up to too small a lag.
    """
    chosen: list[Candidate] = []
    room, left_out = partitions_max, 0
    for group in sorted(candidates, key=lambda group: (group.members == 0, group.group_id)):
        size = max(group.partitions, 1)
        if size <= room:
            chosen.append(group)
            room -= size
        else:
            left_out += size
    return chosen, left_out
