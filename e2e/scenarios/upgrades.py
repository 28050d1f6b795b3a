"""From one release to another and back, with the images and charts of former releases."""

import time
from pathlib import Path

from e2e.harness import images, releases
from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CHART, CLUSTERS
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.operations import all_uids

MIXED = "mixed"
"""In place of the name of one build's images: the scenario that comes next installs anew."""


def chart(release: str) -> Path:
    """With its CRDs. `release` N: this one's."""
    return CHART if release == "N" else releases.tree(release) / "charts/penstock"


def install(stage: Stage, release: str) -> None:
    """By helm: CRDs, operator, and the brokers' image for new Clusters."""
    tag = images.TAG if release == "N" else images.former(release)[0].version
    began = time.monotonic()
    stage.penstock.install(
        MIXED, options=(f"--set=image.tag={tag},brokerImage.tag={tag}",), chart=chart(release)
    )
    stage.say(f"operator of {release} installed: {time.monotonic() - began:.0f} s")


def specs(stage: Stage) -> dict[str, Manifest]:
    """What users have asked for, by kind and name."""
    found = stage.penstock.streams.list("clusters.penstock.dev,topics.penstock.dev")
    return {f"{each['kind']}/{each['metadata']['name']}": each["spec"] for each in found}


def offered(stage: Stage) -> Manifest:
    """What the Cluster's status says of an upgrade; {} if it says nothing."""
    found = stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster)
    upgrade: Manifest = found["status"].get("upgrade", {})
    return upgrade if upgrade.get("available") else {}


@scenario(
    "An operator two releases newer takes over: no pod restarts, the upgrade is offered",
    fresh=True, releases=("N-2",),
)  # fmt: skip
def operator_of_another_release(stage: Stage) -> None:
    penstock, old = stage.penstock, images.former("N-2")[0].tag
    penstock.remove()
    install(stage, "N-2")
    penstock.create()
    with stage.workload(image=old) as running:
        running.started()
        before, asked = all_uids(stage), specs(stage)
        install(stage, "N")
        wait_until("an upgrade is offered", lambda: offered(stage), 120.0)
        penstock.wait_settled()
        running.goes_on()
        stage.expect(all_uids(stage) == before, "a pod was restarted")
        stage.expect(specs(stage) == asked, f"specs were {asked}, and are {specs(stage)}")
        upgrade = offered(stage)
        wanted = (old, images.BROKER.tag)
        stage.expect((upgrade["from"], upgrade["to"]) == wanted, f"offered: {upgrade}")
