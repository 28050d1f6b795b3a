"""A log that reads well and is not as its leader's: another batch in place of a stored one."""

from contextlib import ExitStack

from support.cluster import Cluster

from penstock.client import Admin
from penstock.core.batch import Batch
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock_broker.store.interface import PartitionWrite, Rewrite
from penstock_broker.store.rocks import RocksLogStore


def replace_batch(cluster: Cluster, broker: int, topic: str, offset: int) -> None:
    """Another record, with all CRCs as they must be, in the broker's log of partition 0; the broker
    is stopped meanwhile."""
    key = ReplicaKey(TopicId(cluster.known(topic).topic_id), 0)
    assert cluster.brokers[broker].stop() == 0
    store = RocksLogStore(cluster.data_dir(broker) / "log")
    try:
        slot = store.slots()[key]
        (known,) = store.read(slot, Offset(offset), 1, Offset(offset + 1))
        store.write([PartitionWrite(slot, rewrites=[Rewrite([_other_than(known)])])], sync=True)
    finally:
        store.close()
    cluster.brokers[broker].start()
    cluster.wait_in_sync(topic)


def _other_than(known: Batch) -> Batch:
    other = build_batch(encode_columns([b"invented"], timestamps_ms=1))
    return other.stamped(known.base_offset, known.header.leader_epoch, known.header.append_time_ms)


def logs_differ(cluster: Cluster, _: ExitStack) -> None:
    """A follower of `flights` has another first batch than the leader: a scrub compares them."""
    leader = cluster.leader("flights")
    replace_batch(cluster, next(one for one in (0, 1, 2) if one != leader), "flights", 0)
    with Admin(cluster.bootstrap) as admin:
        assert admin.start_scrub("flights", 0) == 3
