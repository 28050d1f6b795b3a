"""A bank while brokers are killed: the sum of all accounts stays 0, no account has a gap.

Two transactional producers transfer money between six accounts on six partitions, replication
factor 3; a fifth of the transfers is aborted. `penstock verify` folds what a read_committed reader
gets at the end, and compares it with what the producers were told (I10, I11, I14, I15).
"""

import pytest
from support.cluster import Cluster
from support.kills import ROUNDS, everybody, kill_in_rounds
from support.load import Load, MakeLoad
from support.waiting import wait_until

from penstock.core.transactions.config import TRANSACTIONS_TOPIC, coordinator_partition


def coordinator(cluster: Cluster, load: Load) -> list[int]:
    """Of the first producer."""
    info = cluster.topic(TRANSACTIONS_TOPIC)
    assert info is not None
    wanted = coordinator_partition(f"verify-{load.tag:x}-0", len(info.partitions))
    return [part.leader for part in info.partitions if part.partition == wanted]


def leader(cluster: Cluster, load: Load) -> list[int]:
    """Of the first account's partition."""
    return [cluster.leader(load.config.topic, 0)]


@pytest.mark.timeout(1_500 + 90 * ROUNDS)
def test_money_is_neither_made_nor_lost_by_kills(cluster: Cluster, make_load: MakeLoad) -> None:
    with make_load(bank=True, rate=200, settle_s=60.0) as load:
        topics = (load.config.topic, TRANSACTIONS_TOPIC)
        kill_in_rounds(cluster, load, (coordinator, leader, everybody), topics=topics)
        wait_until(lambda: '"aborted"' in load.history.read_text(), what="one is aborted")
        verdict = load.judge()
    assert verdict.passed, verdict.to_dict()
    assert verdict.balance == 0
    assert verdict.transfers >= verdict.committed > 0
    assert verdict.aborted > 0
    assert verdict.undecided == 0, "the producers had time to learn every outcome"
