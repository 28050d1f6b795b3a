"""Which of a broker's addresses a caller used, and the addresses it gets as a result.

Clients outside the network cannot use the names that brokers have inside it, and a certificate lets
nobody in where tokens do. A call on one of these listeners is marked while it is handled; code that
returns a broker's address asks here.
"""

from contextvars import ContextVar
from enum import Enum
from typing import Final, assert_never

from penstock.proto.v1 import broker_pb2 as pb
from penstock_broker.serving.callers import Role, caller


class Entrance(Enum):
    """The listener that a call came in by."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    CERTIFICATE = "certificate"
    """Users who show a certificate, from inside or outside."""


_ENTRANCE: Final[ContextVar[Entrance]] = ContextVar("entrance", default=Entrance.INSIDE)


def came_in_by(entrance: Entrance) -> None:
    """Marks the call that is being handled: every call has a context of its own."""
    _ENTRANCE.set(entrance)


def address_for_caller(info: pb.BrokerInfo) -> tuple[str, int]:
    """Host and port of a broker as the caller can reach it; host empty: it cannot."""
    match _ENTRANCE.get():
        case Entrance.INSIDE:
            return info.host, info.port
        case Entrance.OUTSIDE:
            return info.external_host, info.external_port
        case Entrance.CERTIFICATE:
            if info.external_certificate_port:
                return info.external_host, info.external_certificate_port
            return (info.host, info.certificate_port) if info.certificate_port else ("", 0)
        case never:
            assert_never(never)


def host_of_peer(peer: str) -> str:
    """The host in gRPC's name of a caller, such as `ipv4:10.0.0.7:41234`."""
    return (
        peer.partition(":")[2].rpartition(":")[0].strip("[]").replace("%5B", "").replace("%5D", "")
    )


def for_caller(info: pb.BrokerInfo) -> pb.BrokerInfo:
    """The description of a broker with the caller's address in it.

    Users are not told what only servers need: their ports, and the run that a follower names.
    """
    inside, user = _ENTRANCE.get() is Entrance.INSIDE, caller().role is Role.USER
    if inside and not user:
        return info
    seen = pb.BrokerInfo()
    seen.CopyFrom(info)
    if not inside:
        seen.host, seen.port = address_for_caller(info)
        seen.stream_port = 0  # not reachable from outside, and streams ask for tokens
    if user:
        seen.incarnation = ""
    seen.replication_port = seen.internal_port = 0
    seen.certificate_port = seen.external_certificate_port = 0
    return seen
