"""Two thousand transactional ids begin at once: all are served, in bounded time and memory (I23).

Every id takes its producer, writes one record and commits, by the plain protocol, as fast as the
brokers let it; who is told to come back later does so. All are open together for a moment.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import grpc
from support.cluster import Cluster
from support.transaction_wire import AGAIN, transactional_batch
from support.waiting import wait_until, wait_until_async

from penstock.client import Admin, Consumer, Producer, TopicPartition, TransactionState
from penstock.core.transactions.config import TRANSACTIONS_TOPIC, coordinator_partition
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import transaction_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.channel import open_aio_channel
from penstock.rpc.errors import error_from_rpc, error_from_wire

IDS = 2_000
PARTITIONS = 6
PATIENCE_S = 300
GROWTH_BYTES_MAX = 100 << 20
"""Of a broker's largest resident set, whatever it had before."""
ATTEMPTS_MAX = 200
"""Who is sent away more often than that is in a storm that does not end."""
TOPIC = "many"
T = TypeVar("T")


def peak_bytes(pid: int) -> int:
    """The largest resident set so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


class Crowd:
    """All producers, over one connection per broker."""

    def __init__(self, cluster: Cluster, channels: dict[int, grpc.aio.Channel]) -> None:
        info = cluster.topic(TRANSACTIONS_TOPIC)
        assert info is not None
        leaders = {part.partition: part.leader for part in info.partitions}
        self._coordinators = [
            leaders[coordinator_partition(f"many-{number}", len(leaders))] for number in range(IDS)
        ]
        self._leaders = [cluster.leader(TOPIC, partition) for partition in range(PARTITIONS)]
        self._channels = channels
        self.producers: dict[int, tuple[int, int]] = {}
        self.sent_away: Counter[str] = Counter()

    async def all_do(self, step: Callable[[int], Awaitable[None]]) -> None:
        """Every id at once."""
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for number in range(IDS):
                tasks.create_task(self._insist(step, number))

    async def init(self, number: int) -> None:
        request = pb.InitProducerRequest(
            producer_id=-1,
            instance_id=str(uuid.uuid4()),
            transactional_id=f"many-{number}",
            transaction_timeout_ms=600_000,
        )
        broker = BrokerServiceStub(self._channels[self._coordinators[number]])
        answer = await broker.InitProducer(request, timeout=PATIENCE_S)
        if answer.HasField("error"):
            raise error_from_wire(answer.error)
        self.producers[number] = (answer.producer_id, answer.producer_epoch)

    async def send(self, number: int) -> None:
        partition = number % PARTITIONS
        batch = transactional_batch([b"%d" % number], *self.producers[number], 0)
        part = pb.ProducePartition(topic=TOPIC, partition=partition, batch=batch_to_wire(batch))
        request = pb.ProduceRequest(
            acks=pb.ACKS_ALL,
            timeout_ms=PATIENCE_S * 1_000,
            partitions=[part],
            transactional_id=f"many-{number}",
        )
        broker = BrokerServiceStub(self._channels[self._leaders[partition]])
        (result,) = (await broker.Produce(request, timeout=PATIENCE_S)).results
        if result.HasField("error"):
            raise error_from_wire(result.error)

    async def commit(self, number: int) -> None:
        producer_id, epoch = self.producers[number]
        request = transaction_pb2.EndTransactionRequest(
            transactional_id=f"many-{number}",
            producer_id=producer_id,
            producer_epoch=epoch,
            commit=True,
        )
        broker = TransactionServiceStub(self._channels[self._coordinators[number]])
        answer = await broker.EndTransaction(request, timeout=PATIENCE_S)
        if answer.HasField("error"):
            raise error_from_wire(answer.error)

    async def _insist(self, step: Callable[[int], Awaitable[None]], number: int) -> None:
        attempts = 0

        async def served() -> bool:
            nonlocal attempts
            attempts += 1
            assert attempts <= ATTEMPTS_MAX, f"many-{number} is sent away: {self.sent_away}"
            try:
                await step(number)
            except grpc.RpcError as error:
                self._later(error_from_rpc(error))
                return False
            except PenstockError as error:
                self._later(error)
                return False
            return True

        await wait_until_async(served, what=f"many-{number} is served", timeout_s=PATIENCE_S)

    def _later(self, error: PenstockError) -> None:
        """Counts it; raises what no retry helps against."""
        self.sent_away[error.code.name] += 1
        if error.code not in AGAIN | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.OVERLOADED}:
            raise error


def test_two_thousand_ids_are_open_at_once(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, partitions=PARTITIONS)
    with Producer(cluster.bootstrap, transactional_id="first") as producer:
        producer.transaction().begin()  # creates the coordinators
    cluster.wait_leaders(TRANSACTIONS_TOPIC)
    with Admin(cluster.bootstrap) as admin:
        before = {broker.name: peak_bytes(broker.pid) for broker in cluster.brokers.values()}

        async def play() -> Crowd:
            async with AsyncExitStack() as stack:
                channels = {
                    broker_id: await stack.enter_async_context(open_aio_channel(broker.address))
                    for broker_id, broker in cluster.brokers.items()
                }
                crowd = Crowd(cluster, channels)
                await crowd.all_do(crowd.init)
                await crowd.all_do(crowd.send)
                assert len(admin.list_transactions([TransactionState.OPEN])) == IDS
                await crowd.all_do(crowd.commit)
                return crowd

        crowd = asyncio.run(play())
        print(f"sent away: {dict(crowd.sent_away)}")
        wait_until(
            lambda: (
                not any(
                    one.finishing or one.state is TransactionState.OPEN
                    for one in admin.list_transactions()
                )
            ),
            what="all have ended, and everybody has heard",
            timeout_s=PATIENCE_S,
        )
    seen: list[int] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)])

        def all_read() -> bool:
            for batch in consumer.poll(0.5):
                seen.extend(int(record.value or b"") for record in batch.records())
            return len(seen) >= IDS

        wait_until(all_read, what="readers see every record")
    assert sorted(seen) == list(range(IDS))
    for broker in cluster.brokers.values():
        growth = peak_bytes(broker.pid) - before[broker.name]
        print(f"{broker.name}: {growth >> 20} MiB more than before")
        assert growth < GROWTH_BYTES_MAX
