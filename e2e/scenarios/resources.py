"""Topics and manifests: what is created, altered, adopted, healed, deleted and refused."""

import time

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import condition
from e2e.harness.process import CommandError, wait_until
from e2e.harness.scenario import Stage, scenario

TOPICS = "topics.penstock.dev"
API = "penstock.dev/v1alpha1"
MANY = 200


def cluster(name: str, **spec: object) -> Manifest:
    return {
        "apiVersion": API,
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": {"brokers": 3, **spec},
    }


def topic(name: str, **spec: object) -> Manifest:
    return {
        "apiVersion": API,
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {"cluster": "flights", "partitions": 3, "replicas": 3, **spec},
    }


@scenario("A Topic is created, altered, healed, adopted and deleted", short=True)
def topic_life(stage: Stage) -> None:
    penstock, streams = stage.penstock, stage.penstock.streams
    streams.apply(topic("orders", deletionPolicy="Delete", config={"retention.ms": 1_000_000}))
    streams.wait_condition(TOPICS, "orders")
    stage.expect(len(penstock.partitions("orders")) == 3, "three partitions were asked for")
    streams.apply(topic("orders", partitions=6, deletionPolicy="Delete",
                        config={"retention.ms": 2_000_000}))  # fmt: skip
    wait_until("six partitions", lambda: len(penstock.partitions("orders")) == 6, 60.0)
    streams.wait_condition(TOPICS, "orders")
    penstock.cli("topic", "alter", "orders", "--set", "retention.ms=5")
    wait_until(
        "the setting is healed",
        lambda: "2000000" in penstock.cli("topic", "describe", "orders", "-o", "json"),
        60.0,
    )
    penstock.cli("topic", "create", "by-hand", "--partitions=2", "--replicas=3")
    streams.apply(topic("by-hand", partitions=2))
    streams.wait_condition(TOPICS, "by-hand")
    streams.delete(TOPICS, "orders", "by-hand")
    names = penstock.cli("topic", "list", "-o", "json")
    stage.expect('"orders"' not in names, "deletionPolicy Delete left the topic there")
    stage.expect('"by-hand"' in names, "deletionPolicy Retain deleted the topic")
    penstock.cli("topic", "delete", "by-hand", "--yes")


@scenario("Two hundred Topics in one apply")
def many_topics(stage: Stage) -> None:
    """The limit: all Ready within 30 seconds."""
    streams = stage.penstock.streams
    names = [f"many-{number}" for number in range(MANY)]
    began = time.monotonic()
    topics = [topic(name, partitions=1, deletionPolicy="Delete") for name in names]
    for each in topics:
        each["metadata"]["labels"] = {"made-by": stage.name}
    streams.apply(topics)
    stage.measure("applied", time.monotonic() - began)

    def there() -> list[Manifest]:
        return [each for each in streams.list(TOPICS)
                if each["metadata"]["name"].startswith("many-")]  # fmt: skip

    def ready() -> int:
        return sum(condition(each, "Ready").get("status") == "True" for each in there())

    wait_until("all Ready", lambda: ready() == MANY, 120.0)
    stage.measure(f"{MANY} topics Ready", time.monotonic() - began, limit=30.0)
    began = time.monotonic()
    streams.delete_labelled(f"apis/{API}", "topics", f"made-by={stage.name}")
    wait_until("all gone", lambda: not there(), 120.0)
    stage.measure(f"{MANY} topics deleted", time.monotonic() - began)


BAD: list[tuple[Manifest, str]] = [
    (topic("bad", config={"retention.mss": 1}), "retention.mss"),
    (topic("bad", replicas=0), "replicas"),
    (topic("bad", topicName="no spaces"), "topicName"),
    (topic("bad", config={"min.insync.replicas": 5}), "min.insync.replicas"),
    (
        {"apiVersion": API, "kind": "Cluster", "metadata": {"name": "bad"},
         "spec": {"brokers": 2, "config": {"default.replication.factor": 3}}},
        "default.replication.factor",
    ),
    (
        {"apiVersion": API, "kind": "Cluster", "metadata": {"name": "bad"},
         "spec": {"brokers": "many"}},
        "brokers",
    ),
]  # fmt: skip


@scenario("The API server refuses bad manifests, and says what to correct", short=True)
def bad_manifests(stage: Stage) -> None:
    streams = stage.penstock.streams
    for manifest, words in BAD:
        try:
            streams.apply(manifest)
        except CommandError as error:
            stage.expect(words in error.output, f"{words!r} is not said: {error.output}")
            continue
        stage.expect(False, f"accepted: {manifest}")
    streams.apply(topic("immutable"))
    for change, words in (({"partitions": 1}, "shrink"), ({"cluster": "other"}, "cluster")):
        try:
            streams.patch(TOPICS, "immutable", {"spec": change})
        except CommandError as error:
            stage.expect(words in error.output, f"{words!r} is not said: {error.output}")
            continue
        stage.expect(False, f"accepted: {change}")
    streams.delete(TOPICS, "immutable")
    streams.delete(TOPICS, "bad")
