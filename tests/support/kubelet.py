"""The part of a kubelet that port-forwards, for a real API server to proxy to.

    client ──websocket──▶ kube-apiserver ──websocket──▶ Kubelet ──TCP──▶ a port of this machine

Speaks v4.channel.k8s.io as a kubelet does: channel 0 data, channel 1 errors, each announced by
the port's number. Pods are names in `targets`.
"""

import base64
import contextlib
import hashlib
import socket
import ssl
import struct
import threading
from io import BufferedIOBase
from pathlib import Path
from typing import Self
from urllib.parse import ParseResult, parse_qs, urlparse

from support.processes import HOST

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Kubelet:
    """Serves until closed. `targets`: pod name -> port on this machine; none: pod unreachable."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.targets: dict[str, int] = {}
        self.forwards = 0
        """How many port-forwards were made."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join(10)

    def has_open(self) -> bool:
        """Whether a port-forward is under way."""
        return bool(self._open)

    def cut(self) -> None:
        """Ends every port-forward under way, as a kubelet's restart does."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError, EOFError, KeyError),
            self._context.wrap_socket(plain, server_side=True) as client,
        ):
            stream = client.makefile("rwb")
            path, headers = _read_request(stream)
            pod = path.path.split("/")[3]
            port = int(parse_qs(path.query)["port"][0])
            if pod not in self.targets:
                stream.write(b"HTTP/1.1 500 No such pod\r\nContent-Length: 0\r\n\r\n")
                stream.flush()
                return
            with socket.create_connection((HOST, self.targets[pod])) as target:
                accept = hashlib.sha1(headers["sec-websocket-key"].encode() + _GUID).digest()
                stream.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                    b"Connection: Upgrade\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n"
                    b"Sec-WebSocket-Accept: " + base64.b64encode(accept) + b"\r\n\r\n"
                )
                for channel in (b"\0", b"\1"):
                    stream.write(_frame(channel + struct.pack("<H", port)))
                stream.flush()
                self.forwards += 1
                self._carry(client, stream, target)

    def _carry(self, client: ssl.SSLSocket, stream: BufferedIOBase, target: socket.socket) -> None:
        ends = {client, target}
        self._open |= ends
        back = threading.Thread(target=_back, args=(target, client), daemon=True)
        back.start()
        try:
            while (message := _read_message(stream)) is not None:
                target.sendall(message[1:])
        finally:
            self._open -= ends
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
            back.join(10)


def _back(target: socket.socket, client: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        while data := target.recv(65_536):
            client.sendall(_frame(b"\0" + data))
        client.sendall(b"\x88\x00")
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _read_request(stream: BufferedIOBase) -> tuple[ParseResult, dict[str, str]]:
    _, path, _ = stream.readline().decode().split(" ", 2)
    headers: dict[str, str] = {}
    while line := stream.readline().decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return urlparse(path), headers


def _frame(content: bytes) -> bytes:
    size = len(content)
    if size < 126:
        return struct.pack(">BB", 0x82, size) + content
    if size < 65_536:
        return struct.pack(">BBH", 0x82, 126, size) + content
    return struct.pack(">BBQ", 0x82, 127, size) + content


def _read_message(stream: BufferedIOBase) -> bytes | None:
    """One binary message of a client; None when it closes."""
    head = stream.read(2)
    if len(head) < 2 or head[0] & 0x0F == 8:
        return None
    size = head[1] & 0x7F
    if size >= 126:
        form = ">H" if size == 126 else ">Q"
        (size,) = struct.unpack(form, stream.read(struct.calcsize(form)))
    mask = stream.read(4)
    data = stream.read(size)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
