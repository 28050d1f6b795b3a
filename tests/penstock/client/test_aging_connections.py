"""Connections that brokers end because they are old: clients open others, and nobody notices.

Streams of produce and fetch requests, of followers, and gRPC's connections, over real processes, in
plaintext and with TLS.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.aging_child import AGE_S, GRACE, LAUNCHER
from support.cluster import Cluster
from support.secured import secured_cluster
from support.sockets import connections_to
from support.waiting import Patience, wait_until
from support.wire import Wire

from penstock.client import AsyncConsumer, AsyncProducer, TopicPartition
from penstock.core.records import decode_batch
from penstock.rpc.batches import batch_from_wire

AGES = 6


@contextmanager
def aging(path: Path, *, secure: bool) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    """Two brokers, and what clients show."""
    if secure:
        with secured_cluster(path, launcher=LAUNCHER) as secured:
            yield secured.cluster, secured.options()
    else:
        with Cluster(path, brokers=2, launcher=LAUNCHER) as cluster:
            yield cluster, {}


@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "TLS"])
@pytest.mark.parametrize("carrier", ["streams", "gRPC"])
async def test_producer_and_consumer_outlive_their_connections(
    tmp_path: Path, carrier: str, secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record is acknowledged, and read once, in order."""
    if carrier == "gRPC":
        monkeypatch.setattr("penstock.client.cluster.streams.StreamPort.open", _no_stream)
    with aging(tmp_path, secure=secure) as (cluster, options):
        cluster.create_topic("t", replication_factor=2)
        at = {info.broker_id: info for info in cluster.metadata().brokers}[cluster.leader("t")]
        port = at.stream_port if carrier == "streams" else at.port
        connections: set[int] = set()
        sent = 0
        read: list[bytes | None] = []

        def outlived() -> bool:
            connections.update(connections_to({port}))
            return len(connections) >= AGES

        async def produce() -> None:
            nonlocal sent
            patience = Patience(20 * AGES * AGE_S)
            async with AsyncProducer(cluster.bootstrap, **options) as producer:
                while sent <= AGES or not (outlived() or patience.is_over()):
                    await (await producer.send("t", str(sent).encode(), partition=0))
                    sent += 1

        async def consume(producing: asyncio.Task[None]) -> None:
            async with AsyncConsumer(cluster.bootstrap, **options) as consumer:
                await consumer.assign([TopicPartition("t", 0)])
                await consumer.seek(TopicPartition("t", 0), 0)
                while not producing.done() or len(read) < sent:
                    for batch in await consumer.poll(1.0, 100):
                        read.extend(batch.values())

        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(produce())
            tasks.create_task(consume(producing))
        assert outlived(), "clients have opened others"
        assert read == [str(number).encode() for number in range(sent)]
        cluster.wait_in_sync("t")

        def reconnections() -> int:
            logs = [broker.log_text() for broker in cluster.brokers.values()]
            return sum(log.count('"follower connected"') for log in logs)

        wait_until(lambda: reconnections() >= AGES // 2, what="streams of followers end, too")


async def _no_stream(*_: object) -> None:
    return None


def test_a_call_goes_on_over_a_connection_with_tls_that_has_become_old(tmp_path: Path) -> None:
    """New calls use another, and none of them fails."""
    with Cluster(tmp_path, brokers=1, secure=True, launcher=LAUNCHER, start=False) as cluster:
        cluster.brokers[0].environment = GRACE
        cluster.start()
        cluster.create_topic("t")
        assert cluster.certificates is not None
        tls, address = cluster.certificates.broker(0).tls, cluster.internal[0]
        port = int(address.rpartition(":")[2])
        with Wire(address, tls) as wire, ThreadPoolExecutor(1) as thread:
            wire.latest("t")
            first, others = connections_to({port}), set[int]()
            held = thread.submit(wire.fetch, "t", 0, max_wait_ms=45_000)

            def has_others() -> bool:
                assert wire.latest("t") == 0
                others.update(connections_to({port}) - first)
                return len(others) > 1

            wait_until(has_others, what="it has become old, and the next one, too")
            assert not held.done()
            wire.produce("t", [b"a"])
            (batch,) = held.result(60).batches
            assert decode_batch(batch_from_wire(batch)).values() == [b"a"]
