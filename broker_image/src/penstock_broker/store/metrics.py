"""How the store keeps up, asked when scraped."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.errors import PenstockError
from penstock_broker.store.interface import LogStore


class StoreMetrics(Collector):
    """Registered with a broker's registry; nothing is exported once the store is closed."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        try:
            load = self._store.load()
        except PenstockError:
            return
        yield CounterMetricFamily(
            "penstock_store_stalls",
            "Writes that had to wait for RocksDB's flushes.",
            value=load.stalls,
        )
        for name, documentation, value in (
            ("stalled", "1 while writes have to wait for RocksDB's flushes.", int(load.stalled)),
            (
                "pending_compaction_bytes",
                "Bytes that RocksDB has to rewrite before it has caught up.",
                load.pending_compaction_bytes,
            ),
            (
                "memory_bytes",
                "Write buffers of RocksDB that are not in files yet.",
                load.memory_bytes,
            ),
            (
                "garbage_bytes",
                "Bytes of removed batches in files that others pin, which go to new ones in time.",
                load.garbage_bytes,
            ),
            (
                "damaged_table",
                "1 if a table of RocksDB is damaged: no space is freed until the volume is new.",
                int(load.damaged_table),
            ),
        ):
            yield GaugeMetricFamily(f"penstock_store_{name}", documentation, value=value)
