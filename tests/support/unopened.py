"""Logs that a start cannot open, and the wait until nothing is wrong with a topic any more."""

from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Admin
from penstock.core.types import ReplicaKey, TopicId
from penstock_broker.store import layout
from penstock_broker.store.database import Operations
from penstock_broker.store.rocks import RocksLogStore


def swap_checkpoint(cluster: Cluster, broker: int, topic_id: str, stored: bytes) -> bytes:
    """Of the log of a broker that is down: what a start reads first. Returns what was there."""
    store = RocksLogStore(cluster.data_dir(broker) / "log")
    try:
        key = layout.checkpoint_key(store.slots()[ReplicaKey(TopicId(topic_id), 0)])
        before = store._database.state[key]
        change = Operations()
        change.put_state(key, stored)
        store._commit(change, "swapping a checkpoint")
    finally:
        store.close()
    assert isinstance(before, bytes)
    return before


def wait_well(cluster: Cluster, topic: str) -> None:
    """All replicas are in sync, and none is marked as damaged."""
    cluster.wait_in_sync(topic)
    with Admin(cluster.bootstrap) as admin:
        wait_until(
            lambda: not any(move.damaged for move in admin.describe_moves([topic]).moves),
            what="no replica is marked",
        )
