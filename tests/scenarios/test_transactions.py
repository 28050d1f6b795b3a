"""Transactions while processes are killed: all of each or nothing, and nobody waits for ever.

Two transactional producers work on six partitions, replication factor 3; a fifth of their
transactions is aborted. `penstock verify` judges what they were told and what readers saw (I10,
I11, I14): torn, aborted reads, lost, duplicated, stuck.
"""

from support.cluster import Cluster
from support.load import Load, MakeLoad, assert_whole
from support.waiting import wait_until

from penstock.core.transactions.config import TRANSACTIONS_TOPIC, coordinator_partition
from penstock.verify.verdict import Verdict

SETTINGS = {"transactions": True, "rate": 2_000, "settle_s": 60.0}


def judged(load: Load) -> Verdict:
    """Once one was aborted: which ones are is chance, and a few seconds may have none."""
    wait_until(lambda: '"aborted"' in load.history.read_text(), what="one is aborted")
    load.wait_writing()
    return load.judge()


def coordinators(cluster: Cluster, load: Load) -> set[int]:
    """Brokers that coordinate the workload's producers."""
    info = cluster.topic(TRANSACTIONS_TOPIC)
    assert info is not None
    tag = load.tag
    ids = [f"verify-{tag:x}-{index}" for index in range(load.config.producers)]
    wanted = {coordinator_partition(name, len(info.partitions)) for name in ids}
    return {part.leader for part in info.partitions if part.partition in wanted}


def test_a_healthy_cluster_keeps_transactions_whole(make_load: MakeLoad) -> None:
    with make_load(**SETTINGS) as load:
        verdict = judged(load)
    assert_whole(verdict)


def test_coordinators_and_leaders_killed_in_turn(cluster: Cluster, make_load: MakeLoad) -> None:
    with make_load(**SETTINGS) as load:
        for broker_id in sorted(coordinators(cluster, load)):
            cluster.wait_in_sync(load.config.topic)
            cluster.wait_in_sync(TRANSACTIONS_TOPIC)
            broker = cluster.brokers[broker_id]
            broker.kill()
            load.wait_writing()
            broker.start()
        verdict = judged(load)
    assert_whole(verdict)


def test_all_brokers_killed_at_once(cluster: Cluster, make_load: MakeLoad) -> None:
    with make_load(**SETTINGS) as load:
        for broker in cluster.brokers.values():
            broker.kill()
        for broker in cluster.brokers.values():
            broker.start(wait=False)
        load.wait_writing(timeout_s=60)
        verdict = judged(load)
    assert_whole(verdict)
