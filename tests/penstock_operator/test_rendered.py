"""Every object of a Cluster, whole, as files that are read in review.

A change of the pods' template is offered to every Cluster when the operator is upgraded, and comes
with the next setting that changes: it must not happen unseen. If a change is meant, write the files
again and look at the difference:

    PENSTOCK_RENDER=1 pytest tests/penstock_operator/test_rendered.py
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.kubernetes.names import PAUSED
from penstock_operator.names import FORCE_ROLL
from penstock_operator.objects import (
    DesiredCluster,
    Installation,
    broker_objects,
    broker_set,
    controller_objects,
    read_cluster,
)

FOLDER = Path(__file__).with_name("rendered")
METADATA: dict[str, Any] = {
    "name": "flights",
    "namespace": "air",
    "uid": "6b1f2c1e-0000-4000-8000-000000000000",
    "generation": 7,
}
BODIES: dict[str, dict[str, Any]] = {
    "defaults": {"metadata": METADATA, "spec": {}},
    "strict": {
        "metadata": METADATA,
        "spec": {
            "security": {
                "mode": "Strict",
                "oidc": [
                    {
                        "issuer": "https://login.example.com",
                        "audience": "flights",
                        "groupsClaim": "groups",
                    }
                ],
                "clientCertificates": {"caConfigMap": "people", "nodePort": 31_200},
            },
            "external": {"type": "NodePort", "host": "flights.example.com"},
            "allowFrom": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "air"}}}]},
        },
    },
    "migrate": {"metadata": METADATA, "spec": {"security": {"mode": "Migrate"}}},
    "everything": {
        "metadata": {**METADATA, "annotations": {PAUSED: "false", FORCE_ROLL: "1"}},
        "spec": {
            "brokers": 5,
            "image": "mine:2",
            "imagePullPolicy": "Always",
            "resources": {"requests": {"cpu": "2", "memory": "4Gi"}},
            "storage": {"size": "3Gi", "storageClassName": "fast"},
            "controllers": {"replicas": 1, "resources": {"requests": {"cpu": "1m"}}},
            "config": {"min.insync.replicas": 2, "cache.bytes": 1_000_000},
            "external": {"type": "NodePort", "host": "flights.example.com", "nodePort": 30_000},
            "allowFrom": {
                "clients": [{"namespaceSelector": {"matchLabels": {"team": "air"}}}],
                "metrics": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
            },
            "rack": {"topologyKey": "topology.kubernetes.io/zone"},
            "deletionPolicy": "Retain",
            "pod": {
                "nodeSelector": {"disk": "ssd"},
                "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            },
        },
    },
}


def rendered(wish: DesiredCluster) -> str:
    objects = [
        *controller_objects(wish),
        *broker_objects(wish),
        broker_set(wish, wish.spec.brokers),
    ]
    return yaml.dump_all(objects, sort_keys=False, Dumper=_Plain)


class _Plain(yaml.SafeDumper):
    """Without anchors: what is there twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.mark.parametrize("name", BODIES)
def test_objects_are_those_that_were_reviewed(name: str) -> None:
    file = FOLDER / f"{name}.yaml"
    now = rendered(read_cluster(BODIES[name], Installation("penstock-broker:1")))
    if os.environ.get("PENSTOCK_RENDER"):
        file.write_text(now)
    assert now.splitlines() == file.read_text().splitlines(), "see the top of this file"
