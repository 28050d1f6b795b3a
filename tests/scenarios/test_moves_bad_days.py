"""Moves of replicas when they are least welcome: the receiver's disk fills up, or more is written
than may be copied. Clients go on, and moves end by themselves, once they can (I31, I32)."""

import time
from collections.abc import Iterator

import pytest
from support.cluster import PATIENT, Cluster
from support.faults import Faults
from support.live_moves import (
    BROKERS,
    assert_kept_where_described,
    begin,
    fill,
    has_moved,
    wait_copying,
    wait_ended,
    wait_replicas,
)
from support.load import MakeLoad, assert_nothing_noticed

from penstock.client import Admin

RECEIVER = 3
RESERVE_BYTES = 1 << 30
BATCHES = 128
"""Of each partition, to be copied: 2 MB, four messages."""
SLOW_BYTES_PER_SECOND = 50_000
RECORD_BYTES = 1_024


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One more broker than replicas; the disk of the last one is what a test says."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(
        folder,
        brokers=BROKERS,
        controller_config=PATIENT,
        broker_config={"disk.reserve.bytes": str(RESERVE_BYTES)},
        start=False,
    ) as cluster:
        _disk(cluster)
        cluster.start()
        yield cluster


@pytest.fixture
def disk(cluster: Cluster) -> Iterator[Faults]:
    """Of the receiver; well again when the test has ended."""
    disk = _disk(cluster)
    yield disk
    disk.heal()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    """The throttle is what it was when the test has ended."""
    with Admin(cluster.bootstrap) as admin:
        yield admin
        admin.alter_throttle(None)


def _disk(cluster: Cluster) -> Faults:
    return Faults(cluster.brokers[RECEIVER], cluster.path / "disk")


def test_a_move_ends_though_more_is_written_than_may_be_copied(
    cluster: Cluster, admin: Admin, make_load: MakeLoad
) -> None:
    """The throttle counts what was there before, not what is written meanwhile."""
    load = make_load(partitions=2, record_bytes=RECORD_BYTES, rate=1_000)
    fill(cluster, load, BATCHES // 2)
    topic = load.config.topic
    with load:
        cluster.wait_in_sync(topic)
        admin.alter_throttle(SLOW_BYTES_PER_SECOND)
        began = begin(admin, topic)
        wait_copying(admin, topic)
        written, since_s = dict(load.watch.ends), time.monotonic()
        wait_ended(admin, topic)
        seconds = time.monotonic() - since_s
        rates = {at: (load.watch.ends[at] - written[at]) * RECORD_BYTES / seconds for at in written}
        print(f"{seconds:.0f} s, bytes written per second: {rates}")
        assert min(rates.values()) > SLOW_BYTES_PER_SECOND
        wait_replicas(admin, topic, lambda one: has_moved(began, one), "all have moved")
        cluster.wait_in_sync(topic)
        load.wait_writing()
        assert_kept_where_described(cluster, admin, topic)
        assert_nothing_noticed(load.judge())
