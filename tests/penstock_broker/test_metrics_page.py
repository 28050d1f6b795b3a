"""docs/metrics.md names what brokers, controllers and the operator export: all of it, and nothing
else."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from support.exported import broker_metrics, controller_metrics, operator_metrics
from support.metrics_page import documented

from penstock_broker.metrics import Metrics
from penstock_broker.transactions.metrics import TransactionMetrics
from penstock_operator.metrics import Metrics as OperatorMetrics


def test_the_page_lists_every_metric_and_no_other(tmp_path: Path) -> None:
    everything = broker_metrics(tmp_path) | controller_metrics() | operator_metrics()
    assert documented().keys() == everything


def test_the_page_lists_the_labels_of_metrics_that_have_no_series_yet() -> None:
    """`test_metrics_values.py` compares those that a cluster exports."""
    registry = Metrics().registry
    TransactionMetrics(registry, lambda: 0)
    found = {**declared(registry), **declared(OperatorMetrics().registry)}
    assert len(found) > 30
    assert found == {name: documented()[name] for name in found}


def declared(registry: CollectorRegistry) -> dict[str, frozenset[str]]:
    """Labels by name, of what has them from the beginning."""
    made = [one for one in registry._collector_to_names if isinstance(one, MetricWrapperBase)]
    names = {one: one._name + ("_total" if one._type == "counter" else "") for one in made}
    return {name: frozenset(one._labelnames) for one, name in names.items()}


@pytest.mark.parametrize("names", [controller_metrics, operator_metrics])
def test_a_process_names_its_own_metrics_after_itself(names: object) -> None:
    assert callable(names)
    own = names()
    role = "controller" if names is controller_metrics else "operator"
    shared = {name for name in own if not name.startswith(f"penstock_{role}_")}
    assert {name for name in shared if not name.startswith("process_")} <= {
        "penstock_build_info",
        "penstock_event_loop_lag_seconds",
    }
