"""Writes docs/metrics-reference.md: `python -m tools.metrics_reference` (make metrics), `--check`.

    collectors of a broker ──────┐
    … of an active controller ───┼── name, type, labels, description ──▶ a table per kind of process
    … of the operator ───────────┘

The collectors are those of the processes, over stand-ins for what they measure: a family is there
before its first series, so nothing has to run. `test_metrics_values.py` compares the page with what
a cluster exports. Tests and the checks of queries take names and labels from here, too.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from penstock.core.control import ControlConfig, ControllerMachine
from penstock.core.control import contract as c
from penstock.core.control.documents import CLUSTER_KEY
from penstock.rpc.tls import Tls
from penstock_broker.certificates.authority import Authority
from penstock_broker.controller.counters import Counters
from penstock_broker.controller.metrics import ControllerMetrics
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.groups.lag import LagCollection, Leaders
from penstock_broker.groups.lag_metrics import GroupLagMetrics
from penstock_broker.maintenance.compaction_metrics import CompactionMetrics
from penstock_broker.maintenance.scrub_metrics import ScrubMetrics
from penstock_broker.metrics import GroupTotals, Metrics
from penstock_broker.partition_metrics import Gathered, PartitionMetrics
from penstock_broker.process_metrics import ProcessMetrics
from penstock_broker.replica_metrics import ReplicaTotals
from penstock_broker.serving.plaintext_clients import PlaintextClients, PlaintextMetrics
from penstock_broker.serving.tls_watch import CertificateMetrics
from penstock_broker.store.memory import MemoryLogStore
from penstock_broker.store.metrics import StoreMetrics
from penstock_broker.transactions.metrics import TransactionMetrics
from penstock_operator.metrics import Metrics as OperatorMetrics

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics-reference.md"
INTRODUCTION: Final = """<!-- Written by `make metrics` from collectors; changes here are lost. -->

# Metrics reference

All metrics of all processes. Descriptions are the same as in a scrape (`# HELP`), and so in
Prometheus and Grafana. A histogram has series that end in `_bucket`, `_sum` and `_count`. Where to
scrape, and what to ask: [metrics](metrics.md).
"""
NOTES: Final = {
    "Consumer groups": "Only from the broker that coordinates the group.",
    "Brokers": '"Here" is the broker that exports the metric.',
    "Controllers": "About the cluster only from the controller that is active.",
}
"""What is true of all metrics of a section."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A metric as a scrape names it, without the suffixes of histograms; `labels` without `le`."""

    name: str
    type: str
    labels: tuple[str, ...]
    description: str


def exported(registry: CollectorRegistry) -> dict[str, Exported]:
    """By name, also what has no series yet."""
    return {one.name: one for one in _families(registry)}


def _families(registry: CollectorRegistry) -> Iterator[Exported]:
    """The client library has no public name for labels; a scrape has only those of series."""
    for collector in list(registry._collector_to_names):  # noqa: SLF001
        if isinstance(collector, MetricWrapperBase):
            for family in collector.describe():
                yield _exported(family, vars(collector)["_labelnames"])
        else:
            for family in collector.collect():
                yield _exported(family, vars(family)["_labelnames"])


def _exported(family: Metric, labels: Iterable[str]) -> Exported:
    name = family.name + ("_total" if family.type == "counter" else "")
    return Exported(name, family.type, tuple(labels), family.documentation)


class _Certificates:
    """Of a `Tls`, what its metric asks for."""

    def __init__(self) -> None:
        own = Authority.new("nobody").certificate
        self.certificates = (own, own)


class _Active:
    """Of a runtime, what its metrics ask for: an active controller of a new cluster."""

    def __init__(self) -> None:
        self.active, self.detached = True, False
        self.counters = Counters()
        self.machine = ControllerMachine(ControlConfig())
        ready = self.machine.handle(c.Loaded(None, (), ""), 0)
        self.machine.handle(c.WriteDone(ready.write_id, {CLUSTER_KEY: ""}), 0)

    def check_active(self) -> None:
        """It is."""


def _register_groups(registry: CollectorRegistry) -> None:
    never_asked = cast("Leaders", None)
    registry.register(GroupLagMetrics(LagCollection(list, never_asked)))


def group_metrics() -> dict[str, Exported]:
    """Of a broker, about single consumer groups."""
    registry = CollectorRegistry()
    _register_groups(registry)
    return exported(registry)


def broker_metrics() -> dict[str, Exported]:
    """With TLS, and plaintext beside it: everything that a broker may export."""
    metrics = Metrics()
    registry = metrics.registry
    CompactionMetrics(registry)
    ScrubMetrics(registry)
    ProcessMetrics(registry, "broker")
    TransactionMetrics(registry, lambda: 0)
    _register_groups(registry)
    registry.register(PartitionMetrics(Gathered))
    registry.register(StoreMetrics(MemoryLogStore()))
    registry.register(CertificateMetrics(cast("Tls", _Certificates())))
    registry.register(PlaintextMetrics(PlaintextClients()))
    metrics.observe_controller(lambda: True)
    metrics.observe_replicas(ReplicaTotals)
    metrics.observe_groups(GroupTotals)
    metrics.observe_throttled(dict)
    metrics.observe_streams(dict)
    metrics.observe_grace(lambda: False)
    metrics.observe_clock(lambda: False)
    return exported(registry)


def controller_metrics() -> dict[str, Exported]:
    """Of an active one, with TLS."""
    registry = ControllerMetrics(cast("ControllerRuntime", _Active())).registry
    ProcessMetrics(registry, "controller")
    registry.register(CertificateMetrics(cast("Tls", _Certificates())))
    return exported(registry)


def operator_metrics() -> dict[str, Exported]:
    return exported(OperatorMetrics().registry)


def everything() -> dict[str, Exported]:
    """Of all processes. Raises ValueError if two describe a metric differently."""
    return _merged(broker_metrics(), controller_metrics(), operator_metrics())


def _merged(*processes: Mapping[str, Exported]) -> dict[str, Exported]:
    found: dict[str, Exported] = {}
    for metrics in processes:
        for name, one in metrics.items():
            if found.setdefault(name, one) != one:
                raise ValueError(f"{name}: one process says {found[name]}, another one {one}")
    return found


def sections() -> dict[str, list[Exported]]:
    """Each metric once, sorted by name; by title, in the order of the page."""
    groups, broker = group_metrics(), broker_metrics()
    controller, operator = controller_metrics(), operator_metrics()
    processes = Counter([*broker, *controller, *operator])
    shared = {name for name, count in processes.items() if count > 1}
    members = {
        "Consumer groups": groups.keys(),
        "Brokers": broker.keys() - groups.keys() - shared,
        "Controllers": controller.keys() - shared,
        "Operator": operator.keys() - shared,
        "Every process": shared,
    }
    metrics = _merged(broker, controller, operator)
    return {title: [metrics[name] for name in sorted(names)] for title, names in members.items()}


def rendered() -> str:
    """The page."""
    lines = [INTRODUCTION]
    for title, metrics in sections().items():
        lines += [f"## {title}", ""]
        if title in NOTES:
            lines += [NOTES[title], ""]
        lines += ["| metric | type | labels | description |", "|---|---|---|---|"]
        lines += [_row(one) for one in metrics]
        lines.append("")
    return "\n".join(lines)


def _row(one: Exported) -> str:
    labels = "".join(f" `{label}`," for label in one.labels).removesuffix(",")
    return f"| `{one.name}` | {one.type} |{labels} | {one.description} |"


def main(arguments: list[str]) -> int:
    """Writes the page, or with `--check` answers 1 when it is not what processes export."""
    wanted = rendered()
    if PAGE.is_file() and PAGE.read_text() == wanted:
        return 0
    if "--check" in arguments:
        print(f"docs/{PAGE.name} is not what processes export; run make metrics", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
