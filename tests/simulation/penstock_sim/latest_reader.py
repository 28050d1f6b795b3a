"""Readers that start late and begin at the end ("latest"), committed and uncommitted.

    a while ─▶ the leader says where the end is ─▶ reads on from there, for a while ─▶ check ─┐
       ▲                                                                                      │
       └──────────────────────────────── another reader ◀─────────────────────────────────────┘

The end is the last stable offset for a reader of committed records, otherwise the high watermark.
From there on, a reader must get exactly the batches meant for it, once and in order (I6, I11): this
is checked with the committed log. A transaction that was undecided when the reader was told where
to begin must be after that offset as a whole; of a decided one, it may see a part, if another was
open in between.

Readers draw from a generator of their own and change nothing: a history is the same without them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from penstock.core import isolation
from penstock.core.batch import Batch
from penstock.core.isolation import Isolation
from penstock.core.types import Offset, ReplicaKey
from penstock_broker.services.fetching import readable_end
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock.core.replication import contract as rc
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_POLL_MS: Final = (10, 60)
_STAYS_MS: Final = (60, 200, 600, 5_000)
_AWAY_MS: Final = (5, 40, 250)
_CATCHES_UP_IN: Final = 1_000
"""Answers, at the end: enough for everything in a history."""
_next_offset = attrgetter("next_offset")


class LatestReader:
    """Readers of one partition. `begun`: how many were told where to begin."""

    def __init__(self, world: World, key: ReplicaKey, level: Isolation) -> None:
        self.begun = 0
        self._world = world
        self._key = key
        self._level = level
        self._name = f"{level.name.lower()} reader of {key}"
        self._random = world.scheduler.generator(self._name)
        self._forget()

    def _forget(self) -> None:
        """The next reader starts without the state of the last."""
        self._start: Offset | None = None
        self._decided = Offset(0)
        """What has its marker below this was decided when this reader was told where to begin."""
        self._position = Offset(0)
        self._seen: list[Batch] = []
        self._gaps: list[range] = []
        self._epoch = 0
        self._end = Offset(0)
        self._leaves_ms = self._world.scheduler.now_ms + self._random.choice(_STAYS_MS)

    # ------------------------------------------------------------ one after the other

    def start(self) -> None:
        """The first reader starts at any time."""
        self._after(self._random.random() * self._world.chaos_ms, self._come)

    def _after(self, delay_ms: float, step: Callable[[], None]) -> None:
        self._world.scheduler.after(delay_ms, self._run, step)

    def _run(self, step: Callable[[], None]) -> None:
        if not self._world.transaction_checks.void:
            step()

    def _come(self) -> None:
        self._forget()
        self._turn()

    def _turn(self) -> None:
        self._poll()
        if self._world.chaotic and self._world.scheduler.now_ms >= self._leaves_ms:
            self.check()
            self._after(self._random.choice(_AWAY_MS), self._come)
        else:
            self._after(self._random.uniform(*_POLL_MS), self._turn)

    # ------------------------------------------------------------ calls

    def _poll(self) -> None:
        """ListOffsets, or the next fetch, at the broker that seems to lead."""
        broker, _ = self._world.find_leader(self._key, self._random)
        replica = broker.replicas.get(self._key) if broker.up else None
        if replica is None:
            return
        marks = replica.machine.marks
        is_settled = marks.high_watermark >= marks.epoch_start_offset
        if not marks.is_leader or not is_settled or marks.leader_epoch < self._epoch:
            return
        end = readable_end(marks, self._level)
        if end < self._end:
            raise RuleError(f"I2: {self._name} was told of an end at {self._end}, now {marks}")
        self._epoch, self._end = marks.leader_epoch, end
        if self._start is None:
            self.begun += 1
            self._start = self._position = self._latest(marks)
            self._decided = marks.high_watermark
            self._world.scheduler.note(broker.name, "tells", self._name, self._start)
        else:
            self._fetch(broker, replica, marks)

    def _latest(self, marks: rc.Marks) -> Offset:
        """The end as in ListOffsets."""
        return readable_end(marks, self._level)

    def _fetch(self, broker: SimBroker, replica: Replica, marks: rc.Marks) -> None:
        if self._position < marks.log_start_offset:
            self._gaps.append(range(self._position, marks.log_start_offset))
            self._position = marks.log_start_offset
        found = broker.read(replica, self._position, self._end, 8)
        if not found:
            return
        aborted = isolation.NONE_ABORTED
        if self._level is Isolation.COMMITTED:
            entries = broker.disk.aborted(replica.slot, self._position, found[-1].next_offset)
            aborted = isolation.named(entries)
        self._seen += self._shown(found, aborted)
        self._position = found[-1].next_offset

    def _shown(self, found: list[Batch], aborted: isolation.Aborted) -> list[Batch]:
        if not self._world.compacts:
            return isolation.visible(found, aborted)
        hides = [isolation.is_hidden(batch, aborted) for batch in found]
        return self._world.compaction_checks.seen(self._key, self._position, found, hides)

    # ------------------------------------------------------------ what must hold

    def catch_up(self) -> None:
        """Reads everything left; faults have been healed."""
        for _ in range(_CATCHES_UP_IN):
            if self._start is None or self._position >= self._world.checks.canon(self._key).end:
                return
            self._poll()
        raise RuleError(f"I24: {self._name} stays at {self._position}")

    def check(self) -> None:
        """The current reader has seen what it must, up to its position."""
        if self._start is None:
            return
        canon = self._world.checks.canon(self._key)
        first = bisect_right(canon.batches, self._start, key=_next_offset)
        last = bisect_right(canon.batches, self._position, key=_next_offset)
        own = [batch for batch in canon.batches[first:last] if self._is_for_it(batch)]
        problem = difference(own, self._seen, self._gaps)
        if problem:
            raise RuleError(f"I11: {self._name} from {self._start} on {problem}")
        if self._level is Isolation.COMMITTED:
            self._check_undecided(self._start)

    def _is_for_it(self, batch: Batch) -> bool:
        header = batch.header
        if header.is_control:
            return False
        if self._level is Isolation.UNCOMMITTED or not header.is_transactional:
            return True
        who = (header.producer_id, header.producer_epoch)
        return self._world.transaction_checks.outcomes.get(who) is True

    def _check_undecided(self, start: Offset) -> None:
        """No transaction that was committed later has batches before the start."""
        view = self._world.transaction_checks.view(self._key)
        for who, (marker, commit) in view.ended.items():
            first, _ = view.spans.get(who, (marker, marker))
            if commit and marker >= self._decided and first < start:
                raise RuleError(
                    f"I11: {self._name} was told to begin at {start}, the high watermark was "
                    f"{self._decided}: {who} began at {first}, and was committed at {marker}"
                )


def difference(own: Sequence[Batch], seen: Iterable[Batch], gaps: Sequence[range]) -> str:
    """What is wrong with `seen`, or "": it should be `own`, in order.

    gaps: offsets that retention had removed before they were read; any of these batches may be
    missing.
    """
    left = iter(own)
    for batch in seen:
        for known in left:
            if known == batch:
                break
            if not _is_gone(known, gaps):
                return f"is given {batch.header}, next is {known.header}"
        else:
            return f"is given {batch.header}, which is not for it, or comes again"
    missing = next((known for known in left if not _is_gone(known, gaps)), None)
    return "" if missing is None else f"is not given {missing.header}"


def _is_gone(batch: Batch, gaps: Sequence[range]) -> bool:
    return any(batch.base_offset < gap.stop and gap.start < batch.next_offset for gap in gaps)


def latest_readers(world: World) -> list[LatestReader]:
    """For each partition with data. Compacted ones are checked with committed readers only."""
    levels = [Isolation.COMMITTED] if world.compacts else list(Isolation)
    return [LatestReader(world, key, level) for key in world.data_keys for level in levels]
