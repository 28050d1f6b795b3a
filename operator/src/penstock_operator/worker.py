"""One worker per Cluster: the only writer of everything that belongs to it.

    wake (a watch event, a timer) ─▶ read the Cluster ─▶ observe ─▶ plan ─▶ act ─▶ topics ─▶ status

What cannot be read, is wrong in the spec or fails becomes a wait in the status, and everything else
continues (I28). ConsumerGroups are
reconciled in a separate task, which receives the state of the Cluster: nothing here waits for a
group. While a Cluster is waiting for something, the worker runs every second, otherwise every half
minute, which is when it notices drift in the brokers. All state is in the objects: a new worker
continues where another one stopped.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from time import monotonic
from typing import Any, Final

from penstock.core.authorization import CLUSTER
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import API_VERSION, OPERATOR_REFUSED, ClusterNames
from penstock.logs import EventLog
from penstock_operator.access import AccessRules
from penstock_operator.act import Acting
from penstock_operator.brokers import Brokers
from penstock_operator.credentials import Credentials
from penstock_operator.defaults import with_defaults
from penstock_operator.events import Events
from penstock_operator.fence import Fence, FencedError, LeaseHolder
from penstock_operator.groups import Groups, View
from penstock_operator.held import Held, is_refusal
from penstock_operator.kube import Kube, limit_requests
from penstock_operator.metrics import Metrics
from penstock_operator.model import (
    Action,
    Object,
    Observed,
    Plan,
    RestartPod,
    Severity,
    TopicResource,
    Wait,
)
from penstock_operator.names import Names
from penstock_operator.objects import DesiredCluster, Installation, Section, read_cluster
from penstock_operator.observe import RETRY_S, TRUST, Children, observe
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.security import called
from penstock_operator.quotas import apply_quotas
from penstock_operator.report import Reporting
from penstock_operator.second_look import look_again
from penstock_operator.status import why_not_ready
from penstock_operator.topics import Topics
from penstock_operator.trust import TrustCopies

_COALESCE_S: Final = 0.2
_FRESH_S: Final = 2.0
"""How old what was seen may be when a broker restarts. A pass of a big cluster takes longer: then
it looks once more, for this alone."""
_ANSWERED_S: Final = 40.0
"""How old the second look may be. It takes as long as its calls, each of which ends by itself: 15 s
to list pods, 3 × 8 s to ask brokers. So only a process that was frozen finds it older, and who is
always slow rolls nevertheless."""
_BACKOFF_S: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
_log = EventLog("penstock_operator.worker")


class Outcome(Enum):
    """How a pass ended: nothing to do, waiting for something, failed, nothing exists any longer."""

    IDLE = "idle"
    BUSY = "busy"
    FAILED = "failed"
    GONE = "gone"


_PAUSE_S: Final = {Outcome.IDLE: 30.0, Outcome.BUSY: 1.0}


@dataclass(frozen=True, slots=True)
class Deps:
    """What all workers share."""

    kube: Kube
    events: Events
    metrics: Metrics
    installation: Installation
    held: LeaseHolder | None = None
    """The Lease of this process; None: it is the only operator, and is not fenced."""


class Worker:
    """`run` it in a task; `wake` it when something changed; it ends when the Cluster no longer
    exists."""

    def __init__(self, deps: Deps, namespace: str, name: str) -> None:
        self._deps = deps
        self.namespace, self.name = namespace, name
        self._wake = asyncio.Event()
        self._wake.set()
        self._children = Children(deps.kube)
        self._credentials = Credentials(deps.kube)
        self._fence = Fence(deps.held)
        self._refusal = ""
        self._brokers = Brokers(self._credentials, self._fence)
        self._acting = Acting(deps.kube, self._brokers, deps.events)
        self._held = Held()
        self._topics = Topics(deps.kube, self._brokers, deps.events)
        self._access = AccessRules(self._brokers, deps.events)
        # With its own connections: a hanging group must not use up those of the Cluster.
        brokers = Brokers(self._credentials, self._fence)
        self._groups = Groups(deps.kube, deps.events, brokers, (namespace, name))
        names = ClusterNames(name, namespace)
        self._copies = TrustCopies(deps.kube, deps.events, names, deps.installation.namespaces)
        self._reporting = Reporting(deps.kube, deps.events, deps.metrics)
        self._topics_dirty = True
        self._topics_after = 0.0
        self._topics_wait = Wait("TopicsNotReconciled", "")
        self._resources: list[TopicResource] = []
        self.finished_at = self.succeeded_at = monotonic()
        """When a pass ended last, in any way; and when one last did not fail."""

    def wake(self, *, topics: bool = False) -> None:
        """Something changed: among the Topics, or among the Cluster's objects."""
        if topics:
            self._topics_dirty = True
        else:
            self._children.dirty = True
        self._wake.set()

    def copies_changed(self) -> None:
        """A copy of the trust changed, or which namespaces ask for one."""
        self._copies.dirty = True
        self._wake.set()

    def group_changed(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        """A ConsumerGroup was created, changed or deleted, or only its status was written."""
        if self._groups.heard(body, deleted=deleted):
            self._wake.set()

    @property
    def woken(self) -> bool:
        return self._wake.is_set()

    async def run(self) -> None:
        """Returns when neither the Cluster nor anything that belongs to it exists any longer. Once:
        its connections and files are gone then."""
        limit_requests()
        try:
            async with asyncio.TaskGroup() as tasks:
                groups = tasks.create_task(self._groups.run(), name=f"groups of {self.name}")
                await self._run()
                groups.cancel()
        finally:
            self._credentials.close()
            await self._brokers.close()
            await self._groups.close()

    async def _run(self) -> None:
        failures = 0
        pause_s = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            await asyncio.sleep(_COALESCE_S)
            self._wake.clear()
            outcome = await self._pass()
            self.finished_at = monotonic()
            if outcome is Outcome.GONE:
                return
            if outcome is Outcome.FAILED:
                failures += 1
            else:
                failures, self.succeeded_at = 0, self.finished_at
            pause_s = _PAUSE_S.get(outcome) or _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1]

    async def _pass(self) -> "Outcome":
        """One reconciliation; errors in it affect only this Cluster."""
        began = monotonic()
        try:
            outcome = await self._reconcile()
        except* KubernetesError as group:
            error = group.exceptions[0]
            _log.warning("reconcile failed", cluster=self.name, error=str(error))
            outcome = Outcome.FAILED
        except* FencedError as group:
            outcome = await self._start_over(str(group.exceptions[0]))
        except* Exception as group:  # noqa: BLE001 - a defect with one Cluster must not end all
            _log.defect("reconcile hit a defect", group, cluster=self.name)
            await self._tell_defect(group)
            outcome = Outcome.FAILED
        if outcome is Outcome.FAILED:
            self._children.dirty = self._topics_dirty = True
        self._deps.metrics.reconciled(outcome.value, monotonic() - began)
        return outcome

    async def _tell_defect(self, found: BaseException) -> None:
        """In the status, which would show for ever what was so before."""
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        try:
            self._fence.check()
            body = await self._deps.kube.get("Cluster", self.namespace, self.name)
            if body is not None and not body["metadata"].get("deletionTimestamp"):
                await self._reporting.report_defect(body, found)
        except Exception as error:  # noqa: BLE001 - it may be the defect; the first one is in the log
            _log.warning("defect not in the status", cluster=self.name, error=str(error))

    async def _start_over(self, why: str) -> "Outcome":
        """Another operator has taken over. If it has our Lease too, this process ends."""
        _log.warning("another operator has taken over", cluster=self.name, error=why)
        try:
            await self._fence.start_over()
            self._refusal = why
        except KubernetesError as error:
            _log.warning("lease not renewed", cluster=self.name, error=str(error))
        return Outcome.FAILED

    async def _tell_refusal(self, body: Object) -> None:
        """We have the Lease and were refused: it may be so for ever, and nothing else says it."""
        why, self._refusal = self._refusal, ""
        if why:
            await self._deps.events.tell(body, "Cluster", OPERATOR_REFUSED, why, warning=True)

    # ── One pass ──────────────────────────────────────────────────────────────────────────

    async def _reconcile(self) -> "Outcome":
        self._fence.check()
        body = await self._deps.kube.get("Cluster", self.namespace, self.name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            await self._read_topics()
            self._groups.see(View(gone=True))
            await self._topics.reconcile(self._resources, None, None, None, "")
            copied = not await self._copies.reconcile(body, None)
            going = any(each.deleting for each in self._resources)
            if body is not None or copied or going:
                return Outcome.BUSY
            # What waits for a Cluster is woken by it.
            left = self._resources or not self._groups.are_gone
            return Outcome.IDLE if left else Outcome.GONE
        await self._tell_refusal(body)
        names = Names(self.name, self.namespace)
        await self._children.read(names)
        body, undecided = await with_defaults(self._deps.kube, body)
        last = self._children.last(names)
        desired = read_cluster(body, self._deps.installation, last, undecided)
        desired = called(desired, self._children.pods(names))
        seen_s = monotonic()
        status: Mapping[str, Any] = body.get("status") or {}
        observed = await observe(self._children, self._brokers, desired, status)
        observed = replace(observed, overruled=self._acting.overrulings.known)
        plan = plan_cluster(desired, observed)
        ready = why_not_ready(desired, observed, plan) is None
        silence = "" if observed.brokers is not None else observed.brokers_problem
        self._groups.see(View(False, desired, ready, silence, asleep=plan.is_down))
        failed = await self._act(body, desired, observed, plan, seen_s)
        self._fence.check()
        topics_wait, topics_idle = await self._reconcile_topics(desired, observed, plan)
        failed += topics_wait
        self._fence.check()
        failed += await self._apply_access(body, desired, observed)
        self._fence.check()
        if not desired.paused and observed.knows(TRUST):
            await self._copies.reconcile(body, self._children.trust_data(desired))
        plan = replace(plan, waits=(*failed, *plan.waits))
        told = await self._reporting.report(body, desired, observed, plan)
        # What a person has to change in the spec is seen when it changes.
        waits = [wait for wait in plan.waits if wait not in desired.refusals]
        idle = told and topics_idle and not (plan.actions or waits)
        return Outcome.IDLE if idle else Outcome.BUSY

    async def _read_topics(self) -> None:
        """Raises KubernetesError; the Topics are then those that were read before."""
        if not self._topics_dirty:
            return
        self._topics_dirty = False
        try:
            found = await self._deps.kube.list("Topic", self.namespace)
        except BaseException:
            self._topics_dirty = True
            raise
        self._resources = [
            TopicResource(each["metadata"]["name"], each)
            for each in found
            if each["spec"].get("cluster") == self.name
        ]

    async def _reconcile_topics(
        self, desired: DesiredCluster, observed: Observed, plan: Plan
    ) -> tuple[list[Wait], bool]:
        """Why Topics wait, and whether nothing is left to do for them."""
        if not desired.knows(Section.BROKERS, Section.TEMPLATE):
            return [], True  # which defaults topics have is not known
        if monotonic() < self._topics_after:
            return [self._topics_wait], False
        failed: list[Wait] = []
        try:
            await self._read_topics()
            idle = await self._topics.reconcile(
                self._resources,
                desired,
                _document(desired),
                observed.brokers,
                observed.brokers_problem,
                observed.moves,
                asleep=plan.is_down,
            )
            self._deps.metrics.topics(self.namespace, self.name, self._topics.ready)
        except* KubernetesError as group:
            why = str(group.exceptions[0])
            _log.warning("topics not reconciled", cluster=self.name, error=why)
            text = f"Topics wait, and nothing else does: {why}"
            self._topics_wait = Wait("TopicsNotReconciled", text)
            self._topics_after = monotonic() + RETRY_S
            idle, failed = False, [self._topics_wait]
        if not idle:
            self._topics_dirty = True
        return failed, idle

    async def _act(
        self,
        body: Object,
        desired: DesiredCluster,
        observed: Observed,
        plan: Plan,
        seen_s: float,
    ) -> list[Wait]:
        """Performs every action; returns the failures as waits. `seen_s`: when it began to observe,
        by our clock."""
        failed, due, tried = [], plan.actions, False
        self._held.only(plan.actions)
        for action in plan.actions:
            self._fence.check()
            if (held := self._held.why(action)) is not None:
                failed.append(held)
                continue
            tried = True
            try:
                if isinstance(action, RestartPod) and not action.forced:
                    if monotonic() - seen_s > _FRESH_S:
                        seen_s, due = monotonic(), ()
                        now = await look_again(self._deps.kube, self._brokers, desired, observed)
                        due = plan_cluster(desired, now).actions
                    if action not in due or monotonic() - seen_s > _ANSWERED_S:
                        continue  # decided again in the next pass
                await self._acting.carry_out(action, body, desired, observed)
            except KubernetesError as error:
                failed.append(self._failed(action, error))
            self._deps.metrics.acted(type(action).__name__)
        if tried:
            self._children.dirty = True
        return failed

    def _failed(self, action: Action, error: KubernetesError) -> Wait:
        _log.warning("action failed", cluster=self.name, error=str(error))
        severity = Severity.BLOCKED if is_refusal(error) else Severity.PROGRESS
        wait = Wait("ApiServerRefused", str(error), severity)
        self._held.failed(action, wait, error)
        return wait

    async def _apply_access(
        self, body: Object, desired: DesiredCluster, observed: Observed
    ) -> list[Wait]:
        """Why the cluster's rules of access and quotas are not those of the spec."""
        if desired.paused or observed.brokers is None:
            return []
        waits = [await apply_quotas(self._brokers, self._deps.events, desired, body)]
        if desired.spec.access is not None:
            stored = await self._access.stored(desired, [CLUSTER])
            wanted = desired.spec.access
            wait, _ = await self._access.carry_out(desired, body, CLUSTER, wanted, stored)
            waits.append(wait)
        return [wait for wait in waits if wait is not None]


def _document(desired: DesiredCluster) -> Object:
    """The part of a Cluster that the user writes, as it counts now."""
    metadata = {"name": desired.names.cluster}
    return {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "metadata": metadata,
        "spec": desired.written,
    }
