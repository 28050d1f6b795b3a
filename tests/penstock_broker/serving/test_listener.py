"""Which address of a broker a caller gets, and how servers call it, while its cluster changes."""

from contextvars import copy_context

import pytest

from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.peers import PeerAddress, peer_address, towards
from penstock.rpc.tls import Tls
from penstock.rpc.transport import GrpcTransport
from penstock_broker.serving.callers import Caller, Role, entered
from penstock_broker.serving.listener import Listener, came_to, for_caller

HOST = "b.svc"
PLAIN = pb.BrokerInfo(host=HOST, port=92, replication_port=96, stream_port=97)
BOTH = pb.BrokerInfo(
    host=HOST,
    port=92,
    replication_port=96,
    stream_port=97,
    secure_port=95,
    secure_internal_port=98,
)
STRICT = pb.BrokerInfo(
    host=HOST, port=92, replication_port=96, stream_port=97, secure_port=95, internal_port=98
)
NOWHERE = ("", 0, 0)


def told(info: pb.BrokerInfo, listener: Listener) -> tuple[str, int, int]:
    """Host, port and port of streams that a caller of this listener gets."""

    def call() -> tuple[str, int, int]:
        came_to(listener)
        seen = for_caller(info)
        return seen.host, seen.port, seen.stream_port

    return copy_context().run(call)


@pytest.mark.parametrize(
    ("info", "plaintext", "tls", "secure"),
    [
        (PLAIN, (HOST, 92, 97), NOWHERE, NOWHERE),
        (BOTH, (HOST, 92, 97), (HOST, 95, 0), (HOST, 95, 0)),
        (STRICT, NOWHERE, (HOST, 92, 97), (HOST, 95, 97)),
    ],
    ids=["plaintext", "both", "TLS"],
)
def test_a_client_is_told_what_it_can_reach_in_its_way(
    info: pb.BrokerInfo,
    plaintext: tuple[str, int, int],
    tls: tuple[str, int, int],
    secure: tuple[str, int, int],
) -> None:
    assert told(info, Listener.PLAINTEXT) == plaintext
    assert told(info, Listener.TLS) == tls
    assert told(info, Listener.SECURE) == secure
    assert told(info, Listener.ANY) == (HOST, 92, 97)


def test_a_user_is_told_no_port_of_servers() -> None:
    def call() -> pb.BrokerInfo:
        came_to(Listener.SECURE)
        entered(Caller(Role.USER, "serviceaccount:etl/ada"))
        return for_caller(BOTH)

    assert copy_context().run(call) == pb.BrokerInfo(host=HOST, port=95)


@pytest.mark.parametrize(
    ("info", "with_tls", "without"),
    [
        (PLAIN, PeerAddress("b.svc:92", secured=False), PeerAddress("b.svc:92", secured=False)),
        (BOTH, PeerAddress("b.svc:98", secured=True), PeerAddress("b.svc:92", secured=False)),
        (STRICT, PeerAddress("b.svc:98", secured=True), PeerAddress("b.svc:98", secured=True)),
    ],
    ids=["plaintext", "both", "TLS"],
)
def test_a_server_calls_by_tls_what_has_it(
    info: pb.BrokerInfo, with_tls: PeerAddress, without: PeerAddress
) -> None:
    assert peer_address(info, tls=True) == with_tls
    assert peer_address(info, tls=False) == without


def test_only_what_serves_plaintext_calls_in_plaintext() -> None:
    """A Strict broker is not talked into it by whoever registers without TLS."""
    tls = Tls.__new__(Tls)  # never used: only that there is one counts
    strict, both, plain = GrpcTransport(tls), GrpcTransport(tls, migrating=True), GrpcTransport()
    assert towards(strict, secured=False) is strict
    assert towards(plain, secured=True) is plain
    assert towards(both, secured=True) is both
    assert towards(both, secured=False).tls is None
