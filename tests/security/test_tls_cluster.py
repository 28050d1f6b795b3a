"""A cluster with TLS, of real processes: it works as one without."""

from pathlib import Path

import pytest
from support.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, brokers=3, secure=True, start=False)


def test_brokers_register_elect_and_replicate_over_tls(cluster: Cluster) -> None:
    with cluster:
        cluster.start()
        cluster.create_topic("t", partitions=3)
        cluster.wait_in_sync("t")
        former = cluster.leader("t", 0)
        cluster.brokers[former].kill()
        assert cluster.wait_leader_is_not("t", 0, former) >= 0
        cluster.brokers[former].start()
        cluster.wait_in_sync("t")
