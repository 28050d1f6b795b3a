"""Where a server calls a broker, and over what: decided by what the broker has registered.

| a broker's ports | it registers | a server with TLS calls | one without TLS |
|---|---|---|---|
| plaintext | `port` | `port` | `port` |
| both | `port`, `secure_internal_port` | `secure_internal_port` | `port` |
| TLS | `port`, `internal_port` | `internal_port` | nothing: such clusters are not mixed |

So a cluster gets TLS broker by broker, and a release that does not know `secure_internal_port` goes
on calling `port`. Only a process that serves plaintext itself ever calls in plaintext
(`Transport.plaintext`): what a Strict process reads in a registration never makes it do so.
"""

from dataclasses import dataclass
from typing import Protocol

from penstock.rpc.transport import Transport


class Registered(Protocol):
    """What a broker told of its ports; 0: it has none."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def internal_port(self) -> int: ...
    @property
    def secure_internal_port(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """`address`: `host:port`. `secured`: the broker has TLS there."""

    address: str
    secured: bool


def peer_address(broker: Registered, *, tls: bool) -> PeerAddress:
    """Where brokers and controllers call this one. `tls`: whether the caller has it."""
    if tls and broker.secure_internal_port:
        return PeerAddress(f"{broker.host}:{broker.secure_internal_port}", secured=True)
    port = broker.internal_port or broker.port
    return PeerAddress(f"{broker.host}:{port}", secured=bool(broker.internal_port))


def towards(transport: Transport, *, secured: bool) -> Transport:
    """What reaches a peer that has TLS, or has none; also what serves the ports that a cluster
    without TLS has, too: there `secured` is False."""
    return transport if secured or transport.plaintext is None else transport.plaintext
