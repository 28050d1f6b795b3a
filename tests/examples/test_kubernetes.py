"""The manifests of examples/kubernetes: names are those of the product, pods fit the restricted
Pod Security Standard, and the rules are just enough: the program runs with them, as nobody else."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from support.waiting import wait_exit, wait_until

import penstock
from penstock.cli.kube.access import volume
from penstock.client import Admin, Producer
from penstock.core.manifest import parse_manifest
from penstock.kubernetes.names import ClusterNames
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.security import token_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/kubernetes"
NAMES = ClusterNames("shop", "shop")


def deployment() -> Any:
    documents = list(yaml.safe_load_all((FOLDER / "billing.yaml").read_text()))
    assert [one["kind"] for one in documents] == ["ServiceAccount", "Deployment"]
    return documents[1]["spec"]["template"]["spec"]


def test_names_are_those_of_the_product() -> None:
    spec = deployment()
    wanted = volume({"audience": NAMES.audience, "trust": f"shop/{NAMES.trust}"})
    (container,) = spec["containers"]
    for mount in wanted["volumeMounts"]:
        assert mount in container["volumeMounts"]
    for one in wanted["volumes"]:
        assert one in spec["volumes"]
    assert container["env"][0]["value"] == f"{NAMES.bootstrap_host}:9092"
    assert container["image"] == f"penstock-broker:{penstock.__version__}"
    name = "/app/bill.py"
    assert name in container["command"]
    assert (ROOT / "examples/recipes/bill.py").is_file()
    manifest = parse_manifest(
        list(yaml.safe_load_all((FOLDER / "shop.yaml").read_text())), "shop.yaml"
    )
    (group,) = manifest.groups_of("shop")
    assert group.spec.scale_target is not None
    assert group.spec.scale_target.name == "billing"


def test_the_pod_fits_the_restricted_standard() -> None:
    spec = deployment()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    own = container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False


def test_its_rules_are_enough(tmp_path: Path) -> None:
    """Here as serviceaccount:local/billing, with one broker: this is no Kubernetes."""
    text = (
        (FOLDER / "shop.yaml").read_text().replace("serviceaccount:shop/", "serviceaccount:local/")
    )
    text = text.replace("brokers: 3", "brokers: 1").replace("factor: 3", "factor: 1")
    manifest = tmp_path / "shop.yaml"
    manifest.write_text(text.replace("min.insync.replicas: 2", "min.insync.replicas: 1"))
    options = LocalOptions(secure=True)
    with LocalCluster.from_manifest(manifest, data_dir=tmp_path / "d", options=options) as cluster:
        files: Any = cluster.directory.client_files
        token = tmp_path / "billing.token"
        token.write_text(token_of(cluster.directory.root, "billing", 3_600.0))
        with Producer(cluster.bootstrap, **files) as producer:
            producer.send("orders", b'{"amount": 5}', key=b"1").result()
            producer.send("orders", b"{}", key=b"2").result()
        process = subprocess.Popen(
            [sys.executable, FOLDER.parent / "recipes/bill.py"],
            env={**os.environ, "BOOTSTRAP": cluster.bootstrap, "PENSTOCK_CA_FILE": files["ca_file"],
                 "PENSTOCK_TOKEN_FILE": str(token)},
        )  # fmt: skip
        try:
            with Admin(cluster.bootstrap, **files) as admin:

                def written(topic: str) -> int:
                    logs = [log for one in admin.describe_logs([topic]) for log in one.logs]
                    return sum(log.high_watermark for log in logs)

                wait_until(lambda: written("bills") > 0, what="a bill is written")
                wait_until(lambda: written("orders.dead") > 0, what="a dead letter is written")
                process.send_signal(signal.SIGTERM)
                assert wait_exit(process, 60) == 0
                committed = admin.describe_group("billing").offsets
                assert sum(one.offset for one in committed.values()) == 2
                assert {one.topic for one in committed} == {"orders"}
        finally:
            process.kill()
            process.wait(30)
