"""The CRDs and a real API server: it takes them, and judges manifests with our words.

The same corpus as in test_crds.py, so local mode and Kubernetes say the same about the same file.
"""

import copy
import json
import shutil
import subprocess
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import yaml
from support.apiserver import ApiServer, binaries
from support.manifests import PLURALS, ROOT, Case, cases, crd
from support.missing import cannot_run
from support.waiting import wait_until

from penstock.core.manifest import ManifestError, parse_manifest
from penstock.core.settings import CLUSTER_SETTINGS, TOPIC_SETTINGS, Setting
from tools.snippets.page import SnippetError, documents, read_page
from tools.snippets.values import resources

GROUP = "/apis/penstock.dev/v1alpha1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLY = "application/apply-patch+yaml"


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    """An API server that serves our kinds."""
    for kind, plural in PLURALS.items():
        path = f"{DEFINITIONS}/{plural}.penstock.dev?fieldManager=tests&force=true"
        api_server.request("PATCH", path, crd(kind), Content_Type=APPLY)
    wait_until(
        lambda: all(established(api_server, plural) for plural in PLURALS.values()),
        what="the API server serves our kinds",
    )
    return api_server


def established(server: ApiServer, plural: str) -> bool:
    seen = server.request("GET", f"{DEFINITIONS}/{plural}.penstock.dev")
    conditions = {each["type"]: each for each in seen.get("status", {}).get("conditions", ())}
    if "NonStructuralSchema" in conditions:
        pytest.fail(conditions["NonStructuralSchema"]["message"])
    if conditions.get("Established", {}).get("status") != "True":
        return False
    try:
        server.request("GET", f"{GROUP}/{plural}")
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


@pytest.fixture
def namespace(server: ApiServer) -> str:
    return server.namespace("crds")


Apply = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def apply(server: ApiServer, namespace: str) -> Apply:
    """As `kubectl apply --server-side`, strict about unknown fields as kubectl is."""

    def call(document: dict[str, Any]) -> dict[str, Any]:
        path = f"{where(document, namespace)}?fieldManager=tests&force=true&fieldValidation=Strict"
        answer: dict[str, Any] = server.request("PATCH", path, document, Content_Type=APPLY)
        return answer

    return call


def where(document: dict[str, Any], namespace: str) -> str:
    plural = PLURALS[document["kind"]]
    return f"{GROUP}/namespaces/{namespace}/{plural}/{document['metadata']['name']}"


def refusal(call: Callable[[], object]) -> str:
    """What the API server says to a bad manifest, without the quotes' escapes."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        call()
    with caught.value as error:
        answer = json.loads(error.read())
    assert caught.value.code in (400, 422, 500), answer
    message: str = answer["message"]
    return message.replace('\\"', '"')


def manifests_of_pages() -> dict[str, list[dict[str, Any]]]:
    """By the place of the snippet. What cannot be read fails in tests/documents."""
    found = {}
    for page in documents(ROOT):
        with suppress(SnippetError, ManifestError, yaml.YAMLError):
            for snippet in read_page(ROOT, page):
                if snippet.language == "yaml" and (ours := resources(snippet.text)):
                    found[snippet.place] = ours
    return found


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", cases("good"), ids=by_name)
def test_good_manifests_are_accepted(case: Case, server: ApiServer, namespace: str) -> None:
    """By POST, too: it drops nulls, as local mode does. Server-side apply refuses some."""
    for document in case.documents:
        path = f"{GROUP}/namespaces/{namespace}/{PLURALS[document['kind']]}?fieldValidation=Strict"
        server.request("POST", path, document)


@pytest.mark.parametrize("place", sorted(manifests_of_pages()))
def test_manifests_of_the_documentation_are_accepted(
    place: str, server: ApiServer, namespace: str
) -> None:
    for document in manifests_of_pages()[place]:
        document["metadata"]["namespace"] = namespace
        plural = PLURALS[document["kind"]]
        server.request(
            "POST", f"{GROUP}/namespaces/{namespace}/{plural}?fieldValidation=Strict", document
        )


@pytest.mark.parametrize("case", cases("bad"), ids=by_name)
def test_bad_manifests_are_refused_with_the_words_of_the_file(
    case: Case, server: ApiServer, namespace: str
) -> None:
    """By POST: what kubectl create sends, and what an apply of a new object comes to."""
    (document,) = case.documents
    path = f"{GROUP}/namespaces/{namespace}/{PLURALS[document['kind']]}?fieldValidation=Strict"
    assert case.api in refusal(lambda: server.request("POST", path, document))


@pytest.mark.parametrize("case", cases("changes"), ids=by_name)
def test_changes_are_accepted_or_refused(case: Case, apply: Apply) -> None:
    before, after = case.documents
    apply(before)
    if case.api:
        assert case.api in refusal(lambda: apply(after))
    else:
        apply(after)


def example(name: str) -> dict[str, Any]:
    (found,) = [case for case in cases("good") if case.name == name]
    return copy.deepcopy(found.documents[0])


def test_a_cluster_whose_name_was_allowed_once_can_be_deleted(
    server: ApiServer, namespace: str
) -> None:
    """It never worked, as no Service of its name can be made; it still has to go."""
    clusters = f"{GROUP}/namespaces/{namespace}/clusters"
    definition = f"{DEFINITIONS}/clusters.penstock.dev?fieldManager=tests&force=true"
    present = crd("Cluster")
    former = copy.deepcopy(present)
    schema = former["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = schema["x-kubernetes-validations"]
    schema["x-kubernetes-validations"] = [one for one in rules if "optionalOldSelf" not in one]
    body = example("cluster-least")
    body["metadata"] = {"name": "1-flights", "finalizers": ["example.org/wait"]}

    def is_taken(query: str) -> bool:
        try:
            server.request("POST", f"{clusters}{query}", body)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return True

    server.request("PATCH", definition, former, Content_Type=APPLY)
    try:
        wait_until(lambda: is_taken(""), what="the name was allowed once")
    finally:
        server.request("PATCH", definition, present, Content_Type=APPLY)
    body["metadata"]["name"] = "2-flights"
    wait_until(lambda: not is_taken("?dryRun=All"), what="it is allowed no longer")
    server.request("DELETE", f"{clusters}/1-flights")
    bare = {"metadata": {"finalizers": None}}
    media = "application/merge-patch+json"
    server.request("PATCH", f"{clusters}/1-flights", bare, Content_Type=media)
    assert server.request("GET", clusters)["items"] == []


class TestWhatObjectsLookLike:
    def test_defaults_are_filled_in(self, apply: Apply) -> None:
        spec = apply(example("cluster-least"))["spec"]
        assert spec == {
            "brokers": 3,
            "storage": {"size": "10Gi"},
            "config": {},
            "controllers": {"replicas": 2},
            "deletionPolicy": "Retain",
        }
        assert apply(example("topic-least"))["spec"] == {
            "cluster": "flights",
            "config": {},
            "deletionPolicy": "Retain",
        }
        group = example("group-least")
        group["spec"]["scaleTarget"] = {"name": "a", "maxReplicas": 2, "lagPerReplica": 9}
        assert apply(group)["spec"] == {
            "cluster": "flights",
            "deletionPolicy": "Retain",
            "scaleTarget": {
                "kind": "Deployment",
                "name": "a",
                "minReplicas": 1,
                "maxReplicas": 2,
                "lagPerReplica": 9,
                "stabilizationWindowSeconds": 300,
            },
        }

    @pytest.mark.parametrize("name", ["cluster-least", "topic-least", "group-least"])
    def test_a_new_object_waits_for_the_operator_from_the_first_get_on(
        self, name: str, server: ApiServer, namespace: str
    ) -> None:
        document = example(name)
        path = where(document, namespace)
        server.request("POST", path.rpartition("/")[0], document)
        status = server.request("GET", path)["status"]
        assert status["observedGeneration"] == 0
        (condition,) = status["conditions"]
        assert (condition["type"], condition["status"]) == ("Ready", "Unknown")
        assert condition["message"] == "waiting for the operator"

    def test_a_status_takes_the_place_of_the_default(
        self, apply: Apply, server: ApiServer, namespace: str
    ) -> None:
        document = example("topic-least")
        apply(document)
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "AsDesired",
            "message": "",
            "observedGeneration": 1,
            "lastTransitionTime": "2030-01-31T12:00:00Z",
        }
        status = {"observedGeneration": 1, "conditions": [ready], "partitions": 6, "topicId": "x"}
        path = f"{where(document, namespace)}/status"
        server.request(
            "PATCH", path, {"status": status}, Content_Type="application/merge-patch+json"
        )
        assert server.request("GET", where(document, namespace))["status"] == status

    def test_a_cluster_can_be_scaled(self, apply: Apply, server: ApiServer, namespace: str) -> None:
        document = example("cluster-least")
        apply(document)
        path = f"{where(document, namespace)}/scale"
        scale = server.request("GET", path)
        assert scale["spec"]["replicas"] == 3
        scale["spec"]["replicas"] = 5
        server.request("PUT", path, scale)
        assert server.request("GET", where(document, namespace))["spec"]["brokers"] == 5
        scale = server.request("GET", path)
        scale["spec"]["replicas"] = 0
        assert "greater than or equal to 1" in refusal(lambda: server.request("PUT", path, scale))

    def test_the_columns_of_kubectl_get(
        self, apply: Apply, server: ApiServer, namespace: str
    ) -> None:
        document = example("topic-least")
        apply(document)
        table = server.request(
            "GET", where(document, namespace), Accept="application/json;as=Table;v=v1;g=meta.k8s.io"
        )
        row = dict(
            zip(
                [column["name"] for column in table["columnDefinitions"]],
                table["rows"][0]["cells"],
                strict=True,
            )
        )
        assert row["Cluster"] == "flights"
        assert row["Ready"] == "Unknown"
        assert row["Message"] == "waiting for the operator"

    def test_an_old_object_that_broke_a_new_rule_can_still_be_changed_elsewhere(
        self, apply: Apply, server: ApiServer, namespace: str
    ) -> None:
        """A status is written whatever the spec says: else nobody would learn what is wrong."""
        document = example("cluster-least")
        apply(document)
        path = f"{where(document, namespace)}/status"
        body = {"status": {"phase": "Blocked"}}
        kept = server.request("PATCH", path, body, Content_Type="application/merge-patch+json")
        assert kept["status"]["phase"] == "Blocked"


def kubectl() -> str:
    own = binaries() / "kubectl"
    found = str(own) if own.is_file() else shutil.which("kubectl")
    if not found:
        cannot_run(f"no kubectl here: neither in {binaries()} nor in PATH")
    return found


class TestKubectl:
    def run(self, server: ApiServer, *arguments: str, text: str = "") -> str:
        command = [kubectl(), f"--kubeconfig={server.kubeconfig}", *arguments]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=300, check=False
        )
        return done.stdout + done.stderr

    def test_explain_says_what_the_tables_say(self, server: ApiServer) -> None:
        words = ("explain", "cluster.spec.storage", "--api-version=penstock.dev/v1alpha1")

        def told() -> bool:
            """The API server publishes what a kind looks like a moment after it serves it."""
            found = " ".join(self.run(server, *words).split())
            return (
                "The volume of each broker. Local mode uses the data directory instead." in found
                and "Size of each broker's volume; it can grow, but never shrink." in found
            )

        wait_until(told, what="kubectl explains it")

    @pytest.mark.parametrize("name", ["pcl", "pt", "pcg", "penstock"])
    def test_short_names_and_the_category(
        self, name: str, server: ApiServer, namespace: str
    ) -> None:
        self.run(
            server, "apply", "-n", namespace, "-f", "-", text=yaml.safe_dump_all(
                [example("cluster-least"), example("topic-least"), example("group-least")]
            ),
        )  # fmt: skip
        told = self.run(server, "get", name, "-n", namespace)
        assert "flights" in told or "readers" in told

    def test_the_example_is_applied(self, server: ApiServer, namespace: str) -> None:
        example = ROOT / "examples" / "flights" / "cluster.yaml"
        told = self.run(server, "apply", "-n", namespace, "-f", str(example))
        assert "cluster.penstock.dev/flights created" in told
        assert "topic.penstock.dev/flights created" in told


ODD = ("", " 1", "+1", "-0", "-1", "-01", "007", "0", "1", "1_0", "1e3", "0x1", "1.0", "１", "true")
"""Texts that parsers of numbers disagree about."""


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("Cluster", setting) for setting in CLUSTER_SETTINGS]
    + [("Topic", setting) for setting in TOPIC_SETTINGS],
    ids=lambda value: value if isinstance(value, str) else value.key,
)
def test_each_setting_takes_the_same_values_here_and_there(
    kind: str, setting: Setting, server: ApiServer, namespace: str
) -> None:
    numbers = (setting.minimum - 1, setting.minimum, setting.maximum, setting.maximum + 1)
    document = example(f"{kind.lower()}-least")
    path = f"{where(document, namespace).rpartition('/')[0]}?dryRun=All&fieldValidation=Strict"
    accepted = 0
    for value in (*numbers, *map(str, numbers), *setting.choices, *ODD, 10**30, -(10**18)):
        document["spec"] = {"config": {setting.key: value}}
        room: dict[str, Any] = {"brokers": 100}
        document["spec"] |= room if kind == "Cluster" else {"cluster": "flights", "replicas": 64}
        cluster = [] if kind == "Cluster" else [{**example("cluster-least"), "spec": room}]
        try:
            parse_manifest([document, *cluster], "x.yaml")
        except ManifestError:
            refusal(lambda: server.request("POST", path, document))
        else:
            server.request("POST", path, document)
            accepted += 1
    assert accepted >= 1
