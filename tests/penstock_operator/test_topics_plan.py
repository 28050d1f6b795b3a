"""What is done for Topics: nothing while one is paused, nor about settings nobody set on it."""

from typing import Any

from penstock.client.model import ClusterDescription, PartitionDescription, TopicDescription
from penstock.core.manifest.topics import AlterConfig
from penstock.kubernetes.names import PAUSED
from penstock_operator.brokers import facts_of
from penstock_operator.model import BrokerFacts, TopicResource
from penstock_operator.names import TOPIC_FINALIZER
from penstock_operator.plan.topics import PAUSED_REASON, plan_resources


def cluster(**config: str) -> dict[str, Any]:
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "c"},
        "spec": {"brokers": 3, "config": config},
    }


def resource(**metadata: Any) -> TopicResource:
    body = {
        "metadata": {"name": "t", "finalizers": [TOPIC_FINALIZER], **metadata},
        "spec": {"cluster": "c", "deletionPolicy": "Delete"},
        "status": {"topicId": "id"},
    }
    return TopicResource("t", body)


def answer(configs: dict[str, str], *inherited: str) -> BrokerFacts:
    """Of brokers that have the topic."""
    partition = PartitionDescription(0, 0, 1, (0, 1, 2), (0, 1, 2))
    topic = TopicDescription("t", "id", (partition,), configs, inherited=frozenset(inherited))
    described = ClusterDescription("id", 1, 1, True, (), 1, 1, 0, 0, 0)
    return facts_of(described, [topic], 2)


def test_a_paused_topic_that_is_deleted_keeps_its_topic_until_the_pause_ends() -> None:
    deleted: Any = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    paused = resource(**deleted, annotations={PAUSED: "true"})
    (plan,) = plan_resources([paused], cluster(), answer({}))
    assert (plan.finalizer, plan.delete, plan.steps) == (None, "", ())
    assert plan.wait is not None
    assert plan.wait.reason == PAUSED_REASON
    (gone,) = plan_resources([paused], None, None)
    assert gone.finalizer is False, "without a Cluster its namespace could not go"
    (ended,) = plan_resources([resource(**deleted)], cluster(), answer({}))
    assert (ended.finalizer, ended.delete) == (False, "id")


def test_the_default_of_controllers_that_have_not_restarted_is_not_reset_on_a_topic() -> None:
    """The spec says 5 now; they know only the former one."""
    newer = cluster(**{"retention.ms": "5000"})
    seen = answer({"retention.ms": "4000", "max.message.bytes": "2000"}, "retention.ms")
    (plan,) = plan_resources([resource()], newer, seen)
    assert plan.steps == (AlterConfig("t", {}, ("max.message.bytes",)),), "that was set by hand"
