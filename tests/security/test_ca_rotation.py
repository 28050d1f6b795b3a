"""The CA of a Strict Cluster is replaced under load, while its parts lag, die and stay away.

Attack 24 ends it: whoever has a certificate of the old CA gets in nowhere. Attack 25's half-way
rotation: a controller and the operator are killed, and it goes on.
"""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from support.apiserver import ApiServer
from support.operator_process import running
from support.rotating_load import TOPIC, Producing, login, read_all
from support.rotating_pods import RotatingPods
from support.waiting import wait_until

from penstock.client import Admin
from penstock.proto.v1 import broker_pb2, journal_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub
from penstock_operator.names import GRPC_PORT, INTERNAL_PORT


@pytest.fixture
def pods(api_server: ApiServer, tmp_path: Path) -> Iterator[RotatingPods]:
    with RotatingPods(api_server, tmp_path) as made:
        made.start_all()
        yield made


def issuer_of(pods: RotatingPods, broker_id: int) -> bytes:
    """The key id of the CA that has signed the broker's certificate."""
    pem = (pods.data(broker_id) / "tls" / "server.pem").read_bytes()
    leaf = x509.load_pem_x509_certificates(pem)[0]
    found = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert found.key_identifier is not None
    return found.key_identifier


def refused(address: str, roots: bytes, pair: tuple[bytes, bytes]) -> grpc.StatusCode:
    """Of a call that shows this key and certificate."""
    credentials = grpc.ssl_channel_credentials(roots, *pair)
    with grpc.secure_channel(address, credentials) as channel:
        request = journal_pb2.PromiseJournalRequest(controller_epoch=1)
        with pytest.raises(grpc.RpcError) as caught:
            JournalServiceStub(channel).PromiseJournal(request, timeout=60)
    code: grpc.StatusCode = caught.value.code()
    return code


def distrusted(pods: RotatingPods, roots: bytes) -> bool:
    """Whether who trusts only these CAs gets no answer from a broker."""
    credentials = grpc.ssl_channel_credentials(roots)
    with grpc.secure_channel(pods.port("broker-0", GRPC_PORT), credentials) as channel:
        try:
            BrokerServiceStub(channel).Metadata(broker_pb2.MetadataRequest(), timeout=60)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNAVAILABLE)
    return False


def phase(pods: RotatingPods) -> str:
    state = pods.state()
    return "" if state is None else state.phase


def secrets(pods: RotatingPods) -> list[bool]:
    """Whether each of the two CAs' Secrets is there."""
    return [pods.object("/api/v1", "secrets", name) is not None for name in pods.names.authorities]


def test_the_ca_is_replaced_under_load_while_parts_lag_die_and_stay_away(
    pods: RotatingPods, tmp_path: Path
) -> None:
    given = login(pods)
    with Admin(pods.bootstrap, **given) as admin:  # type: ignore[arg-type]
        admin.create_topic(TOPIC, 1, 3)
    client_ca = pods.path / "client" / "ca.crt"
    former_ca = client_ca.read_bytes()
    pem = (pods.data(0) / "tls" / "server.pem").read_bytes()
    former = pem, pem  # key and chain are in one file
    issuers = [issuer_of(pods, broker_id) for broker_id in range(3)]
    with Producing(pods) as producing:
        producing.goes_on()
        pids = {each.name: each.pid for each in (*pods.brokers, *pods.controllers)}

        # A broker whose volume lags holds it up. Controller and operator die, and it goes on.
        pods.kubelet.lags.add("broker-2")
        pods.rotate("one", wait_s=15)
        pods.wait_state("TrustingBoth", waits=("broker 2",))
        wait_until(
            lambda: pods.condition().get("message", "").endswith("waits for broker 2"),
            what="the Cluster says for whom it waits",
            timeout_s=60,
        )
        assert pods.condition()["status"] == "True"
        dies = pods.active()
        dies.kill()
        pods.operator.kill()
        wait_until(lambda: pods.active() is not dies, what="another takes over", timeout_s=60)
        pods.wait_state("TrustingBoth", waits=("broker 2",))
        dies.start()
        pods.stack.enter_context(running(pods.server, tmp_path, pods.names.namespace))
        pods.kubelet.lags.clear()

        # A broker that is away is waited for, however long clients have had.
        pods.wait_state("WaitingForClients")
        assert [issuer_of(pods, broker_id) for broker_id in range(3)] == issuers
        pods.brokers[1].kill()
        pods.wait_state("WaitingForClients", waits=("broker 1",))
        producing.goes_on()
        pods.brokers[1].start()
        wait_until(lambda: phase(pods) != "WaitingForClients", what="it goes on", timeout_s=120)
        producing.goes_on()
        pods.wait_state("Settled")
        producing.goes_on()
        for process in (*pods.brokers, *pods.controllers):
            if process not in {dies, pods.brokers[1]}:
                assert process.pid == pids[process.name]

        # The old CA is gone, and is nobody's way in.
        state = pods.state()
        assert state is not None
        assert state.secret == "ca-2"
        assert secrets(pods) == [False, True]
        new_ca = client_ca.read_bytes()
        assert new_ca.count(b"BEGIN CERTIFICATE") == 1
        assert new_ca != former_ca
        assert not {issuer_of(pods, broker_id) for broker_id in range(3)} & {*issuers}
        for broker_id in range(3):
            at = pods.port(f"broker-{broker_id}", INTERNAL_PORT)
            assert refused(at, new_ca, former) is grpc.StatusCode.UNAVAILABLE
        assert distrusted(pods, former_ca)
        assert not distrusted(pods, new_ca)
        wait_until(
            lambda: pods.condition().get("reason") == "Settled", what="it says so", timeout_s=60
        )

        # The next one goes back to the first slot, and the id that was done is not done again.
        pods.rotate("two", wait_s=0)
        pods.wait_state("Settled", secret="ca")
        assert secrets(pods) == [True, False]
        producing.goes_on()
    assert producing.failures == []
    assert read_all(pods, len(producing.acknowledged), **given) == producing.acknowledged
    for process in (*pods.brokers, *pods.controllers):
        assert "PRIVATE KEY" not in process.log_text()
