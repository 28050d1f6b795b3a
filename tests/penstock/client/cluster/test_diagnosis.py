"""What is told of an address at which something else than a broker listens."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.secure import Certificates
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client.cluster.cluster import Cluster as ClusterClient
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.diagnosis import DIAGNOSIS_S, diagnose
from penstock.client.config import ClientConfig, parse_bootstrap
from penstock.errors import UnreachableError
from penstock.proto.v1 import broker_pb2

Listener = Callable[[], AbstractContextManager[str]]


@contextmanager
def web_server(context: ssl.SSLContext | None = None) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing into the output of tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def raw_listener(said: bytes) -> Iterator[str]:
    """Says the same to everybody, and hangs up; says nothing and waits if that is empty."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as kept:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if not said:
                    kept.enter_context(connection)
                    continue
                with connection:
                    connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def garbage() -> AbstractContextManager[str]:
    return raw_listener(b"\x00\x01garbage\xff" * 20)


def banner() -> AbstractContextManager[str]:
    return raw_listener(b"220\r\n")


@pytest.mark.parametrize("listener", [web_server, garbage, banner])
@pytest.mark.parametrize("words", [["topic", "list"], ["status"]], ids=" ".join)
def test_the_command_line_says_in_one_line_that_no_broker_listens_there(
    listener: Listener, words: list[str]
) -> None:
    with listener() as address:
        done = CliRunner().invoke(app, [*words, "--bootstrap", address])
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    said = f"penstock: {address}: what listens there does not speak Penstock's protocol (it says b"
    assert line.startswith(said)
    assert line.endswith("not that of metrics or of another program")
    assert not [word for word in ("UNAVAILABLE", "SETTINGS", "Traceback") if word in line]


def test_each_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def two(host: str, port: int, *args: Any, **options: Any) -> list[Any]:
        """As `localhost` is both ::1 and 127.0.0.1, and one of them is served."""
        with socket.create_server(("127.0.0.1", 0)) as gone:
            unserved = gone.getsockname()
        found = real(host, port, *args, **options)
        return [(*each[:4], unserved) for each in found] + found

    with banner() as address:
        monkeypatch.setattr(socket, "getaddrinfo", two)
        found = asyncio.run(diagnose(address, None))
    assert found is not None
    assert "does not speak Penstock's protocol" in found.message


def test_the_port_of_a_brokers_metrics_is_no_broker(shared_cluster: Cluster) -> None:
    found = asyncio.run(diagnose(f"127.0.0.1:{shared_cluster.metrics_ports[0]}", None))
    assert isinstance(found, UnreachableError)
    assert "does not speak Penstock's protocol" in found.message


def test_nothing_is_said_against_a_broker(shared_cluster: Cluster) -> None:
    for address in shared_cluster.bootstrap.split(","):
        assert asyncio.run(diagnose(address, None)) is None


def test_of_a_listener_that_says_nothing_nothing_is_known() -> None:
    with raw_listener(b"") as address:
        assert asyncio.run(diagnose(address, None)) is None


def test_a_web_server_with_tls_is_no_broker(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with web_server(certificates.broker(0).tls.server_context(ask_clients=False)) as address:
        found = asyncio.run(diagnose(address, certificates.stranger().tls, "localhost"))
    assert found is not None
    assert "(it has TLS, but no HTTP/2 on top)" in found.message


async def test_many_addresses_that_say_nothing_cost_the_time_of_one() -> None:
    silent = 10

    async def ask(connection: Connection, timeout_s: float) -> broker_pb2.MetadataResponse:
        request = broker_pb2.MetadataRequest(no_topics=True)
        return await connection.call(connection.broker.Metadata, request, timeout_s)

    with ExitStack() as listeners:
        addresses = [listeners.enter_context(raw_listener(b"")) for _ in range(silent)]
        cluster = ClusterClient(parse_bootstrap(addresses), ClientConfig())
        begun = time.monotonic()
        with pytest.raises(UnreachableError, match="no broker answered within 2 s"):
            await cluster.ask(ask, 2.0, patience_s=0.05)
        assert time.monotonic() - begun < silent * DIAGNOSIS_S / 2
        await cluster.aclose()
