"""All replicas die, and who is back first has lost what the others still have (I22, I33).

With min.insync.replicas 1 whoever is elected alone is the whole ISR. With 2, who has left the ISR
last is eligible nevertheless, which no image shows.
"""

import shutil
from pathlib import Path

from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Consumer, Producer, TopicPartition

RECORDS = 100
PATIENT = {"broker.session.timeout.ms": "10000"}
"""Nobody is to be dead before all are; and for so long they are missed when all are back."""


def written(cluster: Cluster) -> list[bytes]:
    """Records that all replicas of `t` have, led by broker 0."""
    values = [b"%07d" % number for number in range(RECORDS)]
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.send("t", value, partition=0)
        producer.flush(30)
    cluster.wait_in_sync("t")
    assert cluster.leader("t") == 0
    return values


def read(cluster: Cluster) -> list[bytes]:
    """All values of `t`, once there are as many."""
    seen = list[bytes]()
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek(TopicPartition("t", 0), 0)

        def passed() -> bool:
            for batch in consumer.poll(0.5):
                seen.extend(record.value or b"" for record in batch.records())
            return len(seen) >= RECORDS

        wait_until(passed, what="all is read", timeout_s=60)
    return seen


def test_a_lost_log_that_is_back_first_leads_nothing_and_takes_no_seats(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        cluster.create_topic("t", assignment=[[0, 1, 2]], configs={"min.insync.replicas": "1"})
        values = written(cluster)
        cluster.controller.kill()  # so that nobody sees them die one after the other
        for broker in cluster.brokers.values():
            broker.kill()
        shutil.rmtree(cluster.data_dir(0) / "log")
        cluster.controller.start()
        cluster.brokers[0].start()
        log = cluster.brokers[0].log_text
        wait_until(lambda: "the log of a replica is missing" in log(), what="it is found missing")
        heard = cluster.controller.log_text
        wait_until(lambda: "replica damaged, and nobody" in heard(), what="the controller knows")

        def waits() -> bool:
            """Broker 0 may hear of it a moment later."""
            found = cluster.partition("t", 0)
            return (found.leader, set(found.isr)) == (-1, {0, 1, 2})

        wait_until(waits, what="nobody leads, and the others may have all of it")
        cluster.brokers[2].start()
        cluster.wait_leader("t", 0, 2)
        assert read(cluster) == values
        cluster.brokers[1].start()
        cluster.wait_in_sync("t")


def test_a_lost_log_outside_the_isr_leads_nothing_though_it_is_eligible(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=3) as cluster:  # broker 2 has nothing of it, and is asked
        cluster.create_topic("t", assignment=[[0, 1]], configs={"min.insync.replicas": "2"})
        values = written(cluster)
        cluster.brokers[0].kill()
        cluster.wait_leader("t", 0, 1)
        cluster.brokers[1].kill()
        wait_until(lambda: cluster.partition("t", 0).leader == -1, what="nobody leads")
        assert list(cluster.partition("t", 0).isr) == [1]
        shutil.rmtree(cluster.data_dir(0) / "log")
        cluster.brokers[0].start()
        heard = cluster.controller.log_text

        def decided() -> bool:
            assert cluster.partition("t", 0).leader != 0, "an empty log is led"
            return "replica damaged" in heard()

        wait_until(decided, what="the controller knows that the log is missing")
        cluster.brokers[1].start()
        cluster.wait_leader("t", 0, 1)
        assert read(cluster) == values
        cluster.wait_in_sync("t")
