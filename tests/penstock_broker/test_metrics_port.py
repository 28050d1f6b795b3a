"""Attack 20 at the port for metrics, where nobody is asked who they are: it takes few threads."""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge
from support.waiting import wait_until

from penstock_broker.observability import SCRAPES_MAX, _Scrape, serve_metrics


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """Where a gauge is served."""
    registry = CollectorRegistry()
    Gauge("seen", "Whether it was seen.", registry=registry).set(7)
    server = serve_metrics("127.0.0.1:0", registry)
    yield "127.0.0.1", server.server_port
    server.shutdown()
    server.server_close()


def scrape(address: tuple[str, int]) -> str:
    """Empty while there is no place for it."""
    with suppress(OSError, urllib.error.URLError):
        url = f"http://{address[0]}:{address[1]}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())
    return ""


def is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def silent(address: tuple[str, int], count: int, stack: ExitStack) -> list[socket.socket]:
    made = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(count)]
    for one in made:
        one.setblocking(False)
    return made


def test_a_scrape_is_answered(address: tuple[str, int]) -> None:
    assert "seen 7.0" in scrape(address)


def test_silent_connections_beyond_the_limit_are_cut(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Scrape, "timeout", 3_600.0)
    before = threading.active_count()
    with ExitStack() as stack:
        made = silent(address, 3 * SCRAPES_MAX, stack)
        wait_until(lambda: sum(map(is_open, made)) == SCRAPES_MAX, what="all but so many are cut")
        assert threading.active_count() - before <= SCRAPES_MAX
    wait_until(lambda: "seen 7.0" in scrape(address), what="those that hung up made room")


def test_who_says_nothing_makes_room(
    address: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_Scrape, "timeout", 0.2)
    with ExitStack() as stack:
        made = silent(address, SCRAPES_MAX, stack)
        wait_until(lambda: "seen 7.0" in scrape(address), what="a scrape is answered")
        wait_until(lambda: not any(map(is_open, made)), what="silent ones are cut")
    assert "Traceback" not in capfd.readouterr().err
