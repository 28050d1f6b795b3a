"""Attack 19: batches for a compacted topic that are small, and long to look through once opened.

Nobody waits for them but their producer, and there is an end to what one request can have opened.
"""

import threading
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.local_broker import LocalBroker, local_broker, topic_info
from support.wire import Wire, now_ms

from penstock.core.batch import Batch, Codec
from penstock.core.compaction.keymap import check_keys
from penstock.core.records import build_batch, encode_columns
from penstock.errors import ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock_broker.services import opening, settings

COMPACTED = {"cleanup.policy": "compact"}
PATIENCE_S = 60.0
PARTS = 1_000


def bomb(value_bytes: int) -> Batch:
    """One record that compresses well."""
    columns = encode_columns([bytes(value_bytes)], keys=[b"k"], timestamps_ms=now_ms())
    return build_batch(columns, codec=Codec.ZSTD)


def produce(*batches: Batch, number: int = 0) -> pb.ProduceRequest:
    parts = [pb.ProducePartition(topic="t", batch=batch_to_wire(batch)) for batch in batches]
    return pb.ProduceRequest(
        partitions=parts, correlation_id=number, acks=pb.ACKS_LEADER, timeout_ms=60_000
    )


def test_a_request_has_only_so_much_opened(cluster: Cluster) -> None:
    cluster.create_topic("t", configs=COMPACTED)
    large = bomb(60 * 2**20)
    assert large.size_bytes < 8_192
    with Wire(cluster.brokers[0].address) as wire:
        answer = wire.data.Produce(produce(*[large] * PARTS), timeout=120)
        refused = [result.error for result in answer.results if result.HasField("error")]
        assert len(refused) == PARTS - 2, "128 MiB at a time"
        assert {int(error.code) for error in refused} == {int(ErrorCode.OVERLOADED)}
        assert "would exceed the limit of 134217728; try again later" in refused[0].message
        again = wire.data.Produce(produce(large), timeout=120)
        assert not again.results[0].HasField("error"), "the budget was given back"
        assert wire.latest("t") == 3


class Blocked:
    """Replaces what opens batches: it waits until `others` have been served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = threading.Event()
        self.others = threading.Event()
        for module in (opening, settings):
            monkeypatch.setattr(module, "check_keys", self)

    def __call__(self, batch: Batch, where: str) -> None:
        if batch.header.uncompressed_bytes > 2**20:
            self.began.set()
            assert self.others.wait(PATIENCE_S), "nobody else was served meanwhile"
        check_keys(batch, where)


async def compacted(broker: LocalBroker) -> None:
    await broker.apply(topic_info(configs=COMPACTED))


async def test_others_are_served_while_a_bomb_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(monkeypatch)
    async with local_broker(tmp_path) as broker:
        await compacted(broker)
        attack = broker.data.Produce(produce(bomb(32 * 2**20)), timeout=60)
        while not blocked.began.is_set():
            await broker.data.Metadata(pb.MetadataRequest(), timeout=60)
        await broker.data.Metadata(pb.MetadataRequest(), timeout=60)
        honest = await broker.data.Produce(produce(bomb(100)), timeout=60)
        blocked.others.set()
        late = await attack
        assert (honest.results[0].base_offset, late.results[0].base_offset) == (0, 1)


async def test_what_follows_a_bomb_on_its_stream_stays_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: a stream's requests are appended in order, also if the first takes long to open."""
    blocked = Blocked(monkeypatch)
    async with local_broker(tmp_path) as broker:
        await compacted(broker)
        stream: Any = broker.data.ProduceStream(timeout=60)
        await stream.write(produce(bomb(32 * 2**20), number=1))
        await stream.write(produce(bomb(100), number=2))
        while not blocked.began.is_set():
            await broker.data.Metadata(pb.MetadataRequest(), timeout=60)
        elsewhere = await broker.data.Produce(produce(bomb(100)), timeout=60)
        assert elsewhere.results[0].base_offset == 0, "neither of the stream's is appended"
        blocked.others.set()
        answers = [await stream.read(), await stream.read()]
        assert [one.correlation_id for one in answers] == [1, 2]
        assert [one.results[0].base_offset for one in answers] == [1, 2]
        await stream.done_writing()


async def test_a_stream_that_ends_while_its_bomb_is_opened_leaves_the_budget_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(monkeypatch)
    async with local_broker(tmp_path) as broker:
        await compacted(broker)
        stream: Any = broker.data.ProduceStream(timeout=60)
        await stream.write(produce(bomb(62 * 2**20)))
        while not blocked.began.is_set():
            await broker.data.Metadata(pb.MetadataRequest(), timeout=60)
        stream.cancel()
        blocked.others.set()
        for _ in range(3):
            answer = await broker.data.Produce(produce(bomb(62 * 2**20)), timeout=60)
            assert not answer.results[0].HasField("error")
