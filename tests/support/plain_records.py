"""Records of partition 0 of a topic: values alone, written one after the other, and read."""

from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Consumer, Producer, TopicPartition


def write(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    """Each is acknowledged before the next is sent, and all when it returns."""
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=0).result(30)


def read(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """All that is there, once it is as many."""
    seen: list[bytes] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)

        def passed() -> bool:
            polled = consumer.poll(0.5)
            seen.extend(record.value or b"" for batch in polled for record in batch.records())
            return len(seen) >= count

        wait_until(passed, what=f"all of {topic} is read", timeout_s=60)
    return seen
