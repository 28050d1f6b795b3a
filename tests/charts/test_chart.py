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
import tomllib
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.apiserver import ApiServer, binaries
from support.manifests import PLURALS, ROOT
from support.missing import cannot_run
from support.waiting import wait_until

import penstock
from penstock.core.manifest import parse_manifest
from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.resources import RESOURCES, path_of
from penstock_operator.objects import Installation, broker_objects, controller_objects, read_cluster
from penstock_operator.objects.security import authority_owner, authority_secret
from tools.chart_values import BEGIN, END, rendered, table

CHART = ROOT / "charts" / "penstock"
GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = sorted(path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml"))
NAMESPACE = "penstock-system"
SOME = {"name": "flights", "namespace": "streams", "uid": "1", "generation": 1}


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

    def test_a_catalogue_can_show_it(self) -> None:
        chart = load(CHART / "Chart.yaml")
        urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
        assert chart["home"] == urls["Homepage"]
        assert chart["sources"] == [urls["Source"]]
        assert chart["maintainers"]
        assert (ROOT / "docs" / chart["icon"].removeprefix("https://penstock.dev/")).is_file()
        notes = chart["annotations"]
        values = load(CHART / "values.yaml")
        assert yaml.safe_load(notes["artifacthub.io/images"]) == [
            {"name": name, "image": f"{values[key]['repository']}:{chart['appVersion']}"}
            for name, key in (("operator", "image"), ("broker", "brokerImage"))
        ]
        listed = {each["name"] for each in yaml.safe_load(notes["artifacthub.io/crds"])}
        assert listed == {f"{plural}.penstock.dev" for plural in PLURALS.values()}
        assert parse_manifest(yaml.safe_load(notes["artifacthub.io/crdsExamples"]), "Chart.yaml")

    def test_every_value_is_described_and_nothing_else_is_taken(self) -> None:
        schema = json.loads((CHART / "values.schema.json").read_text())
        values = load(CHART / "values.yaml")

        def check(shape: dict[str, Any], value: Any, path: str) -> None:
            assert shape.get("description", shape.get("title")), path
            if "properties" not in shape:
                return
            assert shape["additionalProperties"] is False, path
            assert isinstance(value, dict), path
            assert set(value) == set(shape["properties"]) - {"global"}, path
            for name, nested in shape["properties"].items():
                if name != "global":
                    check(nested, value[name], f"{path}.{name}")

        check(schema, values, "")

    def test_its_page_has_all_values_and_their_defaults(self) -> None:
        page = (CHART / "README.md").read_text()
        assert rendered(page, table(ROOT)) == page, "run make chart"

        def paths(values: dict[str, Any], at: str) -> Iterator[str]:
            for name, value in values.items():
                row = re.search(rf"^\| `{at}{name}` \| .*$", page, re.MULTILINE)
                assert row, f"no row for {at}{name}"
                if f"\n| `{at}{name}." in page:
                    yield from paths(value, f"{at}{name}.")
                else:
                    assert f" | `{json.dumps(value)}` | " in row[0], row[0]
                    yield f"{at}{name}"

        found = set(paths(load(CHART / "values.yaml"), ""))
        assert {"replicas", "image.tag", "monitoring.rules.runbooks", "extraEnv"} <= found

    def test_what_is_written_into_its_page_stays_between_the_comments(self) -> None:
        page = f"before\n{BEGIN}old\n{END}after\n"
        assert rendered(page, "new\n") == f"before\n{BEGIN}\nnew\n\n{END}after\n"
        with pytest.raises(SystemExit, match="lacks the comments"):
            rendered("before\nafter\n", "new\n")

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
        cannot_run(f"no helm here: neither in {binaries()} nor in PATH")
    return found


def run(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def template(
    helm: str, *arguments: str, release: str = "penstock", namespace: str = NAMESPACE
) -> str:
    done = run(
        helm, "template", release, str(CHART), "--namespace", namespace,
        "--kube-version", "1.34.0", *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def scenario(helm: str, name: str, *arguments: str) -> str:
    """One of the golden files, as the chart has it now."""
    values = ["--values", str(GOLDEN / f"{name}.values.yaml"), *arguments]
    if name == "digits":
        return template(helm, *values, release="123", namespace="456")
    return template(helm, *values)


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


class TestWithHelm:
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_templates_are_as_they_were(self, name: str, helm: str) -> None:
        made = scenario(helm, name)
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
            ("networkPolicy=null", "networkPolicy"),
            ("watchNamespaces=null", "watchNamespaces"),
            ("image.pullPolicy=null", "pullPolicy"),
            ("deletionProtection.enabled=null", "enabled"),
            ("monitoring.dashboards.labels=null", "labels"),
            (r"podLabels.app\.kubernetes\.io/name=mine", "/podLabels/app.kubernetes.io~1name"),
            (r"podLabels.helm\.sh/chart=mine", "/podLabels/helm.sh~1chart"),
        ],
    )
    def test_a_wrong_value_is_refused_and_named(self, value: str, words: str, helm: str) -> None:
        done = run(helm, "template", "penstock", str(CHART), "--set", value)
        assert done.returncode != 0
        assert "values don't meet the specifications of the schema" in done.stderr
        assert words in done.stderr

    def test_what_may_be_absent_may_be_null(self, helm: str) -> None:
        absent = "resources.limits resources affinity podLabels allowedImages image.tag"
        for each in (*absent.split(), "brokerImage.pullSecrets", "monitoring.labels"):
            made = objects(template(helm, "--set", f"{each}=null,monitoring.enabled=true"))
            assert "Deployment" in {one["kind"] for one in made}

    def test_the_rules_that_promtool_tests_are_those_that_are_installed(self, helm: str) -> None:
        made = objects(template(helm, "--set", "monitoring.enabled=true"))
        (rule,) = [each for each in made if each["kind"] == "PrometheusRule"]
        assert rule["spec"] == load(CHART / "files" / "monitoring" / "alerts.yaml")
        dashboards = [each for each in made if "dashboard" in each["metadata"]["name"]]
        assert len(dashboards) == 5
        for each in dashboards:
            (text,) = each["data"].values()
            assert json.loads(text)["uid"].startswith("penstock-")

    def test_nothing_of_it_is_installed_unless_asked_for(self, helm: str) -> None:
        assert "monitoring.coreos.com" not in template(helm)

    def test_the_operator_is_scraped_once(self, helm: str) -> None:
        both = "monitoring.enabled=true,metrics.serviceMonitor.enabled=true"
        done = run(helm, "template", "penstock", str(CHART), "--set", both)
        assert done.returncode != 0
        assert "set one of them to false" in done.stderr

    def test_the_operator_binds_controllers_to_one_role_and_writes_none(self, helm: str) -> None:
        made = objects(template(helm))
        (pod,) = [each for each in made if each["kind"] == "Deployment"]
        env = {
            each["name"]: each.get("value")
            for each in pod["spec"]["template"]["spec"]["containers"][0]["env"]
        }
        roles = {each["metadata"]["name"]: each for each in made if each["kind"] == "ClusterRole"}
        own = roles.pop(f"penstock-operator-{NAMESPACE}")
        (named,) = roles
        assert named == env["PENSTOCK_CONTROLLER_ROLE"]
        rules = [rule for rule in own["rules"] if "rbac" in rule["apiGroups"][0]]
        verbs = {rule["resources"][0]: set(rule["verbs"]) for rule in rules}
        assert verbs.pop("clusterroles") == {"bind"}
        assert verbs.pop("roles") == {"delete", "list"}
        assert set(verbs) == {"rolebindings"}
        (bind,) = [rule for rule in rules if rule["resources"] == ["clusterroles"]]
        assert bind["resourceNames"] == [named]

    def test_the_operator_may_reach_brokers_where_it_calls_them(self, helm: str) -> None:
        made = objects(template(helm))
        (policy,) = [each for each in made if each["kind"] == "NetworkPolicy"]
        (rule,) = [each for each in policy["spec"]["egress"] if "to" in each]
        desired = read_cluster({"metadata": SOME, "spec": {}}, Installation("image"))
        called = {replace(desired, called=mode).calls[0] for mode in SecurityMode}
        assert {port["port"] for port in rule["ports"]} == called

    def test_named_namespaces_get_roles_and_all_others_nothing(self, helm: str) -> None:
        made = objects(template(helm, "--set", "watchNamespaces={streams,tests}"))
        places = [each["metadata"]["namespace"] for each in made if each["kind"] == "Role"]
        assert sorted(places) == sorted([NAMESPACE, "streams", "tests"])
        (wide,) = [each for each in made if each["kind"] == "ClusterRoleBinding"]
        roles = {each["metadata"]["name"]: each for each in made if each["kind"] == "ClusterRole"}
        held = {
            (resource, verb)
            for rule in roles[wide["roleRef"]["name"]]["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert held == {
            ("nodes", "get"),
            ("nodes", "list"),
            ("persistentvolumes", "get"),
            ("storageclasses", "get"),
        }

    @pytest.mark.parametrize("name", SCENARIOS)
    def test_an_api_server_takes_it_all(self, name: str, helm: str, api_server: ApiServer) -> None:
        """By a dry run: schemas, defaults and admission, without keeping anything."""
        for each in objects(scenario(helm, name, "--set", "crds.install=true")):
            if each["apiVersion"].startswith("monitoring.coreos.com/"):
                continue  # their definitions belong to the Prometheus operator
            dry_run(api_server, each)


GROUPS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


def place(made: dict[str, Any], namespace: str) -> str:
    """The URL path of an object."""
    version = made["apiVersion"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = GROUPS.get(made["kind"], "")
    if not plural:
        ending = "ies" if made["kind"].endswith("y") else "s"
        plural = made["kind"].lower().removesuffix("y") + ending
        base += f"/namespaces/{namespace}"
    return f"{base}/{plural}/{made['metadata']['name']}"


def dry_run(server: ApiServer, made: dict[str, Any]) -> None:
    if made["kind"] not in GROUPS:
        made["metadata"]["namespace"] = "default"
    query = "?dryRun=All&fieldManager=tests&force=true&fieldValidation=Strict"
    path = place(made, "default") + query
    server.request("PATCH", path, made, Content_Type="application/apply-patch+yaml")


def is_served(server: ApiServer) -> bool:
    """After a change of a definition it says for a moment that it is not ready."""
    try:
        for plural in PLURALS.values():
            server.request("GET", f"/apis/penstock.dev/v1alpha1/{plural}")
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


def forbidden(call: Callable[[], object]) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        call()
    caught.value.close()
    assert caught.value.code == 403


def is_forbidden(call: Callable[[], object]) -> bool:
    try:
        call()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 403
    return False


def is_gone(server: ApiServer, path: str) -> bool:
    try:
        server.request("GET", path)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 404
    return False


def bind(server: ApiServer, namespace: str, role: str) -> None:
    """The account `default` of a namespace to a ClusterRole, as the operator binds controllers."""
    group = "rbac.authorization.k8s.io"
    body = {
        "metadata": {"name": "controllers"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    path = f"/apis/{group}/v1/namespaces/{namespace}"
    server.request("POST", f"{path}/rolebindings", body)
    account = {"metadata": {"name": "default"}}
    server.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)


class TestOnAnApiServer:
    """Installed for real; there are no controllers, so nothing starts."""

    @pytest.fixture
    def namespace(self, api_server: ApiServer) -> str:
        return api_server.namespace("chart")

    @pytest.fixture
    def on(self, helm: str, api_server: ApiServer, namespace: str) -> Iterator[Callable[..., str]]:
        """`on("install", chart, …)` in a namespace of its own; removed with the test."""

        def call(verb: str, *arguments: str) -> str:
            options = ["--kubeconfig", str(api_server.kubeconfig), "--namespace", namespace]
            done = run(helm, verb, "penstock", *arguments, *options)
            assert done.returncode == 0, done.stderr
            return done.stdout

        yield call
        run(
            helm, "uninstall", "penstock", "--ignore-not-found", "--namespace", namespace,
            "--kubeconfig", str(api_server.kubeconfig),
        )  # fmt: skip

    def definition(self, server: ApiServer, plural: str) -> dict[str, Any]:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.penstock.dev"
        found: dict[str, Any] = server.request("GET", path)
        return found

    def test_upgrades_renew_the_definitions_and_an_uninstall_leaves_them(
        self, on: Callable[..., str], api_server: ApiServer, tmp_path: Path
    ) -> None:
        older = tmp_path / "penstock"
        shutil.copytree(CHART, older)
        path = older / "files" / "crds" / "topics.yaml"
        path.write_text(path.read_text().replace("maximum: 5000", "maximum: 4000"))
        on("install", str(older), "--take-ownership")
        assert "4000" in json.dumps(self.definition(api_server, "topics")["spec"])
        on("upgrade", str(CHART))
        renewed = self.definition(api_server, "topics")
        assert "4000" not in json.dumps(renewed["spec"])
        told = on("uninstall")
        assert "kept due to the resource policy" in told
        for plural in PLURALS.values():
            left = self.definition(api_server, plural)
            assert "deletionTimestamp" not in left["metadata"]
        assert (
            self.definition(api_server, "topics")["metadata"]["uid"] == renewed["metadata"]["uid"]
        )
        on("install", str(CHART))  # the same release takes them over again

    def test_controllers_keep_their_permissions_when_it_is_uninstalled(
        self, on: Callable[..., str], api_server: ApiServer, namespace: str
    ) -> None:
        name = f"penstock-operator-{namespace}-controllers"
        streams = api_server.namespace("streams")
        on("install", str(CHART), "--take-ownership")
        bind(api_server, streams, name)
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{streams}/leases"

        def take_over(lease: str) -> None:
            body = {"metadata": {"name": lease}}
            api_server.request("POST", leases, body, Authorization=f"Bearer {token}")

        account = f"/api/v1/namespaces/{streams}/serviceaccounts/default"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = api_server.request("POST", f"{account}/token", asked)["status"]["token"]
        wait_until(lambda: not is_forbidden(lambda: take_over("one")), what="it is bound")
        on("uninstall")
        own = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/penstock-operator-{namespace}"
        wait_until(lambda: is_gone(api_server, own), what="the role of the operator is gone")
        take_over("another")
        on("install", str(CHART))

    @pytest.mark.parametrize("watched", [True, False], ids=["namespaces", "everywhere"])
    def test_the_operator_may_do_what_it_must_and_no_more(
        self, watched: bool, on: Callable[..., str], api_server: ApiServer, namespace: str
    ) -> None:
        streams = api_server.namespace("streams")
        only = ["--set", f"watchNamespaces={{{streams}}}"] if watched else []
        on("install", str(CHART), "--take-ownership", *only)
        wait_until(lambda: is_served(api_server), what="the API server serves our kinds")
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/penstock-operator"
        token = api_server.request("POST", f"{account}/token", asked)["status"]["token"]

        def call(method: str, path: str, body: Any = None, **headers: str) -> Any:
            bearer = f"Bearer {token}"
            return api_server.request(method, path, body, Authorization=bearer, **headers)

        def apply(made: dict[str, Any]) -> None:
            made["metadata"]["namespace"] = streams
            path = place(made, streams) + "?fieldManager=tests&force=true"
            call("PATCH", path, made, Content_Type="application/apply-patch+yaml")

        role_name = f"penstock-operator-{namespace}-controllers"
        installed = Installation("image", controller_role=role_name)
        desired = read_cluster({"metadata": {**SOME, "namespace": streams}, "spec": {}}, installed)
        for made in [*broker_objects(desired), *controller_objects(desired)]:
            made["metadata"].pop("ownerReferences", None)  # there is no such Cluster
            apply(made)
        without = {"namespaces", "nodes", "persistentvolumes", "storageclasses"}  # a namespace
        others = {"events", "leases", "secrets", *without}
        for kind, (_, plural) in sorted(RESOURCES.items()):
            if plural not in others:
                call("GET", path_of(kind, streams))
        call("GET", f"/api/v1/namespaces/{streams}" if watched else "/api/v1/namespaces")
        owner = authority_owner(desired, desired.names.authority)
        owner["metadata"].pop("ownerReferences", None)
        owner = call("POST", path_of("ConfigMap", streams), owner)
        secret = authority_secret(desired, owner, b"certificate", b"key")
        call("POST", path_of("Secret", streams), secret)
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        call("POST", leases, {**lease, "metadata": {"name": "penstock-operator"}})
        call("GET", f"{leases}/penstock-operator")

        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
        secrets = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
        maps = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
        (bound,) = [one for one in controller_objects(desired) if one["kind"] == "RoleBinding"]
        everything = {**bound, "metadata": {"name": "all"}}
        everything["roleRef"] = {**bound["roleRef"], "name": "cluster-admin"}
        wide = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role_name}"
        for refused in (
            lambda: call("GET", f"/api/v1/namespaces/{streams}/secrets"),
            lambda: call("GET", path_of("Secret", streams, "flights-ca")),
            lambda: call("DELETE", path_of("Secret", streams, "flights-ca")),
            lambda: apply({**role, "metadata": {"name": "more"}, "rules": secrets}),
            lambda: apply({**role, "metadata": {"name": "held"}, "rules": maps}),
            lambda: apply(everything),
            lambda: call("PUT", wide, {"metadata": {"name": role_name}, "rules": secrets}),
            lambda: call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{streams}/leases"),
            lambda: call("DELETE", "/api/v1/persistentvolumes/x"),
            lambda: call("DELETE", "/api/v1/nodes/x"),
            lambda: call("GET", f"/apis/apps/v1/namespaces/{streams}/deployments/x/scale"),
        ):
            forbidden(refused)
        if watched:
            forbidden(lambda: call("GET", "/api/v1/namespaces/default/pods"))
            forbidden(lambda: call("GET", "/api/v1/namespaces"))
            forbidden(lambda: call("POST", "/api/v1/namespaces/default/configmaps", {}))

    def test_the_pods_pass_the_restricted_standard(
        self, helm: str, api_server: ApiServer, namespace: str
    ) -> None:
        label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        path = f"/api/v1/namespaces/{namespace}"
        api_server.request("PATCH", path, label, Content_Type="application/merge-patch+json")
        (made,) = [each for each in objects(template(helm)) if each["kind"] == "Deployment"]
        pod = {"apiVersion": "v1", "kind": "Pod", **made["spec"]["template"]}
        pod["metadata"]["name"] = "operator"
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        api_server.request("POST", path, pod)
        pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        forbidden(lambda: api_server.request("POST", path, pod))
