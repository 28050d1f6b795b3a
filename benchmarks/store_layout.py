"""The log store's layout under load: does writing stay flat, is retention cheap, does space return?

Twelve partitions are written in slices of a tenth of `--gb`, as 256 KiB batches; after each slice
retention keeps the newest 40 %. Beside it, the same bytes go to one plain file. Then a cold scan,
a scan beside writes, and small batches. docs/decisions/0005 tells what it decided.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import elapsed, figure, progress, resident_bytes
from penstock.core.batch import Batch
from penstock.core.records import build_batch, encode_columns
from penstock.core.replication.contract import Checkpoint
from penstock.core.types import LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock_broker.store.interface import PartitionWrite, Slot
from penstock_broker.store.rocks import RocksLogStore

PARTITIONS = 12
BATCH_BYTES = 256 << 10
TICK_BATCHES = 4
SLICES = 10
KEPT_SLICES = 4
MB = 1_000_000
END = Offset(2**62)


def batches(value_bytes: int, records: int) -> list[Batch]:
    """Sixteen different batches of incompressible values, to be stamped again and again."""
    return [
        build_batch(
            encode_columns([os.urandom(value_bytes) for _ in range(records)], timestamps_ms=1000)
        )
        for _ in range(16)
    ]


class Load:
    """Appends to every partition in turn, one `write` per tick, and times each of them."""

    def __init__(self, store: RocksLogStore, topic: str, shapes: list[Batch]) -> None:
        self.store = store
        keys = [ReplicaKey(TopicId(topic), n) for n in range(PARTITIONS)]
        self.slots = [store.open_slot(key) for key in keys]
        self.ends = [Offset(0)] * PARTITIONS
        self.longest_s = 0.0
        self._shapes = shapes
        self._turn = 0

    def append(self, size: int, tick_batches: int) -> float:
        """Writes `size` bytes; answers the seconds it took."""
        written = 0
        began = time.perf_counter()
        while written < size:
            index = self._turn % PARTITIONS
            self._turn += 1
            tick = []
            for n in range(tick_batches):
                batch = self._shapes[n % 16].stamped(self.ends[index], LeaderEpoch(1), 0)
                self.ends[index] = batch.next_offset
                tick.append(batch)
                written += batch.size_bytes
            checkpoint = Checkpoint(LeaderEpoch(1), self.ends[index], Offset(0), ())
            write = PartitionWrite(self.slots[index], tick, checkpoint)
            took = elapsed(lambda write=write: self.store.write([write], sync=False))  # type: ignore[misc]
            self.longest_s = max(self.longest_s, took)
        return time.perf_counter() - began

    def retain(self, max_bytes: int) -> None:
        writes = []
        for slot in self.slots:
            start = self.store.retention_start(
                slot, older_than_ms=None, max_bytes=max_bytes // PARTITIONS, end=END
            )
            if start is not None:
                writes.append(PartitionWrite(slot, log_start_offset=start))
        self.store.write(writes, sync=False)
        self.store.reclaim()

    def scan(self) -> Iterator[int]:
        """Stored bytes, as they are read."""
        for slot in self.slots:
            yield from scan(self.store, slot)


def scan(store: RocksLogStore, slot: Slot) -> Iterator[int]:
    position = Offset(0)
    while found := store.read(slot, position, 4 << 20, END):
        yield sum(batch.size_bytes for batch in found)
        position = found[-1].next_offset


def plain_write(path: Path, shapes: list[Batch], size: int) -> float:
    """Seconds to append the same payloads to one file."""
    with path.open("ab", buffering=0) as file:
        began = time.perf_counter()
        for n in range(size // BATCH_BYTES):
            file.write(shapes[n % 16].payload)
        return time.perf_counter() - began


def plain_read(path: Path) -> float:
    """MB/s of reading one file in pieces of 1 MiB."""
    began, size = time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            size += len(piece)
    return size / MB / (time.perf_counter() - began)


def evict(folder: Path) -> None:
    """Sends the folder's pages to disk and out of memory, as far as the kernel obeys."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_mb(folder: Path) -> float:
    return sum(f.stat().st_blocks * 512 for f in folder.rglob("*") if f.is_file()) / MB


def large_batches(store: RocksLogStore, folder: Path, total: int) -> Load:
    shapes = batches((BATCH_BYTES - 200) // 16, 16)
    load = Load(store, "large", shapes)
    slice_bytes = total // SLICES
    plain = folder / "plain"
    rates, peers, retentions = [], [], []
    for number in range(SLICES):
        rates.append(slice_bytes / MB / load.append(slice_bytes, TICK_BATCHES))
        plain.unlink(missing_ok=True)
        peers.append(slice_bytes / MB / plain_write(plain, shapes, slice_bytes))
        name = f"write, slice {number + 1} of {SLICES}"
        figure(name, rates[-1], "MB/s", "one plain file", peers[-1])
        if number >= KEPT_SLICES:
            retentions.append(elapsed(lambda: load.retain(KEPT_SLICES * slice_bytes)))
            figure(f"retention after slice {number + 1}", retentions[-1], "s")
        progress(f"slice {number + 1}/{SLICES}, {disk_mb(folder / 'log'):,.0f} MB on disk")
    half = SLICES // 2
    early, late = sum(rates[:half]) / half, sum(rates[half:]) / half
    figure("write, second half of the slices", late, "MB/s", "first half", early)
    figure("retention, longest", max(retentions), "s")
    figure("write, longest", load.longest_s * 1000, "ms")
    figure("stalled writes", store.stalls, "writes")
    kept = KEPT_SLICES * slice_bytes / MB
    figure("disk after retention", disk_mb(folder / "log"), "MB", "bytes kept", kept)
    return load


def scans(load: Load, folder: Path) -> None:
    progress("cold scan")
    evict(folder)
    peer = plain_read(folder / "plain")
    began = time.perf_counter()
    size = sum(load.scan())
    rate = size / MB / (time.perf_counter() - began)
    figure("cold scan", rate, "MB/s", "one plain file, cold", peer)
    progress("writes beside a scan")
    piece = 256 << 20
    alone = piece / MB / load.append(piece, TICK_BATCHES)
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            for _ in load.scan():
                if done.is_set():
                    return

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        beside = piece / MB / load.append(piece, TICK_BATCHES)
    finally:
        done.set()
        thread.join()
    figure("write beside a scanning thread", beside, "MB/s", "without it", alone)


def small_batches(store: RocksLogStore) -> None:
    progress("small batches")
    shapes = batches(950, 1)
    load = Load(store, "small", shapes)
    count = 50_000
    took = load.append(count * shapes[0].size_bytes, 50)
    figure("write 1 KiB batches, 50 a tick", count / took, "batches/s")
    began = time.perf_counter()
    size = sum(load.scan())
    rate = size / shapes[0].size_bytes / (time.perf_counter() - began)
    figure("read 1 KiB batches, warm", rate, "batches/s")
    took = elapsed(lambda: [store.recover(slot) for slot in load.slots])
    figure("recover, headers", store.headers_scanned / took, "headers/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0, help="written in all (default 1)")
    parser.add_argument("--dir", type=Path, default=None, help="where; default: temporary files")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-store-", dir=args.dir) as scratch:
        folder = Path(scratch)
        store = RocksLogStore(folder / "log")
        try:
            load = large_batches(store, folder, int(args.gb * 1e9))
            scans(load, folder)
            small_batches(store)
            figure("resident memory after all", resident_bytes(os.getpid()) / MB, "MB")
        finally:
            store.close()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
