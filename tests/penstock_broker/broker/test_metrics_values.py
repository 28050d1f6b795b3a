"""What the metrics of a live cluster say, value by value: names alone would not show a lie."""

import shutil
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import grpc
import pytest
from support.cluster import PATIENT, Cluster
from support.metrics import Page, scrape
from support.metrics_page import documented, family
from support.waiting import wait_until
from support.wire import Wire, make_batch

import penstock
from penstock.client import Consumer, Producer, TopicPartition
from penstock.core.control.documents import FORMAT_NEWEST
from penstock.errors import ClusterError
from penstock.proto.v1 import broker_pb2 as pb
from penstock_broker.descriptors import connections_max
from penstock_broker.services.limits import PARTITIONS_MAX
from tools.metrics_reference import Exported, broker_metrics, controller_metrics

RECORDS: Final = 10
FETCH: Final = "penstock_request_seconds_{}{{Fetch}}"
PRODUCED: Final = "penstock_request_seconds_count{Produce}"
HEALTHY: Final = {
    "controller_connected": 1,
    "replicas": 2,
    "leaders": 1,
    "under_replicated": 0,
    "at_min_isr": 0,
    "under_min_isr": 0,
    "leaders_not_preferred": 0,
    "offline_replicas": 0,
    "log_ends": RECORDS,
    "remembered_producers": 1,
    "high_watermarks": RECORDS,
    "inflight_bytes": 0,
    "parked_fetches": 0,
    "groups_members": 0,
    "group_coordinators_loading": 0,
    "group_partitions_left_out": 0,
    "compaction_waiting_seconds": 0,
    "stable_offset_lag": 0,
    "stopped_replicas": 0,
    "damaged_replicas": 0,
    "differing_replicas": 0,
    "transactional_ids": 0,
    "transactions_open": 0,
    "transactions_oldest_open_seconds": 0,
    "transactions_finishing": 0,
    "transactions_oldest_finishing_seconds": 0,
    "transaction_coordinators_loading": 0,
    "token_grace": 0,
    "clock_doubted": 0,
    "topics_left_out": 0,
    "partitions_left_out": 0,
    "scrub_interval_seconds": 7 * 86_400,
    "store_stalled": 0,
    "store_pending_compaction_bytes": 0,
    "store_damaged_table": 0,
    "store_garbage_bytes": 0,
}
"""Gauges of each of two brokers that lead one partition each, and follow the other."""
CONTROLLER_HEALTHY: Final = {
    "active": 1,
    "detached": 0,
    "pending_requests": 0,
    "topics": 1,
    "partitions": 2,
    "offline_partitions": 0,
    "under_replicated_partitions": 0,
    "under_min_isr_partitions": 0,
    "at_min_isr_partitions": 0,
    "leaders_not_preferred": 0,
    "damaged_replicas": 0,
    "moves": 0,
    "move_stalled_seconds": 0,
    "metadata_format_newest": FORMAT_NEWEST,
    "broker_alive{0}": 1,
    "broker_alive{1}": 1,
    "broker_leaders{0}": 1,
    "broker_leaders{1}": 1,
}
OF_THIS_MACHINE: Final = {
    "penstock_disk_free_bytes",
    "penstock_disk_total_bytes",
    "penstock_disk_reserve_bytes",
    "penstock_store_memory_bytes",
    "penstock_scrub_age_seconds",
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_open_fds",
    "process_max_fds",
    "penstock_connections_max",
}
LABELLED: Final = {
    "penstock_groups",
    "penstock_group_partition_lag_records",
    "penstock_group_partition_lag_seconds",
    "penstock_group_committed_offset",
    "penstock_group_members",
    "penstock_group_state",
    "penstock_group_pending_offsets",
    "penstock_partition_stable_offset_lag",
    "penstock_ledger_age_seconds",
    "penstock_build_info",
    "penstock_open_streams",
    "penstock_connections",
    "penstock_follower_lag_offsets",
    "penstock_partition_log_bytes",
    "penstock_partition_log_start_offset",
    "penstock_partition_log_end_offset",
}
"""Of groups and transactions there are none here; `test_groups.py`, `test_groups_lag.py` and
`test_transactions_metrics.py` look at them. `check_single` looks at the others."""


WITH_TLS: Final = {"penstock_tls_certificate_expiry_seconds", "penstock_plaintext_clients"}


def unlike(page: Page, prefix: str, expected: dict[str, int]) -> dict[str, float]:
    """The values that are not as expected."""
    return {
        name: page.values.get(prefix + name, float("nan"))
        for name, value in expected.items()
        if page.values.get(prefix + name) != value
    }


def wait_like(port: int, prefix: str, expected: dict[str, int]) -> None:
    """Until a process says all of these at one time; shows what it said otherwise."""
    seen: list[dict[str, float]] = [{}]

    def is_like() -> bool:
        seen[0] = unlike(scrape(port), prefix, expected)
        return not seen[0]

    try:
        wait_until(is_like, what="the metrics are as they should be")
    except AssertionError as error:
        raise AssertionError(f"{prefix}…: {seen[0]}, not as in {expected}") from error


def test_a_healthy_cluster_shows_it_and_the_loss_of_its_controller(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, controller_config=PATIENT) as cluster:
        cluster.create_topic("flights", assignment=[[0, 1], [1, 0]])
        with Producer(cluster.bootstrap) as producer:
            for _ in range(RECORDS):
                producer.send("flights", b"value", partition=0)
            producer.flush(120)
        with Consumer(cluster.bootstrap) as consumer:
            consumer.assign([TopicPartition("flights", 0)])
            left = RECORDS
            while left:
                left -= sum(batch.record_count for batch in consumer.poll(1.0))
        ports = [cluster.metrics_ports[0], cluster.metrics_ports[1]]
        for port in ports:
            wait_like(port, "penstock_", HEALTHY)
        wait_like(cluster.controller_metrics_port, "penstock_controller_", CONTROLLER_HEALTHY)
        lag = "penstock_event_loop_lag_seconds_count"
        wait_until(lambda: scrape(ports[0])[lag] > 0, what="the event loop is timed")
        check_counters(*map(scrape, ports))
        check_complete(scrape(ports[0]), tmp_path)
        check_single(scrape(ports[0]))
        for port in ports:
            check_reference(scrape(port), broker_metrics())
        check_reference(scrape(cluster.controller_metrics_port), controller_metrics())

        cluster.controller.kill()
        for port in ports:
            wait_like(port, "penstock_", {**HEALTHY, "controller_connected": 0})
        cluster.controller.start()
        for port in ports:
            wait_like(port, "penstock_", HEALTHY)


def check_counters(leader: Page, follower: Page) -> None:
    """Of the broker that was written to and read from, and of the other one."""
    for name, at_leader, at_follower in (
        ("records_in_total", RECORDS, 0),
        ("records_out_total", RECORDS, 0),
        ("overloads_total", 0, 0),
    ):
        seen = leader[f"penstock_{name}"], follower[f"penstock_{name}"]
        assert seen == (at_leader, at_follower), name
    assert leader["penstock_bytes_in_total"] == leader["penstock_bytes_out_total"] > 0
    copied = leader["penstock_replicated_out_bytes_total"]
    assert copied == follower["penstock_replicated_in_bytes_total"]
    assert copied > leader["penstock_bytes_in_total"], "with headers"
    assert leader["penstock_tick_seconds_count"] > 0
    assert leader[PRODUCED] >= 1, "clients produce on streams"


def check_complete(page: Page, data: Path) -> None:
    """No gauge is left out of this test."""
    assert page.gauges == {f"penstock_{name}" for name in HEALTHY} | OF_THIS_MACHINE | LABELLED
    disk = shutil.disk_usage(data)
    assert 0 < page["penstock_disk_free_bytes"] <= disk.total
    total = page["penstock_disk_total_bytes"]
    assert page["penstock_disk_free_bytes"] < total <= disk.total
    assert 0 < page["penstock_disk_reserve_bytes"] < total
    assert 0 <= page["penstock_scrub_age_seconds"] < 600


def check_reference(page: Page, expected: Mapping[str, Exported]) -> None:
    """A process exports what the reference lists, and nothing else; there is no TLS here."""
    assert page.families == {
        name: (one.type, one.description) for name, one in expected.items() if name not in WITH_TLS
    }
    for sample, labels in page.labels.items():
        if not sample.endswith("_created") and not sample.startswith("python_"):
            assert labels - {"le"} == documented()[family(sample)], sample


def check_single(page: Page) -> None:
    """Of the topic, the partitions, the follower and the process of the broker written to."""
    for way in ("in", "out"):
        assert page[f"penstock_topic_records_{way}_total{{flights}}"] == RECORDS
        moved = page[f"penstock_topic_bytes_{way}_total{{flights}}"]
        assert moved == page[f"penstock_bytes_{way}_total"]
    assert page["penstock_partition_log_end_offset{0,leader,flights}"] == RECORDS
    assert page["penstock_partition_log_start_offset{0,leader,flights}"] == 0
    assert page["penstock_partition_log_bytes{0,leader,flights}"] > 0
    assert page.values["penstock_partition_log_end_offset{1,follower,flights}"] == 0
    assert page.values["penstock_follower_lag_offsets{1}"] == 0
    assert page["penstock_open_streams{follower}"] == 1
    written = page["penstock_produce_write_seconds_count"]
    assert 1 <= written <= RECORDS
    assert page["penstock_produce_replication_seconds_count"] == written
    assert 0 < page["penstock_produce_write_seconds_sum"] < 60
    assert 0 < page["penstock_produce_replication_seconds_sum"] < 60
    assert page["penstock_connections_max"] == connections_max(int(page["process_max_fds"]))
    assert page[f"penstock_build_info{{broker,{penstock.__version__}}}"] == 1
    assert page["process_resident_memory_bytes"] > 2**20


@pytest.fixture
def topic(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    shared_broker.create_topic(request.node.name)
    return str(request.node.name)


@pytest.fixture
def port(shared_broker: Cluster) -> int:
    return shared_broker.metrics_ports[0]


def test_each_request_on_a_stream_is_timed_as_a_produce(
    shared_broker: Cluster, topic: str, port: int
) -> None:
    before = scrape(port)
    part = pb.ProducePartition(topic=topic)
    with Wire(shared_broker.brokers[0].address) as wire:
        part.topic_id = wire.log(topic).topic_id
        requests = [pb.ProduceRequest(correlation_id=n, partitions=[part]) for n in range(3)]
        assert len(list(wire.data.ProduceStream(iter(requests), timeout=120))) == 3
        after = scrape(port)
        assert after[PRODUCED] - before[PRODUCED] == 3
        wire.produce(topic, make_batch([b"a"]))
        assert scrape(port)[PRODUCED] - after[PRODUCED] == 1


def test_the_wait_of_a_fetch_is_no_work(shared_broker: Cluster, topic: str, port: int) -> None:
    before = scrape(port)
    with Wire(shared_broker.brokers[0].address) as wire:
        wire.produce(topic, [b"a"])
        wire.fetch(topic, 0, max_wait_ms=60_000)
        after = scrape(port)
        assert after[FETCH.format("count")] - before[FETCH.format("count")] == 1
        name = "penstock_fetch_wait_seconds_{}"
        assert after[name.format("count")] == before[name.format("count")], "it had no need to"
        waiting = wire.data.Fetch.future(
            pb.FetchRequest(
                max_wait_ms=60_000, partitions=[pb.FetchPartition(topic=topic, offset=1)]
            )
        )
        wait_until(lambda: scrape(port)["penstock_parked_fetches"] >= 1, what="a fetch is parked")
        wire.produce(topic, [b"b"])
        assert len(waiting.result(timeout=120).results) == 1
        assert scrape(port)[name.format("count")] - after[name.format("count")] == 1
        before = scrape(port)
        wire.fetch(topic, 2, max_wait_ms=2_000)
        after = scrape(port)
    waited = after[name.format("sum")] - before[name.format("sum")]
    worked = after[FETCH.format("sum")] - before[FETCH.format("sum")]
    # With the wait in it the work could not be less than the wait.
    assert 0 <= worked < waited


def test_each_client_that_has_a_stream_open_is_counted(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster, ExitStack() as clients:
        cluster.create_topic("flights")
        port = cluster.metrics_ports[0]
        wait_like(port, "penstock_", {"open_streams{client}": 0})
        for count in (1, 2):
            producer = clients.enter_context(Producer(cluster.bootstrap))
            producer.send("flights", b"value").result(120)
            assert scrape(port).values["penstock_open_streams{client}"] == count
        consumer = clients.enter_context(Consumer(cluster.bootstrap, auto_offset_reset="earliest"))
        consumer.assign([TopicPartition("flights", 0)])
        wait_until(lambda: consumer.poll(1.0), what="it has read")
        assert scrape(port).values["penstock_open_streams{client}"] == 3
        clients.close()
        wait_like(port, "penstock_", {"open_streams{client}": 0})


def test_each_connection_is_counted_at_the_port_it_came_to(
    shared_broker: Cluster, port: int
) -> None:
    address = shared_broker.brokers[0].address
    host, _, number = address.rpartition(":")
    name = f"penstock_connections{{{number}}}"
    before = scrape(port)[name]
    with Wire(address) as wire, socket.create_connection((host, int(number)), 60):
        wire.data.Metadata(pb.MetadataRequest(), timeout=60)
        # One that gRPC has, and one that has not said a word.
        wait_until(lambda: scrape(port)[name] == before + 2, what="both are counted")
    wait_until(lambda: scrape(port)[name] == before, what="both are gone")
    assert scrape(port)[f"penstock_connections{{{port}}}"] == 1, "that of the scrape"


def test_a_call_that_is_refused_is_counted_by_method_and_code(
    shared_broker: Cluster, port: int
) -> None:
    name = "penstock_request_errors_total{INVALID_REQUEST,Produce}"
    before = scrape(port)
    with Wire(shared_broker.brokers[0].address) as wire:
        # More partitions than a request may have.
        many = [pb.ProducePartition(topic="t")] * (PARTITIONS_MAX + 1)
        with pytest.raises((ClusterError, grpc.RpcError)):
            wire.data.Produce(pb.ProduceRequest(partitions=many), timeout=120)
    after = scrape(port)
    assert after[name] - before[name] == 1


def test_a_dead_follower_leaves_the_isr_and_is_seen_to_come_back(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, controller_config=PATIENT) as cluster:
        cluster.create_topic("flights", assignment=[[0, 1]], configs={"min.insync.replicas": "1"})
        port = cluster.metrics_ports[0]
        wait_like(port, "penstock_", {"under_replicated": 0, "isr_shrinks_total": 0})
        cluster.brokers[1].kill()
        wait_like(
            port,
            "penstock_",
            {"under_replicated": 1, "isr_shrinks_total": 1, "isr_expands_total": 0},
        )
        cluster.brokers[1].start()
        wait_like(
            port,
            "penstock_",
            {"under_replicated": 0, "isr_shrinks_total": 1, "isr_expands_total": 1},
        )
