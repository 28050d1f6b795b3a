"""`kubectl penstock status` and `why` where a part could not be read, or what was read is old."""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.console import Console

from penstock.cli.kube.picture import show_explanation, show_status
from penstock.cli.kube.snapshot import Operator, Snapshot
from penstock.cli.kube.status import describe
from penstock.cli.kube.why import explain
from penstock.core.control.documents import ClusterDocument, TopicDocument
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import BrokerId, ControllerEpoch, LeaderEpoch, PartitionState, TopicId
from penstock.kubernetes.names import COMPONENT_LABEL

NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
CLUSTER: Final[dict[str, Any]] = {
    "metadata": {"name": "flights", "namespace": "ns", "generation": 1},
    "spec": {"brokers": 2},
    "status": {
        "observedGeneration": 1,
        "message": "all is as specified",
        "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}],
    },
}
DOCUMENT: Final = ClusterDocument(
    cluster_id="id", controller_epoch=ControllerEpoch(1), metadata_version=7
)
IDS: Final = (BrokerId(0), BrokerId(1))
TOPIC: Final = TopicDocument(
    name="flights", topic_id=TopicId("t"), configs={}, controller_epoch=ControllerEpoch(1),
    metadata_version=7,
    partitions=(
        PartitionDocument(
            PartitionState(
                leader=IDS[0], leader_epoch=LeaderEpoch(4), isr=IDS, replicas=IDS, version=7
            )
        ),
    ),
)  # fmt: skip


def pod(name: str, component: str, *, ready: bool = True) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": {COMPONENT_LABEL: component}},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "conditions": [condition]},
    }


def lease(renewed: datetime, holder: str = "flights-controller-a") -> dict[str, Any]:
    times = {"renewTime": renewed.isoformat(), "leaseDurationSeconds": 15}
    return {"metadata": {"name": "x"}, "spec": {"holderIdentity": holder, **times}}


def pods(*, ready: bool = True) -> tuple[dict[str, Any], ...]:
    brokers = [pod(f"flights-broker-{one}", "broker", ready=ready) for one in range(2)]
    return (*brokers, pod("flights-controller-a", "controller", ready=ready))


HEALTHY: Final = Snapshot(
    now=NOW, cluster=CLUSTER, pods=pods(), lease=lease(NOW), document=DOCUMENT,
    operator=Operator(leases=(lease(NOW, "operator"),)), topic_documents={"flights": TOPIC},
)  # fmt: skip
OLD: Final = NOW - timedelta(hours=3)


def told(seen: Snapshot) -> str:
    text = io.StringIO()
    show_status(describe(seen), Console(file=text, width=200))
    return text.getvalue()


def codes(seen: Snapshot) -> set[str]:
    return {one.code for one in explain(seen).findings}


def test_partitions_that_could_not_be_read_are_not_in_sync() -> None:
    assert "1 in 1 topics  ✔ all in sync" in told(HEALTHY)
    unread = replace(
        HEALTHY, document=None, topic_documents={}, unread=frozenset({"ConfigMap"}),
        gaps=("configmaps is forbidden",),
    )  # fmt: skip
    assert "in sync" not in told(unread)
    assert "not known" in told(unread)
    seen = describe(unread)
    assert set(seen["partitions"].values()) == {None}
    assert {one["registered"] for one in seen["brokers"]} == {None}
    assert {one["leaders"] for one in seen["brokers"]} == {None}


def test_a_cluster_without_metadata_yet_has_no_partitions() -> None:
    """Scripts that wait for one go through these lists."""
    fresh = describe(replace(HEALTHY, document=None, topic_documents={}))["partitions"]
    assert (fresh["total"], fresh["offline"], fresh["under_replicated"]) == (0, [], [])


def test_one_topic_that_could_not_be_read_is_not_in_sync() -> None:
    unread = replace(HEALTHY, unread=frozenset({"ConfigMap"}), gaps=("a newer format",))
    assert "in sync" not in told(unread)
    assert describe(unread)["partitions"]["total"] is None
    assert describe(unread)["partitions"]["offline"] == [], "of those that could"


def test_partitions_that_no_controller_keeps_up_to_date_are_not_in_sync() -> None:
    """It may be hours ago that a controller wrote that."""
    assert describe(HEALTHY)["partitions"]["current"] is True
    old = replace(HEALTHY, lease=lease(OLD))
    assert describe(old)["partitions"]["current"] is False
    assert "✔ all in sync" not in told(old)
    assert "no controller is active" in told(old)


def test_pods_that_may_not_be_read_are_not_missing() -> None:
    unread = replace(HEALTHY, pods=(), unread=frozenset({"Pod"}), gaps=("pods is forbidden",))
    assert codes(unread) == {"not-readable"}
    assert "Missing" not in told(unread)
    assert "0 of 2 ready" not in told(unread)
    behind = replace(
        unread.topic_documents["flights"],
        partitions=(PartitionDocument(replace(TOPIC.partitions[0].state, isr=IDS[:1])),),
    )
    short = explain(replace(unread, topic_documents={"flights": behind}))
    said = [line for one in short.findings for line in one.evidence]
    assert "broker 1 is not in sync: its pod could not be read" in said


def test_without_a_ready_broker_nobody_is_served_whatever_an_operator_said_once() -> None:
    """The operator is gone, and its last word was that the Cluster is Ready."""
    dead = replace(
        HEALTHY, pods=pods(ready=False), lease=lease(OLD),
        operator=Operator(leases=(lease(OLD, "operator"),)),
    )  # fmt: skip
    for seen in (dead, replace(dead, pods=())):
        why = explain(seen)
        assert "no-broker-ready" in {one.code for one in why.findings}
        assert (why.served, describe(seen)["ready"]) == (False, False)
        text = io.StringIO()
        show_explanation(why, Console(file=text, width=200))
        assert "✔" not in text.getvalue()
        assert "✔ Ready" not in told(seen)
        assert "all is as specified" not in told(seen)


def test_what_an_operator_said_that_is_gone_is_told_to_be_old() -> None:
    gone = replace(HEALTHY, operator=Operator(leases=(lease(OLD, "operator"),)))
    assert describe(gone)["operator_active"] is False
    assert "no operator is active" in told(gone)
    assert describe(HEALTHY)["operator_active"] is True
    forbidden = replace(gone, operator=Operator(hidden=True))
    assert describe(forbidden)["operator_active"] is None
    assert "operator-missing" not in codes(forbidden), "it may be where nobody may look"
