"""Answers that a healthy broker does not give on demand: lost, late, refused, wrong, corrupt.

The double below is a real gRPC server on loopback that keeps a log per partition by the
protocol's rules for producers, and asks a script before every answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import Any

import grpc
import pytest
from support.waiting import wait_until_async

from penstock.client import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    DeliveryError,
    TopicPartition,
)
from penstock.core.batch import Batch
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset
from penstock.errors import (
    ClusterError,
    CurrentLeader,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetRange,
    OverloadedError,
    PenstockError,
)
from penstock.proto.v1 import admin_pb2, broker_pb2_grpc, records_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import (
    AdminServiceServicer,
    add_AdminServiceServicer_to_server,
)
from penstock.rpc.batches import batch_from_wire, batch_to_wire
from penstock.rpc.errors import abort, error_to_wire

HERE = TopicPartition("t", 0)
Script = Iterator[PenstockError | str | None]
"""Per request: an error to answer, what to do instead, or None = as it should be."""


def refused(code: ErrorCode) -> ClusterError:
    return ClusterError(f"scripted {code.name}", code)


class Double(broker_pb2_grpc.BrokerServiceServicer, AdminServiceServicer):
    """One broker with topic t of one partition. `script` tells it how to misbehave."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.broker_ports = [port]
        self.script: Script = iter(())
        self.cluster_id = "cluster"
        self.values: list[bytes | None] = []
        self.requests: list[tuple[int, int, int]] = []
        self.stored: list[records_pb2.RecordBatch] = []
        self.expected: dict[tuple[int, int], int] = {}
        self.landed: dict[tuple[int, int, int], int] = {}
        self.inits: list[tuple[int, int]] = []
        self.next_producer_id = 100
        self.fetches = 0
        self.silent = asyncio.Event()
        self.told_epoch = self.own_epoch = 1
        """The leader epoch in metadata, and the one the broker leads in."""
        self.told_leader = 0
        self.named_epochs: list[int] = []
        self.topic_id = "id"
        self.hidden = False
        self.asked_when_hidden = 0
        """How often metadata of the topic was requested in vain."""

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802
        shown = "t" in request.topics and not self.hidden
        self.asked_when_hidden += "t" in request.topics and self.hidden
        partition = pb.PartitionInfo(
            leader=self.told_leader,
            leader_epoch=self.told_epoch,
            replicas=[0, 1],
            isr=[0, 1],
            version=1,
        )
        return pb.MetadataResponse(
            cluster_id=self.cluster_id,
            metadata_version=self.told_epoch,
            brokers=[
                pb.BrokerInfo(broker_id=broker_id, host="127.0.0.1", port=port, alive=True)
                for broker_id, port in enumerate(self.broker_ports)
            ],
            topics=[pb.TopicInfo(topic="t", topic_id=self.topic_id, partitions=[partition])]
            * shown,
        )

    async def InitProducer(self, request: Any, context: Any) -> pb.InitProducerResponse:  # noqa: N802
        self.inits.append((request.producer_id, request.producer_epoch))
        if request.producer_id >= 0:
            return pb.InitProducerResponse(
                producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
            )
        self.next_producer_id += 1
        return pb.InitProducerResponse(producer_id=self.next_producer_id, producer_epoch=0)

    async def ProduceStream(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        async for request in requests:
            (part,) = request.partitions
            order = next(self.script, None)
            header = part.batch
            self.named_epochs.append(part.leader_epoch)
            self.requests.append((header.producer_id, header.producer_epoch, header.base_sequence))
            if order == "cut before":
                await abort(context, refused(ErrorCode.SHUTTING_DOWN))
            result = pb.ProduceResult(topic="t", base_offset=-1)
            if isinstance(order, PenstockError):
                result.error.CopyFrom(error_to_wire(order))
            elif part.leader_epoch not in {0, self.own_epoch}:
                result.error.CopyFrom(error_to_wire(self.other_epoch(part.leader_epoch)))
            else:
                self.append(part.batch, result)
            if order == "cut after":
                await context.abort(grpc.StatusCode.CANCELLED, "gone")
            if order == "expired after":
                await abort(context, refused(ErrorCode.CREDENTIALS_EXPIRED))
            if order == "denied after":
                await abort(context, refused(ErrorCode.PERMISSION_DENIED))
            if order == "silent":
                continue
            answer = pb.ProduceResponse(correlation_id=request.correlation_id, results=[result])
            if order == "empty":
                del answer.results[:]
            await context.write(answer)

    def other_epoch(self, named: int) -> NotLeaderError:
        """What a leader answers to a request that names another epoch than its own."""
        older = named < self.own_epoch
        code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        leader = CurrentLeader(0, self.own_epoch, "127.0.0.1", self.port)
        return NotLeaderError(f"epoch {named}", code, leader)

    def append(self, message: records_pb2.RecordBatch, result: pb.ProduceResult) -> None:
        """The protocol's rules: a gap is refused, a repetition answered with where it is."""
        batch = batch_from_wire(message)
        header = batch.header
        who = (header.producer_id, header.producer_epoch)
        once = (*who, header.base_sequence)
        if once in self.landed:
            result.base_offset, result.duplicate = self.landed[once], True
            return
        if header.base_sequence != self.expected.get(who, 0):
            result.error.CopyFrom(error_to_wire(refused(ErrorCode.OUT_OF_ORDER_SEQUENCE)))
            return
        self.expected[who] = header.base_sequence + header.record_count
        self.landed[once] = result.base_offset = len(self.values)
        self.values += decode_batch(batch).values()

    async def Fetch(self, request: Any, context: Any) -> pb.FetchResponse:  # noqa: N802
        self.fetches += 1
        order = next(self.script, None)
        if order == "cancel":
            await context.abort(grpc.StatusCode.CANCELLED, "gone")
        (part,) = request.partitions
        result = pb.FetchResult(
            topic="t", topic_id="id", high_watermark=10**6, last_stable_offset=10**6
        )
        if isinstance(order, PenstockError):
            result.error.CopyFrom(error_to_wire(order))
        else:
            result.batches.extend(
                one for one in self.stored if one.base_offset + one.record_count > part.offset
            )
            if not result.batches:
                await asyncio.sleep(request.max_wait_ms / 1000)  # polls as a broker would
        return pb.FetchResponse(results=[result])

    async def ListOffsets(self, request: Any, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802
        return pb.ListOffsetsResponse(results=[pb.ListOffsetsResult(topic="t", offset=0)])

    async def CreateTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        order = next(self.script, None)
        if order == "cut after":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        if order == "silent":
            self.silent.set()
            await asyncio.Event().wait()
        result = admin_pb2.TopicResult(topic=request.topics[0].topic)
        if isinstance(order, PenstockError):
            result.error.CopyFrom(error_to_wire(order))
        return admin_pb2.CreateTopicsResponse(results=[result])


@asynccontextmanager
async def serving() -> AsyncIterator[Double]:
    """A double that answers on a port of its own."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    made = Double(port)  # type: ignore[abstract]  # other calls are unimplemented
    broker_pb2_grpc.add_BrokerServiceServicer_to_server(made, server)
    add_AdminServiceServicer_to_server(made, server)
    await server.start()
    try:
        yield made
    finally:
        await server.stop(grace=None)


@pytest.fixture
async def double() -> AsyncIterator[Double]:
    async with serving() as made:
        yield made


@asynccontextmanager
async def producing(double: Double, **options: Any) -> AsyncIterator[AsyncProducer]:
    """A producer whose every record is a batch of its own."""
    settings = {"linger_ms": 0, "batch_bytes": 300, "retry_backoff_ms": 1, **options}
    async with AsyncProducer(f"127.0.0.1:{double.port}", **settings) as producer:
        await producer.prepare("t")
        yield producer


async def send(producer: AsyncProducer, count: int, *, first: int = 0) -> list[Any]:
    """What became of records 0, 1, …: the offset, or the error."""
    deliveries = [
        await producer.send("t", b"%d" % index + b" " * 30) for index in range(first, first + count)
    ]
    outcomes: list[Any] = []
    for delivery in deliveries:
        try:
            outcomes.append((await delivery).offset)
        except DeliveryError as error:
            outcomes.append(error)
    return outcomes


def indexes(double: Double) -> list[int]:
    return [int(value or b"") for value in double.values]


async def test_a_record_wakes_the_link_to_its_leader_at_once(double: Double) -> None:
    """Behind the sender, which looks first; else the link would go a turn later."""
    async with producing(double) as producer:
        await send(producer, 1)
        assert producer._sender is not None
        (link,) = producer._sender._links.values()
        await wait_until_async(lambda: not link._work.is_set(), what="nothing is left to send")
        delivery = producer.send_nowait("t", b"1")
        assert link._work.is_set()
        assert (await delivery).offset == 1


@pytest.mark.parametrize(
    "fault",
    [
        "cut before",
        "cut after",
        "empty",
        refused(ErrorCode.NOT_ENOUGH_REPLICAS),
        refused(ErrorCode.DISK_FULL),
        refused(ErrorCode.NOT_LEADER),
        refused(ErrorCode.REQUEST_TIMED_OUT),
        refused(ErrorCode.STORAGE_FAILED),
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [0, 3, 7])
async def test_passing_faults_neither_lose_nor_double_nor_reorder(
    double: Double, fault: PenstockError | str, at: int
) -> None:
    async with producing(double) as producer:
        double.script = iter([None] * at + [fault, None, fault])
        outcomes = await send(producer, 20)
    if fault == "empty":
        # A defect of the broker: what it did is unknown, and nothing is sent twice.
        assert [o.unknown_outcome for o in outcomes if isinstance(o, DeliveryError)]
        assert indexes(double) == sorted(set(indexes(double)))
        return
    assert outcomes == list(range(20))
    assert indexes(double) == list(range(20))
    assert len({epoch for _, epoch, _ in double.requests}) == 1, "numbers never change on a retry"


async def test_a_definite_refusal_fails_one_batch_under_a_new_epoch_for_the_rest(
    double: Double,
) -> None:
    async with producing(double) as producer:
        double.script = iter([None, refused(ErrorCode.INVALID_TIMESTAMP)])
        outcomes = await send(producer, 8)
        assert isinstance(outcomes[1], DeliveryError)
        assert outcomes[1].code is ErrorCode.INVALID_TIMESTAMP
        assert not outcomes[1].unknown_outcome
        assert [o for o in outcomes if not isinstance(o, DeliveryError)] == list(range(7))
        assert indexes(double) == [0, 2, 3, 4, 5, 6, 7]
        assert double.inits == [(-1, -1), (101, 0)]
        assert await producer.close() == 1


async def test_a_broker_that_forgot_the_producer_is_answered_with_a_new_epoch(
    double: Double,
) -> None:
    async with producing(double) as producer:
        assert await send(producer, 3) == [0, 1, 2]
        double.expected.clear()
        double.landed.clear()
        assert await send(producer, 3, first=3) == [3, 4, 5]
    assert indexes(double) == list(range(6))
    assert double.inits == [(-1, -1), (101, 0)]


async def test_a_defect_in_the_broker_is_an_unknown_outcome(double: Double) -> None:
    async with producing(double) as producer:
        double.script = iter([refused(ErrorCode.INTERNAL)])
        (error,) = await send(producer, 1)
        assert error.code is ErrorCode.INTERNAL
        assert error.unknown_outcome
        assert "may be in the log" in error.message
        assert await send(producer, 2, first=1) == [0, 1]


async def test_silence_ends_with_the_request_timeout_and_the_batch_is_sent_again(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.producer.sender.STALL_MS", 100)
    async with producing(double, request_timeout_ms=300) as producer:
        double.script = iter(["silent", "silent"])
        async with asyncio.timeout(600):
            assert await send(producer, 4) == [0, 1, 2, 3]
    assert indexes(double) == [0, 1, 2, 3]


async def test_an_answer_that_comes_too_late_is_an_unknown_outcome_in_time(
    double: Double,
) -> None:
    options = {"delivery_timeout_ms": 400, "request_timeout_ms": 600_000}
    async with asyncio.timeout(300), producing(double, **options) as producer:
        double.script = repeat("silent")
        errors: list[DeliveryError] = []
        while not double.requests:  # a machine that stalls takes all the time before it is sent
            errors += await send(producer, 1)
        assert {error.code for error in errors} == {ErrorCode.DELIVERY_TIMED_OUT}
        assert any(error.unknown_outcome for error in errors)
        assert await producer.close() == len(errors)


async def test_an_overloaded_broker_is_left_alone_as_long_as_it_says(double: Double) -> None:
    async with producing(double) as producer:
        double.script = iter([OverloadedError("full", throttle_ms=700)])
        begun = asyncio.get_running_loop().time()
        assert await send(producer, 1) == [0]
        assert asyncio.get_running_loop().time() - begun >= 0.65


async def test_a_broker_of_another_cluster_is_refused(double: Double) -> None:
    async with AsyncConsumer(f"127.0.0.1:{double.port}") as consumer:
        await consumer.assign([HERE])
        double.cluster_id = "another"
        with pytest.raises(ClusterError, match="'another'") as mismatch:
            await consumer._cluster.refresh()
        assert mismatch.value.code is ErrorCode.CLUSTER_ID_MISMATCH


def stored(base: int, count: int, damage: Callable[[Batch], Batch] | None = None) -> Any:
    columns = encode_columns([b"%d" % (base + i) for i in range(count)], timestamps_ms=5)
    batch = build_batch(columns).stamped(Offset(base), LeaderEpoch(1), 0)
    return batch_to_wire(damage(batch) if damage else batch)


def flip(batch: Batch) -> Batch:
    return Batch(batch.header, batch.payload[:-1] + bytes([batch.payload[-1] ^ 1]))


async def test_corrupt_data_is_an_error_with_its_place_after_all_good_data(
    double: Double,
) -> None:
    double.stored = [stored(0, 5), stored(5, 5, flip), stored(10, 5)]
    async with AsyncConsumer(f"127.0.0.1:{double.port}") as consumer:
        await consumer.assign([HERE])
        (batch,) = await consumer.poll(120)
        assert list(batch.offsets()) == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(ClusterError, match=r"t/0 offset 5: .*CRC") as corrupt:
                await consumer.poll(120)
        assert corrupt.value.code is ErrorCode.CORRUPT_BATCH
        assert await consumer.position(HERE) == 5
        double.stored[1] = stored(5, 5)
        await consumer.seek(HERE, 5)
        seen: list[int] = []
        while len(seen) < 10:
            seen += [offset for batch in await consumer.poll(120) for offset in batch.offsets()]
        assert seen == list(range(5, 15))


async def test_a_topic_that_can_be_seen_no_more_is_told_long_before_the_delivery_timeout(
    double: Double,
) -> None:
    double.script = repeat(refused(ErrorCode.UNKNOWN_TOPIC))
    async with producing(double, unknown_topic_timeout_ms=20) as producer:
        deliveries = [await producer.send("t", b"%d" % number) for number in range(3)]
        for delivery in deliveries:
            with pytest.raises(ClusterError, match="'t': it was deleted, or you may not") as lost:
                async with asyncio.timeout(60):  # the delivery timeout is twice as long
                    await delivery
            assert lost.value.code is ErrorCode.UNKNOWN_TOPIC


async def test_a_topic_that_is_known_again_in_time_takes_its_records(double: Double) -> None:
    double.script = iter([refused(ErrorCode.UNKNOWN_TOPIC)] * 3)
    async with producing(double, unknown_topic_timeout_ms=20_000) as producer:
        report = await (await producer.send("t", b"v"))
        assert report.base_offset == 0


async def test_nothing_is_kept_of_a_topic_that_was_created_again(double: Double) -> None:
    async with asyncio.timeout(600), producing(double) as producer:
        cluster, sender = producer._cluster, producer._sender
        assert cluster is not None
        assert sender is not None
        for number in range(10):
            double.topic_id = f"id-{number}"
            double.landed.clear()
            double.expected.clear()
            await cluster.refresh()
            assert await send(producer, 1, first=number) == [number]
        kept = (sender._lanes, sender._link_of)
        await wait_until_async(lambda: [len(each) for each in kept] == [1, 1], what="one is left")
        assert len(sender._troubles) <= 1


async def test_a_record_that_waits_for_its_topic_to_be_seen_again_is_sent_then(
    double: Double,
) -> None:
    async with asyncio.timeout(600), producing(double, unknown_topic_timeout_ms=60_000) as producer:
        double.hidden, double.script = True, repeat(refused(ErrorCode.UNKNOWN_TOPIC))
        delivery = await producer.send("t", b"v")
        await wait_until_async(lambda: double.asked_when_hidden > 2, what="it asks on and on")
        double.hidden, double.script = False, iter(())
        assert (await delivery).offset == 0


async def test_a_reader_whose_topic_is_seen_again_goes_on(double: Double) -> None:
    bootstrap = f"127.0.0.1:{double.port}"
    options: dict[str, Any] = {"unknown_topic_timeout_ms": 60_000, "retry_backoff_ms": 1}
    async with asyncio.timeout(600), AsyncConsumer(bootstrap, **options) as consumer:
        double.script = repeat(refused(ErrorCode.NOT_LEADER))
        await consumer.assign([HERE])
        double.hidden = True
        await wait_until_async(lambda: double.asked_when_hidden > 2, what="it asks on and on")
        double.hidden, double.script, double.stored = False, iter(()), [stored(0, 5)]
        (batch,) = await consumer.poll(120)
        assert len(batch) == 5


async def test_a_topic_that_was_unknown_once_is_not_given_up_for_a_slow_answer(
    double: Double,
) -> None:
    double.script = iter([refused(ErrorCode.UNKNOWN_TOPIC), "silent"])
    options = {"unknown_topic_timeout_ms": 1, "request_timeout_ms": 500}
    async with producing(double, **options) as producer:
        report = await (await producer.send("t", b"v"))
        assert report.base_offset == 0


async def test_what_was_written_to_a_stream_whose_credentials_ended_may_be_in_the_log(
    double: Double,
) -> None:
    """The code says of a call that it had no effect; of a stream it says when it ended (I8)."""
    double.script = chain(["expired after"], repeat(refused(ErrorCode.NOT_ENOUGH_REPLICAS)))
    options = {"delivery_timeout_ms": 500, "request_timeout_ms": 400}
    async with producing(double, **options) as producer:
        with pytest.raises(DeliveryError) as given_up:
            await (await producer.send("t", b"v"))
    assert given_up.value.unknown_outcome
    assert double.values == [b"v"]


async def test_a_stream_whose_channel_is_closed_while_it_rests_is_opened_again(
    double: Double,
) -> None:
    """As happens to an idle producer a while after its certificate files have changed."""
    async with asyncio.timeout(600), producing(double) as producer:
        assert await send(producer, 1) == [0]
        assert producer._cluster is not None
        connection = producer._cluster.connections.to(f"127.0.0.1:{double.port}")
        former = connection.channel
        connection._open()
        await former.close()
        assert await send(producer, 2, first=1) == [1, 2]


@pytest.mark.parametrize("answered", [True, False])
async def test_a_stream_that_is_denied_at_once_has_taken_nothing(
    double: Double, answered: bool
) -> None:
    double.script = iter([None, "denied after"] if answered else ["denied after"])
    async with producing(double) as producer:
        if answered:
            await (await producer.send("t", b"before"))
        with pytest.raises(DeliveryError) as denied:
            await (await producer.send("t", b"v"))
    assert denied.value.code is ErrorCode.PERMISSION_DENIED
    assert denied.value.unknown_outcome is answered


async def test_a_deposed_leader_without_the_offset_is_left_for_the_next_one(
    double: Double,
) -> None:
    """It has heard of nothing yet; the metadata of others names its successor."""
    async with serving() as successor:
        double.broker_ports = successor.broker_ports = [double.port, successor.port]
        successor.told_leader, successor.told_epoch = 1, 2
        successor.stored = [stored(0, 5), stored(5, 5)]
        double.script = repeat(OffsetOutOfRangeError("beyond", OffsetRange(0, 3)))
        async with AsyncConsumer(f"127.0.0.1:{double.port}") as consumer:
            await consumer.assign([HERE])
            double.told_leader, double.told_epoch = 1, 2
            await consumer.seek(HERE, 5)
            (batch,) = await consumer.poll(120)
        assert [record.offset for record in batch.records()] == [5, 6, 7, 8, 9]
        assert double.fetches


async def test_data_the_broker_found_corrupt_is_an_error_with_its_place(double: Double) -> None:
    double.script = iter([refused(ErrorCode.DATA_CORRUPTED)])
    async with AsyncConsumer(f"127.0.0.1:{double.port}") as consumer:
        await consumer.assign([HERE])
        with pytest.raises(ClusterError, match="t/0 offset 0: scripted") as corrupt:
            await consumer.poll(120)
        assert corrupt.value.code is ErrorCode.DATA_CORRUPTED


@pytest.mark.parametrize(
    "fault",
    [
        "cancel",
        refused(ErrorCode.NOT_LEADER),
        refused(ErrorCode.SHUTTING_DOWN),
        refused(ErrorCode.UNKNOWN_TOPIC),
        OverloadedError("full", throttle_ms=20),
    ],
    ids=str,
)
async def test_passing_faults_are_not_noticed_by_a_reader(
    double: Double, fault: PenstockError | str
) -> None:
    double.stored = [stored(0, 5)]
    double.script = iter([fault] * 3)
    async with AsyncConsumer(f"127.0.0.1:{double.port}", retry_backoff_ms=1) as consumer:
        await consumer.assign([HERE])
        (batch,) = await consumer.poll(120)
        assert len(batch) == 5
    assert double.fetches >= 4


async def test_a_leader_that_knows_less_of_retention_sends_no_reader_back(double: Double) -> None:
    """A deposed leader has removed 5 to 7; the new one still lists 0 as the log's beginning."""
    double.stored = [stored(0, 5), stored(5, 5)]
    double.script = iter([OffsetOutOfRangeError("removed", OffsetRange(Offset(7), Offset(10)))])
    async with AsyncConsumer(
        f"127.0.0.1:{double.port}", on_offset_out_of_range="earliest"
    ) as consumer:
        await consumer.assign([HERE])
        await consumer.seek(HERE, 5)
        while not (batches := await consumer.poll(120)):
            pass
    assert [offset for batch in batches for offset in batch.offsets()] == list(range(5, 10))


async def test_an_idle_reader_asks_seldom(double: Double) -> None:
    async with AsyncConsumer(f"127.0.0.1:{double.port}", fetch_max_wait_ms=600_000) as consumer:
        await consumer.assign([HERE])
        await wait_until_async(lambda: double.fetches, what="it asks")
        for _ in range(20):
            assert await consumer.poll(0.02) == []
    assert double.fetches == 1


async def test_a_topic_whose_creation_was_not_confirmed_counts_as_created(
    double: Double,
) -> None:
    double.script = iter(["cut after", refused(ErrorCode.TOPIC_ALREADY_EXISTS)])
    async with AsyncAdmin(f"127.0.0.1:{double.port}") as admin:
        made = await admin.create_topic("t", 1)
        assert made.topic_id == "id"
        double.script = iter([refused(ErrorCode.TOPIC_ALREADY_EXISTS)])
        with pytest.raises(ClusterError) as exists:
            await admin.create_topic("t", 1, 1)
        assert exists.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_closing_a_client_ends_a_call_under_way_with_an_error(double: Double) -> None:
    double.script = iter(["silent"])
    admin = AsyncAdmin(f"127.0.0.1:{double.port}")

    async def create() -> None:
        with pytest.raises(ClusterError, match="closed") as closed:
            await admin.create_topic("t", 1, 1)
        assert closed.value.code is ErrorCode.CLOSED

    async with asyncio.timeout(600), asyncio.TaskGroup() as group:
        creating = group.create_task(create())
        await double.silent.wait()
        await admin.close()
    assert not creating.cancelled()


async def test_an_epoch_the_client_missed_is_learned_from_the_refusal(double: Double) -> None:
    async with producing(double, max_in_flight=1) as producer:
        assert await send(producer, 1) == [0]
        double.own_epoch = 2
        assert await send(producer, 2, first=1) == [1, 2]
    assert double.named_epochs == [1, 1, 2, 2]
    assert indexes(double) == [0, 1, 2]


async def test_a_leader_deposed_without_knowing_is_given_nothing(double: Double) -> None:
    double.told_epoch = 2
    async with producing(double, max_in_flight=1, retry_backoff_max_ms=5) as producer:
        delivery = await producer.send("t", b"0")
        await wait_until_async(lambda: len(double.named_epochs) >= 3, what="it tries again")
        assert double.values == []
        double.own_epoch = 2  # now it has heard of its new leadership
        assert (await delivery).offset == 0
    assert set(double.named_epochs) == {2}


async def test_a_leader_named_in_a_refusal_is_asked_at_once(double: Double) -> None:
    async with serving() as other:
        double.broker_ports = other.broker_ports = [double.port, other.port]
        leader = CurrentLeader(broker_id=1, leader_epoch=2, host="127.0.0.1", port=other.port)
        other.own_epoch = 2
        moved = NotLeaderError("moved", leader=leader)
        slow: dict[str, Any] = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
        double.script = iter([moved] * 10)
        async with asyncio.timeout(600):
            async with producing(double, **slow) as producer:
                assert await send(producer, 5) == [0, 1, 2, 3, 4]
            assert (indexes(double), indexes(other)) == ([], [0, 1, 2, 3, 4])
            other.stored = [stored(0, 5)]
            bootstrap = f"127.0.0.1:{double.port}"
            async with AsyncConsumer(bootstrap, **slow) as consumer:
                await consumer.assign([HERE])
                double.script = iter([moved] * 10)
                (batch,) = await consumer.poll(120)
                assert len(batch) == 5
