"""`kubectl penstock access`: how to get in, and who may do what."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from support.apiserver import ApiServer
from support.kube_scene import PENSTOCK, Scene
from typer.testing import CliRunner

from penstock.cli.kube.access import describe, volume
from penstock.cli.kube.snapshot import Snapshot
from penstock.cli.main import app
from penstock.core.authorization import AccessRole, Operation, Rule
from penstock.core.control.documents import (
    ClusterAccess,
    ClusterDocument,
    ClusterQuotas,
    TopicDocument,
)
from penstock.core.quotas import Limit, QuotaRule
from penstock.core.types import ControllerEpoch, TopicId

SPARK = ("serviceaccount:etl/spark",)


def snapshot(security: dict[str, Any] | None) -> Snapshot:
    """A Cluster with rules of all kinds, and a quota."""
    document = ClusterDocument(
        cluster_id="id",
        controller_epoch=ControllerEpoch(1),
        metadata_version=2,
        access=ClusterAccess(
            (Rule(principals=("cert:ops",), role=AccessRole.ADMIN),),
            {"loaders": (Rule(principals=SPARK, operations=(Operation.READ,)),)},
        ),
        quotas=ClusterQuotas((QuotaRule(("*",), {Limit.STREAMS: 200}),)),
    )
    topic = TopicDocument(
        name="orders",
        topic_id=TopicId("t-1"),
        controller_epoch=ControllerEpoch(1),
        metadata_version=2,
        configs={},
        partitions=(),
        access=(Rule(principals=SPARK, operations=(Operation.READ, Operation.WRITE)),),
    )
    cluster = {
        "metadata": {"name": "flights", "namespace": "air"},
        "spec": {} if security is None else {"security": security},
        "status": {"bootstrap": "flights-bootstrap.air.svc:9092"},
    }
    return Snapshot(
        datetime.now(UTC), cluster, document=document, topic_documents={"orders": topic}
    )


def test_a_strict_cluster_says_how_to_get_in_and_who_may_do_what() -> None:
    issuer = {"issuer": "https://login.example.com", "audience": "flights", "groupsClaim": "groups"}
    seen = describe(snapshot({"mode": "Strict", "oidc": [issuer]}))
    assert seen["asks_who_calls"] is True
    assert seen["bootstrap"] == "flights-bootstrap.air.svc:9092"
    assert (seen["audience"], seen["trust"]) == ("penstock.air.flights", "air/flights-trust")
    assert seen["admin"] == "serviceaccount:air/flights-admin"
    assert seen["viewer"] == "serviceaccount:air/flights-viewer"
    assert seen["issuers"] == [{"issuer": "https://login.example.com", "audience": "flights"}]
    assert [(row["of"], row["principals"], row["allows"]) for row in seen["rules"]] == [
        ("the cluster", ["cert:ops"], "admin"),
        ("group loaders", list(SPARK), ["Read"]),
        ("topic orders", list(SPARK), ["Read", "Write"]),
    ]
    assert seen["quotas"] == [{"principals": ["*"], "limits": {"streams": 200}}]
    assert seen["gaps"] == []


def test_the_volume_is_what_clients_find_by_themselves() -> None:
    needed = volume(describe(snapshot({"mode": "Strict"})))
    assert needed["volumes"][0]["projected"]["sources"] == [
        {"serviceAccountToken": {
            "audience": "penstock.air.flights", "path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "flights-trust"}},
    ]  # fmt: skip
    assert needed["volumeMounts"][0]["mountPath"] == "/var/run/secrets/penstock.dev"


def test_while_a_cluster_migrates_the_address_is_the_one_that_asks_who_calls() -> None:
    seen = describe(snapshot({"mode": "Migrate"}))
    assert seen["bootstrap"] == "flights-bootstrap.air.svc:9095"
    assert seen["audience"] == "penstock.air.flights"


@pytest.mark.parametrize("security", [None, {"mode": "Disabled"}])
def test_a_plaintext_cluster_shows_rules_that_nobody_obeys(security: dict[str, Any] | None) -> None:
    seen = describe(snapshot(security))
    assert seen["asks_who_calls"] is False
    assert "audience" not in seen
    assert len(seen["rules"]) == 3


def test_what_could_not_be_read_is_said() -> None:
    without = replace(snapshot(None), document=None)
    assert describe(without)["gaps"] == [
        "rules and quotas: the controllers have stored nothing yet"
    ]
    forbidden = replace(without, gaps=("configmaps are forbidden",))
    assert describe(forbidden)["gaps"] == ["configmaps are forbidden"]


def test_the_command_prints_all_of_it(api_server: ApiServer) -> None:
    scene = Scene(api_server)
    body = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "flights"},
            "spec": {"brokers": 3, "security": {"mode": "Strict"}}}  # fmt: skip
    scene.make(PENSTOCK, "clusters", body)
    scene.metadata(alive={0, 1, 2}, isr=[[0, 1, 2]])
    where = ["--kubeconfig", str(scene.kubeconfig), "-n", scene.namespace]

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["access", *words, *where])
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    seen = json.loads(run("flights", "-o", "json"))
    assert seen["audience"] == f"penstock.{scene.namespace}.flights"
    assert (seen["rules"], seen["gaps"]) == ([], [])
    head, _, needed = run().partition("besides a rule for its ServiceAccount:\n")
    assert f"serviceaccount:{scene.namespace}/flights-admin" in head
    assert yaml.safe_load(needed) == volume(seen)
