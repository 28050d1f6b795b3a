"""Bad days that are not kills under load: what users see, and that it passes by itself."""

from shutil import rmtree

from support.cluster import Cluster

from penstock.client import Producer


def test_a_broker_whose_disk_was_replaced_is_in_sync_again_without_traffic(
    cluster: Cluster,
) -> None:
    cluster.create_topic("new-disk", partitions=2)
    with Producer(cluster.bootstrap) as producer:
        for partition in (0, 1):
            producer.send_columns("new-disk", [b"value"] * 100, partition=partition).result(30)
    cluster.wait_in_sync("new-disk")
    leader = cluster.leader("new-disk", 0)
    cluster.brokers[leader].kill()
    rmtree(cluster.data_dir(leader))
    cluster.wait_leader_is_not("new-disk", 0, leader)
    cluster.brokers[leader].start()
    cluster.wait_in_sync("new-disk")
