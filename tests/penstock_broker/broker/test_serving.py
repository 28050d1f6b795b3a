"""One broker and its controller as real processes: the plain protocol end to end."""

import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.cluster import Cluster
from support.wire import Wire, make_batch, now_ms

from penstock.errors import OffsetOutOfRangeError, PenstockError
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire


@pytest.fixture
def wire(shared_broker: Cluster) -> Iterator[Wire]:
    with Wire(shared_broker.brokers[0].address) as wire:
        yield wire


@pytest.fixture
def topic(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", ".").replace("]", "")[-200:]
    shared_broker.create_topic(name)
    return name


def test_what_is_produced_is_fetched_in_order(wire: Wire, topic: str) -> None:
    first = wire.produce(topic, [b"a", b"b"])
    second = wire.produce(topic, [b"c"])
    assert (first.base_offset, second.base_offset) == (0, 2)
    assert wire.read_all(topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("acks", [pb.ACKS_LEADER, pb.ACKS_ALL])
@pytest.mark.parametrize("sync", [pb.SYNC_OS, pb.SYNC_DISK])
def test_the_answer_says_what_was_reached(
    wire: Wire, topic: str, acks: pb.Acks.ValueType, sync: pb.Sync.ValueType
) -> None:
    result = wire.produce(topic, [b"a"], acks=acks, sync=sync)
    assert (result.acks, result.sync, result.base_offset) == (acks, sync, 0)


def test_acks_none_is_answered_without_an_offset(wire: Wire, topic: str) -> None:
    assert wire.produce(topic, [b"a"], acks=pb.ACKS_NONE).base_offset == -1
    result = wire.fetch(topic, 0, max_wait_ms=60_000)
    assert len(result.batches) == 1


def test_partitions_of_one_request_have_results_of_their_own(wire: Wire, topic: str) -> None:
    batch = batch_to_wire(make_batch([b"a"]))
    request = pb.ProduceRequest(
        partitions=[
            pb.ProducePartition(topic=topic, partition=0, batch=batch),
            pb.ProducePartition(topic=topic, partition=7, batch=batch),
            pb.ProducePartition(topic="no-such-topic", partition=0, batch=batch),
        ]
    )
    good, no_partition, no_topic = wire.data.Produce(request, timeout=120).results
    assert not good.HasField("error")
    assert no_partition.error.code == 23
    assert no_topic.error.code == 20


def test_a_stream_of_produces_keeps_their_order_and_answers_by_correlation(
    wire: Wire, topic: str
) -> None:
    def requests() -> Iterator[pb.ProduceRequest]:
        for number in range(200):
            batch = batch_to_wire(make_batch([b"%d" % number]))
            part = pb.ProducePartition(topic=topic, batch=batch)
            yield pb.ProduceRequest(correlation_id=number, partitions=[part])

    answers = list(wire.data.ProduceStream(requests(), timeout=120))
    assert {answer.correlation_id: answer.results[0].base_offset for answer in answers} == {
        number: number for number in range(200)
    }
    assert wire.read_all(topic) == [b"%d" % number for number in range(200)]


def test_a_parked_fetch_is_woken_by_the_next_record(
    shared_broker: Cluster, wire: Wire, topic: str
) -> None:
    results: list[pb.FetchResult] = []

    def wait_for_record() -> None:
        with Wire(shared_broker.brokers[0].address) as other:
            results.append(other.fetch(topic, 0, max_wait_ms=60_000))

    reader = threading.Thread(target=wait_for_record)
    reader.start()
    wire.produce(topic, [b"a"])
    reader.join(40)
    assert results, "it waits for longer than it would without a record"
    assert len(results[0].batches) == 1


def test_a_fetch_without_records_answers_marks_after_its_wait(wire: Wire, topic: str) -> None:
    wire.produce(topic, [b"a"])
    started = time.monotonic()
    result = wire.fetch(topic, 1, max_wait_ms=300)
    assert time.monotonic() - started > 0.25
    assert (len(result.batches), result.high_watermark) == (0, 1)


def test_min_bytes_holds_an_answer_back_until_enough_is_there(
    shared_broker: Cluster, wire: Wire, topic: str
) -> None:
    def produce_slowly() -> None:
        with Wire(shared_broker.brokers[0].address) as other:
            for _ in range(8):
                other.produce(topic, [b"x" * 1_000])

    writer = threading.Thread(target=produce_slowly)
    writer.start()
    result = wire.fetch(topic, 0, max_wait_ms=60_000, min_bytes=5_000)
    writer.join(120)
    assert sum(len(batch.payload) for batch in result.batches) >= 4_500


def test_size_limits_are_kept_but_one_batch_always_comes(wire: Wire, topic: str) -> None:
    for _ in range(4):
        wire.produce(topic, [b"x" * 10_000])
    assert len(wire.fetch(topic, 0, partition_max_bytes=100).batches) == 1
    assert len(wire.fetch(topic, 0, max_bytes=100).batches) == 1
    assert len(wire.fetch(topic, 0, partition_max_bytes=21_000).batches) == 2
    assert len(wire.fetch(topic, 0).batches) == 4


def test_the_whole_answer_is_limited_over_many_partitions(
    shared_broker: Cluster, wire: Wire, topic: str
) -> None:
    shared_broker.create_topic(topic + ".many", partitions=4)
    for partition in range(4):
        wire.produce(topic + ".many", [b"x" * 10_000], partition=partition)
    request = pb.FetchRequest(
        max_bytes=25_000,
        partitions=[pb.FetchPartition(topic=topic + ".many", partition=n) for n in range(4)],
    )
    results = wire.data.Fetch(request, timeout=120).results
    assert sum(len(result.batches) for result in results) == 2


def test_an_offset_inside_a_batch_returns_that_batch_whole(wire: Wire, topic: str) -> None:
    wire.produce(topic, [b"a", b"b", b"c"])
    (batch,) = wire.fetch(topic, 2).batches
    assert (batch.base_offset, batch.record_count) == (0, 3)


@pytest.mark.parametrize("offset", [-1, 3, 1_000])
def test_an_offset_out_of_range_names_the_range(wire: Wire, topic: str, offset: int) -> None:
    wire.produce(topic, [b"a", b"b"])
    with pytest.raises(OffsetOutOfRangeError) as refused:
        wire.fetch(topic, offset)
    assert refused.value.valid is not None
    assert (refused.value.valid.log_start_offset, refused.value.valid.high_watermark) == (0, 2)


def test_offsets_are_found_by_place_and_by_time(wire: Wire, topic: str) -> None:
    base = now_ms() - 10_000
    wire.produce(topic, make_batch([b"a", b"b", b"c"], timestamps_ms=[base, base + 20, base + 10]))
    wire.produce(topic, make_batch([b"d"], timestamps_ms=[base + 50]))
    assert wire.offsets(topic, earliest=pb.Earliest()).offset == 0
    assert wire.offsets(topic, latest=pb.Latest()).offset == 4
    found = [wire.offsets(topic, timestamp_ms=base + delta) for delta in (0, 5, 20, 21, 51)]
    assert [result.offset for result in found] == [0, 1, 1, 3, -1]
    assert found[1].timestamp_ms == base + 20


def test_log_append_time_is_the_brokers_clock(shared_broker: Cluster, wire: Wire) -> None:
    shared_broker.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    result = wire.produce("stamped", make_batch([b"a"], timestamps_ms=[5]))
    assert before <= result.append_time_ms <= now_ms()
    (batch,) = wire.fetch("stamped", 0).batches
    assert batch.append_time_ms == result.append_time_ms
    assert wire.offsets("stamped", timestamp_ms=before).offset == 0


def test_a_retried_batch_lands_once_and_a_gap_is_refused(wire: Wire, topic: str) -> None:
    given = wire.data.InitProducer(pb.InitProducerRequest(producer_id=-1), timeout=120)
    producer = {"producer_id": given.producer_id, "producer_epoch": 0}
    first = make_batch([b"a", b"b"], base_sequence=0, **producer)
    assert not wire.produce(topic, first).duplicate
    again = wire.produce(topic, first)
    assert (again.duplicate, again.base_offset) == (True, 0)
    gap = make_batch([b"x"], base_sequence=7, **producer)
    with pytest.raises(PenstockError, match="sequence") as refused:
        wire.produce(topic, gap)
    assert refused.value.code.name == "OUT_OF_ORDER_SEQUENCE"
    assert wire.read_all(topic) == [b"a", b"b"]


def test_producer_ids_are_never_given_twice_and_epochs_grow(wire: Wire) -> None:
    asked = [
        wire.data.InitProducer(pb.InitProducerRequest(producer_id=-1), timeout=120)
        for _ in range(50)
    ]
    assert len({given.producer_id for given in asked}) == 50
    again = wire.data.InitProducer(
        pb.InitProducerRequest(producer_id=asked[0].producer_id, producer_epoch=4), timeout=120
    )
    assert (again.producer_id, again.producer_epoch) == (asked[0].producer_id, 5)


def test_a_subscription_pushes_while_credit_lasts(wire: Wire, topic: str) -> None:
    for _ in range(6):
        wire.produce(topic, [b"x" * 1_000])
    more_credit = threading.Event()
    done = threading.Event()

    def requests() -> Iterator[pb.SubscribeRequest]:
        start = pb.FetchPartition(topic=topic, max_bytes=1_100)
        yield pb.SubscribeRequest(subscribe=[start], credit_bytes=2_000, generation=3)
        assert more_credit.wait(40)
        yield pb.SubscribeRequest(credit_bytes=1_000_000)
        done.wait(120)

    answers = wire.data.Subscribe(requests(), timeout=120)
    offsets: list[int] = []
    for answer in answers:
        assert answer.generation == 3
        offsets += [batch.base_offset for result in answer.results for batch in result.batches]
        if len(offsets) == 2:
            more_credit.set()  # two batches used the credit up: without more nothing comes
        if len(offsets) == 6:
            break
    done.set()
    answers.cancel()
    assert offsets == list(range(6))


def test_a_subscription_hears_of_new_records_and_of_errors(
    shared_broker: Cluster, wire: Wire, topic: str
) -> None:
    wire.produce(topic, [b"a"])
    done = threading.Event()

    def requests() -> Iterator[pb.SubscribeRequest]:
        yield pb.SubscribeRequest(
            subscribe=[
                pb.FetchPartition(topic=topic, offset=1),
                pb.FetchPartition(topic="no-such-topic"),
            ],
            credit_bytes=1_000_000,
        )
        done.wait(120)

    answers = wire.data.Subscribe(requests(), timeout=120)
    first = next(answers)
    assert [result.error.code for result in first.results] == [20]
    wire.produce(topic, [b"b"])
    second = next(answers)
    assert [batch.base_offset for batch in second.results[0].batches] == [1]
    done.set()
    answers.cancel()


def test_deleted_records_are_gone_and_the_log_starts_later(wire: Wire, topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        wire.produce(topic, [value])
    answer = wire.admin.DeleteRecords(
        admin_pb2.DeleteRecordsRequest(topic=topic, before_offset=2), timeout=120
    )
    assert answer.log_start_offset == 2
    assert wire.offsets(topic, earliest=pb.Earliest()).offset == 2
    with pytest.raises(OffsetOutOfRangeError):
        wire.fetch(topic, 0)
    assert wire.read_all(topic, offset=2) == [b"c"]
    refused = wire.admin.DeleteRecords(
        admin_pb2.DeleteRecordsRequest(topic=topic, before_offset=4), timeout=120
    )
    assert refused.error.code == 35


def test_reflection_and_health_answer(shared_broker: Cluster, wire: Wire) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=120)
    names = {service.name for service in answer.list_services_response.service}
    assert {"penstock.proto.v1.BrokerService", "grpc.health.v1.Health"} <= names
    file_request = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="penstock.proto.v1.BrokerService"
    )
    (described,) = stub.ServerReflectionInfo(iter([file_request]), timeout=120)
    assert described.file_descriptor_response.file_descriptor_proto
    assert shared_broker.brokers[0].is_serving()


def test_configs_logs_and_counts_are_described(
    shared_broker: Cluster, wire: Wire, topic: str
) -> None:
    wire.produce(topic, [b"a"])
    configs = wire.admin.DescribeConfigs(
        admin_pb2.DescribeConfigsRequest(topic=topic), timeout=120
    ).configs
    assert {entry.name: entry.value for entry in configs}["retention.ms"] == "604800000"
    log = wire.log(topic)
    assert (log.is_leader, log.high_watermark, log.log_end_offset) == (True, 1, 1)
    assert log.bytes > 0
    counts = shared_broker.describe()
    assert counts.controller_reachable
    assert (counts.offline_partitions, counts.under_min_isr_partitions) == (0, 0)


def test_a_deleted_topic_is_unknown_and_its_data_goes(
    shared_broker: Cluster, wire: Wire, topic: str
) -> None:
    wire.produce(topic, [b"a"])
    deleted = wire.admin.DeleteTopics(
        admin_pb2.DeleteTopicsRequest(topics=[admin_pb2.TopicName(topic=topic)]), timeout=120
    )
    assert not deleted.results[0].HasField("error")
    old_id = deleted.results[0].topic_id
    new_id = shared_broker.create_topic(topic)
    assert new_id != old_id
    assert wire.read_all(topic) == []
    with pytest.raises(Exception, match="deleted and created again"):
        wire.fetch(topic, 0, topic_id=old_id)


def test_metrics_are_served(shared_broker: Cluster, wire: Wire, topic: str) -> None:
    wire.produce(topic, [b"a"])
    import urllib.request  # noqa: PLC0415 - used here alone

    url = f"http://127.0.0.1:{shared_broker.metrics_ports[0]}/metrics"
    with urllib.request.urlopen(url, timeout=120) as answer:
        text = answer.read().decode()
    assert "penstock_records_in_total" in text
    assert "penstock_under_replicated 0.0" in text


def test_calls_end_with_the_connection(wire: Wire, topic: str) -> None:
    call = wire.data.Fetch.future(
        pb.FetchRequest(max_wait_ms=60_000, partitions=[pb.FetchPartition(topic=topic)])
    )
    call.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        call.result()
    assert wire.produce(topic, [b"a"]).base_offset == 0
