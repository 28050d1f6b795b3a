"""A partition none of whose logs can be opened says so, keeps what it has, and has a way out."""

import shutil
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.plain_records import read, write
from support.unopened import swap_checkpoint, wait_well
from support.waiting import wait_until

from penstock.client import Admin, OffsetSpan, Producer, TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError

TOPICS = ("restored", "given-up", "beside")
BROKERS = range(3)
VALUES = [b"%d" % number for number in range(20)]


def assert_it_says_so(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap) as producer, pytest.raises(PenstockError) as told:
        producer.send(topic, b"refused").result(30)
    assert told.value.code is ErrorCode.DATA_CORRUPTED
    assert "cannot read all of its log" in str(told.value)
    with Admin(cluster.bootstrap) as admin:
        (move,) = admin.describe_moves([topic]).moves
        assert move.damaged == (0, 1, 2)
        for broker in admin.describe_logs():
            (log,) = (one for one in broker.logs if one.topic == topic)
            assert "could not be opened" in log.mending
        with pytest.raises(ClusterError, match="could not be opened") as refused:
            admin.accept_loss(TopicPartition(topic, 0), OffsetSpan(0, 10))
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_logs_that_nobody_can_open_are_kept_and_can_be_restored_or_given_up(
    tmp_path: Path,
) -> None:
    """The two ways of docs/operations.md. Other partitions of the same brokers go on."""
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        configs = {"min.insync.replicas": "2"}
        ids = {
            topic: cluster.create_topic(topic, assignment=[[0, 1, 2]], configs=configs)
            for topic in TOPICS
        }
        for topic in TOPICS:
            write(cluster, topic, VALUES)
        for broker in BROKERS:
            assert cluster.brokers[broker].stop() == 0
        for broker in BROKERS:
            swap_checkpoint(cluster, broker, ids["given-up"], b"\xff")
        backups = [swap_checkpoint(cluster, one, ids["restored"], b"\xff") for one in BROKERS]
        for broker in BROKERS:
            cluster.brokers[broker].start(wait=False)
        for broker in BROKERS:
            cluster.brokers[broker].wait_serving()
        cluster.wait_in_sync("beside")
        with Admin(cluster.bootstrap) as admin:
            wait_until(
                lambda: [one.damaged for one in admin.describe_moves().moves] == [(0, 1, 2)] * 2,
                what="all replicas are known as damaged",
            )
        for topic in ("restored", "given-up"):
            cluster.wait_leaders(topic)
            assert_it_says_so(cluster, topic)
        write(cluster, "beside", [b"more"])
        assert read(cluster, "beside", 21) == [*VALUES, b"more"]

        back = cluster.leader("restored")
        assert cluster.brokers[back].stop() == 0
        assert swap_checkpoint(cluster, back, ids["restored"], backups[back]) == b"\xff", "kept"
        cluster.brokers[back].start()
        wait_well(cluster, "restored")
        assert read(cluster, "restored", 20) == VALUES

        former = cluster.leader("given-up")
        emptied = (former + 1) % 3
        assert cluster.brokers[emptied].stop() == 0
        shutil.rmtree(cluster.data_dir(emptied))
        cluster.brokers[emptied].start()
        wait_well(cluster, "restored")
        wait_well(cluster, "beside")
        assert cluster.leader("given-up") == former, "nobody decides that but a person"
        with Admin(cluster.bootstrap) as admin:
            admin.alter_configs("given-up", {"unclean.leader.election.enable": "true"})
        assert cluster.brokers[former].stop() == 0
        cluster.wait_leader("given-up", 0, emptied)
        cluster.brokers[former].start()
        wait_well(cluster, "given-up")
        write(cluster, "given-up", [b"a new beginning"])
        assert read(cluster, "given-up", 1) == [b"a new beginning"]
        assert read(cluster, "beside", 21) == [*VALUES, b"more"]
