"""The produce path of a broker without its network: real partitions, and streams played by hand.

Topic "t" is led here alone: what is written is acknowledged. Topic "far" has a replica on broker 1,
which does not run, in its ISR: nothing there is acknowledged to acks=ALL.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeAlias

from support.led_partitions import LedPartitions, running
from support.wire import make_batch

from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.errors import PenstockError, UnreachableError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.streams.end import StreamEnd
from penstock.rpc.streams.frames import Received
from penstock_broker.clock import SystemClock
from penstock_broker.metrics import Metrics
from penstock_broker.replication.replica import Replica
from penstock_broker.services.limits import ByteBudget
from penstock_broker.services.locate import Locator
from penstock_broker.services.opening import Opener
from penstock_broker.services.produce_stream import ProduceMessages, ProduceStream
from penstock_broker.services.producing import Producing

TIMEOUT_MS = 60_000
"""Of requests: no test takes as long, unless it moves the clock."""


class MovedClock(SystemClock):
    """Goes on when the test says so; what it is asked to do later waits until then."""

    def __init__(self) -> None:
        self._now_ms = super().now_ms()
        self.alarms: list[tuple[float, Callable[[], None]]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def now_s(self) -> float:
        return self._now_ms / 1000

    def call_at(self, when_s: float, act: Callable[[], None]) -> None:
        self.alarms.append((when_s, act))

    def move(self, ms: int) -> None:
        """Lets time pass, and everything happen that is due by then, in its turn."""
        end_ms = self._now_ms + ms
        while due := [alarm for alarm in self.alarms if _ms(alarm) <= end_ms]:
            first = min(due, key=_ms)
            self.alarms.remove(first)
            self._now_ms = max(self._now_ms, _ms(first))
            first[1]()
        self._now_ms = end_ms


def _ms(alarm: tuple[float, Callable[[], None]]) -> int:
    """When it is due. Rounded: seconds times 1000 can be a little more than the ms they came from,
    which depends on how long the machine has been up."""
    return round(alarm[0] * 1000)


class ProduceScene(LedPartitions):
    """See the module."""

    def __init__(self, *, budget_bytes: int) -> None:
        super().__init__({"t": ("id-t", 1), "far": ("id-far", 1)})
        self.isr_of["far"] = (0, 1)
        self.clock = MovedClock()
        self.metrics = Metrics()
        self.budget = ByteBudget(budget_bytes, "produce")
        self.opening = ThreadPoolExecutor(1)
        """Idle threads of it end with the interpreter."""
        self.refusal: PenstockError | None = None
        self.locator = Locator(self.view, self.replicas)
        self.producing = Producing(
            self.locator,
            self.replicas,
            self.budget,
            self.metrics,
            lambda: self.refusal,
            self.clock,
            opener=Opener(self.view, self.opening),
        )
        self.observed_s: list[float] = []
        self.cluster_id = "cluster"

    def replica(self, topic: str = "t") -> Replica:
        return self.replicas.by_key[ReplicaKey(TopicId(f"id-{topic}"), 0)]

    def stored(self) -> list[bytes]:
        """The values in the log of "t"."""
        slot = self.replica().slot
        return [batch.payload for batch in self.store.read(slot, Offset(0), 1 << 20, Offset(999))]

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"penstock_{name}_total", labels) or 0.0


@asynccontextmanager
async def produce_scene(*, budget_bytes: int = 1 << 20) -> AsyncIterator[ProduceScene]:
    async with running(ProduceScene(budget_bytes=budget_bytes)) as scene:
        yield scene


def part(topic: str = "t", value: bytes = b"a", **producer: int) -> pb.ProducePartition:
    """One batch; `producer`: id, epoch and sequence, as in `make_batch`."""
    batch = make_batch([value], **producer)
    return pb.ProducePartition(topic=topic, batch=batch_to_wire(batch))


def request(
    number: int, *parts: pb.ProducePartition, acks: pb.Acks.ValueType = pb.ACKS_ALL
) -> pb.ProduceRequest:
    """`number` comes back with its answer."""
    return pb.ProduceRequest(
        correlation_id=number, acks=acks, timeout_ms=TIMEOUT_MS, partitions=parts
    )


class _Played:
    """A client's end. `readable`: it takes answers; `taken`: requests the broker has read."""

    reads_ahead = 0
    """Requests that are read while as many as allowed have no answer."""

    def __init__(self) -> None:
        self.answers: list[pb.ProduceResponse] = []
        self.readable = asyncio.Event()
        self.readable.set()
        self.writing = 0
        self.taken = 0

    @property
    def answered(self) -> list[int]:
        """Correlation ids, in the order of the answers."""
        return [answer.correlation_id for answer in self.answers]

    async def _written(self, answer: pb.ProduceResponse) -> None:
        self.writing += 1
        try:
            await self.readable.wait()
        finally:
            self.writing -= 1
        self.answers.append(answer)


class PlayedStream(_Played):
    """A client's gRPC stream."""

    reads_ahead = 1

    def __init__(self, scene: ProduceScene, *, inflight_max: int = 64) -> None:
        super().__init__()
        self._requests: asyncio.Queue[pb.ProduceRequest | None] = asyncio.Queue()
        self._stream = ProduceStream(scene.producing, self, scene.observed_s.append, inflight_max)

    def send(self, *requests: pb.ProduceRequest) -> None:
        for each in requests:
            self._requests.put_nowait(each)

    def close(self) -> None:
        """The client has nothing more to send."""
        self._requests.put_nowait(None)

    async def run(self) -> None:
        """The broker's side."""
        await self._stream.run(self)

    # ------------------------------------------------------------ what the stream is given

    def __aiter__(self) -> "PlayedStream":
        return self

    async def __anext__(self) -> pb.ProduceRequest:
        each = await self._requests.get()
        if each is None:
            raise StopAsyncIteration
        self.taken += 1
        return each

    async def write(self, answer: pb.ProduceResponse) -> None:
        await self._written(answer)


class PlayedMessages(_Played):
    """A client's message stream. `posted`: answers that did not have to wait."""

    def __init__(self, scene: ProduceScene, *, inflight_max: int = 64) -> None:
        super().__init__()
        self.posted = 0
        self._end = _BrokersEnd(self)
        self._stream = ProduceMessages(
            scene.producing,
            self._end,
            scene.observed_s.append,
            inflight_max,
            lambda: scene.cluster_id,
        )

    def send(self, *requests: pb.ProduceRequest) -> None:
        self.send_bytes(*(each.SerializeToString() for each in requests))

    def send_bytes(self, *messages: bytes) -> None:
        for each in messages:
            self._end.arrived(each)

    def close(self) -> None:
        """The client ends the stream: it takes nothing any more, as every message stream."""
        self._end.over(None)

    def vanish(self) -> None:
        """The connection breaks."""
        self._end.over(UnreachableError("the connection ended"))

    async def run(self) -> None:
        """The broker's side."""
        await self._stream.run()

    def post(self, message: bytes) -> bool:
        """What the broker posts is taken, if there is room."""
        if not self.readable.is_set():
            return False
        self.posted += 1
        self.answers.append(pb.ProduceResponse.FromString(message))
        return True

    async def take(self, message: bytes) -> None:
        """What the broker sends."""
        await self._written(pb.ProduceResponse.FromString(message))


class _BrokersEnd(StreamEnd):
    """A `MessageStream` whose other end is played."""

    def __init__(self, client: PlayedMessages) -> None:
        super().__init__()
        self._client = client

    async def deliver(self, receive: Callable[[Received], None]) -> None:
        def counted(message: Received) -> None:
            self._client.taken += 1
            receive(message)

        await super().deliver(counted)

    def post(self, message: bytes) -> bool:
        return not self.is_over and self._client.post(message)

    async def send(self, message: bytes) -> None:
        self.check_open()
        await self._client.take(message)

    async def close(self, error: PenstockError | None = None, /) -> None:
        self.over(error)


Played: TypeAlias = PlayedStream | PlayedMessages
