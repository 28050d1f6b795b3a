"""The CRDs as files: nobody edited them, they are structural, no rule is missing.

And the corpus: local mode accepts and refuses what the schemas accept and refuse. What an API
server does with the same files is in test_api_server.py.
"""

from typing import Any

import pytest
from support.manifests import PLURALS, Case, cases, crd, schema, structural_problems

from penstock.core.manifest import Manifest, ManifestError, parse_manifest
from penstock.core.manifest.rows import Field, Kind
from penstock.core.manifest.schema import CLUSTER_SPEC, TOPIC_SPEC
from penstock.core.manifest.schema_groups import CONSUMER_GROUP_SPEC
from penstock.core.manifest.status import CLUSTER_STATUS, CONSUMER_GROUP_STATUS, TOPIC_STATUS
from penstock.core.settings import CLUSTER_SETTINGS, TOPIC_SETTINGS
from tools.crds import ROOT, main, rendered

SPECS = {"Cluster": CLUSTER_SPEC, "Topic": TOPIC_SPEC, "ConsumerGroup": CONSUMER_GROUP_SPEC}
STATUSES = {
    "Cluster": CLUSTER_STATUS,
    "Topic": TOPIC_STATUS,
    "ConsumerGroup": CONSUMER_GROUP_STATUS,
}
KINDS = list(PLURALS)


def nodes(shape: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, with its path."""
    found = [(path, shape)]
    for name, nested in shape.get("properties", {}).items():
        found += nodes(nested, f"{path}.{name}")
    if "additionalProperties" in shape:
        found += nodes(shape["additionalProperties"], f"{path}.*")
    if "items" in shape:
        found += nodes(shape["items"], f"{path}[]")
    return found


def rules(kind: str) -> dict[str, list[dict[str, str]]]:
    return {
        path: node["x-kubernetes-validations"]
        for path, node in nodes(schema(kind))
        if "x-kubernetes-validations" in node
    }


def messages(kind: str, path: str) -> list[str]:
    return [rule["message"] for rule in rules(kind)[path]]


class TestFiles:
    def test_they_are_what_the_tables_say(self) -> None:
        assert main(["--check"]) == 0, "run make crds"

    def test_a_changed_file_is_found(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = ROOT / "crds" / "topics.yaml"
        changed = {**rendered(), path: rendered()[path].replace("maximum: 5000", "maximum: 5")}
        monkeypatch.setattr("tools.crds.rendered", lambda: changed)
        assert main(["--check"]) == 1
        assert "crds/topics.yaml" in capsys.readouterr().err

    @pytest.mark.parametrize("kind", KINDS)
    def test_names_and_subresources(self, kind: str) -> None:
        spec = crd(kind)["spec"]
        short = {"Cluster": "pcl", "Topic": "pt", "ConsumerGroup": "pcg"}[kind]
        assert spec["names"]["shortNames"] == [short]
        assert spec["names"]["categories"] == ["penstock"]
        assert spec["scope"] == "Namespaced"
        version = spec["versions"][0]
        assert version["name"] == "v1alpha1"
        assert version["subresources"]["status"] == {}
        assert ("scale" in version["subresources"]) == (kind == "Cluster")

    @pytest.mark.parametrize("kind", KINDS)
    def test_columns_show_fields_that_exist(self, kind: str) -> None:
        known = {path for path, _ in nodes(schema(kind))}
        for column in crd(kind)["spec"]["versions"][0]["additionalPrinterColumns"]:
            path = column["jsonPath"]
            if path.startswith(".metadata"):
                continue
            place = path.replace('[?(@.type=="Ready")]', "[]")
            assert place in known, f"{column['name']} shows {path}"


@pytest.mark.parametrize("kind", KINDS)
class TestSchemas:
    def test_every_field_is_described(self, kind: str) -> None:
        for path, node in nodes(schema(kind)):
            field = not path.endswith(("*", "[]", ".apiVersion", ".kind", ".metadata"))
            assert not field or node.get("description", "").endswith("."), path

    def test_everything_has_a_limit(self, kind: str) -> None:
        """Without limits the API server refuses rules for what they might cost."""
        for path, node in nodes(schema(kind)):
            if path in ("", ".apiVersion", ".kind", ".metadata"):
                continue
            if node.get("type") == "string" and "format" not in node:
                assert "maxLength" in node or "enum" in node, path
            if node.get("type") == "array":
                assert "maxItems" in node, path
            if "additionalProperties" in node:
                assert "maxProperties" in node, path

    def test_every_node_is_structural(self, kind: str) -> None:
        for path, node in nodes(schema(kind)):
            typed = "type" in node
            assert typed != bool(node.get("x-kubernetes-int-or-string")), path
            assert not ("properties" in node and "additionalProperties" in node), path
            if "default" in node:
                assert structural_problems(node, node["default"]) == [], path

    def test_it_has_the_rows_and_no_others(self, kind: str) -> None:
        def paths(rows: tuple[Field, ...], path: str) -> set[str]:
            found = set()
            for row in rows:
                found |= {f"{path}.{row.name}"}
                many = "[]" if row.kind is Kind.OBJECTS else ""
                found |= paths(row.fields, f"{path}.{row.name}{many}")
            return found

        wanted = paths(SPECS[kind], ".spec") | paths(STATUSES[kind], ".status")
        seen = {
            path
            for path, _ in nodes(schema(kind))
            if path.startswith((".spec.", ".status.")) and not path.endswith(("*", "[]"))
        }
        assert seen == wanted

    def test_a_new_object_says_that_it_waits(self, kind: str) -> None:
        default = schema(kind)["properties"]["status"]["default"]
        assert default["observedGeneration"] == 0
        (condition,) = default["conditions"]
        assert (condition["type"], condition["status"]) == ("Ready", "Unknown")
        assert condition["reason"] == "Pending"
        assert condition["message"] == "waiting for the operator"


class TestRules:
    def test_every_rule_has_a_message_that_stays_short(self) -> None:
        for kind in KINDS:
            for path, there in rules(kind).items():
                for rule in there:
                    assert rule["message"], f"{kind}{path}"
                    assert len(rule["message"]) <= 2_048
                    assert "\n" not in rule["message"], "the API server takes one line"

    @pytest.mark.parametrize(
        ("kind", "settings"), [("Cluster", CLUSTER_SETTINGS), ("Topic", TOPIC_SETTINGS)]
    )
    def test_every_setting_is_known_and_checked(self, kind: str, settings: Any) -> None:
        there = rules(kind)[".spec.config"]
        assert len(there) == 1 + len(settings)
        for setting in settings:
            assert f'"{setting.key}"' in there[0]["rule"]
            assert any(rule["rule"].startswith(f'!("{setting.key}" in self)') for rule in there)

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_immutable_field_has_its_rule(self, kind: str) -> None:
        def immutable(rows: tuple[Field, ...], path: str) -> list[tuple[str, Field]]:
            found = [(f"{path}.{row.name}", row) for row in rows if row.immutable]
            for row in rows:
                found += immutable(row.fields, f"{path}.{row.name}")
            return found

        told = [rule for there in rules(kind).values() for rule in there]
        for path, _ in immutable(SPECS[kind], ".spec"):
            sentence = f"{path[1:]} cannot be changed once it is applied; "
            (rule,) = [rule for rule in told if rule["message"].startswith(sentence)]
            assert "oldSelf" in rule["rule"]

    @pytest.mark.parametrize(
        ("kind", "path", "part"),
        [
            ("Topic", ".spec.partitions", "can never shrink"),
            ("Topic", ".spec", "min.insync.replicas must not be more than spec.replicas"),
            ("Topic", "", "a topic name must have 1 to 249 characters"),
            ("Cluster", "", "metadata.name of a Cluster has at most 40 characters"),
            ("Cluster", ".spec.storage.size", "can grow but never shrink"),
            ("Cluster", ".spec", "default.replication.factor must not be more than spec.brokers"),
            ("Cluster", ".spec", "min.insync.replicas must not be more than default.replication"),
            ("Cluster", ".spec", "at least twice broker.heartbeat.interval.ms"),
            ("ConsumerGroup", ".spec.offsetReset", "has no meaning for earliest and latest"),
            ("ConsumerGroup", ".spec.scaleTarget", "minReplicas must not be more than"),
        ],
    )
    def test_what_spans_fields_has_its_rule(self, kind: str, path: str, part: str) -> None:
        assert any(part in message for message in messages(kind, path))


CLUSTER = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster"}
OTHERS: list[dict[str, Any]] = [
    {**CLUSTER, "metadata": {"name": name}} for name in ("flights", "trains")
]


def parsed(*documents: dict[str, Any]) -> Manifest:
    """As local mode reads them; a Topic's Cluster is in the file."""
    own = {each["metadata"]["name"] for each in documents if each["kind"] == "Cluster"}
    added = [other for other in OTHERS if other["metadata"]["name"] not in own]
    return parse_manifest([*documents, *added], "x.yaml")


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", cases("good"), ids=by_name)
def test_good_manifests_are_good_here_and_by_the_schema(case: Case) -> None:
    parsed(*case.documents)
    for document in case.documents:
        assert structural_problems(schema(document["kind"]), document) == []


@pytest.mark.parametrize("case", cases("bad"), ids=by_name)
def test_bad_manifests_are_refused_here_with_the_words_of_the_file(case: Case) -> None:
    assert case.local, "the file says what is wrong"
    assert case.api
    with pytest.raises(ManifestError) as caught:
        parsed(*case.documents)
    assert case.local in caught.value.message
    assert len(caught.value.problems) == 1, "one mistake is told once"


@pytest.mark.parametrize("case", cases("bad"), ids=by_name)
def test_what_a_schema_alone_can_refuse_it_refuses(case: Case) -> None:
    """Where the API server's words are the schema's own, the schema must find it."""
    (document,) = case.documents
    found = structural_problems(schema(document["kind"]), document)
    by_schema = any(
        part in case.api for part in ("in body", "Required", "unknown field", "supported", "Too")
    )
    if by_schema:
        assert found
    elif found:
        assert "spec.config." in case.api, f"the API server says it otherwise: {found}"


@pytest.mark.parametrize("case", cases("changes"), ids=by_name)
def test_each_state_of_a_change_is_good_by_itself(case: Case) -> None:
    before, after = case.documents
    for document in (before, after):
        parsed(document)
        assert structural_problems(schema(document["kind"]), document) == []
