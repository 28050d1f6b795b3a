"""Metrics that brokers and controllers have as processes: version, memory, files, connections, and
their loop."""

import asyncio
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import penstock
from penstock_broker.connections import ConnectionMetrics
from penstock_broker.counts import Durations

EVERY_S: Final = 0.5


class ProcessMetrics(Collector):
    """Registers itself and Prometheus's own `process_…` metrics; `run` watches the loop."""

    def __init__(self, registry: CollectorRegistry, role: str) -> None:
        """`role`: broker or controller."""
        self._role = role
        self._lag = Durations()
        registry.register(self)
        ProcessCollector(registry=registry)
        registry.register(ConnectionMetrics())

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        build = GaugeMetricFamily(
            "penstock_build_info",
            "1, of the release that runs; role is broker, controller or operator.",
            labels=["version", "role"],
        )
        build.add_metric([penstock.__version__, self._role], 1)
        yield build
        yield HistogramMetricFamily(
            "penstock_event_loop_lag_seconds",
            "How late the event loop is with what is due, looked at twice a second. Of brokers and "
            "controllers.",
            buckets=self._lag.buckets(),
            sum_value=self._lag.sum_s,
        )

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._lag.observe(max(0.0, loop.time() - due_s))
