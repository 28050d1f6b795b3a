"""A Cluster whose requests hang at the API server leaves threads to the others."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.api_proxy import ApiProxy, Kind
from support.apiserver import ApiServer
from support.kube_scene import Scene
from support.waiting import wait_until_async

from penstock.kubernetes.api import Timeouts
from penstock.kubernetes.connect import connect
from penstock_operator.events import Events
from penstock_operator.kube import OF_ONE, Kube
from penstock_operator.metrics import Metrics
from penstock_operator.objects import Installation
from penstock_operator.worker import Deps, Outcome, Worker

PATIENT = Timeouts(connect_s=60.0, total_s=600.0)


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[ApiProxy]:
    made = ApiProxy(api_server)
    yield made
    made.close()


async def test_a_cluster_whose_requests_hang_does_not_stall_another(
    api_server: ApiServer, proxy: ApiProxy, tmp_path: Path
) -> None:
    """As by an admission webhook for its namespace that does not answer."""
    bad, good = Scene(api_server), Scene(api_server)
    for scene in (bad, good):
        scene.cluster()
    kubeconfig = str(proxy.kubeconfig(tmp_path / "kubeconfig"))
    kube = Kube(connect("penstock-tests", PATIENT, kubeconfig=kubeconfig))
    deps = Deps(kube, Events(kube, "test"), Metrics(), Installation("penstock-broker:test"))

    def hangs(_method: str, path: str) -> bool:
        return f"/namespaces/{bad.namespace}/" in path and not path.endswith("/clusters/flights")

    fault = proxy.plant(Kind.SLOW, fits=hangs, times=None, seconds=600.0)
    with ExitStack() as closing:
        closing.callback(kube.close)
        workers = [Worker(deps, scene.namespace, "flights") for scene in (bad, good)]
        closing.callback(workers[1]._credentials.close)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(workers[0].run())
            await wait_until_async(lambda: fault.held == OF_ONE, what="its requests hang")
            outcome = await workers[1]._pass()
            assert fault.held == fault.seen == OF_ONE, "and they still do"
            assert outcome is Outcome.BUSY
            proxy.close()  # lets go of them
            running.cancel()
        await workers[1]._brokers.close()
