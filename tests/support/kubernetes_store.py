"""Kubernetes metadata stores for tests: opened from a kubeconfig, as a process does."""

import time
from collections.abc import Callable
from pathlib import Path

from penstock.kubernetes.api import Timeouts
from penstock.kubernetes.connect import connect
from penstock_broker.controller.metadata_store.kubernetes import KubernetesMetadataStore
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects

QUICK = Timeouts(connect_s=1.0, total_s=1.5)
"""So that a planted silence does not take long."""
PATIENT = Timeouts(connect_s=60.0, total_s=120.0)
"""For what must be answered, however long the machine stands still."""


def open_store(
    kubeconfig: Path,
    objects: ClusterObjects,
    clock: Callable[[], float] = time.monotonic,
    timeouts: Timeouts = PATIENT,
) -> KubernetesMetadataStore:
    api = connect("penstock-tests", timeouts, kubeconfig=str(kubeconfig))
    return KubernetesMetadataStore(api, objects, clock)
