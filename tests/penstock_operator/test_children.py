"""What the operator finds on a real API server: the pods, claims and nodes of one Cluster.

There are no kubelets: the test writes the status that they would write.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.operator_world import desired

from penstock.core.control.documents import TopicDocument, encode_topic, topic_key
from penstock.core.control.partition import PartitionDocument
from penstock.core.manifest.containers import BROKER, CONTROLLER
from penstock.core.types import BrokerId, ControllerEpoch, LeaderEpoch, PartitionState, TopicId
from penstock.kubernetes.connect import connect
from penstock.kubernetes.names import CLUSTER_LABEL, COMPONENT_LABEL, METADATA_LABEL
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects
from penstock_operator.brokers import Brokers
from penstock_operator.kube import Kube
from penstock_operator.model import PodState
from penstock_operator.names import POD_INDEX, Names
from penstock_operator.objects import DesiredCluster, broker_set
from penstock_operator.observe import Children, observe
from penstock_operator.refusals import MISSING_S, Refusals
from penstock_operator.second_look import pods_now

ZONE = "topology.kubernetes.io/zone"


class Bench:
    """A namespace with objects of the Cluster `flights`."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.namespace = server.namespace("children")
        self.kube = Kube(connect("tests", TIMEOUTS, kubeconfig=str(server.kubeconfig)))
        self.children = Children(self.kube)

    def wish(self, **changes: Any) -> DesiredCluster:
        return desired(names=Names("flights", self.namespace), **changes)

    async def read(self, **changes: Any) -> DesiredCluster:
        wish = self.wish(**changes)
        self.children.dirty = True
        await self.children.read(wish.names)
        await self.children.complete(wish)
        return wish

    def pods(self) -> dict[int, PodState]:
        return self.children.pods(self.wish().names)

    def make(self, group: str, plural: str, name: str, **body: Any) -> None:
        where = f"namespaces/{self.namespace}/" if plural not in {"nodes", "storageclasses"} else ""
        metadata = {"name": name, **body.pop("metadata", {})}
        self.server.request("POST", f"/{group}/{where}{plural}", {"metadata": metadata, **body})

    def pod(
        self, name: str, component: str, *, cluster: str = "flights", node: str = "", **status: Any
    ) -> None:
        labels = {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}
        if component == BROKER:
            labels[POD_INDEX] = name.rpartition("-")[2]
        spec: dict[str, Any] = {"containers": [{"name": component, "image": "penstock:1"}]}
        if node:
            spec["nodeName"] = node
        self.make("api/v1", "pods", name, metadata={"labels": labels}, spec=spec)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        media = "application/merge-patch+json"
        self.server.request("PATCH", path, {"status": status}, Content_Type=media)

    def claim(self, name: str, size: str, storage_class: str) -> None:
        self.make(
            "api/v1",
            "persistentvolumeclaims",
            name,
            metadata={"labels": {CLUSTER_LABEL: "flights"}},
            spec={
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": storage_class,
                "resources": {"requests": {"storage": size}},
            },
        )


@pytest.fixture
def bench(api_server: ApiServer) -> Iterator[Bench]:
    made = Bench(api_server)
    yield made
    made.kube.close()


def crashed(component: str, message: str) -> dict[str, Any]:
    ended = {"exitCode": 1, "message": message, "reason": "Error"}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    common = {"name": component, "image": "penstock:1", "imageID": "", "restartCount": 4}
    last = {"lastState": {"terminated": ended}}
    return {"containerStatuses": [{**common, "ready": False, "state": state, **last}]}


async def test_brokers_are_told_from_controllers_and_from_other_clusters(bench: Bench) -> None:
    bench.pod("flights-broker-0", BROKER, conditions=[{"type": "Ready", "status": "True"}])
    bench.pod("flights-broker-1", BROKER, **crashed(BROKER, "the disk is full"))
    bench.pod("flights-controller-a", CONTROLLER)
    bench.pod("trains-broker-2", BROKER, cluster="trains")
    await bench.read()
    pods = bench.pods()
    assert {number: pod.ready for number, pod in pods.items()} == {0: True, 1: False}
    assert pods[1].trouble == "it exited with code 1: the disk is full"
    assert pods[1].restarts == 4
    assert bench.children.controllers_problem() == ""


async def test_a_pod_that_has_only_the_labels_of_a_broker_is_none(bench: Bench) -> None:
    """As `kubectl debug --copy-to` with the labels kept makes it."""
    ready = [{"type": "Ready", "status": "True"}]
    bench.pod("flights-broker-0", BROKER, conditions=ready)
    bench.pod("flights-broker-0-debug", BROKER)
    bench.pod("flights-broker-debug-0", BROKER)
    wish = await bench.read()
    for pods in (bench.pods(), await pods_now(bench.kube, wish.names)):
        assert {number: (pod.name, pod.ready) for number, pod in pods.items()} == {
            0: ("flights-broker-0", True)
        }


async def test_a_controller_that_does_not_run_is_named(bench: Bench) -> None:
    bench.pod("flights-controller-a", CONTROLLER)
    bench.pod("flights-controller-b", CONTROLLER, **crashed(CONTROLLER, "no such option"))
    await bench.read()
    told = "pod flights-controller-b is not running: it exited with code 1: no such option"
    assert bench.children.controllers_problem() == told
    assert bench.pods() == {}


async def test_what_was_read_is_kept_until_something_changes(bench: Bench) -> None:
    await bench.read()
    bench.pod("flights-broker-0", BROKER)
    await bench.children.read(bench.wish().names)
    assert bench.pods() == {}, "nobody has said that anything changed"
    bench.children.dirty = True
    await bench.children.read(bench.wish().names)
    assert set(bench.pods()) == {0}


async def test_an_object_of_somebody_else_that_has_our_name_is_seen(bench: Bench) -> None:
    bench.make("api/v1", "services", "flights-brokers", spec={"ports": [{"port": 1}]})
    bench.make("api/v1", "services", "unrelated", spec={"ports": [{"port": 1}]})
    await bench.read()
    services = {name for kind, name in bench.children.objects if kind == "Service"}
    assert services == {"flights-brokers"}


async def test_claims_may_grow_where_their_class_allows_it(bench: Bench) -> None:
    grows, fixed = f"grows-{bench.namespace}", f"fixed-{bench.namespace}"
    for name, allowed in ((grows, True), (fixed, False)):
        body = {"provisioner": "example.com/none", "allowVolumeExpansion": allowed}
        bench.make("apis/storage.k8s.io/v1", "storageclasses", name, **body)
    for broker_id, storage_class in enumerate((grows, fixed, "gone")):
        bench.claim(f"data-flights-broker-{broker_id}", "10Gi", storage_class)
    bench.claim("data-flights-broker-x", "10Gi", grows)
    wish = await bench.read(spec_storage_size="20Gi")
    claims = await bench.children.claims(wish)
    assert {broker_id: claim.expandable for broker_id, claim in claims.items()} == {
        0: True,
        1: False,
        2: True,
    }, "of a class that cannot be read, the API server says so"
    assert claims[0].requested == 10 << 30
    large_enough = await bench.children.claims(bench.wish(spec_storage_size="10Gi"))
    assert not any(claim.expandable for claim in large_enough.values())


async def test_racks_are_those_of_the_nodes_with_our_pods(bench: Bench) -> None:
    east, bare = f"east-{bench.namespace}", f"bare-{bench.namespace}"
    bench.make("api/v1", "nodes", east, metadata={"labels": {ZONE: "zone-1"}})
    bench.make("api/v1", "nodes", bare)
    bench.pod("flights-broker-0", BROKER, node=east)
    bench.pod("flights-broker-1", BROKER, node=bare)
    bench.pod("flights-broker-2", BROKER)
    wish = await bench.read(spec_rack_topology_key=ZONE)
    assert await bench.children.racks(wish) == {east: "zone-1"}
    assert await bench.children.racks(bench.wish()) == {}


def stored_topic(bench: Bench, name: str, *replicas: int, cluster: str = "flights") -> None:
    """As a controller stores it."""
    ids = tuple(BrokerId(one) for one in replicas)
    state = PartitionState(
        leader=ids[0], leader_epoch=LeaderEpoch(1), isr=ids[:1], replicas=ids, version=1
    )
    document = TopicDocument(
        name=name,
        topic_id=TopicId(f"id-{name}"),
        configs={},
        partitions=(PartitionDocument(state),),
        controller_epoch=ControllerEpoch(1),
        metadata_version=1,
    )
    owned = ClusterObjects(cluster, bench.namespace)
    body = owned.config_map(topic_key(name), encode_topic(document), None)
    bench.server.request("POST", f"/{owned.config_maps.lstrip('/')}", body)


async def test_while_no_broker_answers_stored_topics_say_who_has_replicas(bench: Bench) -> None:
    for at in (0, 1, 4, 5):
        bench.claim(f"data-flights-broker-{at}", "1Gi", "any")
    stored_topic(bench, "t", 0, 4)
    stored_topic(bench, "u", 1, 2)
    stored_topic(bench, "of-others", 5, cluster="trains")
    broken = {"labels": {CLUSTER_LABEL: "flights", METADATA_LABEL: "topic"}}
    bench.make("api/v1", "configmaps", "flights-broken", metadata=broken, data={"document": "{"})
    brokers = Brokers()
    seen = await observe(bench.children, brokers, await bench.read(brokers=3), {})
    assert seen.stored == {0, 1, 2, 4}
    assert seen.last_broker("flights-broker") == 4, "nobody needs what was broker 5"
    await brokers.close()


async def test_stored_topics_are_not_read_without_need_or_each_second(bench: Bench) -> None:
    stored_topic(bench, "t", 0, 4)
    brokers, wish = Brokers(), await bench.read(brokers=3)
    seen = await observe(bench.children, brokers, wish, {})
    assert seen.stored == frozenset(), "there is no volume that it could be on"
    bench.claim("data-flights-broker-4", "1Gi", "any")
    for _ in range(2):
        seen = await observe(bench.children, brokers, await bench.read(brokers=3), {})
        assert seen.stored == {0, 4}
        stored_topic(bench, f"later-{_}", 3)
    await brokers.close()


def told_of_a_pod(bench: Bench, at: int, reason: str, note: str, **changes: Any) -> None:
    """As the StatefulSet controller tells it, `at` seconds past noon."""
    metadata = {"generateName": "told.", "namespace": bench.namespace}
    about = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "flights-broker"}
    body = {
        "metadata": metadata,
        "involvedObject": {**about, "namespace": bench.namespace, **changes},
        "reason": reason,
        "message": note,
        "type": "Warning",
        "firstTimestamp": "2026-01-01T12:00:00Z",
        "lastTimestamp": f"2026-01-01T12:00:{at:02}Z",
    }
    bench.server.request("POST", f"/api/v1/namespaces/{bench.namespace}/events", body)


async def test_why_a_broker_s_pod_cannot_be_created_is_what_its_set_was_told(bench: Bench) -> None:
    quota = 'pods "flights-broker-1" is forbidden: exceeded quota: compute'
    refused = "create Pod flights-broker-{} in StatefulSet flights-broker failed error: {}"
    made = "create Pod flights-broker-{} in StatefulSet flights-broker successful"
    told_of_a_pod(bench, 1, "FailedCreate", refused.format(1, "a webhook"))
    told_of_a_pod(bench, 5, "FailedCreate", refused.format(1, quota))
    told_of_a_pod(bench, 2, "SuccessfulCreate", made.format(1))
    told_of_a_pod(bench, 3, "FailedCreate", refused.format(2, quota))
    told_of_a_pod(bench, 9, "SuccessfulCreate", made.format(2))
    told_of_a_pod(bench, 9, "FailedCreate", refused.format(3, quota), name="trains-broker")
    clock = [0.0]
    refusals = Refusals(bench.kube, lambda: clock[0])
    names = bench.wish().names
    assert await refusals.read(names, {1, 2, 3}) == {}, "it may still be created"
    clock[0] = MISSING_S
    assert await refusals.read(names, {1, 2, 3}) == {1: quota}
    assert await refusals.read(names, {2, 3}) == {}, "it is there"
    assert await refusals.read(names, {1}) == {}, "it is missing again, for a moment so far"


async def test_a_pod_that_is_refused_is_seen_by_the_operator(bench: Bench) -> None:
    clock = [0.0]
    bench.children = Children(bench.kube, lambda: clock[0])
    note = "create Pod flights-broker-1 in StatefulSet flights-broker failed error: no room"
    told_of_a_pod(bench, 1, "FailedCreate", note)
    wish = bench.wish()
    await bench.kube.apply(broker_set(wish, 2))
    bench.pod("flights-broker-0", BROKER)
    await bench.read()
    assert await bench.children.refused(wish) == {}
    clock[0] = MISSING_S
    assert await bench.children.refused(wish) == {1: "no room"}
