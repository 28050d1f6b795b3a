"""Attacks on the ports between servers of a cluster with TLS.

Position: on the network, with nothing, with a user's certificate, or with one broker's. Outcome:
whoever is no server gets no answer, and a server speaks for itself only.
"""

import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import grpc
import pytest
from support.cluster import PATIENT, Cluster
from support.secure import Certificates
from support.waiting import wait_until

from penstock.core.control.documents import FORMATS
from penstock.errors import ErrorCode
from penstock.proto import v1
from penstock.proto.v1 import (
    admin_pb2,
    broker_pb2,
    controller_pb2,
    journal_pb2,
    replication_pb2,
    transaction_peer_pb2,
)
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.controller_pb2_grpc import ControllerServiceStub
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub
from penstock.proto.v1.replication_pb2_grpc import ReplicationServiceStub
from penstock.proto.v1.transaction_peer_pb2_grpc import TransactionPeerServiceStub
from penstock.rpc.channel import open_channel
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.streams.tcp import open_tcp_stream

TIMEOUT_S = 20.0
JOURNAL = "journal.json"
STREAM_EVENTS = ('"follower connected"', '"follower gone"')


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers and their controller."""
    folder = tmp_path_factory.mktemp("secured")
    with Cluster(folder, brokers=2, secure=True, controller_config=PATIENT) as running:
        running.create_topic("t", replication_factor=2)
        running.wait_in_sync("t")
        yield running


@pytest.fixture
def certificates(cluster: Cluster) -> Certificates:
    assert cluster.certificates is not None
    return cluster.certificates


def refusal(call: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return error_from_rpc(caught.value).code


def first_refusal(answers: Any) -> ErrorCode:
    """The same of a stream."""
    return refusal(lambda: next(answers))


def promise(channel: grpc.Channel, epoch: int) -> Any:
    request = journal_pb2.PromiseJournalRequest(controller_epoch=epoch)
    return JournalServiceStub(channel).PromiseJournal(request, timeout=TIMEOUT_S)


def session(channel: grpc.Channel, broker_id: int) -> Any:
    register = controller_pb2.Register(
        broker_id=broker_id,
        incarnation="forged",
        directory_id="forged",
        host="h",
        port=1,
        formats=FORMATS,
    )
    requests = iter([controller_pb2.SessionRequest(register=register)])
    return ControllerServiceStub(channel).Session(requests, timeout=TIMEOUT_S)


def hello(broker_id: int, incarnation: str) -> replication_pb2.FollowerMessage:
    return replication_pb2.FollowerMessage(
        hello=replication_pb2.FollowerHello(
            broker_id=broker_id, incarnation=incarnation, window_bytes=1_000_000
        )
    )


def journals(cluster: Cluster) -> list[bytes]:
    found = [cluster.data_dir(broker) / JOURNAL for broker in cluster.brokers]
    return [path.read_bytes() if path.exists() else b"" for path in found]


# ------------------------------------------------------------ 2: plaintext, old TLS


@pytest.mark.parametrize("port", ["public", "internal", "controller"])
def test_plaintext_gets_no_answer(cluster: Cluster, port: str) -> None:
    with open_channel(address_of(cluster, port)) as channel:
        stub = BrokerServiceStub(channel)
        request = broker_pb2.MetadataRequest()
        assert refusal(lambda: stub.Metadata(request, timeout=TIMEOUT_S)) is ErrorCode.UNREACHABLE


@pytest.mark.parametrize("port", ["public", "internal", "controller", "replication", "streams"])
def test_tls_1_1_is_refused(cluster: Cluster, certificates: Certificates, port: str) -> None:
    context = certificates.broker(0).tls.client_context()
    assert shakes_hands(cluster, port, context), "the port is there"
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert not shakes_hands(cluster, port, context)


def shakes_hands(cluster: Cluster, port: str, context: ssl.SSLContext) -> bool:
    host, _, number = address_of(cluster, port).rpartition(":")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(number)), TIMEOUT_S) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=host):
                return True
        except (ssl.SSLError, ConnectionError):
            return False


def address_of(cluster: Cluster, port: str) -> str:
    if port in {"replication", "streams"}:
        info = next(info for info in cluster.metadata(0).brokers if info.broker_id == 0)
        number = info.replication_port if port == "replication" else info.stream_port
        return f"{info.host}:{number}"
    return {
        "public": cluster.brokers[0].address,
        "internal": cluster.internal[0],
        "controller": cluster.controller.address,
    }[port]


# ------------------------------------------------------------ 3, 7: no certificate of a server


def everything(channel: grpc.Channel) -> dict[str, Callable[[], Any]]:
    """A call of each service that is not for clients."""
    peers = transaction_peer_pb2.FindTransactionsRequest()
    metadata = broker_pb2.MetadataRequest()
    delete = admin_pb2.DeleteTopicsRequest()
    isr = controller_pb2.AlterIsrRequest()
    return {
        "journal": lambda: promise(channel, 2**62),
        "replicate": lambda: next(
            ReplicationServiceStub(channel).Replicate(iter([hello(1, "x")]), timeout=TIMEOUT_S)
        ),
        "session": lambda: next(session(channel, 0)),
        "ISR": lambda: ControllerServiceStub(channel).AlterIsr(isr, timeout=TIMEOUT_S),
        "transactions": lambda: TransactionPeerServiceStub(channel).FindTransactions(
            peers, timeout=TIMEOUT_S
        ),
        "metadata": lambda: BrokerServiceStub(channel).Metadata(metadata, timeout=TIMEOUT_S),
        "admin": lambda: AdminServiceStub(channel).DeleteTopics(delete, timeout=TIMEOUT_S),
    }


@pytest.mark.parametrize("port", ["internal", "controller"])
@pytest.mark.parametrize("who", ["nobody", "another CA"])
def test_without_a_certificate_of_the_cluster_no_call_reaches_it(
    cluster: Cluster, certificates: Certificates, tmp_path: Path, who: str, port: str
) -> None:
    """Also a pod with the right labels: labels are no certificate."""
    holder = certificates.stranger()
    if who == "another CA":
        other = Certificates(tmp_path)
        other.trust(certificates.authority)
        holder = other.broker(0)
    before = journals(cluster)
    with holder.channel(address_of(cluster, port)) as channel:
        for name, call in everything(channel).items():
            assert refusal(call) is ErrorCode.UNREACHABLE, name
    assert journals(cluster) == before


def test_a_users_certificate_opens_no_port_between_servers(
    cluster: Cluster, certificates: Certificates
) -> None:
    there = {
        "internal": {"journal", "replicate", "transactions", "metadata", "admin"},
        "controller": {"session", "ISR", "admin"},
    }
    for port, names in there.items():
        with certificates.user().channel(address_of(cluster, port)) as channel:
            for name, call in everything(channel).items():
                if name in names:
                    assert refusal(call) is ErrorCode.UNAUTHENTICATED, (port, name)


@pytest.mark.parametrize("server", ["broker", "controller"])
def test_a_server_of_another_cluster_is_none_of_this(
    cluster: Cluster, certificates: Certificates, server: str
) -> None:
    """Even if the same CA signs for both."""
    there = certificates.broker(0, "other") if server == "broker" else certificates.controller("o")
    for port in ("internal", "controller"):
        with there.channel(address_of(cluster, port)) as channel:
            call = everything(channel)["admin"]
            assert refusal(call) is ErrorCode.UNAUTHENTICATED


def test_the_port_of_clients_has_nothing_for_servers(
    cluster: Cluster, certificates: Certificates
) -> None:
    """Not even for a server; and who is not known gets nothing at all."""
    with certificates.broker(1).channel(cluster.brokers[0].address) as channel:
        calls = everything(channel)
        for name in ("journal", "replicate", "session", "ISR", "transactions"):
            with pytest.raises(grpc.RpcError) as caught:
                calls[name]()
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, name
        for name in ("metadata", "admin"):
            assert refusal(calls[name]) is ErrorCode.UNAUTHENTICATED, name


REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
NOT_LET_IN = {
    "public": {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED},
    "internal": {grpc.StatusCode.UNAVAILABLE},
    "controller": {grpc.StatusCode.UNAVAILABLE},
}
"""Between servers already the handshake fails."""


def every_method() -> list[str]:
    """Of every service that the protocol has, as gRPC names it."""
    names = [f"penstock.proto.v1.{each.name}" for each in iter_modules(v1.__path__)]
    files = [each.DESCRIPTOR for each in map(import_module, names) if hasattr(each, "DESCRIPTOR")]
    return sorted(
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    )


@pytest.mark.parametrize("port", sorted(NOT_LET_IN))
def test_no_call_of_the_protocol_is_let_in_without_certificate_and_token(
    cluster: Cluster, certificates: Certificates, port: str
) -> None:
    """Attacks 1 and 15. All calls are made as streams, which ask for a service just the same."""
    methods = every_method()
    assert len(methods) > 60
    seen = set()
    with certificates.stranger().channel(address_of(cluster, port)) as channel:
        for method in (*methods, REFLECTION):
            call: Any = channel.stream_stream(method)
            with pytest.raises(grpc.RpcError) as caught:
                next(call(iter([b""]), timeout=TIMEOUT_S))
            seen.add(caught.value.code())
            assert seen <= NOT_LET_IN[port], (method, caught.value)
    assert seen == NOT_LET_IN[port]


# ------------------------------------------------------------ 4, 6: journals


def test_only_a_controller_may_use_the_journal(
    cluster: Cluster, certificates: Certificates
) -> None:
    before = journals(cluster)
    forged = journal_pb2.Journal(controller_epoch=1, sequence=2**60, documents={"topic/t": "{}"})
    keep = journal_pb2.KeepJournalRequest(journal=forged)
    with certificates.broker(1).channel(cluster.internal[0]) as channel:
        assert refusal(lambda: promise(channel, 2**62)) is ErrorCode.PERMISSION_DENIED
        stub = JournalServiceStub(channel)
        denied = refusal(lambda: stub.KeepJournal(keep, timeout=TIMEOUT_S))
        assert denied is ErrorCode.PERMISSION_DENIED
    with certificates.controller().channel(cluster.internal[0]) as channel:
        assert refusal(lambda: promise(channel, 2**62)) is ErrorCode.INVALID_REQUEST
        promise(channel, 0)
    assert journals(cluster) == before, "nothing was promised"


# ------------------------------------------------------------ 5: another broker's name


def test_a_broker_registers_only_as_itself(cluster: Cluster, certificates: Certificates) -> None:
    address = cluster.controller.address
    for holder, broker_id in ((certificates.broker(1), 0), (certificates.controller(), 7)):
        with holder.channel(address) as channel:
            code = first_refusal(session(channel, broker_id))
            assert code is ErrorCode.PERMISSION_DENIED
            stub = ControllerServiceStub(channel)
            isr = controller_pb2.AlterIsrRequest(broker_id=broker_id)
            ids = controller_pb2.AllocateProducerIdsRequest(broker_id=broker_id)
            report = controller_pb2.ReportReplicasRequest(broker_id=broker_id)
            for call in (
                lambda stub=stub, isr=isr: stub.AlterIsr(isr, timeout=TIMEOUT_S),
                lambda stub=stub, ids=ids: stub.AllocateProducerIds(ids, timeout=TIMEOUT_S),
                lambda stub=stub, one=report: stub.ReportReplicas(one, timeout=TIMEOUT_S),
            ):
                assert refusal(call) is ErrorCode.PERMISSION_DENIED
    cluster.wait_alive({0, 1})


async def test_a_broker_follows_only_as_itself(
    cluster: Cluster, certificates: Certificates
) -> None:
    """With the right incarnation of the other: the true follower's stream is untouched."""
    leader = cluster.leader("t")
    follower = 1 - leader
    log = cluster.brokers[leader].log_text
    before = [log().count(event) for event in STREAM_EVENTS]
    brokers = {info.broker_id: info for info in cluster.metadata(leader).brokers}
    forged = hello(follower, brokers[follower].incarnation)
    thief = certificates.broker(leader)
    with thief.channel(cluster.internal[leader]) as channel:
        stream = ReplicationServiceStub(channel).Replicate(iter([forged]), timeout=TIMEOUT_S)
        assert first_refusal(stream) is ErrorCode.PERMISSION_DENIED
    port = brokers[leader].replication_port
    opened = await open_tcp_stream(f"127.0.0.1:{port}", thief.tls)
    await opened.send(forged.SerializeToString())
    with pytest.raises(Exception, match=f"may not follow as broker {follower}") as caught:
        await opened.receive()
    assert getattr(caught.value, "code", None) is ErrorCode.PERMISSION_DENIED
    await opened.close()
    assert [log().count(event) for event in STREAM_EVENTS] == before


async def test_no_stream_of_followers_without_a_certificate(
    cluster: Cluster, certificates: Certificates
) -> None:
    leader = cluster.leader("t")
    port = next(i for i in cluster.metadata(0).brokers if i.broker_id == leader).replication_port
    for holder, words in (
        (certificates.stranger(), r"not accept this (side's )?certificate"),
        (certificates.user(), "only brokers and controllers"),
    ):
        stream = await open_tcp_stream(f"127.0.0.1:{port}", holder.tls)
        await stream.send(hello(1 - leader, "x").SerializeToString())
        with pytest.raises(Exception, match=words):
            await stream.receive()
        await stream.close()


# ------------------------------------------------------------ 20: handshakes that never end


def test_half_open_handshakes_take_nobodys_place(
    cluster: Cluster, certificates: Certificates
) -> None:
    ports = ("internal", "replication", "streams", "controller")
    addresses = [address_of(cluster, port).rpartition(":") for port in ports]
    opened = [
        socket.create_connection((host, int(port)), TIMEOUT_S)
        for host, _, port in addresses
        for _ in range(300)
    ]
    try:
        context = certificates.broker(0).tls.client_context()
        for port in ports:
            assert shakes_hands(cluster, port, context), port
        wait_until(cluster.brokers[0].is_serving, what="probes are answered")
        cluster.wait_controller()
    finally:
        for connection in opened:
            connection.close()
