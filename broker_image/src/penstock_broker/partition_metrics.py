"""Metrics of single topics and partitions: bounded, and gathered when scraped.

A series costs Prometheus memory for as long as it keeps the data, so a broker exports the topics
with the most bytes and, of partitions, those it leads first. What exceeds a limit is counted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_broker.counts import Flow

TOPICS_MAX: Final = 500
"""Limit of topics that a broker exports."""
PARTITIONS_MAX: Final = 2_000
"""Limit of partitions that a broker exports."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One replica here; `size_bytes` None: its log cannot be measured now."""

    topic: str
    partition: int
    leads: bool
    log_start: int
    log_end: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gathered:
    """`partitions`: at most the limit; `left_out`: how many more there are."""

    topics: Sequence[tuple[str, Flow]] = ()
    partitions: Sequence[PartitionFacts] = ()
    left_out: int = 0


class PartitionMetrics(Collector):
    """Calls `gather` at every scrape, in the endpoint's thread."""

    def __init__(self, gather: Callable[[], Gathered]) -> None:
        self._gather = gather

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        found = self._gather()
        yield from _topics(found.topics)
        yield from _partitions(found)


def _topics(topics: Sequence[tuple[str, Flow]]) -> Iterable[Metric]:
    def moved(item: tuple[str, Flow]) -> tuple[int, str]:
        return -item[1].bytes_in - item[1].bytes_out, item[0]

    shown = sorted(topics, key=moved)[:TOPICS_MAX]
    for name, documentation in (
        ("records_in", "Records of a topic appended by producers"),
        ("bytes_in", "Payload bytes of a topic appended by producers"),
        ("records_out", "Records of a topic sent to consumers"),
        ("bytes_out", "Payload bytes of a topic sent to consumers"),
    ):
        family = CounterMetricFamily(
            f"penstock_topic_{name}",
            f"{documentation}, at the broker that leads. Of the {TOPICS_MAX} topics with the most "
            "bytes.",
            labels=["topic"],
        )
        for topic, flow in shown:
            family.add_metric([topic], getattr(flow, name))
        yield family
    yield GaugeMetricFamily(
        "penstock_topics_left_out",
        f"Topics here beyond the {TOPICS_MAX} that have series of their own.",
        value=len(topics) - len(shown),
    )


def _partitions(found: Gathered) -> Iterable[Metric]:
    size, start, end = (
        GaugeMetricFamily(
            f"penstock_partition_{name}",
            f"{documentation}; role is leader or follower. Of at most {PARTITIONS_MAX:,} replicas, "
            "those led here first.",
            labels=["topic", "partition", "role"],
        )
        for name, documentation in (
            ("log_bytes", "Stored bytes of a replica here"),
            ("log_start_offset", "The first offset of a replica here"),
            ("log_end_offset", "The offset after the last record of a replica here"),
        )
    )
    for one in found.partitions:
        labels = [one.topic, str(one.partition), "leader" if one.leads else "follower"]
        start.add_metric(labels, one.log_start)
        end.add_metric(labels, one.log_end)
        if one.size_bytes is not None:
            size.add_metric(labels, one.size_bytes)
    yield from (size, start, end)
    yield GaugeMetricFamily(
        "penstock_partitions_left_out",
        f"Replicas here beyond the {PARTITIONS_MAX:,} that have series of their own.",
        value=found.left_out,
    )
