"""What the metrics of a live cluster say while something is wrong with it, value by value."""

from pathlib import Path

from support.cluster import PATIENT, Cluster
from support.metrics import scrape
from support.waiting import wait_until

from penstock.client import Acks, Producer

VALUE = bytes(6_000)
LIMIT = {"produce.inflight.bytes": "10000"}
"""One value fits, two do not."""


def wait_says(port: int, expected: dict[str, float]) -> None:
    """Until a process says all of these at one time."""

    def says() -> bool:
        page = scrape(port)
        return {name: page[f"penstock_{name}"] for name in expected} == expected

    wait_until(says, what=f"the metrics are {expected}")


def test_a_dead_leader_leaves_partitions_with_too_few_replicas_and_another_leader(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, brokers=2, controller_config=PATIENT) as cluster:
        for topic, least in (("just", "1"), ("strict", "2")):
            configs = {"min.insync.replicas": least}
            cluster.create_topic(topic, assignment=[[0, 1]], configs=configs)
        cluster.brokers[0].kill()
        here = {"leaders": 2, "leaders_not_preferred": 2, "under_replicated": 2}
        wait_says(cluster.metrics_ports[1], {**here, "at_min_isr": 1, "under_min_isr": 1})
        wait_says(
            cluster.controller_metrics_port,
            {
                "controller_broker_alive{0}": 0,
                "controller_broker_alive{1}": 1,
                "controller_broker_leaders{1}": 2,
                "controller_leaders_not_preferred": 2,
                "controller_under_replicated_partitions": 2,
                "controller_at_min_isr_partitions": 1,
                "controller_under_min_isr_partitions": 1,
            },
        )


def test_a_frozen_follower_lags_and_what_waits_for_it_is_in_flight(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, broker_config=LIMIT, controller_config=PATIENT) as cluster:
        cluster.create_topic("t", assignment=[[0, 1]])
        port = cluster.metrics_ports[0]
        wait_says(port, {"follower_lag_offsets{1}": 0, "overloads_total": 0})
        with Producer(cluster.bootstrap, acks=Acks.ALL, linger_ms=0, batch_bytes=1_000) as producer:
            producer.send("t", b"first", partition=0).result(120)
            cluster.controller.pause()  # so that the follower stays in the ISR
            cluster.brokers[1].pause()
            sent = [producer.send("t", VALUE, partition=0) for _ in range(2)]
            wait_until(lambda: scrape(port)["penstock_overloads_total"] > 0, what="one is refused")
            page = scrape(port)
            assert len(VALUE) <= page["penstock_inflight_bytes"] < 2 * len(VALUE)
            assert page["penstock_follower_lag_offsets{1}"] == 1
            cluster.controller.resume()
            cluster.brokers[1].resume()
            for delivery in sent:
                delivery.result(120)
        wait_says(port, {"follower_lag_offsets{1}": 0, "inflight_bytes": 0})
