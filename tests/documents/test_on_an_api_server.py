"""Commands for helm and kubectl that a cluster of `make e2e` cannot play, on a real API server.

    charts/penstock/README.md, docs/monitoring.md, README.md   the chart comes, changes and goes
    docs/how-to/resize.md                                      volumes that can grow
    docs/how-to/backup.md                                      metadata is saved and put back

The API server has no controllers and no kubelets: what they do, these tests do, and say so.
"""

import os
import shutil
import signal
import subprocess
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from support.apiserver import ApiServer, binaries
from support.documents import ROOT
from support.kubernetes_faults import BROKERS, Operated
from support.kubernetes_faults import api_server as own_api_server
from support.missing import cannot_run
from support.operator_process import CRDS, OURS, condition, get, install_crds
from support.waiting import wait_until

from tools.snippets.page import Snippet, read_page

HERE: Final = "tests/documents/test_on_an_api_server.py"
MERGE: Final = "application/merge-patch+json"
ENDS_S: Final = 300.0
OPERATOR: Final = "/apis/apps/v1/namespaces/penstock/deployments/penstock-operator"
MONITORING: Final = "monitoring.coreos.com"


def left(page: str) -> list[Snippet]:
    """What the page leaves to this file."""
    found = [one for one in read_page(ROOT, page) if one.detail == HERE]
    assert found
    return found


class Reader:
    """Somebody with helm, kubectl and a namespace of their own, in a checkout."""

    def __init__(self, server: ApiServer, folder: Path, namespace: str) -> None:
        self.server, self.namespace, self._folder = server, namespace, folder
        self._kubeconfig = folder / "reader.kubeconfig"
        shutil.copy(server.kubeconfig, self._kubeconfig)
        self.do(f"kubectl config set-context --current --namespace={namespace}")

    @contextmanager
    def beside(self, script: str) -> Iterator["subprocess.Popen[str]"]:
        """Runs a script while the block does; `finish` it. Whatever is left of it is killed."""
        here = {
            "PATH": f"{binaries()}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self._folder),
            "KUBECONFIG": str(self._kubeconfig),
        }
        with subprocess.Popen(
            ("bash", "-euo", "pipefail", "-c", script),
            env=here, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as running:  # fmt: skip
            try:
                yield running
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)

    @staticmethod
    def finish(running: "subprocess.Popen[str]") -> str:
        """What it has printed. Raises AssertionError unless it ends well."""
        wait_until(lambda: running.poll() is not None, what="the commands end", timeout_s=ENDS_S)
        said, _ = running.communicate()
        assert running.returncode == 0, said
        return said

    def do(self, script: str) -> str:
        with self.beside(script) as running:
            return self.finish(running)

    def claims(self) -> str:
        """The path of this namespace's claims."""
        return f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"

    def make_claim(
        self, name: str, size: str, labels: dict[str, str], storage_class: str = "any"
    ) -> str:
        """A claim that no pod protects; its path."""
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            "storageClassName": storage_class,
        }
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        self.server.request("POST", self.claims(), body)
        path = f"{self.claims()}/{name}"
        self.patch(path, {"metadata": {"finalizers": None}})
        return path

    def patch(self, path: str, body: Any) -> None:
        self.server.request("PATCH", path, body, Content_Type=MERGE)

    def find(self, plural: str, name: str) -> Any:
        """One of our kinds, or None."""
        return get(self.server, f"{OURS}/namespaces/{self.namespace}/{plural}/{name}")


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    for name in ("helm", "kubectl"):
        if not ((binaries() / name).is_file() or shutil.which(name)):
            cannot_run(f"no {name} here: neither in {binaries()} nor in PATH")


# ---------------------------------------------------------------------- the chart


@pytest.fixture(scope="module")
def chart_server() -> Iterator[ApiServer]:
    """Not the one that all tests share: the chart's policies hold in every namespace."""
    with own_api_server() as server:
        yield server


@pytest.fixture
def installed(chart_server: ApiServer, tmp_path: Path) -> Iterator[Reader]:
    """Whoever has just followed the first snippet of the chart's page."""
    reader = Reader(chart_server, tmp_path, chart_server.namespace("reader"))
    install, _ = left("charts/penstock/README.md")
    try:
        with reader.beside(install.text) as running:
            wait_until(
                lambda: running.poll() is not None or get(chart_server, OPERATOR),
                what="the operator's Deployment",
            )
            if running.poll() is None:
                install_crds(chart_server)  # they are there: only waits until they are served
                roll_out(chart_server, OPERATOR)
            reader.finish(running)
        yield reader
    finally:
        reader.do("helm uninstall penstock -n penstock --ignore-not-found")


def roll_out(server: ApiServer, deployment: str) -> None:
    """What the Deployment's controller and kubelets do."""
    made = get(server, deployment)
    wanted = made["spec"]["replicas"]
    counted = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    seen = {"observedGeneration": made["metadata"]["generation"]}
    status = {**seen, **dict.fromkeys(counted, wanted)}
    server.request("PATCH", f"{deployment}/status", {"status": status}, Content_Type=MERGE)


def test_the_chart_is_installed_and_its_cluster_applied(installed: Reader) -> None:
    assert get(installed.server, OPERATOR)
    assert installed.find("clusters", "flights")["spec"]["brokers"] == 3
    assert installed.find("topics", "flights")["spec"]["cluster"] == "flights"


def test_monitoring_is_switched_on_in_an_installation(installed: Reader) -> None:
    kinds = {"prometheusrules": "PrometheusRule", "podmonitors": "PodMonitor"}
    for plural, kind in kinds.items():
        _define(installed.server, plural, kind)
    place = f"/apis/{MONITORING}/v1/namespaces/penstock"
    for plural in kinds:
        assert not get(installed.server, f"{place}/{plural}")["items"]
    (switch_on,) = left("docs/monitoring.md")
    installed.do(switch_on.text)
    for plural in kinds:
        made = get(installed.server, f"{place}/{plural}")["items"]
        assert made
        assert {each["metadata"]["labels"].get("release") for each in made} == {"prometheus"}
    assert get(installed.server, OPERATOR), "the values of before are kept"


def _define(server: ApiServer, plural: str, kind: str) -> None:
    """A kind of the Prometheus operator, with any fields; tests/charts compares those."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    spec = {"group": MONITORING, "scope": "Namespaced", "names": names, "versions": [version]}
    server.request("POST", CRDS, {"metadata": {"name": f"{plural}.{MONITORING}"}, "spec": spec})

    def served() -> bool:
        try:
            return bool(get(server, f"/apis/{MONITORING}/v1/{plural}"))
        except urllib.error.HTTPError:  # its storage is not ready
            return False

    wait_until(served, what=f"{plural} are served")


def test_volumes_go_once_each_is_confirmed(installed: Reader) -> None:
    ours = {"penstock.dev/cluster": "flights"}
    for broker_id in range(3):
        installed.make_claim(f"data-flights-broker-{broker_id}", "1Gi", ours)
    installed.make_claim("of-somebody-else", "1Gi", {})

    def refused() -> bool:
        name = "data-flights-broker-0"
        said = installed.do(f"kubectl delete pvc {name} --dry-run=server 2>&1 || true")
        return "holds the records of a broker" in said

    wait_until(refused, what="the chart's policy is in force")
    _, delete = left("charts/penstock/README.md")
    installed.do(delete.text)
    kept = get(installed.server, installed.claims())["items"]
    assert [each["metadata"]["name"] for each in kept] == ["of-somebody-else"]


def test_what_was_installed_goes_and_the_definitions_stay(installed: Reader) -> None:
    (remove,) = left("README.md")
    installed.do(remove.text)
    assert installed.find("clusters", "flights") is None
    assert installed.find("topics", "flights") is None
    assert get(installed.server, OPERATOR) is None
    assert get(installed.server, f"{CRDS}/clusters.penstock.dev")


# ---------------------------------------------------------------------- metadata


def test_metadata_that_was_saved_can_be_created_again(
    api_server: ApiServer, tmp_path: Path
) -> None:
    if shutil.which("jq") is None:
        cannot_run("no jq here")
    page = "docs/how-to/backup.md"
    reader = Reader(api_server, tmp_path, api_server.namespace("saved"))
    place = f"/api/v1/namespaces/{reader.namespace}"

    def make(plural: str, name: str, owner: dict[str, str], **labels: str) -> str:
        ours = {f"penstock.dev/{key}": value for key, value in labels.items()}
        metadata = {"name": name, "labels": ours, "ownerReferences": [owner]}
        made = api_server.request("POST", f"{place}/{plural}", {"metadata": metadata})
        return str(made["metadata"]["uid"])

    cluster = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster", "uid": "1", "name": "c"}
    for name in ("flights-metadata", "flights-topic-t"):
        make("configmaps", name, cluster, cluster="flights", metadata="topic")
    uid = make("configmaps", "flights-ca", cluster, cluster="flights")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "uid": uid, "name": "flights-ca"}
    make("secrets", "flights-ca", owner, cluster="flights")
    (save,) = (
        one.text
        for one in read_page(ROOT, page)
        if "metadata.json" in one.text and "bare=" in one.text
    )
    there = f"cd {tmp_path}\n"
    reader.do(there + "".join(line for line in save.splitlines(True) if "penstock " not in line))
    make("configmaps", "flights-topic-later", cluster, cluster="flights", metadata="topic")
    elsewhere, in_place = left(page)
    reader.do(there + in_place.text)
    reader.do("kubectl delete secret flights-ca")
    reader.do("kubectl delete configmap -l penstock.dev/metadata")
    reader.do(there + elsewhere.text)
    maps = get(api_server, f"{place}/configmaps?labelSelector=penstock.dev/metadata")["items"]
    assert [one["metadata"]["name"] for one in maps] == ["flights-metadata", "flights-topic-t"]
    secret = get(api_server, f"{place}/secrets/flights-ca")
    for one in (secret, *maps):
        assert "ownerReferences" not in one["metadata"], "it would be deleted at once"


# ---------------------------------------------------------------------- volumes


def test_volumes_grow_and_no_broker_restarts(api_server: ApiServer, tmp_path: Path) -> None:
    """The operator and its brokers are real; the test is the provider of their storage."""
    namespace = api_server.namespace("resize")
    folder = tmp_path / "operated"
    folder.mkdir()
    with ExitStack() as stack:
        operated = Operated(api_server, folder, stack, namespace)
        reader = Reader(api_server, tmp_path, namespace)
        provider = _Provider(reader, operated)
        pods = provider.pods()
        (grow,) = left("docs/how-to/resize.md")
        with reader.beside(grow.text) as running:

            def ended() -> bool:
                provider.work()
                return running.poll() is not None

            wait_until(ended, what="the commands end", timeout_s=ENDS_S)
            assert "condition met" in reader.finish(running)
        assert provider.sizes() == {"20Gi"}
        assert provider.pods() == pods
        settled = condition(reader.find("clusters", "flights"), "Ready")
        assert settled["status"] == "True"


class _Provider:
    """Of volumes that can grow; and whatever else Kubernetes has to do with them."""

    def __init__(self, reader: Reader, operated: Operated) -> None:
        self._reader, self._names = reader, operated.names
        growing = {"provisioner": "example.com/none", "allowVolumeExpansion": True}
        name = reader.namespace
        classes = "/apis/storage.k8s.io/v1/storageclasses"
        reader.server.request("POST", classes, {"metadata": {"name": name}, **growing})
        component = {"app.kubernetes.io/component": "broker"}
        labels = {"penstock.dev/cluster": self._names.cluster, **component}
        for broker_id in range(BROKERS):
            path = reader.make_claim(self._names.claim(broker_id), "10Gi", labels, name)
            # Only a volume that is bound can grow.
            reader.patch(path, {"spec": {"volumeName": f"volume-{broker_id}"}})
            self._has(path, "10Gi")

    def _place(self, plural: str, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self._reader.namespace}/{plural}/{name}"

    def _has(self, path: str, size: str) -> None:
        status = {"phase": "Bound", "capacity": {"storage": size}}
        self._reader.patch(f"{path}/status", {"status": status})

    def _claims(self) -> Any:
        return get(self._reader.server, self._reader.claims())["items"]

    def sizes(self) -> set[str]:
        """That the volumes have."""
        return {each["status"]["capacity"]["storage"] for each in self._claims()}

    def pods(self) -> dict[str, str]:
        """The uid of each broker's."""
        found = get(self._reader.server, f"/api/v1/namespaces/{self._reader.namespace}/pods")
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found["items"]}

    def work(self) -> None:
        """Volumes get the size that is asked for. A set that goes without its pods is gone once the
        garbage collector has taken their owner away. Controllers run."""
        roll_out(self._reader.server, self._place("deployments", self._names.controller))
        for each in self._claims():
            asked = each["spec"]["resources"]["requests"]["storage"]
            if asked != each["status"]["capacity"]["storage"]:
                self._has(f"{self._reader.claims()}/{each['metadata']['name']}", asked)
        place = self._place("statefulsets", self._names.broker)
        found = get(self._reader.server, place)
        if found and "deletionTimestamp" in found["metadata"]:
            self._reader.patch(place, {"metadata": {"finalizers": None}})
