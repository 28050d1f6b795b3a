"""A transactional producer by the plain protocol, for tests."""

import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from support.cluster import Cluster
from support.waiting import wait_until
from support.wire import CALL_S, Wire, now_ms

from penstock.core.batch import Batch, BatchFlags
from penstock.core.records import build_batch, encode_columns
from penstock.core.types import NO_LEADER, ProducerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.errors import error_from_rpc, error_from_wire

_A = TypeVar("_A")
AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNREACHABLE,
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.CONTROLLER_UNAVAILABLE,
    }
)


def transactional_batch(
    values: Sequence[bytes], producer_id: int, epoch: int, sequence: int
) -> Batch:
    return build_batch(
        encode_columns(list(values), timestamps_ms=now_ms()),
        producer_id=ProducerId(producer_id),
        producer_epoch=epoch,
        base_sequence=sequence,
        flags=BatchFlags.TRANSACTIONAL,
    )


class Transactions:
    """The transaction calls of one broker."""

    def __init__(self, address: str) -> None:
        self.wire = Wire(address)
        self.calls = TransactionServiceStub(self.wire.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wire.channel.close()

    def call(self, name: str, request: Any, timeout_s: float = CALL_S) -> Any:
        """Raises PenstockError."""
        try:
            return getattr(self.calls, name)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error

    def init(self, **fields: Any) -> broker_pb2.InitProducerResponse:
        """InitProducer; raises PenstockError."""
        named = {"producer_id": -1, "instance_id": str(uuid.uuid4()), **fields}
        request = broker_pb2.InitProducerRequest(**named)
        try:
            answer = self.wire.data.InitProducer(request, timeout=120)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        if answer.HasField("error"):
            raise error_from_wire(answer.error)
        return answer


def again(act: Callable[[], _A], *, what: str) -> _A:
    """The answer of `act` once it is not refused for a moment's reason."""

    def attempt() -> tuple[_A] | None:
        try:
            return (act(),)
        except PenstockError as error:
            if error.code not in AGAIN:
                raise
            return None

    return wait_until(attempt, what=what)[0]


def leader_of(cluster: Cluster, topic: str, number: int = 0) -> int:
    """Raises PenstockError while nobody leads."""
    leader = cluster.leader(topic, number)
    if leader == NO_LEADER:
        raise ClusterError(f"nobody leads {topic}/{number}", ErrorCode.LEADER_NOT_AVAILABLE)
    return leader


def partition_transactions(
    cluster: Cluster, topic: str, number: int = 0
) -> pb.PartitionTransactions:
    """As the partition's leader sees it, once there is one."""

    def ask() -> pb.PartitionTransactions:
        with Transactions(cluster.brokers[leader_of(cluster, topic, number)].address) as there:
            request = pb.DescribePartitionTransactionsRequest(
                partitions=[pb.TopicPartitionName(topic=topic, partition=number)]
            )
            found: pb.PartitionTransactions
            (found,) = there.call("DescribePartitionTransactions", request).partitions
        if found.HasField("error"):
            raise error_from_wire(found.error)
        return found

    return again(ask, what=f"the leader of {topic}/{number}")


class TransactionalProducer:
    """One producer object of a cluster. Looks up coordinator and leaders for every call."""

    def __init__(self, cluster: Cluster, transactional_id: str, **init: Any) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self._init = {"instance_id": str(uuid.uuid4()), **init}
        self._sequences: dict[tuple[str, int], int] = {}
        self.producer_id = self.epoch = -1

    def coordinator(self) -> int:
        """The broker id, as a running broker has it."""
        broker = next(b for b in self.cluster.brokers if self.cluster.brokers[b].is_running)

        def find() -> int:
            with Transactions(self.cluster.brokers[broker].address) as found:
                request = pb.FindTransactionCoordinatorRequest(
                    transactional_id=self.transactional_id
                )
                answer = found.call("FindTransactionCoordinator", request)
            return int(answer.broker_id)

        return int(again(find, what="a coordinator"))

    def init(self) -> Self:
        def attempt() -> broker_pb2.InitProducerResponse:
            with Transactions(self.cluster.brokers[self.coordinator()].address) as there:
                return there.init(transactional_id=self.transactional_id, **self._init)

        answer = again(attempt, what="the producer has its id")
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        return self

    def part_of(self) -> dict[str, Any]:
        """What a commit of offsets says that is part of its transaction of this moment."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def send(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """Produces one batch; its base offset. Raises PenstockError."""
        sequence = self._sequences.get((topic, partition), 0)
        batch = transactional_batch(values, self.producer_id, self.epoch, sequence)
        part = broker_pb2.ProducePartition(
            topic=topic, partition=partition, batch=batch_to_wire(batch)
        )
        request = broker_pb2.ProduceRequest(
            acks=broker_pb2.ACKS_ALL,
            timeout_ms=60_000,
            partitions=[part],
            transactional_id=self.transactional_id,
        )

        def attempt() -> int:
            leader = leader_of(self.cluster, topic, partition)
            with Wire(self.cluster.brokers[leader].address) as wire:
                try:
                    (result,) = wire.data.Produce(request, timeout=120).results
                except grpc.RpcError as error:
                    raise error_from_rpc(error) from error
            if result.HasField("error"):
                raise error_from_wire(result.error)
            return int(result.base_offset)

        offset = int(again(attempt, what=f"stored in {topic}/{partition}"))
        self._sequences[topic, partition] = sequence + len(values)
        return offset

    def end_request(
        self, *, commit: bool, wait_visible_ms: int = 60_000
    ) -> pb.EndTransactionRequest:
        return pb.EndTransactionRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            commit=commit,
            wait_visible_ms=wait_visible_ms,
        )

    def end(self, *, commit: bool, wait_visible_ms: int = 60_000) -> pb.EndTransactionResponse:
        """EndTransaction; the next epoch is taken over. Raises PenstockError."""
        request = self.end_request(commit=commit, wait_visible_ms=wait_visible_ms)

        def attempt() -> pb.EndTransactionResponse:
            with Transactions(self.cluster.brokers[self.coordinator()].address) as there:
                ended: pb.EndTransactionResponse = there.call("EndTransaction", request)
            return ended

        answer = again(attempt, what="the end is decided")
        self.ended(answer)
        return answer

    def ended(self, answer: pb.EndTransactionResponse) -> None:
        """Takes over the next epoch."""
        self.producer_id, self.epoch = answer.next_producer_id, answer.next_producer_epoch
        self._sequences.clear()

    def ask(self, name: str, request: Any) -> Any:
        """A call of TransactionService, to the coordinator."""

        def attempt() -> Any:
            with Transactions(self.cluster.brokers[self.coordinator()].address) as there:
                return there.call(name, request)

        return again(attempt, what=name)

    def description(self) -> pb.TransactionDescription:
        request = pb.DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        found: pb.TransactionDescription
        (found,) = self.ask("DescribeTransactions", request).transactions
        return found
