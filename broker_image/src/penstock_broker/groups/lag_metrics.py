"""The lag metrics of each group, from the last round of `lag`.

Absent means unknown, not 0. A group whose coordinator has moved is absent at once: its new
coordinator exports it.
"""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_broker.groups.lag import LagCollection

_PARTITION = ("group", "topic", "partition")


class GroupLagMetrics(Collector):
    """Registered with a broker's registry; called by the endpoint's threads."""

    def __init__(self, collection: LagCollection) -> None:
        self._collection = collection

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        """The metric families, without samples until the first round is over."""
        self._collection.scraped()
        snapshot = self._collection.snapshot
        members = _gauge("members", "Members of the group.", "group")
        state = _gauge(
            "state",
            "1 for the state the group is in: Empty, Assigning, Reconciling, Stable.",
            "group",
            "state",
        )
        committed = _gauge("committed_offset", "The next offset to read.", *_PARTITION)
        pending = _gauge(
            "pending_offsets",
            "Partitions with an offset in an open transaction: no other member can take them over "
            "until it ends.",
            "group",
        )
        records = _gauge(
            "partition_lag_records",
            "Records from the first unread one to the last stable offset: what waits for an open "
            "transaction does not count.",
            *_PARTITION,
        )
        seconds = _gauge(
            "partition_lag_seconds",
            "How long the first unread record has waited, by its own timestamp; 0 if nothing is "
            "unread.",
            *_PARTITION,
        )
        left_out = _gauge(
            "partitions_left_out",
            "Partitions of groups that this broker does not export because there are too many.",
        )
        if snapshot is not None:
            left_out.add_metric([], snapshot.left_out)
            for seen in snapshot.groups:
                if seen.group.led.closed is not None:
                    continue
                name = seen.group.group_id
                members.add_metric([name], seen.group.members)
                pending.add_metric([name], seen.group.pending)
                state.add_metric([name, seen.group.state], 1)
                for where, lag in seen.partitions.items():
                    labels = [name, where.topic, str(where.partition)]
                    committed.add_metric(labels, lag.committed)
                    if lag.records is not None:
                        records.add_metric(labels, lag.records)
                    if lag.lag_ms is not None:
                        seconds.add_metric(labels, lag.lag_ms / 1000)
        return members, state, committed, pending, records, seconds, left_out


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_group_{name}", documentation, labels=labels)
