"""What a scrape says of a RocksDB that does not keep up."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from penstock.core.batch import Batch
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.types import LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock_broker.store.interface import PartitionWrite, Slot
from penstock_broker.store.metrics import StoreMetrics
from penstock_broker.store.options import StoreOptions
from penstock_broker.store.rocks import RocksLogStore

ATTEMPTS: Final = 500


class Scraped:
    """A store with small buffers, which is written to."""

    def __init__(self, path: Path) -> None:
        self.store = RocksLogStore(path, StoreOptions(write_buffer_bytes=1 << 20, write_buffers=2))
        self._slot: Slot = self.store.open_slot(ReplicaKey(TopicId("orders"), 0))
        self._next = 0
        self._registry = CollectorRegistry()
        self._registry.register(StoreMetrics(self.store))

    def value(self, name: str) -> float | None:
        return self._registry.get_sample_value(f"penstock_store_{name}")

    def batches(self, size: int) -> PartitionWrite:
        """Two, each as large as a write buffer if `size` is."""
        return PartitionWrite(self._slot, [self._batch(size), self._batch(size)])

    def _batch(self, size: int) -> Batch:
        made = build_batch(encode_columns([os.urandom(size)], timestamps_ms=1))
        self._next += 1
        return made.stamped(Offset(self._next - 1), LeaderEpoch(1), 1)


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Scraped]:
    made = Scraped(tmp_path / "log")
    yield made
    made.store.close()


def test_writes_that_had_to_wait_are_counted(scraped: Scraped) -> None:
    assert scraped.value("stalls_total") == 0
    for _ in range(ATTEMPTS):
        scraped.store.write([scraped.batches(1 << 20)], sync=False)
        if scraped.store.stalls:
            break
    assert scraped.value("stalls_total") == scraped.store.stalls > 0


def test_a_store_whose_flushes_do_not_keep_up_says_so(scraped: Scraped) -> None:
    assert scraped.value("stalled") == 0
    seen: set[float | None] = set()
    write = scraped.batches(1 << 20)
    for _ in range(ATTEMPTS):
        if scraped.store.try_write([write]):
            write = scraped.batches(1 << 20)
            continue
        seen.add(scraped.value("stalled"))
        if 1 in seen:
            break
    assert 1 in seen, seen
    assert (scraped.value("memory_bytes") or 0) > 1 << 20


def test_what_is_left_to_compact_is_said_until_it_is_done(scraped: Scraped) -> None:
    batches = scraped.store._database.batches
    batches.set_options({"disable_auto_compactions": "true"})
    assert scraped.value("pending_compaction_bytes") == 0
    for _ in range(8):
        scraped.store.write([scraped.batches(1_000)], sync=False)
        batches.flush()
    assert (scraped.value("pending_compaction_bytes") or 0) > 0
    batches.compact_range(None, None)
    assert scraped.value("pending_compaction_bytes") == 0


def test_a_closed_store_says_nothing(scraped: Scraped) -> None:
    scraped.store.close()
    assert scraped.value("stalled") is None
