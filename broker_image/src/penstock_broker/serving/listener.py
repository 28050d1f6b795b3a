"""Which of a broker's two addresses a caller used, and the addresses it gets as a result.

Clients outside the network cannot use the names that brokers have inside it. A call on the external
listener is marked while it is handled; code that returns a broker's address asks here.
"""

from contextvars import ContextVar
from typing import Final

from penstock.proto.v1 import broker_pb2 as pb
from penstock_broker.serving.callers import Role, caller

_EXTERNAL: Final[ContextVar[bool]] = ContextVar("external", default=False)


def came_from_outside() -> None:
    """Marks the call that is being handled: every call has a context of its own."""
    _EXTERNAL.set(True)


def address_for_caller(info: pb.BrokerInfo) -> tuple[str, int]:
    """Host and port of a broker as the caller can reach it; host empty: it cannot."""
    if _EXTERNAL.get():
        return info.external_host, info.external_port
    return info.host, info.port


def host_of_peer(peer: str) -> str:
    """The host in gRPC's name of a caller, such as `ipv4:10.0.0.7:41234`."""
    return (
        peer.partition(":")[2].rpartition(":")[0].strip("[]").replace("%5B", "").replace("%5D", "")
    )


def for_caller(info: pb.BrokerInfo) -> pb.BrokerInfo:
    """The description of a broker with the caller's address in it.

    Users are not told what only servers need: their ports, and the run that a follower names.
    """
    external, user = _EXTERNAL.get(), caller().role is Role.USER
    if not external and not user:
        return info
    seen = pb.BrokerInfo()
    seen.CopyFrom(info)
    if external:
        seen.host, seen.port = info.external_host, info.external_port
        seen.stream_port = 0  # not reachable from outside
    if user:
        seen.incarnation = ""
    seen.replication_port = seen.internal_port = 0
    return seen
