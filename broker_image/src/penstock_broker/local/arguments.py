"""Turns a Cluster manifest into the command lines of its processes.

`spec.config` is one mapping for the whole cluster; each setting goes to the kind of process that
knows it. Pure, except that it reads the tables of known settings.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from penstock.core.control.config import ControlConfig
from penstock.core.manifest import Cluster, ManifestError, Problem
from penstock.core.settings import BROKER_KEYS, parse_broker_setting, split_config
from penstock.errors import PenstockError
from penstock_broker.local.ports import HOST, Ports


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """`--config` of each kind of process, and everything that requires a restart."""

    controller: dict[str, str]
    broker: dict[str, str]
    fingerprint: dict[str, str]


def settings_of(cluster: Cluster) -> ProcessSettings:
    """Sorts the Cluster's settings by the process that knows them."""
    config = cluster.spec.effective_config()
    broker, controller = split_config(config)
    fingerprint = {f"spec.config.{key}": value for key, value in config.items()}
    fingerprint["spec.brokers"] = str(cluster.spec.brokers)
    fingerprint["spec.rack.names"] = ", ".join(cluster.spec.rack_names)
    return ProcessSettings(
        controller=controller,
        broker=broker,
        fingerprint=fingerprint,
    )


def check_settings(cluster: Cluster, source: str) -> None:
    """Raises ManifestError with every setting that no process would accept.

    The processes check their settings too, but each only its own, and only when it starts.
    """
    sorted_settings = settings_of(cluster)
    problems = _broker_problems(sorted_settings.broker)
    problems += _controller_problems(sorted_settings.controller)
    if problems:
        subject = f"Cluster/{cluster.name}"
        raise ManifestError(
            source,
            [Problem(subject, f"spec.config.{key}".rstrip("."), text) for key, text in problems],
        )


def _broker_problems(settings: dict[str, str]) -> list[tuple[str, str]]:
    problems = []
    for key, value in settings.items():
        try:
            parse_broker_setting(key, value)
        except PenstockError as error:
            problems.append((key, f"cannot be used: {error.message}"))
    return problems


def _controller_problems(settings: dict[str, str]) -> list[tuple[str, str]]:
    """Checks all settings together; if that fails, checks each alone to name the wrong ones."""
    try:
        ControlConfig.parse(settings)
    except PenstockError as together:
        problems = []
        for key, value in settings.items():
            try:
                ControlConfig.parse({key: value})
            except PenstockError as error:
                close = difflib.get_close_matches(key, BROKER_KEYS, n=1)
                hint = f"; a broker setting is called {close[0]!r}" if close else ""
                problems.append((key, f"cannot be used: {error.message}{hint}"))
        return problems or [("", f"cannot be used: {together.message}")]
    return []


def controller_arguments(cluster: Cluster, data: Path, ports: Ports) -> list[str]:
    """Arguments of `python -m penstock_broker`."""
    return [
        "controller",
        f"--metadata-dir={data}",
        f"--listen={HOST}:{ports.serve}",
        f"--metrics-listen={HOST}:{ports.metrics}",
        *_config(settings_of(cluster).controller),
    ]


def broker_arguments(
    cluster: Cluster, broker_id: int, data: Path, ports: Ports, controller: Ports
) -> list[str]:
    """Arguments of `python -m penstock_broker` for one broker."""
    racks = cluster.spec.rack_names
    return [
        "broker",
        f"--broker-id={broker_id}",
        f"--data-dir={data}",
        f"--listen={HOST}:{ports.serve}",
        f"--advertise={HOST}:{ports.serve}",
        f"--replication-listen={HOST}:0",
        f"--stream-listen={HOST}:0",
        f"--controllers={HOST}:{controller.serve}",
        f"--metrics-listen={HOST}:{ports.metrics}",
        *([f"--rack={racks[broker_id % len(racks)]}"] if racks else []),
        *_config(settings_of(cluster).broker),
    ]


def _config(settings: dict[str, str]) -> list[str]:
    return [
        part for key, value in sorted(settings.items()) for part in ("--config", f"{key}={value}")
    ]
