"""Compaction of a broker in the simulator: production passes, step by step, as in the shell.

    a replica, who copies it ─▶ plan_compaction ─▶ Pass: keys ─▶ rewrites, newest first ─▶ result
                                        before the first marker is removed: MarkersSwept   stored

Between any two steps the world continues: the log is truncated or starts over, the process dies,
the disk is full. The next pass finds what an interrupted one left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.compaction.keymap import KeyMap
from penstock.core.compaction.plan import Cleaned, plan_compaction
from penstock.core.replication.contract import MarkersSwept, Marks
from penstock.core.topic import TopicConfig
from penstock.core.types import Offset
from penstock_broker.maintenance.compaction import Pass
from penstock_broker.store.interface import Rewrite

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_KEYS: Final = (b"a", b"b", b"c", b"d", b"e", b"f")
_MORE_KEYS: Final = tuple(f"key-{number}".encode() for number in range(24))
"""In some histories in which records are lost: what supersedes them comes late."""
_KEY_MAP_BYTES: Final = 1 << 20
_NULLS: Final = 0.3


def some_keys(world: World, count: int) -> list[bytes | None] | None:
    """Keys for records; few different ones, so that most are superseded soon."""
    if not world.compacts:
        return None
    many = world.is_dark and world.seed % 4 > 1
    keys = _MORE_KEYS if many else _KEYS
    return [world.scheduler.random.choice(keys) for _ in range(count)]


def some_values(world: World, texts: list[str]) -> list[bytes | None]:
    """The texts; in a compacted topic some are null values instead, which delete their keys.

    The first one stays: batches are told apart by it.
    """
    if not world.compacts:
        return [text.encode() for text in texts]
    chance = world.null_values
    return [
        None if index and chance.random() < _NULLS else text.encode()
        for index, text in enumerate(texts)
    ]


def compacted_up_to(marks: Marks) -> Offset:
    """Compaction never touches what is undecided."""
    return marks.last_stable_offset


class SimPass(Pass):
    """Virtual time does not pass within a step."""

    def _breathe(self) -> None:
        pass


class Compactor:
    """The compactor of one run of a broker: one log after another."""

    def __init__(self, broker: SimBroker) -> None:
        chance = broker.world.scheduler.random
        self._broker = broker
        self._incarnation = broker.incarnation
        self._pause_ms = chance.choice((10, 40, 120))
        self._config = TopicConfig(
            min_cleanable_dirty_ratio=0.01, delete_retention_ms=chance.choice((0, 240, 1_200))
        )
        self._replica: Replica | None = None
        self._truncations = 0

    def start(self) -> None:
        """Begins with the next log after a while."""
        scheduler = self._broker.world.scheduler
        self._after(scheduler.between(0.3, 2) * self._pause_ms, self._begin)

    def _after(self, delay_ms: float, step: Callable[[], None]) -> None:
        self._broker.world.scheduler.after(delay_ms, self._run, step)

    def _run(self, step: Callable[[], None]) -> None:
        broker = self._broker
        if broker.up and broker.incarnation == self._incarnation:
            step()

    def _soon(self, step: Callable[[], None]) -> None:
        self._after(self._broker.world.scheduler.between(0.05, 4), step)

    def _now_ms(self) -> int:
        return self._broker.world.scheduler.wall_ms

    # ------------------------------------------------------------ a pass

    def _begin(self) -> None:
        broker, world = self._broker, self._broker.world
        replica = broker.replicas.get(world.scheduler.random.choice(world.keys))
        if replica is None or replica.machine.error is not None:
            self.start()
            return
        store, slot = broker.disk.store, replica.slot
        end = compacted_up_to(replica.machine.marks)
        facts = store.compaction_facts(slot, end)
        plan = plan_compaction(facts, self._config, self._now_ms(), replica.machine.copied_to)
        if plan is None:
            self.start()
            return
        world.compaction_checks.planned(broker, replica, plan)
        self._replica, self._truncations = replica, replica.truncations
        world.scheduler.note(broker.name, "compacts", replica.key, plan)
        keys, size = KeyMap(_KEY_MAP_BYTES), world.scheduler.random.choice((300, 1000, 5000))
        job = SimPass(store, slot, facts, plan, keys, end, chunk_bytes=size)
        self._soon(lambda: self._read_keys(job))

    def _read_keys(self, job: Pass) -> None:
        if job.read_keys():
            self._soon(lambda: self._read_keys(job))
        else:
            self._soon(lambda: self._rewrite_next(job))

    def _rewrite_next(self, job: Pass) -> None:
        step = job.rewrite_next()
        if step is None:
            cleaned = job.finished(self._now_ms())
            if cleaned is None:
                self.start()
            else:
                assert self._replica is not None
                job.forget_replaced(self._replica.recent)
                self._write(None, cleaned, self.start)
            return
        rewrite = step[1]
        swept = job.cleaned.before_markers_go(job.plan)
        if not job.rewriter.sweeps_markers:
            self._put(job, rewrite)
            return

        def told() -> None:
            if not self._is_as_planned():
                self.start()
                return
            assert self._replica is not None
            job.cleaned = swept
            self._broker.handle(self._replica, MarkersSwept(job.plan.tombstones_end))
            self._put(job, rewrite)

        if swept == job.cleaned:
            told()
        else:
            self._write(None, swept, told)

    def _put(self, job: Pass, rewrite: Rewrite) -> None:
        """Goes on with the next chunk then, unless a move has begun that forbids it."""
        assert self._replica is not None
        if job.plan.may_go_on(self._replica.machine.copied_to):
            self._write(rewrite, None, lambda: self._rewrite_next(job))
        else:
            self.start()

    def _write(
        self, rewrite: Rewrite | None, cleaned: Cleaned | None, then: Callable[[], None]
    ) -> None:
        """Calls `then` when it is stored; ends the pass if the log has changed meanwhile."""
        if not self._is_as_planned():
            self.start()
            return
        assert self._replica is not None
        self._broker.rewrite(
            self._replica, rewrite, cleaned, lambda done: self._soon(then if done else self.start)
        )

    def _is_as_planned(self) -> bool:
        """The log is there, and was not truncated since."""
        replica = self._replica
        assert replica is not None
        is_same = self._broker.replicas.get(replica.key) is replica
        return is_same and replica.truncations == self._truncations and not replica.machine.error
