"""A cluster with TLS, of real processes: it works as one without, and while certificates change."""

from pathlib import Path

import grpc
import pytest
from support.background import PAUSE_S, Background
from support.cluster import PATIENT, Cluster
from support.metrics import scrape
from support.secure import Certificates
from support.waiting import wait_until
from support.wire import Wire

from penstock.proto.v1 import broker_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock_broker.certificates.authority import Authority

EXPIRY = "penstock_tls_certificate_expiry_seconds"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, brokers=3, secure=True, start=False, controller_config=PATIENT)


def certificates_of(cluster: Cluster) -> Certificates:
    assert cluster.certificates is not None
    return cluster.certificates


class Producing(Background):
    """Appends to topic t all the time, acks=all: over one connection that stays, and over new
    ones. Whatever fails is kept."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        # Keeps the former files while new ones are being written.
        self._tls = certificates_of(cluster).broker(0).tls
        self.acknowledged = 0

    def _run(self) -> None:
        address = self._cluster.internal[self._cluster.leader("t")]
        with Wire(address, self._tls) as kept:
            while not self._stop.wait(PAUSE_S):
                self._tls.look_now()
                with Wire(address, self._tls) as new:
                    for wire in (kept, new):
                        try:
                            wire.produce("t", [str(self.acknowledged).encode()])
                            self.acknowledged += 1
                        except Exception as error:  # noqa: BLE001 - the test reads it
                            self.failures.append(error)


def test_brokers_register_elect_and_replicate_over_tls(cluster: Cluster) -> None:
    with cluster:
        cluster.start()
        cluster.create_topic("t", partitions=3)
        cluster.wait_in_sync("t")
        former = cluster.leader("t", 0)
        cluster.brokers[former].kill()
        assert cluster.wait_leader_is_not("t", 0, former) >= 0
        cluster.brokers[former].start()
        cluster.wait_in_sync("t")


def test_certificates_and_the_ca_change_under_load_and_nobody_notices(cluster: Cluster) -> None:
    """Trust both CAs, new leaves, trust the new one only: each once all processes use the former.

    Attack 24 begins where this ends: whoever has a certificate of the old CA does not get in again.
    """
    with cluster:
        cluster.start()
        certificates = certificates_of(cluster)
        cluster.create_topic("t", replication_factor=3)
        cluster.wait_in_sync("t")
        ended = scrape(cluster.metrics_ports[0])[EXPIRY + "{own}"]
        files = certificates.broker(1).files
        assert files.certificate is not None
        assert files.key is not None
        former = files.key.read_bytes(), files.certificate.read_bytes()
        new = Authority.new("the next CA of a test", days=1_000)
        with Producing(cluster) as producing:
            certificates.trust(certificates.authority, new)
            wait_used(cluster, 2)
            certificates.renew(new)
            wait_used(cluster, 3)
            certificates.trust(new)
            wait_used(cluster, 4)
            before = producing.acknowledged
            wait_until(lambda: producing.acknowledged > before + 20, what="some more are written")
        assert producing.failures == []
        at = cluster.leader("t")
        with Wire(cluster.internal[at], certificates.broker(1).tls) as wire:
            found = wire.read_all("t")
        assert found == [str(number).encode() for number in range(producing.acknowledged)]

        for broker in cluster.brokers.values():
            log = broker.log_text()
            assert log.count('"registered"') > 1, "the session is renewed"
            for unwanted in ("session ended", "stream broke", "follower gone", "cannot be used"):
                assert unwanted not in log
        for port in (*cluster.metrics_ports.values(), cluster.controller_metrics_port):
            page = scrape(port)
            assert page[EXPIRY + "{own}"] >= ended
            assert page[EXPIRY + "{ca}"] > page[EXPIRY + "{own}"]
        old = grpc.ssl_channel_credentials(new.certificate, *former)
        with grpc.secure_channel(cluster.internal[0], old) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                BrokerServiceStub(channel).Metadata(broker_pb2.MetadataRequest(), timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

        cluster.brokers[at].kill()
        cluster.wait_leader_is_not("t", 0, at)
        cluster.brokers[at].start()
        cluster.wait_in_sync("t")


def wait_used(cluster: Cluster, generation: int) -> None:
    """Until every process says that it uses these files, or later ones."""

    def used() -> bool:
        return all(
            any(f'"generation": {later}' in log for later in range(generation, generation + 20))
            for log in (process.log_text() for process in cluster.processes)
        )

    wait_until(used, what=f"all use files of generation {generation}", timeout_s=60)
