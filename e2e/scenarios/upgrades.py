"""From one release to another and back, with the images and charts of former releases."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from e2e.harness import images, releases
from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CHART, CLUSTERS, OURS, Penstock, is_settled
from e2e.harness.process import CommandError, E2EError, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.harness.workload import Workload
from e2e.scenarios.operations import (
    ROLL_S,
    approval,
    offered,
    pod_uids,
    rolled,
    says,
    servers,
    uids,
)
from e2e.scenarios.resources import cluster
from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.transactions.config import TRANSACTIONS_TOPIC

MIXED = "mixed"
"""In place of the name of one build's images: whatever is played next installs from scratch."""
REFUSED = "has format 2, but this version reads 1"
"""What a controller of N-2 says of a Cluster that was finalized."""


ASKED_FOR: Final[Manifest] = {
    "brokers": 1,
    "config": {
        "cache.bytes": 40_000_000,
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "retention.ms": 86_400_000,
    },
    "storage": {"size": "1Gi"},
    "rack": {"topologyKey": "kubernetes.io/hostname"},
    "imagePullPolicy": "Never",
    "resources": {
        "requests": {"cpu": "50m", "memory": "200Mi"},
        "limits": {"memory": "1Gi"},
    },
    "controllers": {
        "replicas": 1,
        "resources": {"requests": {"cpu": "0.02"}, "limits": {"memory": "512Mi"}},
    },
    "external": {"type": "NodePort", "host": "brokers.example.com", "nodePort": 31_192},
    "pod": {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "streams", "operator": "Exists", "effect": "NoSchedule"}],
    },
    "allowFrom": {"metrics": [{"namespaceSelector": {}}]},
    "security": {
        "mode": "Strict",
        "oidc": [{"issuer": "https://issuer.example.com", "audience": "asked"}],
        "clientCertificates": {"caConfigMap": "nobody-yet", "nodePort": 31_292},
    },
    "access": [{"principals": ["serviceaccount:streams/*"], "role": "viewer"}],
    "quotas": [{"principals": ["*"], "produceBytesPerSecond": "10Mi", "streams": 100}],
    "deletionPolicy": "Delete",
}
"""Every part of a Cluster's spec that N-2 knows."""


def image(release: str) -> images.Image:
    """The brokers'. `release` N: this one's."""
    return images.BROKER if release == "N" else images.former(release)[0]


def chart(release: str) -> Path:
    """With its CRDs."""
    return CHART if release == "N" else releases.tree(release) / "charts/penstock"


def install(stage: Stage, release: str) -> None:
    """By helm: CRDs, operator, and the brokers' image that it offers."""
    tag, began = image(release).version, time.monotonic()
    stage.penstock.install(
        MIXED, options=(f"--set=image.tag={tag},brokerImage.tag={tag}",), chart=chart(release)
    )
    stage.say(f"operator of {release} installed: {time.monotonic() - began:.0f} s")


def wait_offered(penstock: Penstock, release: str) -> Manifest:
    """What the operator of this release offers to a Cluster."""

    def found() -> Manifest:
        upgrade = offered(penstock)
        return upgrade if upgrade.get("to") == image(release).tag else {}

    return wait_until(f"{release} is offered to {penstock.cluster}", found, 120.0)


def change_release(stage: Stage, release: str) -> None:
    """The operator, and then what it offers: controllers and brokers. No spec changes."""
    penstock, asked, before = stage.penstock, specs(stage), pod_uids(stage.penstock)
    install(stage, release)
    upgrade = wait_offered(penstock, release)
    penstock.wait_settled()
    stage.expect(pod_uids(penstock) == before, f"the operator of {release} restarted a pod")
    brokers, began = uids(stage), time.monotonic()
    penstock.streams.patch(CLUSTERS, penstock.cluster, approval(upgrade))
    wait_until(f"{release} runs", lambda: rolled(stage, brokers), ROLL_S)
    stage.measure(f"controllers and three brokers to {release}", time.monotonic() - began)
    found = running_images(penstock)
    stage.expect(found == {image(release).tag}, f"images: {found}")
    stage.expect(specs(stage) == asked, f"specs were {asked}, and are {specs(stage)}")


def specs(stage: Stage) -> dict[str, Manifest]:
    """What users have asked for, by kind and name."""
    found = stage.penstock.streams.list("clusters.penstock.dev,topics.penstock.dev")
    return {f"{each['kind']}/{each['metadata']['name']}": each["spec"] for each in found}


def set_and_restart(penstock: Penstock) -> None:
    """A changed setting: the former image runs with the template of this operator."""
    before = pod_uids(penstock)
    penstock.streams.patch(
        CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 44_000_000}}}
    )

    def restarted() -> bool:
        brokers = {pod["metadata"]["uid"] for pod in penstock.broker_pods()}
        return not before & brokers and is_settled(penstock.streams.get(CLUSTERS, penstock.cluster))

    wait_until(f"brokers of {penstock.cluster} restarted", restarted, ROLL_S)


def running_images(penstock: Penstock) -> set[str]:
    """Of brokers and controllers."""
    return {each["image"] for pod in servers(penstock) for each in pod["spec"]["containers"]}


def replicas(stage: Stage, *topics: str) -> dict[str, list[list[int]]]:
    """Where those of these topics are, and of what groups and transactions store."""
    every = (*topics, OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
    return {name: [one.replicas for one in stage.penstock.partitions(name)] for name in every}


@scenario(
    "An operator two releases newer takes over: no pod restarts, the upgrade is offered",
    fresh=True, releases=("N-2",),
)  # fmt: skip
def operator_of_another_release(stage: Stage) -> None:
    """Of three Clusters: one with defaults, one in plaintext, one with all that N-2 knows."""
    penstock, old = stage.penstock, image("N-2").tag
    penstock.remove()
    install(stage, "N-2")
    penstock.create()
    plaintext = {"security": {"mode": "Disabled"}}
    penstock.streams.apply(
        [cluster("plain", brokers=1, **plaintext), cluster("asked", **ASKED_FOR)]
    )
    every = [penstock, penstock.other("plain"), penstock.other("asked")]
    for one in every:
        one.wait_settled(ROLL_S)
    with stage.workload(image=old) as running:
        running.started()
        before, asked = [pod_uids(one) for one in every], specs(stage)
        install(stage, "N")
        for one in every:
            upgrade = wait_offered(one, "N")
            stage.expect(upgrade["from"] == old, f"offered: {upgrade}")
            one.wait_settled()
        running.goes_on()
        stage.expect([pod_uids(one) for one in every] == before, "a pod was restarted")
        stage.expect(specs(stage) == asked, f"specs were {asked}, and are {specs(stage)}")
        for one in every:
            began = time.monotonic()
            set_and_restart(one)
            stage.measure(f"brokers of {one.cluster} restarted", time.monotonic() - began)
            found = running_images(one)
            stage.expect(found == {old}, f"a setting changed the image of {one.cluster}: {found}")
        running.goes_on()


def target(stage: Stage, topic: str) -> list[int]:
    """Brokers for its partition 0, of two replicas: another one in the place of the second."""
    first, second = stage.penstock.partitions(topic)[0].replicas
    return [first, 3 - first - second]


def move(stage: Stage, topic: str) -> None:
    """A replica, to where it was not."""
    wanted = target(stage, topic)
    stage.penstock.cli("partitions", "move", f"{topic}/0", f"--to={wanted[0]},{wanted[1]}", "--yes")

    def moved() -> bool:
        left = json.loads(stage.penstock.cli("partitions", "status", "-o", "json"))["moves"]
        return stage.penstock.partitions(topic)[0].replicas == wanted and not left

    wait_until(f"{topic}/0 has moved to {wanted}", moved, 120.0)


def refused_move(stage: Stage, topic: str) -> None:
    """Of a Cluster that is not finalized."""
    try:
        move(stage, topic)
    except CommandError as error:
        stage.expect("cluster finalize" in error.output, f"not refused for its format: {error}")
    else:
        raise E2EError(f"{topic} was moved, and the Cluster is not finalized")


def refused_release(stage: Stage) -> None:
    """N-2, which cannot read what is stored now: its operator gives its image to everybody, its
    first controller says so, and nothing else ends. This operator takes it back, as its plan was
    approved before."""
    penstock, before = stage.penstock, pod_uids(stage.penstock)
    install(stage, "N-2")
    wait_until("a controller of N-2 is refused", lambda: says(stage, REFUSED), 180.0)
    stage.expect(before <= pod_uids(penstock), f"{REFUSED}, and a pod was replaced")
    install(stage, "N")
    penstock.wait_settled(ROLL_S)
    wait_until("the pods are those of before", lambda: pod_uids(penstock) == before, 60.0)


@contextmanager
def old_clients(stage: Stage) -> Iterator[tuple[Workload, Workload]]:
    """Of N-2: a group that reads what others write, and producers with transactions."""
    load = stage.load(rate=1_000, partitions=3, group=OURS + "old-readers", members=2)
    whole = stage.load(topic=f"{load.topic}-whole", rate=500, partitions=3, transactions=True)
    old = image("N-2").tag
    with (
        stage.workload(load, image=old) as read,
        stage.workload(whole, image=old) as written,
    ):
        for each in (read, written):
            each.started()
        yield read, written


@scenario(
    "Past a release, one back and forth again, finalized: old clients do not notice",
    fresh=True, releases=("N-2", "N-1"),
)  # fmt: skip
def releases_changed(stage: Stage) -> None:
    """Nothing moves before it is finalized. Then N-1, which reads format 2, may still come back;
    N-2 is refused before the first broker."""
    penstock = stage.penstock
    penstock.remove()
    install(stage, "N-2")
    penstock.create()
    with old_clients(stage) as loads, stage.topic("-move", partitions=1, replicas=2) as idle:
        topics = [each.topic for each in loads] + [idle]
        before = replicas(stage, *topics)
        for release in ("N", "N-1", "N"):
            change_release(stage, release)
            for each in loads:
                each.goes_on()
            refused_move(stage, idle)
            stage.expect(replicas(stage, *topics) == before, "a replica was moved")
        penstock.cli("cluster", "finalize")
        move(stage, idle)
        for release in ("N-1", "N"):
            change_release(stage, release)
            for each in loads:
                each.goes_on()
            move(stage, idle)
        refused_release(stage)
        verdicts = []
        for each in loads:
            each.goes_on()
            verdicts.append(each.finish())
            gap_s = verdicts[-1].partition_write_gap_s
            stage.measure(f"longest write gap of a partition of {each.topic}", gap_s)
        read, written = (each.figures for each in verdicts)
        stage.expect(read["delivered"] >= read["in_log"], f"the group did not get all: {read}")
        ended = written["transactions_committed"], written["transactions_aborted"]
        stage.expect(all(ended), f"{ended} transactions were committed, and aborted")
