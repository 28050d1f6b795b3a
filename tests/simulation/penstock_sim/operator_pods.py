"""Two operator processes, one Lease, one cluster: whoever was paused changes nothing (I35).

    OperatorPod: Leadership, Fence ── Lease ─▶ LeaseServer
        └─ a pass: some changes, each with its epoch ─▶ AdminService of a controller
    every cluster document that is stored ─▶ `stored`: whose changes are in it, and in which tenure

Lease, fence, the call's edge and the controller are the product's. A pod is paused, killed or cut
off from the API server at any time; somebody deletes the Lease. What a pod changes are cordons,
each with a text of its own, so that the documents tell whose they are.

Leases last for as long as a history allows, not for 15 s. Choices come from a generator of its own,
and only in histories that want operators: the others are what they were.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from penstock.core.control.documents import ClusterDocument, OperatorLease
from penstock.errors import ErrorCode, PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.lease import Lease
from penstock.kubernetes.resources import LeaseObject
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.operators import OPERATOR_EPOCH
from penstock_operator import lease as lease_module
from penstock_operator.fence import Fence, FencedError
from penstock_operator.lease import Leadership, LeaseLostError
from penstock_sim.admin_calls import AdminNode
from penstock_sim.lease_api import LeasePort, LeaseServer
from penstock_sim.node_loop import NodeLoop, SimExecutor
from penstock_sim.scheduler import RATE, RuleError

if TYPE_CHECKING:
    from penstock_sim.world import World

_NODES: Final = {"operator-a": 781, "operator-b": 782}
_DURATION_S: Final = 1.0
_RENEW_S: Final = 0.25
_FRESH_S: Final = 0.15
_WHERE: Final = LeaseObject("penstock", "penstock-operator")
_PAUSED_MS: Final = (5, 60, 350, 700)
_PAUSED_AT_A_MOMENT: Final = 0.1


class _Leadership(Leadership):
    """With a thread of the simulator's."""

    def __init__(self, lease: Lease, holder: str, thread: SimExecutor) -> None:
        super().__init__(lease, holder)
        self._thread.shutdown()
        self._thread = thread  # type: ignore[assignment]  # as far as it is used


class _Controllers:
    """The way to whoever decides, as `AsyncAdmin` for a `Fence`: asked again until time is up."""

    def __init__(self, pod: OperatorPod) -> None:
        self._pod = pod
        self._epoch: Callable[[], Awaitable[int]] | None = None
        self._refused: Callable[[str], None] | None = None

    def name_operator(
        self, epoch: Callable[[], Awaitable[int]], refused: Callable[[str], None]
    ) -> None:
        """See `AsyncAdmin`."""
        self._epoch, self._refused = epoch, refused

    async def acquire_operator_epoch(self, lease: OperatorLease) -> int:
        """See `AsyncAdmin`."""
        await self._pod.may_pause()
        request = pb.AcquireOperatorEpochRequest(
            cluster_id=self._pod.world.cluster_id,
            lease_uid=lease.uid,
            lease_created_s=lease.created_s,
            lease_transitions=lease.transitions,
            lease_holder=lease.holder,
        )
        answer = await self._ask(lambda stub: stub.AcquireOperatorEpoch, request, ())
        return int(answer.operator_epoch)

    async def cordon(self, broker_id: int, why: Callable[[], str]) -> None:
        """`why` is asked once there is an epoch, just before the change is sent."""
        assert self._epoch is not None
        epoch = await self._epoch()
        await self._pod.may_pause()
        change = pb.BrokerChange(broker_id=broker_id)
        change.cordon.placement = True
        change.cordon.why = why()
        request = pb.AlterBrokersRequest(cluster_id=self._pod.world.cluster_id, changes=[change])
        metadata = ((OPERATOR_EPOCH, str(epoch)),) if epoch else ()
        await self._ask(lambda stub: stub.AlterBrokers, request, metadata)

    async def _ask(
        self, method: Callable[[Any], Any], request: Any, metadata: tuple[tuple[str, str], ...]
    ) -> Any:
        try:
            return await self._pod.node.ask(method, request, metadata)
        except PenstockError as error:
            if error.code is ErrorCode.STALE_OPERATOR_EPOCH and self._refused is not None:
                self._refused(error.message)
            raise


class OperatorPod:
    """One run of an operator's process. A container that is restarted keeps its pod's name."""

    def __init__(self, pods: OperatorPods, holder: str, life: int) -> None:
        self.pods = pods
        self.world = pods.world
        self.name = f"{holder}.{life}"
        self.chance = self.world.scheduler.generator(f"operator {self.name}")
        self.loop = NodeLoop.of(self.world.scheduler, self.name, rate=RATE)
        self.node = AdminNode(self.world, _NODES[holder], self.name, self.chance, self.loop)
        self.port = LeasePort(pods.server, self.name, self.chance)
        lease = Lease(self.port, _WHERE, self.loop.time)  # type: ignore[arg-type]  # as it uses it
        thread = SimExecutor(self.loop, lambda: self.chance.uniform(0.5, 8))
        self._leadership = _Leadership(lease, holder, thread)
        self._fence = Fence(self._leadership)
        self._brokers = _Controllers(self)
        self._fence.guard(self._brokers)  # type: ignore[arg-type]  # as far as it is used
        self._pace_s = self.chance.choice((0.1, 0.5, 1.0))
        self.ended = False
        self.node.start(self._main())

    async def _main(self) -> None:
        await self._leadership.acquire()
        self.world.scheduler.note(self.name, "leads", self.port.tenure)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._leadership.hold())
                tasks.create_task(self._work())
        except* LeaseLostError:
            self.world.scheduler.note(self.name, "ends")
            self.ended = True

    async def _work(self) -> None:
        while True:
            await sleep(self.chance.uniform(0.2, 1.8) * self._pace_s)
            if not self.world.chaotic:
                continue
            try:
                await self._pass()
            except FencedError:
                await self._start_over()
            except PenstockError as error:
                self.world.scheduler.note(self.name, "fails", error)

    async def _pass(self) -> None:
        """What it decides at the start, it does one after the other."""
        for _ in range(self.chance.choice((1, 2, 3))):
            self._fence.check()
            broker_id = self.chance.choice(list(self.world.brokers))
            await self._brokers.cordon(broker_id, self._sign)
            await sleep(self.chance.choice((0.0, 0.05, 0.3)))

    async def _start_over(self) -> None:
        try:
            await self._fence.start_over()
        except KubernetesError as error:
            self.world.scheduler.note(self.name, "has no Lease", error)

    async def may_pause(self) -> None:
        """At a moment at which what it knows of its Lease should be true, and need not be."""
        if self.world.chaotic and self.chance.random() < _PAUSED_AT_A_MOMENT:
            self.pause(self.chance.choice(_PAUSED_MS))
            await sleep(0)

    def pause(self, for_ms: float) -> None:
        """Nothing of it runs; what it has sent goes its way."""
        self.world.scheduler.note(self.name, "is paused", for_ms)
        self.loop.pause(for_ms)

    def _sign(self) -> str:
        return self.pods.signed(self)


class OperatorPods:
    """Both pods of a history, what happens to them, and what they may change."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.scheduler.generator("operators")
        self.server = LeaseServer(lambda: world.scheduler.wall_ms)
        self._pods: dict[str, OperatorPod] = {}
        self._lives = 0
        self._sent: dict[str, tuple[str, int]] = {}
        """By the text of a change: the run that sent it, and in which tenure."""
        self._seen: set[str] = set()
        self._acted: dict[str, int] = {}
        """The newest tenure from which a change of a run was stored."""
        self._pace_ms = self._random.uniform(20, 120)
        self.changes = 0
        self.successions = 0

    def start(self) -> None:
        """Both pods, and what goes wrong with them."""
        for holder in _NODES:
            self._run(holder)
        self._next()

    def _run(self, holder: str) -> None:
        self._lives += 1
        self._pods[holder] = OperatorPod(self, holder, self._lives)

    def _next(self) -> None:
        self.world.scheduler.at_pace(self._random, self._pace_ms, self._act)

    def _act(self) -> None:
        for holder, pod in self._pods.items():
            if pod.ended:
                pod.node.kill()
                self._run(holder)
        if not self.world.chaotic:
            return
        holder = self._random.choice(list(self._pods))
        [act] = self._random.choices(
            (self._pause, self._kill, self._cut, self._delete), (10, 2, 3, 0.5)
        )
        act(holder)
        self._next()

    def _pause(self, holder: str) -> None:
        self._pods[holder].pause(self._random.choice(_PAUSED_MS))

    def _kill(self, holder: str) -> None:
        self.world.scheduler.note(holder, "is killed")
        self._pods[holder].node.kill()
        self._run(holder)

    def _cut(self, holder: str) -> None:
        """From the API server, not from the controllers."""
        port = self._pods[holder].port
        port.cut = True
        self.world.scheduler.note(holder, "is cut off")
        self.world.scheduler.after(self._random.choice((20, 100, 500)), self._mend, port)

    def _mend(self, port: LeasePort) -> None:
        port.cut = False

    def _delete(self, _holder: str) -> None:
        self.world.scheduler.note("lease", "is deleted")
        self.server.delete()

    # ------------------------------------------------------------ I35

    def signed(self, pod: OperatorPod) -> str:
        """The text of a change that is about to be sent."""
        text = f"change {len(self._sent) + 1} by {pod.name}"
        self._sent[text] = pod.name, pod.port.tenure
        self.world.scheduler.note(pod.name, "sends", text, pod.port.tenure)
        return text

    def stored(self, cluster: ClusterDocument) -> None:
        """After every change of the cluster document; those of one write are in any order."""
        found = {cordon.why for cordon in cluster.cordons.values()} & self._sent.keys()
        for text in sorted(found - self._seen, key=lambda one: self._sent[one][1]):
            self._seen.add(text)
            run, tenure = self._sent[text]
            self.world.scheduler.note(run, "has changed", text)
            others = {one: acted for one, acted in self._acted.items() if one != run}
            for other, acted in others.items():
                if acted > tenure:
                    raise RuleError(
                        f"I35: {text}, sent in tenure {tenure} of the Lease, is stored after "
                        f"{other} has acted in tenure {acted}"
                    )
            self.changes += 1
            self.successions += max(others.values(), default=tenure) < tenure and (
                run not in self._acted
            )
            self._acted[run] = max(tenure, self._acted.get(run, 0))


@contextmanager
def leases_of_a_history() -> Iterator[None]:
    """Leases by the node's clock, and as short as histories are; their trouble is in the trace."""

    def now_s() -> float:
        return asyncio.get_running_loop().time()

    log = logging.getLogger("penstock_operator")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with mock.patch.multiple(
            lease_module,
            monotonic=now_s,
            DURATION_S=_DURATION_S,
            RENEW_S=_RENEW_S,
            FRESH_S=_FRESH_S,
        ):
            yield
    finally:
        log.setLevel(level)
