"""Damage in a blob file costs the batches in it, until they are mended, and nothing else."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.wire import make_batch

from penstock.core.batch import Batch
from penstock.core.types import LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.damaged_blobs import AGAIN_S, DamagedBlobs
from penstock_broker.store.interface import PartitionWrite, Slot
from penstock_broker.store.options import StoreOptions
from penstock_broker.store.rocks import RocksLogStore

SMALL = StoreOptions(write_buffer_bytes=64 << 10)
SHORT, LONG = (ReplicaKey(TopicId(name), 0) for name in ("short", "long"))
END = Offset(2**62)
COUNT = 300


@cache
def batch(offset: int) -> Batch:
    """The same one each time: what is mended must be what was there."""
    return make_batch([b"<kept-%08d>" % offset * 400]).stamped(Offset(offset), LeaderEpoch(1), 0)


def write(store: RocksLogStore, slot: Slot, *offsets: int) -> None:
    store.write([PartitionWrite(slot, [batch(at) for at in offsets])], sync=True)


def flush(store: RocksLogStore) -> None:
    for family in (store._database.batches, store._database.state):
        family.flush()


def no_sector_of_it_is_readable(blobs: list[Path]) -> None:
    """Puts a file whose first gigabytes answer EIO in the place of those that this process has
    open."""
    names = {str(blob) for blob in blobs}
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and str(entry.readlink()) in names:
            unmapped = os.open("/proc/self/mem", os.O_RDONLY)
            os.dup2(unmapped, int(entry.name))
            os.close(unmapped)
            found += 1
    assert found


def cut(blobs: list[Path]) -> None:
    for blob in blobs:
        os.truncate(blob, blob.stat().st_size // 2)


def lose(blobs: list[Path]) -> None:
    for blob in blobs:
        blob.unlink()


def flip(blobs: list[Path]) -> None:
    for blob in blobs:
        stored, at = bytearray(blob.read_bytes()), -1
        while (at := stored.find(b"<kept-", at + 1)) >= 0:
            stored[at] ^= 1
        blob.write_bytes(stored)


@pytest.mark.parametrize("damage", [no_sector_of_it_is_readable, cut, lose])
def test_what_is_in_it_is_damaged_and_can_be_written_again(
    tmp_path: Path, damage: Callable[[list[Path]], None]
) -> None:
    store = RocksLogStore(tmp_path / "log", SMALL)
    slot = store.open_slot(LONG)
    write(store, slot, *range(5))
    flush(store)
    if damage is no_sector_of_it_is_readable:
        assert len(store.read(slot, Offset(0), 1 << 20, END)) == 5, "from now on it is open"
    damage(list((tmp_path / "log").glob("*.blob")))
    with pytest.raises(ClusterError) as caught:
        store.read(slot, Offset(0), 1 << 20, END)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED, "or nobody would mend it"
    assert store.damaged_table == "", "tables are sound, and are merged"
    mended = tuple(batch(at) for at in range(5))
    store.write([PartitionWrite(slot, mended=mended)], sync=True)
    assert store.read(slot, Offset(0), 1 << 20, END) == list(mended)
    store.close()


@pytest.mark.parametrize("damage", [cut, lose, flip])
def test_collecting_garbage_that_meets_it_ends_writes_once_and_not_after_each_start(
    tmp_path: Path, damage: Callable[[list[Path]], None]
) -> None:
    store = RocksLogStore(tmp_path / "log", SMALL)
    short, long = store.open_slot(SHORT), store.open_slot(LONG)
    store.reclaim()
    for at in range(COUNT):
        write(store, short, at)
        if at % 20 == 0:
            write(store, long, at)
    flush(store)
    store.close()
    damage(sorted((tmp_path / "log").glob("*.blob"))[:1])
    ended = 0
    for run in range(3):
        store = RocksLogStore(tmp_path / "log", SMALL)
        try:
            for step in range(3):
                start = Offset(COUNT - 10 + 3 * run + step)
                store.write([PartitionWrite(short, log_start_offset=start)], sync=True)
                store.reclaim()
                assert store.load().garbage_bytes > 8 * SMALL.write_buffer_bytes or ended == 0
        except ClusterError:
            ended += 1
        finally:
            assert store.damaged_table == "", "tables are sound, and are merged"
            store.close()
    assert ended <= 1
    store = RocksLogStore(tmp_path / "log", SMALL)
    write(store, short, COUNT)
    store.close()


def test_garbage_is_collected_again_when_the_scrub_has_read_everything(tmp_path: Path) -> None:
    now_s = [1_000_000.0]
    blobs = DamagedBlobs(tmp_path, lambda: now_s[0])
    assert blobs.may_collect
    stops: list[str] = []
    for _ in range(2):
        blobs.met("cannot be read", lambda: stops.append("asked"))
    assert (blobs.may_collect, stops) == (False, ["asked"])
    assert not DamagedBlobs(tmp_path, lambda: now_s[0]).may_collect, "nor in later runs"
    now_s[0] += AGAIN_S
    assert blobs.may_collect
    assert DamagedBlobs(tmp_path, lambda: now_s[0]).may_collect
    blobs.met("cannot be read", lambda: stops.append("again"))
    assert (blobs.may_collect, stops) == (False, ["asked", "again"])


def test_a_note_that_cannot_be_read_or_written_keeps_nobody_from_opening(tmp_path: Path) -> None:
    (tmp_path / "DAMAGED_BLOB").write_bytes(b"\xff?")
    assert DamagedBlobs(tmp_path).may_collect
    gone = DamagedBlobs(tmp_path / "gone")
    gone.met("cannot be read", lambda: None)
    assert not gone.may_collect
