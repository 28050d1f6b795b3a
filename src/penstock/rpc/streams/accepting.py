"""Accepting connections with TLS, each with the files of its moment.

    listener ─ accept ─▶ handshake, HANDSHAKE_S at most ─▶ protocol
                              └─ more than HANDSHAKES_MAX: the oldest makes room

asyncio's own server would keep the certificates that it began with. A connection that never
finishes its handshake is no stream and takes no place of one; whoever opens many such connections
ends their own first, because a real handshake takes milliseconds.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.rpc.streams.secured import HANDSHAKE_S, TlsConnection
from penstock.rpc.tls import Tls

HANDSHAKES_MAX: Final = 256
_ACCEPT_AGAIN_S: Final = 0.1
"""After a failure to accept: this process has no descriptor left."""


@dataclass(frozen=True, slots=True)
class Secured:
    """How a server's connections are secured.

    `ask_clients`: only clients with a certificate of the CA get in. `age_s`: about how old a stream
    gets.
    """

    tls: Tls
    ask_clients: bool
    age_s: float


class Accepting:
    """Accepts connections for `protocol`; `run` once."""

    def __init__(self, secured: Secured, protocol: Callable[[], asyncio.BufferedProtocol]) -> None:
        self._secured = secured
        self._protocol = protocol
        self._shaking: dict[asyncio.Task[None], None] = {}
        """Handshakes under way, the oldest first."""

    async def run(self, listener: socket.socket) -> None:
        """Accepts until it is cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(_ACCEPT_AGAIN_S)
                    continue
                if len(self._shaking) >= HANDSHAKES_MAX:
                    oldest = next(iter(self._shaking))
                    del self._shaking[oldest]
                    oldest.cancel()
                task = tasks.create_task(self._shake_hands(connection))
                self._shaking[task] = None
                task.add_done_callback(lambda done: self._shaking.pop(done, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        secured = self._secured
        context = secured.tls.server_context(ask_clients=secured.ask_clients)
        layer = TlsConnection(self._protocol(), context)
        # Whoever fails to prove who they are hears so from TLS itself.
        with suppress(OSError):
            try:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: layer, connection)
            except BaseException:
                connection.close()
                raise
            await layer.shake_hands(HANDSHAKE_S)
