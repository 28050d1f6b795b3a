"""Says which certificates a process uses: in its log, and when they end, as a metric."""

import asyncio
from collections.abc import Iterable

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.rpc.tls import LOOK_EVERY_S, Tls
from penstock_broker.observability import EventLog

_events = EventLog("tls")


class CertificateMetrics(Collector):
    """`penstock_tls_certificate_expiry_seconds`, for the own certificate and the CAs."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls

    def collect(self) -> Iterable[Metric]:
        """Of several CAs, the one that ends first."""
        gauge = GaugeMetricFamily(
            "penstock_tls_certificate_expiry_seconds",
            "When the own certificate and the ca end, in seconds since 1970. Of several CAs, the "
            "first to end. Of brokers and controllers with TLS.",
            labels=["certificate"],
        )
        roots, own = self._tls.certificates
        leaf, *_ = x509.load_pem_x509_certificates(own)
        gauge.add_metric(["own"], leaf.not_valid_after_utc.timestamp())
        ends = [one.not_valid_after_utc for one in x509.load_pem_x509_certificates(roots)]
        gauge.add_metric(["ca"], min(ends).timestamp())
        yield gauge

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise the registry would collect once at start."""
        return []


async def watch_tls(tls: Tls) -> None:
    """Logs that other files are in use, and once per problem why not; until it is cancelled."""
    generation, problem = tls.generation, ""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if tls.generation != generation:
            generation = tls.generation
            _events.info("using other TLS files", generation=generation)
        if tls.problem != problem:
            problem = tls.problem
            if problem:
                _events.error("new TLS files cannot be used, the former ones stay", reason=problem)
