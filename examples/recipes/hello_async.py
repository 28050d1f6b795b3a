"""Write and read at the same time in one event loop: `python -m examples.recipes.hello_async`.

The async clients have the methods of the others. A task that is cancelled leaves nothing behind.
"""

import argparse
import asyncio

from penstock.client import AsyncConsumer, AsyncProducer

COUNT = 100


async def write(bootstrap: str, topic: str) -> None:
    """Sends without waiting for each record; `flush` waits for all of them."""
    async with AsyncProducer(bootstrap) as producer:
        for number in range(COUNT):
            await producer.send(topic, str(number).encode(), key=str(number % 7).encode())
        await producer.flush()


async def read(bootstrap: str, topic: str) -> int:
    """Adds up the first COUNT records."""
    total = seen = 0
    async with AsyncConsumer(
        bootstrap, group_id="sums", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        await consumer.subscribe(topic)
        async for record in consumer:
            total += int(record.value or b"0")
            seen += 1
            if seen == COUNT:
                break
    return total


async def run(bootstrap: str, topic: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write(bootstrap, topic))
        reading = tasks.create_task(read(bootstrap, topic))
    print(f"the sum of {COUNT} numbers is {reading.result():,}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bootstrap", default="localhost:9092")
    options.add_argument("--topic", default="numbers")
    given = options.parse_args()
    asyncio.run(run(given.bootstrap, given.topic))


if __name__ == "__main__":
    main()
