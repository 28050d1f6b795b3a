"""A ring while brokers are killed and its members come and go: nothing reads in a circle (I13).

Two loops of two members each pass records on, from each of two topics to the other one, in
transactions of their own consumers and producers; every few seconds a member leaves, in good order
or with its transaction open. `penstock verify` looks at who read what whose transaction wrote, and
at what read_committed readers see at the end.
"""

import pytest
from support.cluster import Cluster
from support.kills import ROUNDS, everybody, kill_in_rounds
from support.load import Load, MakeLoad
from support.waiting import wait_until

from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.verify.ring import ring_topics
from penstock.verify.ring_member import HOPS_MAX


def leader(cluster: Cluster, load: Load) -> list[int]:
    """Of a partition that both loops have in hand."""
    return [cluster.leader(ring_topics(load.config.topic)[0], 0)]


def ended(load: Load, how: str) -> bool:
    """A transaction of the ring has, so far."""
    return any(
        '"ended-ring"' in line and f'"{how}"' in line
        for line in load.history.read_text().splitlines()
    )


@pytest.mark.timeout(1_200 + 60 * ROUNDS)
def test_records_go_round_once_and_nobody_reads_in_a_circle(
    cluster: Cluster, make_load: MakeLoad
) -> None:
    with make_load(
        ring=True, members=2, churn_s=2.0, rate=300, partitions=3, keys=3, transactions=True
    ) as load:
        topic = load.config.topic
        topics = (topic, *ring_topics(topic), OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
        kill_in_rounds(cluster, load, (leader, everybody), topics=topics)
        wait_until(
            lambda: ended(load, "committed") and ended(load, "aborted"),
            what="members leave with transactions open",
            timeout_s=60,
        )
        verdict = load.judge()
    assert verdict.passed, verdict.to_dict()
    assert verdict.passed_on == HOPS_MAX * verdict.final > 0
