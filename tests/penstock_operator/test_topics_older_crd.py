"""An operator that is newer than the CRD of Topics says what the API server drops of a status."""

import copy
from typing import Any

from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import TopicResource
from penstock_operator.topics import Topics


class Server(Kube):
    """Its CRD does not know how many replicas there are."""

    def __init__(self) -> None:
        about = {"name": "t", "namespace": "default", "uid": "1", "resourceVersion": "1"}
        self.body: dict[str, Any] = {"metadata": about, "spec": {"cluster": "flights"}}
        self.written = 0
        self.told: list[tuple[str, str]] = []

    async def create(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self.told.append((body["regarding"]["kind"], body["note"]))
        return body

    async def merge(
        self, kind: str, namespace: str, name: str, body: dict[str, Any], *, status: bool = False
    ) -> dict[str, Any]:
        assert (kind, status) == ("Topic", True)
        self.written += 1
        stored = {key: value for key, value in body["status"].items() if key != "replicas"}
        self.body["status"] = stored
        return copy.deepcopy(self.body)


async def test_what_the_crd_drops_of_a_topic_is_told_once() -> None:
    server = Server()
    topics = Topics(server, Brokers(), Events(server, "test"))
    for _ in range(3):
        resource = TopicResource("t", copy.deepcopy(server.body))
        await topics.reconcile([resource], None, None, None, "no broker answers")
    assert server.written == 1
    ((kind, note),) = server.told
    assert kind == "Topic"
    assert note == (
        "the CRD that is installed is older than this operator and drops replicas of the status: "
        "apply the CRDs of this release (kubectl apply --server-side -f crds)"
    )
