"""Manifests: what is accepted, and the message each mistake gets."""

import contextlib
import datetime
from typing import Any

import pytest

from penstock.core.authorization import Operation, Rule
from penstock.core.authorization.checks import PRINCIPALS_MAX, RULES_MAX
from penstock.core.manifest import (
    ClusterSpec,
    DeletionPolicy,
    Manifest,
    ManifestError,
    parse_manifest,
)
from penstock.core.manifest.objects import (
    ConsumerGroupSpec,
    Controllers,
    External,
    OffsetReset,
    PodSpec,
    Resources,
    ScaleTarget,
    SecurityMode,
)
from penstock.core.manifest.rows import Field, Kind
from penstock.core.manifest.schema import (
    API_VERSION,
    CLUSTER_METADATA,
    CLUSTER_SPEC,
    OBJECT_METADATA,
    TOPIC_SPEC,
)
from penstock.core.manifest.schema_groups import CONSUMER_GROUP_SPEC
from penstock.core.manifest.status import CLUSTER_STATUS, CONSUMER_GROUP_STATUS, TOPIC_STATUS
from penstock.core.manifest.upkeep import FinalizePolicy, UpgradePolicy
from penstock.core.offset_reset import ResetKind


def cluster(name: str = "flights", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "Cluster", "metadata": {"name": name}, "spec": spec}


def topic(name: str = "flights", **spec: Any) -> dict[str, Any]:
    spec = {"cluster": "flights", **spec}
    return {"apiVersion": API_VERSION, "kind": "Topic", "metadata": {"name": name}, "spec": spec}


def group(name: str = "readers", **spec: Any) -> dict[str, Any]:
    spec = {"cluster": "flights", **spec}
    return {
        "apiVersion": API_VERSION,
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": spec,
    }


def without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


def parse(*documents: object) -> Manifest:
    return parse_manifest(documents, "x.yaml")


def problems(*documents: object) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        parse(*documents)
    assert len(caught.value.problems) == len(caught.value.message.splitlines())
    return caught.value.message.splitlines()


class TestAccepted:
    def test_a_cluster_and_its_topic(self) -> None:
        manifest = parse(
            cluster(brokers=3, config={"min.insync.replicas": 2}),
            topic(partitions=6, replicas=3, config={"retention.ms": -1}),
        )
        assert manifest.clusters[0].spec.brokers == 3
        assert manifest.clusters[0].spec.config == {"min.insync.replicas": "2"}
        assert manifest.topics[0].spec.topic_name == "flights"
        assert manifest.topics[0].spec.config == {"retention.ms": "-1"}

    def test_an_empty_spec_means_the_defaults(self) -> None:
        spec = parse(cluster()).clusters[0].spec
        assert spec == ClusterSpec(brokers=3)
        assert spec.deletion_policy is DeletionPolicy.RETAIN

    def test_empty_documents_between_others(self) -> None:
        assert len(parse(None, cluster(), None).clusters) == 1

    def test_what_only_kubernetes_needs(self) -> None:
        document = cluster(
            brokers=3,
            storage={"size": "100Gi", "storageClassName": "fast"},
            image="penstock:1",
            resources={"requests": {"cpu": "500m"}},
            rack={"topologyKey": "topology.kubernetes.io/zone", "names": ["a", "b"]},
            deletionPolicy="Delete",
        )
        spec = parse(document).clusters[0].spec
        assert spec.rack_names == ("a", "b")
        assert spec.deletion_policy is DeletionPolicy.DELETE

    def test_what_the_api_server_adds(self) -> None:
        document = cluster()
        document["metadata"] |= {"uid": "1", "resourceVersion": "7", "managedFields": []}
        document["status"] = {"conditions": []}
        assert parse(document).clusters[0].name == "flights"

    def test_a_consumer_group(self) -> None:
        groups = parse(
            cluster(),
            group(
                groupId="the readers",
                offsetReset={"id": "1", "to": "shift", "value": -10, "topics": ["a"]},
                scaleTarget={"name": "app", "maxReplicas": 6, "lagPerReplica": 1000},
            ),
            group("others"),
        ).consumer_groups
        reset = OffsetReset("1", ResetKind.SHIFT, "-10", ("a",))
        target = ScaleTarget("Deployment", "app", 1, 6, 1000)
        assert groups[0].spec == ConsumerGroupSpec("flights", "the readers", reset, target)
        assert groups[1].spec == ConsumerGroupSpec("flights", "others")

    @pytest.mark.parametrize(
        ("to", "value", "text"),
        [
            ("earliest", None, ""),
            ("offset", 100, "100"),
            ("shift", "-5", "-5"),
            ("duration", "PT1H30M", "PT1H30M"),
            ("duration", "P1DT5S", "P1DT5S"),
            ("datetime", "2013-01-01", "2013-01-01"),
            ("datetime", "2013-01-01T10:00:00.5Z", "2013-01-01T10:00:00.5Z"),
            ("datetime", datetime.date(2013, 1, 1), "2013-01-01"),
            (
                "datetime",
                datetime.datetime(2013, 1, 1, 10, tzinfo=datetime.UTC),
                "2013-01-01T10:00:00+00:00",
            ),
        ],
    )
    def test_where_offsets_are_reset_to(self, to: str, value: object, text: str) -> None:
        reset = {"id": "1", "to": to} | ({} if value is None else {"value": value})
        spec = parse(cluster(), group(offsetReset=reset)).consumer_groups[0].spec
        assert spec.offset_reset == OffsetReset("1", ResetKind(to), text)

    def test_all_that_only_kubernetes_needs_is_kept_for_the_operator(self) -> None:
        spec = (
            parse(
                cluster(
                    storage={"storageClassName": "fast"},
                    image="penstock-broker:1",
                    imagePullPolicy="Never",
                    resources={"requests": {"cpu": "500m", "memory": 1024}, "limits": {"cpu": 2}},
                    controllers={"replicas": 1, "resources": {"limits": {"memory": "1Gi"}}},
                    external={"host": "kafka.example.org", "nodePort": 31000},
                    pod={"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]},
                )
            )
            .clusters[0]
            .spec
        )
        assert spec.storage_class == "fast"
        assert (spec.image, spec.image_pull_policy) == ("penstock-broker:1", "Never")
        assert spec.resources == Resources({"cpu": "500m", "memory": "1024"}, {"cpu": "2"})
        assert spec.controllers == Controllers(1, Resources({}, {"memory": "1Gi"}))
        assert spec.external == External("NodePort", "kafka.example.org", 31000)
        assert spec.pod == PodSpec({"disk": "ssd"}, ({"operator": "Exists"},))

    def test_a_topic_name_kubernetes_could_not_hold(self) -> None:
        assert parse(cluster(), topic(topicName="My_Topic")).topics[0].spec.topic_name == "My_Topic"

    def test_numbers_in_config_become_the_text_kafka_uses(self) -> None:
        manifest = parse(cluster(), topic(config={"retention.ms": -1}))
        assert manifest.topics[0].spec.config == {"retention.ms": "-1"}

    def test_null_is_absent_as_for_the_api_server(self) -> None:
        empty = cluster(brokers=None, config={"cache.bytes": None}, storage=None, image=None)
        assert parse(empty).clusters[0].spec == ClusterSpec(brokers=3)


class TestDefaultsThatDependOnTheBrokers:
    @pytest.mark.parametrize(
        ("brokers", "factor", "min_isr"),
        [(1, "1", "1"), (2, "2", "2"), (3, "3", "2"), (9, "3", "2")],
    )
    def test_a_small_cluster_takes_what_it_can_hold(
        self, brokers: int, factor: str, min_isr: str
    ) -> None:
        config = ClusterSpec(brokers=brokers).effective_config()
        assert config["default.replication.factor"] == factor
        assert config["min.insync.replicas"] == min_isr

    def test_a_topic_inherits_from_its_cluster(self) -> None:
        manifest = parse(cluster(brokers=1, config={"num.partitions": 4}), topic())
        spec = manifest.clusters[0].spec
        assert manifest.topics[0].spec.effective_partitions(spec) == 4
        assert manifest.topics[0].spec.effective_replicas(spec) == 1


BAD: dict[str, tuple[list[Any], str]] = {
    "unknown field": (
        [cluster(broker=3)],
        "x.yaml: Cluster/flights: spec.broker is not a known field; did you mean brokers?",
    ),
    "unknown field in capitals": (
        [cluster(), topic(TopicName="x")],
        "x.yaml: Topic/flights: spec.TopicName is not a known field; did you mean topicName?",
    ),
    "unknown nested field": (
        [cluster(storage={"sice": "1Gi"})],
        "x.yaml: Cluster/flights: spec.storage.sice is not a known field; did you mean size?",
    ),
    "unknown top-level field": (
        [{**cluster(), "speck": {}}],
        "x.yaml: Cluster/flights: speck is not a known field; did you mean spec?",
    ),
    "text for a number": (
        [cluster(brokers="three")],
        "x.yaml: Cluster/flights: spec.brokers is the string 'three'; it must be a whole number",
    ),
    "true for a number": (
        [cluster(brokers=True)],
        "x.yaml: Cluster/flights: spec.brokers is true; it must be a whole number",
    ),
    "number for a text": (
        [cluster(), topic(topicName=2013)],
        (
            "x.yaml: Topic/flights: spec.topicName is the number 2013; it must be a string "
            "(put it in quotes)"
        ),
    ),
    "list for a mapping": (
        [cluster(config=["min.insync.replicas"])],
        (
            "x.yaml: Cluster/flights: spec.config is a list; "
            "it must be a mapping of setting names to values"
        ),
    ),
    "spec that is no mapping": (
        [{**cluster(), "spec": "big"}],
        "x.yaml: Cluster/flights: spec is the string 'big'; it must be a mapping",
    ),
    "too few brokers": (
        [cluster(brokers=0)],
        "x.yaml: Cluster/flights: spec.brokers is 0; it must be at least 1",
    ),
    "too many partitions": (
        [cluster(), topic(partitions=100_000)],
        "x.yaml: Topic/flights: spec.partitions is 100000; it must be at most 5000",
    ),
    "bad quantity": (
        [cluster(storage={"size": "10 GB"})],
        (
            "x.yaml: Cluster/flights: spec.storage.size is the string '10 GB'; "
            "it must be a quantity such as 10Gi"
        ),
    ),
    "bad choice": (
        [cluster(deletionPolicy="retain")],
        (
            "x.yaml: Cluster/flights: spec.deletionPolicy is 'retain'; "
            "it must be Retain or Delete; did you mean Retain?"
        ),
    ),
    "bad racks": (
        [cluster(rack={"names": "a,b"})],
        (
            "x.yaml: Cluster/flights: spec.rack.names is the string 'a,b'; it must be a list of "
            "strings"
        ),
    ),
    "replicas over brokers": (
        [cluster(brokers=3), topic(replicas=5)],
        (
            "x.yaml: Topic/flights: spec.replicas is 5, but Cluster/flights has 3 brokers; "
            "lower spec.replicas or raise spec.brokers"
        ),
    ),
    "default replicas over brokers": (
        [cluster(brokers=2, config={"default.replication.factor": 3})],
        (
            "x.yaml: Cluster/flights: spec.config.default.replication.factor is 3, "
            "but spec.brokers is 2; lower default.replication.factor or raise spec.brokers"
        ),
    ),
    "min ISR over replicas": (
        [cluster(brokers=3), topic(replicas=2, config={"min.insync.replicas": 3})],
        (
            "x.yaml: Topic/flights: spec.config.min.insync.replicas is 3, but the topic has 2 "
            "replicas, so that no acks=all write could succeed; lower it to at most 2 or raise "
            "spec.replicas"
        ),
    ),
    "min ISR over inherited replicas": (
        [cluster(brokers=1), topic(config={"min.insync.replicas": 2})],
        (
            "x.yaml: Topic/flights: spec.config.min.insync.replicas is 2, but the topic has 1 "
            "replicas (the cluster's default.replication.factor), so that no acks=all write could "
            "succeed; lower it to at most 1 or raise spec.replicas"
        ),
    ),
    "the cluster's min ISR over its replicas": (
        [cluster(config={"min.insync.replicas": 3, "default.replication.factor": 2})],
        (
            "x.yaml: Cluster/flights: spec.config.min.insync.replicas is 3, but "
            "default.replication.factor is 2, so that no acks=all write could succeed; lower "
            "min.insync.replicas or raise default.replication.factor"
        ),
    ),
    "illegal topic name": (
        [cluster(), topic(topicName="a/b")],
        (
            "x.yaml: Topic/flights: spec.topicName cannot be used: topic name 'a/b' has the "
            "illegal character '/' at position 1; a topic name must have 1 to 249 characters from "
            "a-z, A-Z, 0-9, '.', '_' and '-', and must not be '.' or '..'"
        ),
    ),
    "illegal object name": (
        [cluster("Flights")],
        (
            "x.yaml: Cluster/Flights: metadata.name is 'Flights'; it must be lower-case letters, "
            "digits and '-', beginning with a letter and ending with a letter or digit"
        ),
    ),
    "long object name": (
        [cluster("f" * 41)],
        f"x.yaml: Cluster/{'f' * 41}: metadata.name has 41 characters; the limit is 40",
    ),
    "unknown topic setting": (
        [cluster(), topic(config={"retention.msec": 1})],
        (
            "x.yaml: Topic/flights: spec.config.retention.msec cannot be used: unknown topic "
            "config 'retention.msec': did you mean 'retention.ms'?"
        ),
    ),
    "topic setting out of range": (
        [cluster(), topic(config={"retention.ms": -2})],
        (
            "x.yaml: Topic/flights: spec.config.retention.ms cannot be used: config retention.ms "
            "is '-2'; it must be -1 to 9223372036854775807"
        ),
    ),
    "a setting that is a list": (
        [cluster(), topic(config={"cleanup.policy": ["delete"]})],
        (
            "x.yaml: Topic/flights: spec.config.cleanup.policy is a list; "
            "it must be a string or a whole number"
        ),
    ),
    "a setting that is true": (
        [cluster(), topic(config={"unclean.leader.election.enable": True})],
        (
            "x.yaml: Topic/flights: spec.config.unclean.leader.election.enable is true; "
            "it must be a string or a whole number (put it in quotes)"
        ),
    ),
    "a setting that is a fraction": (
        [cluster(config={"num.partitions": 1.5})],
        (
            "x.yaml: Cluster/flights: spec.config.num.partitions is the number 1.5; "
            "it must be a string or a whole number (put it in quotes)"
        ),
    ),
    "unknown cluster setting": (
        [cluster(config={"cache.byte": 1})],
        (
            "x.yaml: Cluster/flights: spec.config.cache.byte cannot be used: unknown cluster "
            "config 'cache.byte': did you mean 'cache.bytes'?"
        ),
    ),
    "broker setting out of range": (
        [cluster(config={"cache.bytes": 0})],
        (
            "x.yaml: Cluster/flights: spec.config.cache.bytes cannot be used: config cache.bytes "
            "is '0'; it must be a whole number of at least 1"
        ),
    ),
    "controller setting out of range": (
        [cluster(config={"broker.session.timeout.ms": 1})],
        (
            "x.yaml: Cluster/flights: spec.config.broker.session.timeout.ms cannot be used: config "
            "broker.session.timeout.ms is '1'; it must be a whole number from 100 to 600000"
        ),
    ),
    "settings that are not possible together": (
        [cluster(config={"broker.heartbeat.interval.ms": 1000})],
        (
            "x.yaml: Cluster/flights: spec.config.broker.heartbeat.interval.ms cannot be used: "
            "broker.session.timeout.ms is 1800; it must be at least twice "
            "broker.heartbeat.interval.ms, which is 1000"
        ),
    ),
    "a reset that lacks its value": (
        [cluster(), group(offsetReset={"id": "1", "to": "offset"})],
        (
            "x.yaml: ConsumerGroup/readers: spec.offsetReset.value is missing; it must be an "
            "offset, 0 or more, because spec.offsetReset.to is offset"
        ),
    ),
    "a reset with a wrong value": (
        [cluster(), group(offsetReset={"id": "1", "to": "duration", "value": "PT"})],
        (
            "x.yaml: ConsumerGroup/readers: spec.offsetReset.value is 'PT'; it must be a duration "
            "such as PT1H30M or P1D, because spec.offsetReset.to is duration"
        ),
    ),
    "a reset whose value means nothing": (
        [cluster(), group(offsetReset={"id": "1", "to": "latest", "value": 3})],
        (
            "x.yaml: ConsumerGroup/readers: spec.offsetReset.value has no meaning when "
            "spec.offsetReset.to is latest; remove it"
        ),
    ),
    "a reset to nowhere": (
        [cluster(), group(offsetReset={"id": "1"})],
        (
            "x.yaml: ConsumerGroup/readers: spec.offsetReset.to is missing; it must be a "
            "string: The target: earliest, latest, an offset, a datetime, a duration back from "
            "now, or a shift by a number of records."
        ),
    ),
    "scaling upside down": (
        [
            cluster(),
            group(
                scaleTarget={"name": "a", "minReplicas": 5, "maxReplicas": 2, "lagPerReplica": 1}
            ),
        ],
        (
            "x.yaml: ConsumerGroup/readers: spec.scaleTarget.minReplicas is 5; it must not be more "
            "than spec.scaleTarget.maxReplicas, which is 2"
        ),
    ),
    "a group's cluster not in the file": (
        [group()],
        (
            "x.yaml: ConsumerGroup/readers: spec.cluster is 'flights', not in this file; "
            "the file contains no Cluster"
        ),
    ),
    "same group twice": (
        [cluster(), group("a", groupId="g"), group("b", groupId="g")],
        "x.yaml: ConsumerGroup/b: spec.groupId is 'g', which ConsumerGroup/a already has",
    ),
    "a label that is a number": (
        [{**cluster(), "metadata": {"name": "flights", "labels": {"year": 2013}}}],
        (
            "x.yaml: Cluster/flights: metadata.labels.year is the number 2013; it must be a string "
            "(put it in quotes)"
        ),
    ),
    "a limit that is no quantity": (
        [cluster(resources={"limits": {"memory": "2 GB"}})],
        (
            "x.yaml: Cluster/flights: spec.resources.limits.memory is the string '2 GB'; it "
            "must be a quantity such as 500m or 2Gi"
        ),
    ),
    "tolerations that are no mappings": (
        [cluster(pod={"tolerations": ["all"]})],
        (
            "x.yaml: Cluster/flights: spec.pod.tolerations is a list; it must be a list of "
            "mappings with any content"
        ),
    ),
    "too many racks": (
        [cluster(rack={"names": ["a"] * 501})],
        "x.yaml: Cluster/flights: spec.rack.names has 501 entries; the limit is 500",
    ),
    "a rack that is no name": (
        [cluster(rack={"names": ["a", "b" * 254]})],
        "x.yaml: Cluster/flights: spec.rack.names[1] has 254 characters; the limit is 253",
    ),
    "cluster not in the file": (
        [cluster("trains"), topic()],
        "x.yaml: Topic/flights: spec.cluster is 'flights', not in this file; known here: trains",
    ),
    "cluster misspelt": (
        [cluster("flight"), topic()],
        "x.yaml: Topic/flights: spec.cluster is 'flights', not in this file; did you mean flight?",
    ),
    "no cluster in the file": (
        [topic()],
        (
            "x.yaml: Topic/flights: spec.cluster is 'flights', not in this file; "
            "the file contains no Cluster"
        ),
    ),
    "cluster not named": (
        [cluster(), {**topic(), "spec": {}}],
        (
            "x.yaml: Topic/flights: spec.cluster is missing; it must be a string: "
            "The name of the Cluster this belongs to, in the same namespace."
        ),
    ),
    "same object twice": (
        [cluster(), cluster()],
        "x.yaml: Cluster/flights: metadata.name appears twice; give one of them another name",
    ),
    "same topic twice": (
        [cluster(), topic("a", topicName="t"), topic("b", topicName="t")],
        "x.yaml: Topic/b: spec.topicName is 't', which Topic/a already has",
    ),
    "unknown kind": (
        [{**cluster(), "kind": "Topics"}],
        "x.yaml: document 1: kind is the string 'Topics', which is not known; did you mean Topic?",
    ),
    "no kind": (
        [without(cluster(), "kind")],
        "x.yaml: document 1: kind is missing; it must be Cluster, Topic or ConsumerGroup",
    ),
    "other version": (
        [{**cluster(), "apiVersion": "penstock.dev/v2"}],
        (
            "x.yaml: document 1: apiVersion is the string 'penstock.dev/v2'; "
            "it must be penstock.dev/v1alpha1"
        ),
    ),
    "no name": (
        [without(cluster(), "metadata")],
        (
            "x.yaml: document 1 (Cluster): metadata.name is missing; it must be a string: "
            "The object's name, unique for its kind and namespace."
        ),
    ),
    "a document that is a list": (
        [[cluster()]],
        "x.yaml: document 1: is a list; it must be a mapping with apiVersion, kind, metadata",
    ),
    "nothing at all": (
        [],
        "x.yaml: contains no object; known kinds: Cluster, Topic, ConsumerGroup",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_mistake_is_told_once_and_with_what_to_do(name: str) -> None:
    documents, message = BAD[name]
    assert problems(*documents) == [message]


def test_all_mistakes_are_told_at_once() -> None:
    told = problems(
        cluster(brokers=0, storage={"size": "x"}, config={"num.partitions": "many"}),
        topic(partitions=0, replicas="x", foo=1),
        {"kind": "Topik"},
    )
    places = [line.removeprefix("x.yaml: ").split(" is ")[0] for line in told]
    assert places == [
        "Cluster/flights: spec.brokers",
        "Cluster/flights: spec.storage.size",
        "Cluster/flights: spec.config.num.partitions cannot be used: config num.partitions",
        "Topic/flights: spec.foo",
        "Topic/flights: spec.partitions",
        "Topic/flights: spec.replicas",
        "document 3: kind",
        "document 3: apiVersion",
    ]


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, 1.5, True, [1], {"a": 1}, {1: 2}])
@pytest.mark.parametrize(
    "place", ["document", "metadata", "spec", *sorted({row.name for row in CLUSTER_SPEC}), "labels"]
)
def test_no_value_anywhere_breaks_the_parser(place: str, value: object) -> None:
    document: Any = cluster()
    match place:
        case "document":
            document = value
        case "metadata" | "spec":
            document[place] = value
        case "labels":
            document["metadata"]["labels"] = value
        case _:
            document["spec"][place] = value
    with contextlib.suppress(ManifestError):
        parse(document)


def rows(fields: tuple[Field, ...]) -> list[Field]:
    return [row for field in fields for row in (field, *rows(field.fields))]


STATUS_ROWS = rows((*CLUSTER_STATUS, *TOPIC_STATUS, *CONSUMER_GROUP_STATUS))
SPEC_ROWS = rows((*CLUSTER_SPEC, *TOPIC_SPEC, *CONSUMER_GROUP_SPEC))
ALL_ROWS = [*SPEC_ROWS, *STATUS_ROWS, *rows((*CLUSTER_METADATA, *OBJECT_METADATA))]


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.name)
def test_every_row_of_the_schema_could_be_a_kubernetes_schema(row: Field) -> None:
    assert row.doc.endswith("."), "documentation is a sentence"
    assert not (row.required and row.default is not None)
    assert (row.kind in (Kind.OBJECT, Kind.OBJECTS)) == bool(row.fields)
    assert row.immutable == bool(row.immutable_doc), "says what to do instead"
    assert row.default is None or not row.choices or row.default in row.choices
    assert (row.pattern is None) == (row.pattern_doc == "")


class TestAccess:
    """`spec.access` of a Topic."""

    def one(self, *rules: object) -> list[str]:
        return problems(cluster(), topic(access=list(rules)))

    def rule(self, **changes: Any) -> dict[str, Any]:
        return {"principals": ["cert:ada"], "operations": ["Read"], **changes}

    def test_rules_are_read_as_they_are_written(self) -> None:
        written = [
            {"principals": ["serviceaccount:etl/*", "*"], "operations": ["Read", "Write"]},
            {"principals": ["oidc-group:https://login/ops"], "operations": ["Delete"]},
        ]
        assert parse(cluster(), topic(access=written)).topics[0].spec.access == (
            Rule(
                principals=("serviceaccount:etl/*", "*"),
                operations=(Operation.READ, Operation.WRITE),
            ),
            Rule(principals=("oidc-group:https://login/ops",), operations=(Operation.DELETE,)),
        )

    def test_absent_is_not_empty(self) -> None:
        assert parse(cluster(), topic()).topics[0].spec.access is None
        assert parse(cluster(), topic(access=None)).topics[0].spec.access is None
        assert parse(cluster(), topic(access=[])).topics[0].spec.access == ()

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"principals": ["ada"]}, "spec.access[0].principals[0] is 'ada'; it must be "),
            ({"principals": []}, "spec.access[0].principals has 0 entries; it must have at least"),
            ({"principals": None}, "spec.access[0].principals is missing"),
            ({"operations": ["Create"]}, "spec.access[0].operations[0] is 'Create'; it must be "),
            ({"operations": ["read"]}, "did you mean Read?"),
            ({"operations": []}, "spec.access[0].operations has 0 entries"),
            ({"role": "admin"}, "spec.access[0].role is not a known field"),
            ({"principals": ["*"] * (PRINCIPALS_MAX + 1)}, "has 101 entries; the limit is 100"),
        ],
    )
    def test_a_wrong_rule_is_told(self, changes: dict[str, Any], said: str) -> None:
        (line,) = self.one(self.rule(**changes))
        assert line.startswith("x.yaml: Topic/flights: spec.access[0].")
        assert said in line

    def test_wrong_lists_are_told(self) -> None:
        (line,) = problems(cluster(), topic(access=self.rule()))
        assert "spec.access is a mapping; it must be a list of mappings" in line
        (line,) = self.one("cert:ada", self.rule(principals=["*"]))[:1]
        assert "spec.access[0] is the string 'cert:ada'; it must be a mapping" in line
        (line,) = self.one(*[self.rule()] * (RULES_MAX + 1))
        assert "spec.access has 201 entries; the limit is 200" in line

    def test_rules_that_are_too_large_together_are_told(self) -> None:
        names = [f"cert:{index:0>400}" for index in range(100)]
        (line,) = self.one(self.rule(principals=names))
        assert "spec.access cannot be used: rules of topic flights take" in line


@pytest.mark.parametrize(
    ("mode", "issuers", "said"),
    [
        ("Disabled", ["https://a.example"], "needs spec.security.mode Strict"),
        ("Strict", ["https://a.example", "https://a.example"], "are the same or begin alike"),
        ("Strict", ["https://a.example/b", "https://a.example"], "are the same or begin alike"),
        ("Strict", ["https://a.example?b"], "https address without a query"),
        ("Strict", [f"https://a{number}.example" for number in range(9)], "the limit is 8"),
        ("Strict", ["https://login:99999"], "'https://login:99999' is no address"),
        ("Strict", ["https://login:port"], "'https://login:port' is no address"),
        ("Strict", ["https:///tenant"], "'https:///tenant' is no address"),
    ],
)
def test_issuers_that_cannot_be_believed_are_told(mode: str, issuers: list[str], said: str) -> None:
    oidc = [{"issuer": one, "audience": "flights"} for one in issuers]
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "flights"},
        "spec": {"security": {"mode": mode, "oidc": oidc}},
    }
    with pytest.raises(ManifestError) as raised:
        parse_manifest([document], "flights.yaml")
    (line,) = [one for one in str(raised.value).splitlines() if "spec.security.oidc" in one]
    assert said in line


@pytest.mark.parametrize(
    ("upgrade", "policy"),
    [
        (None, UpgradePolicy.WHEN_ASKED),
        ({}, UpgradePolicy.WHEN_ASKED),
        ({"policy": "WhenAsked"}, UpgradePolicy.WHEN_ASKED),
        ({"policy": "Automatic"}, UpgradePolicy.AUTOMATIC),
    ],
)
def test_upgrades_wait_until_somebody_asks_for_them(
    upgrade: dict[str, str] | None, policy: UpgradePolicy
) -> None:
    given: dict[str, Any] = {} if upgrade is None else {"upgrade": upgrade}
    (found,) = parse_manifest([cluster(**given)], "f").clusters
    assert found.spec.upgrade_policy is policy


@pytest.mark.parametrize(
    ("given", "brokers", "together"),
    [
        (None, 3, 1),
        (None, 8, 2),
        ("25%", 7, 1),
        ("34%", 6, 2),
        ("1%", 9, 1),
        ("100%", 6, 6),
        (3, 9, 3),
        ("3", 2, 3),
    ],
)
def test_a_share_of_the_brokers_is_rounded_down_and_never_none(
    given: str | int | None, brokers: int, together: int
) -> None:
    upgrade = {} if given is None else {"maxParallel": given}
    (found,) = parse_manifest([cluster(upgrade=upgrade)], "f").clusters
    assert found.spec.max_parallel.of(brokers) == together


@pytest.mark.parametrize("given", [0, -1, "0%", "101%", "2.5", "a quarter", True])
def test_a_share_that_is_none_is_refused_with_what_it_must_be(given: object) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest([cluster(upgrade={"maxParallel": given})], "f")
    assert "spec.upgrade.maxParallel" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "rate"), [(None, None), ("none", 0), ("40Mi", 40 << 20), (1_048_576, 1 << 20)]
)
def test_a_throttle_is_a_rate_or_none(given: str | int | None, rate: int | None) -> None:
    balance = {} if given is None else {"throttle": given}
    (found,) = parse_manifest([cluster(balance=balance)], "f").clusters
    assert found.spec.copy_rate == rate


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("0", "must be bytes per second, as 40Mi or 1048576, or none"),
        ("40MiB", "must be bytes per second, as 40Mi or 1048576, or none"),
        ("default", "must be bytes per second, as 40Mi or 1048576, or none"),
        ("9000P", "it must be at most 9007199254740992"),
    ],
)
def test_a_throttle_that_is_no_rate_is_refused(given: str, said: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest([cluster(balance={"throttle": given})], "f")
    assert "spec.balance.throttle" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("upgrade", "policy"),
    [
        (None, FinalizePolicy.MANUAL),
        ({}, FinalizePolicy.MANUAL),
        ({"finalize": "Manual"}, FinalizePolicy.MANUAL),
        ({"finalize": "Automatic", "maxParallel": "34%"}, FinalizePolicy.AUTOMATIC),
    ],
)
def test_an_upgrade_is_finalized_by_a_person_unless_the_spec_says_otherwise(
    upgrade: dict[str, str] | None, policy: FinalizePolicy
) -> None:
    given: dict[str, Any] = {} if upgrade is None else {"upgrade": upgrade}
    (found,) = parse_manifest([cluster(**given)], "f").clusters
    assert found.spec.finalize is policy


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, 0), ("0s", 0), ("90s", 90), ("1h30m", 5_400), ("2d", 172_800), ("1d1h1m1s", 90_061)],
)
def test_a_soak_is_a_duration(given: str | None, seconds: int) -> None:
    upgrade = {} if given is None else {"soak": given}
    (found,) = parse_manifest([cluster(upgrade=upgrade)], "f").clusters
    assert found.spec.soak_s == seconds


@pytest.mark.parametrize("given", ["h", "90", "-1h", "1m1h", "1.5h", "an hour", 3_600, "9999999s"])
def test_a_soak_that_is_none_is_refused_with_what_it_must_be(given: object) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest([cluster(upgrade={"soak": given})], "f")
    assert "spec.upgrade.soak" in str(refused.value)


def test_an_upgrade_policy_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest([cluster(upgrade={"policy": "Never"})], "f")
    assert "spec.upgrade.policy" in str(refused.value)
    assert "Automatic" in str(refused.value)


@pytest.mark.parametrize(
    ("args", "broker", "controller"),
    [
        (["broker", "--migrate", "--enrol-at=x", "--ca-key=x"], "MIGRATE", "MIGRATE"),
        (["--enrol-at=x"], "STRICT", "DISABLED"),
        (["--ca-key=x"], "DISABLED", "STRICT"),
        ([], "DISABLED", "DISABLED"),
        (None, "DISABLED", "DISABLED"),
    ],
)
def test_a_pod_shows_in_which_mode_it_was_started(
    args: list[str] | None, broker: str, controller: str
) -> None:
    sidecar = {"name": "istio-proxy", "args": ["proxy"]}
    named = [{"name": name, "args": args} for name in ("broker", "controller")]
    pod = {"spec": {"containers": [sidecar, *named]}}
    assert SecurityMode.of_pod(pod) is SecurityMode[broker]
    assert SecurityMode.of_controller(pod) is SecurityMode[controller]


@pytest.mark.parametrize("pod", [{}, {"spec": {"containers": [{"name": "istio-proxy"}]}}])
def test_a_pod_without_our_container_shows_no_mode(pod: dict[str, Any]) -> None:
    assert SecurityMode.of_pod(pod) is SecurityMode.of_controller(pod) is None
