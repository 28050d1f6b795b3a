"""Volumes that are lost with their nodes, or that nobody wants: replaced, or kept with words."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS, condition, pod_ready
from e2e.harness.process import CommandError, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.lifecycle import volume

REQUEST = "penstock.dev/replace-volume"
RECORDS = 2_000
GONE_S = 300.0
"""How long a Node object has to be gone before its volume counts as lost."""


@scenario("Two nodes are lost with their volumes: nothing is replaced; one, and its volume is")
def volume_lost(stage: Stage) -> None:
    """Both wait for a person, as the last copies are on one broker. Both controllers are lost with
    them, and a new one waits for a majority of the brokers. When one node is back, the other's
    broker gets a volume elsewhere, while records are written."""
    penstock, load = stage.penstock, stage.load()
    with stage.topic("-kept", partitions=3) as kept:
        # The load deletes it at its end, and cannot create it: with two brokers, nobody can create
        # a topic of three replicas.
        penstock.cli("topic", "create", load.topic, "--partitions=6", "--replicas=3")
        penstock.produce_numbers(kept, RECORDS)
        penstock.wait_in_sync(kept)
        lost, back = stage.nodes.last_to_return()
        broker, other = _broker_on(stage, lost), _broker_on(stage, back)
        claims = {one: _claim(stage, one) for one in (broker, other)}
        _put_controllers_on(stage, {lost, back})
        for node in (lost, back):
            stage.say(f"{node} is lost")
            stage.nodes.lose(node)
        began = time.monotonic()
        said = _wait_said(stage, "VolumeLost", "is lost, too", GONE_S + 180.0)
        stage.measure("a second lost node is reported", time.monotonic() - began)
        way_out = "bring a node back" in said and "controller.takeover.min.brokers" in said
        stage.expect(way_out, f"no way out is shown: {said}")
        kept_claims = {one: _claim(stage, one) for one in (broker, other)}
        stage.expect(kept_claims == claims, "a volume was replaced although two are lost")

        penstock.end_tool()  # its node may be one of them
        stage.nodes.start(back, 180.0)
        # Two are enough for the load; the third one may have its new volume already.
        wait_until("two brokers", lambda: penstock.ready_brokers() >= 2, 240.0)
        with stage.workload(load) as running:
            running.started()
            began = time.monotonic()
            wait_until(
                "a new claim", lambda: _claim(stage, broker) not in {"", claims[broker]}, 180.0
            )
            penstock.wait_brokers(3, 240.0)
            for topic in (kept, load.topic):
                penstock.wait_in_sync(topic, 240.0)
            stage.measure("volume replaced, all replicas in sync", time.monotonic() - began)
            running.goes_on()
        stage.expect(_claim(stage, other) == claims[other], "the volume that came back is another")
        _expect_records(stage, kept)

        stage.nodes.start(lost, 180.0)
        _bring_home(stage, broker, lost)
        penstock.wait_in_sync(kept, 240.0)
        _expect_records(stage, kept)
    penstock.wait_settled(240.0)


@scenario(
    "A new volume by request: refused for the only holder, made where others have all records"
)
def volume_replaced(stage: Stage) -> None:
    penstock, load = stage.penstock, stage.load()
    with stage.topic("-only", partitions=1, replicas=1) as only:
        penstock.produce_numbers(only, RECORDS)
        broker = penstock.leader(only)
        claim = _claim(stage, broker)
        with _down(stage, broker):
            _ask(stage, str(broker))
            said = _wait_said(stage, "ReplacingVolume", f"{only}-0", 60.0)
            stage.say(said)
            bound = _requested(stage)
            stage.expect(bound == f"{broker}@{claim}", f"the request is for {bound!r}")
            stage.expect(_claim(stage, broker) == claim, "the only copy was deleted")
            _ask(stage, None)
        penstock.wait_brokers(3, 240.0)
        penstock.leader(only)
        _expect_records(stage, only)
    penstock.wait_settled(240.0)
    with stage.workload(load) as running:
        running.started()
        penstock.wait_in_sync(load.topic)
        began = time.monotonic()
        with _down(stage, broker):
            _ask(stage, str(broker))
            wait_until("the claim is gone", lambda: _claim(stage, broker) != claim, 60.0)
        penstock.wait_brokers(3, 240.0)
        penstock.wait_in_sync(load.topic, 240.0)
        stage.measure("volume replaced, all replicas in sync", time.monotonic() - began)
        running.goes_on()
    stage.expect(not _requested(stage), f"the request is still there: {_requested(stage)!r}")
    penstock.wait_settled(240.0)


@scenario("A volume is restored from an older copy: nothing of it is trusted, no record is lost")
def volume_restored(stage: Stage) -> None:
    """Copied while its broker is stopped. It starts twice more than the copy knows of."""
    penstock, load = stage.penstock, stage.load()
    broker, pod = 1, stage.penstock.pod(1)
    node = stage.nodes.of_pod(pod, penstock.streams)
    data = f"{volume(stage, f'data-{pod}')}/data"
    with stage.workload(load) as running:
        running.started()
        penstock.wait_in_sync(load.topic)
        with _down(stage, broker):
            stage.nodes.shell(node, f"cp -a {data} {data}.copy", 120.0)
        penstock.wait_brokers(3, 240.0)
        penstock.wait_in_sync(load.topic, 240.0)
        running.goes_on()
        with _down(stage, broker):
            stage.nodes.shell(node, f"rm -rf {data} && mv {data}.copy {data}", 120.0)
        began = time.monotonic()
        said = wait_until("the copy is refused", lambda: _refusal(stage, pod), 240.0)
        stage.say(said)
        penstock.wait_brokers(3, 240.0)
        penstock.wait_in_sync(load.topic, 240.0)
        stage.measure("volume restored, all replicas in sync", time.monotonic() - began)
        running.goes_on()
    penstock.wait_settled(240.0)


def _refusal(stage: Stage, pod: str) -> str:
    """What the run before the present one said of its volume; "": nothing yet."""
    try:
        found = stage.penstock.streams.logs(pod, previous=True)
    except CommandError:
        return ""  # it has not ended
    lines = (line for line in found.splitlines() if "restored from an older copy" in line)
    return next(lines, "")


@contextmanager
def _down(stage: Stage, broker: int) -> Iterator[None]:
    """The broker has no node that takes its pod while the block runs, and then its own again:
    other scenarios want a broker on each."""
    penstock, pod = stage.penstock, stage.penstock.pod(broker)
    home = stage.nodes.of_pod(pod, penstock.streams)
    with stage.nodes.cordoned(*(set(stage.nodes.names()) - {home})):
        with stage.nodes.cordoned(home):
            uid = penstock.streams.get("pod", pod)["metadata"]["uid"]
            penstock.streams.delete("pod", pod, wait_s=None)
            penstock.wait_replaced(pod, uid)
            yield
        penstock.streams.wait(
            "pod", pod, lambda found: found["spec"].get("nodeName") == home, 120.0
        )


def _put_controllers_on(stage: Stage, nodes: set[str]) -> None:
    """Those that are elsewhere are made again on one of these nodes."""
    penstock, others = stage.penstock, set(stage.nodes.names()) - nodes
    with stage.nodes.cordoned(*others):
        for pod in penstock.controller_pods():
            if pod["spec"].get("nodeName") in others:
                penstock.streams.delete("pod", pod["metadata"]["name"])

        def settled() -> bool:
            pods = penstock.controller_pods()
            on = {pod["spec"].get("nodeName") for pod in pods}
            return on <= nodes and all(pod_ready(pod) for pod in pods)

        wait_until("controllers on the nodes that get lost", settled, 120.0)


def _bring_home(stage: Stage, broker: int, node: str) -> None:
    """Its volume is made again on a node that is back: other scenarios want a broker on each."""
    penstock, before = stage.penstock, _claim(stage, broker)
    pod = penstock.pod(broker)
    uid = penstock.streams.get("pod", pod)["metadata"]["uid"]
    with stage.nodes.cordoned(*(set(stage.nodes.names()) - {node})):
        penstock.wait_settled(240.0)
        _ask(stage, str(broker))
        penstock.streams.delete("pod", pod, wait_s=None)
        penstock.wait_replaced(pod, uid)
        wait_until("another claim", lambda: _claim(stage, broker) not in {"", before}, 120.0)
        penstock.wait_brokers(3, 240.0)
    on = stage.nodes.of_pod(pod, penstock.streams)
    stage.expect(on == node, f"{pod} is on {on}, not on {node}")


def _broker_on(stage: Stage, node: str) -> int:
    """The id of the broker on a node."""
    pods = [each for each in stage.penstock.broker_pods() if each["spec"].get("nodeName") == node]
    stage.expect(len(pods) == 1, f"one broker is on {node}, seen {len(pods)}")
    return int(pods[0]["metadata"]["name"].rpartition("-")[2])


def _claim(stage: Stage, broker: int) -> str:
    """The uid of a broker's claim; empty: it has none."""
    found = stage.penstock.streams.find("pvc", f"data-{stage.penstock.pod(broker)}")
    return "" if found is None else str(found["metadata"]["uid"])


def _ask(stage: Stage, request: str | None) -> None:
    asked: Manifest = {"metadata": {"annotations": {REQUEST: request}}}
    stage.penstock.streams.patch(CLUSTERS, stage.penstock.cluster, asked)


def _requested(stage: Stage) -> str:
    found = stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster)
    return str((found["metadata"].get("annotations") or {}).get(REQUEST, ""))


def _wait_said(stage: Stage, reason: str, words: str, deadline_s: float) -> str:
    """The Cluster's condition Stalled, once it is for this reason and has these words."""

    def said(found: Manifest) -> bool:
        stalled = condition(found, "Stalled")
        return stalled.get("reason") == reason and words in stalled.get("message", "")

    penstock = stage.penstock
    found = penstock.streams.wait(CLUSTERS, penstock.cluster, said, deadline_s)
    return str(condition(found, "Stalled")["message"])


def _expect_records(stage: Stage, topic: str) -> None:
    shown = json.loads(stage.penstock.cli("offsets", topic, "-o", "json"))
    rows = shown if isinstance(shown, list) else shown["partitions"]
    count = sum(int(each["latest"]) - int(each["earliest"]) for each in rows)
    stage.expect(count == RECORDS, f"{topic} has {count} records, {RECORDS} were written")
