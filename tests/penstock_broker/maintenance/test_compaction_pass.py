"""Passes over a real store, some of them cut off in the middle, against a dictionary."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.compaction.keymap import ENTRY_BYTES, KeyMap
from penstock.core.compaction.plan import plan_compaction
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.replication.contract import Checkpoint
from penstock.core.replication.producers import ProducerTable
from penstock.core.topic import TopicConfig
from penstock.core.types import LeaderEpoch, Offset, ProducerId, ReplicaKey, TopicId
from penstock_broker.maintenance.compaction import Pass
from penstock_broker.store.interface import LogStore, PartitionWrite, Slot
from penstock_broker.store.memory import MemoryLogStore
from penstock_broker.store.rocks import RocksLogStore

END = Offset(2**62)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """Of a few batches, so that a pass has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock_broker.maintenance.compaction._CHUNK_BYTES", 300)
        yield


CONFIG = TopicConfig(min_cleanable_dirty_ratio=0.0, delete_retention_ms=5)


@dataclass
class Life:
    """One log, and what a dictionary says of it."""

    store: LogStore
    slot: Slot
    end: int = 0
    start: int = 0
    now_ms: int = 0
    exact: bool = True
    """No pass was cut off since one that went through all of the log."""
    table: ProducerTable = field(default_factory=ProducerTable)
    sequences: dict[int, int] = field(default_factory=dict)
    written: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)

    def append(self, producer: int, pairs: list[tuple[bytes, bytes | None]]) -> None:
        keys, values = zip(*pairs, strict=True)
        sequence = self.sequences.get(producer, 0)
        batch = build_batch(
            encode_columns(list(values), list(keys), timestamps_ms=self.now_ms),
            producer_id=ProducerId(producer),
            producer_epoch=-1 if producer < 0 else 0,
            base_sequence=-1 if producer < 0 else sequence,
        ).stamped(Offset(self.end), LeaderEpoch(1 + self.end // 20), 0)
        self.sequences[producer] = sequence + len(pairs)
        self.table.apply(batch.header)
        self.written += [(self.end + n, key, value) for n, (key, value) in enumerate(pairs)]
        self.end += len(pairs)
        checkpoint = Checkpoint(LeaderEpoch(1), Offset(self.end), Offset(self.start), ())
        self.store.write([PartitionWrite(self.slot, [batch], checkpoint)], sync=False)

    def snapshot(self) -> None:
        self.store.write([PartitionWrite(self.slot, producers=self.table.snapshot())], sync=False)

    def retain_from(self, offset: int) -> None:
        self.start = max(self.start, min(offset, self.end))
        self.store.write(
            [PartitionWrite(self.slot, log_start_offset=Offset(self.start))], sync=False
        )

    def compact(self, keys: int, steps: int) -> bool:
        """A pass that is cut off after so many chunks; True if it was finished or none was due."""
        facts = self.store.compaction_facts(self.slot, Offset(self.end))
        plan = plan_compaction(facts, CONFIG, self.now_ms)
        if plan is None:
            return True
        job = Pass(self.store, self.slot, facts, plan, KeyMap(keys * ENTRY_BYTES), Offset(self.end))
        while job.read_keys():
            pass
        for _ in range(steps):
            step = job.rewrite_next()
            if step is None:
                cleaned = facts.cleaned.after(
                    job.plan, job.rewriter.statistics.tombstones, self.now_ms
                )
                self.store.write([PartitionWrite(self.slot, cleaned=cleaned)], sync=False)
                self.exact = job.plan.end == self.end
                return True
            self.store.write([PartitionWrite(self.slot, rewrites=[step[1]])], sync=False)
            self.exact = False
        return False

    def check(self) -> None:
        batches = self.store.read(self.slot, Offset(self.start), 1 << 40, END)
        offset = batches[0].base_offset if batches else self.end
        for batch in batches:
            assert batch.base_offset == offset, "no gaps between batches"
            offset = batch.next_offset
        assert offset == self.end
        records = [r for b in batches for r in decode_batch(b).records() if r.offset >= self.start]
        known = {offset: (key, value) for offset, key, value in self.written}
        assert all(known[record.offset] == (record.key, record.value) for record in records)
        expected = {key: value for offset, key, value in self.written if offset >= self.start}
        seen = {record.key: record.value for record in records}
        assert {k: v for k, v in seen.items() if v is not None} == {
            k: v for k, v in expected.items() if v is not None
        }
        recovered = {p.producer_id: p for p in self.store.recover(self.slot).producers}
        for entry in self.table.snapshot():
            found = recovered[entry.producer_id]
            assert (found.producer_epoch, found.batches) == (entry.producer_epoch, entry.batches)
        if self.exact:
            held = self.store.read(self.slot, Offset(0), 1 << 40, END)
            assert self.store.size_bytes(self.slot) == sum(batch.size_bytes for batch in held)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.integers(-1, 2),
            st.lists(
                st.tuples(
                    st.sampled_from([b"a", b"b", b"c", b"d" * 30]),
                    st.one_of(st.none(), st.binary(max_size=4)),
                ),
                min_size=1,
                max_size=4,
            ),
        ),
        st.tuples(st.just("compact"), st.integers(1, 6), st.integers(0, 6)),
        st.tuples(st.just("retain"), st.integers(0, 60)),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("time")),
    ),
    max_size=40,
)


def live(life: Life, steps: list[tuple[object, ...]]) -> None:
    for step in steps:
        match step:
            case ("append", int(producer), list(pairs)):
                life.append(producer, pairs)
            case ("compact", int(keys), int(count)):
                life.compact(keys, count)
            case ("retain", int(offset)):
                life.retain_from(offset)
            case ("snapshot",):
                life.snapshot()
            case _:
                life.now_ms += 3
        life.check()
    while True:
        life.now_ms += 5
        facts = life.store.compaction_facts(life.slot, Offset(life.end))
        if plan_compaction(facts, CONFIG, life.now_ms) is None:
            break
        assert life.compact(1000, 10_000)
        life.check()
    life.append(-1, [(b"a", b"last")])
    assert life.compact(1000, 10_000)
    assert life.exact
    life.check()
    held = life.store.read(life.slot, Offset(0), 1 << 40, END)
    kept = [r for b in held for r in decode_batch(b).records()]
    assert len({record.key for record in kept}) == len(kept)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_passes_that_end_or_do_not_keep_every_newest_value(steps: list[tuple[object, ...]]) -> None:
    store = MemoryLogStore()
    live(Life(store, store.open_slot(ReplicaKey(TopicId("t"), 0))), steps)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_the_same_on_disk(steps: list[tuple[object, ...]]) -> None:
    with TemporaryDirectory() as folder:
        store = RocksLogStore(Path(folder) / "log")
        try:
            live(Life(store, store.open_slot(ReplicaKey(TopicId("t"), 0))), steps)
        finally:
            store.close()
