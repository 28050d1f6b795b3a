"""`kubectl penstock why` about partitions with damaged replicas."""

from datetime import UTC, datetime

from penstock.cli.kube.snapshot import Snapshot
from penstock.cli.kube.status import describe
from penstock.cli.kube.why import explain, explain_topic
from penstock.core.control.documents import TopicDocument
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import BrokerId, ControllerEpoch, LeaderEpoch, PartitionState, TopicId

CLUSTER = {
    "metadata": {"name": "flights", "namespace": "ns", "generation": 1},
    "status": {
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}],
    },
}


def waiting(name: str) -> TopicDocument:
    """Broker 1 is damaged and back; 2 and 3 may have every record, and are away."""
    ids = tuple(map(BrokerId, (1, 2, 3)))
    state = PartitionState(
        leader=BrokerId(-1), leader_epoch=LeaderEpoch(4), isr=ids, replicas=ids, version=7,
        damaged=ids[:1],
    )  # fmt: skip
    return TopicDocument(
        name=name, topic_id=TopicId(f"id-{name}"), configs={},
        partitions=(PartitionDocument(state),),
        controller_epoch=ControllerEpoch(1), metadata_version=7,
    )  # fmt: skip


def test_who_is_waited_for_is_named_and_clients_are_not_served() -> None:
    topics = {name: waiting(name) for name in ("flights", "other")}
    seen = Snapshot(now=datetime.now(UTC), cluster=CLUSTER, topic_documents=topics)
    why = explain(seen)
    found = [one for one in why.findings if one.code == "partition-damaged"]
    assert [one.subject for one in found] == ["partition flights/0", "partition other/0"]
    assert "waits for brokers 2, 3, which may have every record" in found[0].what
    assert not why.served
    assert describe(seen)["partitions"]["damaged"] == ["flights/0", "other/0"]
    topic = {
        "metadata": {"name": "flights", "namespace": "ns"},
        "spec": {"cluster": "flights"},
        "status": CLUSTER["status"],
    }
    (one,) = [one for one in explain_topic(seen, topic).findings if one.code == "partition-damaged"]
    assert one.subject == "partition flights/0", "and no other topic's"


def test_asleep_nobody_is_waited_for() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "Hibernated", "observedGeneration": 1}
    asleep = {**CLUSTER, "status": {"observedGeneration": 1, "conditions": [ready]}}
    topics = {"flights": waiting("flights")}
    seen = Snapshot(now=datetime.now(UTC), cluster=asleep, topic_documents=topics)
    assert "partition-damaged" not in {one.code for one in explain(seen).findings}
