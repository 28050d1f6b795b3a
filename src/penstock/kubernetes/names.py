"""Labels and annotations that several of our programs use. Pure.

The operator, the controller and the command line find each other's objects by them.
"""

from typing import Final

GROUP: Final = "penstock.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

CLUSTER_LABEL: Final = f"{GROUP}/cluster"
"""The name of the Cluster that an object belongs to."""
METADATA_LABEL: Final = f"{GROUP}/metadata"
"""On the controller's documents: what a document is about, `cluster` or `topic`."""
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
"""`broker` or `controller`."""
PAUSED: Final = f"{GROUP}/paused"
"""Annotation; `"true"` on a Cluster, Topic or ConsumerGroup: the operator changes nothing but the
status."""
