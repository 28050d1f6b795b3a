"""How long a stream goes on after the rule that allowed it has been removed.

    rule put ─▶ stream works ─▶ rule removed: answered ──── time ───▶ the stream says so

What is fetched is written all the time, and what is produced is sent all the time: the first answer
after the rule is gone is the one that refuses.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from penstock.client import AsyncAdmin, AsyncProducer
from penstock.core.authorization import Kind, Operation, Resource, Rule
from penstock.core.records import build_batch, encode_columns
from penstock.errors import ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.batches import batch_to_wire

PATIENCE_S: Final = 60.0
WORKS: Final = 20
"""Answers without an error, after which a stream is known to work."""
BEAT_S: Final = 0.005
GONE: Final = int(ErrorCode.UNKNOWN_TOPIC)
"""What a topic is to whoever has no rule for it."""
Next = Callable[[], Awaitable[int]]
"""The next answer of a stream: its error's code, 0 if it is none."""


class Ruled:
    """A topic of an administrator's, and a user with streams."""

    def __init__(
        self, admin: AsyncAdmin, topic: str, principal: str, user: Mapping[str, str]
    ) -> None:
        """`user`: the `ca_file` and `token_file` of `principal`."""
        self._admin = admin
        self._topic = topic
        self._allowed = Rule(principals=(principal,), operations=(Operation.READ, Operation.WRITE))
        self._ca = Path(user["ca_file"]).read_bytes()
        self._shown = (("authorization", f"Bearer {Path(user['token_file']).read_text()}"),)

    async def stops_after_s(self, stream: Callable[..., Any], partition: int) -> float:
        """From the answer to whoever removes the rule; 0: it had stopped by then.

        `stream`: `subscription` or `produce_stream`. Raises SystemExit if it ends in another way.
        """
        await self._put(self._allowed)
        address = await self._leader(partition)
        async with (
            asyncio.timeout(PATIENCE_S),
            grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(self._ca)) as channel,
        ):
            service = BrokerServiceStub(channel)
            await self._until_allowed(service)
            async with stream(service, self._topic, partition, self._shown) as answer:
                for _ in range(WORKS):
                    if code := await answer():
                        raise SystemExit(f"a stream with a rule is refused: {_named(code)}")
                async with asyncio.TaskGroup() as tasks:
                    removing = tasks.create_task(self._remove())
                    while not (code := await answer()):
                        pass
                    stopped_s = time.perf_counter()
        if code != GONE:
            raise SystemExit(f"a stream without a rule ends with {_named(code)}")
        return max(0.0, stopped_s - removing.result())

    async def _remove(self) -> float:
        """When it was answered."""
        await self._put()
        return time.perf_counter()

    async def _put(self, *rules: Rule) -> None:
        await self._admin.alter_access(Resource(Kind.TOPIC, self._topic), rules)

    async def _leader(self, partition: int) -> str:
        topics = await self._admin.describe_topics([self._topic])
        leader = topics[self._topic].partitions[partition].leader
        cluster = await self._admin.describe_cluster()
        return next(one.address for one in cluster.brokers if one.broker_id == leader)

    async def _until_allowed(self, service: Any) -> None:
        """The broker knows the rule."""
        request = pb.MetadataRequest(topics=[self._topic])
        while True:
            answer = await service.Metadata(request, metadata=self._shown)
            if not any(topic.HasField("error") for topic in answer.topics):
                return
            await asyncio.sleep(BEAT_S)


@asynccontextmanager
async def fed(producer: AsyncProducer, topic: str, partitions: int) -> AsyncIterator[None]:
    """All partitions get records while the block runs."""

    async def feed() -> None:
        while True:
            for partition in range(partitions):
                await producer.send(topic, b".", partition=partition)
            await asyncio.sleep(BEAT_S)

    async with asyncio.TaskGroup() as tasks:
        feeding = tasks.create_task(feed())
        yield
        feeding.cancel()


@asynccontextmanager
async def subscription(
    service: Any, topic: str, partition: int, shown: tuple[tuple[str, str], ...]
) -> AsyncIterator[Next]:
    """A stream that is pushed what is written."""
    call: Any = service.Subscribe(metadata=shown)
    part = pb.FetchPartition(topic=topic, partition=partition)
    await call.write(pb.SubscribeRequest(subscribe=[part], credit_bytes=1 << 30))

    async def answer() -> int:
        results = (await call.read()).results
        return max((int(each.error.code) for each in results), default=0)

    yield answer
    call.cancel()


@asynccontextmanager
async def produce_stream(
    service: Any, topic: str, partition: int, shown: tuple[tuple[str, str], ...]
) -> AsyncIterator[Next]:
    """A stream that writes one request after the other."""
    call: Any = service.ProduceStream(metadata=shown)
    batch = batch_to_wire(build_batch(encode_columns([b"."], timestamps_ms=0)))
    part = pb.ProducePartition(topic=topic, partition=partition, batch=batch)
    request = pb.ProduceRequest(partitions=[part], acks=pb.ACKS_LEADER, timeout_ms=30_000)

    async def answer() -> int:
        await call.write(request)
        return int((await call.read()).results[0].error.code)

    yield answer
    call.cancel()


def _named(code: int) -> str:
    return ErrorCode(code).name
