"""Which of a broker's addresses a caller used, and the addresses it gets as a result.

Clients outside the network cannot use the names that brokers have inside it, and clients over TLS
cannot use ports in plaintext; a certificate lets nobody in where tokens do. A call is marked while
it is handled; code that returns a broker's address asks here. While a cluster changes between
plaintext and TLS, its brokers differ:

| a broker has | it registers | plaintext clients | TLS clients of --listen | of --secure-listen |
|---|---|---|---|---|
| plaintext | port | port | not at all | not at all |
| both | port, secure_port, secure_internal_port | port | secure_port | secure_port |
| TLS | port, secure_port, internal_port | not at all | port | secure_port, or port |
"""

from contextvars import ContextVar
from enum import Enum
from typing import Final, assert_never

from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.transport import Transport
from penstock_broker.serving.callers import Role, caller


class Listener(Enum):
    """The address that was called, as far as answers differ."""

    ANY = "ports of servers; clients' port of a broker without TLS"
    PLAINTEXT = "--listen and --stream-listen of a broker that has TLS beside them"
    TLS = "--listen and --stream-listen of a broker with TLS"
    SECURE = "--secure-listen"
    OUTSIDE = "--external-listen"
    CERTIFICATE = "--certificate-listen: users who show a certificate, from inside or outside"


def listener_of_clients(transport: Transport) -> Listener:
    """What --listen and --stream-listen of a broker with this transport are."""
    if transport.plaintext is not None:
        return Listener.PLAINTEXT
    return Listener.ANY if transport.tls is None else Listener.TLS


_CALLED: Final[ContextVar[Listener]] = ContextVar("called", default=Listener.ANY)


def came_to(listener: Listener) -> None:
    """Marks the call that is being handled: every call has a context of its own."""
    _CALLED.set(listener)


def address_for_caller(info: pb.BrokerInfo) -> tuple[str, int]:
    """Host and port of a broker as the caller can reach it; host empty: it cannot."""
    has_only_tls = bool(info.internal_port)
    match _CALLED.get():
        case Listener.OUTSIDE:
            return info.external_host, info.external_port
        case Listener.ANY:
            return info.host, info.port
        case Listener.PLAINTEXT:
            port = 0 if has_only_tls else info.port
        case Listener.TLS:
            port = info.port if has_only_tls else info.secure_port
        case Listener.SECURE:
            port = info.secure_port or (info.port if has_only_tls else 0)
        case Listener.CERTIFICATE:
            if info.external_certificate_port:
                return info.external_host, info.external_certificate_port
            port = info.certificate_port
        case never:
            assert_never(never)
    return (info.host, port) if port else ("", 0)


def host_of_peer(peer: str) -> str:
    """The host in gRPC's name of a caller, such as `ipv4:10.0.0.7:41234`."""
    return (
        peer.partition(":")[2].rpartition(":")[0].strip("[]").replace("%5B", "").replace("%5D", "")
    )


def for_caller(info: pb.BrokerInfo) -> pb.BrokerInfo:
    """The description of a broker with the caller's address in it.

    Users are not told what only servers need: their ports, and the run that a follower names.
    """
    called, user = _CALLED.get(), caller().role is Role.USER
    if called is Listener.ANY and not user:
        return info
    seen = pb.BrokerInfo()
    seen.CopyFrom(info)
    seen.host, seen.port = address_for_caller(info)
    elsewhere = called in {Listener.OUTSIDE, Listener.CERTIFICATE}  # streams ask for tokens
    if not seen.host or elsewhere or _has_plaintext_streams(info, called):
        seen.stream_port = 0  # not reachable from there
    if user:
        seen.incarnation = ""
    if user or elsewhere:
        seen.replication_port = seen.internal_port = 0
        seen.secure_port = seen.secure_internal_port = 0
        seen.certificate_port = seen.external_certificate_port = 0
    return seen


def _has_plaintext_streams(info: pb.BrokerInfo, called: Listener) -> bool:
    """Streams of a broker with both have no TLS, and a client over TLS uses nothing else."""
    return called in {Listener.TLS, Listener.SECURE} and not info.internal_port
