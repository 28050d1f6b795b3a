"""A per-record handler loop through a group, ours or aiokafka's, in a process of its own.

Prints records per second: `async for record in consumer` with automatic commits every second,
timed from the first tenth of the records on, when joining is over.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from aiokafka import AIOKafkaConsumer

from penstock.client import AsyncConsumer

AUTO_COMMIT_MS = 1_000


async def rate(records: AsyncIterator[Any], count: int) -> float:
    """Of `count` records without the first tenth; both clients' records have a `value`."""
    warm = max(1, count // 10)
    seen = size = 0
    began = 0.0
    async for record in records:
        size += len(record.value)
        seen += 1
        if seen == warm:
            began = time.perf_counter()
        elif seen == count:
            break
    return (count - warm) / (time.perf_counter() - began)


async def ours(bootstrap: str, topic: str, group: str, count: int) -> float:
    async with AsyncConsumer(
        bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=AUTO_COMMIT_MS,
    ) as consumer:
        await consumer.subscribe(topic)
        return await rate(aiter(consumer), count)


async def aiokafka(bootstrap: str, topic: str, group: str, count: int) -> float:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        auto_commit_interval_ms=AUTO_COMMIT_MS,
    )
    await consumer.start()
    try:
        return await rate(aiter(consumer), count)
    finally:
        await consumer.stop()


CLIENTS = {"ours": ours, "aiokafka": aiokafka}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("count", type=int)
    args = parser.parse_args()
    run = CLIENTS[args.client]
    print(asyncio.run(run(args.bootstrap, args.topic, args.group, args.count)), flush=True)


if __name__ == "__main__":
    main()
