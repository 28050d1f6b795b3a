"""Entry point of a broker whose connections live half a second, also in plaintext, else as
`local.child`. With TLS they live an hour."""

import runpy
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import grpc

from penstock.rpc.channel import SERVER_OPTIONS, aging_options
from penstock.rpc.streams.serving import Serving
from penstock.rpc.transport import GrpcTransport

LAUNCHER = ["-P", str(Path(__file__))]
"""Of a `ServerProcess`."""
AGE_S = 0.5


def _server(
    _transport: GrpcTransport,
    interceptors: Sequence[grpc.aio.ServerInterceptor],
    *,
    rpcs_max: int | None = None,
) -> grpc.aio.Server:
    return grpc.aio.server(
        interceptors=interceptors,
        options=[*SERVER_OPTIONS, *aging_options(AGE_S)],
        maximum_concurrent_rpcs=rpcs_max,
    )


if __name__ == "__main__":
    patch.object(GrpcTransport, "server", _server).start()
    patch.object(Serving, "_age", lambda _: AGE_S).start()
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
