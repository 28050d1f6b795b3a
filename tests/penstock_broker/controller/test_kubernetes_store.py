"""The Kubernetes store on a real API server that has a bad day (contract: tests/contracts)."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.api_proxy import ApiProxy, Kind, documents, leases
from support.apiserver import ApiServer
from support.documents import ROOT
from support.kubernetes_store import PATIENT, QUICK, open_store
from support.waiting import wait_until

from penstock.core.control.documents import decode_cluster
from penstock.kubernetes import lease
from penstock_broker.controller.metadata_store import kubernetes as module
from penstock_broker.controller.metadata_store.interface import (
    Delete,
    Put,
    StoreUnavailableError,
    WriteConflictError,
)
from penstock_broker.controller.metadata_store.kubernetes import KubernetesMetadataStore
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects
from tools.snippets.page import read_page

CONTROLLER_RULES: list[dict[str, Any]] = [
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["list", "create", "update", "delete"],
    },
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
]
Make = Callable[..., KubernetesMetadataStore]


@pytest.fixture(autouse=True)
def patient_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls about it have limits of their own."""
    monkeypatch.setattr(lease, "TIMEOUTS", PATIENT)


@contextmanager
def hurried(store: KubernetesMetadataStore) -> Iterator[None]:
    """Its calls have little time while the block runs."""
    before, store._api.timeouts = store._api.timeouts, QUICK
    try:
        yield
    finally:
        store._api.timeouts = before


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[ApiProxy]:
    made = ApiProxy(api_server)
    yield made
    made.close()


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    return api_server.namespace()


@pytest.fixture
def make(proxy: ApiProxy, namespace: str, tmp_path: Path) -> Iterator[Make]:
    """Stores of cluster `flights`; through the proxy unless another kubeconfig is given."""
    made: list[KubernetesMetadataStore] = []

    def make_one(kubeconfig: Path | None = None, **owner: str) -> KubernetesMetadataStore:
        path = kubeconfig or proxy.kubeconfig(tmp_path / "proxied.kubeconfig")
        objects = ClusterObjects("flights", namespace, **owner)
        made.append(open_store(path, objects))
        return made[-1]

    yield make_one
    for store in made:
        store.close()


@pytest.fixture
def store(make: Make) -> KubernetesMetadataStore:
    return make()


def texts(store: KubernetesMetadataStore) -> dict[str, str]:
    return {key: stored.text for key, stored in store.read_all().items()}


# ---------------------------------------------------------------- one write meets one fault

PASSED, LOST = "new", "old"
ENDLESS_S = 120.0
"""Nobody waits for an answer for so long."""


@pytest.mark.parametrize(
    ("kind", "options", "error", "outcome"),
    [
        (Kind.STATUS, {"status": 409}, WriteConflictError, LOST),
        (Kind.STATUS, {"status": 500}, StoreUnavailableError, LOST),
        (Kind.STATUS, {"status": 503, "retry_after_s": 1}, StoreUnavailableError, LOST),
        (Kind.STATUS, {"status": 429, "retry_after_s": 0.2, "times": 2}, None, PASSED),
        (Kind.STATUS, {"status": 429, "retry_after_s": 60}, StoreUnavailableError, LOST),
        (Kind.STATUS, {"status": 429, "times": None}, StoreUnavailableError, LOST),
        (Kind.RESET, {}, StoreUnavailableError, LOST),
        (Kind.ANSWER_LOST, {}, StoreUnavailableError, PASSED),
        (Kind.UNANSWERED, {"seconds": ENDLESS_S}, StoreUnavailableError, PASSED),
        (Kind.TRICKLE, {"seconds": ENDLESS_S}, StoreUnavailableError, PASSED),
        (Kind.SLOW, {"seconds": 0.5}, None, PASSED),
    ],
)
@pytest.mark.parametrize("what", ["create", "replace", "delete"])
def test_after_any_fault_the_truth_is_there_to_be_read(
    store: KubernetesMetadataStore,
    proxy: ApiProxy,
    what: str,
    kind: Kind,
    options: dict[str, Any],
    error: type[Exception] | None,
    outcome: str,
) -> None:
    before = None if what == "create" else store.write([[Put("topic/t", "old", None)]])["topic/t"]
    change: Any = Put("topic/t", "new", before)
    after: dict[str, dict[str, str]] = {"old": {"topic/t": "old"}, "new": {"topic/t": "new"}}
    if what == "create":
        after["old"] = {}
    if what == "delete":
        change, after["new"] = Delete("topic/t", str(before)), {}
    fault = proxy.plant(kind, fits=documents, **options)

    def is_met() -> int:
        """A call with little time may end before it has come so far."""
        if error is None:
            store.write([[change]])
            return fault.seen
        little_time: AbstractContextManager[None] = nullcontext()
        if error is StoreUnavailableError:
            little_time = hurried(store)
        with little_time, pytest.raises(error):
            store.write([[change], [Put("topic/later", "never", None)]])
        return fault.seen

    began = time.monotonic()
    wait_until(is_met, what="the fault is met")
    assert time.monotonic() - began < ENDLESS_S / 2
    proxy.heal()
    wait_until(lambda: texts(store) == after[outcome], what=f"{outcome} is there")
    found = store.read_all().get("topic/t")
    store.write([[Put("topic/t", "next", found.version if found else None)]])
    assert texts(store) == {"topic/t": "next"}


def test_a_renewed_attempt_is_never_made_in_secret(
    store: KubernetesMetadataStore, proxy: ApiProxy
) -> None:
    proxy.plant(Kind.ANSWER_LOST, fits=documents)
    with pytest.raises(StoreUnavailableError):
        store.write([[Put("topic/t", "1", None)]])
    assert proxy.calls == {"POST configmaps": 1}, "it would meet its own success as a conflict"


# ---------------------------------------------------------------- many documents


def test_the_rest_of_a_write_is_not_sent_after_a_doubtful_answer(
    store: KubernetesMetadataStore, proxy: ApiProxy
) -> None:
    proxy.plant(Kind.STATUS, fits=documents, status=500, times=None)
    stage = [Put(f"topic/{index}", "x", None) for index in range(100)]
    with pytest.raises(StoreUnavailableError):
        store.write([stage, [Put("cluster", "x", None)]])
    assert proxy.calls["POST configmaps"] <= 8
    assert texts(store) == {}


def test_of_a_conflict_and_a_doubtful_answer_the_doubt_is_told(
    store: KubernetesMetadataStore, proxy: ApiProxy
) -> None:
    version = store.write([[Put("topic/a", "1", None)]])["topic/a"]
    store.write([[Put("topic/a", "2", version)]])
    slow = proxy.plant(Kind.SLOW, fits=lambda m, p: m == "PUT" and "-a-" in p, seconds=0.3)
    proxy.plant(Kind.RESET, fits=lambda m, _p: m == "POST")
    with pytest.raises(StoreUnavailableError):
        store.write([[Put("topic/a", "3", version), Put("topic/b", "1", None)]])
    assert slow.seen


def test_a_large_stage_goes_out_in_parallel(
    store: KubernetesMetadataStore, proxy: ApiProxy
) -> None:
    slow = proxy.plant(Kind.SLOW, fits=documents, seconds=0.1, times=None)
    stage = [Put(f"topic/{index}", str(index), None) for index in range(80)]
    versions = store.write([stage])
    assert slow.held_max > 1, "they went out one after the other"
    proxy.heal()
    found = store.read_all()
    assert {key: stored.version for key, stored in found.items()} == versions
    assert {stored.text for stored in found.values()} == {str(index) for index in range(80)}


# ---------------------------------------------------------------- reading


def test_a_list_of_documents_is_read_to_its_last_page_or_fails(
    store: KubernetesMetadataStore, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 3)
    store.write([[Put(f"topic/{index}", "x", None) for index in range(10)]])
    proxy.plant(Kind.RESET, fits=lambda _m, path: "continue=" in path)
    with pytest.raises(StoreUnavailableError):
        store.read_all()
    proxy.calls.clear()
    assert len(store.read_all()) == 10
    assert proxy.calls == {"GET configmaps": 4}


def test_copies_and_strangers_are_not_documents(
    store: KubernetesMetadataStore, api_server: ApiServer, namespace: str
) -> None:
    store.write([[Put("topic/t", "mine", None)]])
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    [item] = api_server.request("GET", path + "?labelSelector=penstock.dev/metadata")["items"]
    backup = {"name": "backup-of-t", "labels": item["metadata"]["labels"]}
    data = {"key": "topic/t", "document": "old"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": backup, "data": data}
    api_server.request("POST", path, body)
    foreign = {"name": "foreign", "labels": item["metadata"]["labels"]}
    api_server.request("POST", path, {**body, "metadata": foreign, "data": {}})
    assert texts(store) == {"topic/t": "mine"}


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"penstock.dev/metadata": None}}},
        {"metadata": {"labels": {"penstock.dev/cluster": "other"}}},
        {"data": {"key": "topic/other"}},
    ],
    ids=["no label", "another's label", "another key"],
)
def test_a_document_that_somebody_has_hidden_is_found_once_it_is_to_be_made(
    store: KubernetesMetadataStore, api_server: ApiServer, namespace: str, change: dict[str, Any]
) -> None:
    """A controller makes what is missing, and is told for ever that it exists."""
    store.write([[Put("topic/t", "before", None)]])
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    [item] = api_server.request("GET", path + "?labelSelector=penstock.dev/metadata")["items"]
    merge = {"Content_Type": "application/merge-patch+json"}
    api_server.request("PATCH", f"{path}/{item['metadata']['name']}", change, **merge)
    assert texts(store) == {}
    with pytest.raises(WriteConflictError):
        store.write([[Put("topic/t", "after", None)]])
    (found,) = store.read_all().values()
    assert found.text == "before"
    store.write([[Put("topic/t", "after", found.version)]])
    assert texts(store) == {"topic/t": "after"}


def test_a_stranger_where_a_document_must_be_is_named_and_left_alone(
    store: KubernetesMetadataStore, api_server: ApiServer, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "flights-metadata"}}
    api_server.request("POST", path, {**body, "data": {"mine": "yes"}})
    with pytest.raises(StoreUnavailableError, match="/flights-metadata is no document"):
        store.write([[Put("cluster", "new", None)]])
    assert api_server.request("GET", f"{path}/flights-metadata")["data"] == {"mine": "yes"}


def test_the_object_that_a_person_writes_as_the_page_says_is_read(
    store: KubernetesMetadataStore, api_server: ApiServer, namespace: str
) -> None:
    snippets = read_page(ROOT, "docs/operations.md")
    (page,) = (one for one in snippets if "flights-metadata" in one.text and one.language == "yaml")
    api_server.request(
        "POST", f"/api/v1/namespaces/{namespace}/configmaps", yaml.safe_load(page.text)
    )
    text = texts(store)["cluster"]
    assert decode_cluster(text, "the page's").cluster_id == "ID"
    assert store.acquire_lease("x", 10_000)
    store.write([[Put("cluster", text, store.read_all()["cluster"].version)]])


def test_two_clusters_in_one_namespace_do_not_see_each_other(
    store: KubernetesMetadataStore, api_server: ApiServer, namespace: str
) -> None:
    other = open_store(api_server.kubeconfig, ClusterObjects("flights-2", namespace))
    store.write([[Put("cluster", "1", None), Put("topic/t", "1", None)]])
    other.write([[Put("cluster", "2", None), Put("topic/t", "2", None)]])
    assert texts(store) == {"cluster": "1", "topic/t": "1"}
    assert texts(other) == {"cluster": "2", "topic/t": "2"}
    assert other.acquire_lease("x", 10_000)
    assert store.acquire_lease("y", 10_000)
    other.close()


@pytest.mark.parametrize("version", ["0", ""])
def test_a_version_that_would_overwrite_anything_is_a_conflict(
    store: KubernetesMetadataStore, version: str
) -> None:
    store.write([[Put("cluster", "old", None)]])
    for change in (Put("cluster", "new", version), Delete("cluster", version)):
        with pytest.raises(WriteConflictError):
            store.write([[change]])
    assert texts(store) == {"cluster": "old"}


# ---------------------------------------------------------------- owners


def owners(server: ApiServer, namespace: str, kind: str = "configmaps") -> dict[str, list[str]]:
    group = "/api/v1" if kind == "configmaps" else "/apis/coordination.k8s.io/v1"
    path = f"{group}/namespaces/{namespace}/{kind}?labelSelector=penstock.dev/cluster"
    return {
        item["metadata"]["name"]: [
            f"{owner['kind']}/{owner['name']}/{owner['uid']}"
            for owner in item["metadata"].get("ownerReferences", [])
        ]
        for item in server.request("GET", path)["items"]
    }


def test_whoever_takes_the_lease_corrects_the_owner_once(
    make: Make, api_server: ApiServer, proxy: ApiProxy, namespace: str
) -> None:
    retained = make()
    retained.write([[Put("cluster", "c", None), Put("topic/t", "t", None)]])
    assert set(map(tuple, owners(api_server, namespace).values())) == {()}

    owned = make(owner_uid="uid-1")
    owned.read_all()
    assert set(map(tuple, owners(api_server, namespace).values())) == {()}, "not the active one"
    assert owned.acquire_lease("one", 10_000)
    found = owned.read_all()
    assert set(map(tuple, owners(api_server, namespace).values())) == {("Cluster/flights/uid-1",)}
    assert owners(api_server, namespace, "leases") == {
        "flights-controller": ["Cluster/flights/uid-1"]
    }
    owned.write([[Put("topic/t", "t2", found["topic/t"].version), Put("topic/u", "u", None)]])
    assert set(map(tuple, owners(api_server, namespace).values())) == {("Cluster/flights/uid-1",)}
    before = proxy.calls["PUT configmaps"]
    owned.read_all()
    assert proxy.calls["PUT configmaps"] == before
    owned.release_lease("one")

    assert retained.acquire_lease("two", 10_000)
    assert {key: s.text for key, s in retained.read_all().items()} == {
        "cluster": "c",
        "topic/t": "t2",
        "topic/u": "u",
    }
    assert set(map(tuple, owners(api_server, namespace).values())) == {()}, (
        "what is to be retained must not go with the Cluster"
    )


def test_an_unanswered_lease_request_means_that_the_store_is_unavailable(
    store: KubernetesMetadataStore, proxy: ApiProxy
) -> None:
    assert store.acquire_lease("me", 10_000)
    proxy.plant(Kind.RESET, fits=leases)
    with pytest.raises(StoreUnavailableError):
        store.acquire_lease("me", 10_000)
    proxy.plant(Kind.RESET, fits=leases)
    with pytest.raises(StoreUnavailableError):
        store.release_lease("me")


# ---------------------------------------------------------------- permissions


def test_the_controllers_role_is_enough_and_its_lack_is_named(
    make: Make, api_server: ApiServer, namespace: str
) -> None:
    allowed = api_server.service_account(namespace, "flights-controller", CONTROLLER_RULES)
    store = make(allowed, owner_uid="uid-1")
    assert store.acquire_lease("me", 10_000)
    assert store.acquire_lease("me", 10_000)
    version = store.write([[Put("topic/t", "1", None)]])["topic/t"]
    version = store.write([[Put("topic/t", "2", version)]])["topic/t"]
    store.write([[Delete("topic/t", version)]])
    assert store.read_all() == {}
    store.release_lease("me")

    forbidden = make(api_server.service_account(namespace, "nobody", []))
    for call in (
        forbidden.read_all,
        lambda: forbidden.write([[Put("topic/t", "1", None)]]),
        lambda: forbidden.acquire_lease("me", 10_000),
    ):
        with pytest.raises(StoreUnavailableError, match=r"403.*nobody.*cannot"):
            call()


def test_a_namespace_that_is_not_there_is_named(api_server: ApiServer) -> None:
    store = open_store(api_server.kubeconfig, ClusterObjects("flights", "no-such-place"))
    with pytest.raises(StoreUnavailableError, match="no-such-place"):
        store.write([[Put("cluster", "1", None)]])
    with pytest.raises(StoreUnavailableError, match="no-such-place"):
        store.acquire_lease("me", 10_000)
    store.close()


# ---------------------------------------------------------------- the API server itself


def test_an_api_server_that_freezes_or_restarts_is_survived(
    api_server: ApiServer, namespace: str
) -> None:
    objects = ClusterObjects("flights", namespace)
    store = open_store(api_server.kubeconfig, objects)
    version = store.write([[Put("topic/t", "1", None)]])["topic/t"]
    api_server.pause()
    try:
        with hurried(store), pytest.raises(StoreUnavailableError, match="no answer came in time"):
            store.write([[Put("topic/t", "2", version)]])
    finally:
        api_server.resume()
    found = store.read_all()["topic/t"]
    assert found.text in {"1", "2"}, "frozen or not, it may have been carried out"
    api_server.kill()
    try:
        with pytest.raises(StoreUnavailableError):
            store.read_all()
    finally:
        api_server.start()
    wait_until(lambda: readable(store), what="the store works again")
    assert store.read_all()["topic/t"].text in {found.text, "2"}
    store.close()


def readable(store: KubernetesMetadataStore) -> bool:
    try:
        store.read_all()
    except StoreUnavailableError:
        return False
    return True
