"""What the operator's metrics say of a Cluster that waits for several things."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock_operator.metrics import Metrics


def stalled(metrics: Metrics) -> set[str]:
    text = generate_latest(metrics.registry).decode()
    return {
        sample.labels["reason"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "penstock_operator_cluster_stalled" and sample.value == 1
    }


def test_each_reason_of_a_stalled_cluster_is_exported_until_it_is_gone() -> None:
    """A CA that is lost is told of beside a field that is wrong."""
    metrics = Metrics()
    both = frozenset({"InvalidSpec", "AuthorityLost"})
    metrics.cluster("streams", "flights", ready=True, stalled=both)
    assert stalled(metrics) == both
    metrics.cluster("streams", "flights", ready=True, stalled=frozenset({"AuthorityLost"}))
    assert stalled(metrics) == {"AuthorityLost"}
    metrics.cluster("streams", "flights", ready=True, stalled=both)
    metrics.forget("streams", "flights")
    assert stalled(metrics) == set()
