"""A pipe while brokers are killed and its members come and go: each record once, in order (I15).

Three members copy a topic of six partitions, replication factor 3, to another one in transactions;
every few seconds one leaves, in good order or in the middle of a transaction. `penstock verify`
compares what read_committed readers see of both topics at the end.
"""

import pytest
from support.cluster import Cluster
from support.kills import ROUNDS, everybody, kill_in_rounds
from support.load import Load, MakeLoad

from penstock.core.groups.config import OFFSETS_TOPIC, coordinator_partition
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.verify.pipe import target_of


def coordinator(cluster: Cluster, load: Load) -> list[int]:
    """Of the group, and of a third of all transactional ids."""
    info = cluster.topic(OFFSETS_TOPIC)
    assert info is not None
    wanted = coordinator_partition(f"verify-pipe-{load.tag:x}", len(info.partitions))
    return [part.leader for part in info.partitions if part.partition == wanted]


def leader(cluster: Cluster, load: Load) -> list[int]:
    """Of a partition that is written to by the pipe."""
    return [cluster.leader(target_of(load.config.topic), 0)]


@pytest.mark.timeout(1_500 + 90 * ROUNDS)
def test_a_pipe_copies_each_record_once(cluster: Cluster, make_load: MakeLoad) -> None:
    with make_load(pipe=True, members=3, churn_s=1.5, rate=1_000, settle_s=60.0) as load:
        topic = load.config.topic
        topics = (topic, target_of(topic), OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
        kill_in_rounds(cluster, load, (coordinator, leader, everybody), topics=topics)
        verdict = load.judge()
    assert verdict.passed, verdict.to_dict()
    assert verdict.piped == verdict.final > 0
