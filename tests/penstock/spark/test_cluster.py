"""What a driver sees of a real cluster through one of its brokers."""

from pathlib import Path

from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Admin
from penstock.core.types import TopicPartition
from penstock.spark.cluster import ClusterOffsets
from penstock.spark.options import parse

NEW, OLD = TopicPartition("ev-new", 0), TopicPartition("ev-old", 0)


def test_one_broker_that_is_behind_hides_no_topic_that_was_read_before(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", brokers=2) as cluster:
        ahead, behind = cluster.brokers[0], cluster.brokers[1]
        cluster.create_topic("ev-old", assignment=[[0]])
        with Admin(cluster.bootstrap) as admin:
            behind.pause()
            wait_until(
                lambda: [b.broker_id for b in admin.describe_cluster().brokers if b.alive] == [0],
                what="the paused broker counts as dead",
            )
            admin.create_topic("ev-new", 1, 1)
        cluster.controller.pause()
        behind.resume()
        wait_until(lambda: cluster.topic("ev-old", 1) is not None, what="it answers again")
        assert cluster.topic("ev-new", 1) is None, "and has not learned of the new topic"
        bootstrap = f"{behind.address},{ahead.address}"
        for selection in (
            {"subscribePattern": "ev-.*"},
            {"subscribe": "ev-new,ev-old,ev-gone"},
            {"assign": '{"ev-new": [0], "ev-old": [0], "ev-gone": [0]}'},
        ):
            options = parse({"penstock.bootstrap.servers": bootstrap} | selection)
            with Admin(bootstrap, unknown_topic_timeout_ms=500) as admin:
                view = ClusterOffsets(admin, options).view({"ev-new", "other"})
            assert view.ends == {NEW: 0, OLD: 0}, selection
            assert view.topic_ids.keys() == {"ev-new", "ev-old"}
        cluster.controller.resume()
