"""A proxy in front of the API server that counts calls and answers as a bad day does.

    client ──http──▶ ApiProxy ──https──▶ API server
                       │  faults, in the order they were planted; the first that fits is taken
                       ├─ calls: Counter of "VERB resource", as in "PUT configmaps"
                       └─ used: the permissions that these calls need

Requests pass with all headers, so the client's token decides what it may do. Watches are passed
on as they come. Everything runs in threads of this process.
"""

import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import urllib3
from support.apiserver import ApiServer
from support.processes import HOST

_UPSTREAM_S: Final = 30.0
_HOP_BY_HOP: Final = frozenset({"connection", "transfer-encoding", "content-length", "host"})


Permission = tuple[str, str, str]
"""Verb, API group, resource with its subresource: ("patch", "penstock.dev", "clusters/status")."""


class Kind(Enum):
    """What goes wrong with a request."""

    STATUS = "answered with `status` without being carried out"
    RESET = "the connection is reset before the request is passed on"
    ANSWER_LOST = "carried out, then the connection is reset"
    UNANSWERED = "carried out, and no answer for `seconds`"
    SLOW = "passed on after `seconds`"
    TRICKLE = "answered a byte at a time, for `seconds`"
    CUT_WATCH = "a watch, cut after `seconds`"


@dataclass
class Fault:
    """`times` None: until it is withdrawn. `fits`: (method, path with query) -> bool."""

    kind: Kind
    fits: Callable[[str, str], bool] = lambda _method, _path: True
    times: int | None = 1
    status: int = 500
    retry_after_s: float | None = None
    seconds: float = 0.0
    seen: int = field(default=0, init=False)
    held: int = field(default=0, init=False)
    """Requests that SLOW holds back now."""
    held_max: int = field(default=0, init=False)


def writes(method: str, _path: str) -> bool:
    """Fits every request that changes something."""
    return method != "GET"


def documents(method: str, path: str) -> bool:
    """Fits writes of ConfigMaps."""
    return method != "GET" and "/configmaps" in path


def document_lists(method: str, path: str) -> bool:
    return method == "GET" and "/configmaps" in path


def leases(_method: str, path: str) -> bool:
    return "/leases" in path


class ApiProxy:
    """Serving once made; `close` it."""

    def __init__(self, server: ApiServer) -> None:
        self.calls: Counter[str] = Counter()
        self.used: set[Permission] = set()
        self._server = server
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pool = urllib3.PoolManager(
            maxsize=64, ca_certs=str(server.directory / "ca.crt"), retries=False
        )
        self._away = False
        self.watches: set[Any] = set()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._listener = _Listener((HOST, 0), Handler)
        self.port: int = self._listener.server_address[1]
        self.url = f"http://{HOST}:{self.port}"
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,))
        self._thread.start()

    def kubeconfig(self, path: Path, token: str = "") -> Path:
        """The administrator's, or that of a token, through this proxy."""
        if token:
            return self._server.write_kubeconfig(path, token, self.url)
        return self._server.admin_kubeconfig(path, self.url)

    def plant(self, kind: Kind, **options: Any) -> Fault:
        """Adds a fault; see `Fault`."""
        fault = Fault(kind, **options)
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Withdraws all faults."""
        with self._lock:
            self._faults.clear()
            self._away = False

    def cut(self) -> None:
        """The API server is unavailable: every connection is reset, until `heal`."""
        with self._lock:
            self._away = True

    def close(self) -> None:
        self._closing.set()
        for upstream in list(self.watches):
            _hang_up(upstream)
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join(10)
        self._pool.clear()

    # ------------------------------------------------------------ for the handler

    def take(self, method: str, path: str) -> Fault | None:
        """Counts the call; the fault it meets."""
        with self._lock:
            self.calls[f"{method} {_resource(path)}"] += 1
            self.used.add(permission(method, path))
            if self._away:
                return Fault(Kind.RESET)
            for fault in self._faults:
                if fault.fits(method, path):
                    fault.seen += 1
                    if fault.times is not None:
                        fault.times -= 1
                        if fault.times == 0:
                            self._faults.remove(fault)
                    return fault
        return None

    def pause(self, seconds: float) -> None:
        """Waits, but not for a proxy that is being closed."""
        self._closing.wait(seconds)

    def hold(self, fault: Fault) -> None:
        """A SLOW request waits, and is counted among those that wait at the same time."""
        with self._lock:
            fault.held += 1
            fault.held_max = max(fault.held_max, fault.held)
        self.pause(fault.seconds)
        with self._lock:
            fault.held -= 1

    def pass_on(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> Any:
        return self._pool.request(
            method,
            self._server.url + path,
            headers=headers,
            body=body,
            preload_content=False,
            timeout=_UPSTREAM_S,
            retries=False,
        )


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away in the middle are what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: ApiProxy

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class' name
        """Quiet."""

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        fault = self.owner.take(self.command, self.path)
        match fault:
            case Fault(kind=Kind.STATUS):
                self._refuse(fault)
                return
            case Fault(kind=Kind.RESET):
                self._reset()
                return
            case Fault(kind=Kind.SLOW):
                self.owner.hold(fault)
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP
        }
        answer = self.owner.pass_on(self.command, self.path, headers, body)
        try:
            self._answer(answer, fault)
        finally:
            answer.close() if _is_watch(self.path) else answer.release_conn()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - the base class' names

    def _answer(self, answer: Any, fault: Fault | None) -> None:
        if _is_watch(self.path):
            self._stream(answer, fault)
            return
        found = answer.read()
        if fault is not None and fault.kind is Kind.UNANSWERED:
            self.owner.pause(fault.seconds)
        if fault is not None and fault.kind in {Kind.ANSWER_LOST, Kind.UNANSWERED}:
            self._reset()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        if fault is not None and fault.kind is Kind.TRICKLE:
            until = time.monotonic() + fault.seconds
            for index in range(len(found)):
                self.wfile.write(found[index : index + 1])
                self.wfile.flush()
                self.owner.pause(0.05)
                if time.monotonic() > until:
                    self._reset()
                    return
        self.wfile.write(found)

    def _stream(self, answer: Any, fault: Fault | None) -> None:
        upstream = answer.connection.sock
        upstream.settimeout(None)
        self.owner.watches.add(upstream)
        cut = fault is not None and fault.kind is Kind.CUT_WATCH
        timer = threading.Timer(fault.seconds if cut and fault else 0.0, _hang_up, (upstream,))
        if cut:
            timer.start()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for part in iter(lambda: answer.read1(65_536), b""):
                self.wfile.write(part)
                self.wfile.flush()
        except (urllib3.exceptions.HTTPError, OSError):
            self._reset()  # cut, by us or by the API server
        finally:
            self.owner.watches.discard(upstream)
            timer.cancel()

    def _refuse(self, fault: Fault) -> None:
        body = json.dumps(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": fault.status,
                "message": f"planted: {fault.status}",
            }
        ).encode()
        self.send_response(fault.status)
        if fault.retry_after_s is not None:
            self.send_header("Retry-After", f"{fault.retry_after_s:g}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()


def _hang_up(upstream: Any) -> None:
    with contextlib.suppress(OSError):
        upstream.shutdown(socket.SHUT_RDWR)


def permission(method: str, path: str) -> Permission:
    """What RBAC asks for to carry out a request; no resource for discovery."""
    parts = urlsplit(path).path.strip("/").split("/")
    grouped = parts[0] == "apis"
    group = "".join(parts[1:2]) if grouped else ""
    rest = parts[3:] if grouped else parts[2:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    resource = "/".join([*rest[:1], *rest[2:]])
    read = "watch" if _is_watch(path) else "get" if len(rest) > 1 else "list"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": read}
    return verbs[method], group, resource


def _is_watch(path: str) -> bool:
    return parse_qs(urlsplit(path).query).get("watch", ["false"])[0] in {"1", "true"}


def _resource(path: str) -> str:
    """`configmaps` of /api/v1/namespaces/x/configmaps/y."""
    parts = urlsplit(path).path.strip("/").split("/")
    if "namespaces" in parts and len(parts) > parts.index("namespaces") + 2:
        return parts[parts.index("namespaces") + 2]
    return parts[-1]
