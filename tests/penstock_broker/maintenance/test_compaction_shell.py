"""The shell of compaction: who is looked at, what happens to a pass that cannot finish."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.jumping_clock import DAY_MS, JumpingClock
from support.local_broker import LocalBroker, local_broker, topic_info
from support.transactions import Transactor
from support.waiting import wait_until_async
from support.wire import now_ms

from penstock.core.compaction.plan import Cleaned
from penstock.core.records import build_batch, encode_columns
from penstock.core.replication.contract import Event, MarkersSwept
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.core.wall_clock import HOLD_MS
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock_broker.broker import process
from penstock_broker.maintenance.compaction import Compaction, Pass
from penstock_broker.maintenance.disk import DiskGuard
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import Rewrite
from penstock_broker.store.rocks import RocksLogStore

QUICK = ("log.cleaner.backoff.ms=20",)
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


async def produce(broker: LocalBroker, *keys: bytes, value: bytes | None = b"v") -> None:
    batch = build_batch(encode_columns([value] * len(keys), list(keys), timestamps_ms=now_ms()))
    part = pb.ProducePartition(topic="t", partition=0, batch=batch_to_wire(batch))
    answer = await broker.data.Produce(pb.ProduceRequest(partitions=[part]), timeout=120)
    assert not answer.results[0].HasField("error")


def replica_of(broker: LocalBroker) -> Replica:
    return broker.process._replicas.by_key[ReplicaKey(TopicId("id-1"), 0)]


def counted(broker: LocalBroker, name: str) -> float:
    return (
        broker.process.metrics.registry.get_sample_value(f"penstock_compaction_{name}_total") or 0
    )


async def passes(broker: LocalBroker, count: int) -> None:
    await wait_until_async(lambda: counted(broker, "passes") >= count, what=f"{count} passes")


def after_each_step(
    rounds: Compaction, patch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[None]]
) -> list[Any]:
    """Has something happen after each step of a pass; what the steps have returned."""
    timed, steps = rounds._timed, list[Any]()

    async def stepping(*step: Any) -> Any:
        steps.append(await timed(*step))
        await happens()
        return steps[-1]

    patch.setattr(rounds, "_timed", stepping)
    return steps


def fills_at_rewrite(number: int, rounds: Compaction, patch: pytest.MonkeyPatch) -> list[Any]:
    """Fills the disk when a pass is about to write this chunk, counted from 1."""

    async def look() -> None:
        if sum(isinstance(step, tuple) for step in steps) == number:
            patch.setattr(DiskGuard, "is_full", property(lambda _: True))

    steps = after_each_step(rounds, patch, look)
    return steps


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ends for which a store was asked about compaction."""
    seen: list[int] = []
    asked = RocksLogStore.compaction_facts

    def noting(self: RocksLogStore, slot: Any, end: Any) -> Any:
        seen.append(end)
        return asked(self, slot, end)

    monkeypatch.setattr(RocksLogStore, "compaction_facts", noting)
    return seen


async def test_a_log_without_news_is_not_looked_at(tmp_path: Path, looks: list[int]) -> None:
    async with local_broker(tmp_path, *QUICK) as broker:
        await broker.apply(topic_info(configs=COMPACT))
        await produce(broker, b"a", b"a", b"b")
        await passes(broker, 1)
        rounds = broker.process._upkeep._compaction
        await wait_until_async(
            lambda: list(rounds._settled.values()) == [3], what="the log is settled"
        )
        before = len(looks)
        for _ in range(5):
            await rounds._round()
        assert looks[before:] == []
        await produce(broker, b"b")
        await passes(broker, 2)
        assert counted(broker, "records_removed") == 2
        await broker.apply(deleted=("id-1",))
        await rounds._round()
        assert rounds._settled == {}


async def test_a_pass_that_fails_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_broker(tmp_path, *QUICK) as broker:
        broken = [ClusterError("bits flipped", ErrorCode.DATA_CORRUPTED)]
        chunk_start = RocksLogStore.chunk_start

        def failing(self: RocksLogStore, *given: Any) -> Any:
            if broken:
                raise broken.pop()
            return chunk_start(self, *given)

        monkeypatch.setattr(RocksLogStore, "chunk_start", failing)
        await broker.apply(topic_info(configs=COMPACT))
        await produce(broker, b"a", b"a")
        await passes(broker, 1)
        assert counted(broker, "failures") == 1
        assert counted(broker, "records_removed") == 1


async def test_memory_forgets_what_a_pass_replaced_even_if_no_record_went(tmp_path: Path) -> None:
    """Flags go as well; a follower that reads some of it in memory would wait for their marker."""
    async with local_broker(tmp_path, *QUICK) as broker:
        await broker.apply(topic_info(configs=COMPACT))
        await produce(broker, b"a", b"b")
        await passes(broker, 1)
        replica = replica_of(broker)
        assert counted(broker, "records_removed") == 0
        assert replica.recent.read(Offset(0), 1 << 20, Offset(2)) is None


async def test_nothing_is_rewritten_in_a_log_that_was_cut_or_is_gone(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(configs=COMPACT))
        replica, replicas = replica_of(broker), broker.process._replicas
        assert await replicas.rewrite(replica, None, Cleaned(), replica.truncations)
        assert not await replicas.rewrite(replica, None, Cleaned(), replica.truncations - 1)
        await broker.apply(deleted=("id-1",))
        assert not await replicas.rewrite(replica, None, Cleaned(), replica.truncations)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {**COMPACT, "delete.retention.ms": str(2 * DAY_MS)},
        {**COMPACT, "min.compaction.lag.ms": "60000"},
    ],
)
async def test_a_pass_ends_once_less_of_its_topic_is_to_be_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]
) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(configs=COMPACT))
        await produce(broker, b"a", b"a", b"b")
        rounds, replica = broker.process._upkeep._compaction, replica_of(broker)

        async def change() -> None:
            await broker.apply(topic_info(configs=changed))

        steps = after_each_step(rounds, monkeypatch, change)
        await rounds._round()
        assert isinstance(steps[-1], tuple), "it was about to write this"
        store = broker.process._seams.store
        (stored,) = store.read(replica.slot, Offset(0), 1 << 20, Offset(3))
        assert not stored.header.is_compacted


async def test_a_pass_ends_once_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes again would take the last bytes, and nothing is given back before its end."""
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(configs=COMPACT))
        await produce(broker, b"a", b"a", b"b")
        rounds, replica = broker.process._upkeep._compaction, replica_of(broker)
        steps = fills_at_rewrite(1, rounds, monkeypatch)
        await rounds._round()
        assert isinstance(steps[-1], tuple), "it was about to write this"
        store = broker.process._seams.store
        (stored,) = store.read(replica.slot, Offset(0), 1 << 20, Offset(3))
        assert not stored.header.is_compacted
        monkeypatch.undo()
        await rounds._round()
        (stored,) = store.read(replica.slot, Offset(0), 1 << 20, Offset(3))
        assert stored.header.is_compacted


async def test_what_a_pass_has_saved_before_it_ends_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(configs=COMPACT))
        for key in (b"a", b"a", b"b", b"b"):
            await produce(broker, key)
        rounds, replicas = broker.process._upkeep._compaction, broker.process._replicas
        pass_on, removals = rounds.pass_on, replicas.removals

        def batch_by_batch(*planned: Any) -> Pass:
            job = pass_on(*planned)
            job._chunk_bytes = 1
            return job

        monkeypatch.setattr(rounds, "pass_on", batch_by_batch)
        fills_at_rewrite(3, rounds, monkeypatch)
        await rounds._round()
        assert counted(broker, "passes") == 0
        assert replicas.removals == removals + 1


async def test_keys_that_do_not_fit_take_several_passes(tmp_path: Path) -> None:
    async with local_broker(tmp_path, *QUICK, "log.cleaner.dedupe.buffer.size=4096") as broker:
        await broker.apply(topic_info(configs=COMPACT))
        for _ in range(2):
            for key in range(50):
                await produce(broker, b"%d" % key)
        await wait_until_async(
            lambda: counted(broker, "records_removed") == 50, what="all old values are gone"
        )
        assert counted(broker, "passes") >= 5


async def test_replicas_hear_that_markers_go_before_the_first_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    async with local_broker(tmp_path, *QUICK) as broker:
        replicas = broker.process._replicas
        rewrite, handle = replicas.rewrite, replicas.handle

        async def rewriting(
            replica: Replica, new: Rewrite | None, cleaned: Cleaned | None, cuts: int
        ) -> bool:
            if new is not None and not any(b.header.is_marker for b in new.batches):
                steps.append("the marker is gone")
            if cleaned is not None and cleaned.markers_end:
                steps.append("stored")
            return await rewrite(replica, new, cleaned, cuts)

        def handling(replica: Replica, event: Event) -> None:
            if isinstance(event, MarkersSwept):
                steps.append("told")
            handle(replica, event)

        await broker.apply(topic_info(configs={**COMPACT, "delete.retention.ms": "0"}))
        replica = replica_of(broker)
        transactor = Transactor(replicas, replica)
        await transactor.send(1)
        await transactor.end(1, commit=True)
        monkeypatch.setattr(replicas, "rewrite", rewriting)
        monkeypatch.setattr(replicas, "handle", handling)
        await wait_until_async(lambda: "the marker is gone" in steps, what="the marker goes")
        assert steps[:3] == ["stored", "told", "the marker is gone"]
        store = broker.process._seams.store
        recovered = store.recover(replica.slot)
        assert recovered.swept_end == 2
        assert replica.machine._log.swept_end == 2


async def test_replicas_hear_that_markers_go_although_the_store_knew_of_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a replica was elected uncleanly while it copied: it tells others of less."""
    steps: list[str] = []
    async with local_broker(tmp_path) as broker:
        replicas, rounds = broker.process._replicas, broker.process._upkeep._compaction
        handle = replicas.handle

        def handling(replica: Replica, event: Event) -> None:
            if isinstance(event, MarkersSwept):
                steps.append(f"told of {event.swept_end}")
            handle(replica, event)

        await broker.apply(topic_info(configs={**COMPACT, "delete.retention.ms": "0"}))
        replica = replica_of(broker)
        known = Cleaned().without_markers(Offset(40))
        assert await replicas.rewrite(replica, None, known, replica.truncations)
        transactor = Transactor(replicas, replica)
        await transactor.send(1)
        await transactor.end(1, commit=True)
        monkeypatch.setattr(replicas, "handle", handling)
        for _ in range(3):
            await rounds._round()
        assert steps[:1] == ["told of 2"]
        assert replica.machine._log.swept_end == 2


async def test_null_values_stay_while_the_clock_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = JumpingClock()
    monkeypatch.setattr(process, "SystemClock", lambda: clock)
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(configs=COMPACT | {"delete.retention.ms": str(HOLD_MS)}))
        await produce(broker, b"a", value=None)
        rounds = broker.process._upkeep._compaction

        async def null_values() -> int:
            """After a round: those that the last pass kept."""
            await rounds._round()
            assert await broker.process._replication.writer.drained(60)
            facts = broker.process._seams.store.compaction_facts(replica_of(broker).slot, Offset(1))
            return facts.cleaned.tombstones

        assert await null_values() == 1
        clock.jump_with_the_controllers(8 * DAY_MS)
        assert await null_values() == 1
        clock.ahead_ms, clock.passed_ms = 0, HOLD_MS
        assert await null_values() == 0, "their time is over"


async def test_null_values_stay_if_a_move_begins_after_a_pass_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy may come from a leader that has not compacted its log, and go on from this one."""
    async with local_broker(tmp_path) as broker:
        configs = COMPACT | {"delete.retention.ms": "0"}
        await broker.apply(topic_info(configs=configs))
        await produce(broker, b"a", value=None)
        rounds = broker.process._upkeep._compaction
        moving = topic_info(configs=configs, version=2)
        moving.partitions[0].adding.append(1)

        async def null_values() -> int:
            """After a round: those that the last pass kept."""
            await rounds._round()
            assert await broker.process._replication.writer.drained(60)
            facts = broker.process._seams.store.compaction_facts(replica_of(broker).slot, Offset(1))
            return facts.cleaned.tombstones

        assert await null_values() == 1
        timed = rounds._timed

        async def later(*given: Any) -> Any:
            await broker.apply(moving)
            return await timed(*given)

        monkeypatch.setattr(rounds, "_timed", later)
        assert await null_values() == 1
        monkeypatch.undo()
        await broker.apply(topic_info(configs=configs, version=3))
        assert await null_values() == 0, "the move was cancelled"
