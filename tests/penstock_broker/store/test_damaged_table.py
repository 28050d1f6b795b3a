"""A damaged table of RocksDB costs the logs that are in it, and not all writes of the broker."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.wire import make_batch

from penstock.core.types import LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.damaged_table import DamagedTable
from penstock_broker.store.interface import PartitionWrite, Slot
from penstock_broker.store.options import StoreOptions
from penstock_broker.store.rocks import RocksLogStore

SMALL = StoreOptions(write_buffer_bytes=256 << 10)
"""A table every few hundred batches, which are in it: they are too small for a blob file."""
KEYS = [ReplicaKey(TopicId("t"), partition) for partition in range(4)]
END = Offset(2**62)
STEP = 100


class Logs:
    """Four logs that are written together, so that each table has some of all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end = 0
        self.store = RocksLogStore(path, SMALL)
        self.slots = [self.store.open_slot(key) for key in KEYS]

    def again(self) -> None:
        self.store.close()
        self.store = RocksLogStore(self.path, SMALL)

    def write(self, batches: int) -> None:
        for _ in range(batches):
            one = make_batch([b"<small-%08d>" % self.end * 20]).stamped(
                Offset(self.end), LeaderEpoch(1), 0
            )
            self.store.write([PartitionWrite(slot, [one]) for slot in self.slots], sync=False)
            self.end += 1

    def to_tables(self) -> None:
        """As RocksDB does when a write buffer is full, or the store is closed. The next write says
        if that ended all writes."""
        for family in (self.store._database.batches, self.store._database.state):
            with suppress(Exception):
                family.flush()

    def read(self, slot: Slot, offset: int) -> None:
        (found,) = self.store.read(slot, Offset(offset), 1, END)
        assert found.base_offset == offset

    def read_all(self, slot: Slot) -> None:
        for offset in range(self.end):
            self.read(slot, offset)

    def make_tables(self, count: int) -> None:
        """Enough for merges of all there are, if more than four; if more than 36, writes wait until
        RocksDB has merged some."""
        for _ in range(count):
            self.write(STEP)
            self.to_tables()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    """One of three tables of batches is damaged."""
    logs = Logs(tmp_path / "log")
    for _ in range(3):
        logs.write(STEP)
        logs.to_tables()
    logs.store.close()
    tables = sorted(path for path in logs.path.glob("*.sst") if b"<small-" in path.read_bytes())
    assert len(tables) == 3, "of batches; the index has others"
    stored = bytearray(tables[1].read_bytes())
    for position in range(len(stored) // 3, 2 * len(stored) // 3, 500):
        stored[position] ^= 0x10
    tables[1].write_bytes(stored)
    logs.store = RocksLogStore(logs.path, SMALL)
    yield logs
    logs.store.close()


def test_a_merge_that_meets_one_ends_writes_once_and_not_after_each_start(logs: Logs) -> None:
    assert (logs.store.damaged_table, logs.store.load().damaged_table) == ("", False)
    with pytest.raises(ClusterError, match="Corruption") as caught:
        logs.make_tables(60)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    for _ in range(2):
        logs.again()
        logs.end = int(logs.store.recover(logs.slots[0]).log_end_offset)
        assert ".sst" in logs.store.damaged_table
        assert logs.store.load().damaged_table
        logs.make_tables(20)
        logs.store.reclaim()
    for slot in logs.slots:
        logs.store.drop(slot)
    logs.end, logs.slots = 0, [logs.store.open_slot(key) for key in KEYS]
    logs.make_tables(20)
    for offset in range(logs.end):
        logs.read(logs.slots[offset % 4], offset)  # copied again, they are in other tables


def test_a_call_that_meets_one_first_ends_no_write_at_all(logs: Logs) -> None:
    with pytest.raises(ClusterError, match="Corruption"):
        logs.read_all(logs.slots[1])
    logs.make_tables(20)
    logs.again()
    assert logs.store.damaged_table


def test_what_is_known_of_one_stays_known(tmp_path: Path) -> None:
    stops: list[str] = []
    table = DamagedTable(tmp_path)
    assert table.what == ""
    for what in ("Corruption: 000012.sst\n", "Corruption: 000013.sst"):
        table.met(what.strip(), lambda: stops.append("asked"))
    assert (table.what, stops) == ("Corruption: 000012.sst", ["asked"])
    assert DamagedTable(tmp_path).what == "Corruption: 000012.sst"


def test_one_that_cannot_be_noted_stops_merges_all_the_same(tmp_path: Path) -> None:
    stops: list[str] = []
    table = DamagedTable(tmp_path / "gone")
    table.met("Corruption: 000012.sst", lambda: stops.append("asked"))
    assert (table.what, stops) == ("Corruption: 000012.sst", ["asked"])
    assert DamagedTable(tmp_path / "gone").what == "", "the next run meets it again"


def no_sector_of_it_is_readable(table: Path) -> None:
    """Puts a file whose first gigabytes answer EIO in the place of one that this process has
    open."""
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and entry.readlink() == table:
            unmapped = os.open("/proc/self/mem", os.O_RDONLY)
            os.dup2(unmapped, int(entry.name))
            os.close(unmapped)
            return
    raise AssertionError(f"{table} is not open")


def test_a_table_with_a_bad_sector_is_a_damaged_one(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "log")
    logs.write(STEP)
    logs.to_tables()
    logs.again()
    logs.read(logs.slots[0], 0)  # opens it
    (table,) = (one for one in logs.path.glob("*.sst") if b"<small-" in one.read_bytes())
    no_sector_of_it_is_readable(table)
    with pytest.raises(ClusterError, match="stored bytes are damaged"):  # or nobody copied it again
        logs.read_all(logs.slots[1])
    assert table.name in logs.store.damaged_table
    logs.make_tables(20)
    logs.again()
    assert logs.store.damaged_table == "", "the disk reads it again"
    logs.read_all(logs.slots[1])
    logs.store.close()


def test_a_table_whose_sector_stays_bad_is_not_merged_in_later_runs(tmp_path: Path) -> None:
    (tmp_path / "000012.sst").symlink_to("/proc/self/mem")  # answers EIO, too
    what = "IO error: While pread offset 7 len 9: /other/000012.sst: Input/output error"
    DamagedTable(tmp_path).met(what, lambda: None)
    assert DamagedTable(tmp_path).what == what
    (tmp_path / "000012.sst").unlink()
    (tmp_path / "000012.sst").write_bytes(b"sound")
    assert DamagedTable(tmp_path).what == ""
    assert DamagedTable(tmp_path).what == ""
    assert not (tmp_path / "DAMAGED_TABLE").exists()
