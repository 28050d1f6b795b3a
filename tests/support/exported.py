"""The names of all metrics that each kind of process exports, from its own collectors."""

from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry
from support.controller_world import World
from support.secure import Certificates

from penstock_broker.controller.metrics import ControllerMetrics
from penstock_broker.controller.runtime import ControllerRuntime, Counters
from penstock_broker.groups.lag import LagCollection, Leaders
from penstock_broker.groups.lag_metrics import GroupLagMetrics
from penstock_broker.maintenance.compaction_metrics import CompactionMetrics
from penstock_broker.maintenance.scrub_metrics import ScrubMetrics
from penstock_broker.metrics import GroupTotals, Metrics, ReplicaTotals
from penstock_broker.partition_metrics import Gathered, PartitionMetrics
from penstock_broker.process_metrics import ProcessMetrics
from penstock_broker.serving.plaintext_clients import PlaintextClients, PlaintextMetrics
from penstock_broker.serving.tls_watch import CertificateMetrics
from penstock_broker.store.memory import MemoryLogStore
from penstock_broker.store.metrics import StoreMetrics
from penstock_broker.transactions.metrics import TransactionMetrics
from penstock_operator.metrics import Metrics as OperatorMetrics


def names(registry: CollectorRegistry) -> set[str]:
    """As a scrape shows them, without the suffixes of histograms."""
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    }


def broker_metrics(folder: Path) -> set[str]:
    """`folder`: for certificates."""
    metrics = Metrics()
    registry = metrics.registry
    CompactionMetrics(registry)
    ScrubMetrics(registry)
    ProcessMetrics(registry, "broker")
    TransactionMetrics(registry, lambda: 0)
    registry.register(PartitionMetrics(Gathered))
    registry.register(StoreMetrics(MemoryLogStore()))
    metrics.observe_controller(lambda: True)
    metrics.observe_replicas(ReplicaTotals)
    metrics.observe_groups(GroupTotals)
    metrics.observe_throttled(dict)
    metrics.observe_streams(dict)
    metrics.observe_grace(lambda: False)
    never_asked = cast("Leaders", None)
    registry.register(GroupLagMetrics(LagCollection(list, never_asked)))
    registry.register(CertificateMetrics(Certificates(folder).broker(0).tls))
    registry.register(PlaintextMetrics(PlaintextClients()))
    return names(registry)


class _Active:
    """Of a runtime, what the metrics ask for: an active controller of a new cluster."""

    def __init__(self) -> None:
        self.active, self.detached = True, False
        self.counters = Counters()
        self.machine = World().start().machine

    def check_active(self) -> None:
        """It is."""


def controller_metrics() -> set[str]:
    """Of an active one."""
    metrics = ControllerMetrics(cast("ControllerRuntime", _Active()))
    ProcessMetrics(metrics.registry, "controller")
    return names(metrics.registry)


def operator_metrics() -> set[str]:
    return names(OperatorMetrics().registry)
