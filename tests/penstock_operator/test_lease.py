"""The operator's loops around its Lease, on a real API server that can be cut off."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.api_proxy import ApiProxy, Kind, leases
from support.apiserver import TIMEOUTS, ApiServer
from support.waiting import wait_until_async

from penstock.kubernetes import lease as kubernetes_lease
from penstock.kubernetes.api import Api
from penstock.kubernetes.connect import connect
from penstock.kubernetes.lease import Lease
from penstock.kubernetes.resources import LeaseObject, path_of
from penstock_operator import lease as module
from penstock_operator.lease import Leadership, LeaseLostError

Make = Callable[[str], Leadership]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is renewed often, and lasts for as long as the machine may stand still."""
    monkeypatch.setattr(module, "RENEW_S", 0.1)
    monkeypatch.setattr(module, "DURATION_S", 60.0)
    monkeypatch.setattr(kubernetes_lease, "TIMEOUTS", TIMEOUTS)


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[ApiProxy]:
    made = ApiProxy(api_server)
    yield made
    made.close()


@pytest.fixture
def where(api_server: ApiServer) -> LeaseObject:
    return LeaseObject(api_server.namespace(), "penstock-operator")


@pytest.fixture
def make(
    api_server: ApiServer, proxy: ApiProxy, where: LeaseObject, tmp_path: Path
) -> Iterator[Make]:
    """Operators; `behind` the proxy by name, the others directly."""
    apis: list[Api] = []

    def make_one(holder: str) -> Leadership:
        behind = proxy.kubeconfig(tmp_path / "proxied") if holder == "behind" else None
        apis.append(connect("tests", TIMEOUTS, kubeconfig=str(behind or api_server.kubeconfig)))
        return Leadership(Lease(apis[-1], where), holder)

    yield make_one
    for api in apis:
        api.close()


async def test_a_standby_waits_for_the_leader_to_release(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DURATION_S", 8.0)
    leader, standby = make("leader"), make("standby")
    await leader.acquire()
    async with asyncio.TaskGroup() as tasks:
        holding = tasks.create_task(leader.hold())
        waiting = tasks.create_task(standby.acquire())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(9.0):  # longer than the Lease lasts without renewals
                await asyncio.shield(waiting)
        holding.cancel()
        await leader.release()
        await waiting
    await standby.release()


async def test_a_leader_that_cannot_renew_in_time_says_so_and_another_takes_over(
    make: Make, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DURATION_S", 2.0)
    leader, standby = make("behind"), make("standby")
    await leader.acquire()
    proxy.cut()
    with pytest.raises(LeaseLostError, match="could not be renewed for 2 s"):
        await leader.hold()
    await standby.acquire()
    proxy.heal()
    with pytest.raises(LeaseLostError, match="another operator"):
        await leader.hold()
    await leader.release()
    assert make("third")._renew() is None, "only the holder can release it"
    await standby.release()


async def test_a_lease_that_was_deleted_is_lost_though_the_same_operator_takes_it_again(
    make: Make, api_server: ApiServer, where: LeaseObject
) -> None:
    """Another one may have had a Lease of that name in between (I35)."""
    leader = make("leader")
    await leader.acquire()
    await leader.renewed()
    api = connect("tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig))
    api.request("DELETE", path_of("Lease", where.namespace, where.name))
    api.close()
    with pytest.raises(LeaseLostError, match="deleted"):
        await leader.hold()
    with pytest.raises(LeaseLostError, match="deleted"):
        await leader.renewed()
    await leader.acquire()
    await leader.renewed()
    await leader.release()


async def test_an_unanswered_renewal_is_repeated(make: Make, proxy: ApiProxy) -> None:
    leader = make("behind")
    await leader.acquire()
    async with asyncio.TaskGroup() as tasks:
        holding = tasks.create_task(leader.hold())
        fault = proxy.plant(Kind.ANSWER_LOST, fits=leases, times=2)
        before = proxy.calls["PUT leases"]

        async def renewed() -> bool:
            return fault.seen == 2 and proxy.calls["PUT leases"] >= before + 5

        await wait_until_async(renewed, what="it renews again")
        assert not holding.done()
        holding.cancel()
    await leader.release()


async def test_a_release_that_fails_is_only_logged(make: Make, proxy: ApiProxy) -> None:
    leader = make("behind")
    await leader.acquire()
    proxy.cut()
    await leader.release()
