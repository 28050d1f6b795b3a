"""The commands of `penstock --help` in panels, and their order: what a newcomer needs first.

`--help` and the reference on the site show them so. A command is in one of them; a test sees to it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

PANELS: Final[Mapping[str, Sequence[str]]] = {
    "Run a cluster": ("local", "status", "why"),
    "Topics and records": ("topic", "produce", "consume", "offsets"),
    "Groups and transactions": ("group", "txn"),
    "Look and measure": ("top", "ui", "report", "log-dirs", "dump-log", "perf", "verify"),
    "Brokers and replicas": ("cluster", "broker", "partitions", "elect", "scrub"),
    "Clusters on Kubernetes": (
        "access", "upgrade", "approve", "drain", "pause", "resume", "hibernate", "wake",
    ),
    "Security": ("acl", "quota", "rotate-ca"),
    "Move data": ("import", "export"),
    "Settings": ("profile", "version"),
}  # fmt: skip
