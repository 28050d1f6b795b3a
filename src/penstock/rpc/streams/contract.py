"""What a message stream is, whatever carries it.

    send ─▶ waits while the other side is slow
    receive ─▶ one message at a time          deliver ─▶ a call per message, as it arrives

`deliver` is the fast way: the callback runs in the turn of the loop in which the bytes arrived, so
a message costs no switch of tasks.
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Protocol, TypeAlias

from penstock.errors import PenstockError
from penstock.rpc.channel import MAX_MESSAGE_BYTES
from penstock.rpc.streams.frames import Received

MESSAGE_BYTES_MAX: Final = MAX_MESSAGE_BYTES
"""Largest message; a longer one ends the stream, at its header."""
FIRST_MESSAGE_BYTES_MAX: Final = 64 * 1024
"""The same for the first message that a server gets: nobody knows yet who sent it."""


class MessageStream(Protocol):
    """One end of a stream. One task receives, one sends.

    A stream that breaks, or that the other side ends with an error, raises that error to whoever
    waits, and on every later use.
    """

    async def send(self, message: bytes) -> None:
        """Sends a message; while much is unsent already, it first waits.

        A message may be lost without an error: the stream breaks later.
        """
        ...

    def post(self, message: bytes) -> bool:
        """Sends a message without waiting; False, and nothing is sent, if `send` would wait or
        raise."""
        ...

    async def receive(self) -> Received | None:
        """The next message; None if the other side ended the stream in an orderly way."""
        ...

    async def deliver(self, receive: Callable[[Received], None]) -> None:
        """Calls `receive` with every message, in order, until the other side ends the stream.

        What `receive` raises is raised here, and it is not called again.
        """
        ...

    def hold(self) -> None:
        """Delivers nothing until `release`: what arrives waits, and soon the other side as well."""
        ...

    def release(self) -> None:
        """Delivers again, what has waited first, in the next turn of the loop. Idempotent."""
        ...

    @property
    def peer_host(self) -> str:
        """The address of the other side's host; "": not known."""
        ...

    @property
    def peer_uris(self) -> tuple[str, ...]:
        """The URIs in the other side's certificate; none without TLS, or without a certificate."""
        ...

    async def close(self, error: PenstockError | None = None, /) -> None:
        """Ends the stream, and tells the other side why. Nothing is received any more.

        What was sent before arrives first, if the connection holds; after a second it is cut.
        Idempotent.
        """
        ...


class Clients(Enum):
    """Who may connect to a port of a server with TLS; without TLS, everybody may to all."""

    PROBES = "probes"
    """Everybody, in plaintext even then: probes have no TLS."""
    USERS = "users"
    """Everybody, over TLS; who they are, what they send says."""
    CERTIFIED = "certified"
    """Whoever has a certificate of the CA."""
    CERTIFIED_USERS = "certified users"
    """Whoever has a certificate of another CA, that of users. Ports of gRPC only."""


Handle: TypeAlias = Callable[[MessageStream], Awaitable[None]]
"""Serves one stream, which ends when it returns. A PenstockError that it raises is sent to the
other side; it raises nothing else, except CancelledError."""


class StreamServer(Protocol):
    """Accepts streams at one address."""

    async def listen(self, address: str) -> int:
        """Binds `host:port` and returns the port; 0 stands for any.

        Who connects before `run` waits.

        Raises OSError if the address is not available.
        """
        ...

    async def run(self) -> None:
        """Serves until it is cancelled; then the address is given up, and all streams end with
        SHUTTING_DOWN."""
        ...

    def close(self) -> None:
        """Gives the address up: for a server that never ran."""
        ...
