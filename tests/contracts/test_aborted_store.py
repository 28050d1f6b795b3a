"""Transactions in a log store: its index of aborted ones, and producers who use them.

Against RocksDB and its memory twin. The yardstick is what the headers say: every answer must be
the one that a look through all batches from the first ever would give.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchFlags, BatchHeader, build_marker
from penstock.core.compaction.plan import Cleaned, CleanPoint
from penstock.core.replication.contract import Checkpoint
from penstock.core.replication.producers import ProducerTable
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    LeaderEpoch,
    Offset,
    ProducerId,
    ReplicaKey,
    TopicId,
)
from penstock_broker.store import memory, rocks
from penstock_broker.store.interface import LogStore, PartitionWrite
from penstock_broker.store.memory import MemoryLogStore
from penstock_broker.store.options import StoreOptions
from penstock_broker.store.rocks import RocksLogStore

END = Offset(2**62)
RANGE_DELETES = StoreOptions(single_deletes_max=0)
A, B, C = (ProducerId(TRANSACTIONAL_PRODUCER_BIT | number) for number in (1, 2, 3))


class World:
    """A store, and the same log as a list of all batches that were ever appended and not cut."""

    def __init__(self, make: Callable[[], LogStore]) -> None:
        self._make = make
        self.store = make()
        self.key = ReplicaKey(TopicId("orders"), 0)
        self.slot = self.store.open_slot(self.key)
        self.log: list[Batch] = []
        self.log_start = 0
        self.high_watermark = 0
        self.epochs: dict[ProducerId, int] = {}
        self.sequences: dict[ProducerId, int] = {}

    @property
    def end(self) -> Offset:
        return self.log[-1].next_offset if self.log else Offset(0)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._make()

    # ------------------------------------------------------------ writing

    def data(self, producer: ProducerId, count: int = 1) -> Batch:
        """The producer's next records, of the transaction that is open or begins."""
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + count
        header = BatchHeader(
            record_count=count,
            first_timestamp_ms=1,
            max_timestamp_ms=1,
            uncompressed_bytes=0,
            crc=0,
            flags=BatchFlags.TRANSACTIONAL,
            producer_id=producer,
            producer_epoch=self.epochs.get(producer, 0),
            base_sequence=sequence,
        )
        return self._stamped(Batch(header, b""))

    def marker(self, producer: ProducerId, *, commit: bool = False) -> Batch:
        epoch = self.epochs.get(producer, 0)
        self.epochs[producer], self.sequences[producer] = epoch + 1, 0
        return self._stamped(build_marker(producer, epoch, commit=commit, timestamp_ms=1))

    def _stamped(self, batch: Batch) -> Batch:
        stamped = batch.stamped(self.end, LeaderEpoch(1), 0)
        self.log.append(stamped)
        return stamped

    def write(self, *batches: Batch, **what: Any) -> None:
        """As a replica does: with what the markers among them aborted."""
        known = self.aborted()
        own = [one for one in known if any(one.marker_offset == b.base_offset for b in batches)]
        write = PartitionWrite(self.slot, batches, aborted=own, **what)
        self.store.write([write], sync=False)

    def commit_up_to(self, offset: int) -> None:
        self.high_watermark = offset
        self.write(
            checkpoint=Checkpoint(LeaderEpoch(1), Offset(offset), Offset(self.log_start), ())
        )

    def cut(self, to: int, *batches: Batch) -> None:
        self.log = [batch for batch in self.log if batch.base_offset < to or batch in batches]
        self.write(*batches, truncate_to=Offset(to))
        table = self.table()
        for producer in (A, B, C):
            entry = table.get(producer)
            self.epochs[producer] = 0 if entry is None else entry.producer_epoch
            self.sequences[producer] = (
                entry.batches[-1].last_sequence + 1 if entry is not None and entry.batches else 0
            )

    def retain_from(self, log_start: int) -> None:
        self.log_start = max(self.log_start, log_start)
        self.write(log_start_offset=Offset(log_start))

    # ------------------------------------------------------------ the yardstick

    def table(self) -> ProducerTable:
        table = ProducerTable()
        for batch in self.log:
            table.apply(batch.header)
        return table

    def aborted(self) -> list[AbortedTransaction]:
        table = ProducerTable()
        found = [table.apply(batch.header) for batch in self.log]
        return [one for one in found if one is not None]

    def check(self) -> None:
        """Every question about aborted transactions, and what recovery finds of them."""
        offsets = sorted({0, self.log_start, *(b.base_offset for b in self.log), self.end})
        known = self.aborted()
        for start in offsets:
            for end in (*offsets, END):
                expected = [
                    one
                    for one in known
                    if one.marker_offset >= max(start, self.log_start) and one.first_offset < end
                ]
                found = self.store.aborted(self.slot, Offset(start), Offset(end))
                assert list(found) == expected, (start, end)
        recovered = self.store.recover(self.slot)
        assert set(recovered.producers) == set(self.table().snapshot())
        stored = [one for one in known if one.marker_offset >= self.log_start]
        assert list(recovered.aborted) == stored


@pytest.fixture(params=["memory", "rocks", "rocks-range-deletes"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    kept = MemoryLogStore()
    makers: dict[str, Callable[[], LogStore]] = {
        "memory": lambda: kept,
        "rocks": lambda: RocksLogStore(tmp_path / "log"),
        "rocks-range-deletes": lambda: RocksLogStore(tmp_path / "log", RANGE_DELETES),
    }
    made = World(makers[request.param])
    yield made
    made.store.close()


def test_an_aborted_transaction_is_found_by_the_offsets_it_covers(world: World) -> None:
    world.write(world.data(A, 5), world.data(B, 5), world.marker(A), world.marker(B, commit=True))
    (aborted,) = world.store.aborted(world.slot, Offset(0), END)
    assert aborted == AbortedTransaction(
        marker_offset=Offset(10),
        first_offset=Offset(0),
        producer_id=A,
        producer_epoch=0,
        stable_offset=Offset(5),
    )
    assert world.store.aborted(world.slot, Offset(10), END) == (aborted,), "its marker is there"
    assert world.store.aborted(world.slot, Offset(11), END) == ()
    world.check()
    world.reopen()
    world.check()


def test_slots_do_not_see_each_others_transactions_and_a_dropped_one_leaves_none(
    world: World,
) -> None:
    world.write(world.data(A), world.marker(A))
    other = world.store.open_slot(ReplicaKey(TopicId("other"), 0))
    assert world.store.aborted(other, Offset(0), END) == ()
    world.store.drop(world.slot)
    assert world.store.aborted(world.slot, Offset(0), END) == ()
    assert world.store.aborted(other, Offset(0), END) == ()


def test_the_newest_are_recovered_and_no_more_than_are_remembered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(world.data(A), world.marker(A))
    between = world.store.open_slot(ReplicaKey(TopicId("other"), 0))
    for _ in range(3):
        world.write(world.data(A), world.marker(A))
    for module in (rocks, memory):
        monkeypatch.setattr(module, "NEWEST_MAX", 3)
    assert list(world.store.recover(world.slot).aborted) == world.aborted()[-3:]
    assert world.store.recover(between).aborted == ()


@pytest.mark.parametrize("to", [0, 1, 2, 3, 4, 5])
def test_a_marker_that_is_cut_takes_its_entry_along(world: World, to: int) -> None:
    """Also when another marker is written in its place, by the same write."""
    world.write(world.data(A), world.data(B), world.marker(A), world.data(A), world.marker(A))
    world.cut(to)
    world.check()
    world.reopen()
    world.check()


def test_what_a_truncating_write_appends_is_found_and_not_what_it_cut(world: World) -> None:
    world.write(world.data(A), world.data(B), world.marker(A))
    world.log = world.log[:2]
    world.epochs[A], world.sequences[A] = 0, 1
    world.cut(2, world.marker(B))
    (aborted,) = world.store.aborted(world.slot, Offset(0), END)
    assert (aborted.marker_offset, aborted.producer_id) == (2, B)
    world.check()


def test_several_writes_of_one_call_build_on_each_other(world: World) -> None:
    first, second = [world.data(A), world.marker(A)], [world.data(A), world.marker(A)]
    entries = world.aborted()
    slot = world.slot
    world.store.write(
        [
            PartitionWrite(slot, first, aborted=entries[:1]),
            PartitionWrite(slot, second, aborted=entries[1:]),
            PartitionWrite(slot, truncate_to=Offset(3)),
        ],
        sync=False,
    )
    world.log = world.log[:3]
    world.check()


def test_retention_takes_entries_before_the_log_start(world: World) -> None:
    for _ in range(4):
        world.write(world.data(A, 3), world.marker(A))
    world.commit_up_to(world.end)
    for log_start in (1, 3, 4, 9, 12, 16):
        world.retain_from(log_start)
        world.check()
    assert world.store.aborted(world.slot, Offset(0), END) == ()


def test_a_log_that_is_emptied_forgets_them_all(world: World) -> None:
    world.write(world.data(A), world.marker(A), world.data(A), world.marker(A))
    world.commit_up_to(3)
    world.retain_from(2)
    world.store.write(
        [
            PartitionWrite(
                world.slot,
                truncate_to=Offset(0),
                checkpoint=Checkpoint(LeaderEpoch(2), Offset(0), Offset(0), ()),
                producers=(),
            )
        ],
        sync=False,
    )
    assert world.store.aborted(world.slot, Offset(0), END) == ()
    assert world.store.recover(world.slot).producers == ()


def test_an_open_transaction_is_recovered_from_a_snapshot_without_its_batches(
    world: World,
) -> None:
    world.write(world.data(A), world.data(B), world.data(C), world.marker(B), world.marker(C))
    world.commit_up_to(world.end)
    world.write(producers=world.table().snapshot())
    world.retain_from(3)
    world.reopen()
    entries = {entry.producer_id: entry for entry in world.store.recover(world.slot).producers}
    assert entries[A].open_offset == 0
    assert (entries[B].marker_offset, entries[B].ended_first_offset) == (3, 1)
    world.write(world.marker(A))
    world.check()


# ------------------------------------------------------------------ any life

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(
                st.tuples(st.sampled_from([A, B, C]), st.sampled_from("ddca")),
                min_size=1,
                max_size=5,
            ),
        ),
        st.tuples(st.just("cut"), st.integers(0, 6)),
        st.tuples(st.just("retain"), st.integers(0, 9)),
        st.tuples(st.just("watermark"), st.integers(0, 8)),
        st.tuples(st.just("snapshot"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=20,
)


@pytest.mark.parametrize("kind", ["memory", "rocks", "rocks-range-deletes"])
@settings(
    max_examples=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=steps)
def test_any_life_leaves_what_the_headers_say(
    kind: str, steps: list[tuple[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = MemoryLogStore()
    path = tmp_path_factory.mktemp("life") / "log"
    options = RANGE_DELETES if kind == "rocks-range-deletes" else StoreOptions()
    world = World(lambda: kept if kind == "memory" else RocksLogStore(path, options))
    try:
        for what, how in steps:
            live(world, what, how)
            world.check()
    finally:
        world.store.close()


def live(world: World, what: str, how: object) -> None:
    held = [batch for batch in world.log if batch.next_offset > world.log_start]
    number = how if isinstance(how, int) else 0
    match what:
        case "append":
            assert isinstance(how, list)
            made = [
                world.data(producer, 2)
                if kind == "d"
                else world.marker(producer, commit=kind == "c")
                for producer, kind in how
            ]
            world.write(*made)
        case "cut":
            ends = [b.base_offset for b in held if b.base_offset >= world.high_watermark]
            if ends:
                world.cut(ends[-min(len(ends), number + 1)])
        case "retain":
            world.retain_from(min(world.high_watermark, world.log_start + number))
        case "watermark":
            ends = [b.next_offset for b in held if b.next_offset >= world.high_watermark]
            if ends:
                world.commit_up_to(ends[number % len(ends)])
        case "snapshot":
            world.write(producers=world.table().snapshot())
        case _:
            world.reopen()


def test_a_finished_pass_forgets_what_it_has_emptied(world: World) -> None:
    world.write(world.data(A), world.marker(A))
    world.write(world.data(B), world.data(C), world.marker(B))
    world.write(world.marker(C))
    before = world.store.aborted(world.slot, Offset(0), END)
    assert [one.marker_offset for one in before] == [1, 4, 5]
    world.store.write(
        [PartitionWrite(world.slot, cleaned=Cleaned((CleanPoint(Offset(5), 1),)))], sync=False
    )
    world.reopen()
    left = world.store.aborted(world.slot, Offset(0), END)
    assert [one.marker_offset for one in left] == [5], "a marker behind the pass is kept"
