"""Checks of `spec.config`: are the settings known, well-formed, and possible together?

What a topic setting may hold is `penstock.core.topic`'s business; this module asks it key by
key, so that every wrong key is reported. Of a Cluster's settings the core knows those every
topic inherits; the tunables of the processes are known where the processes are started (local
mode, the operator), which hand unknown ones back as problems of the same form.
`min.insync.replicas` against the replicas of a topic is checked in `parse`.
"""

from typing import Final

from penstock.core.control.config import ControlConfig
from penstock.core.manifest.fields import Report
from penstock.core.manifest.objects import (
    MIN_INSYNC,
    PARTITIONS,
    REPLICATION_FACTOR,
    ClusterSpec,
    TopicSpec,
)
from penstock.core.topic import CONFIG_KEYS, TopicConfig
from penstock.errors import PenstockError

INHERITED_KEYS: Final = frozenset(
    {PARTITIONS, REPLICATION_FACTOR} | {key.name for key in CONFIG_KEYS}
)
"""Cluster settings the core knows: what topics inherit."""


def check_topic_settings(spec: TopicSpec, report: Report) -> None:
    """Every key of a Topic's `config` on its own."""
    for name, text in spec.config.items():
        try:
            TopicConfig.parse({name: text})
        except PenstockError as error:
            report.add(f"spec.config.{name}", f"cannot be used: {error.message}")


def check_cluster_settings(spec: ClusterSpec, report: Report) -> None:
    """The inherited keys of a Cluster's `config`, each alone and against the brokers."""
    wrong = set()
    for name, text in spec.config.items():
        if name not in INHERITED_KEYS:
            continue
        try:
            ControlConfig.parse({name: text})
        except PenstockError as error:
            wrong.add(name)
            report.add(f"spec.config.{name}", f"cannot be used: {error.message}")
    if REPLICATION_FACTOR in spec.config and REPLICATION_FACTOR not in wrong:
        factor = int(spec.config[REPLICATION_FACTOR])
        if factor > spec.brokers:
            report.add(
                f"spec.config.{REPLICATION_FACTOR}",
                f"is {factor}, but spec.brokers is {spec.brokers}; "
                f"lower {REPLICATION_FACTOR} or raise spec.brokers",
            )
    if not wrong & {REPLICATION_FACTOR, MIN_INSYNC}:
        settings = spec.effective_config()
        if int(settings[MIN_INSYNC]) > int(settings[REPLICATION_FACTOR]):
            report.add(
                f"spec.config.{MIN_INSYNC}",
                f"is {settings[MIN_INSYNC]}, but {REPLICATION_FACTOR} is "
                f"{settings[REPLICATION_FACTOR]}, so that no acks=all write could succeed; "
                f"lower {MIN_INSYNC} or raise {REPLICATION_FACTOR}",
            )
