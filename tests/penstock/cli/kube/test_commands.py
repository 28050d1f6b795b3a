"""`kubectl penstock status`, `why`, `pause`, `resume` against a real Kubernetes API."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.kube_scene import PENSTOCK, Scene, ago, running
from typer.testing import CliRunner

from penstock.cli.kube.snapshot import Operator, Snapshot
from penstock.cli.kube.why import explain
from penstock.cli.main import app
from penstock.client import (
    BlockingTransaction,
    TopicPartition,
    TransactionListing,
    TransactionState,
)
from penstock.kubernetes.names import APPROVE, ROTATE_CA, ROTATION
from penstock.kubernetes.rotation import RotationState
from penstock.views.findings import Finding

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kubelet leads to these pods: whoever asks a broker waits for nothing."""
    monkeypatch.setattr("penstock.cli.kube.transactions.TIMEOUT_MS", 100)


@pytest.fixture
def scene(api_server: ApiServer) -> Scene:
    return Scene(api_server)


@pytest.fixture
def run(scene: Scene) -> Run:
    """`penstock …` as administrator in the scene's namespace."""

    def invoke(command: str, *words: str) -> Any:
        where = ["--kubeconfig", str(scene.kubeconfig), "-n", scene.namespace]
        done = CliRunner().invoke(app, [command, *words, *where])
        assert "Traceback" not in done.output
        return done

    return invoke


def codes(done: Any) -> list[str]:
    return [one["code"] for one in json.loads(done.stdout)["findings"]]


def test_a_healthy_cluster_is_shown_and_ends_with_0(scene: Scene, run: Run) -> None:
    scene.healthy()
    seen = run("status", "-o", "json")
    assert seen.exit_code == 0, seen.output
    status = json.loads(seen.stdout)
    assert status["cluster"] == f"{scene.namespace}/flights"
    assert status["ready"] is True
    assert [(one["broker"], one["node"], one["ready"], one["registered"], one["leaders"],
             one["replicas"]) for one in status["brokers"]] == [
        (0, "node-1", True, True, 1, 2), (1, "node-1", True, True, 1, 2),
        (2, "node-1", True, True, 0, 2),
    ]  # fmt: skip
    assert status["partitions"] == {
        "current": True, "topics": 1, "total": 2, "offline": [], "under_min_isr": [],
        "under_replicated": [], "damaged": [],
    }  # fmt: skip
    assert [(one["pod"], one["active"]) for one in status["controllers"]] == [
        ("flights-controller-a", True), ("flights-controller-b", False),
    ]  # fmt: skip
    assert {one["phase"] for one in status["storage"]} == {"Bound"}
    assert [one["topic"] for one in status["topics"]] == ["flights"]

    picture = run("status", "flights")
    assert picture.exit_code == 0
    assert f"{scene.namespace}/flights  ✔ Ready" in picture.stdout
    assert "3 of 3 ready" in picture.stdout
    assert "✔ all in sync" in picture.stdout
    assert "holds the Lease" in picture.stdout

    explained = run("why", "-o", "json")
    assert explained.exit_code == 0
    (gap,) = json.loads(explained.stdout)["findings"]
    assert gap["what"].startswith(
        "could not be read: transactions, which only brokers know: cannot port-forward to pod"
    )


def test_yaml_is_the_same_document(scene: Scene, run: Run) -> None:
    scene.healthy()
    assert "cluster_id: id-of-flights\n" in run("status", "-o", "yaml").stdout


def test_a_cluster_the_operator_never_saw_is_not_ready(scene: Scene, run: Run) -> None:
    body = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "flights"}, "spec": {"brokers": 3}}  # fmt: skip
    scene.make(PENSTOCK, "clusters", body)
    assert run("status").exit_code == 1
    done = run("why", "-o", "json")
    assert done.exit_code == 1
    assert {"not-seen", "Pending", "pod-missing", "controllers-missing"} <= set(codes(done))


def test_ready_of_an_older_spec_is_not_ready(scene: Scene, run: Run) -> None:
    scene.healthy()
    path = scene.path(PENSTOCK, "clusters", "flights")
    scene.server.request(
        "PATCH", path, {"spec": {"brokers": 4}}, Content_Type="application/merge-patch+json"
    )
    assert run("status").exit_code == 1
    done = run("why", "-o", "json")
    assert done.exit_code == 1
    assert {"not-seen", "pod-missing"} <= set(codes(done))


def test_a_pod_that_no_node_takes_is_explained_by_the_scheduler(scene: Scene, run: Run) -> None:
    scene.healthy()
    scheduler = "0/3 nodes are available: 3 Insufficient memory."
    scene.pod(
        "flights-broker-3",
        "broker",
        node="",
        status={
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": scheduler, "lastTransitionTime": ago(240)}
            ],
        },
    )  # fmt: skip
    done = run("why")
    assert f"pod flights-broker-3 is not scheduled: {scheduler} · 4m" in done.stdout


def test_a_crash_loop_shows_the_last_words(scene: Scene, run: Run) -> None:
    scene.healthy()
    crashed = running(
        "broker",
        restartCount=7,
        state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m"}},
        lastState={"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": ago(130),
                                  "message": "penstock: the data directory is of broker 2"}},
    )  # fmt: skip
    scene.set_status("/api/v1", "pods", "flights-broker-1", crashed)
    done = run("why")
    assert "pod flights-broker-1 crashes: container broker ended with 1 (Error)" in done.stdout
    assert "7 restarts · 2m" in done.stdout
    assert "│ penstock: the data directory is of broker 2" in done.stdout
    assert "→ kubectl logs flights-broker-1 --previous" in done.stdout
    assert "CrashLoopBackOff" in run("status").stdout


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}},
            "image",
            "cannot pull image penstock-broker:1 (ImagePullBackOff)",
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no key"}}},
            "container-config",
            "cannot be started (CreateContainerConfigError)",
        ),
        (
            {
                "restartCount": 1,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            },
            "crash",
            "ended with 137 (OOMKilled)",
        ),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, "pod-starting", "is starting"),
        ({"ready": False, "state": {"running": {"startedAt": ago(9)}}}, "pod-not-ready", "SERVING"),
    ],
    ids=["image", "config", "oom", "starting", "not ready"],
)
def test_why_a_pod_does_not_run(
    scene: Scene, run: Run, change: dict[str, Any], code: str, told: str
) -> None:
    scene.healthy()
    scene.set_status("/api/v1", "pods", "flights-broker-1", running("broker", **change))
    found = json.loads(run("why", "-o", "json").stdout)["findings"]
    (finding,) = (one for one in found if one["subject"] == "pod flights-broker-1")
    assert finding["code"] == code
    assert told in finding["what"]


def test_volumes_that_do_not_come_or_grow(scene: Scene, run: Run) -> None:
    scene.healthy()
    scene.claim(3, bound=False)
    scene.claim(4, size="5Gi")
    scene.claim(5, size="10240Mi")
    scene.claim(6, size="11Gi")  # provisioners round up
    scene.event("PersistentVolumeClaim", "data-flights-broker-3", "ProvisioningFailed",
                'storageclass "fast" not found')  # fmt: skip
    scene.event("PersistentVolumeClaim", "data-flights-broker-4", "VolumeResizeFailed",
                "the disk type cannot grow")  # fmt: skip
    done = run("why")
    pending = "volume claim data-flights-broker-3 is Pending: StorageClass 'fast' has not provided"
    assert pending in done.stdout
    assert 'ProvisioningFailed: storageclass "fast" not found' in done.stdout
    assert "volume claim data-flights-broker-4 has 5Gi, but 10Gi are requested" in done.stdout
    assert "VolumeResizeFailed: the disk type cannot grow" in done.stdout
    assert "data-flights-broker-5" not in done.stdout
    assert "data-flights-broker-6" not in done.stdout


def test_partitions_in_trouble_are_named_with_what_they_lack(scene: Scene, run: Run) -> None:
    scene.cluster(ready=False, message="partitions are offline or below min ISR")
    scene.topic("flights")
    for index in range(2):
        scene.pod(f"flights-broker-{index}", "broker")
    scene.metadata(alive={0, 1}, isr=[[0, 1], [1], []])
    done = run("status", "-o", "json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["partitions"] == {
        "current": False, "topics": 1, "total": 3, "offline": ["flights/2"],
        "under_min_isr": ["flights/1"], "under_replicated": ["flights/0"], "damaged": [],
    }  # fmt: skip
    text = run("why").stdout
    assert "1 partition without a leader: no writes, no reads: flights/2" in text
    assert "broker 2 is not in sync: it has no pod" in text
    assert "in sync: 1 of 2 needed" in text
    assert "1 of 3 broker pods missing: flights-broker-2" in text
    topic = run("why", "topic/flights", "-o", "json")
    assert json.loads(topic.stdout)["subject"] == (
        f"Topic {scene.namespace}/flights of Cluster flights"
    )
    assert {"offline", "under-min-isr", "under-replicated"} <= set(codes(topic))
    assert topic.exit_code == 1, "though the operator has called the Topic ready"


def test_a_pod_without_a_session_is_found(scene: Scene, run: Run) -> None:
    scene.healthy()
    scene.set_status("/api/v1", "pods", "flights-broker-1", running("broker"))
    scene.server.request("DELETE", scene.path("/api/v1", "configmaps", "flights-cluster-x"))
    scene.server.request("DELETE", scene.path("/api/v1", "configmaps", "flights-topic-x"))
    scene.metadata(alive={0, 2}, isr=[[0, 2]])
    assert "the controller has no session with broker 1" in run("why").stdout


def test_leases_that_nobody_renews(scene: Scene, run: Run) -> None:
    scene.cluster()
    scene.pod("flights-controller-a", "controller")
    scene.lease("flights-controller-a", renewed_ago_s=120)
    text = run("why").stdout
    assert "Lease flights-controller is no longer renewed by flights-controller-a:" in text
    assert "· 2m" in text
    status = json.loads(run("status", "-o", "json").stdout)
    assert [one["active"] for one in status["controllers"]] == [False]


def test_an_operator_that_does_not_work_is_found_wherever_it_is() -> None:
    """Objects as an API server sends them: on a shared one, others' operators would be seen."""
    now = datetime.now(UTC)
    wait = {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}
    pod = {"metadata": {"name": "op-1"}, "spec": {}, "status": running("operator", state=wait)}
    deployment = {
        "metadata": {"name": "penstock-operator", "namespace": "ops"},
        "spec": {"replicas": 2},
        "status": {},
    }
    lease = {"spec": {"holderIdentity": "op-0", "leaseDurationSeconds": 15,
                      "renewTime": ago(600)}}  # fmt: skip
    cluster = {"metadata": {"name": "flights", "namespace": "ns", "generation": 2},
               "status": {"observedGeneration": 1}}  # fmt: skip

    def found(operator: Operator) -> dict[str, str]:
        explanation = explain(Snapshot(now=now, cluster=cluster, operator=operator))
        return {one.code: f"{one.subject} {one.what}" for one in explanation.findings}

    broken = found(Operator((deployment,), (pod,), (lease,)))
    assert broken["operator-down"].startswith("operator ops/penstock-operator has 0 of 2 pods")
    assert broken["image"].startswith("pod op-1 cannot pull image")
    assert broken["operator-lease"].startswith("no operator holds the Lease penstock-operator")
    assert broken["not-seen"].endswith("but the operator has seen generation 1 only")
    assert found(Operator())["operator-missing"].startswith("no operator is installed")
    works = {"spec": {**lease["spec"], "renewTime": ago(1)}}
    assert not {"operator-down", "operator-lease", "operator-missing", "image"} & set(
        found(Operator((deployment,), (pod,), (lease, works)))
    )


def test_a_ca_that_ends_soon_is_a_finding_though_nothing_is_wrong_yet() -> None:
    def found(reason: str) -> list[tuple[str, str]]:
        secured = {"type": "Secured", "status": "True", "reason": reason, "message": "the CA ends"}
        ready = {"type": "Ready", "status": "True"}
        cluster = {
            "metadata": {"name": "flights", "namespace": "ns", "generation": 1},
            "status": {"observedGeneration": 1, "conditions": [ready, secured]},
        }
        explanation = explain(Snapshot(now=datetime.now(UTC), cluster=cluster))
        return [
            (one.code, one.what) for one in explanation.findings if one.subject == "Cluster flights"
        ]

    assert found("AuthorityEnds") == [
        ("AuthorityEnds", "needs another CA: the CA ends (AuthorityEnds)")
    ]
    assert found("ServerCertificateEnds") == [
        (
            "ServerCertificateEnds",
            "has a server whose certificate was not renewed: the CA ends (ServerCertificateEnds)",
        )
    ]
    assert found("Strict") == []


def test_an_operator_that_brokers_refuse_is_a_finding_while_it_says_so() -> None:
    """It writes no status, so nothing else would say why nothing happens."""
    now = datetime.now(UTC)

    def found(minutes_ago: int, cluster: str = "flights") -> list[Finding]:
        event = {
            "type": "Warning",
            "reason": "OperatorRefused",
            "message": "operator 'b' gets no epoch",
            "involvedObject": {"kind": "Cluster", "name": cluster},
            "eventTime": (now - timedelta(minutes=minutes_ago)).isoformat(),
            "metadata": {},
        }
        metadata = {"name": "flights", "namespace": "ns", "generation": 1}
        seen = Snapshot(now=now, cluster={"metadata": metadata}, events=(event,))
        return [one for one in explain(seen).findings if one.code == "operator-refused"]

    (told,) = found(14)
    assert (told.what, told.since) == (
        "may change nothing in the brokers: operator 'b' gets no epoch",
        "14m",
    )
    assert found(16) == [], "it would have said it again"
    assert found(1, "another") == []


def test_an_upgrade_that_is_not_finalized_is_a_finding_and_nothing_is_wrong() -> None:
    def found(status: str) -> list[tuple[str, str]]:
        pending = {"type": "FormatPending", "status": status, "reason": "FormatPending",
                   "message": "format 1 is stored"}  # fmt: skip
        ready = {"type": "Ready", "status": "True", "observedGeneration": 1}
        cluster = {
            "metadata": {"name": "flights", "namespace": "ns", "generation": 1},
            "status": {"observedGeneration": 1, "conditions": [ready, pending]},
        }
        explanation = explain(Snapshot(now=datetime.now(UTC), cluster=cluster))
        assert explanation.served
        return [
            (one.code, one.what) for one in explanation.findings if one.subject == "Cluster flights"
        ]

    assert found("True") == [
        (
            "FormatPending",
            "has an upgrade that is not finalized: format 1 is stored (FormatPending)",
        )
    ]
    assert found("False") == []


def blocked(partition: int, *, producer: int, epoch: int, **owner: Any) -> BlockingTransaction:
    """Three offsets behind; `owner`: what its coordinator has, none = no coordinator has it."""
    listing = TransactionListing(
        transactional_id="payments-0",
        branch=0,
        producer_id=producer,
        client_host="10.0.0.7",
        **{"client_id": "billing", "finishing": 0, "finishing_ms": None, **owner},
    ) if owner else None  # fmt: skip
    return BlockingTransaction(
        where=TopicPartition("paid", partition),
        last_stable_offset=7,
        high_watermark=10,
        producer_id=producer,
        producer_epoch=epoch,
        last_ms=None,
        owner=listing,
    )


def test_transactions_that_hold_up_readers_are_told_by_what_can_be_done() -> None:
    """Those that no coordinator knows of, and those whose end is on its way, cannot be aborted."""
    idle = {"state": TransactionState.IDLE, "open_ms": None}
    cluster = {"metadata": {"name": "flights", "namespace": "ns"}}
    seen = Snapshot(
        now=datetime.now(UTC),
        cluster=cluster,
        blocking=(
            blocked(4, producer=9, epoch=2),
            blocked(0, producer=8, epoch=5, producer_epoch=6, **idle, finishing=1,
                    finishing_ms=90_000),
            blocked(1, producer=8, epoch=6, producer_epoch=6, client_id="",
                    state=TransactionState.OPEN, open_ms=180_000),
        ),
    )  # fmt: skip
    told = [one for one in explain(seen).findings if one.code.startswith("transaction")]
    assert [(one.code, one.since) for one in told] == [
        ("transaction-finishing", "90s"), ("transaction-open", "3m"), ("transaction-unknown", None),
    ]  # fmt: skip
    finishing, still_open, unknown = (f"{one.subject} {one.what}" for one in told)
    assert finishing == (
        "transaction 'payments-0' of client 'billing' at 10.0.0.7 has ended, but paid/0 has not "
        "stored the outcome yet: readers of committed records wait"
    )
    assert "of a client without a name at 10.0.0.7 is open and blocks readers" in still_open
    assert unknown == (
        "the transaction of producer 9, epoch 2, blocks readers of committed records in paid/4, "
        "and no coordinator knows it"
    )
    assert told[1].evidence == ("paid/1: readers wait at offset 7, 3 before the end",)


def test_pause_and_resume_write_the_annotation(scene: Scene, run: Run) -> None:
    scene.healthy()
    done = run("pause", "flights")
    assert done.exit_code == 0, done.output
    cluster = scene.get(PENSTOCK, "clusters", "flights")
    assert cluster["metadata"]["annotations"]["penstock.dev/paused"] == "true"
    assert "● paused" in run("status").stdout
    assert "is paused: the operator changes nothing" in run("why").stdout
    assert run("resume", f"{scene.namespace}/flights").exit_code == 0
    cluster = scene.get(PENSTOCK, "clusters", "flights")
    assert "penstock.dev/paused" not in cluster["metadata"].get("annotations", {})
    assert run("resume", "flights").exit_code == 0  # again: nothing to do, no error


def strict(scene: Scene, state: RotationState | None = None, condition: str = "") -> None:
    """A Strict Cluster, as its controllers and the operator show it."""
    scene.healthy(strict=True)
    cluster = scene.get(PENSTOCK, "clusters", "flights")
    rotating = {
        "type": "RotatingCA",
        "status": "True",
        "reason": "DroppingOld",
        "message": condition,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    if condition:
        shown = [*cluster["status"]["conditions"], rotating]
        scene.set_status(PENSTOCK, "clusters", "flights", {"conditions": shown})
    annotations = {} if state is None else {ROTATION: state.text()}
    trust = {"metadata": {"name": "flights-trust", "annotations": annotations}}
    scene.make("/api/v1", "configmaps", trust)


@pytest.mark.parametrize(
    ("state", "secret"),
    [(None, "flights-ca-2"), (RotationState("Settled", "ca-2", 1.0), "flights-ca")],
)
def test_rotate_ca_asks_once_and_says_for_what(
    state: RotationState | None, secret: str, scene: Scene, run: Run
) -> None:
    strict(scene, state)
    dry = run("rotate-ca", "flights", "--dry-run", "-o", "json")
    assert dry.exit_code == 0, dry.output
    assert json.loads(dry.stdout)["newSecret"] == secret
    assert "annotations" not in scene.get(PENSTOCK, "clusters", "flights")["metadata"]
    asked = json.loads(run("rotate-ca", "flights", "-o", "json").stdout)
    assert asked["newSecret"] == secret
    first = scene.get(PENSTOCK, "clusters", "flights")["metadata"]["annotations"]
    assert first == {ROTATE_CA: asked["id"]}
    done = run("rotate-ca", "flights")
    assert f"gets another CA, in Secret {secret}" in done.stdout
    again = scene.get(PENSTOCK, "clusters", "flights")["metadata"]["annotations"]
    assert again[ROTATE_CA] > asked["id"]


def test_a_rotation_under_way_is_explained_and_not_begun_again(scene: Scene, run: Run) -> None:
    strict(scene, RotationState("DroppingOld", "ca", 1.0), "waits for broker 1")
    done = run("rotate-ca", "flights")
    assert done.exit_code != 0
    assert "is being replaced already (waits for broker 1)" in done.output
    findings = json.loads(run("why", "-o", "json").stdout)["findings"]
    assert "gets another CA, and works meanwhile: waits for broker 1" in findings[0]["what"]


def test_a_rotation_is_not_begun_again_while_no_operator_says_so(scene: Scene, run: Run) -> None:
    strict(scene, RotationState("DroppingOld", "ca", 1.0))
    assert "is being replaced already (DroppingOld)" in run("rotate-ca", "flights").output


def test_who_has_no_ca_to_rotate_is_told_why(scene: Scene, run: Run) -> None:
    scene.healthy()
    done = run("rotate-ca", "flights")
    assert done.exit_code != 0
    assert "spec.security.mode is Disabled" in done.output


def test_a_paused_cluster_or_one_without_a_ca_yet_is_not_rotated(scene: Scene, run: Run) -> None:
    scene.healthy(strict=True)
    assert "has no ConfigMap flights-trust yet" in run("rotate-ca", "flights").output
    assert run("pause", "flights").exit_code == 0
    assert "is paused; resume it first" in run("rotate-ca", "flights").output


def offer(scene: Scene, **upgrade: Any) -> None:
    """As the operator writes it into the status."""
    scene.healthy()
    scene.set_status(PENSTOCK, "clusters", "flights", {"upgrade": upgrade})


OFFERED = {
    "available": True,
    "plan": "0123abcd",
    "from": "penstock-broker:0.1.0",
    "to": "penstock-broker:0.2.0",
    "changes": ["brokers: spec.containers[0].image: one becomes another"],
    "steps": ["0", "1, 4"],
    "minutes": 2,
    "format": 1,
    "newestFormat": 2,
}


def test_an_upgrade_is_shown_and_its_plan_approved(scene: Scene, run: Run) -> None:
    offer(scene, **OFFERED)
    dry = run("upgrade", "flights", "--dry-run")
    assert dry.exit_code == 0, dry.output
    for words in (
        "plan 0123abcd",
        "image: penstock-broker:0.1.0 becomes penstock-broker:0.2.0",
        "brokers: spec.containers[0].image: one becomes another",
        "order: controllers first, then brokers 0; 1, 4, each once all replicas are in sync",
        "about 2 min\n",
        "metadata: format 1, as it is\n",
        "way back: until `kubectl penstock cluster finalize` stores format 2\n",
    ):
        assert words in dry.stdout
    assert json.loads(run("upgrade", "flights", "--dry-run", "-o", "json").stdout) == {
        "cluster": f"{scene.namespace}/flights",
        "plan": "0123abcd",
        "from": OFFERED["from"],
        "to": OFFERED["to"],
        "changes": OFFERED["changes"],
        "steps": ["0", "1, 4"],
        "minutes": 2,
        "order": dry.stdout.rpartition("order: ")[2].partition("\n")[0],
        "format": 1,
        "newest_format": 2,
        "way_back": "until `kubectl penstock cluster finalize` stores format 2",
        "approved": False,
    }
    assert run("upgrade", "flights").exit_code != 0, "nobody has said yes"
    program = run("upgrade", "flights", "-o", "json")
    assert program.exit_code != 0
    assert "give --yes, or --dry-run to look first" in program.stderr
    assert "annotations" not in scene.get(PENSTOCK, "clusters", "flights")["metadata"]
    done = run("upgrade", "flights", "--yes")
    assert "approved; to see how far it is" in done.stdout
    approved = scene.get(PENSTOCK, "clusters", "flights")["metadata"]["annotations"]
    assert approved == {APPROVE: "0123abcd"}


def test_an_upgrade_says_until_when_one_can_go_back(scene: Scene, run: Run) -> None:
    offer(scene, **{**OFFERED, "format": 2})
    shown = run("upgrade", "flights", "--dry-run").stdout
    assert "way back: at any time: this release stores format 2, too" in shown
    unsaid = {"upgrade": {"format": None, "newestFormat": None}}
    scene.set_status(PENSTOCK, "clusters", "flights", unsaid)
    shown = run("upgrade", "flights", "--dry-run").stdout
    assert "metadata:" not in shown
    assert "way back: not known" in shown


def test_an_upgrade_says_how_long_the_first_broker_shows_another_image(
    scene: Scene, run: Run
) -> None:
    offer(scene, **OFFERED)
    scene.set_spec(PENSTOCK, "clusters", "flights", {"upgrade": {"soak": "1h"}})
    waits = "in sync, and all but the first once that one was ready for 1h; about 2 min\n"
    assert waits in run("upgrade", "flights", "--dry-run").stdout
    same = {"upgrade": {**OFFERED, "from": OFFERED["to"]}}
    scene.set_status(PENSTOCK, "clusters", "flights", same)
    assert "in sync; about 2 min\n" in run("upgrade", "flights", "--dry-run").stdout


def test_a_cluster_that_is_offered_nothing_says_so(scene: Scene, run: Run) -> None:
    scene.healthy()
    done = run("upgrade", "flights", "--yes")
    assert done.exit_code == 0
    assert "has all that its operator would give it" in done.stdout
    assert json.loads(run("upgrade", "flights", "-y", "-o", "json").stdout)["approved"] is False


def test_a_spread_is_shown_and_approved(scene: Scene, run: Run) -> None:
    scene.healthy()
    scene.set_spec(PENSTOCK, "clusters", "flights", {"balance": {"mode": "Manual"}})
    text = "84 partitions move to brokers 3, 4, 41.3 GiB to copy, about 9 min"
    plan = {"id": "cafe01", "moves": 84, "bytes": 44345655296, "minutes": 9, "text": text}
    scene.set_status(PENSTOCK, "clusters", "flights", {"plan": plan})
    dry = run("approve", "flights", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert dry.stdout == f"Cluster {scene.namespace}/flights, plan cafe01\n{text}\n"
    assert json.loads(run("approve", "flights", "--dry-run", "-o", "json").stdout) == {
        "cluster": f"{scene.namespace}/flights",
        "plan": "cafe01",
        "text": text,
        "moves": 84,
        "bytes": 44345655296,
        "minutes": 9,
        "automatic": False,
        "approved": False,
    }
    wrong = run("approve", "flights", "beef02", "--yes")
    assert wrong.exit_code != 0
    assert f"has no plan 'beef02'; the one that waits is 'cafe01': {text}" in wrong.output
    assert run("approve", "flights").exit_code != 0, "nobody has said yes"
    assert "annotations" not in scene.get(PENSTOCK, "clusters", "flights")["metadata"]
    done = run("approve", "flights", "cafe01", "--yes")
    assert "approved; to see how far it is" in done.stdout
    approved = scene.get(PENSTOCK, "clusters", "flights")["metadata"]["annotations"]
    assert approved == {APPROVE: "cafe01"}


def test_a_spread_that_nobody_has_to_approve_says_so(scene: Scene, run: Run) -> None:
    scene.healthy()
    none = run("approve", "flights", "--yes")
    assert (none.exit_code, "has no plan that waits" in none.stdout) == (1, True)
    assert "none waits" in run("approve", "flights", "cafe01", "--yes").output
    plan = {"plan": {"id": "cafe01", "text": "3 partitions move to broker 3"}}
    scene.set_status(PENSTOCK, "clusters", "flights", plan)
    alone = run("approve", "flights", "--yes")
    assert (alone.exit_code, "it begins by itself" in alone.stdout) == (1, True)
    assert "annotations" not in scene.get(PENSTOCK, "clusters", "flights")["metadata"]


def test_a_paused_cluster_is_not_upgraded(scene: Scene, run: Run) -> None:
    offer(scene, **OFFERED)
    assert run("pause", "flights").exit_code == 0
    assert "is paused; resume it first" in run("upgrade", "flights", "--yes").output


def test_a_cluster_or_topic_that_is_not_there(scene: Scene, run: Run) -> None:
    none = run("status")
    assert none.exit_code == 1
    assert f"there is no Cluster in namespace '{scene.namespace}'" in none.stderr
    scene.cluster()
    wrong = run("status", "trains")
    assert (
        f"there is no Cluster 'trains' in namespace '{scene.namespace}'; there are:" in wrong.stderr
    )
    assert f"{scene.namespace}/flights" in wrong.stderr
    assert "there is no Topic 'x'" in run("why", "topic/x").stderr
    for done in (none, wrong):
        assert len(done.stderr.splitlines()) == 1


def test_several_clusters_are_not_guessed_between(scene: Scene, run: Run) -> None:
    scene.cluster()
    scene.name = "trains"
    scene.cluster()
    done = run("why")
    assert done.exit_code == 1
    assert f"name one of them: {scene.namespace}/flights, {scene.namespace}/trains" in done.stderr
    assert f"{scene.namespace}/trains" in run("status", "trains").stdout


def test_what_may_not_be_read_is_said_and_the_rest_is_shown(scene: Scene, run: Run) -> None:
    scene.healthy()
    rules = [{"apiGroups": ["penstock.dev"], "resources": ["*"], "verbs": ["get", "list"]}]
    limited = scene.server.service_account(scene.namespace, "limited", rules)
    words = ["status", "flights", "--kubeconfig", str(limited), "-n", scene.namespace]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "✔ Ready" in done.stdout
    assert 'cannot list resource "pods"' in done.stdout.replace("\n", " ")
    assert "in sync" not in done.stdout
    assert "Missing" not in done.stdout
    words = ["pause", "flights", "--kubeconfig", str(limited), "-n", scene.namespace]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert 'cannot patch resource "clusters"' in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["status", "why"])
def test_bad_kubeconfigs_and_silent_servers_are_one_line(tmp_path: Path, command: str) -> None:
    done = CliRunner().invoke(app, [command, "--kubeconfig", str(tmp_path / "absent")])
    assert done.exit_code == 1
    assert "absent cannot be used" in done.stderr
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: c, user: {token: t}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: c}}]\n"
    )
    done = CliRunner().invoke(app, [command, "--kubeconfig", str(config)])
    assert done.exit_code == 1
    assert done.stderr.startswith("penstock: the Kubernetes API at http://127.0.0.1:1 does not")
    assert len(done.stderr.splitlines()) == 1
    done = CliRunner().invoke(app, [command, "--kubeconfig", str(config), "--context", "nope"])
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_cluster_is_put_to_sleep_and_woken_by_its_spec(scene: Scene, run: Run) -> None:
    scene.healthy()

    def spec() -> Any:
        return scene.get(PENSTOCK, "clusters", "flights")["spec"].get("hibernate")

    dry = json.loads(run("hibernate", "flights", "--dry-run", "-o", "json").stdout)
    assert (dry["hibernate"], dry["changed"], dry["dryRun"]) == (True, True, True)
    assert spec() is None
    done = run("hibernate", "flights")
    assert done.exit_code == 0, done.output
    assert "is put to sleep" in done.stdout
    assert "kubectl penstock why flights" in done.stdout
    assert spec() is True
    again = json.loads(run("hibernate", "flights", "-o", "json").stdout)
    assert (again["changed"], again["state"]) == (False, "Awake")
    assert run("wake", "flights").exit_code == 0
    assert spec() is False


@pytest.mark.parametrize(
    ("before", "command", "said"),
    [
        ((), "pause", "could be paused"),
        (("pause",), "resume", "could be resumed"),
        ((), "hibernate", "would be put to sleep"),
        (("hibernate",), "wake", "would be woken"),
    ],
    ids=["pause", "resume", "hibernate", "wake"],
)
def test_a_dry_run_leaves_a_cluster_as_it_is(
    before: tuple[str, ...], command: str, said: str, scene: Scene, run: Run
) -> None:
    scene.healthy()
    for one in before:
        assert run(one, "flights").exit_code == 0
    cluster = scene.get(PENSTOCK, "clusters", "flights")
    done = run(command, "flights", "--dry-run")
    assert done.exit_code == 0, done.output
    assert f"{scene.namespace}/flights {said}" in done.stdout
    assert scene.get(PENSTOCK, "clusters", "flights") == cluster, "not even its resourceVersion"


def test_who_waits_is_told_when_it_sleeps_or_why_it_does_not(scene: Scene, run: Run) -> None:
    scene.healthy()
    run("hibernate", "flights")
    generation = scene.get(PENSTOCK, "clusters", "flights")["metadata"]["generation"]

    def say(reason: str, stalled: str, **status: Any) -> None:
        now = "2030-01-01T00:00:00Z"
        conditions = [
            {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": "orders-0 is not in sync",
                "lastTransitionTime": now,
            }
            for kind, value in (("Ready", "False"), ("Stalled", stalled))
        ]
        given = {"observedGeneration": generation, "conditions": conditions, **status}
        scene.set_status(PENSTOCK, "clusters", "flights", given)

    say("HibernateBlocked", "True", hibernation={"state": "Blocked"})
    blocked = run("hibernate", "flights", "--wait")
    assert blocked.exit_code == 1
    assert "stays awake: orders-0 is not in sync" in blocked.output
    say("Hibernated", "False", hibernation={"state": "Hibernated"})
    done = run("hibernate", "flights", "--wait")
    assert done.exit_code == 0, done.output
    assert "it is Hibernated" in done.stdout


def test_a_paused_cluster_is_not_put_to_sleep(scene: Scene, run: Run) -> None:
    scene.healthy()
    assert run("pause", "flights").exit_code == 0
    assert "is paused; resume it first" in run("hibernate", "flights").output


DELETING = "is being deleted, and waits for its finalizers: example.com/backup"


def delete_slowly(scene: Scene) -> None:
    """As by kubectl; a finalizer of somebody keeps the object."""
    where = scene.path(PENSTOCK, "clusters", "flights")
    how = {"Content_Type": "application/merge-patch+json"}
    kept = {"metadata": {"finalizers": ["example.com/backup"]}}
    scene.server.request("PATCH", where, kept, **how)
    scene.server.request("DELETE", where)


@pytest.mark.parametrize(
    "words",
    [("hibernate",), ("wake", "--dry-run"), ("upgrade", "--yes"), ("approve", "--yes"),
     ("rotate-ca",), ("pause",), ("resume",)],
    ids=" ".join,
)  # fmt: skip
def test_a_cluster_that_is_being_deleted_is_not_changed(
    scene: Scene, run: Run, words: tuple[str, ...]
) -> None:
    scene.healthy()
    delete_slowly(scene)
    before = scene.get(PENSTOCK, "clusters", "flights")
    done = run(words[0], "flights", *words[1:])
    assert done.exit_code == 1
    assert f"Cluster {scene.namespace}/flights {DELETING} (since " in done.output
    assert scene.get(PENSTOCK, "clusters", "flights") == before


def test_who_waits_for_a_cluster_that_is_deleted_is_told_at_once(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.healthy()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: delete_slowly(scene))
    monkeypatch.setattr("penstock.cli.kube.hibernate.time", clock)
    done = run("hibernate", "flights", "--wait")
    assert done.exit_code == 1
    assert DELETING in done.output


def test_a_cluster_that_is_being_deleted_says_so(scene: Scene, run: Run) -> None:
    scene.healthy()
    delete_slowly(scene)
    (found,) = (one for one in json.loads(run("why", "-o", "json").stdout)["findings"]
                if one["code"] == "deleting")  # fmt: skip
    assert found["what"] == DELETING
    assert found["since"]
    assert "not-seen" not in codes(run("why", "-o", "json"))
    assert DELETING in run("status").stdout
    assert json.loads(run("status", "-o", "json").stdout)["deleting"] == DELETING


def test_a_cluster_that_sleeps_misses_no_pod(scene: Scene, run: Run) -> None:
    scene.cluster()
    assert "pod-missing" in codes(run("why", "-o", "json"))
    said = {"type": "Ready", "status": "False", "reason": "Hibernated", "message": "asleep"}
    said["lastTransitionTime"] = "2030-01-01T00:00:00Z"
    scene.set_status(PENSTOCK, "clusters", "flights", {"conditions": [said]})
    seen = codes(run("why", "-o", "json"))
    assert "Hibernated" in seen
    assert "pod-missing" not in seen


def test_a_topic_without_a_cluster_is_told_what_it_waits_for(scene: Scene, run: Run) -> None:
    scene.topic("t")
    done = run("why", "topic/t")
    assert done.exit_code == 1
    lacks = f"there is no Cluster 'flights' in namespace '{scene.namespace}'"
    assert done.stderr == (f"penstock: Topic {scene.namespace}/t waits for its Cluster: {lacks}\n")
    where = scene.path(PENSTOCK, "topics", "t")
    held = {"metadata": {"finalizers": ["penstock.dev/topic"]}}
    scene.server.request("PATCH", where, held, Content_Type="application/merge-patch+json")
    scene.server.request("DELETE", where)
    done = run("why", "topic/t")
    assert "is being deleted, and waits for its finalizers: penstock.dev/topic" in done.stderr
    command = done.stderr.rpartition("you may: ")[2]
    assert command == (
        f"kubectl -n {scene.namespace} patch topic.penstock.dev/t --type=merge "
        """-p '{"metadata":{"finalizers":null}}'\n"""
    )
