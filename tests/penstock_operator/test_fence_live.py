"""Two operators, one frozen: real Leases of a real API server, and real brokers (I35)."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import PATIENT, Cluster
from support.operator_world import desired
from support.reachable import Reachable
from support.waiting import wait_until_async

from penstock.client import AsyncAdmin, BrokerChange, Cordon
from penstock.core.control.documents import OperatorLease
from penstock.errors import ClusterError, ErrorCode
from penstock.kubernetes import lease as kubernetes_lease
from penstock.kubernetes.connect import connect
from penstock.kubernetes.lease import Lease
from penstock.kubernetes.resources import LeaseObject, path_of
from penstock_operator import lease as module
from penstock_operator.fence import Fence, FencedError
from penstock_operator.lease import Leadership, LeaseLostError

WISH = desired(brokers=3)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.1)
    monkeypatch.setattr(module, "DURATION_S", 1.0)
    monkeypatch.setattr(module, "FRESH_S", 60.0)  # a machine that stands still renews late
    monkeypatch.setattr(kubernetes_lease, "TIMEOUTS", TIMEOUTS)


class Gate:
    """A Lease whose holder may be frozen just after it was renewed."""

    def __init__(self, inner: Leadership) -> None:
        self.inner = inner
        self.renewals = 0
        self.open = asyncio.Event()
        self.open.set()
        self.reached = asyncio.Event()

    async def renewed(self) -> OperatorLease:
        lease = await self.inner.renewed()
        self.renewals += 1
        self.reached.set()
        await self.open.wait()
        return lease


class Operator:
    """As much of one as asks brokers."""

    def __init__(self, server: ApiServer, where: LeaseObject, bootstrap: str, name: str) -> None:
        self.api = connect("tests", TIMEOUTS, kubeconfig=str(server.kubeconfig))
        self.leadership = Leadership(Lease(self.api, where), name)
        self.held = Gate(self.leadership)
        self.fence = Fence(self.held)
        self.brokers = Reachable(bootstrap)

    async def start(self) -> "Operator":
        await self.leadership.acquire()
        self.fence.guard(await self.admin())
        return self

    async def admin(self) -> AsyncAdmin:
        return await self.brokers.admin(WISH)

    async def cordon(self, broker_id: int, why: str) -> None:
        cordon = Cordon(placement=True, leadership=False, why=why, by="operator")
        await (await self.admin()).alter_brokers([BrokerChange(broker_id, cordon=cordon)])

    async def close(self) -> None:
        await self.leadership.release()
        await self.brokers.close()
        self.api.close()


class Pair:
    """The operators of one Lease and one cluster."""

    def __init__(self, server: ApiServer, servers: Cluster) -> None:
        self._server, self._bootstrap = server, servers.bootstrap
        self._where = LeaseObject(server.namespace("fence"), "penstock-operator")
        self._made: list[Operator] = []

    async def start(self, name: str) -> Operator:
        one = Operator(self._server, self._where, self._bootstrap, name)
        self._made.append(one)
        return await one.start()

    async def delete_lease(self) -> None:
        """In a later second than it was created in: Leases of one second have no order."""
        [api, *_] = [one.api for one in self._made]
        path = path_of("Lease", self._where.namespace, self._where.name)
        found = await asyncio.to_thread(api.request, "GET", path)
        created = datetime.fromisoformat(found["metadata"]["creationTimestamp"])

        async def is_later() -> bool:
            return datetime.now(UTC) >= created + timedelta(seconds=1)

        await wait_until_async(is_later, what="the next second")
        await asyncio.to_thread(api.request, "DELETE", path)

    async def close(self) -> None:
        for one in self._made:
            await one.close()


@pytest.fixture
async def pair(api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Pair]:
    with Cluster(tmp_path, brokers=2, controller_config=PATIENT) as servers:
        made = Pair(api_server, servers)
        yield made
        await made.close()


async def cordons(operator: Operator) -> dict[int, str]:
    """By broker, why. Questions name no epoch."""
    moving = await (await operator.admin()).describe_moves()
    return {one.broker_id: one.cordon.why for one in moving.brokers if one.cordon is not None}


async def test_a_former_operator_changes_nothing_after_its_successors_first_act(
    pair: Pair,
) -> None:
    first = await pair.start("first")
    await first.cordon(0, "by the first")
    second = await pair.start("second")  # the first one does not renew: it is frozen
    await second.cordon(1, "by the second")
    for _ in range(2):
        with pytest.raises(ClusterError, match="another operator has taken over") as refused:
            await first.cordon(0, "too late")
        assert refused.value.code is ErrorCode.STALE_OPERATOR_EPOCH
        with pytest.raises(FencedError):
            first.fence.check()
    with pytest.raises(ClusterError, match="another operator has taken over"):
        await (await first.admin()).create_topic("late")
    assert await cordons(first) == {0: "by the first", 1: "by the second"}
    assert "late" not in await (await second.admin()).list_topics()
    with pytest.raises(LeaseLostError):
        await first.fence.start_over()
    second.fence.check()
    await second.cordon(0, "by the second")


async def test_one_that_froze_between_its_renewal_and_its_request_gets_no_epoch(
    pair: Pair,
) -> None:
    first = await pair.start("first")
    first.held.open.clear()
    async with asyncio.TaskGroup() as tasks:
        acting = tasks.create_task(_refusal(first.cordon(0, "too late")))
        await first.held.reached.wait()
        second = await pair.start("second")
        await second.cordon(1, "by the second")
        first.held.open.set()
        error = await acting
    assert error.code is ErrorCode.STALE_OPERATOR_EPOCH
    assert "1 transitions, and 2 were seen" in error.message
    with pytest.raises(FencedError):
        first.fence.check()
    assert await cordons(second) == {1: "by the second"}


async def test_one_whose_lease_was_deleted_twice_does_not_go_on_with_its_epoch(pair: Pair) -> None:
    """Another has had a Lease in between, and may still ask for an epoch with it."""
    first = await pair.start("first")
    await first.cordon(0, "by the first")
    await pair.delete_lease()
    between = await pair.start("between")
    between.held.open.clear()
    async with asyncio.TaskGroup() as tasks:
        acting = tasks.create_task(_refusal(between.cordon(0, "too late")))
        await between.held.reached.wait()
        await pair.delete_lease()
        with pytest.raises(LeaseLostError, match="deleted"):
            async with asyncio.timeout(60):
                await first.leadership.hold()
        again = await pair.start("first")  # its process has ended and started
        await again.cordon(1, "by the first, again")
        between.held.open.set()
        error = await acting
    assert error.code is ErrorCode.STALE_OPERATOR_EPOCH
    assert "is as new or newer" in error.message
    assert await cordons(again) == {0: "by the first", 1: "by the first, again"}


async def test_an_operator_asks_once_and_not_for_questions(pair: Pair) -> None:
    only = await pair.start("only")
    assert await cordons(only) == {}
    assert only.held.renewals == 0
    await only.cordon(0, "one")
    await only.cordon(1, "two")
    assert only.held.renewals == 1
    await only.fence.start_over()
    await only.cordon(0, "three")
    assert only.held.renewals == 3
    assert await cordons(only) == {0: "three", 1: "two"}


async def _refusal(change: Coroutine[Any, Any, None]) -> ClusterError:
    with pytest.raises(ClusterError) as refused:
        await change
    return refused.value
