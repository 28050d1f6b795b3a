"""A connection between a channel and a server: what breaks it, and how each end is told.

Calls on one connection are ordered only within themselves, as gRPC promises no more. They share its
end: a direction that stays blocked for KEEPALIVE_MS, a killed node, or `break_off`. Each end is
then told in its own time; a killed one never is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock_sim.network import Network
from penstock_sim.wire.messages import BROKEN
from penstock_sim.wire.way import Way

if TYPE_CHECKING:
    from penstock_sim.wire.channel import SimChannel
    from penstock_sim.wire.client_call import ClientCall
    from penstock_sim.wire.server import SimServer
    from penstock_sim.wire.server_call import ServerCall

CLIENT: Final = 0
SERVER: Final = 1


class Connection:
    """Accepted by `server`; the channel gets it after the handshake."""

    def __init__(self, net: Network, channel: SimChannel, server: SimServer) -> None:
        self.net = net
        self.number = net.next_number()
        self.opener = channel.node_id
        self.acceptor = server.node_id
        self.channel = channel
        self.server = server
        self.window_bytes: int = channel.window_bytes
        self.broken = False
        self._heard = [False, False]
        """By side: whether it knows that the connection is broken."""
        self._loops = channel.loop, server.loop
        self.client_calls: dict[int, ClientCall] = {}
        self.server_calls: dict[int, ServerCall] = {}
        self.last_due_us = 0
        """When the last frame in flight will have arrived, unless it is held back."""
        self._left = False
        net.connections[self.number] = self

    def ends(self, target: int) -> tuple[int, int]:
        """(source, target) as nodes, for a direction towards a side."""
        if target == SERVER:
            return self.opener, self.acceptor
        return self.acceptor, self.opener

    def is_deaf(self, side: int) -> bool:
        """Nothing more arrives at this side."""
        return self._heard[side] or self._loops[side].dead

    def ways(self) -> tuple[Way, Way]:
        """Both directions of a new call: to the server, to the client."""
        there, back = Way(self, SERVER), Way(self, CLIENT)
        there.back, back.back = back, there
        return there, back

    def break_off(self) -> None:
        """Breaks it; each end is told after a while."""
        if not self.broken:
            self._end()
            for side in (CLIENT, SERVER):
                delay_ms = self.net.scheduler.between(0.1, 30)
                self.net.scheduler.after(delay_ms, self._hear, side)

    def leave(self) -> None:
        """The channel no longer uses it; what is in flight still arrives."""
        self._left = True
        self.settle()

    def settle(self) -> None:
        """Closes it if it was left and no call is open at either end."""
        if self._left and not self.broken and not self.server_calls and not self.client_calls:
            self._end()

    def _end(self) -> None:
        self.broken = True
        del self.net.connections[self.number]

    def begin_shutdown(self) -> None:
        """The server accepts no more calls, and tells the channel."""
        Way(self, CLIENT).send(self.channel.lost, self)

    def shut(self) -> None:
        """The server closes it. What it has sent arrives before the channel is told."""
        self._hear(SERVER)
        Way(self, CLIENT).send_last(self._server_left, None)

    def _server_left(self, _: None) -> None:
        if not self.broken:
            self._end()
            self._lose("Cancelling all calls")

    def _hear(self, side: int) -> None:
        if self.is_deaf(side):
            return
        if side == CLIENT:
            self._lose(BROKEN)
        else:
            self._heard[SERVER] = True
            for handled in list(self.server_calls.values()):
                handled.client_gone(None)

    def _lose(self, details: str) -> None:
        self._heard[CLIENT] = True
        self.channel.lost(self)
        for call in list(self.client_calls.values()):
            call.connection_lost(details)
