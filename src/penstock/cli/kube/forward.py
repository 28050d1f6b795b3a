"""Ports of this machine that lead to broker pods, through the Kubernetes API.

    client ──▶ 127.0.0.1:p ──accept──▶ Tunnel (websocket to the API server) ──▶ pod:9092

A pod gets its port when its address is first resolved; a tunnel is made per connection, so a pod
that was replaced is reached again by the next one, which gRPC makes by itself. All threads are
daemons and all sockets are this process's: when it ends, nothing stays, however it ends. A tunnel
that cannot be opened closes its connection, and the reason is reported once.
"""

import importlib
import json
import re
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.cli.kube.frames import BINARY, CLOSE, DATA_CHANNEL, PING, FrameError, FrameReader
from penstock.kubernetes.resources import path_of

if TYPE_CHECKING:
    from penstock.kubernetes.api import Api

CHUNK_BYTES: Final = 256 * 1024
BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Buffer limit of each direction of a tunnel; above it, the other side is not read."""
PROTOCOL: Final = "v4.channel.k8s.io"
HOST: Final = "127.0.0.1"
_NOT_RUNNING: Final = "the pod has just been deleted, or is not running yet"
_STATUS: Final = {
    401: "the API server does not accept your credentials",
    403: "you have no permission to port-forward to pods",
    404: "the pod no longer exists",
    **dict.fromkeys((500, 502, 503, 504), _NOT_RUNNING),
}


class Tunnel(Protocol):
    """Carries bytes until one side closes; the caller closes `local`."""

    def carry(self, local: socket.socket) -> None: ...


OpenTunnel = Callable[[str, int], Tunnel]
"""(pod, port) -> a tunnel; raises OSError or an exception of the websocket package."""


class Forwarder:
    """Gives every pod a local port. Its `resolve` is a client's `resolve_address`.

    Only addresses like `flights-broker-0.flights-brokers.NS.svc:9092` of the one cluster are
    translated; others are returned as they are.
    """

    def __init__(
        self,
        cluster: str,
        namespace: str,
        open_tunnel: OpenTunnel,
        complain: Callable[[str], None],
    ) -> None:
        name, space = re.escape(cluster), re.escape(namespace)
        self._pattern = re.compile(
            rf"({name}-broker-\d+)\.{name}-brokers\.{space}\.svc(?:\.[a-z0-9.-]+)?:(\d+)"
        )
        self._open = open_tunnel
        self._complain = complain
        self._told: set[str] = set()
        self._listeners: dict[tuple[str, int], socket.socket] = {}
        self._lock = threading.Lock()

    def resolve(self, address: str) -> str:
        """The address to connect to instead of `address`; returns at once."""
        match = self._pattern.fullmatch(address)
        if match is None:
            return address
        target = match[1], int(match[2])
        with self._lock:
            listener = self._listeners.get(target)
            if listener is None:
                listener = self._listeners[target] = socket.create_server((HOST, 0))
                threading.Thread(
                    target=self._accept,
                    args=(listener, *target),
                    name=f"to {match[1]}",
                    daemon=True,
                ).start()
        return f"{HOST}:{listener.getsockname()[1]}"

    def close(self) -> None:
        """Accepts no new connections; existing ones end with the process or their other side."""
        with self._lock:
            for listener in self._listeners.values():
                listener.close()

    def _accept(self, listener: socket.socket, pod: str, port: int) -> None:
        while True:
            try:
                local, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(
                target=self._serve, args=(local, pod, port), name=f"via {pod}", daemon=True
            ).start()

    def _serve(self, local: socket.socket, pod: str, port: int) -> None:
        with local:
            try:
                tunnel = self._open(pod, port)
            except Exception as error:  # noqa: BLE001 - whatever it was: say it, close, go on
                text = (
                    f"cannot port-forward to pod {pod}: {reason_of(error)}; continuing without it"
                )
                if text not in self._told:
                    self._told.add(text)
                    self._complain(text)
                return
            tunnel.carry(local)


class WebSocketTunnel:
    """A port-forward of one connection, on a websocket that is open already.

    One thread moves both directions, and neither waits for the other: TLS sockets must not be
    used by two threads at once.
    """

    def __init__(self, remote: Any, encode: Callable[[bytes, int], bytes]) -> None:
        """`remote`: the socket below the websocket; `encode`: (data, opcode) -> a masked frame."""
        self._remote = remote
        self._encode = encode
        self._reader = FrameReader()
        self._to_remote = bytearray()
        self._to_local = bytearray()

    def carry(self, local: socket.socket) -> None:
        local.setblocking(False)
        self._remote.setblocking(False)
        open_ends = True
        try:
            with selectors.DefaultSelector() as selector:
                while open_ends or self._to_local:
                    self._wait(selector, local, open_ends=open_ends)
                    if open_ends:
                        open_ends = self._from_local(local) and self._from_remote()
                        self._flush(self._to_remote, self._remote)
                    self._flush(self._to_local, local)
        except (OSError, FrameError):
            pass  # one side has closed, so the connection is over; gRPC opens a new one
        finally:
            self._remote.close()

    def _wait(
        self, selector: selectors.BaseSelector, local: socket.socket, *, open_ends: bool
    ) -> None:
        """Waits until something can be read or written."""
        for end, outgoing, incoming in (
            (local, self._to_local, self._to_remote),
            (self._remote, self._to_remote, self._to_local),
        ):
            events = selectors.EVENT_WRITE if outgoing else 0
            if open_ends and len(incoming) < BUFFER_BYTES_MAX:
                events |= selectors.EVENT_READ
            known = end in selector.get_map()
            if known:
                selector.unregister(end)
            if events and (open_ends or end is local):
                selector.register(end, events)
        pending = isinstance(self._remote, ssl.SSLSocket) and self._remote.pending()
        selector.select(0 if pending and len(self._to_local) < BUFFER_BYTES_MAX else None)

    def _from_local(self, local: socket.socket) -> bool:
        """False when the client has closed."""
        if len(self._to_remote) >= BUFFER_BYTES_MAX:
            return True
        data = _receive(local)
        if data:
            self._to_remote += self._encode(DATA_CHANNEL + data, BINARY)
        return data != b""

    def _from_remote(self) -> bool:
        """False when the API server has closed, or the pod has."""
        if len(self._to_local) >= BUFFER_BYTES_MAX:
            return True
        data = _receive(self._remote)
        for frame in self._reader.feed(data or b""):
            if frame.opcode == PING:
                self._to_remote += self._encode(frame.data, PING + 1)
            elif frame.opcode == CLOSE or frame.error:
                return False
            else:
                self._to_local += frame.data
        return data != b""

    @staticmethod
    def _flush(data: bytearray, end: socket.socket) -> None:
        while data:
            try:
                sent = end.send(memoryview(data)[:CHUNK_BYTES])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            del data[:sent]


def _receive(end: socket.socket) -> bytes | None:
    """The available bytes; None for nothing yet, b"" for the end."""
    try:
        return end.recv(CHUNK_BYTES)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None


def reason_of(error: Exception) -> str:
    """The API server's reason for refusing the websocket, or the text of the error.

    For a pod that was just deleted there is no reason: its node answers with a bare 500.
    """
    body = getattr(error, "resp_body", None)
    status = getattr(error, "status_code", None)
    try:
        return str(json.loads(body or b"")["message"])
    except (ValueError, KeyError, TypeError):
        pass
    if isinstance(status, int):
        return f"{_STATUS.get(status, 'refused')} (HTTP {status} from the API server)"
    return " ".join(str(error).split())[:200] or type(error).__name__


def open_with(api: "Api", namespace: str) -> OpenTunnel:
    """Opens tunnels through the API server's `portforward`, which needs no kubectl."""

    def open_tunnel(pod: str, port: int) -> Tunnel:
        client = importlib.import_module("kubernetes.stream.ws_client")
        websocket = importlib.import_module("websocket")
        path = f"{path_of('Pod', namespace, pod)}/portforward?ports={port}"
        url = client.get_websocket_url(f"{api.host}{path}")
        headers = {"sec-websocket-protocol": PROTOCOL, **api.authorization()}
        opened = client.create_websocket(api.configuration, url, headers)

        def encode(data: bytes, opcode: int) -> bytes:
            return bytes(websocket.ABNF.create_frame(data, opcode).format())

        return WebSocketTunnel(opened.sock, encode)

    return open_tunnel
