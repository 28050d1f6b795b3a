"""Attack 17, for transactions: who reads a topic knows the producer ids and epochs of others.

Two users may write to the same topic and group, each under a transactional id of their own. One of
them names the other's producer id.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.identified import ROOT, Identified, as_user, believing, identified, refusal
from support.transaction_wire import AGAIN, transactional_batch
from support.waiting import wait_until_async

from penstock.core.authorization import CLUSTER, Kind, Operation, Prefix, Resource, Rule
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import group_pb2, transaction_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.errors import error_from_rpc, error_from_wire

__all__ = ["believing"]
pytestmark = pytest.mark.usefixtures("believed")
ADA, BOB = "serviceaccount:etl/ada", "serviceaccount:etl/bob"
FENCED, OK = ErrorCode.PRODUCER_FENCED, ErrorCode.UNSPECIFIED


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Identified]:
    async with identified(tmp_path) as made:
        await made.create("orders")
        await made.put(
            CLUSTER,
            *(
                Rule(principals=(who,), operations=(Operation.WRITE,), prefix=Prefix(kind, name))
                for who, kind, name in (
                    (ADA, Kind.TRANSACTIONAL_ID, "adas"),
                    (BOB, Kind.TRANSACTIONAL_ID, "bobs"),
                )
            ),
        )
        both = (ADA, BOB)
        may = (Operation.READ, Operation.WRITE)
        await made.put(Resource(Kind.TOPIC, "orders"), Rule(principals=both, operations=may))
        await made.put(
            Resource(Kind.GROUP, "readers"), Rule(principals=both, operations=(Operation.READ,))
        )
        yield made


async def patiently(call: Any) -> Any:
    """The answer, once coordinators are there."""

    async def answered() -> Any:
        try:
            answer = await call()
            for one in (answer, *getattr(answer, "results", ())):
                if "error" in one.DESCRIPTOR.fields_by_name and one.HasField("error"):
                    raise error_from_wire(one.error)
        except grpc.aio.AioRpcError as error:
            refused: PenstockError = error_from_rpc(error)
        except PenstockError as error:
            refused = error
        else:
            return answer
        if refused.code not in AGAIN:
            raise refused
        return None  # a coordinator that loads its log makes no image to wait for

    return await wait_until_async(answered, what="there are coordinators")


class Writer:
    """A user, and what it does as part of a transaction that it names."""

    def __init__(self, cluster: Identified, who: str, name: str) -> None:
        self._cluster = cluster
        self._data = cluster.stub(BrokerServiceStub)
        self._as = as_user(who)
        self.name = name
        self.id = pb.InitProducerResponse()

    async def init(self) -> None:
        transactions = self._cluster.stub(TransactionServiceStub)
        find = transaction_pb2.FindTransactionCoordinatorRequest(transactional_id=self.name)
        await patiently(lambda: transactions.FindTransactionCoordinator(find, metadata=self._as))
        request = pb.InitProducerRequest(
            producer_id=-1, transactional_id=self.name, instance_id="i"
        )
        self.id = await patiently(lambda: self._data.InitProducer(request, metadata=self._as))

    async def send(self, at: int, value: bytes) -> ErrorCode:
        batch = transactional_batch([value], self.id.producer_id, self.id.producer_epoch, at)
        request = pb.ProduceRequest(
            acks=pb.ACKS_ALL,
            timeout_ms=60_000,
            transactional_id=self.name,
            partitions=[pb.ProducePartition(topic="orders", batch=batch_to_wire(batch))],
        )
        return await refusal(self._data.Produce(request, metadata=self._as))

    async def commit_offset(self, offset: int) -> ErrorCode:
        request = group_pb2.CommitOffsetsRequest(
            group_id="readers",
            member_epoch=-1,
            partitions=[group_pb2.CommitPartition(topic="orders", offset=offset)],
            transactional_id=self.name,
            producer_id=self.id.producer_id,
            producer_epoch=self.id.producer_epoch,
        )
        stub = self._cluster.stub(GroupServiceStub)
        return await refusal(stub.CommitOffsets(request, metadata=self._as))

    async def end(self) -> ErrorCode:
        request = transaction_pb2.EndTransactionRequest(
            transactional_id=self.name,
            producer_id=self.id.producer_id,
            producer_epoch=self.id.producer_epoch,
            commit=True,
            wait_visible_ms=20_000,
        )
        stub = self._cluster.stub(TransactionServiceStub)
        return await refusal(stub.EndTransaction(request, metadata=self._as))


async def test_a_transaction_takes_records_under_its_own_id_only(cluster: Identified) -> None:
    bob, ada = Writer(cluster, BOB, "bobs"), Writer(cluster, ADA, "adas")
    await bob.init()
    await ada.init()
    ada.id = bob.id
    assert await ada.send(0, b"forged") is FENCED, "cannot begin it"
    assert await bob.send(0, b"1") is OK
    assert await ada.send(1, b"forged") is FENCED, "nor add to it"
    assert await ada.end() is FENCED
    assert await bob.send(1, b"2") is OK
    assert await bob.end() is OK
    read = await cluster.stub(BrokerServiceStub).Fetch(
        pb.FetchRequest(partitions=[pb.FetchPartition(topic="orders")]), metadata=as_user(ROOT)
    )
    payload = b"".join(one.payload for one in read.results[0].batches)
    assert b"forged" not in payload
    assert read.results[0].last_stable_offset == 3, "two records and the marker"


async def test_a_transaction_takes_offsets_under_its_own_id_only(cluster: Identified) -> None:
    bob, ada = Writer(cluster, BOB, "bobs"), Writer(cluster, ADA, "adas")
    await bob.init()
    await ada.init()
    ada.id = bob.id
    assert await bob.send(0, b"1") is OK
    groups = cluster.stub(GroupServiceStub)
    find = group_pb2.FindCoordinatorRequest(group_id="readers")
    await patiently(lambda: groups.FindCoordinator(find, metadata=as_user(BOB)))
    ask = group_pb2.FetchOffsetsRequest(group_id="readers")
    await patiently(lambda: groups.FetchOffsets(ask, metadata=as_user(BOB)))
    assert await ada.commit_offset(1) is FENCED, "cannot begin it"
    assert await bob.commit_offset(0) is OK
    assert await ada.commit_offset(1) is FENCED, "nor add to it"
    assert await bob.end() is OK
    kept = await groups.FetchOffsets(ask, metadata=as_user(BOB))
    assert [one.offset for one in kept.offsets] == [0]
