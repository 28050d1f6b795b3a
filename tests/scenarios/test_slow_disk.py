"""A disk that takes longer for a write than a session lasts: brokers go on answering heartbeats.

The event loop writes small ticks itself only while the disk is quick (ADR 37); on a slow one the
thread writes, and leaders stay leaders.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.faults import Faults

from penstock.client import Producer

NOT_QUICK_S = 0.01
"""Per write, from the first on: too slow for the event loop."""
SESSION_S = 8
"""Longer than a crowded machine lets a broker wait that does nothing wrong."""
SLOW_S = SESSION_S + 1


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Cluster, list[Faults]]]:
    config = {"broker.session.timeout.ms": str(1_000 * SESSION_S)}
    with Cluster(tmp_path, brokers=3, controller_config=config, start=False) as cluster:
        faults = [
            Faults(broker, tmp_path / f"faults-{broker_id}")
            for broker_id, broker in cluster.brokers.items()
        ]
        for each in faults:
            each.slow(NOT_QUICK_S)
        cluster.start()
        yield cluster, faults


def test_heartbeats_are_answered_while_writes_take_longer_than_a_session(
    slow: tuple[Cluster, list[Faults]],
) -> None:
    cluster, faults = slow
    cluster.create_topic("slow")
    with Producer(cluster.bootstrap) as producer:
        producer.send("slow", b"before", partition=0).result(60)
        before = cluster.partition("slow", 0)
        for each in faults:
            each.slow(SLOW_S)
        assert producer.send("slow", b"slowly", partition=0).result(120).offset == 1
    after = cluster.partition("slow", 0)
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    cluster.wait_alive(set(cluster.brokers))
    for broker in cluster.brokers.values():
        assert "controller session ended" not in broker.log_text()
