"""Brokers and controllers as callers: known by their certificate, and held to what it says.

    certificate ─ URI ─▶ ServerName ─▶ Caller(BROKER 3) ─ require_broker(3) ─▶ its own messages only

Where nobody is asked (`NOBODY`: no TLS), everybody may say anything.
"""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.certificates.names import ServerName
from penstock_broker.serving.callers import Caller, Identify, Role, caller


def identify_server(cluster_id: Callable[[], str]) -> Identify:
    """For a port where brokers and controllers call. `cluster_id` returns "" while unknown."""

    async def identify(context: Any) -> Caller:
        uris = context.auth_context().get("peer_uri", ())
        return server_of([uri.decode(errors="replace") for uri in uris], cluster_id())

    return identify


def server_of(uris: Sequence[str], cluster_id: str) -> Caller:
    """The server that a certificate with these URIs is about.

    Raises ClusterError(UNAUTHENTICATED) if it is about none of this cluster; `cluster_id` "" is not
    known.
    """
    name = ServerName.parse(uris[0]) if len(uris) == 1 else None
    if name is None:
        raise ClusterError(
            f"the certificate names {', '.join(uris) or 'no server'}, but only brokers and "
            "controllers of the cluster may call this port; clients use another one",
            ErrorCode.UNAUTHENTICATED,
        )
    if cluster_id and name.cluster_id != cluster_id:
        raise ClusterError(
            f"the certificate is of a server of cluster {name.cluster_id}, this is cluster "
            f"{cluster_id}",
            ErrorCode.UNAUTHENTICATED,
        )
    if name.broker_id is None:
        return Caller(Role.CONTROLLER, name.uri)
    return Caller(Role.BROKER, name.uri, broker_id=name.broker_id)


def require_broker(broker_id: int, what: str) -> None:
    """Raises ClusterError(PERMISSION_DENIED) unless the caller is this broker, or NOBODY.

    `what` it does, for the error: "register".
    """
    who = caller()
    if who.role is Role.NOBODY or (who.role is Role.BROKER and who.broker_id == broker_id):
        return
    raise _denied(who, f"{what} as broker {broker_id}")


def require_role(role: Role, what: str) -> None:
    """Raises ClusterError(PERMISSION_DENIED) unless the caller has this role, or is NOBODY."""
    who = caller()
    if who.role not in {Role.NOBODY, role}:
        raise _denied(who, f"{what}, only a {role.value} may")


def _denied(who: Caller, what: str) -> ClusterError:
    return ClusterError(
        f"{who.principal or who.role.value} may not {what}", ErrorCode.PERMISSION_DENIED
    )
