"""A log that loses what its compaction had superseded something with, in a power loss of all.

Its leader lacks these records: it is cut to there, and must not lack what they had superseded.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.batch import Batch
from penstock.core.compaction.keymap import KeyMap
from penstock.core.compaction.plan import plan_compaction
from penstock.core.defect import raise_defect
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication.follower import BrokenLogError
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.topic import TopicConfig
from penstock.core.types import BrokerId, LeaderEpoch, Offset, PartitionState, ReplicaKey, TopicId
from penstock_broker.maintenance.compaction import Pass
from penstock_broker.store.interface import LogStore, PartitionWrite, Slot
from penstock_broker.store.layout import compacted_key
from penstock_broker.store.memory import MemoryLogStore
from penstock_broker.store.rocks import RocksLogStore

ME, LEADER = BrokerId(1), BrokerId(2)
ONE, TWO, THREE = LeaderEpoch(1), LeaderEpoch(2), LeaderEpoch(3)
RECORDS = ((b"k", b"synced everywhere"), (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"k", b"lost"))
END = Offset(len(RECORDS))
CONFIG = TopicConfig(min_cleanable_dirty_ratio=0.0)


def _batch(offset: int, key: bytes, value: bytes) -> Batch:
    """The last one is of another epoch: compaction does not merge it with the others."""
    columns = encode_columns([value], [key], timestamps_ms=0)
    return build_batch(columns).stamped(Offset(offset), ONE if offset < END - 1 else TWO, 0)


BATCHES = [_batch(offset, *record) for offset, record in enumerate(RECORDS)]


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    found: LogStore = MemoryLogStore()
    if request.param == "rocks":
        found = RocksLogStore(tmp_path / "log")
    yield found
    found.close()


@pytest.fixture
def slot(store: LogStore) -> Slot:
    """All of the records, committed."""
    slot = store.open_slot(ReplicaKey(TopicId("t"), 0))
    epochs = (c.EpochStart(ONE, Offset(0)), c.EpochStart(TWO, Offset(END - 1)))
    checkpoint = c.Checkpoint(TWO, END, Offset(0), epochs)
    store.write([PartitionWrite(slot, BATCHES, checkpoint)], sync=False)
    return slot


def _compact(store: LogStore, slot: Slot, end: Offset, *, finish: bool) -> None:
    """A pass of one chunk, or its part before the result."""
    facts = store.compaction_facts(slot, end)
    plan = plan_compaction(facts, CONFIG, 1)
    assert plan is not None
    job = Pass(store, slot, facts, plan, KeyMap(1 << 10), end)
    while job.read_keys():
        pass
    while (step := job.rewrite_next()) is not None:
        write = PartitionWrite(slot, rewrites=[step[1]])
        store.write([write], sync=False)
    if finish:
        store.write([PartitionWrite(slot, cleaned=job.finished(1))], sync=False)


class Follower:
    """The replica after the restart; carries out what its machine decides."""

    def __init__(self, store: LogStore, slot: Slot, *, intact: bool) -> None:
        self.store, self.slot = store, slot
        if not intact:  # as a broker does that may have lost unsynced writes
            lost = replace(store.recover(slot).checkpoint, high_watermark=c.UNPROMISED)
            store.write([PartitionWrite(slot, checkpoint=lost)], sync=True)
        self.machine = ReplicaMachine(ME, store.recover(slot), 0)
        self.started: list[Offset] = []
        both = (LEADER, ME)
        state = PartitionState(
            leader=LEADER, leader_epoch=THREE, isr=both, replicas=both, version=1
        )
        self.do(c.Assigned(state, c.ReplicaConfig()))

    def do(self, event: c.Event) -> None:
        ready = self.machine.handle(event, 0)
        raise_defect(ready.stopped)
        self.started += [m.from_offset for m in ready.messages if isinstance(m, fc.SendFollowStart)]
        if not ready.persist_id:
            return
        write = PartitionWrite(
            self.slot,
            ready.append,
            ready.checkpoint,
            truncate_to=ready.truncate_to,
            compacted_end=ready.compacted_end,
        )
        self.store.write([write], sync=True)
        if ready.truncate_to is not None:
            self.do(c.Truncated(self.store.recover(self.slot)))
        self.do(c.Persisted(ready.persist_id, synced=True))

    def copies(self, *batches: Batch) -> None:
        """From a leader that knows all of the records to be committed."""
        received = fc.BatchesReceived(
            leader=LEADER,
            leader_epoch=THREE,
            batches=batches,
            high_watermark=END,
            log_start_offset=Offset(0),
            sync_through=Offset(0),
        )
        self.do(received)

    def hears_of_a_log_that_ends_at(self, end: int) -> None:
        asked = len(self.started)
        answer = fc.EpochAnswered(
            leader=LEADER,
            leader_epoch=THREE,
            epoch=ONE,
            end_offset=Offset(end),
            log_start_offset=Offset(0),
        )
        self.do(answer)
        if len(self.started) == asked:
            self.do(answer)  # the log was cut, and it has asked once more

    def follows_a_log_that_ends_at(self, end: int) -> dict[bytes | None, bytes | None]:
        """The newest value of each key once it has copied the rest."""
        self.hears_of_a_log_that_ends_at(end)
        stored = self.store.read(self.slot, Offset(0), 1 << 20, END)
        copied = BATCHES[self.started[-1] : end]
        found = [one for batch in (*stored, *copied) for one in decode_batch(batch).records()]
        return {one.key: one.value for one in found}


@pytest.mark.parametrize("finish", [True, False])
def test_what_a_lost_record_had_superseded_is_copied_again(
    store: LogStore, slot: Slot, *, finish: bool
) -> None:
    _compact(store, slot, END, finish=finish)
    follower = Follower(store, slot, intact=False)
    found = follower.follows_a_log_that_ends_at(4)
    assert found == dict(RECORDS[:4]), "each record up to 4 was on the disks of all"


def test_who_had_not_copied_what_superseded_a_record_copies_all_again(
    store: LogStore, slot: Slot
) -> None:
    """Its leader has compacted its log, and loses the newest record with the power: nothing is cut
    here."""
    _compact(store, slot, END, finish=True)
    copy = store.open_slot(ReplicaKey(TopicId("copy"), 0))
    first = Follower(store, copy, intact=True)
    first.hears_of_a_log_that_ends_at(0)
    first.copies(*store.read(slot, Offset(0), 1 << 20, Offset(END - 1)))
    assert store.recover(copy).log_end_offset == END - 1
    found = Follower(store, copy, intact=False).follows_a_log_that_ends_at(4)
    assert found == dict(RECORDS[:4])


def test_a_kill_right_after_a_pass_does_not_make_committed_records_uncommitted(
    store: LogStore, slot: Slot
) -> None:
    """The high watermark is stored once a second. Its leader has lost writes with the power."""
    stored = replace(store.recover(slot).checkpoint, high_watermark=Offset(1))
    store.write([PartitionWrite(slot, checkpoint=stored)], sync=False)
    _compact(store, slot, END, finish=False)
    follower = Follower(store, slot, intact=True)
    follower.hears_of_a_log_that_ends_at(4)
    assert isinstance(follower.machine.error, BrokenLogError)
    assert "but offsets below 5 were committed" in follower.machine.error.message
    assert store.recover(slot).log_end_offset == END, "nothing is cut off"


def test_a_log_that_was_emptied_lacks_nothing(store: LogStore, slot: Slot) -> None:
    _compact(store, slot, END, finish=True)
    store.write([PartitionWrite(slot, truncate_to=Offset(0))], sync=False)
    assert store.recover(slot).compacted_end == 0
    store.write([PartitionWrite(slot, compacted_end=END)], sync=False)
    store.write([PartitionWrite(slot, truncate_to=Offset(0))], sync=False)
    assert store.recover(slot).compacted_end == 0


def test_who_leads_copies_no_more_of_what_superseded_its_records(
    store: LogStore, slot: Slot
) -> None:
    """By an unclean election: its own records from there on are not committed by that."""
    store.write([PartitionWrite(slot, compacted_end=Offset(9))], sync=False)
    leader = ReplicaMachine(ME, store.recover(slot), 0)
    alone = PartitionState(leader=ME, leader_epoch=THREE, isr=(ME,), replicas=(ME,), version=1)
    ready = leader.handle(c.Assigned(alone, c.ReplicaConfig()), 0)
    assert ready.persist_id
    write = PartitionWrite(slot, [_batch(END, b"d", b"4")], compacted_end=ready.compacted_end)
    store.write([write], sync=False)
    assert store.recover(slot).compacted_end == END


def test_how_far_a_log_is_compacted_is_known_after_a_restart(tmp_path: Path) -> None:
    key = ReplicaKey(TopicId("t"), 0)
    store = RocksLogStore(tmp_path / "log")
    slot = store.open_slot(key)
    store.write([PartitionWrite(slot, BATCHES, compacted_end=Offset(9))], sync=False)
    store.write([PartitionWrite(slot, compacted_end=Offset(7))], sync=False)
    store.close()
    store = RocksLogStore(tmp_path / "log")
    assert store.recover(slot).compacted_end == 9
    store.drop(slot)
    assert store._database.state.get(compacted_key(slot)) is None
    store.close()
