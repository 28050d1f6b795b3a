"""Waiting until a changed limit of a topic counts everywhere."""

from support.cluster import Cluster
from support.waiting import wait_until


def wait_for_limit(cluster: Cluster, topic: str, limit: str) -> None:
    """Until every broker knows this `max.message.bytes`."""

    def known_everywhere() -> bool:
        infos = [cluster.topic(topic, at) for at in cluster.brokers]
        return all(info and info.configs.get("max.message.bytes") == limit for info in infos)

    wait_until(known_everywhere, what=f"all brokers know the limit {limit}")
