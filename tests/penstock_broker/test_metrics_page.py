"""docs/metrics.md names what brokers export: all of it, and nothing else."""

import re
from pathlib import Path
from typing import cast

from support.secure import Certificates

from penstock_broker.groups.lag import LagCollection, Leaders
from penstock_broker.groups.lag_metrics import GroupLagMetrics
from penstock_broker.maintenance.compaction_metrics import CompactionMetrics
from penstock_broker.maintenance.scrub_metrics import ScrubMetrics
from penstock_broker.metrics import GroupTotals, Metrics, ReplicaTotals
from penstock_broker.serving.plaintext_clients import PlaintextClients, PlaintextMetrics
from penstock_broker.serving.tls_watch import CertificateMetrics
from penstock_broker.transactions.metrics import TransactionMetrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def exported(folder: Path) -> set[str]:
    metrics = Metrics()
    CompactionMetrics(metrics.registry)
    ScrubMetrics(metrics.registry)
    TransactionMetrics(metrics.registry, lambda: 0)
    metrics.observe_controller(lambda: True)
    metrics.observe_replicas(ReplicaTotals)
    metrics.observe_groups(GroupTotals)
    metrics.observe_throttled(dict)
    metrics.observe_grace(lambda: False)
    never_asked = cast("Leaders", None)
    metrics.registry.register(GroupLagMetrics(LagCollection(list, never_asked)))
    metrics.registry.register(CertificateMetrics(Certificates(folder).broker(0).tls))
    metrics.registry.register(PlaintextMetrics(PlaintextClients()))
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in metrics.registry.collect()
    }


def test_the_page_lists_every_metric_of_a_broker_and_no_other(tmp_path: Path) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(penstock_\w+)`", row.split("|")[1])}
    assert listed == exported(tmp_path)
