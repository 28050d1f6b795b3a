"""Elections on a real API server: several candidates, clocks moved by the test, planted faults."""

from collections.abc import Callable
from typing import Any

import pytest
from support.api_proxy import ApiProxy, Kind, leases
from support.apiserver import ApiServer

from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.lease import Lease
from penstock.kubernetes.resources import LeaseObject, path_of

Make = Callable[..., Lease]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server on a busy machine may take seconds."""
    patience = Timeouts(connect_s=60.0, total_s=60.0)
    monkeypatch.setattr("penstock.kubernetes.lease.TIMEOUTS", patience)


@pytest.fixture
def where(namespace: str) -> str:
    return path_of("Lease", namespace, "flights")


@pytest.fixture
def make(api: Api, namespace: str) -> Make:
    """Makes candidates for the Lease `flights`."""

    def make_one(clock: list[float] | None = None, **fields: Any) -> Lease:
        now = clock if clock is not None else [1_000.0]
        return Lease(api, LeaseObject(namespace, "flights", **fields), lambda: now[0])

    return make_one


def test_one_candidate_holds_it_until_it_expires_or_is_released(make: Make) -> None:
    clock = [1_000.0]
    mine, rival = make(clock), make(clock)
    assert mine.acquire("me", 10_000)
    assert not rival.acquire("rival", 10_000)
    rival.release("rival")
    assert not rival.acquire("rival", 10_000), "only the holder can release it"
    clock[0] += 10.1
    assert rival.acquire("rival", 10_000)
    assert not mine.acquire("me", 10_000)
    rival.release("rival")
    assert mine.acquire("me", 10_000)


def test_an_unanswered_renewal_does_not_lose_the_lease(make: Make, proxy: ApiProxy) -> None:
    mine, rival = make(), make()
    assert mine.acquire("me", 10_000)
    for kind in (Kind.ANSWER_LOST, Kind.RESET, Kind.STATUS):
        proxy.plant(kind, fits=leases)
        with pytest.raises(KubernetesError):
            mine.acquire("me", 10_000)
        assert mine.acquire("me", 10_000)
        assert not rival.acquire("rival", 10_000)


def test_an_unanswered_take_over_is_discovered_by_the_next_attempt(
    make: Make, proxy: ApiProxy
) -> None:
    mine, rival = make(), make()
    proxy.plant(
        Kind.ANSWER_LOST, fits=lambda method, path: leases(method, path) and method != "GET"
    )
    with pytest.raises(KubernetesError):
        mine.acquire("me", 10_000)
    assert not rival.acquire("rival", 10_000), "the request had passed"
    assert mine.acquire("me", 10_000)


def test_a_renewal_is_one_request(make: Make, proxy: ApiProxy) -> None:
    mine = make()
    mine.acquire("me", 10_000)
    proxy.calls.clear()
    for _ in range(5):
        assert mine.acquire("me", 10_000)
    assert proxy.calls == {"PUT leases": 5}


def test_a_lease_that_somebody_changed_or_deleted_stays_with_its_holder(
    make: Make, api_server: ApiServer, where: str
) -> None:
    mine = make()
    assert mine.acquire("me", 10_000)
    lease = api_server.request("GET", where)
    lease["metadata"]["annotations"] = {"touched": "by hand"}
    api_server.request("PUT", where, lease)
    assert mine.acquire("me", 10_000)
    api_server.request("DELETE", where)
    assert mine.acquire("me", 10_000)
    assert api_server.request("GET", where)["spec"]["holderIdentity"] == "me"


@pytest.mark.parametrize("written", ["2000-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
def test_other_machines_clocks_do_not_matter(
    make: Make, api_server: ApiServer, where: str, written: str
) -> None:
    clock = [1_000.0]
    mine, rival = make(), make(clock)
    assert mine.acquire("me", 10_000)
    lease = api_server.request("GET", where)
    lease["spec"]["renewTime"] = written
    api_server.request("PUT", where, lease)
    assert not rival.acquire("rival", 10_000)
    clock[0] += 9.9
    assert not rival.acquire("rival", 10_000)
    assert mine.acquire("me", 10_000)
    clock[0] += 9.9
    assert not rival.acquire("rival", 10_000), "it was renewed since"
    clock[0] += 10.1
    assert rival.acquire("rival", 10_000)
    assert api_server.request("GET", where)["spec"]["leaseTransitions"] == 2


def test_a_lease_without_a_duration_expires_after_the_candidates_own(
    make: Make, api_server: ApiServer, where: str, namespace: str
) -> None:
    clock = [1_000.0]
    mine = make(clock)
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    body = {**kind, "metadata": {"name": "flights"}, "spec": {"holderIdentity": "by hand"}}
    api_server.request("POST", path_of("Lease", namespace), body)
    assert not mine.acquire("me", 10_000)
    clock[0] += 10.1
    assert mine.acquire("me", 10_000)


def test_the_object_has_labels_owners_and_times_for_people(
    make: Make, api_server: ApiServer, where: str
) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "uid-1"}
    mine = make(labels={"part": "x"}, owners=(owner,))
    assert mine.acquire("me", 9_500)
    assert mine.acquire("me", 9_500)
    lease = api_server.request("GET", where)
    assert lease["metadata"]["labels"] == {"part": "x"}
    assert lease["metadata"]["ownerReferences"] == [owner]
    spec = lease["spec"]
    assert spec["leaseDurationSeconds"] == 10, "whole seconds, never fewer than asked for"
    assert spec["acquireTime"] < spec["renewTime"]
    mine.release("me")
    assert "holderIdentity" not in api_server.request("GET", where)["spec"]


def test_a_missing_namespace_is_named(api: Api) -> None:
    with pytest.raises(KubernetesError, match="no-such-place"):
        Lease(api, LeaseObject("no-such-place", "flights")).acquire("me", 10_000)
