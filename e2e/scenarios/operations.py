"""What an administrator does on a working day: settings, images, sizes, drains."""

import json
import time

from e2e.harness import images
from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS, Penstock, condition, is_settled, pod_ready
from e2e.harness.plugin import STREAMS_CLUSTER, plugin
from e2e.harness.process import CommandError, run, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.resources import TOPICS, topic

ROLL_S = 300.0
MISSING_IMAGE = "penstock-broker:does-not-exist"
DRAIN_REASONS = {"Draining", "ProvingEmpty"}


def uids(stage: Stage) -> dict[str, str]:
    """Of the brokers' pods, by name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stage.penstock.broker_pods()}


def rolled(stage: Stage, before: dict[str, str]) -> bool:
    """Every pod is another one, and the Cluster is Ready and settled."""
    now = uids(stage)
    found = stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster)
    return (
        len(now) == len(before)
        and not set(now.values()) & set(before.values())
        and is_settled(found)
    )


@scenario("A setting changes and the brokers restart one by one", short=True)
def config_rolled(stage: Stage) -> None:
    """The limit: no write waits longer than a second, and no error reaches a client."""
    penstock, load = stage.penstock, stage.load(partitions=3, rate=3_000)
    with stage.workload(load) as running:
        running.started()
        before = uids(stage)
        began = time.monotonic()
        penstock.streams.patch(
            CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 40_000_000}}}
        )
        wait_until("brokers restarted", lambda: rolled(stage, before), ROLL_S)
        stage.measure("three brokers restarted", time.monotonic() - began)
        running.goes_on()
        verdict = running.finish()
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s, limit=1.0)
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


def restore(stage: Stage, patch: Manifest) -> None:
    """Back to the example's spec, rolled."""
    before = uids(stage)
    stage.penstock.streams.patch(CLUSTERS, stage.penstock.cluster, patch)
    wait_until("brokers as before", lambda: rolled(stage, before), ROLL_S)


@scenario("A bad image stops before the first broker and is reverted, a good one is rolled out")
def image_changed(stage: Stage) -> None:
    """Controllers come first, one beside the others: no broker is touched, the status says why."""
    penstock, load = stage.penstock, stage.load()
    newer = f"{images.BROKER.tag}-newer"
    run("docker", "tag", images.BROKER.tag, newer)
    run("kind", "load", "docker-image", newer, "--name", "penstock-e2e", timeout_s=300.0)
    with stage.workload(load) as running:
        running.started()
        before = uids(stage)
        set_image(stage, MISSING_IMAGE)
        wait_until("the missing image is named", lambda: names_missing_image(stage), 120.0)
        running.goes_on()
        ready = [pod for pod in penstock.controller_pods() if pod_ready(pod)]
        stage.expect(len(ready) == 2, f"{len(ready)} controllers are ready, two were before")
        set_image(stage, None)
        penstock.wait_settled(ROLL_S)
        stage.expect(uids(stage) == before, "a broker was restarted")
        before = uids(stage)
        began = time.monotonic()
        set_image(stage, newer)
        wait_until("the newer image runs", lambda: rolled(stage, before), ROLL_S)
        stage.measure("three brokers on another image", time.monotonic() - began)
        running.goes_on()
    restore(stage, {"spec": {"image": None}})


@scenario("The operator is upgraded: nothing restarts before somebody says so")
def operator_upgraded(stage: Stage) -> None:
    """Another default image, as a newer chart has; then what is offered is approved."""
    penstock, load = stage.penstock, stage.load()
    newer = f"{images.BROKER.tag}-next"
    run("docker", "tag", images.BROKER.tag, newer)
    run("kind", "load", "docker-image", newer, "--name", "penstock-e2e", timeout_s=300.0)
    with stage.workload(load) as running:
        running.started()
        before = pod_uids(penstock)
        penstock.install(
            stage.images, options=(f"--set=brokerImage.tag={newer.partition(':')[2]}",)
        )
        upgrade = wait_until("an upgrade is offered", lambda: offered(penstock), 120.0)
        running.goes_on()
        stage.expect(pod_uids(penstock) == before, "a pod was restarted")
        stage.expect(upgrade["to"] == newer, f"another image is offered: {upgrade}")
        brokers, began = uids(stage), time.monotonic()
        penstock.streams.patch(CLUSTERS, penstock.cluster, approval(upgrade))
        wait_until("the newer image runs", lambda: rolled(stage, brokers), ROLL_S)
        stage.measure("three brokers upgraded", time.monotonic() - began)
        stage.expect(not offered(penstock), "something is still offered")
        running.goes_on()
        verdict = running.finish()
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s)
    penstock.install(stage.images)
    upgrade = wait_until("the former image is offered", lambda: offered(penstock), 120.0)
    restore(stage, approval(upgrade))


def servers(penstock: Penstock) -> list[Manifest]:
    """Pods of brokers and controllers that are not on their way out."""
    every = [*penstock.broker_pods(), *penstock.controller_pods()]
    return [pod for pod in every if "deletionTimestamp" not in pod["metadata"]]


def pod_uids(penstock: Penstock) -> set[str]:
    """Of brokers and controllers."""
    return {pod["metadata"]["uid"] for pod in servers(penstock)}


def offered(penstock: Penstock) -> Manifest:
    """What the Cluster's status says of an upgrade; {} if there is none."""
    found = penstock.streams.get(CLUSTERS, penstock.cluster)
    upgrade: Manifest = found["status"].get("upgrade", {})
    return upgrade if upgrade.get("available") else {}


def approval(upgrade: Manifest) -> Manifest:
    """A patch that takes what is offered."""
    return {"metadata": {"annotations": {"penstock.dev/approve": upgrade["plan"]}}}


def set_image(stage: Stage, image: str | None) -> None:
    """None: the operator's own."""
    stage.penstock.streams.patch(CLUSTERS, stage.penstock.cluster, {"spec": {"image": image}})


def names_missing_image(stage: Stage) -> bool:
    """The Cluster says that nobody has it."""
    return says(stage, MISSING_IMAGE)


def says(stage: Stage, words: str) -> bool:
    """Whether a condition of the Cluster has these words."""
    found = stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster)
    return words in str(found["status"].get("conditions"))


@scenario("Three brokers become four, which get equal shares, and three again", short=True)
def scaled(stage: Stage) -> None:
    """The limit: moves of the spread and of the drain hold up no write for longer than a second."""
    penstock, load = stage.penstock, stage.load()
    streams = penstock.streams
    with stage.workload(load) as running:
        running.started()
        began = time.monotonic()
        streams.call("scale", f"{CLUSTERS}/{penstock.cluster}", "--replicas=4")
        penstock.wait_brokers(4)
        stage.measure("fourth broker serves", time.monotonic() - began)
        seen = penstock.wait_settled(240.0)
        stage.measure("fourth broker has its share", time.monotonic() - began)
        shares = {each["id"]: each["replicas"] for each in seen["status"]["brokerStatuses"]}
        stage.expect(shares[3] >= sum(shares.values()) // 4 - 1, f"replicas: {shares}")
        mine = {each for one in penstock.partitions(load.topic) for each in one.replicas}
        stage.say(f"replicas by broker: {shares}; {load.topic} is on {sorted(mine)}")
        running.goes_on()
        penstock.cli("topic", "create", "on-four", "--partitions=12", "--replicas=3")
        used = {each for one in penstock.partitions("on-four") for each in one.replicas}
        stage.expect(3 in used, f"new partitions are on {sorted(used)}, not on broker 3")
        less = {"brokers": 3, "storage": {"whenScaledDown": "Delete"}}
        streams.patch(CLUSTERS, penstock.cluster, {"spec": less})
        began = time.monotonic()
        seen = streams.wait(
            CLUSTERS,
            penstock.cluster,
            lambda found: condition(found, "Reconciling").get("reason") in DRAIN_REASONS,
        )
        stage.say(condition(seen, "Reconciling")["message"])
        drains = seen["status"].get("drains", [])
        stage.expect([each["broker"] for each in drains] == [3], f"drains: {drains}")
        wait_until("three brokers", lambda: len(penstock.broker_pods()) == 3, 180.0)
        stage.measure("fourth broker emptied and gone", time.monotonic() - began)
        kept = {f"data-{penstock.cluster}-broker-{number}" for number in range(3)}
        wait_until("its claim is gone", lambda: _claims(stage) == kept, 60.0)
        retained = {"spec": {"storage": {"whenScaledDown": None}}}
        streams.patch(CLUSTERS, penstock.cluster, retained)
        left = penstock.partitions("on-four")
        stage.expect(all(3 not in one.replicas for one in left), "a replica is on broker 3")
        stage.expect(all(len(one.replicas) == 3 for one in left), "a replica is missing")
        penstock.cli("topic", "delete", "on-four", "--yes")
        running.goes_on()
        verdict = running.finish()
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s, limit=1.0)
    penstock.wait_ready()


def _claims(stage: Stage) -> set[str]:
    found = stage.penstock.streams.list("pvc", f"penstock.dev/cluster={stage.penstock.cluster}")
    return {each["metadata"]["name"] for each in found}


@scenario("A Topic gets a third replica and loses it again, while it is written", short=True)
def factor_changed(stage: Stage) -> None:
    """Then a factor beyond the brokers, and one that somebody else has set.

    The limit: no write waits longer than a second.
    """
    penstock, load = stage.penstock, stage.load(replicas=2)
    streams, name = penstock.streams, "factor"

    def has(replicas: int) -> None:
        began = time.monotonic()
        streams.patch(TOPICS, name, {"spec": {"replicas": replicas}})
        wait_until(f"{replicas} replicas", lambda: _factors(stage, load.topic) == {replicas}, 180.0)
        stage.measure(f"{replicas} replicas of every partition", time.monotonic() - began)
        seen = streams.wait_condition(TOPICS, name)
        stage.expect(seen["status"]["replicas"] == replicas, f"status: {seen['status']}")

    with stage.workload(load) as running:
        running.started()
        kept = {"retention.ms": -1}
        streams.apply(
            topic(name, topicName=load.topic, partitions=load.partitions, replicas=2, config=kept)
        )
        streams.wait_condition(TOPICS, name)
        has(3)
        running.goes_on()
        has(2)
        running.goes_on()
        streams.patch(TOPICS, name, {"spec": {"replicas": 5}})
        seen = streams.wait(
            TOPICS, name, lambda found: condition(found, "Stalled").get("status") == "True"
        )
        message = condition(seen, "Stalled")["message"]
        stage.expect("is 5, but Cluster/flights has 3 brokers" in message, message)
        stage.expect(_factors(stage, load.topic) == {2}, "something moved")
        has(2)
        penstock.cli("topic", "alter", load.topic, "--replicas=3", "--yes")
        wait_until("the factor is healed", lambda: _factors(stage, load.topic) == {2}, 180.0)
        streams.wait_condition(TOPICS, name)
        running.goes_on()
        streams.delete(TOPICS, name)
        verdict = running.finish()
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s, limit=1.0)
    penstock.wait_ready()


def _factors(stage: Stage, name: str) -> set[int]:
    """How many replicas the partitions of a topic have, or move to."""
    moving = json.loads(stage.penstock.cli("partitions", "status", "-o", "json"))["moves"]
    own = [each for each in moving if each["partition"].rpartition("/")[0] == name]
    targets = {len(each["target"]) for each in own if each["target"]}
    return targets | {len(one.replicas) for one in stage.penstock.partitions(name)}


@scenario("A node is drained and rejoins")
def node_drained(stage: Stage) -> None:
    """Evictions go through the disruption budget, so writes continue throughout."""
    drain_a_node(stage, leaders_first=False)


@scenario("Leaderships leave a node by kubectl penstock drain, and the node is drained")
def node_without_leaders_drained(stage: Stage) -> None:
    """Clients miss followers only; leaderships return when the drain is taken back."""
    drain_a_node(stage, leaders_first=True)


def drain_a_node(stage: Stage, *, leaders_first: bool) -> None:
    """Under load; `leaders_first`: no broker on it leads any more when evictions begin."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        node = stage.nodes.of_pod(penstock.pod(penstock.leader(load.topic)), penstock.streams)
        if node not in stage.nodes.workers():
            node = stage.nodes.workers()[0]
        if leaders_first:
            left = json.loads(plugin("drain", *STREAMS_CLUSTER, "--node", node, "-o", "json"))
            stage.expect(
                left and not any(one["leads"] for one in left), f"{node} still leads: {left}"
            )
            running.goes_on()
        stage.say(f"draining {node}")
        began = time.monotonic()
        try:
            stage.nodes.drain(node, 90.0)
        except CommandError as error:
            # Volumes of the node keep its brokers there: the budget lets one go at a time.
            stage.expect("disruption budget" in error.output, str(error))
        stage.measure("drained, or held by the budget", time.monotonic() - began)
        running.goes_on()
        stage.nodes.uncordon(node)
        penstock.wait_brokers(3)
        penstock.wait_in_sync(load.topic)
        if leaders_first:
            plugin("drain", *STREAMS_CLUSTER, "--node", node, "--cancel")
        running.goes_on()
        verdict = running.finish()
    limit_s = 0.3 if leaders_first else None
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s, limit=limit_s)
    penstock.wait_ready()
