"""The Helm chart: what its templates make of values, and that nothing is kept twice by hand.

    golden/<name>.values.yaml ──helm template──▶ compared with golden/<name>.yaml

PENSTOCK_GOLDEN=write rewrites the golden files; read the difference before you commit it. Tests
that need helm look for it beside the other Kubernetes binaries and in PATH, and skip without it.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.apiserver import ApiServer, binaries
from support.manifests import PLURALS, ROOT

import penstock
from penstock_operator.objects import controller_objects, read_cluster

CHART = ROOT / "charts" / "penstock"
GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = sorted(path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml"))
NAMESPACE = "penstock-system"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


class TestWithoutHelm:
    def test_the_definitions_are_those_of_the_repository(self) -> None:
        own = sorted(path.name for path in (CHART / "files" / "crds").iterdir())
        assert own == sorted(f"{plural}.yaml" for plural in PLURALS.values())
        for name in own:
            assert (CHART / "files" / "crds" / name).read_text() == (
                ROOT / "crds" / name
            ).read_text()

    def test_definitions_survive_an_uninstall(self) -> None:
        for plural in PLURALS.values():
            annotations = load(ROOT / "crds" / f"{plural}.yaml")["metadata"]["annotations"]
            assert annotations["helm.sh/resource-policy"] == "keep"
        assert not (CHART / "crds").exists(), "Helm never upgrades what is in crds/"

    def test_it_has_the_version_of_the_package(self) -> None:
        chart = load(CHART / "Chart.yaml")
        assert chart["appVersion"] == penstock.__version__
        # 0.1.0.dev0 is no semantic version, which Helm wants.
        assert chart["version"] == re.sub(r"\.dev", "-dev", penstock.__version__)

    def test_every_value_is_described_and_nothing_else_is_taken(self) -> None:
        schema = json.loads((CHART / "values.schema.json").read_text())
        values = load(CHART / "values.yaml")

        def check(shape: dict[str, Any], value: Any, path: str) -> None:
            assert shape.get("description", shape.get("title")), path
            if "properties" not in shape:
                return
            assert shape["additionalProperties"] is False, path
            assert isinstance(value, dict), path
            if path != ".resources":
                assert set(value) == set(shape["properties"]) - {"global"}, path
                for name, nested in shape["properties"].items():
                    if name != "global":
                        check(nested, value[name], f"{path}.{name}")

        check(schema, values, "")

    def test_templates_use_values_that_exist(self) -> None:
        values = load(CHART / "values.yaml")
        for path in (CHART / "templates").iterdir():
            for used in re.findall(r"\.Values\.([A-Za-z.]+)", path.read_text()):
                found: Any = values
                for name in used.split("."):
                    assert name in found, f"{path.name} uses {used}"
                    found = found[name]


@pytest.fixture(scope="module")
def helm() -> str:
    own = binaries() / "helm"
    found = str(own) if own.is_file() else shutil.which("helm")
    if not found:
        pytest.skip(f"no helm here: neither in {binaries()} nor in PATH")
    return found


def run(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def template(helm: str, *arguments: str) -> str:
    done = run(
        helm, "template", "penstock", str(CHART), "--namespace", NAMESPACE,
        "--kube-version", "1.34.0", *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


class TestWithHelm:
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_templates_are_as_they_were(self, name: str, helm: str) -> None:
        made = template(helm, "--values", str(GOLDEN / f"{name}.values.yaml"))
        golden = GOLDEN / f"{name}.yaml"
        if os.environ.get("PENSTOCK_GOLDEN") == "write":
            golden.write_text(made)
        assert made == golden.read_text(), "PENSTOCK_GOLDEN=write renews the golden files"

    def test_lint_finds_nothing(self, helm: str) -> None:
        done = run(helm, "lint", "--strict", str(CHART))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[WARNING]" not in done.stdout

    def test_the_definitions_come_through_unchanged(self, helm: str) -> None:
        made = [each for each in objects(template(helm)) if "Definition" in each["kind"]]
        wanted = [load(ROOT / "crds" / f"{plural}.yaml") for plural in PLURALS.values()]
        name = lambda each: each["metadata"]["name"]  # noqa: E731
        assert sorted(made, key=name) == sorted(wanted, key=name)
        without = template(helm, "--set", "crds.install=false")
        assert "CustomResourceDefinition" not in without

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ("replica=3", "replica"),
            ("replicas=many", "replicas"),
            ("image.digest=sha256:1", "digest"),
            ("watchNamespaces={Big}", "watchNamespaces"),
            ("image.pullPolicy=Sometimes", "pullPolicy"),
        ],
    )
    def test_a_wrong_value_is_refused_and_named(self, value: str, words: str, helm: str) -> None:
        done = run(helm, "template", "penstock", str(CHART), "--set", value)
        assert done.returncode != 0
        assert words in done.stderr

    def test_the_operator_holds_what_it_grants_the_controllers(self, helm: str) -> None:
        """The API server lets nobody grant more than they have."""
        body = {
            "metadata": {"name": "c", "namespace": "n", "uid": "1", "generation": 1},
            "spec": {},
        }
        granted = [
            rule
            for each in controller_objects(read_cluster(body, "image"))
            if each["kind"] == "Role"
            for rule in each["rules"]
        ]
        assert granted
        held = [
            rule
            for each in objects(template(helm))
            if each["kind"] == "ClusterRole"
            for rule in each["rules"]
        ]
        for wanted in granted:
            assert any(
                set(wanted["apiGroups"]) <= set(rule["apiGroups"])
                and set(wanted["resources"]) <= set(rule["resources"])
                and set(wanted["verbs"]) <= set(rule["verbs"])
                for rule in held
            ), wanted

    @pytest.mark.parametrize("name", SCENARIOS)
    def test_an_api_server_takes_it_all(self, name: str, helm: str, api_server: ApiServer) -> None:
        """By a dry run: schemas, defaults and admission, without keeping anything."""
        values = str(GOLDEN / f"{name}.values.yaml")
        for each in objects(template(helm, "--values", values, "--set", "crds.install=true")):
            if each["kind"] == "ServiceMonitor":
                continue  # its definition belongs to the Prometheus operator
            dry_run(api_server, each)


GROUPS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
}


def dry_run(server: ApiServer, made: dict[str, Any]) -> None:
    version = made["apiVersion"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = GROUPS.get(made["kind"], "")
    if not plural:
        ending = "ies" if made["kind"].endswith("y") else "s"
        plural = made["kind"].lower().removesuffix("y") + ending
        made["metadata"]["namespace"] = "default"
        base += "/namespaces/default"
    path = f"{base}/{plural}/{made['metadata']['name']}"
    query = "?dryRun=All&fieldManager=tests&force=true&fieldValidation=Strict"
    server.request("PATCH", path + query, made, Content_Type="application/apply-patch+yaml")
