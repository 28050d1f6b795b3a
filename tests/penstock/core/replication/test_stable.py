"""Open transactions, the last stable offset and aborted entries, from headers alone (I12, I14)."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchFlags, BatchHeader, build_marker
from penstock.core.replication import producers
from penstock.core.replication.contract import (
    UNPROMISED,
    Checkpoint,
    ProducerEntry,
    RecoveredLog,
)
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.producers import Append, Duplicate, ProducerTable, Refused
from penstock.core.types import (
    NO_EPOCH,
    TRANSACTIONAL_PRODUCER_BIT,
    LeaderEpoch,
    Offset,
    ProducerId,
)
from penstock.errors import ErrorCode

A, B, C = (ProducerId(TRANSACTIONAL_PRODUCER_BIT + number) for number in range(3))


def data(
    producer: ProducerId,
    epoch: int,
    sequence: int = 0,
    *,
    at: int = 0,
    count: int = 5,
    flags: BatchFlags = BatchFlags.TRANSACTIONAL,
) -> BatchHeader:
    return BatchHeader(
        record_count=count,
        first_timestamp_ms=0,
        max_timestamp_ms=0,
        uncompressed_bytes=0,
        crc=0,
        flags=flags,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        base_offset=Offset(at),
    )


def marker(producer: ProducerId, epoch: int, *, at: int, commit: bool = True) -> BatchHeader:
    built = build_marker(producer, epoch, commit=commit, timestamp_ms=0)
    return replace(built.header, base_offset=Offset(at))


def table(*headers: BatchHeader) -> ProducerTable:
    found = ProducerTable()
    for header in headers:
        found.apply(header)
    return found


def open_set(found: ProducerTable) -> list[tuple[int, int | None]]:
    return [(entry.producer_id, entry.open_offset) for entry in found.open_entries()]


# ---------------------------------------------------------------- entries


def test_a_transaction_is_open_from_its_first_batch_to_its_marker() -> None:
    found = table(data(A, 3, at=10), data(B, 0, at=15), data(A, 3, 5, at=20))
    assert open_set(found) == [(A, 10), (B, 15)]
    found.apply(marker(A, 3, at=25))
    assert open_set(found) == [(B, 15)]
    entry = found.get(A)
    assert entry is not None
    assert (entry.producer_epoch, entry.batches) == (4, ())
    assert (entry.marker_offset, entry.ended_first_offset) == (25, 10)


def test_a_marker_begins_the_next_epoch_at_sequence_zero() -> None:
    found = table(data(A, 3, at=10), marker(A, 3, at=15))
    assert found.check(data(A, 4)) == Append()
    gap, late = found.check(data(A, 4, 5)), found.check(data(A, 3, 5))
    assert isinstance(gap, Refused)
    assert gap.error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE
    assert isinstance(late, Refused)
    assert late.error.code is ErrorCode.PRODUCER_FENCED
    assert "its transaction with epoch 3 has ended here" in late.error.message
    found.apply(data(A, 4, at=16))
    assert found.check(data(A, 4)) == Duplicate(Offset(16), Offset(21))
    entry = found.get(A)
    assert entry is not None
    assert (entry.open_offset, entry.marker_offset, entry.ended_first_offset) == (16, 15, 10)


def test_a_marker_of_an_unknown_producer_is_remembered() -> None:
    found = table(marker(A, 3, at=10, commit=False))
    entry = found.get(A)
    assert entry is not None
    assert (entry.producer_epoch, entry.marker_offset, entry.ended_first_offset) == (4, 10, -1)
    assert found.apply(marker(B, 0, at=11, commit=False)) is None, "nothing of it is here"


def test_a_repeated_marker_ends_nothing() -> None:
    found = table(data(A, 3, at=10), marker(A, 3, at=15), data(A, 4, at=16))
    before = found.snapshot()
    assert found.apply(marker(A, 3, at=21, commit=False)) is None
    assert found.snapshot() == before
    assert open_set(found) == [(A, 16)]


def test_an_abort_names_what_readers_must_not_see() -> None:
    found = table(data(A, 3, at=10), data(B, 7, at=15))
    first = found.apply(marker(B, 7, at=20, commit=False))
    assert first == AbortedTransaction(
        marker_offset=Offset(20),
        first_offset=Offset(15),
        producer_id=B,
        producer_epoch=7,
        stable_offset=Offset(10),
    )
    second = found.apply(marker(A, 3, at=21, commit=False))
    assert second is not None
    assert (second.first_offset, second.stable_offset) == (10, 22)
    found.apply(data(A, 4, at=22))
    assert found.apply(marker(A, 4, at=27)) is None


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_whose_marker_was_lost_is_never_taken_for_committed(commit: bool) -> None:
    """Only an unclean election loses a marker: the next one of the producer ends it."""
    found = table(data(A, 3, at=10))
    aborted = found.apply(marker(A, 5, at=15, commit=commit))
    assert aborted is not None
    assert (aborted.producer_epoch, aborted.first_offset) == (3, 10)
    assert open_set(found) == []


def test_compacted_data_of_an_ended_transaction_opens_nothing() -> None:
    found = table(
        data(A, 3, at=10, flags=BatchFlags.NONE), data(A, 3, 5, at=15, flags=BatchFlags.COMPACTED)
    )
    assert open_set(found) == []
    assert found.check(data(A, 3, 10)) == Append()


def test_a_producer_with_an_open_transaction_is_never_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    found = ProducerTable()
    found.apply(data(A, 3, at=10), now_ms=0)
    for number in range(4):
        found.apply(data(ProducerId(number), 0, flags=BatchFlags.NONE), now_ms=10)
    assert [entry.producer_id for entry in found.snapshot()] == [A, 2, 3]
    again = ProducerTable(found.snapshot(), now_ms=0)
    again.forget_idle(producers.KEPT_MS + 1, 0, 0)
    assert [entry.producer_id for entry in again.snapshot()] == [A]
    assert open_set(again) == [(A, 10)]


def test_a_producer_whose_marker_is_not_committed_is_never_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who goes on from a snapshot, or after a failed write, would tell readers of more than who
    leads next, and has lost the marker, will."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)

    def others(
        table: ProducerTable, *numbers: int
    ) -> list[tuple[ProducerId, ProducerEntry | None]]:
        taken = []
        for number in numbers:
            header = data(ProducerId(number), 0, flags=BatchFlags.NONE)
            taken.append((header.producer_id, table.get(header.producer_id)))
            table.apply(header, now_ms=number)
        return taken

    found = table(data(A, 3, at=10), marker(A, 3, at=15))
    assert found.stable_offset(Offset(12)) == 10
    taken = others(found, 1, 2, 3)
    assert [entry.producer_id for entry in found.snapshot()] == [A, 2, 3]
    again = ProducerTable(found.snapshot(), 0, Offset(12))
    assert again.stable_offset(Offset(12)) == 10
    others(again, 4, 5)
    assert [entry.producer_id for entry in again.snapshot()] == [A, 4, 5]
    found.restore(taken)
    assert found.stable_offset(Offset(15)) == 10
    for each in (found, again):
        assert each.stable_offset(Offset(16)) == 16
        others(each, 6, 7, 8)
        assert [entry.producer_id for entry in each.snapshot()] == [7, 8], "as any other now"


def test_a_marker_counts_as_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    found = ProducerTable()
    found.apply(data(A, 3, at=10), now_ms=0)
    found.apply(data(ProducerId(1), 0, flags=BatchFlags.NONE), now_ms=5)
    found.apply(marker(A, 3, at=15), now_ms=10)
    assert found.stable_offset(Offset(16)) == 16, "it is committed"
    found.apply(data(ProducerId(2), 0, flags=BatchFlags.NONE), now_ms=10)
    assert [entry.producer_id for entry in found.snapshot()] == [A, 2]


def test_a_batch_that_was_taken_back_leaves_its_producer_as_it_was() -> None:
    found = table(data(A, 3, at=10), data(B, 0, at=15), marker(B, 0, at=20))
    known = {entry.producer_id: entry for entry in found.snapshot()}
    taken: list[tuple[ProducerId, ProducerEntry | None]] = []
    for header in (marker(A, 3, at=21), data(A, 4, at=22), data(B, 1, at=27), data(C, 0, at=32)):
        taken.append((header.producer_id, found.get(header.producer_id)))
        found.apply(header)
    found.restore(taken)
    assert {entry.producer_id: entry for entry in found.snapshot()} == known
    assert open_set(found) == [(A, 10)]
    assert found.stable_offset(Offset(21)) == 10


# ---------------------------------------------------------------- last stable offset


def test_the_stable_offset_stops_at_the_oldest_open_transaction() -> None:
    found = table(data(A, 3, at=10), data(B, 0, at=15))
    assert [found.stable_offset(Offset(end)) for end in (5, 10, 12, 20)] == [5, 10, 10, 10]


def test_a_marker_counts_only_once_it_is_committed() -> None:
    """Else the LSO would fall when a leader takes the marker along to its grave."""
    found = table(data(A, 3, at=10), marker(A, 3, at=15))
    assert [found.stable_offset(Offset(end)) for end in (12, 15, 16)] == [10, 10, 16]


def test_the_transaction_that_began_first_decides_among_those_that_end() -> None:
    found = table(
        data(A, 3, at=10), data(B, 0, at=15), data(C, 0, at=20), marker(B, 0, at=25),
        marker(A, 3, at=26), marker(C, 0, at=27),
    )  # fmt: skip
    assert [found.stable_offset(Offset(end)) for end in (26, 27, 28)] == [10, 20, 28]


def committed_later(ended: Iterable[tuple[int, int | None]], high_watermark: int) -> list[int]:
    """Where those began whose markers are not committed yet."""
    return [first for at, first in ended if at >= high_watermark and first is not None]


@dataclass
class Model:
    """A log as a list of headers, and what follows from it, computed anew every time."""

    headers: list[BatchHeader] = field(default_factory=list)
    epochs: dict[ProducerId, int] = field(default_factory=dict)
    opened: dict[ProducerId, int] = field(default_factory=dict)
    ended: list[tuple[ProducerId, int, int | None]] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    @property
    def end(self) -> Offset:
        return self.headers[-1].next_offset if self.headers else Offset(0)

    def cut(self, end: int) -> None:
        self.headers = [header for header in self.headers if header.base_offset < end]

    def compute(self) -> None:
        self.epochs, self.opened, self.ended, self.aborted = {}, {}, [], []
        for header in self.headers:
            producer, at = header.producer_id, header.base_offset
            if header.flags == BatchFlags.TRANSACTIONAL:
                self.opened.setdefault(producer, at)
                self.epochs[producer] = header.producer_epoch
            elif header.is_marker and self.epochs.get(producer, -1) <= header.producer_epoch:
                self.epochs[producer] = header.producer_epoch + 1
                first = self.opened.pop(producer, None)
                self.ended.append((producer, at, first))
                if first is not None and not header.commits:
                    self.aborted.append(
                        AbortedTransaction(
                            marker_offset=at,
                            first_offset=Offset(first),
                            producer_id=producer,
                            producer_epoch=header.producer_epoch,
                            stable_offset=Offset(min(self.opened.values(), default=at + 1)),
                        )
                    )

    def stable(self, high_watermark: int) -> tuple[int, int]:
        """Counting of each producer the last ended transaction, and all of them.

        A producer goes on here after its marker was committed, so that there is a difference only
        while a recovered replica does not know yet that it was.
        """
        last = {producer: (at, first) for producer, at, first in self.ended}
        firsts = committed_later(last.values(), high_watermark)
        every = committed_later([(at, first) for _, at, first in self.ended], high_watermark)
        opened = list(self.opened.values())
        opened.append(high_watermark)
        return min(opened + every), min(opened + firsts)


class Life:
    """A log under random appends, failures, truncations and restarts, beside its model."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log = LocalLog(
            RecoveredLog(
                log_end_offset=Offset(0), checkpoint=Checkpoint(NO_EPOCH, Offset(0), Offset(0), ())
            ),
            0,
        )
        self.model = Model()
        self.aborted: list[AbortedTransaction] = []
        self.in_flight: list[tuple[int, Offset]] = []
        self.snapshots: list[tuple[Offset, tuple[ProducerEntry, ...]]] = []

    def next_batch(self) -> Batch:
        producer = self.rng.choice((A, B, C, ProducerId(5)))
        epoch, is_open = self.model.epochs.get(producer, 0), producer in self.model.opened
        choice = self.rng.random()
        if producer == 5:
            header = data(producer, 0, flags=BatchFlags.NONE, count=self.rng.randint(1, 4))
        elif choice < 0.6 or (epoch == 0 and not is_open):
            header = data(producer, epoch, count=self.rng.randint(1, 4))
        elif choice < 0.7:
            old = max(epoch - 1, 0) if not is_open else epoch
            header = marker(producer, old, at=0, commit=self.rng.random() < 0.5)
        else:
            header = marker(producer, epoch, at=0, commit=self.rng.random() < 0.5)
        return Batch(header, b"").stamped(self.model.end, LeaderEpoch(1), 0)

    def append(self) -> None:
        persist_id = 0
        for _ in range(self.rng.randint(1, 3)):
            batch = self.next_batch()
            persist_id, aborted = self.log.append((batch,), 0, within=persist_id)
            self.aborted += aborted
            self.model.headers.append(batch.header)
            self.model.compute()
        self.in_flight.append((persist_id, self.model.end))
        if self.rng.random() < 0.2:
            self.snapshots.append((self.model.end, self.log.producers.snapshot()))

    def persisted(self) -> None:
        if self.in_flight:
            persist_id, _ = self.in_flight.pop(0)
            self.log.persisted(persist_id, synced=False)

    def failed(self) -> None:
        if self.in_flight:
            index = self.rng.randrange(len(self.in_flight))
            persist_id, _ = self.in_flight[index]
            self.log.failed(persist_id)
            before = self.in_flight[index - 1][1] if index else self.log.written_end
            del self.in_flight[index:]
            self.lose(before)

    def lose(self, end: Offset) -> None:
        self.model.cut(end)
        self.aborted = [one for one in self.aborted if one.marker_offset < end]
        self.snapshots = [(at, kept) for at, kept in self.snapshots if at <= end]

    def commit(self) -> None:
        offset = self.rng.randint(self.log.high_watermark, self.log.written_end)
        self.log.raise_high_watermark(Offset(offset))

    def found(self, high_watermark: Offset) -> RecoveredLog:
        """From a snapshot and the headers behind it."""
        start, entries = self.rng.choice([(Offset(0), ()), *self.snapshots])
        again = ProducerTable(entries)
        for header in self.model.headers:
            if header.base_offset >= start:
                again.apply(header)
        checkpoint = Checkpoint(LeaderEpoch(1), high_watermark, self.log.log_start_offset, ())
        return RecoveredLog(
            log_end_offset=self.model.end, checkpoint=checkpoint, producers=again.snapshot()
        )

    def truncate(self) -> None:
        if self.log.is_still:
            places = [
                header.base_offset
                for header in self.model.headers
                if header.base_offset >= self.log.high_watermark
            ]
            if places:
                target = self.rng.choice(places)
                persist_id, _ = self.log.truncate(target, 0)
                self.lose(target)
                self.log.truncated(self.found(self.log.high_watermark), 0)
                self.log.persisted(persist_id, synced=False)

    def restart(self) -> None:
        self.lose(self.log.written_end)
        self.in_flight.clear()
        known = self.rng.randint(self.log.log_start_offset, self.log.high_watermark)
        if self.rng.random() < 0.3:
            known = UNPROMISED
        self.log = LocalLog(self.found(Offset(known)), 0)

    def retention(self) -> None:
        self.log.raise_log_start(Offset(self.rng.randint(0, self.model.end)))

    def check(self) -> None:
        self.model.compute()
        log = self.log
        lowest, highest = self.model.stable(log.high_watermark)
        start = log.log_start_offset
        assert max(start, lowest) <= log.last_stable_offset <= max(start, highest)
        assert start <= log.last_stable_offset <= log.high_watermark
        opened = [(entry.producer_id, entry.open_offset) for entry in log.producers.open_entries()]
        assert opened == sorted(self.model.opened.items(), key=lambda pair: pair[1])
        assert self.aborted == self.model.aborted


@pytest.mark.parametrize("seed", range(60))
def test_what_a_log_knows_is_what_its_headers_say(seed: int) -> None:
    print(f"seed {seed}")
    life = Life(random.Random(seed))
    steps = [life.append] * 6 + [life.persisted] * 6 + [life.commit] * 3
    steps += [life.failed, life.truncate, life.restart, life.retention]
    for _ in range(150):
        life.rng.choice(steps)()
        life.check()
