"""Reads the log of a broker that is not running, batch by batch, headers and CRCs.

For `penstock dump-log`. Takes the data directory's lock, so that no broker starts meanwhile, and
never writes `meta.json`: reading must not count as a run. The store reads whole batches and checks
both CRCs; the first bad one ends its partition with the error, and the other partitions continue.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.core.batch import BatchHeader
from penstock.core.types import Offset, ReplicaKey
from penstock.errors import MisuseError
from penstock_broker.store.interface import LogStore, Slot
from penstock_broker.store.rocks import RocksLogStore

_READ_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch as stored; both CRCs matched. `size_bytes` counts header and payload."""

    header: BatchHeader
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionDump:
    """One replica. `batches` reads lazily and raises ClusterError(DATA_CORRUPTED) on a bad CRC."""

    key: ReplicaKey
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    batches: Iterator[StoredBatch]


@contextlib.contextmanager
def open_stopped_broker(data_dir: Path) -> Iterator[LogStore]:
    """The store of a stopped broker, closed at the end.

    Raises MisuseError if this is not a broker's directory, or if the broker is running.
    """
    if not (data_dir / "meta.json").is_file():
        raise MisuseError(
            f"{data_dir} is not the data directory of a broker: it has no meta.json "
            "(a local cluster keeps them in <state>/broker-<id>)"
        )
    with (data_dir / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MisuseError(f"a broker runs on {data_dir}; stop it first") from None
        store = RocksLogStore(data_dir / "log")
        try:
            yield store
        finally:
            store.close()


def dump_partitions(
    store: LogStore, topic_id: str | None, partition: int | None, offset: int
) -> Iterator[PartitionDump]:
    """Every replica that matches, by topic id and partition; batches from `offset` on."""
    for key, slot in sorted(store.slots().items()):
        if topic_id in (None, key.topic_id) and partition in (None, key.partition):
            recovered = store.recover(slot)
            start = recovered.checkpoint.log_start_offset
            yield PartitionDump(
                key=key,
                log_start_offset=start,
                high_watermark=max(start, recovered.checkpoint.high_watermark),
                log_end_offset=recovered.log_end_offset,
                batches=_batches(store, slot, max(offset, start), recovered.log_end_offset),
            )


def _batches(store: LogStore, slot: Slot, start: int, end: Offset) -> Iterator[StoredBatch]:
    offset = Offset(start)
    while offset < end:
        batches = store.read(slot, offset, _READ_BYTES, end)
        if not batches:
            return
        for batch in batches:
            yield StoredBatch(batch.header, batch.size_bytes)
        offset = batches[-1].next_offset
