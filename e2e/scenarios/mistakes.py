"""What is wrong with a Cluster holds up one track: volumes grow and brokers come back."""

import time
from dataclasses import replace

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS, condition
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.resources import cluster

WRONG = "mistaken"
READY_S = 240.0
GROWS = "grows"
"""A class like the nodes' own, whose claims may grow. Nothing resizes the folder behind one, which
nobody needs: the claim shows what the operator asked for."""


@scenario("A refused image, a taken name and a killed broker: volumes grow, brokers heal")
def mistakes_hold_up_one_track(stage: Stage) -> None:
    streams = stage.penstock.streams
    small = replace(stage, penstock=stage.penstock.other(WRONG))
    _storage_class(stage)
    volume = {"size": "1Gi", "storageClassName": GROWS}
    taken = f"{WRONG}-bootstrap"
    streams.apply(_service(taken))
    streams.apply(
        cluster(WRONG, storage=volume, deletionPolicy="Delete", **small.penstock.security)
    )
    try:
        small.penstock.wait_brokers(3, READY_S)
        _shown(stage, f"Service {taken} exists")
        change = {"image": "elsewhere.example/penstock:1", "storage": {"size": "2Gi"}}
        began = time.monotonic()
        streams.patch(CLUSTERS, WRONG, {"spec": change})
        streams.delete("pod", small.penstock.pod(0), now=True, wait_s=None)
        wait_until("every volume was asked to grow", lambda: _sizes(stage) == {"2Gi"}, 60.0)
        stage.measure("volumes asked to grow", time.monotonic() - began)
        small.penstock.wait_brokers(3, READY_S)
        stage.measure("broker back", time.monotonic() - began)
        streams.delete("service", f"{WRONG}-brokers")
        wait_until("its Service is healed", lambda: streams.find("service", f"{WRONG}-brokers"), 60)
        _shown(stage, f"Service {taken} exists")
        _shown(stage, "spec.image is elsewhere.example/penstock:1")
        streams.patch(CLUSTERS, WRONG, {"spec": {"image": None}})
        streams.delete("service", taken)
        wait_until("nothing is wrong", lambda: not _stalled(stage), READY_S)
    finally:
        small.penstock.end_tool()
        streams.delete(CLUSTERS, WRONG, wait_s=120.0)
        streams.delete("service", taken)
        streams.delete("storageclass", GROWS)


def _service(name: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 1}]},
    }


def _storage_class(stage: Stage) -> None:
    found = stage.kubectl.get("storageclass", "standard")
    kept = ("apiVersion", "kind", "provisioner", "reclaimPolicy", "volumeBindingMode")
    stage.kubectl.apply(
        {
            **{key: found[key] for key in kept},
            "metadata": {"name": GROWS},
            "allowVolumeExpansion": True,
        }
    )


def _sizes(stage: Stage) -> set[str]:
    """What the claims of the Cluster ask for."""
    claims = stage.penstock.streams.list("pvc", f"penstock.dev/cluster={WRONG}")
    return {each["spec"]["resources"]["requests"]["storage"] for each in claims}


def _stalled(stage: Stage) -> str:
    """What a person has to change; empty: nothing."""
    found = condition(stage.penstock.streams.get(CLUSTERS, WRONG), "Stalled")
    return str(found["message"]) if found.get("status") == "True" else ""


def _shown(stage: Stage, words: str) -> None:
    wait_until(f"the status says {words!r}", lambda: words in _stalled(stage), 60.0)
