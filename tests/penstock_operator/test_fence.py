"""The fence of one Cluster: what it does with answers, and what its worker then does."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client import generate_latest
from support.apiserver import TIMEOUTS, ApiServer
from support.kube_scene import PENSTOCK, Scene
from support.operator_process import condition

from penstock.client import AsyncAdmin
from penstock.core.control.documents import OperatorLease
from penstock.errors import ClusterError, ErrorCode
from penstock.kubernetes.connect import connect
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.act import Acting
from penstock_operator.events import Events
from penstock_operator.fence import Fence, FencedError
from penstock_operator.kube import Kube
from penstock_operator.lease import LeaseLostError
from penstock_operator.metrics import Metrics
from penstock_operator.objects import Installation
from penstock_operator.overruled import Overrulings
from penstock_operator.worker import Deps, Outcome, Worker

LEASE = OperatorLease(uid="u", created_s=1, transitions=1, holder="h")


class Held:
    """Our Lease, or what asking for it raises."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem
        self.renewals = 0

    async def renewed(self) -> OperatorLease:
        self.renewals += 1
        if self.problem is not None:
            raise self.problem
        return LEASE


class Brokers(AsyncAdmin):
    """Give epochs, in order; an exception is raised."""

    def __init__(self, *answers: int | Exception) -> None:
        super().__init__("127.0.0.1:1")
        self.answers = list(answers)

    async def acquire_operator_epoch(self, lease: OperatorLease) -> int:
        assert lease == LEASE
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def name_operator(
        self, epoch: Callable[[], Awaitable[int]], refused: Callable[[str], None]
    ) -> None:
        self.epoch, self.refused = epoch, refused


class Refused(Acting):
    """The brokers refuse the first thing that it asks for."""

    def __init__(self, fence: Fence) -> None:
        self.fence, self.overrulings = fence, Overrulings()

    async def carry_out(self, *_: object) -> None:
        self.fence._refused("another operator has taken over")


def fenced(held: Held, *answers: int | Exception) -> tuple[Fence, Brokers]:
    fence, brokers = Fence(held), Brokers(*answers)
    fence.guard(brokers)
    return fence, brokers


async def test_an_epoch_is_asked_for_once() -> None:
    held = Held()
    _, brokers = fenced(held, 4)
    assert [await brokers.epoch(), await brokers.epoch()] == [4, 4]
    assert held.renewals == 1


async def test_brokers_of_the_release_before_are_asked_again_each_time() -> None:
    unknown = ClusterError("the broker does not know this call", ErrorCode.INVALID_REQUEST)
    _, brokers = fenced(Held(), unknown, 0, 1)
    assert [await brokers.epoch() for _ in range(4)] == [0, 0, 1, 1]


async def test_nothing_is_asked_after_a_refusal_before_it_starts_over() -> None:
    held = Held()
    fence, brokers = fenced(held, 1, 2)
    assert await brokers.epoch() == 1
    brokers.refused("operator 'b' counts")
    with pytest.raises(ClusterError) as refused:
        await brokers.epoch()
    assert refused.value.code is ErrorCode.STALE_OPERATOR_EPOCH
    with pytest.raises(FencedError, match="operator 'b' counts"):
        fence.check()
    assert held.renewals == 1
    await fence.start_over()
    fence.check()
    assert await brokers.epoch() == 2


async def test_a_lost_lease_is_a_refusal() -> None:
    fence, brokers = fenced(Held(LeaseLostError("lost")))
    with pytest.raises(ClusterError, match="another operator"):
        await brokers.epoch()
    with pytest.raises(FencedError):
        fence.check()


async def test_a_lease_that_cannot_be_renewed_delays_changes() -> None:
    held = Held(KubernetesError("no answer", 0))
    fence, brokers = fenced(held, 1)
    with pytest.raises(ClusterError, match="before its Lease is renewed: no answer") as waits:
        await brokers.epoch()
    assert waits.value.retriable
    fence.check()
    held.problem = None
    assert await brokers.epoch() == 1


@pytest.fixture
def kube(api_server: ApiServer) -> Iterator[Kube]:
    made = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig)))
    yield made
    made.close()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def test_a_fenced_worker_does_nothing_before_its_lease_is_renewed(
    kube: Kube, closing: ExitStack
) -> None:
    held = Held(KubernetesError("no answer", 0))
    installation = Installation("penstock-broker:test")
    worker = Worker(Deps(kube, Events(kube, "test"), Metrics(), installation, held), "ns", "c")
    closing.callback(worker._credentials.close)
    worker._fence._refused("refused")
    before = kube.calls
    for _ in range(2):
        assert await worker._pass() is Outcome.FAILED
    assert (kube.calls, held.renewals) == (before, 2)
    held.problem = None
    assert await worker._pass() is Outcome.FAILED
    assert kube.calls == before
    worker._fence.check()
    held.problem = LeaseLostError("lost")
    worker._fence._refused("refused")
    with pytest.raises(LeaseLostError):
        await worker._pass()


async def test_an_operator_that_is_refused_with_its_own_lease_says_so(
    kube: Kube, closing: ExitStack, api_server: ApiServer
) -> None:
    """For ever, if its Lease is older than the one that the cluster has seen."""
    scene = Scene(api_server)
    scene.cluster()
    installation = Installation("penstock-broker:test")
    deps = Deps(kube, Events(kube, "test"), Metrics(), installation, Held())
    worker = Worker(deps, scene.namespace, "flights")
    closing.callback(worker._credentials.close)
    worker._fence._refused("gets no epoch: delete the Lease")
    assert await worker._pass() is Outcome.FAILED
    await worker._pass()
    path = f"/apis/events.k8s.io/v1/namespaces/{scene.namespace}/events"
    told = {each["reason"]: each["note"] for each in api_server.request("GET", path)["items"]}
    assert told["OperatorRefused"] == "gets no epoch: delete the Lease"


async def test_a_pass_that_was_refused_writes_no_status(
    kube: Kube, closing: ExitStack, api_server: ApiServer
) -> None:
    """What is true is for the successor to say (ADR 0102)."""
    scene = Scene(api_server)
    scene.cluster()
    deps = Deps(kube, Events(kube, "test"), Metrics(), Installation("penstock-broker:test"), Held())
    worker = Worker(deps, scene.namespace, "flights")
    closing.callback(worker._credentials.close)
    before = scene.get(PENSTOCK, "clusters", "flights")["status"]
    worker._acting = Refused(worker._fence)
    assert await worker._pass() is Outcome.FAILED
    assert scene.get(PENSTOCK, "clusters", "flights")["status"] == before


class Broken(Acting):
    """It has a defect, until it is mended."""

    def __init__(self, mended: Acting) -> None:
        self.mended, self.has_defect = mended, True
        self.overrulings = mended.overrulings

    async def carry_out(self, *args: Any) -> None:
        if self.has_defect:
            raise RuntimeError("a defect\nin two lines")
        await self.mended.carry_out(*args)


async def test_a_defect_is_in_the_status_until_a_pass_has_none(
    kube: Kube, closing: ExitStack, api_server: ApiServer
) -> None:
    scene = Scene(api_server)
    scene.cluster()
    metrics = Metrics()
    deps = Deps(kube, Events(kube, "test"), metrics, Installation("penstock-broker:test"), Held())
    worker = Worker(deps, scene.namespace, "flights")
    closing.callback(worker._credentials.close)
    before = scene.get(PENSTOCK, "clusters", "flights")["status"]
    acting = worker._acting = Broken(worker._acting)
    for _ in range(2):
        assert await worker._pass() is Outcome.FAILED
    told = scene.get(PENSTOCK, "clusters", "flights")
    stalled = condition(told, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "OperatorError")
    assert "RuntimeError: a defect; brokers serve without it" in stalled["message"]
    assert told["status"]["message"] == stalled["message"]
    assert told["status"]["phase"] == before["phase"]
    assert b'reason="OperatorError"} 1.0' in generate_latest(metrics.registry)
    metrics.forget(scene.namespace, "flights")
    assert await worker._pass() is Outcome.FAILED
    assert b'reason="OperatorError"} 1.0' in generate_latest(metrics.registry), "as restarted"
    acting.has_defect = False
    assert await worker._pass() is not Outcome.FAILED
    assert condition(scene.get(PENSTOCK, "clusters", "flights"), "Stalled")["status"] == "False"
    assert b"OperatorError" not in generate_latest(metrics.registry)
