"""The scenarios, one function each; the order here is the order of play.

A new one is a function in one of these modules, or in a new module that is added to the imports.
Belongs here: what is done to a cluster and what must hold. Never here: how to talk to
Kubernetes; that is the harness.
"""

# ruff: noqa: I001 - the order is the order of play
from e2e.scenarios import (
    install,
    secure,
    migrate,
    resources,
    pods,
    faults,
    operations,
    hibernation,
    mistakes,
    transactions,
    clients,
    control,
    rotation,
    groups,
    pipes,
    members,
    cut_off,
    sizes,
    drains,
    racks,
    lifecycle,
    protection,
    volumes,
    damage,
    documents,
    spark,
    spark_sink,
    spark_twins,
)

__all__ = [
    "clients",
    "control",
    "cut_off",
    "damage",
    "documents",
    "drains",
    "faults",
    "groups",
    "hibernation",
    "install",
    "lifecycle",
    "members",
    "migrate",
    "mistakes",
    "operations",
    "pipes",
    "pods",
    "protection",
    "racks",
    "resources",
    "rotation",
    "secure",
    "sizes",
    "spark",
    "spark_sink",
    "spark_twins",
    "transactions",
    "volumes",
]
