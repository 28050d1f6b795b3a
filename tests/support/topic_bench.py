"""Topics of the Cluster `flights` on a real API server, beside real brokers.

Each test tells the operator's `Topics` when to look, so nothing waits for a timer.
"""

from typing import Any

from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import Cluster
from support.operator_process import OURS, get
from support.operator_world import desired
from support.reachable import Reachable
from support.waiting import wait_until_async

from penstock.client.model import TopicDescription
from penstock.kubernetes.connect import connect
from penstock.kubernetes.names import API_VERSION
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import TopicResource
from penstock_operator.topics import Topics


class TopicBench:
    """A namespace with its Topics."""

    def __init__(self, server: ApiServer, servers: Cluster, brokers: int = 1) -> None:
        self.wish, self.bootstrap = desired(brokers), servers.bootstrap
        self.cluster = {
            "apiVersion": API_VERSION,
            "kind": "Cluster",
            "metadata": {"name": "flights"},
            "spec": {"brokers": brokers},
        }
        self.server = server
        self.namespace = server.namespace("topics")
        kubeconfig = str(server.kubeconfig)
        self.kube = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=kubeconfig))
        self.brokers = Reachable(servers.bootstrap)
        self.topics = Topics(self.kube, self.brokers, Events(self.kube, "test"))

    # ── As a user ─────────────────────────────────────────────────────────────────────────

    @property
    def path(self) -> str:
        return f"{OURS}/namespaces/{self.namespace}/topics"

    def create(self, name: str, **spec: Any) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": "Topic",
            "metadata": {"name": name},
            "spec": {"cluster": "flights", **spec},
        }
        self.server.request("POST", self.path, body)

    def patch(self, name: str, **spec: Any) -> None:
        media = "application/merge-patch+json"
        self.server.request("PATCH", f"{self.path}/{name}", {"spec": spec}, Content_Type=media)

    def delete(self, name: str) -> None:
        self.server.request("DELETE", f"{self.path}/{name}")

    def seen(self, name: str) -> Any:
        return get(self.server, f"{self.path}/{name}")

    def events(self) -> list[tuple[str, str]]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        return [
            (each["reason"], each["note"]) for each in self.server.request("GET", path)["items"]
        ]

    # ── As the operator ───────────────────────────────────────────────────────────────────

    async def look(self, *, answered: bool = True) -> bool:
        """One pass; `answered`: the brokers do. Whether all is done."""
        facts, problem = (
            await self.brokers.ask(self.wish) if answered else (None, "nobody is there")
        )
        found = await self.kube.list("Topic", self.namespace)
        resources = [TopicResource(each["metadata"]["name"], each) for each in found]
        moves, _ = await self.brokers.moves(self.wish, ()) if answered else (None, "")
        wanted = (self.wish, self.cluster)
        return await self.topics.reconcile(resources, *wanted, facts, problem, moves)

    async def close(self) -> None:
        await self.brokers.close()
        self.kube.close()

    async def settle(self) -> None:
        """A pass that acts, and one that finds nothing left to do, once brokers have heard."""
        assert not await self.look()
        await wait_until_async(self.look, what="nothing is left to do")

    # ── As the broker ─────────────────────────────────────────────────────────────────────

    async def stored(self, name: str) -> TopicDescription | None:
        admin = await self.brokers.admin(self.wish)
        return (await admin.describe_topics()).get(name)
