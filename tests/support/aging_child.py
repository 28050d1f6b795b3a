"""Entry point of a broker whose connections live half a second, also in plaintext, else as
`local.child`. With TLS they usually live an hour.

With TLS the age goes where `broker.main` would give it; what is done about it is the product's. Is
PENSTOCK_TEST_GRACE set, calls may go on for as long as they usually may, and not for half a second.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import grpc

from penstock.rpc.channel import CONNECTION_GRACE_S, SERVER_OPTIONS, aging_options, metadata_options
from penstock.rpc.streams.serving import Serving
from penstock.rpc.transport import GrpcTransport

LAUNCHER = ["-P", str(Path(__file__))]
"""Of a `ServerProcess`."""
AGE_S = 0.5
GRACE = {"PENSTOCK_TEST_GRACE": "usual"}
"""For the environment of a `ServerProcess`."""


def _server(
    _transport: GrpcTransport,
    interceptors: Sequence[grpc.aio.ServerInterceptor],
    *,
    rpcs_max: int | None = None,
    metadata_bytes_max: int | None = None,
) -> grpc.aio.Server:
    return grpc.aio.server(
        interceptors=interceptors,
        options=[
            *SERVER_OPTIONS,
            *aging_options(AGE_S),
            *metadata_options(metadata_bytes_max),
        ],
        maximum_concurrent_rpcs=rpcs_max,
    )


def _with_usual_grace(age_s: float) -> list[tuple[str, int]]:
    grace = {"grpc.max_connection_age_grace_ms": int(CONNECTION_GRACE_S * 1000)}
    return list({**dict(aging_options(age_s)), **grace}.items())


def _age_in_plaintext() -> None:
    patch.object(GrpcTransport, "server", _server).start()
    patch.object(Serving, "_age", lambda _: AGE_S).start()


def _age_with_tls() -> None:
    aging = partial(GrpcTransport, connection_age_s=AGE_S)
    patch("penstock_broker.broker.main.GrpcTransport", aging).start()
    if "PENSTOCK_TEST_GRACE" in os.environ:
        patch("penstock.rpc.transport.aging_options", _with_usual_grace).start()


if __name__ == "__main__":
    if "--tls-ca" in sys.argv:
        _age_with_tls()
    else:
        _age_in_plaintext()
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
