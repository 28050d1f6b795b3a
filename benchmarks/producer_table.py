"""What a broker remembers of idempotent producers, in memory.

A table with as many producers as a partition may have, of one batch each and of five, as
`tracemalloc` counts it; times what all partitions of a broker may have, beside a pod's memory.
"""

import tracemalloc
from typing import Final

from benchmarks.common import figure
from penstock.core.batch import BatchHeader
from penstock.core.replication.producers import (
    PRODUCERS_MAX,
    PRODUCERS_PER_BROKER,
    WINDOW_BATCHES,
    ProducerTable,
)
from penstock.core.types import Offset, ProducerId

RECORDS: Final = 10
POD_MB: Final = 1536 * 1.048576
"""The default memory limit of a broker's pod."""


def bytes_per_producer(batches: int) -> float:
    """Of a full table whose producers have written so many batches each."""
    tracemalloc.start()
    table = ProducerTable()
    for producer in range(PRODUCERS_MAX):
        for batch in range(batches):
            header = BatchHeader(
                record_count=RECORDS,
                first_timestamp_ms=1,
                max_timestamp_ms=2,
                uncompressed_bytes=1_000,
                crc=7,
                producer_id=ProducerId(1_000_000 + producer),
                producer_epoch=0,
                base_sequence=batch * RECORDS,
                base_offset=Offset(10_000_000 + (producer * batches + batch) * RECORDS),
            )
            table.apply(header, now_ms=1_000_000_000 + producer)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == PRODUCERS_MAX
    return used_bytes / PRODUCERS_MAX


def main() -> None:
    for batches in (1, WINDOW_BATCHES):
        each = bytes_per_producer(batches)
        of = f"{batches} batch" + ("es" if batches > 1 else "")
        figure(f"a remembered producer of a partition, {of}", each, "B")
        most = each * PRODUCERS_PER_BROKER / 1e6
        figure(
            f"{PRODUCERS_PER_BROKER:,} remembered producers, {of} each",
            most,
            "MB",
            "a pod's limit",
            POD_MB,
        )


if __name__ == "__main__":
    main()
