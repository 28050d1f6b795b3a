"""Connections that brokers end because they are old: clients open others, and nobody notices.

Streams of produce and fetch requests, of followers, and gRPC's connections, over real processes.
"""

import asyncio
from pathlib import Path

import pytest
from support.aging_child import AGE_S, LAUNCHER
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import AsyncConsumer, AsyncProducer, TopicPartition

AGES = 6


@pytest.mark.parametrize("carrier", ["streams", "gRPC"])
async def test_producer_and_consumer_outlive_their_connections(
    tmp_path: Path, carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record is acknowledged, and read once, in order."""
    if carrier == "gRPC":
        monkeypatch.setattr("penstock.client.cluster.streams.StreamPort.open", _no_stream)
    with Cluster(tmp_path, brokers=2, launcher=LAUNCHER) as cluster:
        cluster.create_topic("t", replication_factor=2)
        sent = 0
        read: list[bytes | None] = []

        async def produce() -> None:
            nonlocal sent
            loop = asyncio.get_running_loop()
            until = loop.time() + AGES * AGE_S
            async with AsyncProducer(cluster.bootstrap) as producer:
                while loop.time() < until or sent <= AGES:
                    await (await producer.send("t", str(sent).encode(), partition=0))
                    sent += 1

        async def consume(producing: asyncio.Task[None]) -> None:
            async with AsyncConsumer(cluster.bootstrap) as consumer:
                await consumer.assign([TopicPartition("t", 0)])
                await consumer.seek(TopicPartition("t", 0), 0)
                while not producing.done() or len(read) < sent:
                    for batch in await consumer.poll(1.0, 100):
                        read.extend(batch.values())

        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(produce())
            tasks.create_task(consume(producing))
        assert read == [str(number).encode() for number in range(sent)]
        cluster.wait_in_sync("t")

        def reconnections() -> int:
            logs = [broker.log_text() for broker in cluster.brokers.values()]
            return sum(log.count('"follower connected"') for log in logs)

        wait_until(lambda: reconnections() >= AGES // 2, what="streams of followers end, too")


async def _no_stream(*_: object) -> None:
    return None
