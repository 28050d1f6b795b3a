"""A worker whose Cluster does not exist, as that of a Topic with a name that was mistyped."""

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.metrics import Metrics
from penstock_operator.names import TOPIC_FINALIZER
from penstock_operator.objects import Installation
from penstock_operator.worker import Deps, Outcome, Worker


class Server(Kube):
    """Has Topics, and nothing else."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, Any]] = {}
        self.asked = 0

    def make(self, name: str, **metadata: Any) -> None:
        about = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
        body = {"metadata": {**about, **metadata}, "spec": {"cluster": "nowhere"}}
        self.topics[name] = body

    async def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        self.asked += 1
        return None

    async def list(
        self, kind: str, namespace: str | None, selector: str = ""
    ) -> list[dict[str, Any]]:
        self.asked += 1
        return copy.deepcopy(list(self.topics.values())) if kind == "Topic" else []

    async def merge(
        self, kind: str, namespace: str, name: str, body: dict[str, Any], *, status: bool = False
    ) -> dict[str, Any]:
        self.asked += 1
        if status:
            self.topics[name]["status"] = body["status"]
        else:
            del self.topics[name]  # its last finalizer is gone
        return body


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[Worker]:
    deps = Deps(server, Events(server, "test"), Metrics(), Installation("penstock:test"))
    made = Worker(deps, "default", "nowhere")
    yield made
    made._credentials.close()
    await made._brokers.close()


async def looked(worker: Worker) -> Outcome:
    """After a pass, and one of the groups."""
    outcome = await worker._pass()
    await worker._groups.look()
    return outcome


async def test_a_topic_that_waits_for_its_cluster_is_not_looked_at_each_second(
    worker: Worker, server: Server
) -> None:
    server.make("t")
    assert await looked(worker) is Outcome.IDLE
    worker.wake(topics=True)  # by its own status
    assert await looked(worker) is Outcome.IDLE
    before = server.asked
    assert await looked(worker) is Outcome.IDLE
    assert server.asked == before + 1, "whether the Cluster has come meanwhile"


async def test_one_that_goes_is_let_go_at_once(worker: Worker, server: Server) -> None:
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [TOPIC_FINALIZER]}
    server.make("t", **gone)
    assert await looked(worker) is Outcome.BUSY
    assert not server.topics
    worker.wake(topics=True)
    await looked(worker)
    assert await looked(worker) is Outcome.GONE
