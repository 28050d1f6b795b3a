"""More topics are deleted while a broker does not run than the controller remembers: it keeps logs
that no image will ever name, until a person has them dropped."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.commands_of_pages import commands_with, told
from support.waiting import wait_until

from penstock.client import Admin, OrphanedLog, Producer
from penstock.core.control.documents import TOMBSTONES_MAX
from penstock.errors import ClusterError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub

AWAY = 1
AT_ONCE = 250


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", brokers=2, controller_config=PATIENT) as cluster:
        yield cluster


def forget_deletions(cluster: Cluster) -> None:
    """As many topics come and go as it takes."""
    with cluster.channel(0) as channel:
        stub = AdminServiceStub(channel)
        place = pb.ReplicaList(broker_ids=[0])
        for begin in range(0, TOMBSTONES_MAX, AT_ONCE):
            names = [f"t-{number}" for number in range(begin, begin + AT_ONCE)]
            topics = [pb.NewTopic(topic=name, assignment=[place]) for name in names]
            made = stub.CreateTopics(pb.CreateTopicsRequest(topics=topics), timeout=60)
            assert not [one for one in made.results if one.HasField("error")]
            doomed = pb.DeleteTopicsRequest(topics=[pb.TopicName(topic=name) for name in names])
            gone = stub.DeleteTopics(doomed, timeout=60)
            assert not [one for one in gone.results if one.HasField("error")]


def test_what_no_image_will_ever_name_is_dropped_as_the_page_says(cluster: Cluster) -> None:
    cluster.create_topic("kept", assignment=[[AWAY]])
    topic_id = cluster.create_topic("flights", assignment=[[AWAY], [AWAY]])
    with Producer(cluster.bootstrap) as producer:
        for topic in ("kept", "flights"):
            producer.send_columns(topic, None, [b"x" * 1_000] * 100, partition=0).result(60)
    with Admin(cluster.bootstrap) as admin:

        def orphans() -> set[tuple[str, int]]:
            (seen,) = admin.describe_logs(broker_ids=[AWAY])
            return {(one.topic_id, one.partition) for one in seen.orphans}

        def replicas() -> int:
            (seen,) = admin.describe_logs(broker_ids=[AWAY])
            return len(seen.logs)

        cluster.brokers[AWAY].kill()
        wait_until(lambda: not admin.describe_moves().brokers[AWAY].alive, what="it is dead")
        admin.delete_topic("flights")
        forget_deletions(cluster)
        cluster.brokers[AWAY].start()
        cluster.wait_controller()
        left = {(topic_id, 0), (topic_id, 1)}
        assert orphans() == left, "nobody tells it that they may go"
        held = replicas()

        look, drop = commands_with("docs/operations.md", "broker drop-orphans")
        assert f"{topic_id}           0" in told(cluster, look)
        assert orphans() == left, "a dry run"
        assert told(cluster, drop).endswith("2 of 2 orphans dropped\n")
        assert orphans() == set()
        assert told(cluster, drop) == "broker 1 has no orphans\n"

        cluster.brokers[AWAY].kill()
        cluster.brokers[AWAY].start()
        cluster.wait_controller()
        assert (orphans(), replicas()) == (set(), held)

        (seen,) = admin.describe_logs(["kept"], broker_ids=[AWAY])
        log = seen.logs[0]
        named = OrphanedLog(log.topic_id, log.partition, log.size_bytes)
        [refused] = admin.drop_orphans(AWAY, [named])
        assert isinstance(refused.error, ClusterError)
        assert "topic 'kept' has" in str(refused.error)
