"""Passes over logs with transactions, some cut off: readers see no difference (I11, I20)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchFlags, build_marker
from penstock.core.compaction.keymap import ENTRY_BYTES, KeyMap
from penstock.core.compaction.outcomes import Outcomes
from penstock.core.compaction.plan import plan_compaction
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.topic import TopicConfig
from penstock.core.types import LeaderEpoch, Offset, ProducerId, ReplicaKey, TopicId
from penstock_broker.maintenance.compaction import Pass
from penstock_broker.store.interface import LogStore, PartitionWrite, Slot
from penstock_broker.store.memory import MemoryLogStore
from penstock_broker.store.rocks import RocksLogStore

END = Offset(2**62)
RETENTION_MS = 100
CONFIG = TopicConfig(min_cleanable_dirty_ratio=0.0, delete_retention_ms=RETENTION_MS)
Newest = dict[bytes | None, bytes | None]


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """Of a few batches, so that a pass has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock_broker.maintenance.compaction._CHUNK_BYTES", 300)
        yield


@dataclass
class Life:
    """One log, the transactions that are open on it, and what committed ones wrote."""

    store: LogStore
    slot: Slot
    end: int = 0
    now_ms: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, tuple[int, list[tuple[int, bytes, bytes | None]]]] = field(default_factory=dict)
    committed: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)

    @property
    def stable(self) -> Offset:
        return Offset(min((first for first, _ in self.open.values()), default=self.end))

    def send(self, producer: int, key: bytes, value: bytes | None) -> None:
        first, records = self.open.setdefault(producer, (self.end, []))
        columns = encode_columns([value], [key], timestamps_ms=self.now_ms)
        batch = build_batch(
            columns,
            producer_id=ProducerId(producer),
            producer_epoch=self.epochs.setdefault(producer, 0),
            base_sequence=len(records),
            flags=BatchFlags.TRANSACTIONAL,
        )
        records.append((self.end, key, value))
        assert first <= self.end
        self._write(batch)

    def finish(self, producer: int, *, commit: bool) -> None:
        if producer not in self.open:
            return
        first, records = self.open.pop(producer)
        epoch = self.epochs[producer]
        self.epochs[producer] = epoch + 1
        marker = build_marker(ProducerId(producer), epoch, commit=commit, timestamp_ms=self.now_ms)
        if commit:
            self.committed += records
            self._write(marker)
            return
        aborted = AbortedTransaction(
            marker_offset=Offset(self.end),
            first_offset=Offset(first),
            producer_id=ProducerId(producer),
            producer_epoch=epoch,
            stable_offset=Offset(min((f for f, _ in self.open.values()), default=self.end + 1)),
        )
        self._write(marker, aborted)

    def _write(self, batch: Batch, *aborted: AbortedTransaction) -> None:
        stamped = batch.stamped(Offset(self.end), LeaderEpoch(1), 0)
        self.end += 1
        self.store.write([PartitionWrite(self.slot, [stamped], aborted=aborted)], sync=False)

    def compact(self, steps: int) -> None:
        """A pass that is cut off after so many chunks."""
        facts = self.store.compaction_facts(self.slot, self.stable)
        plan = plan_compaction(facts, CONFIG, self.now_ms)
        if plan is None:
            return
        keys = KeyMap(1000 * ENTRY_BYTES)
        job = Pass(self.store, self.slot, facts, plan, keys, self.stable)
        while job.read_keys():
            pass
        for _ in range(steps):
            step = job.rewrite_next()
            if step is None:
                cleaned = job.finished(self.now_ms)
                self.store.write([PartitionWrite(self.slot, cleaned=cleaned)], sync=False)
                return
            self.store.write([PartitionWrite(self.slot, rewrites=[step[1]])], sync=False)

    def batches(self) -> list[Batch]:
        return self.store.read(self.slot, Offset(0), 1 << 40, END)

    def check(self) -> None:
        """A read_committed reader sees the newest committed value of every key."""
        outcomes = Outcomes(self.store.aborted(self.slot, Offset(0), self.stable))
        below = [b for b in self.batches() if b.base_offset < self.stable]
        seen: Newest = {
            record.key: record.value
            for batch in below
            if not batch.header.is_control and not outcomes.aborted(batch.header)
            for record in decode_batch(batch).records()
        }
        expected: Newest = {
            key: value for offset, key, value in sorted(self.committed) if offset < self.stable
        }
        assert living(seen) == living(expected)
        offset = 0
        for batch in self.batches():
            assert batch.base_offset == offset, "no gaps between batches"
            offset = batch.next_offset
        assert offset == self.end


def living(state: Newest) -> Newest:
    return {key: value for key, value in state.items() if value is not None}


SEND = st.tuples(
    st.just("send"),
    st.integers(0, 2),
    st.sampled_from([b"a", b"b", b"c"]),
    st.one_of(st.none(), st.binary(max_size=4)),
)
FINISH = st.tuples(st.just("finish"), st.integers(0, 2), st.booleans())
STEPS = st.lists(
    st.one_of(
        SEND,
        SEND,
        FINISH,
        FINISH,
        st.tuples(st.just("compact"), st.integers(0, 8)),
        st.tuples(st.just("time")),
    ),
    min_size=20,
    max_size=60,
)


def live(life: Life, steps: list[tuple[object, ...]]) -> None:
    for step in steps:
        match step:
            case ("send", int(producer), bytes(key), value):
                assert value is None or isinstance(value, bytes)
                life.send(producer, key, value)
            case ("finish", int(producer), bool(commit)):
                life.finish(producer, commit=commit)
            case ("compact", int(count)):
                life.compact(count)
            case _:
                life.now_ms += RETENTION_MS // 2
        life.check()
    for producer in tuple(life.open):
        life.finish(producer, commit=producer != 1)
    for _ in range(4):
        life.now_ms += RETENTION_MS
        life.compact(10_000)
        life.check()
    assert not any(batch.header.is_transactional for batch in life.batches())
    assert life.store.aborted(life.slot, Offset(0), END) == ()


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_readers_of_what_is_committed_see_no_difference(steps: list[tuple[object, ...]]) -> None:
    store = MemoryLogStore()
    live(Life(store, store.open_slot(ReplicaKey(TopicId("t"), 0))), steps)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_the_same_on_disk(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]]
) -> None:
    store = RocksLogStore(Path(tmp_path_factory.mktemp("store")) / "log")
    try:
        live(Life(store, store.open_slot(ReplicaKey(TopicId("t"), 0))), steps)
    finally:
        store.close()


def test_a_marker_outlives_the_pass_of_its_data() -> None:
    store = MemoryLogStore()
    life = Life(store, store.open_slot(ReplicaKey(TopicId("t"), 0)))
    life.send(1, b"a", b"1")
    life.finish(1, commit=True)
    life.compact(100)
    assert [batch.header.flags for batch in life.batches()][-1] & BatchFlags.COMMIT
    life.compact(100)
    assert any(batch.header.is_marker for batch in life.batches()), "its time has not come"
    life.now_ms += RETENTION_MS
    life.compact(100)
    assert not any(batch.header.is_marker for batch in life.batches())


def test_the_outcome_is_known_also_where_the_marker_lies_behind_the_pass() -> None:
    store = MemoryLogStore()
    life = Life(store, store.open_slot(ReplicaKey(TopicId("t"), 0)))
    life.send(1, b"a", b"aborted")
    for number in range(3):
        life.send(2, b"k%d" % number, b"v")
    life.finish(2, commit=True)
    life.finish(1, commit=False)
    facts = store.compaction_facts(life.slot, Offset(2))
    plan = plan_compaction(facts, CONFIG, life.now_ms)
    assert plan is not None
    job = Pass(store, life.slot, facts, plan, KeyMap(1000 * ENTRY_BYTES), life.stable)
    while job.read_keys():
        pass
    step = job.rewrite_next()
    assert step is not None
    (emptied, _) = step[1].batches
    assert list(decode_batch(emptied).records()) == []


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_what_was_aborted_stays_known_where_deletion_overtook_a_pass(
    tmp_path: Path, on_disk: bool
) -> None:
    """The store left out what was made of a chunk, whose rest still has flags of transactions."""
    store: LogStore = RocksLogStore(tmp_path / "log") if on_disk else MemoryLogStore()
    life = Life(store, store.open_slot(ReplicaKey(TopicId("t"), 0)))
    life.send(0, b"a", b"committed")
    life.finish(0, commit=True)
    life.send(1, b"b", b"aborted")
    life.finish(1, commit=False)
    facts = store.compaction_facts(life.slot, life.stable)
    plan = plan_compaction(facts, CONFIG, life.now_ms)
    assert plan is not None
    keys = KeyMap(1000 * ENTRY_BYTES)
    job = Pass(store, life.slot, facts, plan, keys, life.stable, chunk_bytes=1 << 20)
    while job.read_keys():
        pass
    step = job.rewrite_next()
    assert step is not None
    store.write([PartitionWrite(life.slot, log_start_offset=Offset(1))], sync=False)
    store.write([PartitionWrite(life.slot, rewrites=[step[1]])], sync=False)
    [left] = [b for b in store.read(life.slot, Offset(1), 1 << 20, END) if b.base_offset == 2]
    assert left.header.is_transactional
    assert job.rewrite_next() is None
    assert job.finished(life.now_ms) is None, "else the abort would be forgotten"
    life.compact(100)
    [left] = [b for b in store.read(life.slot, Offset(1), 1 << 20, END) if b.base_offset == 2]
    assert not left.header.is_transactional
    assert not list(decode_batch(left).records())
    store.close()
