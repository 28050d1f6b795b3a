"""Message streams to a broker: cheaper than gRPC, used where the broker has a port for them.

    open ─ has a port, which answers ─▶ hello sent ─▶ stream
      └─── none, or blocked on the way ─▶ None: use gRPC

gRPC is always there, so a stream is never waited for long, and a port that did not answer (a
network policy, a proxy) is left alone for a while.
"""

import asyncio
from time import monotonic
from typing import Final

from penstock.client.cluster.credentials import NOTHING, Shown
from penstock.errors import OverloadedError, PenstockError, UnreachableError
from penstock.proto.v1 import streams_pb2 as pb
from penstock.rpc.streams.tcp import TcpStream, open_tcp_stream
from penstock.rpc.tls import Tls

CONNECT_S: Final = 1.0
"""How long an attempt to connect may take."""
LEAVE_ALONE_S: Final = 30.0
"""How long a port that did not answer, or not as a broker does, or has too many streams, is not
tried again."""
BROKEN_S: Final = 1.0
"""The same for a connection that broke while it was opened."""


class StreamPort:
    """Where one broker accepts message streams."""

    def __init__(self, tls: Tls | None = None) -> None:
        """`tls` None: plaintext."""
        self._tls = tls
        self.address = ""
        """`host:port`; empty: nowhere, as far as known."""
        self._left_alone: tuple[str, float] = ("", 0.0)
        """An address, and until when."""

    async def open(self, hello: pb.StreamHello, shown: Shown = NOTHING) -> TcpStream | None:
        """A stream whose hello is sent, with what is shown; None: use gRPC.

        The caller ends it.
        """
        address = self.address
        if not address or (self._left_alone[0] == address and self._left_alone[1] > monotonic()):
            return None
        try:
            async with asyncio.timeout(CONNECT_S):
                return await _greeted(address, _complete(hello, shown), self._tls)
        except UnreachableError as error:
            # A broker that starts refuses at once, and may be there a moment later.
            if not error.refused:
                self._leave_alone(BROKEN_S)
        except (PenstockError, TimeoutError):
            self._leave_alone(LEAVE_ALONE_S)
        return None

    def ended(self, error: PenstockError) -> None:
        """A stream ended with this. A broker that has too many may still take calls over gRPC."""
        if isinstance(error, OverloadedError):
            self._leave_alone(LEAVE_ALONE_S)

    def _leave_alone(self, seconds: float) -> None:
        self._left_alone = (self.address, monotonic() + seconds)


def _complete(hello: pb.StreamHello, shown: Shown) -> pb.StreamHello:
    if shown.token is None:
        return hello
    return pb.StreamHello(cluster_id=hello.cluster_id, method=hello.method, token=shown.token.text)


async def _greeted(address: str, hello: pb.StreamHello, tls: Tls | None) -> TcpStream:
    """A stream to what has proved to be a broker. Raises PenstockError."""
    stream = await open_tcp_stream(address, tls)
    try:
        await stream.send(hello.SerializeToString())
        await stream.greeted()
    except BaseException:
        stream.cut()
        raise
    return stream
