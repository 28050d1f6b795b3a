"""Kubernetes objects as data: everything that a Cluster's spec asks for, as complete objects.

Belongs here: dictionaries as server-side apply takes them, from a `DesiredCluster`. Pure: equal
input gives equal objects, so that a difference from the server is a difference. Never here:
whether and when an object is applied (`plan`), and how (`apply`).
"""

from penstock_operator.objects.broker import broker_objects, broker_set
from penstock_operator.objects.controller import controller_objects
from penstock_operator.objects.desired import (
    DesiredCluster,
    Installation,
    read_cluster,
)
from penstock_operator.objects.sections import Last, Section, last_of

__all__ = [
    "DesiredCluster",
    "Installation",
    "Last",
    "Section",
    "broker_objects",
    "broker_set",
    "controller_objects",
    "last_of",
    "read_cluster",
]
