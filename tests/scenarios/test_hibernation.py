"""A cluster is put to sleep under load, all its processes stop at once, and it wakes as it was."""

import pytest
from support.cluster import Cluster
from support.load import Load, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.errors import PenstockError

GROUP = "sleepers"


def quiet_ends(admin: Admin) -> list[int] | None:
    """The ends of all logs of each broker, if all are quiet; None: some is not."""
    found = admin.describe_quiescence()
    return [one.log_ends for one in found] if all(one.quiet for one in found) else None


def come_to_rest(admin: Admin) -> None:
    """Until all brokers are quiet twice, and nothing was written in between."""

    def proven() -> bool:
        first = quiet_ends(admin)
        return first is not None and first == quiet_ends(admin)

    wait_until(proven, what="all brokers are quiet")


def refusal_of(bootstrap: str, topic: str) -> str:
    """What a producer that has no patience is told."""
    with (
        Producer(bootstrap, delivery_timeout_ms=1_500, request_timeout_ms=500) as producer,
        pytest.raises(PenstockError) as told,
    ):
        producer.send(topic, b"v").result()
    return str(told.value)


def leaders(admin: Admin, topic: str) -> set[int]:
    return {one.leader for one in admin.describe_topics([topic])[topic].partitions}


def test_a_sleeping_cluster_loses_nothing(cluster: Cluster, load: Load) -> None:
    topic = load.config.topic
    load.measure()
    partition = TopicPartition(topic, 0)
    with Consumer(cluster.bootstrap, group_id=GROUP) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: bool(consumer.poll(1.0)), what="the group has read something")
        consumer.commit()
    with Admin(cluster.bootstrap) as admin:
        committed = admin.describe_group(GROUP).offsets
        assert committed
        admin.alter_cluster(hibernating=True)
        wait_until(lambda: admin.describe_cluster().hibernating, what="brokers are told")
        come_to_rest(admin)
        # Who cannot even connect in so little time is told that instead.
        wait_until(
            lambda: "hibernates" in refusal_of(cluster.bootstrap, topic), what="it hears why"
        )
        with Consumer(cluster.bootstrap) as reader:
            reader.assign([partition])
            reader.seek_to_beginning()
            wait_until(lambda: bool(reader.poll(1.0)), what="reads go on")
    for process in cluster.processes[::-1]:
        process.terminate()
    for process in cluster.processes[::-1]:
        assert process.wait_end() == 0
    cluster.controller.start(wait=False)
    for broker in cluster.brokers.values():
        broker.start(wait=False)
    for broker in cluster.brokers.values():
        broker.wait_serving()
    cluster.wait_alive(set(cluster.brokers))
    with Admin(cluster.bootstrap) as admin:
        # The controller takes brokers to be there until each has registered again.
        wait_until(lambda: leaders(admin, topic) == {-1}, what="nobody leads while it sleeps")
        asleep = admin.describe_topics([topic])[topic]
        whole = [one.isr for one in asleep.partitions]
        assert [sorted(isr) for isr in whole] == [sorted(one.replicas) for one in asleep.partitions]
        admin.alter_cluster(hibernating=False)
        load.wait_writing()
        awake = admin.describe_topics([topic])[topic]
        assert [one.isr for one in awake.partitions] == whole, "no replica had to catch up"
        assert admin.describe_group(GROUP).offsets == committed
    assert_nothing_noticed(load.judge())
