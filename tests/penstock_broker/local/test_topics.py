"""The plan from a manifest's topics to the cluster's, and how manifests are opened."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.authorization import Kind, Operation, Resource, Rule
from penstock.core.manifest import Cluster, ClusterSpec, ManifestError, Topic, TopicSpec
from penstock.core.manifest.access import AlterAccess, plan_access
from penstock.core.manifest.topics import (
    AddPartitions,
    AlterConfig,
    ChangeReplicas,
    CreateTopic,
    ExistingTopic,
    Step,
    plan_topics,
)
from penstock.errors import MisuseError
from penstock_broker.local.arguments import (
    broker_arguments,
    check_settings,
    controller_arguments,
    settings_of,
)
from penstock_broker.local.manifest_file import choose_cluster, load_manifest, parse_text
from penstock_broker.local.ports import Ports

CLUSTER = ClusterSpec(brokers=3)
EXAMPLE = Path(__file__).parents[3] / "examples" / "flights" / "cluster.yaml"


def topic(**spec: Any) -> Topic:
    return Topic("flights", TopicSpec(cluster="c", topic_name="flights", **spec))


def plan(wanted: Topic, existing: ExistingTopic | None) -> list[Step]:
    seen = {} if existing is None else {"flights": existing, "other": existing}
    return plan_topics([wanted], CLUSTER, seen, "x.yaml")


def test_a_missing_topic_is_created_with_the_clusters_defaults() -> None:
    assert plan(topic(config={"retention.ms": "-1"}), None) == [
        CreateTopic("flights", 1, 3, {"retention.ms": "-1"})
    ]


def test_nothing_is_done_when_nothing_differs() -> None:
    existing = ExistingTopic(6, 3, {"retention.ms": "-1"})
    assert plan(topic(partitions=6, replicas=3, config={"retention.ms": "-1"}), existing) == []


def test_what_the_manifest_leaves_open_stays_as_it_is() -> None:
    assert plan(topic(), ExistingTopic(12, 2, {})) == []


def test_what_a_topic_inherits_from_the_cluster_is_no_difference() -> None:
    assert plan(topic(), ExistingTopic(6, 3, {"min.insync.replicas": "2"})) == []
    assert plan(topic(), ExistingTopic(6, 3, {"min.insync.replicas": "3"})) == [
        AlterConfig("flights", {}, ("min.insync.replicas",))
    ]


def test_partitions_are_added_and_settings_brought_back() -> None:
    existing = ExistingTopic(6, 3, {"retention.ms": "5", "max.message.bytes": "2000"})
    assert plan(topic(partitions=8, config={"retention.ms": "-1"}), existing) == [
        AddPartitions("flights", 8),
        AlterConfig("flights", {"retention.ms": "-1"}, ("max.message.bytes",)),
    ]


def test_fewer_partitions_are_refused_and_nothing_is_done() -> None:
    with pytest.raises(ManifestError) as caught:
        plan(topic(partitions=3, replicas=2), ExistingTopic(6, 3, {}))
    assert caught.value.message == (
        "x.yaml: Topic/flights: spec.partitions is 3, but the topic has 6; partitions can "
        "never shrink, because records would be lost: set it to 6 or more, or write to a "
        "new topic"
    )


def test_other_replicas_are_a_step_until_every_partition_has_them_and_none_moves_away() -> None:
    assert plan(topic(replicas=3), ExistingTopic.of([2, 2], [], {})) == [
        ChangeReplicas("flights", 3)
    ]
    assert plan(topic(replicas=3), ExistingTopic.of([3, 2], [3], {})) == [
        ChangeReplicas("flights", 3)
    ]
    assert plan(topic(replicas=2), ExistingTopic.of([2, 2], [3], {})) == [
        ChangeReplicas("flights", 2)
    ], "taken back"
    assert plan(topic(replicas=2), ExistingTopic.of([2, 2], [2], {})) == [], "it only moves"
    assert plan(topic(), ExistingTopic.of([3, 2], [3], {})) == [], "nobody says how many"


def test_min_insync_replicas_waits_for_more_replicas_and_goes_before_fewer() -> None:
    key = "min.insync.replicas"
    three = topic(replicas=3, config={key: "3"})
    assert plan(three, ExistingTopic(2, 2, {key: "1"})) == [ChangeReplicas("flights", 3)]
    assert plan(three, ExistingTopic(2, 3, {key: "1"})) == [AlterConfig("flights", {key: "3"})]
    assert plan(topic(replicas=2, config={key: "2"}), ExistingTopic(2, 3, {key: "3"})) == [
        AlterConfig("flights", {key: "2"}),
        ChangeReplicas("flights", 2),
    ]
    assert plan(topic(replicas=3, config={key: "2"}), ExistingTopic(2, 2, {key: "1"})) == [
        AlterConfig("flights", {key: "2"}),
        ChangeReplicas("flights", 3),
    ]


class TestManifestFiles:
    def test_the_example_is_what_the_demo_needs(self) -> None:
        manifest = load_manifest(EXAMPLE)
        cluster = choose_cluster(manifest)
        spec = manifest.topics_of(cluster.name)[0].spec
        assert cluster.spec.brokers == 3
        assert (spec.topic_name, spec.partitions, spec.replicas) == ("flights", 6, 3)
        assert spec.config == {"min.insync.replicas": "2", "retention.ms": "-1"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: [", "x.yaml: line 1 is not valid YAML"),
            ("a: 1\na: 2", "x.yaml: line 2 is not valid YAML: the key 'a' appears twice"),
            ("a: !!python/object:os.system {}", "x.yaml: line 1 is not valid YAML"),
            ("a: \x00", "x.yaml: is not valid YAML"),
            ("? [1, 2]\n: x", "x.yaml: "),
            ("", "x.yaml: contains no object"),
        ],
    )
    def test_text_that_is_no_manifest_is_one_message(self, text: str, message: str) -> None:
        with pytest.raises(MisuseError) as caught:
            parse_text(text, "x.yaml")
        assert caught.value.message.startswith(message)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MisuseError, match=r"none\.yaml: cannot be read: No such file"):
            load_manifest(tmp_path / "none.yaml")

    def test_of_several_clusters_one_must_be_named(self) -> None:
        text = "\n---\n".join(
            f"{{apiVersion: penstock.dev/v1alpha1, kind: Cluster, metadata: {{name: {name}}}}}"
            for name in ("a", "b")
        )
        manifest = parse_text(text, "x.yaml")
        assert choose_cluster(manifest, "b").name == "b"
        with pytest.raises(MisuseError, match="contains 2 Clusters"):
            choose_cluster(manifest)
        with pytest.raises(MisuseError, match=r"contains no Cluster/c, only a, b"):
            choose_cluster(manifest, "c")


class TestSettings:
    def cluster(self, **config: str) -> Cluster:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return Cluster("c", ClusterSpec(brokers=3, config=settings, rack_names=("a", "b")))

    def test_each_setting_goes_to_the_process_that_knows_it(self) -> None:
        settings = settings_of(self.cluster(cache_bytes="1000000", broker_session_timeout_ms="900"))
        assert settings.broker == {"cache.bytes": "1000000"}
        assert settings.controller["broker.session.timeout.ms"] == "900"
        assert settings.controller["default.replication.factor"] == "3"

    def test_racks_are_given_in_turn(self) -> None:
        ports = Ports(1, 2)
        racks = [
            [
                part
                for part in broker_arguments(self.cluster(), i, Path("d"), ports, ports)
                if "rack" in part
            ]
            for i in range(3)
        ]
        assert racks == [["--rack=a"], ["--rack=b"], ["--rack=a"]]
        assert controller_arguments(self.cluster(), Path("d"), ports)[0] == "controller"

    def test_settings_no_process_knows_are_refused_all_at_once(self) -> None:
        with pytest.raises(ManifestError) as caught:
            check_settings(
                self.cluster(cache_byte="1", broker_session_timeout="5", cache_bytes="x"), "x.yaml"
            )
        lines = caught.value.message.splitlines()
        assert len(lines) == 3
        assert lines[0].startswith("x.yaml: Cluster/c: spec.config.cache.bytes cannot be used")
        assert "a broker setting is called 'cache.bytes'" in lines[1]
        assert "did you mean 'broker.session.timeout.ms'?" in lines[2]

    def test_settings_that_are_not_possible_together_are_refused(self) -> None:
        impossible = self.cluster(
            broker_session_timeout_ms="1000", broker_heartbeat_interval_ms="900"
        )
        with pytest.raises(ManifestError, match="at least twice"):
            check_settings(impossible, "x.yaml")
        check_settings(
            self.cluster(broker_session_timeout_ms="200", broker_heartbeat_interval_ms="50"), "x"
        )


class TestRules:
    """Of the topic `flights`, by the manifest and as they are stored."""

    flights = Resource(Kind.TOPIC, "flights")
    read = Rule(principals=("cert:ada", "cert:bob"), operations=(Operation.READ,))
    write = Rule(principals=("cert:ada",), operations=(Operation.WRITE,))

    def test_rules_that_nobody_manages_are_left_alone(self) -> None:
        assert plan_access({self.flights: None}, {self.flights: (self.read,)}) == []

    def test_an_empty_list_removes_all(self) -> None:
        (step,) = plan_access({self.flights: ()}, {self.flights: (self.read,)})
        assert step == AlterAccess(self.flights, (self.read,), ())
        assert str(step) == (
            "topic flights: access: no longer allows cert:ada Read, no longer allows cert:bob Read"
        )

    def test_what_is_the_same_is_not_written(self) -> None:
        assert plan_access({self.flights: ()}, {}) == []
        assert plan_access({self.flights: (self.read,)}, {self.flights: (self.read,)}) == []

    def test_a_step_says_what_changes(self) -> None:
        (step,) = plan_access({self.flights: (self.write,)}, {self.flights: (self.read,)})
        assert str(step) == (
            "topic flights: access: allows cert:ada Write, no longer allows cert:ada Read, "
            "no longer allows cert:bob Read"
        )

    def test_rules_that_allow_the_same_are_written_all_the_same(self) -> None:
        stored = (self.read, self.write)
        (step,) = plan_access({self.flights: (self.write, self.read)}, {self.flights: stored})
        assert str(step) == "topic flights: access: the same in other words"
