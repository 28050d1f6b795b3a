"""An upgrade broker by broker: what needs all waits for the last, and keeps older ones out then.

The older broker is one of this release that names no features when it registers.
"""

from pathlib import Path

import pytest
from support import older_child
from support.cluster import Cluster

from penstock.client import Producer
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.errors import ClusterError, ErrorCode

REFUSAL = (
    f"topic {TRANSACTIONS_TOPIC} needs brokers that support 'transactions', but brokers [1] were "
    "registered by an older release: upgrade them, or unregister those that no longer exist"
)


def test_transactions_begin_with_the_last_upgraded_broker_and_older_ones_are_refused_from_then_on(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, brokers=3, start=False) as cluster:
        older = cluster.brokers[1]
        released = older.launcher
        older.launcher = older_child.LAUNCHER
        cluster.start()
        cluster.create_topic("t")
        with pytest.raises(ClusterError) as refused:
            write(cluster, "billing")
        assert REFUSAL in str(refused.value)
        assert (refused.value.code, refused.value.retriable) == (ErrorCode.INVALID_REQUEST, False)
        assert cluster.topic(TRANSACTIONS_TOPIC) is None, "going back is free"

        older.stop()
        with pytest.raises(ClusterError, match="upgrade them"):
            write(cluster, "billing")  # it may come back as it was
        older.launcher = released
        older.start()
        write(cluster, "billing")

        older.stop()
        older.launcher = older_child.LAUNCHER
        older.start(wait=False)
        assert older.wait_end(60) == 1
        (line,) = [line for line in older.log_text().splitlines() if "broker ends" in line]
        assert "broker 1 does not support 'transactions'" in line
        assert "start a release that supports it" in line
        write(cluster, "payments")


def write(cluster: Cluster, transactional_id: str) -> None:
    """One transaction. Raises ClusterError."""
    with (
        Producer(cluster.bootstrap, transactional_id=transactional_id) as producer,
        producer.transaction() as tx,
    ):
        tx.send("t", b"x")
