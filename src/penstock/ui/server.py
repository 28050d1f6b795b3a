"""Runs the console in this process until Ctrl-C: one port of this machine, one event loop."""

import os
import socket
from collections.abc import Callable
from time import monotonic
from typing import Final, Unpack

import uvicorn

from penstock.client.config import ClientOptions
from penstock.errors import ErrorCode, MisuseError
from penstock.ui.app import Console, Report, make_app
from penstock.ui.gate import Gate
from penstock.ui.pages import Pages
from penstock.ui.reader import Reader
from penstock.ui.records import Records
from penstock.ui.rendering import Rendering

HOST: Final = "127.0.0.1"
REQUESTS_AT_ONCE: Final = 200
"""More get 503: each browser opens six connections, whatever the number of its tabs."""
STOP_S: Final = 2


def listen(port: int) -> socket.socket:
    """A socket of this machine only; 0 = any free port. Raises MisuseError."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)  # socket's own text repeats the address
        raise MisuseError(
            f"cannot listen on {HOST}:{port}: {why}; give another --port, or 0 for any",
            ErrorCode.INVALID_REQUEST,
        ) from error


def serve(
    listener: socket.socket,
    cluster: str,
    announce: Callable[[str], None],
    report: Report,
    bootstrap: str,
    **options: Unpack[ClientOptions],
) -> None:
    """Serves until SIGINT or SIGTERM. `announce` is called with each URL that lets a browser in."""
    port = listener.getsockname()[1]
    hosts = frozenset(f"{host}:{port}" for host in (HOST, "localhost"))
    base = f"http://{HOST}:{port}"
    gate = Gate(monotonic, lambda token: announce(f"{base}/login?token={token}"), hosts)
    reader = Reader(bootstrap, **options)
    rendering = Rendering(cluster)
    pages = Pages(reader, Records(bootstrap, **options), rendering)
    console = Console(gate, rendering, f"penstock_ui_{port}")
    # Who sees the link may press Ctrl-C at once: only now that is heard whatever runs.
    app = make_app(console, pages, reader, report, begin=gate.issue)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        access_log=False,
        ws="none",
        lifespan="on",
        server_header=False,
        limit_concurrency=REQUESTS_AT_ONCE,
        timeout_graceful_shutdown=STOP_S,
    )
    uvicorn.Server(config).run(sockets=[listener])
