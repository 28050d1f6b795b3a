"""A real API server behind a proxy that can plant faults."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.api_proxy import ApiProxy
from support.apiserver import ApiServer

from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.connect import connect

PATIENT = Timeouts(connect_s=60.0, total_s=60.0)
"""An API server on a busy machine may take seconds."""
Open = Callable[..., Api]


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[ApiProxy]:
    made = ApiProxy(api_server)
    yield made
    made.close()


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    return api_server.namespace()


@pytest.fixture
def open_api(proxy: ApiProxy, tmp_path: Path) -> Iterator[Open]:
    """Clients; through the proxy unless another kubeconfig is given."""
    made: list[Api] = []

    def open_one(kubeconfig: Path | None = None, timeouts: Timeouts = PATIENT) -> Api:
        path = kubeconfig or proxy.kubeconfig(tmp_path / "proxied.kubeconfig")
        made.append(connect("penstock-tests", timeouts, kubeconfig=str(path)))
        return made[-1]

    yield open_one
    for api in made:
        api.close()


@pytest.fixture
def api(open_api: Open) -> Api:
    return open_api()
