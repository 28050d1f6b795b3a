"""A log for range readers: real batches, and answers that can be scripted to fail first."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.client.consumer.range_reader import FetchedBatches, PendingFetch, RecordRange
from penstock.core.batch import Batch
from penstock.core.records import build_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset
from penstock.errors import PenstockError


def batch_at(base: int, count: int, **settings: Any) -> Batch:
    values = [b"value %d" % i for i in range(base, base + count)]
    columns = encode_columns(values, timestamps_ms=[1000 * i for i in range(base, base + count)])
    return build_batch(columns, **settings).stamped(Offset(base), LeaderEpoch(1), 0)


@dataclass
class Scripted:
    answer: FetchedBatches | PenstockError
    log: "ScriptedFetcher"

    def result(self) -> FetchedBatches:
        self.log.under_way -= 1
        if isinstance(self.answer, PenstockError):
            raise self.answer
        return self.answer

    def cancel(self) -> None:
        self.log.under_way -= 1
        self.log.cancelled += 1


@dataclass
class ScriptedFetcher:
    """A log of batches; `failures` are given out before any answer."""

    batches: list[Batch]
    end: int
    per_answer: int = 1
    failures: deque[PenstockError | FetchedBatches] = field(default_factory=deque)
    asked: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    cancelled: int = 0

    def start(
        self, wanted: RecordRange, offset: int, max_bytes: int, timeout_s: float
    ) -> PendingFetch:
        self.asked.append(offset)
        self.sizes.append(max_bytes)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        if self.failures:
            return Scripted(self.failures.popleft(), self)
        found = [b for b in self.batches if b.next_offset > offset][: self.per_answer]
        return Scripted(FetchedBatches(found, self.end), self)
