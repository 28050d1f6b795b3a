"""Checks of `spec.config`: are the settings known, well-formed, and possible together?

`penstock.core.settings` defines the values of a setting; this module checks key by key, so that
every wrong key is reported, and then whether the settings are possible together.
`min.insync.replicas` against the replicas of a topic is checked in `parse`.
"""

from collections.abc import Collection
from typing import Final

from penstock.core.control.config import CONTROL_NUMBERS, ControlConfig, parse_control_number
from penstock.core.manifest.client_certificates import check_client_certificates
from penstock.core.manifest.objects import (
    MIN_INSYNC,
    REPLICATION_FACTOR,
    ClusterSpec,
    TopicSpec,
)
from penstock.core.manifest.oidc import check_issuers
from penstock.core.manifest.problems import Report
from penstock.core.manifest.upkeep import check_copy_rate
from penstock.core.settings import BROKER_KEYS, check_cluster_keys, parse_broker_setting
from penstock.core.topic import TopicConfig
from penstock.errors import PenstockError

SESSION_TIMEOUT: Final = "broker.session.timeout.ms"
HEARTBEAT: Final = "broker.heartbeat.interval.ms"


def check_topic_settings(spec: TopicSpec, report: Report) -> None:
    """Checks every key of a Topic's `config` separately."""
    for name, text in spec.config.items():
        try:
            TopicConfig.parse({name: text})
        except PenstockError as error:
            report.add(f"spec.config.{name}", f"cannot be used: {error.message}")


def check_cluster_settings(spec: ClusterSpec, report: Report) -> None:
    """Checks the keys of a Cluster's `config`, each alone, then together and with the brokers."""
    problems = check_cluster_keys(spec.config)
    for name, text in spec.config.items():
        if name not in problems:
            try:
                _check_value(name, text)
            except PenstockError as error:
                problems[name] = error.message
    for name, text in problems.items():
        report.add(f"spec.config.{name}", f"cannot be used: {text}")
    _check_sessions(spec, problems.keys(), report)
    _check_replication(spec, problems.keys(), report)
    _check_security(spec, report)
    check_copy_rate(spec.copy_rate, report)


def _check_security(spec: ClusterSpec, report: Report) -> None:
    tls, external = spec.security.has_tls, spec.external
    check_issuers(spec.oidc, strict=tls, report=report)
    check_client_certificates(
        spec.client_certificates,
        strict=tls,
        external_port=None if external is None else external.node_port,
        brokers=spec.brokers,
        report=report,
    )
    if tls and external is not None and not external.host:
        report.add(
            "spec.external.host",
            f"is missing; with spec.security.mode {spec.security.value}, certificates must name "
            "the address that clients use",
        )


def _check_value(name: str, text: str) -> None:
    if name in BROKER_KEYS:
        parse_broker_setting(name, text)
    elif name in CONTROL_NUMBERS:
        parse_control_number(name, text)
    else:
        TopicConfig.parse({name: text})


def _check_sessions(spec: ClusterSpec, wrong: Collection[str], report: Report) -> None:
    names = {SESSION_TIMEOUT, HEARTBEAT} & spec.config.keys()
    if not names or names & set(wrong):
        return
    try:
        ControlConfig.parse({name: spec.config[name] for name in names})
    except PenstockError as error:
        report.add(f"spec.config.{max(names)}", f"cannot be used: {error.message}")


def _check_replication(spec: ClusterSpec, wrong: Collection[str], report: Report) -> None:
    if REPLICATION_FACTOR in spec.config and REPLICATION_FACTOR not in wrong:
        factor = int(spec.config[REPLICATION_FACTOR])
        if factor > spec.brokers:
            report.add(
                f"spec.config.{REPLICATION_FACTOR}",
                f"is {factor}, but spec.brokers is {spec.brokers}; "
                f"lower {REPLICATION_FACTOR} or raise spec.brokers",
            )
    if not {REPLICATION_FACTOR, MIN_INSYNC} & set(wrong):
        settings = spec.effective_config()
        if int(settings[MIN_INSYNC]) > int(settings[REPLICATION_FACTOR]):
            report.add(
                f"spec.config.{MIN_INSYNC}",
                f"is {settings[MIN_INSYNC]}, but {REPLICATION_FACTOR} is "
                f"{settings[REPLICATION_FACTOR]}, so that no acks=all write could succeed; "
                f"lower {MIN_INSYNC} or raise {REPLICATION_FACTOR}",
            )
