"""The cache of newest batches: bounded, and never different from the log."""

import random

import pytest
from support.wire import make_batch

from penstock.core.batch import Batch
from penstock.core.types import LeaderEpoch, Offset
from penstock_broker.replication.recent import RecentBatches, RecentCache


def batch_at(offset: int, size_bytes: int = 100, records: int = 1) -> Batch:
    values = [b"x" * size_bytes] * records
    return make_batch(values, timestamps_ms=1).stamped(Offset(offset), LeaderEpoch(1), 0)


def offsets(found: list[Batch] | None) -> list[int] | None:
    return None if found is None else [batch.base_offset for batch in found]


def test_an_offset_finds_the_batch_that_holds_it() -> None:
    recent = RecentCache(1_000_000).new()
    recent.extend([batch_at(0, records=3), batch_at(3), batch_at(4, records=2)])
    end = Offset(6)
    assert offsets(recent.read(Offset(0), 10_000, end)) == [0, 3, 4]
    assert offsets(recent.read(Offset(2), 10_000, end)) == [0, 3, 4]
    assert offsets(recent.read(Offset(5), 10_000, end)) == [4]
    assert offsets(recent.read(Offset(0), 10_000, Offset(4))) == [0, 3]


def test_one_batch_comes_whatever_the_limit() -> None:
    recent = RecentCache(1_000_000).new()
    recent.extend([batch_at(0), batch_at(1)])
    assert offsets(recent.read(Offset(0), 1, Offset(2))) == [0]


def test_what_left_is_asked_of_the_store() -> None:
    recent = RecentCache(5_000).new()
    for offset in range(20):
        recent.extend([batch_at(offset, size_bytes=1_000)])
    assert recent.read(Offset(0), 10_000, Offset(20)) is None
    assert offsets(recent.read(Offset(19), 10_000, Offset(20))) == [19]


def test_what_left_is_let_go_at_once() -> None:
    gone: list[int] = []

    class Payload(bytes):
        """Bytes that say when nobody holds them any more."""

        number = -1

        def __del__(self) -> None:
            gone.append(self.number)

    recent = RecentCache(5_000).new()
    for offset in range(20):
        batch = batch_at(offset, size_bytes=1_000)
        payload = Payload(batch.payload)
        payload.number = offset
        recent.extend([Batch(batch.header, payload)])
    assert len(gone) >= 16
    assert gone == list(range(len(gone)))
    found = recent.read(Offset(len(gone)), 1_000_000, Offset(20))
    assert offsets(found) == list(range(len(gone), 20))


def test_a_cleared_list_starts_over_anywhere() -> None:
    cache = RecentCache(1_000_000)
    recent = cache.new()
    recent.extend([batch_at(0), batch_at(1)])
    recent.clear()
    assert cache.size_bytes == 0
    recent.extend([batch_at(7)])
    assert recent.read(Offset(1), 10_000, Offset(8)) is None
    assert offsets(recent.read(Offset(7), 10_000, Offset(8))) == [7]


@pytest.mark.parametrize("round_", range(5))
def test_many_partitions_stay_within_the_bound_and_agree_with_the_log(
    round_: int, rng: random.Random
) -> None:
    limit = 20_000
    cache = RecentCache(limit)
    logs: list[list[Batch]] = [[] for _ in range(4)]
    lists: list[RecentBatches] = [cache.new() for _ in logs]
    for _ in range(600):
        which = rng.randrange(len(logs))
        log, recent = logs[which], lists[which]
        if log and rng.random() < 0.05:
            del log[rng.randrange(len(log)) :]
            recent.clear()
        end = log[-1].next_offset if log else 0
        added = batch_at(end, rng.randrange(1, 3_000), rng.randrange(1, 4))
        log.append(added)
        recent.extend([added])
        assert cache.size_bytes <= limit + 3 * 3_000 + 1_000
        end = log[-1].next_offset
        asked = Offset(rng.randrange(end))
        found = recent.read(asked, rng.randrange(1, 9_000), end)
        if found is not None:
            start = next(i for i, batch in enumerate(log) if batch.next_offset > asked)
            assert found == log[start : start + len(found)]
            assert found


def test_batches_that_were_rewritten_are_forgotten_and_the_bound_still_holds() -> None:
    cache = RecentCache(20_000)
    recent, other = cache.new(), cache.new()
    for offset in range(6):
        recent.extend([batch_at(offset)])
        other.extend([batch_at(offset)])
    before = cache.size_bytes
    recent.forget_before(Offset(4))
    assert recent.read(Offset(3), 10_000, Offset(6)) is None
    assert offsets(recent.read(Offset(4), 10_000, Offset(6))) == [4, 5]
    assert cache.size_bytes == before - before * 4 // 12
    recent.extend([batch_at(6)])
    recent.forget_before(Offset(100))
    assert recent.read(Offset(6), 10_000, Offset(7)) is None
    for offset in range(6, 100):
        other.extend([batch_at(offset)])
    assert cache.size_bytes <= 20_000
    assert offsets(other.read(Offset(99), 10_000, Offset(100))) == [99]


def test_forgetting_again_and_again_takes_no_memory() -> None:
    cache = RecentCache(1_000_000)
    recent, other = cache.new(), cache.new()
    other.extend([batch_at(0)])
    for offset in range(10_000):
        recent.extend([batch_at(offset)])
        recent.forget_before(Offset(offset - 1))
        assert len(cache._order) < 1_100
    assert offsets(other.read(Offset(0), 1, Offset(1))) == [0]
    assert offsets(recent.read(Offset(9_998), 10_000, Offset(10_000))) == [9_998, 9_999]
